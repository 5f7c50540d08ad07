//! Where packed weights and compiled tokenizers are kept, so that a second start is quick.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folder of the cache, if there is to be one: what `LAPIDARY_CACHE` names (`off` for none), or
/// else `lapidary` where the system keeps caches. It need not be there yet.
pub fn root() -> Option<PathBuf> {
    find_root(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn find_root(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(given) = var("LAPIDARY_CACHE") {
        return (given != "off").then(|| PathBuf::from(given));
    }
    let home = || var("HOME").map(PathBuf::from);
    let caches = match var("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute()) {
        Some(folder) => folder,
        None if cfg!(windows) => var("LOCALAPPDATA")?.into(),
        None if cfg!(target_os = "macos") => home()?.join("Library/Caches"),
        None => home()?.join(".cache"),
    };
    Some(caches.join("lapidary"))
}

/// The folder of packed weights in a cache.
pub(crate) fn packs(root: Option<PathBuf>) -> Option<PathBuf> {
    root.map(|root| root.join("packs"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::find_root;

    fn root_of(vars: &[(&str, &str)]) -> Option<PathBuf> {
        find_root(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_root_is_where_the_user_says_or_the_system_wants_it() {
        let home = ("HOME", "/home/u");
        let local = ("LOCALAPPDATA", "/home/u/local");
        let given = root_of(&[("LAPIDARY_CACHE", "/x/y"), ("XDG_CACHE_HOME", "/c"), home]);
        assert_eq!(given.as_deref(), Some(Path::new("/x/y")));
        assert_eq!(root_of(&[("LAPIDARY_CACHE", "off"), home, local]), None);
        #[cfg(unix)]
        assert_eq!(
            root_of(&[("XDG_CACHE_HOME", "/c"), home]).as_deref(),
            Some(Path::new("/c/lapidary"))
        );
        let own = match std::env::consts::OS {
            "windows" => "/home/u/local/lapidary",
            "macos" => "/home/u/Library/Caches/lapidary",
            _ => "/home/u/.cache/lapidary",
        };
        // A relative path there is no path, says its standard.
        for vars in [&[home, local][..], &[("XDG_CACHE_HOME", "c"), home, local]] {
            assert_eq!(root_of(vars).as_deref(), Some(Path::new(own)));
        }
        assert_eq!(root_of(&[]), None);
    }
}
