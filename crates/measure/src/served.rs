//! A server under load as numbers, in the terms of `vllm bench serve`.

mod http;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use http::{EventReader, Events, ServerError, ServerUrl, Stopper};

/// What a server is asked.
#[derive(Clone, Debug)]
pub struct ServeTest {
    /// The model's name; that of the server's first one if there is none.
    pub model: Option<String>,
    /// Requests.
    pub n_requests: usize,
    /// Requests that are under way at once, at most.
    pub concurrency: usize,
    /// Requests a second, at random times; infinite for all at once.
    pub request_rate: f64,
    /// Tokens of each prompt, about.
    pub n_prompt: usize,
    /// Tokens of each answer.
    pub n_gen: usize,
    /// The same seed gives the same prompts and times.
    pub seed: u64,
}

/// How one request went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// Tokens of the prompt, as the server counts them, else as they were asked for.
    pub n_prompt: usize,
    /// Tokens of the answer, as the server counts them, else the pieces that it came in.
    pub n_gen: usize,
    /// Seconds to the first piece.
    pub first_s: f64,
    /// Seconds between one piece and the next.
    pub between_s: Vec<f64>,
    /// Seconds to the end.
    pub whole_s: f64,
}

/// What was measured.
#[derive(Debug)]
pub struct ServeReport {
    /// The model's name.
    pub model: String,
    /// Seconds from the first request to the last answer's end.
    pub duration_s: f64,
    /// Requests that were answered.
    pub served: Vec<Served>,
    /// Why others were not.
    pub failed: Vec<ServerError>,
    /// Whether the server lets answers go on to their full length.
    pub ignores_eos: bool,
}

/// Asks one request to learn what the server takes and how it counts, then all others.
pub fn bench_server(url: &ServerUrl, test: &ServeTest) -> Result<ServeReport, ServerError> {
    let model = match &test.model {
        Some(model) => model.clone(),
        None => url.first_model()?,
    };
    let mut asker = Asker { url, model, n_gen: 1, ignore_eos: true };
    let n_words = match asker.calibrate(test) {
        Err(ServerError::Status { status: 400 | 422, .. }) => {
            asker.ignore_eos = false;
            asker.calibrate(test)?
        }
        done => done?,
    };
    asker.n_gen = test.n_gen;

    let arrivals = arrivals(test);
    let next = AtomicUsize::new(0);
    let ended = Mutex::new((Vec::new(), Vec::new()));
    let start = Instant::now();
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(at) = arrivals.get(i) else { return };
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            let prompt = words(n_words, test.seed.wrapping_add(i as u64));
            let done = asker.ask(&prompt, test.n_prompt);
            let Ok(mut ended) = ended.lock() else { return };
            match done {
                Ok(served) => ended.0.push(served),
                Err(e) => ended.1.push(e),
            }
        }
    };
    std::thread::scope(|scope| {
        // One of them works on this thread.
        for _ in 1..test.concurrency.min(test.n_requests) {
            // A thread that can't be made is one fewer; the rest do its work.
            let _ = std::thread::Builder::new().stack_size(1 << 19).spawn_scoped(scope, work);
        }
        work();
    });
    let duration_s = start.elapsed().as_secs_f64();
    let (served, failed) = ended.into_inner().unwrap_or_default();
    let Asker { model, ignore_eos, .. } = asker;
    Ok(ServeReport { model, duration_s, served, failed, ignores_eos: ignore_eos })
}

/// Whoever asks.
struct Asker<'a> {
    url: &'a ServerUrl,
    model: String,
    n_gen: usize,
    ignore_eos: bool,
}

impl Asker<'_> {
    /// How many words make a prompt of the tokens that are asked for.
    fn calibrate(&self, test: &ServeTest) -> Result<usize, ServerError> {
        let n = test.n_prompt.max(1);
        // A prompt that no request has: the server may keep what it computed.
        let seen = self.ask(&words(n, !test.seed), n)?.n_prompt.max(1);
        Ok((n as f64 * n as f64 / seen as f64).round().max(1.0) as usize)
    }

    fn ask(&self, prompt: &str, n_prompt: usize) -> Result<Served, ServerError> {
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.n_gen,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        let start = Instant::now();
        let events = self.url.events("/v1/completions", &body.to_string())?;
        let mut served = Served { n_prompt, ..Served::default() };
        let mut last: Option<Instant> = None;
        let (mut n_pieces, mut is_whole) = (0, false);
        for data in events {
            let data = data?;
            let now = Instant::now();
            if data.trim() == "[DONE]" {
                is_whole = true;
                break;
            }
            let Piece { has_text, ends, usage } = Piece::read(&data)?;
            if has_text {
                match last {
                    Some(before) => served.between_s.push((now - before).as_secs_f64()),
                    None => served.first_s = (now - start).as_secs_f64(),
                }
                last = Some(now);
                n_pieces += 1;
            }
            is_whole |= ends;
            if let Some((read, made)) = usage {
                (served.n_prompt, served.n_gen) = (read, made);
            }
        }
        if !is_whole {
            let what = "the stream ended before the answer did";
            let what = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what);
            return Err(ServerError::BrokeOff(what));
        }
        served.whole_s = last.map_or(start.elapsed(), |last| last - start).as_secs_f64();
        if last.is_none() {
            served.first_s = served.whole_s;
        }
        if served.n_gen == 0 {
            served.n_gen = n_pieces;
        }
        Ok(served)
    }
}

/// What an event of a stream says.
#[derive(Debug, PartialEq)]
struct Piece {
    has_text: bool,
    ends: bool,
    /// Tokens of prompt and answer.
    usage: Option<(usize, usize)>,
}

impl Piece {
    fn read(data: &str) -> Result<Self, ServerError> {
        let garbage = |what: String| ServerError::Garbage(what);
        let event: Value = serde_json::from_str(data)
            .map_err(|e| garbage(format!("an event of its stream is not JSON ({e})")))?;
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            let said = error.get("message").and_then(Value::as_str);
            let message = said.map_or_else(|| error.to_string(), String::from);
            return Err(ServerError::Failed(message));
        }
        let count = |name: &str| event.pointer(name).and_then(Value::as_u64).map(|n| n as usize);
        let usage = count("/usage/prompt_tokens").zip(count("/usage/completion_tokens"));
        let choice = event.pointer("/choices/0");
        if choice.is_none() && usage.is_none() && event.get("choices").is_none() {
            return Err(garbage("an event of its stream has no `choices`".into()));
        }
        let text = choice.and_then(|c| c.get("text")).and_then(Value::as_str);
        let ends = choice.and_then(|c| c.get("finish_reason")).is_some_and(|r| !r.is_null());
        Ok(Piece { has_text: text.is_some_and(|t| !t.is_empty()), ends, usage })
    }
}

/// When each request arrives: all at once, or at random times with a mean between them.
fn arrivals(test: &ServeTest) -> Vec<Duration> {
    let mut random = Random(test.seed ^ 0xA88);
    let mut at = 0.0;
    (0..test.n_requests)
        .map(|i| {
            if i > 0 && test.request_rate.is_finite() && test.request_rate > 0.0 {
                at += -(1.0 - random.unit()).ln() / test.request_rate;
            }
            Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX)
        })
        .collect()
}

/// Words at random, most of them one token each for any tokenizer.
fn words(n: usize, seed: u64) -> String {
    const WORDS: [&str; 32] = [
        "the", "of", "and", "to", "in", "is", "it", "was", "for", "on", "he", "as", "with", "at",
        "by", "she", "from", "this", "be", "or", "had", "not", "are", "but", "they", "one", "you",
        "all", "out", "when", "up", "there",
    ];
    let mut random = Random(seed);
    let chosen = (0..n).map(|_| WORDS[(random.next() % WORDS.len() as u64) as usize]);
    chosen.collect::<Vec<_>>().join(" ")
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to 1, the latter excluded.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Mean, spread and percentiles of seconds, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean_ms: f64,
    /// The one in the middle.
    pub median_ms: f64,
    /// The standard deviation.
    pub std_ms: f64,
    /// That below which 90 of 100 are.
    pub p90_ms: f64,
    /// That below which 99 of 100 are.
    pub p99_ms: f64,
}

impl Latency {
    fn of(mut seconds: Vec<f64>) -> Self {
        if seconds.is_empty() {
            return Latency::default();
        }
        seconds.sort_by(f64::total_cmp);
        let n = seconds.len() as f64;
        let mean = seconds.iter().sum::<f64>() / n;
        let variance = seconds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
        // Between two of them, as numpy does it.
        let at = |part: f64| {
            let place = part * (n - 1.0);
            let (low, high) = (place.floor() as usize, place.ceil() as usize);
            seconds[low] + (seconds[high] - seconds[low]) * place.fract()
        };
        Latency {
            mean_ms: mean * 1e3,
            median_ms: at(0.5) * 1e3,
            std_ms: variance.sqrt() * 1e3,
            p90_ms: at(0.9) * 1e3,
            p99_ms: at(0.99) * 1e3,
        }
    }
}

impl ServeReport {
    /// Tokens of all prompts that were answered.
    pub fn n_prompt(&self) -> usize {
        self.served.iter().map(|s| s.n_prompt).sum()
    }

    /// Tokens of all answers.
    pub fn n_gen(&self) -> usize {
        self.served.iter().map(|s| s.n_gen).sum()
    }

    /// Time to the first token.
    pub fn ttft(&self) -> Latency {
        Latency::of(self.served.iter().map(|s| s.first_s).collect())
    }

    /// Time for each token after the first.
    pub fn tpot(&self) -> Latency {
        let long = self.served.iter().filter(|s| s.n_gen > 1);
        Latency::of(long.map(|s| (s.whole_s - s.first_s) / (s.n_gen - 1) as f64).collect())
    }

    /// Time between one piece of an answer and the next.
    pub fn itl(&self) -> Latency {
        Latency::of(self.served.iter().flat_map(|s| s.between_s.iter().copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_those_of_numpy() {
        let latency = Latency::of(vec![0.004, 0.001, 0.003, 0.002]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(latency.mean_ms, 2.5) && close(latency.median_ms, 2.5), "{latency:?}");
        assert!(close(latency.p90_ms, 3.7) && close(latency.p99_ms, 3.97), "{latency:?}");
        assert!(close(latency.std_ms, 1.25f64.sqrt()));
        assert_eq!(Latency::of(vec![]), Latency::default());
    }

    #[test]
    fn requests_arrive_at_their_rate() {
        let test = ServeTest {
            model: None,
            n_requests: 2000,
            concurrency: 1,
            request_rate: 50.0,
            n_prompt: 1,
            n_gen: 1,
            seed: 7,
        };
        let at = arrivals(&test);
        assert_eq!(at, arrivals(&test), "the same seed gives the same times");
        let last = at[1999].as_secs_f64();
        assert!((35.0..45.0).contains(&last), "{last}");
        assert!(at.is_sorted() && at[0].is_zero());
        let at = arrivals(&ServeTest { request_rate: f64::INFINITY, ..test });
        assert!(at.iter().all(Duration::is_zero));
    }

    #[test]
    fn events_say_text_end_and_counts() {
        let read = |data: &str| Piece::read(data).ok();
        let piece = |has_text, ends, usage| Some(Piece { has_text, ends, usage });
        assert_eq!(read(r#"{"choices":[{"text":"a"}]}"#), piece(true, false, None));
        let last = r#"{"choices":[{"text":"","finish_reason":"length"}]}"#;
        assert_eq!(read(last), piece(false, true, None));
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
        assert_eq!(read(usage), piece(false, false, Some((3, 5))));
        for bad in ["{", "{}", r#"{"error":{"message":"no"}}"#] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert!(words(100, 1) != words(100, 2) && words(100, 1).split(' ').count() == 100);
    }
}
