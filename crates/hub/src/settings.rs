//! Where the cache is and what the hub is, by Hugging Face's own variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::error::{Error, Result};

/// Where models are asked for.
const ENDPOINT: &str = "https://huggingface.co";

/// Where the cache is, what the hub is, and who asks.
#[derive(Clone)]
pub struct Settings {
    /// The folder of the cache, `…/huggingface/hub`.
    pub cache: PathBuf,
    /// The hub.
    pub(crate) endpoint: Address,
    /// The user's token.
    pub(crate) token: Option<String>,
    /// Only the cache may be used.
    pub offline: bool,
    /// PEM files with roots that are trusted instead of Mozilla's.
    pub(crate) roots: Option<PathBuf>,
}

impl Settings {
    /// What the variables say: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HUB_OFFLINE`, and what stands behind them.
    pub fn from_env() -> Result<Self> {
        Self::of(|name| std::env::var_os(name))
    }

    /// With the variables of somebody else.
    pub fn of(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let home = var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
        let path = |name: &str| var(name).map(|value| expand(Path::new(&value), home.as_deref()));
        let hf_home = path("HF_HOME").unwrap_or_else(|| {
            let caches = path("XDG_CACHE_HOME");
            let caches = caches.or_else(|| home.as_ref().map(|home| home.join(".cache")));
            caches.unwrap_or_else(|| PathBuf::from(".cache")).join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let given = var("HF_ENDPOINT").map(|url| url.to_string_lossy().into_owned());
        // What a user sets on purpose may be http; nothing else may.
        let endpoint = Address::parse(given.as_deref().unwrap_or(ENDPOINT))?;
        Ok(Settings {
            cache: cache.unwrap_or_else(|| hf_home.join("hub")),
            endpoint,
            token: token(&var, || path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"))),
            offline: is_true(var("HF_HUB_OFFLINE").or_else(|| var("TRANSFORMERS_OFFLINE"))),
            roots: path("SSL_CERT_FILE"),
        })
    }

    /// A hub at another address, which must be https or on this machine.
    pub fn endpoint(mut self, url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        if !address.is_private() {
            let what = "a hub is asked by https; only HF_ENDPOINT may name another";
            return Err(Error::Address { url: url.to_string(), what });
        }
        self.endpoint = address;
        Ok(self)
    }

    /// With this token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into()).filter(|token| !token.is_empty());
        self
    }

    /// The hub's address.
    pub fn endpoint_url(&self) -> String {
        self.endpoint.to_string()
    }

    /// Whether there is a token to send.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }
}

/// Nobody shall read the token in a log.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint.to_string())
            .field("has_token", &self.token.is_some())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// The variable, or else the file that `hf auth login` writes.
fn token(
    var: &impl Fn(&str) -> Option<OsString>,
    file: impl FnOnce() -> PathBuf,
) -> Option<String> {
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(var);
    let text = match named {
        Some(token) => token.into_string().ok(),
        None if is_true(var("HF_HUB_DISABLE_IMPLICIT_TOKEN")) => None,
        None => std::fs::read_to_string(file()).ok(),
    };
    let text = text.map(|text| text.trim().to_string());
    // What can't stand in a header is no token.
    text.filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_graphic()))
}

/// `~` at the beginning.
fn expand(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_path_buf(),
    }
}

fn is_true(value: Option<OsString>) -> bool {
    let value = value.map(|value| value.to_string_lossy().to_ascii_uppercase());
    value.is_some_and(|value| matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Settings {
        Settings::of(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into())).unwrap()
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        let home = ("HOME", "/home/u");
        let cache = |vars: &[(&str, &str)]| of(vars).cache.to_string_lossy().replace('\\', "/");
        assert_eq!(cache(&[home]), "/home/u/.cache/huggingface/hub");
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/c")]), "/c/huggingface/hub");
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")]), "/h/hub");
        assert_eq!(cache(&[home, ("HF_HOME", "~/h")]), "/home/u/h/hub");
        assert_eq!(cache(&[home, ("HUGGINGFACE_HUB_CACHE", "/o")]), "/o");
        let all =
            [home, ("HUGGINGFACE_HUB_CACHE", "/o"), ("HF_HUB_CACHE", "/n"), ("HF_HOME", "/h")];
        assert_eq!(cache(&all), "/n");
        assert_eq!(cache(&[home, ("HF_HUB_CACHE", "")]), "/home/u/.cache/huggingface/hub");
    }

    #[test]
    fn the_token_comes_from_a_variable_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        assert!(!of(&[home]).has_token());
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(of(&[home]).token.as_deref(), Some("hf_file"));
        assert_eq!(of(&[home, ("HF_TOKEN", "hf_var")]).token.as_deref(), Some("hf_var"));
        assert!(!of(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).has_token());
        assert!(!of(&[home, ("HF_TOKEN", "two words")]).has_token());
        assert!(!format!("{:?}", of(&[("HF_TOKEN", "hf_secret")])).contains("hf_secret"));
    }

    #[test]
    fn a_hub_is_asked_by_https_unless_the_user_names_it() {
        assert_eq!(of(&[]).endpoint_url(), "https://huggingface.co");
        assert_eq!(
            of(&[("HF_ENDPOINT", "http://mirror.lan/hf/")]).endpoint_url(),
            "http://mirror.lan/hf"
        );
        assert!(of(&[]).endpoint("http://mirror.lan").is_err());
        assert!(of(&[]).endpoint("https://mirror.lan").is_ok());
        for here in ["http://127.0.0.1:8080", "http://localhost", "http://[::1]:1"] {
            assert!(of(&[]).endpoint(here).is_ok(), "{here}");
        }
        for bad in ["ftp://x", "x", "https://", "https://u:p@x", "http://localhost.evil.com"] {
            assert!(of(&[]).endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn offline_is_said_as_python_reads_it() {
        for (value, is) in [("1", true), ("true", true), ("ON", true), ("0", false), ("no", false)]
        {
            assert_eq!(of(&[("HF_HUB_OFFLINE", value)]).offline, is, "{value}");
        }
        assert!(of(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
    }
}
