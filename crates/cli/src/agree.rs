//! `lapidary eval agree`.

use std::io::Write;
use std::time::Instant;

use anyhow::Result;
use lapidary::{Engine, Load, Model, Precision, Prompt};
use lapidary_heldout::{Answer, Difference, Item, Side, answer, compare, prompt};
use serde_json::{Value, json};

use crate::args::eval::AgreeArgs;
use crate::exit::{Failed, Usage};
use crate::heldout::Sets;
use crate::tell::tell;
use crate::{model, progress};

/// Asks every backend the same, and lists where one parts from the first.
pub fn run(args: &AgreeArgs) -> Result<()> {
    let sets = Sets::read(args.sets.dir.as_deref(), &args.set, Some(args.limit))?;
    if sets.questions.values().all(Vec::is_empty) {
        return Err(Usage("there is no question in these sets".into()).into());
    }
    let model = model::open(&args.model)?;
    let mut present = present(args, &model)?.into_iter();
    let Some((name, first)) = present.next() else {
        let backend = lapidary::devices().first().map_or("none", |backend| backend.name);
        let reason = "neither it nor another can load this model".to_string();
        let none = lapidary::backend::Error::Unavailable { backend, reason };
        return Err(lapidary::Error::from(none).into());
    };
    let base = ask(args, name, &first, &sets)?;
    let mut others = Vec::new();
    for (name, engine) in present {
        let asked = ask(args, name, &engine, &sets)?;
        let mut differences = Vec::new();
        for (a, b) in base.answers.iter().zip(&asked.answers) {
            let pair = [&first, &engine];
            if let Some(found) = compare(pair, &a.prompt, [&a.answer, &b.answer])? {
                differences.push((a.id.clone(), found));
            }
        }
        others.push((asked, differences));
    }
    let mut out = crate::screen::out();
    if args.sets.json {
        serde_json::to_writer_pretty(&mut out, &report(&base, &others, args.near_tie))
            .map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&base, &others, args.near_tie))?;
    }
    out.flush()?;
    let mut found = others.iter().flat_map(|(_, differences)| differences);
    if found.all(|(_, d)| is_near_tie(d, args.near_tie)) { Ok(()) } else { Err(Failed.into()) }
}

/// Whether so little is between the two tokens on both sides that rounding decides.
fn is_near_tie(difference: &Difference, most: f32) -> bool {
    difference.sides.iter().all(|side| side.margin.is_some_and(|margin| margin.abs() <= most))
}

/// What one backend answered.
struct Asked {
    device: String,
    answers: Vec<Given>,
    seconds: f64,
}

struct Given {
    id: String,
    prompt: Prompt,
    answer: Answer,
}

/// The backends that were asked for, or all that can be used, loaded.
fn present(args: &AgreeArgs, model: &Model) -> Result<Vec<(&'static str, Engine)>> {
    let mut backends: Vec<&'static str> = Vec::new();
    for name in &args.backends {
        backends.extend(model::named_or_all(name)?);
    }
    let mut n_named = backends.len();
    if n_named == 0 {
        if args.backend != "auto" {
            backends.extend(model::named_or_all(&args.backend)?);
            n_named = 1;
        }
        let others = model::named_or_all("auto")?.into_iter();
        backends.extend(others.filter(|name| *name != args.backend));
    }
    let mut loaded = Vec::new();
    for (i, name) in backends.into_iter().enumerate() {
        let load = Load::default().backend(name);
        match model.load(model::engine_args(load, &args.engine, Precision::Fast)) {
            Ok(engine) => loaded.push((name, engine)),
            // What was asked for by name must be there.
            Err(e) if i < n_named => return Err(e.into()),
            Err(e) => tell(format_args!("note: {name} is left out: {e}")),
        }
    }
    Ok(loaded)
}

fn ask(args: &AgreeArgs, name: &'static str, engine: &Engine, sets: &Sets) -> Result<Asked> {
    let start = Instant::now();
    let items: Vec<&Item> = sets.questions.values().flatten().collect();
    let bar = progress::Counted::of(name);
    let mut answers = Vec::with_capacity(items.len());
    for item in &items {
        let prompt = prompt(engine, item, &|image| sets.image(image))?;
        let answer = answer(engine, prompt.clone(), args.sets.max_tokens, &mut |_| {})?;
        answers.push(Given { id: item.id.clone(), prompt, answer });
        bar.set(answers.len(), items.len());
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Asked { device: engine.describe().to_string(), answers, seconds })
}

type Differences = Vec<(String, Difference)>;

fn report(base: &Asked, others: &[(Asked, Differences)], near_tie: f32) -> Value {
    let tokens = |a: &Asked| a.answers.iter().map(|g| g.answer.tokens.len()).sum::<usize>();
    let other = |(asked, differences): &(Asked, Differences)| {
        let listed: Vec<Value> = differences
            .iter()
            .map(|(id, d)| {
                let near = is_near_tie(d, near_tie);
                json!({"id": id, "same_tokens": d.same, "sides": d.sides, "near_tie": near})
            })
            .collect();
        json!({
            "device": asked.device,
            "n_tokens": tokens(asked),
            "seconds": asked.seconds,
            "same_answers": asked.answers.len() - differences.len(),
            "differences": listed,
        })
    };
    json!({
        "device": base.device,
        "n_answers": base.answers.len(),
        "n_tokens": tokens(base),
        "seconds": base.seconds,
        "others": others.iter().map(other).collect::<Vec<_>>(),
    })
}

fn table(base: &Asked, others: &[(Asked, Differences)], near_tie: f32) -> String {
    let n = base.answers.len();
    let mut lines = vec![format!("{n} answers on {} ({:.0} s)", base.device, base.seconds)];
    if others.is_empty() {
        lines.push("there is no other backend to compare with".into());
    }
    for (asked, differences) in others {
        let same = n - differences.len();
        lines.push(format!("{same} of {n} the same on {} ({:.0} s)", asked.device, asked.seconds));
        for (id, d) in differences {
            let side = |s: &Side| {
                let margin = s.margin.map_or("–".into(), |m| format!("{m:.4}"));
                format!("{:?} by {margin}", s.text)
            };
            let [a, b] = &d.sides;
            let near = if is_near_tie(d, near_tie) { " (a near tie)" } else { "" };
            let (a, b) = (side(a), side(b));
            lines.push(format!("  {id}, after {} tokens: {a}; {b}{near}", d.same));
        }
    }
    lines.join("\n") + "\n"
}
