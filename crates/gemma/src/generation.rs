//! `generation_config.json`: how the model's makers recommend to choose tokens.
//!
//! It is not what the model computes, so what can't be used of it is said and left out.

use lapidary_program::SamplingDefaults;
use serde_json::Value;

use crate::config::SAMPLING;
use crate::error::{Error, Result};
use crate::json_fields::narrow;
use crate::mmproj::Notice;

/// Fields that would change the answer and are not read, with the value that changes nothing, and
/// what does the same here.
const NOT_READ: &[(&str, f64, &str)] = &[
    ("diversity_penalty", 0.0, ""),
    ("encoder_repetition_penalty", 1.0, ""),
    ("epsilon_cutoff", 0.0, ""),
    ("eta_cutoff", 0.0, ""),
    ("guidance_scale", 1.0, ""),
    ("length_penalty", 1.0, ""),
    ("min_p", 0.0, "--min-p sets it"),
    ("no_repeat_ngram_size", 0.0, ""),
    ("num_beam_groups", 1.0, ""),
    ("num_beams", 1.0, ""),
    ("penalty_alpha", 0.0, ""),
    ("repetition_penalty", 1.0, "--repetition-penalty sets it"),
    ("top_h", 0.0, ""),
    ("typical_p", 1.0, ""),
];

/// The same, of fields that are lists or maps.
const NO_LISTS: &[&str] = &[
    "bad_words_ids",
    "begin_suppress_tokens",
    "constraints",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
    "stop_strings",
    "watermarking_config",
];

/// How tokens are chosen, unless somebody asks for something else.
pub(crate) fn sampling(
    generation: &Value,
    notices: &mut Vec<Notice>,
) -> Result<SamplingDefaults> {
    if !(generation.is_object() || generation.is_null()) {
        return Err(Error::config("generation_config.json is not an object"));
    }
    let mut s = SAMPLING;
    let mut note = |key: &str, value: &Value, instead: String| {
        let value: String = value.to_string().chars().take(80).collect();
        notices.push(Notice::Generation { what: format!("{key} is {value}"), instead });
    };
    let given = |key: &str| generation.get(key).filter(|value| !value.is_null());
    let mut number = |key: &str, most: f64, default: f32| {
        let Some(value) = given(key) else { return default };
        match value.as_f64().filter(|x| (0.0..=most).contains(x)) {
            Some(x) => narrow(x),
            None => {
                note(key, value, format!("it must be a number from 0 to {most}, so {default} is used"));
                default
            }
        }
    };
    s.temperature = number("temperature", MAX_TEMPERATURE, s.temperature);
    s.top_p = number("top_p", 1.0, s.top_p);
    if let Some(value) = given("top_k") {
        let whole = value.as_f64().filter(|k| k.fract() == 0.0 && (0.0..=MAX_TOP_K).contains(k));
        match whole {
            Some(k) => s.top_k = crate::json_fields::floor_to_u32(k),
            None => {
                let default = s.top_k;
                note("top_k", value, format!("it must be a whole number from 0 on, so {default} is used"));
            }
        }
    }
    match given("do_sample") {
        Some(Value::Bool(false)) => s.temperature = 0.0,
        None | Some(Value::Bool(true)) => {}
        Some(value) => note("do_sample", value, "it must be true or false, so true is used".into()),
    }
    for (key, nothing, here) in NOT_READ {
        if let Some(value) = given(key).filter(|value| value.as_f64() != Some(*nothing)) {
            let here = if here.is_empty() { "it has no counterpart here" } else { here };
            note(key, value, format!("it is not used; {here}"));
        }
    }
    for key in NO_LISTS {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if let Some(value) = given(key).filter(|value| !is_empty(value)) {
            note(key, value, "it is not used; it has no counterpart here".into());
        }
    }
    Ok(s)
}

/// What a request may ask for, too.
const MAX_TEMPERATURE: f64 = 100.0;
/// More than any vocabulary has.
const MAX_TOP_K: f64 = 16_777_216.0;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(generation: Value) -> (SamplingDefaults, Vec<String>) {
        let mut notices = vec![];
        let s = sampling(&generation, &mut notices).unwrap();
        (s, notices.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn f25_what_can_be_used_is_used_and_the_rest_is_said() {
        let (s, said) = read(json!({
            "temperature": 0.5, "top_k": 20.0, "top_p": 0.75, "do_sample": true, "num_beams": 1,
            "eos_token_id": 1, "max_new_tokens": 9, "min_p": null, "stop_strings": [],
        }));
        assert_eq!((s.temperature, s.top_k, s.top_p), (0.5, 20, 0.75));
        assert_eq!(said, Vec::<String>::new());
        assert_eq!(read(json!({"do_sample": false, "temperature": 0.5})).0.temperature, 0.0);
        assert_eq!(read(Value::Null).0, SAMPLING);
        for (key, value) in [
            ("temperature", json!("hot")),
            ("temperature", json!(-1)),
            ("temperature", json!([0.5])),
            ("top_k", json!(-1)),
            ("top_k", json!(1.5)),
            ("top_k", json!(1e300)),
            ("top_p", json!(2)),
            ("do_sample", json!("no")),
            ("repetition_penalty", json!(1.1)),
            ("min_p", json!(0.05)),
            ("num_beams", json!(4)),
            ("bad_words_ids", json!([[7]])),
        ] {
            let (s, said) = read(json!({ key: value }));
            assert_eq!(s, SAMPLING, "{key}");
            assert_eq!(said.len(), 1, "{key}: {said:?}");
            assert!(said[0].contains(key) && said[0].contains("generation_config.json"), "{said:?}");
        }
        assert!(sampling(&json!([1]), &mut vec![]).is_err());
    }
}
