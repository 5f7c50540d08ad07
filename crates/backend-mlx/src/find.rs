//! Where the libraries may lie: MLX itself, and mlx-c, through which C programs call it.

use std::path::{Path, PathBuf};

/// Names a folder that holds the libraries, or the file of mlx-c.
pub(crate) const PLACE: &str = "LAPIDARY_MLX";

/// The version of MLX that mlx-c 0.7 is made for. MLX changes its C++ interface in every release.
pub(crate) const VERSION: &str = "0.32.2";

/// The files of mlx-c and of MLX.
pub(crate) const FILES: [&str; 2] = if cfg!(target_vendor = "apple") {
    ["libmlxc.dylib", "libmlx.dylib"]
} else {
    ["libmlxc.so", "libmlx.so"]
};

/// Libraries that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Libraries {
    /// mlx-c.
    pub mlxc: PathBuf,
    /// MLX, if it was found; else the system's loader may know where it is.
    pub mlx: Option<PathBuf>,
}

/// Refuses another version than the one that is needed.
pub(crate) fn check_version(found: &str, at: &Path) -> Result<(), String> {
    if found == VERSION {
        return Ok(());
    }
    let at = at.display();
    Err(format!("MLX {found} was found ({at}), and {VERSION} is needed: docs/mlx.md says how"))
}

/// Looks for the libraries: where the user says, beside this program, in the folders of Python
/// packages, and where Homebrew puts them.
pub(crate) fn find() -> Result<Libraries, String> {
    let named = std::env::var_os(PLACE).filter(|place| !place.is_empty()).map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let mut folders: Vec<PathBuf> = beside.into_iter().collect();
    folders.extend(packages());
    folders.extend(["/opt/homebrew/lib", "/usr/local/lib"].map(PathBuf::from));
    choose(named.as_deref(), &folders)
}

/// The libraries in the place that was named, else in the first of the folders that has mlx-c. MLX
/// is looked for beside mlx-c first, and then in all folders.
fn choose(named: Option<&Path>, folders: &[PathBuf]) -> Result<Libraries, String> {
    let [mlxc, mlx] = FILES;
    let found = match named {
        Some(place) => {
            let file = if place.is_dir() { place.join(mlxc) } else { place.to_path_buf() };
            match file.is_file() {
                true => file,
                false => return Err(format!("{PLACE} is {}, where no {mlxc} is", place.display())),
            }
        }
        None => {
            let mut files = folders.iter().map(|folder| folder.join(mlxc));
            files.find(|file| file.is_file()).ok_or_else(|| {
                format!("MLX is not installed ({mlxc} was not found; {PLACE} may name its folder)")
            })?
        }
    };
    let beside = found.parent().map(Path::to_path_buf);
    let mut places = beside.iter().chain(folders).map(|folder| folder.join(mlx));
    Ok(Libraries { mlx: places.find(|file| file.is_file()), mlxc: found })
}

/// The folders of the package `mlx` in the Pythons of this machine that are likely to have it.
fn packages() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut roots: Vec<PathBuf> =
        [var("VIRTUAL_ENV"), var("CONDA_PREFIX")].into_iter().flatten().collect();
    roots.extend(var("HOME").map(|home| home.join(".local")));
    roots.extend(["/usr/local", "/opt/homebrew", "/usr"].map(PathBuf::from));
    roots.iter().flat_map(|root| packages_below(root)).collect()
}

/// `lib/python3.*/site-packages/mlx/lib` and what Debian calls the same (`lib/python3`), latest Python
/// first.
fn packages_below(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root.join("lib")) else { return Vec::new() };
    let version = |path: &PathBuf| -> Option<u32> {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("python3.")?.parse().ok()
    };
    let mut pythons: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    pythons.sort_by_key(version);
    let folders = |python: PathBuf| {
        ["site-packages", "dist-packages"].map(|kind| python.join(kind).join("mlx").join("lib"))
    };
    pythons.into_iter().rev().flat_map(folders).filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(folder: &Path, name: &str) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(name), []).unwrap();
        folder.join(name)
    }

    #[test]
    fn the_named_place_goes_before_all_others() {
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| root.path().join(name));
        let folders = [one.clone(), two.clone()];
        let missing = choose(None, &folders).unwrap_err();
        assert!(missing.contains(FILES[0]) && missing.contains(PLACE), "{missing}");
        let [first, second] = [touch(&one, FILES[0]), touch(&two, FILES[0])];
        assert_eq!(choose(None, &folders).unwrap().mlxc, first);
        assert_eq!(choose(Some(&two), &folders).unwrap().mlxc, second);
        assert_eq!(choose(Some(&second), &folders).unwrap().mlxc, second);
        let nowhere = choose(Some(&root.path().join("three")), &folders).unwrap_err();
        assert!(nowhere.contains("three"), "{nowhere}");
    }

    #[test]
    fn another_version_is_refused_with_both() {
        let at = Path::new("/opt/libmlx.so");
        assert_eq!(check_version(VERSION, at), Ok(()));
        let refused = check_version("0.33.0", at).unwrap_err();
        let says = |word: &str| assert!(refused.contains(word), "{refused}");
        ["0.33.0", VERSION, "/opt/libmlx.so"].into_iter().for_each(says);
    }

    #[test]
    fn mlx_may_lie_elsewhere_than_mlx_c() {
        let root = tempfile::tempdir().unwrap();
        let package = root.path().join("lib/python3.12/site-packages/mlx/lib");
        let mlx = touch(&package, FILES[1]);
        touch(&root.path().join("lib/python3.9/site-packages/mlx/lib"), FILES[1]);
        let beside = root.path().join("bin");
        let mlxc = touch(&beside, FILES[0]);
        let mut folders = vec![beside];
        assert_eq!(choose(None, &folders).unwrap().mlx, None);
        folders.extend(packages_below(root.path()));
        assert_eq!(choose(None, &folders).unwrap(), Libraries { mlxc, mlx: Some(mlx) });
    }
}
