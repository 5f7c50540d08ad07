//! A row of `bench --json`, with llama-bench's names.

use std::time::{SystemTime, UNIX_EPOCH};

use lapidary::backend::host;
use lapidary::{DeviceKind, Plan};
use lapidary_measure::peak_memory_bytes;
use serde_json::{Value, json};

use super::{Facts, Measured, spread};
use crate::about;
use crate::args::bench::BenchArgs;

/// What the engine is.
pub struct Subject<'a> {
    pub args: &'a BenchArgs,
    pub facts: &'a Facts,
    pub plan: &'a Plan,
    /// In its own words.
    pub device: String,
    pub load_s: f64,
}

impl Subject<'_> {
    /// One test. Fields of llama-bench that mean nothing here are left out.
    pub fn row(&self, test: &Measured) -> Value {
        let Subject { args, facts, plan, device, load_s } = self;
        let n = (test.n_prompt + test.n_gen) as f64;
        let seconds = test.seconds.as_slice();
        let rates: Vec<f64> = seconds.iter().map(|s| n / s.max(1e-9)).collect();
        let (avg_s, stddev_s) = spread(seconds);
        let (avg_ts, stddev_ts) = spread(&rates);
        let is_gpu = plan.device.kind != DeviceKind::Cpu;
        let kv = plan.kv_type.name();
        json!({
            "test": test.name,
            "build_commit": about::COMMIT,
            "build_version": env!("CARGO_PKG_VERSION"),
            "cpu_info": host::cpu_name(),
            "gpu_info": if is_gpu { plan.device.name.as_str() } else { "" },
            "backends": plan.backend,
            "devices": plan.device.id.to_string(),
            "device_info": device,
            "model_filename": args.model.as_deref().map(|path| path.to_string_lossy()),
            "model_type": format!("{} {}", facts.model, facts.encodings),
            "model_size": facts.size,
            "model_n_params": facts.params,
            "n_batch": plan.limits.tokens,
            "n_ubatch": plan.limits.chunk,
            "n_threads": threads(args),
            "type_k": kv,
            "type_v": kv,
            "use_mmap": args.synthetic.is_none(),
            "n_prompt": test.n_prompt,
            "n_gen": test.n_gen,
            "n_depth": test.depth,
            "test_time": now(),
            "avg_ns": (avg_s * 1e9) as u64,
            "stddev_ns": (stddev_s * 1e9) as u64,
            "avg_ts": avg_ts,
            "stddev_ts": stddev_ts,
            "samples_ns": seconds.iter().map(|s| (s * 1e9) as u64).collect::<Vec<_>>(),
            "samples_ts": rates,
            "load_ms": load_s * 1e3,
            "peak_mem_bytes": peak_memory_bytes(),
            "program_hash": facts.hash,
        })
    }
}

fn threads(args: &BenchArgs) -> usize {
    args.device.engine.threads.map_or_else(host::n_threads, usize::from)
}

/// The time as llama-bench writes it: `2026-11-19T06:05:00Z`.
fn now() -> String {
    time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the odd day of leap years is the last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(time(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(time(1_795_068_300), "2026-11-19T06:05:00Z");
    }
}
