//! `lapidary bench`.

mod batched;
mod row;
mod served;

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use lapidary::program::FileBytes;
use lapidary::runner::Drafting;
use lapidary::{
    Draft, Modality, Model, PEBBLE, Program, Runner, SoftInput, Towers, arbitrary_audio,
    arbitrary_image,
};
use lapidary_measure::{BenchTest, bench_drafted, bench_medium, bench_once, peak_memory_bytes};
use serde_json::Value;

use self::row::Subject;
use crate::args::bench::BenchArgs;
use crate::args::{DraftArg, ModelArgs};
use crate::model;
use crate::tell::tell;

/// Measures a model, the shape of one, or a server.
pub fn run(args: &BenchArgs) -> Result<()> {
    if let Some(url) = &args.url {
        return served::run(args, url);
    }
    let model = subject(args)?;
    if !args.parallel.is_empty() {
        return batched::run(args, &model);
    }
    let tests = tests(args);
    let context = tests.iter().map(BenchTest::context).max().unwrap_or(1);
    // One position more: the token after the last one that is generated has to fit, too.
    let context = u32::try_from(context.saturating_add(1)).unwrap_or(u32::MAX);
    let media = media_tests(args, &model)?;
    let shown = media.iter().map(|m| m.input.n_soft + MEDIA_TEXT).max().unwrap_or(0);
    let context = context.max(u32::try_from(shown + 2).unwrap_or(u32::MAX));
    let facts = Facts::of(model.program());
    let inputs = media.iter().map(|t| t.input.as_ref());
    let towers = Towers::of_inputs(inputs, model.program());
    let draft = if args.accepted.is_some() { Draft::Model } else { Draft::Off };
    let mut load =
        model::load_args(&args.device, false).context(context).towers(towers).draft(draft);
    if let Some(chunk) = args.chunk {
        load = load.chunk(chunk);
    }
    let loaded = model::load_runner(&model, load, false)?;
    let mut runner = loaded.runner;
    runner.set_drafting(Drafting::Off)?;
    let load_s = loaded.took.as_secs_f64();

    let device = runner.describe();
    let subject = Subject { args, facts: &facts, plan: &loaded.plan, device, load_s };
    let mut rows: Vec<Value> = Vec::new();
    for test in &tests {
        // The first run warms caches and pages; it is not counted.
        bench_once(&mut runner, *test)?;
        let mut seconds = Vec::new();
        for _ in 0..args.repetitions {
            seconds.push(bench_once(&mut runner, *test)?);
        }
        let measured = Measured {
            name: test.name(),
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            depth: test.depth,
            seconds,
        };
        rows.push(subject.row(&measured));
        if let Some(accepted) = args.accepted.filter(|_| test.n_gen > 0) {
            let measured = drafted(args, &mut runner, *test, accepted)?;
            rows.push(subject.row(&measured));
        }
        tell(format_args!("note: {} done", test.name()));
    }
    for test in &media {
        bench_medium(&mut runner, &test.input, MEDIA_TEXT)?;
        let mut times = Vec::new();
        for _ in 0..args.repetitions {
            times.push(bench_medium(&mut runner, &test.input, MEDIA_TEXT)?);
        }
        let encode: Vec<f64> = times.iter().map(|t| t.encode_s).collect();
        let first: Vec<f64> = times.iter().map(|t| t.first_token_s).collect();
        let n = test.input.n_soft;
        let named = |name: String, seconds: &[f64], n: usize| Measured {
            name,
            n_prompt: n,
            n_gen: 0,
            depth: 0,
            seconds: seconds.to_vec(),
        };
        let encoded = named(format!("{}{n}", test.name), &encode, n);
        let answered = named(
            format!("first token after {}{n} + {MEDIA_TEXT}", test.name),
            &first,
            n + MEDIA_TEXT,
        );
        for measured in [encoded, answered] {
            rows.push(subject.row(&measured));
        }
        tell(format_args!("note: {} done", test.name));
    }
    let mut out = crate::screen::out();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&rows))?;
        if let Some(bytes) = peak_memory_bytes() {
            writeln!(out, "\npeak memory: {}", indicatif::HumanBytes(bytes))?;
        }
    }
    Ok(out.flush()?)
}

/// Generation with guesses of which so many are right.
fn drafted(
    args: &BenchArgs,
    runner: &mut Runner,
    test: BenchTest,
    accepted: f64,
) -> Result<Measured> {
    let mut stats = bench_drafted(runner, test, accepted)?;
    let mut seconds = Vec::new();
    for _ in 0..args.repetitions {
        stats = bench_drafted(runner, test, accepted)?;
        seconds.push(stats.decode_s);
    }
    let guesses = stats.drafted_tokens as f64 / stats.draft_calls.max(1) as f64;
    let tokens = stats.tokens_per_draft().unwrap_or(1.0);
    let name = format!("{}, {guesses:.1} guesses a step, {tokens:.1} tokens", test.name());
    let BenchTest { n_prompt, n_gen, depth } = test;
    Ok(Measured { name, n_prompt, n_gen, depth, seconds })
}

/// A model from its files, or a released shape with random weights.
fn subject(args: &BenchArgs) -> Result<Model> {
    match &args.synthetic {
        Some(shape) if args.accepted.is_some() => {
            Ok(Model::synthetic_drafting(shape, args.quant.as_deref())?)
        }
        Some(shape) => Ok(Model::synthetic(shape, args.quant.as_deref())?),
        None => {
            let is_pebble = args.model.as_deref().is_none_or(|path| path.as_os_str() == PEBBLE);
            let draft = args.accepted.map(|_| match is_pebble {
                true => DraftArg::At(PEBBLE.into()),
                false => DraftArg::Auto,
            });
            let model = args.model.clone();
            model::open(&ModelArgs { model, draft, ..ModelArgs::default() })
        }
    }
}

fn tests(args: &BenchArgs) -> Vec<BenchTest> {
    let mut tests = Vec::new();
    for depth in &args.depth {
        for n_prompt in args.prompts().into_iter().filter(|n| *n > 0) {
            tests.push(BenchTest { n_prompt, n_gen: 0, depth: *depth });
        }
        for n_gen in args.answers().into_iter().filter(|n| *n > 0) {
            tests.push(BenchTest { n_prompt: 0, n_gen, depth: *depth });
        }
    }
    tests
}

/// Tokens of text around an image or audio.
const MEDIA_TEXT: usize = 32;

/// Pixels of the image.
const IMAGE_SIZE: (u32, u32) = (1024, 768);

/// An image or audio to measure with.
struct MediaTest {
    name: &'static str,
    input: Arc<SoftInput>,
}

fn media_tests(args: &BenchArgs, model: &Model) -> Result<Vec<MediaTest>> {
    let known = &model.metadata().media;
    let refused = |given| lapidary::Error::from(lapidary::text::Error::modality(known, given));
    let mut tests = Vec::new();
    if args.image {
        let spec = known.image.as_ref().ok_or_else(|| refused(Modality::Image))?;
        let input = Arc::new(arbitrary_image(spec, IMAGE_SIZE, args.image_tokens)?);
        tests.push(MediaTest { name: "image", input });
    }
    if args.audio {
        let spec = known.audio.as_ref().ok_or_else(|| refused(Modality::Audio))?;
        tests.push(MediaTest { name: "audio", input: Arc::new(arbitrary_audio(spec, None)?) });
    }
    Ok(tests)
}

struct Facts {
    model: String,
    size: u64,
    params: u64,
    hash: String,
    encodings: String,
}

impl Facts {
    fn of(program: &Program) -> Self {
        let mut labels: Vec<(u64, String)> = Vec::new();
        for decl in program.weights().values() {
            let label = decl.encoding.label();
            match labels.iter_mut().find(|(_, l)| *l == label) {
                Some((bytes, _)) => *bytes += decl.size_bytes(),
                None => labels.push((decl.size_bytes(), label)),
            }
        }
        labels.sort_by(|a, b| b.cmp(a));
        let described = serde_json::to_vec(program.description()).unwrap_or_default();
        Facts {
            model: program.metadata().name.clone(),
            size: program.weight_bytes(),
            params: program.n_params(),
            hash: FileBytes::from_vec(described).short_hash(),
            encodings: labels.into_iter().map(|(_, l)| l).take(2).collect::<Vec<_>>().join(" + "),
        }
    }
}

/// What was measured, and the seconds of each run.
struct Measured {
    name: String,
    n_prompt: usize,
    n_gen: usize,
    depth: usize,
    seconds: Vec<f64>,
}

/// Mean and standard deviation.
fn spread(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, variance.sqrt())
}

fn table(rows: &[Value]) -> String {
    let mut lines = vec![
        "| model | size | params | backend | test | t/s |".to_string(),
        "| --- | ---: | ---: | --- | ---: | ---: |".to_string(),
    ];
    for r in rows {
        lines.push(format!(
            "| {} | {} | {:.2} B | {} | {} | {:.2} ± {:.2} |",
            r["model_type"].as_str().unwrap_or_default(),
            indicatif::HumanBytes(r["model_size"].as_u64().unwrap_or(0)),
            r["model_n_params"].as_u64().unwrap_or(0) as f64 / 1e9,
            r["device_info"].as_str().unwrap_or_default(),
            r["test"].as_str().unwrap_or_default(),
            r["avg_ts"].as_f64().unwrap_or(0.0),
            r["stddev_ts"].as_f64().unwrap_or(0.0),
        ));
    }
    lines.join("\n") + "\n"
}
