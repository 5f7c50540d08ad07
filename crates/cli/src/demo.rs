//! `lapidary demo`: the built-in model talks, sees and calls a tool, on every backend that is here.

use std::io::Write;

use anyhow::{Context, Result};
use lapidary::text::{Content, Part};
use lapidary::{Engine, Load, Model, Precision, pebble};
use lapidary_heldout::{Answer, Item, answer, passes, prompt};
use serde_json::{Value, json};

use crate::args::DemoArgs;
use crate::exit::{Failed, is_cancelled};
use crate::model;
use crate::tell::tell;

/// The most tokens of one answer.
const MAX_TOKENS: usize = 64;

/// Asks the same questions everywhere, shows the first backend's answers, and compares the rest.
pub fn run(args: &DemoArgs) -> Result<()> {
    let items = lapidary_heldout::parse(pebble::DEMO, "the demonstration")?;
    let model = Model::pebble()?;
    let mut ran: Vec<Ran> = Vec::new();
    let named = args.backend != "auto";
    for backend in model::named_or_all(&args.backend)? {
        let load = Load::default().backend(backend);
        let load = model::engine_args(load, &args.engine, Precision::Fast);
        let engine = match model.load(load) {
            Ok(engine) => engine,
            Err(e) if named => return Err(e.into()),
            // What this machine has not is not an error of a demonstration.
            Err(e) => {
                tell(format_args!("note: {backend} is left out: {e}"));
                continue;
            }
        };
        let show = ran.is_empty() && !args.json;
        if !show {
            tell(format_args!("note: asking the same of {backend}"));
        }
        let answers = items.iter().map(|item| ask(&engine, item, show)).collect::<Result<Vec<_>>>();
        match answers {
            Ok(answers) => {
                ran.push(Ran { backend, device: engine.describe().to_string(), answers });
            }
            Err(e) if is_cancelled(&e) || ran.is_empty() => return Err(e),
            Err(e) => tell(format_args!("note: {backend} failed: {e:#}")),
        }
    }
    let rows = rows(&items, &ran);
    let mut out = crate::screen::out();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&rows))?;
    }
    out.flush()?;
    if rows.is_empty() { Err(Failed.into()) } else { Ok(()) }
}

/// What one backend did.
struct Ran {
    backend: &'static str,
    device: String,
    answers: Vec<Answer>,
}

fn ask(engine: &Engine, item: &Item, show: bool) -> Result<Answer> {
    let images = |name: &str| match pebble::demo_image(name) {
        Some(bytes) => Ok(bytes.to_vec()),
        None => Err(std::io::ErrorKind::NotFound.into()),
    };
    let prompt = prompt(engine, item, &images)?;
    let mut out = crate::screen::out();
    let mut written: std::io::Result<()> = Ok(());
    if show {
        written = writeln!(out, "> {}", question(item));
    }
    let answer = answer(engine, prompt, MAX_TOKENS, &mut |text| {
        if show && written.is_ok() {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    })?;
    if show {
        written = written.and_then(|()| writeln!(out, "\n"));
    }
    written.context("can't write to standard output")?;
    Ok(answer)
}

/// What a person would say who asks this.
fn question(item: &Item) -> String {
    let mut said = String::new();
    for message in &item.messages {
        match &message.content {
            Some(Content::Text(text)) => said.push_str(text),
            Some(Content::Parts(parts)) => {
                for part in parts {
                    match part {
                        Part::Text { text } => said.push_str(text),
                        _ => {
                            let name = item.image.as_deref().unwrap_or("something");
                            said.push_str(&format!("[{name}] "));
                        }
                    }
                }
            }
            None => {}
        }
    }
    let tool = |t: &Value| t["function"]["name"].as_str().map(str::to_string);
    let tools: Vec<String> = item.tools.iter().filter_map(tool).collect();
    if tools.is_empty() { said } else { format!("[tools: {}] {said}", tools.join(", ")) }
}

/// A row of each backend. Agreement is with the first: tokens that are the same, from the beginning
/// of each answer on.
fn rows(items: &[Item], ran: &[Ran]) -> Vec<Value> {
    let Some(first) = ran.first() else { return vec![] };
    let row = |r: &Ran| {
        let sum = |f: &dyn Fn(&Answer) -> f64| r.answers.iter().map(f).sum::<f64>();
        let rate = |n: f64, s: f64| (s > 0.0).then(|| n / s);
        let fed = sum(&|a| a.stats.prompt_tokens.saturating_sub(a.stats.reused_tokens) as f64);
        let made = sum(&|a| a.stats.new_tokens.saturating_sub(1) as f64);
        let (mut same, mut all) = (0, 0);
        for (a, b) in first.answers.iter().zip(&r.answers) {
            same += a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
            all += a.tokens.len().max(b.tokens.len());
        }
        let right = |(item, a): (&Item, &Answer)| {
            item.check.as_ref().is_none_or(|check| passes(check, &a.text))
        };
        let answer = |(item, a): (&Item, &Answer)| json!({"id": item.id, "text": a.text, "tokens": a.tokens, "right": right((item, a))});
        json!({
            "backend": r.backend,
            "device": r.device,
            "prompt_tokens_per_s": rate(fed, sum(&|a| a.stats.prefill_s)),
            "answer_tokens_per_s": rate(made, sum(&|a| a.stats.decode_s)),
            "image_s": sum(&|a| a.stats.encode_s),
            "n_right": items.iter().zip(&r.answers).filter(|p| right(*p)).count(),
            "n_answers": items.len(),
            "same_tokens": same,
            "n_tokens": all,
            "answers": items.iter().zip(&r.answers).map(answer).collect::<Vec<_>>(),
        })
    };
    ran.iter().map(row).collect()
}

fn table(rows: &[Value]) -> String {
    let mut lines = vec![
        "| backend | prompt tok/s | answer tok/s | image s | right | same tokens |".to_string(),
        "| --- | ---: | ---: | ---: | ---: | ---: |".to_string(),
    ];
    for r in rows {
        let number = |name: &str| r[name].as_f64().map_or("–".into(), |x| format!("{x:.1}"));
        lines.push(format!(
            "| {} | {} | {} | {:.2} | {} of {} | {} of {} |",
            r["device"].as_str().unwrap_or_default(),
            number("prompt_tokens_per_s"),
            number("answer_tokens_per_s"),
            r["image_s"].as_f64().unwrap_or(0.0),
            r["n_right"],
            r["n_answers"],
            r["same_tokens"],
            r["n_tokens"],
        ));
    }
    lines.join("\n") + "\n"
}
