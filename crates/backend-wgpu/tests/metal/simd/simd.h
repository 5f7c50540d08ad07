// Stands in for Apple's header where there is none; see ../metal_stdlib.
