//! Where packed weights and compiled tokenizers are kept, so that a second start is quick.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder of the cache, if there is to be one: what `LAPIDARY_CACHE` names (`off` for none), or
/// else `lapidary` where the system keeps caches. It need not be there yet. There is none if everybody
/// may write to it, or if it is somebody else's: what is kept there is computed with.
pub fn root() -> Option<PathBuf> {
    wanted_root().filter(|root| is_own(root))
}

/// The folder that would be the cache if it could be trusted.
pub fn distrusted() -> Option<PathBuf> {
    wanted_root().filter(|root| !is_own(root))
}

fn wanted_root() -> Option<PathBuf> {
    find_root(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

/// Whether nobody but this user, root and the owner's group may write to the folders of the cache.
fn is_own(root: &Path) -> bool {
    #[cfg(unix)]
    let is_open = |folder: &Path| {
        use std::os::unix::fs::MetadataExt;
        let Ok(meta) = std::fs::metadata(folder) else { return false };
        let is_foreign = meta.uid() != 0 && user().is_some_and(|user| user != meta.uid());
        is_foreign || meta.mode() & 0o002 != 0
    };
    #[cfg(not(unix))]
    let is_open = |_: &Path| false;
    !["", "packs", "tokenizers"].iter().any(|name| is_open(&root.join(name)))
}

/// Whose process this is, where the system shows it as a file.
#[cfg(unix)]
fn user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|meta| meta.uid())
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

    #[cfg(unix)]
    #[test]
    fn f26_a_cache_that_everybody_can_write_to_is_not_trusted() {
        use std::fs::{Permissions, create_dir, set_permissions};
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        assert!(super::is_own(root.path()));
        assert!(super::is_own(&root.path().join("not there yet")));
        let packs = root.path().join("packs");
        create_dir(&packs).unwrap();
        for (mode, own) in [(0o700, true), (0o775, true), (0o777, false), (0o1777, false)] {
            set_permissions(&packs, Permissions::from_mode(mode)).unwrap();
            assert_eq!(super::is_own(root.path()), own, "{mode:o}");
        }
        // What another user owns, they can change. Only root can give files away.
        set_permissions(&packs, Permissions::from_mode(0o700)).unwrap();
        if super::user() == Some(0) && std::os::unix::fs::chown(&packs, Some(65534), None).is_ok() {
            assert!(!super::is_own(root.path()));
            std::os::unix::fs::chown(&packs, Some(0), None).unwrap();
            assert!(super::is_own(root.path()));
        }
        set_permissions(root.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(!super::is_own(root.path()));
    }

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
