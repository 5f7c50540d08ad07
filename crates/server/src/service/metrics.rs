//! `/metrics`, with the stems and buckets of vLLM.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Prometheus;

use super::registry::Registry;

/// Which model. Only names of served models get here, so there are few.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Of {
    model_name: String,
}

/// Which model, and how it ended.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    model_name: String,
    finished_reason: &'static str,
}

/// Which status.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Status {
    status: u16,
}

type Gauges = Family<Of, Gauge<f64, AtomicU64>>;
type Counters = Family<Of, Counter>;
type Histograms = Family<Of, Histogram>;

/// What is counted.
pub struct Metrics {
    prometheus: Prometheus,
    running: Gauges,
    waiting: Gauges,
    kv_usage: Gauges,
    loaded: Gauges,
    prompt: Counters,
    cached: Counters,
    generated: Counters,
    preempted: Gauges,
    ended: Family<Ended, Counter>,
    first_token: Histograms,
    between: Histograms,
    whole: Histograms,
    responses: Family<Status, Counter>,
}

const FIRST: [f64; 19] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
];
const BETWEEN: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0];
const WHOLE: [f64; 16] =
    [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 240.0, 960.0];

fn histograms(buckets: &'static [f64]) -> Histograms {
    // A family keeps a function, and functions have no captures.
    match buckets.len() {
        19 => Family::new_with_constructor(|| Histogram::new(FIRST)),
        14 => Family::new_with_constructor(|| Histogram::new(BETWEEN)),
        _ => Family::new_with_constructor(|| Histogram::new(WHOLE)),
    }
}

impl Metrics {
    /// Nothing was counted yet.
    pub fn new() -> Self {
        let mut metrics = Metrics {
            prometheus: Prometheus::default(),
            running: Family::default(),
            waiting: Family::default(),
            kv_usage: Family::default(),
            loaded: Family::default(),
            prompt: Family::default(),
            cached: Family::default(),
            generated: Family::default(),
            preempted: Family::default(),
            ended: Family::default(),
            first_token: histograms(&FIRST),
            between: histograms(&BETWEEN),
            whole: histograms(&WHOLE),
            responses: Family::default(),
        };
        let p = &mut metrics.prometheus;
        let gauges = [
            ("num_requests_running", "Requests that are being answered", &metrics.running),
            ("num_requests_waiting", "Requests that wait", &metrics.waiting),
            ("kv_cache_usage_perc", "Part of the KV pages that requests use", &metrics.kv_usage),
            ("model_loaded", "1 if the model is loaded", &metrics.loaded),
            ("num_preemptions", "Requests put back to wait for pages", &metrics.preempted),
        ];
        for (name, help, gauge) in gauges {
            p.register(named(name), help, gauge.clone());
        }
        let counters = [
            ("prompt_tokens", "Tokens of prompts", &metrics.prompt),
            ("prefix_cache_queries", "Tokens of prompts that were looked for", &metrics.prompt),
            ("prefix_cache_hits", "Tokens of prompts that were cached", &metrics.cached),
            ("generation_tokens", "Tokens of answers", &metrics.generated),
        ];
        for (name, help, counter) in counters {
            p.register(named(name), help, counter.clone());
        }
        let histograms = [
            ("time_to_first_token_seconds", "Time to the first token", &metrics.first_token),
            ("inter_token_latency_seconds", "Time between two tokens", &metrics.between),
            ("e2e_request_latency_seconds", "Time to the end of the answer", &metrics.whole),
        ];
        for (name, help, histogram) in histograms {
            p.register(named(name), help, histogram.clone());
        }
        p.register(named("request_success"), "Answers, by how they ended", metrics.ended.clone());
        p.register(named("http_responses"), "Responses, by status", metrics.responses.clone());
        metrics
    }

    /// An answer's prompt, of which so many tokens were cached.
    pub fn prompt(&self, model: &str, tokens: usize, cached: usize) {
        self.prompt.get_or_create(&of(model)).inc_by(tokens as u64);
        self.cached.get_or_create(&of(model)).inc_by(cached as u64);
    }

    /// A token came, so long after the one before it or after its request.
    pub fn token(&self, model: &str, is_first: bool, seconds: f64) {
        let histogram = if is_first { &self.first_token } else { &self.between };
        histogram.get_or_create(&of(model)).observe(seconds);
        self.generated.get_or_create(&of(model)).inc();
    }

    /// An answer ended: `stop`, `length`, `tool_calls`, `cancelled` or `error`.
    pub fn ended(&self, model: &str, reason: &'static str, seconds: f64) {
        let label = Ended { model_name: model.to_string(), finished_reason: reason };
        self.ended.get_or_create(&label).inc();
        self.whole.get_or_create(&of(model)).observe(seconds);
    }

    /// A response went out.
    pub fn response(&self, status: u16) {
        self.responses.get_or_create(&Status { status }).inc();
    }

    /// The text of `/metrics`.
    pub fn text(&self, registry: &Registry) -> String {
        for entry in registry.entries() {
            let of = of(entry.name());
            let now = entry.engine().map(|engine| engine.metrics());
            let is_loaded = f64::from(u8::from(now.is_some()));
            self.loaded.get_or_create(&of).set(is_loaded);
            let now = now.unwrap_or_default();
            self.running.get_or_create(&of).set(now.running as f64);
            self.waiting.get_or_create(&of).set(now.waiting as f64);
            let usage = now.pages_in_use as f64 / now.pages.max(1) as f64;
            self.kv_usage.get_or_create(&of).set(usage);
            self.preempted.get_or_create(&of).set(now.preempted as f64);
        }
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &self.prometheus);
        out
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn named(stem: &str) -> String {
    format!("lapidary:{stem}")
}

fn of(model: &str) -> Of {
    Of { model_name: model.to_string() }
}
