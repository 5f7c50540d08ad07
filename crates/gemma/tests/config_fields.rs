//! No field of a configuration is passed over that would change what is computed.

use std::path::{Path, PathBuf};

use lapidary_gemma::config_fields::{Class, Use, classes};
use lapidary_gemma::{RELEASED, hf_config};
use serde_json::{Value, json};

/// Configurations as transformers saves them and as they are published, by their types.
fn configs() -> Vec<(String, Value)> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny");
    let folders = std::fs::read_dir(tiny).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.flat_map(|folder| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    });
    let is_config = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("config") && name.ends_with(".json")
    };
    let tiny = files.filter(is_config).map(|path| std::fs::read(path).unwrap());
    let all = tiny.chain(RELEASED.iter().map(|r| r.config.as_bytes().to_vec()));
    all.map(|bytes| {
        let config: Value = serde_json::from_slice(&bytes).unwrap();
        (config["model_type"].as_str().unwrap_or("none").to_string(), config)
    })
    .filter(|(kind, _)| kind != "none")
    .collect()
}

fn parsed(config: &Value) -> Result<hf_config::HfConfig, String> {
    hf_config::parse(config.to_string().as_bytes()).map_err(|e| e.to_string())
}

fn part<'a>(config: &'a Value, name: &str) -> Option<&'a Value> {
    if name.is_empty() { Some(config) } else { config.get(name).filter(|part| part.is_object()) }
}

fn uses(all: &[Class]) -> impl Iterator<Item = (&'static str, Use)> {
    all.iter().flat_map(|(_, fields)| fields.iter().copied())
}

/// Other values that a field could have.
fn others(value: Option<&Value>) -> Vec<Value> {
    let mut all = vec![json!(3), json!(0.5), json!("other"), json!([7, 7]), json!({"a": 1})];
    all.extend([json!(true), json!(false)]);
    if let Some(n) = value.and_then(Value::as_u64) {
        all.extend([json!(n + 1), json!(n * 2)]);
    }
    all.retain(|other| Some(other) != value);
    all
}

fn with(config: &Value, name: &str, field: &str, value: Value) -> Value {
    let mut changed = config.clone();
    match name {
        "" => changed[field] = value,
        name => changed[name][field] = value,
    }
    changed
}

#[test]
fn f11_every_field_that_transformers_writes_is_listed() {
    let mut n = 0;
    for (kind, config) in configs() {
        for (name, all) in classes(&kind) {
            for field in part(&config, name).into_iter().flat_map(|p| p.as_object().unwrap().keys())
            {
                let is_listed = uses(all).any(|(listed, _)| listed == field);
                assert!(is_listed, "{kind}: {field} of `{name}` is not listed");
                n += 1;
            }
        }
    }
    assert!(n > 300, "{n}");
}

#[test]
fn f11_fields_are_what_their_list_says() {
    let all = configs();
    let mut seen = Vec::new();
    for (kind, config) in &all {
        let want = parsed(config).unwrap();
        for (name, of) in classes(kind) {
            let Some(fields) = part(config, name) else { continue };
            for (field, then) in uses(of) {
                // The type of the file itself says which list it is held to.
                if name.is_empty() && field == "model_type" && then != Use::Read {
                    continue;
                }
                let others = others(fields.get(field));
                let made = |value: &Value| parsed(&with(config, name, field, value.clone()));
                let class = of.last().unwrap().0;
                match then {
                    Use::Irrelevant | Use::ReadWithMedia => {
                        for value in others {
                            assert_eq!(made(&value).as_ref(), Ok(&want), "{kind} {name} {field}");
                        }
                    }
                    Use::Only(_) => {
                        for value in others.iter().filter(|v| **v != json!(false)) {
                            let refused = made(value).unwrap_err();
                            assert!(refused.contains(field), "{kind} {name} {field}: {refused}");
                        }
                    }
                    Use::Read => {
                        let changes = others.iter().any(|value| made(value).as_ref() != Ok(&want));
                        seen.push((class, field, changes));
                    }
                }
            }
        }
    }
    // A field may need another one to mean something, but somewhere it does.
    for (class, field, _) in &seen {
        let changes = seen.iter().any(|(c, f, changes)| (c, f) == (class, field) && *changes);
        assert!(changes, "{field} of {class} is listed as read, and changes nothing");
    }
}

#[test]
fn f11_fields_that_are_not_run_are_named() {
    let of = |kind: &str| {
        configs()
            .into_iter()
            .find(|(k, c)| k == kind && part(c, "audio_config").is_some())
            .unwrap()
            .1
    };
    let config = of("gemma4");
    for (field, value) in
        [("gradient_clipping", json!(10.0)), ("attention_invalid_logits_value", json!(-5.0))]
    {
        let refused = parsed(&with(&config, "audio_config", field, value)).unwrap_err();
        assert!(refused.contains(field) && refused.contains("audio_config"), "{refused}");
    }
    let refused = parsed(&with(&config, "text_config", "attention_bias", json!(true))).unwrap_err();
    assert!(refused.contains("attention_bias"), "{refused}");
}
