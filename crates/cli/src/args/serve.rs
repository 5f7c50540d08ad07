//! The settings of `lapidary serve`. Every flag is also a variable and a name in a file.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use lapidary_server::service::{Bytes, KeepAlive};
use lapidary_server::{Config, LogFormat};

use super::{KvArg, PrecisionArg};

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    /// Models: names such as gemma4:e2b, Hugging Face folders, GGUF or .lap files, `pebble`, or
    /// NAME=PATH [default: pebble]
    #[arg(env = "LAPIDARY_MODELS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// A TOML file that sets these flags by name; flags and variables override it
    #[arg(long, value_name = "FILE", env = "LAPIDARY_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, env = "LAPIDARY_HOST")]
    pub host: Option<IpAddr>,
    /// Port to listen on; 0 for any free port [default: 8080]
    #[arg(long, env = "LAPIDARY_PORT")]
    pub port: Option<u16>,
    /// An API key; every request must then send one of the keys (repeatable)
    #[arg(
        long,
        value_name = "KEY",
        env = "LAPIDARY_API_KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub api_key: Vec<String>,
    /// A file with API keys, one per line
    #[arg(long, value_name = "FILE", env = "LAPIDARY_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Listen on an address that others can reach, without a key
    #[arg(long, env = "LAPIDARY_INSECURE")]
    pub insecure: bool,
    /// A host name of this server besides localhost, as a proxy sends it (repeatable)
    #[arg(long, value_name = "NAME", env = "LAPIDARY_ALLOW_HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// Allow requests from web pages of this origin: https://example.com (repeatable)
    #[arg(long, value_name = "ORIGIN", env = "LAPIDARY_ALLOW_ORIGIN", value_delimiter = ',')]
    pub allow_origin: Vec<String>,
    /// Backend: auto, or one that `lapidary doctor` lists [default: auto]
    #[arg(long, env = "LAPIDARY_BACKEND")]
    pub backend: Option<String>,
    /// The number of one of its devices (1), or a device name that `lapidary doctor` lists (vulkan:1)
    #[arg(long, value_name = "DEVICE", env = "LAPIDARY_DEVICE")]
    pub device: Option<String>,
    /// Worker threads [default: as many as the machine allows]
    #[arg(long, env = "LAPIDARY_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Precision of activations: `fast` rounds them for quantised weights where that saves time, `exact`
    /// does not [default: fast]
    #[arg(long, value_enum, env = "LAPIDARY_PRECISION")]
    pub precision: Option<PrecisionArg>,
    /// Type of the KV cache [default: bf16; f32 with --precision exact]
    #[arg(long, value_enum, value_name = "TYPE", env = "LAPIDARY_KV")]
    pub kv: Option<KvArg>,
    /// Tokens of prompt and answer together, at most [default: the model's limit, at most 8192]
    #[arg(long, value_name = "N", env = "LAPIDARY_CTX")]
    pub ctx: Option<u32>,
    /// Requests to answer at the same time [default: 4]
    #[arg(long, value_name = "N", env = "LAPIDARY_PARALLEL")]
    pub parallel: Option<u32>,
    /// The most memory for the KV cache of one model, including cached prefixes: 2GiB
    #[arg(long, value_name = "BYTES", env = "LAPIDARY_CACHE_MEMORY")]
    pub cache_memory: Option<Bytes>,
    /// The most memory for all models together: 16GiB [default: what the device has]
    #[arg(long, value_name = "BYTES", env = "LAPIDARY_MEMORY")]
    pub memory: Option<Bytes>,
    /// How long an unused model stays loaded: 30, 5m, 2h, -1 for ever [default: -1; 5m with several
    /// models]
    #[arg(long, value_name = "TIME", env = "LAPIDARY_KEEP_ALIVE", allow_hyphen_values = true)]
    pub keep_alive: Option<KeepAlive>,
    /// Load a model only when a request needs it
    #[arg(long, env = "LAPIDARY_LAZY")]
    pub lazy: bool,
    /// Read files instead of mapping them
    #[arg(long, env = "LAPIDARY_NO_MMAP")]
    pub no_mmap: bool,
    /// The GGUF file with the vision and audio towers, if you serve a single model
    #[arg(long, value_name = "FILE.gguf", env = "LAPIDARY_MMPROJ")]
    pub mmproj: Option<PathBuf>,
    /// Exit with an error when an engine hangs, so that a supervisor can restart the server
    #[arg(long, env = "LAPIDARY_EXIT_ON_STALL")]
    pub exit_on_stall: bool,
    /// Format of the log: json or text [default: json]
    #[arg(long, value_name = "FORMAT", env = "LAPIDARY_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Do not log a line for each request
    #[arg(long, env = "LAPIDARY_NO_ACCESS_LOG")]
    pub no_access_log: bool,
    /// Do not serve the web page
    #[arg(long, env = "LAPIDARY_NO_PAGE")]
    pub no_page: bool,
    /// Set one of the limits that are printed at start: queue=16, body-bytes=64MiB (repeatable)
    #[arg(long, value_name = "NAME=VALUE", env = "LAPIDARY_LIMIT", value_delimiter = ',')]
    pub limit: Vec<String>,
}

const SERVE_HELP: &str = "\
  lapidary serve                                    the built-in model, with a chat page
  lapidary serve gemma-3-4b-it.gguf --ctx 32768
  lapidary serve small=gemma-3-1b.gguf big=gemma-3-27b.gguf --keep-alive 10m
  lapidary serve gemma.gguf --host 0.0.0.0 --api-key SECRET

A --config file uses the same names: `port = 9000`, `api-key = [\"…\"]`, `[limits]`, `queue = 16`.
For TLS, put a proxy in front; docs/serve.md shows how.";

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
