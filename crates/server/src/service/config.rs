//! What a server is told at start: by flags, by variables, or by a file.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::limits::Limits;

/// What a server is told. A file has the names of the flags.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Models: paths, `pebble`, or `NAME=PATH`.
    pub models: Vec<String>,
    /// The address to listen at.
    pub host: IpAddr,
    /// The port to listen at; 0 for any.
    pub port: u16,
    /// Keys of which a request needs one.
    pub api_key: Vec<String>,
    /// A file with such keys, one a line.
    pub api_key_file: Option<PathBuf>,
    /// Lets an address that others can reach be served without keys.
    pub insecure: bool,
    /// Names of this server, besides those of this machine alone.
    pub allow_host: Vec<String>,
    /// Pages of other servers that may ask.
    pub allow_origin: Vec<String>,
    /// The backend; `auto` for the best.
    pub backend: String,
    /// The device.
    pub device: Option<String>,
    /// Worker threads.
    pub threads: Option<u16>,
    /// How activations meet quantised weights: `fast` or `exact`.
    pub precision: Option<String>,
    /// How keys and values are kept: `f32`, `bf16` or `int8`.
    pub kv: Option<String>,
    /// Positions of one sequence.
    pub ctx: Option<u32>,
    /// Sequences that are answered at once.
    pub parallel: u32,
    /// The most bytes of keys and values of one model, cached prefixes among them.
    pub cache_memory: Option<Bytes>,
    /// The most bytes of all models together.
    pub memory: Option<Bytes>,
    /// How long a model stays loaded that nobody uses.
    pub keep_alive: Option<KeepAlive>,
    /// Loads no model before somebody asks.
    pub lazy: bool,
    /// Reads files instead of mapping them.
    pub no_mmap: bool,
    /// The towers of the only model.
    pub mmproj: Option<PathBuf>,
    /// Ends the process when an engine stalls.
    pub exit_on_stall: bool,
    /// How the log is written.
    pub log_format: LogFormat,
    /// Leaves out the line for each request.
    pub no_access_log: bool,
    /// Serves no web page.
    pub no_page: bool,
    /// How much of everything there may be.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            models: vec![],
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            api_key: vec![],
            api_key_file: None,
            insecure: false,
            allow_host: vec![],
            allow_origin: vec![],
            backend: "auto".to_string(),
            device: None,
            threads: None,
            precision: None,
            kv: None,
            ctx: None,
            parallel: 4,
            cache_memory: None,
            memory: None,
            keep_alive: None,
            lazy: false,
            no_mmap: false,
            mmproj: None,
            exit_on_stall: false,
            log_format: LogFormat::Json,
            no_access_log: false,
            no_page: false,
            limits: Limits::default(),
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// An object a line.
    #[default]
    Json,
    /// Words.
    Text,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "json" => Ok(LogFormat::Json),
            "text" => Ok(LogFormat::Text),
            _ => Err(format!("`{s}` is no format of a log; write `json` or `text`")),
        }
    }
}

/// A number of bytes: `4096`, `512MiB`, `4GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("`{s}` is not a number of bytes; write 4096, 512MiB or 4GB");
        let at = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
        let (digits, unit) = s.split_at(at);
        let factor = match unit.trim() {
            "" | "B" => 1,
            "KiB" | "K" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            "TiB" | "T" => 1 << 40,
            "KB" | "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        let n: u64 = digits.parse().map_err(|_| wrong())?;
        n.checked_mul(factor).map(Bytes).ok_or_else(wrong)
    }
}

/// How long a model stays loaded that nobody uses: `30`, `5m`, `1h30m`, `0`, `-1` for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long.
    For(Duration),
    /// Until the server ends.
    Forever,
}

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let time = |s: &str| {
            seconds(s).and_then(|n| Duration::try_from_secs_f64(n).ok()).ok_or_else(|| {
                format!("`{s}` is not a time; write 30, 90s, 5m, 1h30m, or -1 for ever")
            })
        };
        match s.strip_prefix('-') {
            Some(rest) => time(rest).map(|_| KeepAlive::Forever),
            None => time(s).map(KeepAlive::For),
        }
    }
}

/// Seconds of a number, or of numbers with units after each other, as Go writes times: `5m0s`.
fn seconds(s: &str) -> Option<f64> {
    if let Ok(n) = s.parse::<f64>() {
        return s.starts_with(|c: char| c.is_ascii_digit() || c == '.').then_some(n);
    }
    let (mut rest, mut sum) = (s, 0.0);
    while !rest.is_empty() {
        let (digits, more) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let end = more.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(more.len());
        let (unit, more) = more.split_at(end);
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        sum += digits.parse::<f64>().ok()? * unit;
        rest = more;
    }
    (!s.is_empty()).then_some(sum)
}

/// Reads what has words or is a number.
struct Words<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> de::Visitor<'_> for Words<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a number with a unit")
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, n: f64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Words(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Words(std::marker::PhantomData))
    }
}

impl Config {
    /// Reads a TOML file's text.
    pub fn of_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// The keys, of the file too.
    pub fn keys(&self) -> Result<Vec<String>, String> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| format!("can't read the keys in {}: {e}", path.display()))?;
            let lines = text.lines().map(str::trim);
            keys.extend(lines.filter(|l| !l.is_empty() && !l.starts_with('#')).map(String::from));
            if keys.is_empty() {
                return Err(format!("{} holds no key", path.display()));
            }
        }
        if keys.iter().any(|key| key.is_empty()) {
            return Err("an API key is empty".to_string());
        }
        Ok(keys)
    }

    /// Refuses to serve others without a key, unless it was said that this is meant.
    pub fn check(&self) -> Result<(), String> {
        if !self.host.is_loopback() && self.keys()?.is_empty() && !self.insecure {
            return Err(format!(
                "{} can be reached from other machines; give --api-key KEY, or --insecure if \
                 everybody there may use it",
                self.host
            ));
        }
        if self.parallel == 0 {
            return Err("--parallel 0 answers nobody; ask for at least 1".to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times_have_units() {
        let bytes = |s: &str| s.parse::<Bytes>().map(|b| b.0);
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("4GB"), Ok(4_000_000_000));
        assert_eq!(bytes("17"), Ok(17));
        for wrong in ["", "x", "-1", "4XB", "99999999999TiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        let time = |s: &str| s.parse::<KeepAlive>();
        let of = |s| Ok(KeepAlive::For(Duration::from_secs(s)));
        assert_eq!(time("5m"), of(300));
        assert_eq!(time("30"), of(30));
        assert_eq!(time("0"), of(0));
        for never in ["-1", "-1s", "-5m", "-1ns", "-1m0s"] {
            assert_eq!(time(never), Ok(KeepAlive::Forever), "{never}");
        }
        // As Go writes times, and so Ollama's own program.
        assert_eq!(time("5m0s"), of(300));
        assert_eq!(time("1h30m"), of(5400));
        assert_eq!(time("24h0m0s"), of(86_400));
        assert_eq!(time("1.5h"), of(5400));
        assert_eq!(time("300.0"), of(300));
        assert_eq!(time("500ms"), Ok(KeepAlive::For(Duration::from_millis(500))));
        for wrong in
            ["", "m", "5y", "--", "-", "1e999", "5m5", "5 m", "inf", "nan", "+5", "1..5s", "m5"]
        {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_has_the_names_of_the_flags() {
        let text = "models = [\"pebble\"]\nhost = \"0.0.0.0\"\nport = 9000\napi-key = [\"k\"]\n\
                    cache-memory = \"1GiB\"\nkeep-alive = -1\n[limits]\nqueue = 2\n";
        let config = Config::of_toml(text).unwrap();
        assert_eq!((config.port, config.limits.queue), (9000, 2));
        assert_eq!(config.cache_memory, Some(Bytes(1 << 30)));
        assert_eq!(config.keep_alive, Some(KeepAlive::Forever));
        assert_eq!(config.limits.tools, Limits::default().tools);
        for wrong in ["por = 1", "port = -1", "[limits]\nqueues = 1", "keep-alive = \"soon\""] {
            assert!(Config::of_toml(wrong).is_err(), "{wrong}");
        }
    }
}
