//! Options: each number with its range. What would change the answer and is not done here is refused
//! by its name; what is about the machine is left out.

use lapidary::Sampling;
use serde_json::{Map, Value};

use super::{shown, wrong};
use crate::service::{Failure, Result};

/// What options say.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub sampling: Sampling,
    /// The most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Tokens that prompt and answer may fill together.
    pub context: Option<usize>,
    pub stop: Vec<String>,
    pub warnings: Vec<String>,
    /// Whether penalties look at no tokens.
    penalises_none: bool,
}

/// Options about the machine: how a model is loaded is decided when the server starts.
const HARMLESS: &[&str] = &[
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_gqa",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// Options of samplers that are not here, and the values that turn them off.
const OFF: &[(&str, &[f64])] = &[
    ("mirostat", &[0.0]),
    ("tfs_z", &[1.0]),
    ("typical_p", &[1.0]),
    ("dry_multiplier", &[0.0]),
    ("xtc_probability", &[0.0]),
];

/// Options that say nothing while those above are off.
const SILENT: &[&str] = &["mirostat_eta", "mirostat_tau", "penalize_newline"];

impl Options {
    pub fn read(given: Option<&Map<String, Value>>) -> Result<Self> {
        let mut options = Options::default();
        for (name, value) in given.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            options.take(name, value)?;
        }
        if options.penalises_none {
            let sampling = &mut options.sampling;
            sampling.repetition_penalty = Some(1.0);
            sampling.presence_penalty = Some(0.0);
            sampling.frequency_penalty = Some(0.0);
        }
        Ok(options)
    }

    fn take(&mut self, name: &str, value: &Value) -> Result<()> {
        let at = format!("options.{name}");
        let real = |low: f64, high: f64| match value.as_f64() {
            Some(x) if x >= low && x <= high => Ok(x as f32),
            Some(x) => Err(wrong(&at, format!("{x} is not within {low} to {high}"))),
            None => Err(wrong(&at, "this is a number")),
        };
        let above = |high: f64| match value.as_f64() {
            Some(x) if x > 0.0 && x <= high => Ok(x as f32),
            Some(x) => Err(wrong(&at, format!("{x} is not within more than 0 to {high}"))),
            None => Err(wrong(&at, "this is a number")),
        };
        // Some clients write whole numbers with a fraction of 0.
        let whole = || {
            let exact = value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 1e15);
            let n = value.as_i64().or(exact.map(|x| x as i64));
            n.ok_or_else(|| wrong(&at, "this is a whole number"))
        };
        let sampling = &mut self.sampling;
        match name {
            "temperature" => sampling.temperature = Some(real(0.0, 2.0)?),
            "top_p" => sampling.top_p = Some(above(1.0)?),
            "min_p" => sampling.min_p = Some(real(0.0, 1.0)?),
            "repeat_penalty" => sampling.repetition_penalty = Some(above(100.0)?),
            "presence_penalty" => sampling.presence_penalty = Some(real(-2.0, 2.0)?),
            "frequency_penalty" => sampling.frequency_penalty = Some(real(-2.0, 2.0)?),
            "top_k" => match u32::try_from(whole()?) {
                Ok(k) => sampling.top_k = Some(k),
                Err(_) => {
                    return Err(wrong(&at, format!("{value} is not within 0 to {}", u32::MAX)));
                }
            },
            // Less than 0 is any.
            "seed" => {
                let large = value.as_u64();
                sampling.seed = match large {
                    Some(seed) => Some(seed),
                    None => u64::try_from(whole()?).ok(),
                };
            }
            // -1 and -2 are as many as there is room for.
            "num_predict" => match whole()? {
                -2 | -1 => self.max_tokens = None,
                n => match usize::try_from(n) {
                    Ok(n @ 1..) => self.max_tokens = Some(n),
                    _ => return Err(wrong(&at, format!("{n} is not -2, -1, or at least 1"))),
                },
            },
            "num_ctx" => match usize::try_from(whole()?) {
                Ok(n @ 1..) => self.context = Some(n),
                _ => return Err(wrong(&at, format!("{value} is not at least 1"))),
            },
            "stop" => self.stop = stop(value, &at)?,
            // 0 looks at no tokens, and so penalises none.
            "repeat_last_n" => {
                let what =
                    "penalties look at all of prompt and answer, not at the last tokens alone";
                match whole()? {
                    0 => self.penalises_none = true,
                    // All of it.
                    -1 => {}
                    n @ 1.. => self.warnings.push(format!("{at} of {n} was left out: {what}")),
                    n => return Err(wrong(&at, format!("{n} is not at least -1"))),
                }
            }
            _ if HARMLESS.contains(&name) || SILENT.contains(&name) => {}
            _ => match OFF.iter().find(|(known, _)| *known == name) {
                Some((_, off)) if value.as_f64().is_some_and(|x| off.contains(&x)) => {}
                Some(_) => {
                    let what = format!("{at}: not supported: this sampler is not there");
                    return Err(Failure::unsupported(at, what));
                }
                None => {
                    let name = shown(name);
                    self.warnings.push(format!("options.{name} was left out: nobody knows it"));
                }
            },
        }
        Ok(())
    }

    /// Says that the context is shorter than was asked for.
    pub fn check_context(&mut self, context: usize) {
        if let Some(n) = self.context.filter(|n| *n > context) {
            self.warnings.push(format!(
                "options.num_ctx is {n}, and this model is served with a context of {context} tokens"
            ));
        }
    }
}

fn stop(given: &Value, at: &str) -> Result<Vec<String>> {
    let wrong = || wrong(at, "this is a string, or a list of strings");
    match given {
        Value::String(one) => Ok(vec![one.clone()]),
        Value::Array(all) => {
            all.iter().map(|s| s.as_str().map(String::from).ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(options: Value) -> Result<Options> {
        Options::read(options.as_object())
    }

    #[test]
    fn numbers_within_their_ranges_are_taken_as_they_are() {
        let given = json!({
            "temperature": 0, "top_p": 0.5, "top_k": 7.0, "seed": 18446744073709551615u64,
            "num_predict": -1, "num_ctx": 64, "stop": "x", "repeat_penalty": 1.1, "num_gpu": 99,
            "mirostat": 0, "colour": "red", "repeat_last_n": 64, "min_p": null,
        });
        let options = read(given).unwrap();
        assert_eq!(options.sampling.temperature, Some(0.0));
        assert_eq!(options.sampling.top_k, Some(7));
        assert_eq!(options.sampling.seed, Some(u64::MAX));
        assert_eq!((options.max_tokens, options.context), (None, Some(64)));
        assert_eq!(options.stop, ["x"]);
        assert_eq!(options.warnings.len(), 2, "{:?}", options.warnings);
    }

    #[test]
    fn penalties_that_look_at_nothing_are_off() {
        let given = json!({"repeat_penalty": 1.5, "repeat_last_n": 0, "presence_penalty": 1});
        let options = read(given).unwrap();
        assert_eq!(options.sampling.repetition_penalty, Some(1.0));
        assert_eq!(options.sampling.presence_penalty, Some(0.0));
        assert!(options.warnings.is_empty(), "{:?}", options.warnings);
        let given = json!({"repeat_penalty": 1.5, "repeat_last_n": -1});
        assert_eq!(read(given).unwrap().sampling.repetition_penalty, Some(1.5));
    }

    #[test]
    fn others_are_refused_by_name() {
        let cases = [
            json!({"temperature": -1}),
            json!({"temperature": 1e9}),
            json!({"temperature": "hot"}),
            json!({"top_p": 0}),
            json!({"top_p": 2}),
            json!({"top_k": -1}),
            json!({"top_k": 1.5}),
            json!({"min_p": 1.1}),
            json!({"repeat_penalty": 0}),
            json!({"presence_penalty": 3}),
            json!({"num_predict": 0}),
            json!({"repeat_last_n": -2}),
            json!({"num_predict": -3}),
            json!({"num_ctx": 0}),
            json!({"stop": [1]}),
            json!({"mirostat": 2}),
            json!({"seed": "x"}),
        ];
        for case in cases {
            let name = case.as_object().unwrap().keys().next().unwrap();
            let failure = read(case.clone()).unwrap_err();
            assert_eq!(failure.param, Some(format!("options.{name}")), "{case}");
            assert!(failure.message.contains(name.as_str()));
        }
    }
}
