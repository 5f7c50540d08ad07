//! `bindgen-react-native LIBRARY PACKAGE`: writes the sources for React Native, and those for Node, into
//! the package.

use anyhow::{Context, Result};
use camino::Utf8PathBuf;
use ubrn_bindgen::ffi_module_player_lib_resolution::LibResolution;
use ubrn_bindgen::{AbiFlavor, BindingsArgs, OutputArgs, SourceArgs, SwitchArgs};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(Utf8PathBuf::from);
    let library = arguments.next().context("which library?")?;
    let package = arguments.next().context("which package?")?;
    let write = |flavor, typescript: &str, cpp: &str| {
        let output = OutputArgs::new(&package.join(typescript), &package.join(cpp), true);
        BindingsArgs::new(SwitchArgs { flavor }, SourceArgs::library(&library), output)
            .with_lib_resolution(LibResolution::Colocated)
            .run(None)
    };
    write(AbiFlavor::Jsi, "src/generated", "cpp/generated")?;
    write(AbiFlavor::Napi, "node/generated", "node/generated")?;
    Ok(())
}
