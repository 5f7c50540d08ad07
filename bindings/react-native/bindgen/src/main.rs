//! `bindgen-react-native LIBRARY PACKAGE`: writes the sources for React Native, and those for Node, into
//! the package.

use anyhow::{Context, Result};
use camino::Utf8PathBuf;
use ubrn_bindgen::ffi_module_player_lib_resolution::LibResolution;
use ubrn_bindgen::{AbiFlavor, BindingsArgs, OutputArgs, SourceArgs, SwitchArgs};

/// The packages that the sources import, and what stands for them here: those that are published are older
/// than the generator, which brings its own. Jest knows no `import.meta`, and ours does not ask for it.
const REPLACED: [(&str, &str); 4] = [
    ("\"@ubjs/core\"", "\"uniffi-bindgen-react-native\""),
    ("'@ubjs/core'", "'uniffi-bindgen-react-native'"),
    ("\"@ubjs/node\"", "\"../runtime\""),
    ("import.meta.url", "''"),
];

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
    for folder in ["src/generated", "node/generated"] {
        for entry in package.join(folder).read_dir_utf8()? {
            let path = entry?.into_path();
            let mut text = std::fs::read_to_string(&path)?;
            for (published, here) in REPLACED {
                text = text.replace(published, here);
            }
            std::fs::write(&path, text)?;
        }
    }
    Ok(())
}
