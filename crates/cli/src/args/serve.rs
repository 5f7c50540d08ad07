//! What `lapidary serve` may be told. Every flag is also a variable and a name in a file.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use lapidary_server::service::{Bytes, KeepAlive};
use lapidary_server::{Config, LogFormat};

use super::{KvArg, PrecisionArg};

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    /// Models: Hugging Face folders, GGUF or .lap files, `pebble`, or NAME=PATH [default: pebble]
    #[arg(env = "LAPIDARY_MODELS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// A TOML file with the names of these flags; flags and variables go before it
    #[arg(long, value_name = "FILE", env = "LAPIDARY_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address to listen at [default: 127.0.0.1]
    #[arg(long, env = "LAPIDARY_HOST")]
    pub host: Option<IpAddr>,
    /// Port to listen at; 0 for any [default: 8080]
    #[arg(long, env = "LAPIDARY_PORT")]
    pub port: Option<u16>,
    /// A key of which every request needs one (repeatable)
    #[arg(
        long,
        value_name = "KEY",
        env = "LAPIDARY_API_KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub api_key: Vec<String>,
    /// A file with such keys, one a line
    #[arg(long, value_name = "FILE", env = "LAPIDARY_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Serve an address that others can reach without a key
    #[arg(long, env = "LAPIDARY_INSECURE")]
    pub insecure: bool,
    /// A name of this server besides localhost, as a proxy sends it (repeatable)
    #[arg(long, value_name = "NAME", env = "LAPIDARY_ALLOW_HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// A page of another server that may ask, https://example.com (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "LAPIDARY_ALLOW_ORIGIN", value_delimiter = ',')]
    pub allow_origin: Vec<String>,
    /// Backend: auto, or one that `lapidary doctor` lists [default: auto]
    #[arg(long, env = "LAPIDARY_BACKEND")]
    pub backend: Option<String>,
    /// Which of its devices, or any device by the name that `lapidary doctor` lists
    #[arg(long, value_name = "DEVICE", env = "LAPIDARY_DEVICE")]
    pub device: Option<String>,
    /// Worker threads (default: what the machine allows)
    #[arg(long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How activations meet quantised weights [default: fast]
    #[arg(long, value_enum, env = "LAPIDARY_PRECISION")]
    pub precision: Option<PrecisionArg>,
    /// How keys and values of past tokens are kept [default: bf16; f32 with --precision exact]
    #[arg(long, value_enum, value_name = "TYPE", env = "LAPIDARY_KV")]
    pub kv: Option<KvArg>,
    /// Positions for prompt and answer together (default: the model's own, at most 8192)
    #[arg(long, value_name = "N", env = "LAPIDARY_CTX")]
    pub ctx: Option<u32>,
    /// Requests that are answered at once [default: 4]
    #[arg(long, value_name = "N", env = "LAPIDARY_PARALLEL")]
    pub parallel: Option<u32>,
    /// The most memory for keys and values of one model, cached prefixes among them: 2GiB
    #[arg(long, value_name = "BYTES", env = "LAPIDARY_CACHE_MEMORY")]
    pub cache_memory: Option<Bytes>,
    /// The most memory for all models together: 16GiB (default: what the device has)
    #[arg(long, value_name = "BYTES", env = "LAPIDARY_MEMORY")]
    pub memory: Option<Bytes>,
    /// How long a model stays loaded that nobody uses: 30, 5m, 2h, -1 for ever [default: -1; 5m where
    /// several are served]
    #[arg(long, value_name = "TIME", env = "LAPIDARY_KEEP_ALIVE", allow_hyphen_values = true)]
    pub keep_alive: Option<KeepAlive>,
    /// Load no model before somebody asks
    #[arg(long, env = "LAPIDARY_LAZY")]
    pub lazy: bool,
    /// Read files instead of mapping them
    #[arg(long, env = "LAPIDARY_NO_MMAP")]
    pub no_mmap: bool,
    /// The GGUF file with the vision and audio towers of the only model
    #[arg(long, value_name = "FILE.gguf", env = "LAPIDARY_MMPROJ")]
    pub mmproj: Option<PathBuf>,
    /// End with an error when an engine hangs, so that whoever started it starts it again
    #[arg(long, env = "LAPIDARY_EXIT_ON_STALL")]
    pub exit_on_stall: bool,
    /// How the log is written: json or text [default: json]
    #[arg(long, value_name = "FORMAT", env = "LAPIDARY_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// No line for each request
    #[arg(long, env = "LAPIDARY_NO_ACCESS_LOG")]
    pub no_access_log: bool,
    /// No web page
    #[arg(long, env = "LAPIDARY_NO_PAGE")]
    pub no_page: bool,
    /// One of the limits that are printed at start: queue=16, body-bytes=64MiB (repeatable)
    #[arg(long, value_name = "NAME=VALUE", env = "LAPIDARY_LIMIT", value_delimiter = ',')]
    pub limit: Vec<String>,
}

const SERVE_HELP: &str = "\
  lapidary serve                                    the built-in model, and a page to try it
  lapidary serve gemma-3-4b-it.gguf --ctx 32768
  lapidary serve small=gemma-3-1b.gguf big=gemma-3-27b.gguf --keep-alive 10m
  lapidary serve gemma.gguf --host 0.0.0.0 --api-key SECRET

A file of --config has the same names: `port = 9000`, `api-key = [\"…\"]`, `[limits]`, `queue = 16`.
TLS is a proxy's job; docs/serve.md shows one.";

impl ServeArgs {
    /// What flags, variables and the file say together, in this order.
    pub fn config(&self) -> Result<Config, String> {
        let mut config = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| format!("can't read {}: {e}", path.display()))?;
                Config::of_toml(&text).map_err(|e| format!("{}: {e}", path.display()))?
            }
            None => Config::default(),
        };
        let name = |kv: KvArg| format!("{kv:?}").to_lowercase();
        list(&mut config.models, &self.models);
        list(&mut config.api_key, &self.api_key);
        list(&mut config.allow_host, &self.allow_host);
        list(&mut config.allow_origin, &self.allow_origin);
        plain(&mut config.host, &self.host);
        plain(&mut config.port, &self.port);
        plain(&mut config.backend, &self.backend);
        plain(&mut config.parallel, &self.parallel);
        plain(&mut config.log_format, &self.log_format);
        option(&mut config.api_key_file, &self.api_key_file);
        option(&mut config.device, &self.device);
        option(&mut config.threads, &self.threads);
        option(&mut config.precision, &self.precision.map(|p| format!("{p:?}").to_lowercase()));
        option(&mut config.kv, &self.kv.map(name));
        option(&mut config.ctx, &self.ctx);
        option(&mut config.cache_memory, &self.cache_memory);
        option(&mut config.memory, &self.memory);
        option(&mut config.keep_alive, &self.keep_alive);
        option(&mut config.mmproj, &self.mmproj);
        config.insecure |= self.insecure;
        config.lazy |= self.lazy;
        config.no_mmap |= self.no_mmap;
        config.exit_on_stall |= self.exit_on_stall;
        config.no_access_log |= self.no_access_log;
        config.no_page |= self.no_page;
        for limit in &self.limit {
            config.limits.set(limit)?;
        }
        if config.models.is_empty() {
            config.models.push(lapidary::PEBBLE.to_string());
        }
        Ok(config)
    }
}

fn list(config: &mut Vec<String>, given: &[String]) {
    if !given.is_empty() {
        *config = given.to_vec();
    }
}

fn plain<T: Clone>(config: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        *config = given.clone();
    }
}

fn option<T: Clone>(config: &mut Option<T>, given: &Option<T>) {
    if given.is_some() {
        config.clone_from(given);
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "port = 9000\nparallel = 2\n[limits]\nqueue = 7\n").unwrap();
        let path = file.path().to_str().unwrap();
        let args = ["serve", "--config", path, "--port", "9001", "--limit", "tools=3", "a=b"];
        let config = Only::parse_from(args).serve.config().unwrap();
        assert_eq!((config.port, config.parallel), (9001, 2));
        assert_eq!((config.limits.queue, config.limits.tools), (7, 3));
        assert_eq!(config.models, ["a=b"]);
        assert_eq!(config.host, Config::default().host);
    }

    /// Every flag is a name of the file and has a variable.
    #[test]
    fn every_flag_is_in_the_file_and_has_a_variable() {
        for arg in Only::command().get_arguments() {
            let name = arg.get_id().as_str().replace('_', "-");
            if matches!(name.as_str(), "help" | "serve" | "ServeArgs") {
                continue;
            }
            assert!(arg.get_env().is_some(), "{name}");
            if matches!(name.as_str(), "config" | "limit") {
                continue;
            }
            // A value of no type is refused for what it is; a name that is not there, for its name.
            let said = Config::of_toml(&format!("{name} = {{ x = 1 }}")).unwrap_err();
            assert!(!said.contains("unknown field"), "{name}: {said}");
        }
    }
}
