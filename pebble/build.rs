//! Lists the held-out sets, so that they are part of the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = root.join("heldout").canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut list = String::from("&[\n");
    for folder in ["", "images"] {
        let mut names: Vec<_> = fs::read_dir(root.join(folder))?.flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        for file in names.into_iter().filter(|f| f.path().is_file()) {
            let name = Path::new(folder).join(file.file_name());
            let name = name.to_string_lossy().replace('\\', "/");
            let _ = writeln!(list, "({name:?}, include_bytes!({:?})),", file.path());
        }
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("sets.rs"), list)
}
