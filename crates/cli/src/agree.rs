//! `lapidary eval agree`.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use lapidary_backend::{Backend, Registry};
use lapidary_heldout::{Answer, Difference, Item, Side, answer, compare, prompt};
use lapidary_program::Program;
use lapidary_runner::{CancelToken, Prompt, Runner};
use serde_json::{Value, json};

use crate::args::eval::AgreeArgs;
use crate::exit::{Failed, Usage};
use crate::heldout::{Sets, wanted};
use crate::tell::tell;
use crate::{model, progress};

/// Asks every backend the same, and lists where one parts from the first.
pub fn run(args: &AgreeArgs) -> Result<()> {
    let sets = Sets::read(&args.sets.dir, &args.set, Some(args.limit))?;
    if sets.questions.values().all(Vec::is_empty) {
        return Err(Usage("there is no question in these sets".into()).into());
    }
    let program = Arc::new(model::open(&args.model)?);
    // Nothing is lost if Ctrl-C ends the process at once.
    let cancel = CancelToken::new();
    let registry = lapidary_backends::all();
    let mut present = present(&registry, args, &program)?.into_iter();
    let Some((name, mut first)) = present.next() else {
        let backend = registry.iter().next().map_or("none", |backend| backend.name());
        let reason = "neither it nor another can load this model".to_string();
        return Err(lapidary_backend::Error::Unavailable { backend, reason }.into());
    };
    let base = ask(args, name, &mut first, &sets, &cancel)?;
    let mut others = Vec::new();
    for (name, mut runner) in present {
        let asked = ask(args, name, &mut runner, &sets, &cancel)?;
        let mut differences = Vec::new();
        for (a, b) in base.answers.iter().zip(&asked.answers) {
            let pair = [&mut first, &mut runner];
            if let Some(found) = compare(pair, &a.prompt, [&a.answer, &b.answer])? {
                differences.push((a.id.clone(), found));
            }
        }
        others.push((asked, differences));
    }
    let mut out = std::io::stdout().lock();
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
fn present(
    registry: &Registry,
    args: &AgreeArgs,
    program: &Arc<Program>,
) -> Result<Vec<(&'static str, Runner)>> {
    let mut backends: Vec<&dyn Backend> = Vec::new();
    for name in &args.backends {
        backends.push(registry.named(name)?.0);
    }
    let mut n_named = backends.len();
    if n_named == 0 {
        if args.backend != "auto" {
            backends.push(registry.named(&args.backend)?.0);
            n_named = 1;
        }
        let others = model::named_or_all(registry, "auto")?.into_iter();
        backends.extend(others.filter(|backend| backend.name() != args.backend));
    }
    let mut loaded = Vec::new();
    for (i, backend) in backends.into_iter().enumerate() {
        match model::load_with(backend, program, &args.engine, &wanted(program, false)) {
            Ok(engine) => loaded.push((backend.name(), Runner::new(engine.engine)?)),
            // What was asked for by name must be there.
            Err(e) if i < n_named => return Err(e),
            Err(e) => tell(format_args!("note: {} is left out: {e:#}", backend.name())),
        }
    }
    Ok(loaded)
}

fn ask(
    args: &AgreeArgs,
    name: &'static str,
    runner: &mut Runner,
    sets: &Sets,
    cancel: &CancelToken,
) -> Result<Asked> {
    let start = Instant::now();
    let items: Vec<&Item> = sets.questions.values().flatten().collect();
    let bar = progress::Counted::of(name);
    let mut answers = Vec::with_capacity(items.len());
    for item in &items {
        let prompt = prompt(runner, item, &|picture| sets.picture(picture))?;
        let answer = answer(runner, prompt.clone(), args.sets.max_tokens, cancel, &mut |_| {})?;
        answers.push(Given { id: item.id.clone(), prompt, answer });
        bar.set(answers.len(), items.len());
    }
    Ok(Asked { device: runner.describe(), answers, seconds: start.elapsed().as_secs_f64() })
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
            lines.push(format!("  {id}, behind {} tokens: {a}; {b}{near}", d.same));
        }
    }
    lines.join("\n") + "\n"
}
