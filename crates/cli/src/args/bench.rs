//! The arguments of `lapidary bench`.

use std::path::PathBuf;

use clap::Args;

use super::DeviceArgs;

#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP)]
pub struct BenchArgs {
    /// A Hugging Face folder, a GGUF file or a .lap file [default: pebble, which is built in]
    #[arg(conflicts_with = "synthetic")]
    pub model: Option<PathBuf>,
    /// Use a released shape with random weights instead: gemma-4-e2b, gemma-3-1b, …
    #[arg(long, value_name = "SHAPE")]
    pub synthetic: Option<String>,
    /// Quantise the random weights by this recipe [default: bf16 as released]
    #[arg(long, value_name = "RECIPE", requires = "synthetic")]
    pub quant: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Prompt tokens to process (comma-separated; 0 for none) [default: 512; 128 with --parallel or
    /// --url]
    #[arg(short = 'p', long, value_delimiter = ',', value_name = "N")]
    n_prompt: Vec<usize>,
    /// Tokens to generate (comma-separated; 0 for none) [default: 128; 64 with --parallel or --url]
    #[arg(short = 'n', long, value_delimiter = ',', value_name = "N")]
    n_gen: Vec<usize>,
    /// Measure N sequences at the same time, as llama-batched-bench does (comma-separated)
    #[arg(long, value_delimiter = ',', value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096),
          conflicts_with_all = ["depth", "image", "audio"])]
    pub parallel: Vec<u32>,
    /// Measure a running server instead, over OpenAI's API; --parallel is then the number of
    /// requests at the same time [default: 4], and MODEL the name of one of its models
    #[arg(long, value_name = "URL",
          conflicts_with_all = ["synthetic", "depth", "image", "audio", "chunk", "repetitions"])]
    pub url: Option<String>,
    /// Requests to send to the server [default: 8 times --parallel]
    #[arg(long, value_name = "N", requires = "url",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: Option<u32>,
    /// Requests per second, at random times [default: each as soon as an earlier one ends]
    #[arg(long, value_name = "X", requires = "url", value_parser = rate)]
    pub rate: Option<f64>,
    /// The server's API key
    // The variable is the one of `serve`, and may be set where no server is measured.
    #[arg(long, value_name = "KEY", env = "LAPIDARY_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Tokens that are in the KV cache before the test starts (comma-separated)
    #[arg(short = 'd', long, default_value = "0", value_delimiter = ',', value_name = "N")]
    pub depth: Vec<usize>,
    /// Measured runs, after a warm-up run
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Also measure generation with the model's drafter, as if so many of its guesses were right in
    /// each step, on average; with --synthetic, the drafter that was released with the shape
    #[arg(long, value_name = "N", value_parser = accepted,
          conflicts_with_all = ["parallel", "url"])]
    pub accepted: Option<f64>,
    /// Also measure an image: the time to encode it, and to the first token after it
    #[arg(long)]
    pub image: bool,
    /// Also measure 30 s of audio: the time to encode it, and to the first token after it
    #[arg(long)]
    pub audio: bool,
    /// The most soft tokens for the image, if the model lets you choose
    #[arg(long, value_name = "N", requires = "image")]
    pub image_tokens: Option<u32>,
    /// Feed at most N tokens at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    /// Print JSON with the field names of llama-bench, of llama-batched-bench (--parallel) or of
    /// vLLM's benchmark (--url)
    #[arg(long)]
    pub json: bool,
}

const BENCH_HELP: &str = "\
--parallel prints the columns of llama-batched-bench: B sequences read PP tokens each in T_PP
seconds (S_PP tokens per second), then generate TG tokens each in T_TG seconds.
--url prints TTFT, the time to the first token, and ITL, the time from one token to the next.

  lapidary bench gemma-3-1b-it.gguf
  lapidary bench --synthetic gemma-4-e2b --quant int4 --parallel 1,8,32
  lapidary bench --url http://127.0.0.1:8080 --parallel 1,8";

impl BenchArgs {
    /// Prompt tokens to process.
    pub fn prompts(&self) -> Vec<usize> {
        self.or_default(&self.n_prompt, 512, 128)
    }

    /// Tokens to generate.
    pub fn answers(&self) -> Vec<usize> {
        self.or_default(&self.n_gen, 128, 64)
    }

    fn or_default(&self, given: &[usize], alone: usize, many: usize) -> Vec<usize> {
        match given {
            [] if self.parallel.is_empty() && self.url.is_none() => vec![alone],
            [] => vec![many],
            given => given.to_vec(),
        }
    }
}

fn accepted(given: &str) -> Result<f64, String> {
    let accepted = given.parse().ok().filter(|n: &f64| (0.0..=8.0).contains(n));
    accepted.ok_or_else(|| "give a number from 0 to 8".to_string())
}

fn rate(given: &str) -> Result<f64, String> {
    let rate = given.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "give a number above 0".to_string())
}
