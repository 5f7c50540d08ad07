//! The measurement: which child runs what, and when.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lapidary_gemma::OpenOptions;
use lapidary_program::Modality;

use crate::args::BenchArgs;
use crate::bandwidth;
use crate::child::{self, Setup, Start, Worker};
use crate::file;
use crate::machine::{self, CpuTime};
use crate::protocol::{EngineName, Test};
use crate::report::{Bandwidth, Better, ModelReport, Report, Row, Unit};

/// The order of the two columns, and of every pair below.
const ENGINES: [EngineName; 2] = [EngineName::Lapidary, EngineName::Llama];
/// The image that is shown; a model makes of it what suits it.
const IMAGE: Test = Test::Image { width: 1024, height: 768 };
/// The audio that is played, as long as Gemma 4 hears at once.
const AUDIO: Test = Test::Audio { seconds: 30 };
/// A pause before each run: threads of the other engine that still spin go to sleep.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures all models and prints the report.
pub fn run(args: &BenchArgs) -> Result<()> {
    let mut report = Report {
        cpu: machine::cpu_name(),
        threads: args.threads,
        repetitions: args.repetitions,
        engines: [String::new(), String::new()],
        models: Vec::new(),
    };
    for path in &args.models {
        let (model, engines) = measure(args, path).with_context(|| path.display().to_string())?;
        report.models.push(model);
        report.engines = engines;
        // A run takes long: what is known is written as soon as it is known.
        if let Some(json) = &args.json {
            let text = serde_json::to_string_pretty(&report)? + "\n";
            std::fs::write(json, text).with_context(|| json.display().to_string())?;
        }
    }
    print!("{report}");
    Ok(())
}

fn measure(args: &BenchArgs, path: &Path) -> Result<(ModelReport, [String; 2])> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let sizes = file::sizes(path)?;
    let mut rows = Vec::new();
    let begin = CpuTime::now(&[]);
    let before = read_bandwidth(args, sizes.decode_bytes)?;
    if args.starts > 0 && args.mmproj.is_none() {
        eprintln!("{name}: starts");
        rows.extend(starts(args, path)?);
    }
    let (tests, engines) = match &args.mmproj {
        Some(towers) => media(args, path, towers, &name)?,
        None => tests(args, path, &name)?,
    };
    let after = read_bandwidth(args, sizes.decode_bytes)?;
    let others = begin.zip(CpuTime::now(&[])).map(|(then, now)| now.others_since(&then));
    let bandwidth = before.zip(after).map(|(a, b)| a.best(b));
    rows.extend(tests);
    if let Some(bandwidth) = bandwidth {
        rows.extend(of_bandwidth(&rows, sizes.decode_bytes, bandwidth.large_bytes_per_s));
    }
    let report = ModelReport {
        name,
        file_bytes: sizes.file_bytes,
        decode_bytes: sizes.decode_bytes,
        bandwidth,
        others_cpu: others,
        rows,
    };
    Ok((report, engines))
}

fn read_bandwidth(args: &BenchArgs, model_bytes: u64) -> Result<Option<Bandwidth>> {
    if args.bandwidth_mib == 0 {
        return Ok(None);
    }
    let n_threads = usize::from(args.threads);
    let large_bytes = args.bandwidth_mib << 20;
    Ok(Some(Bandwidth {
        large_bytes: large_bytes as u64,
        large_bytes_per_s: bandwidth::read(large_bytes, n_threads)?,
        model_bytes_per_s: bandwidth::read(usize::try_from(model_bytes)?, n_threads)?,
    }))
}

/// Fresh processes in turn: seconds to the first token, and memory.
fn starts(args: &BenchArgs, path: &Path) -> Result<Vec<Row>> {
    let setup = |engine| Setup {
        engine,
        model: path,
        threads: args.threads,
        context: args.start_context,
        mmproj: None,
    };
    let mut all: [Vec<Start>; 2] = [Vec::new(), Vec::new()];
    for repetition in 0..=args.starts {
        for i in order(repetition) {
            let start = child::start(&setup(ENGINES[i]))?;
            // The first start reads the file from the disk.
            if repetition > 0 {
                all[i].push(start);
            }
        }
    }
    let token = |i: usize| all[i].first().map(|s| s.token);
    if token(0) != token(1) {
        // Random weights leave it to rounding which of two near tokens wins, so this is no error.
        eprintln!("note: the first tokens differ: {:?} and {:?}", token(0), token(1));
    }
    let row = |test: &str, unit, of: fn(&Start) -> f64| {
        let values = [0, 1].map(|i| all[i].iter().map(of).collect());
        Row { test: test.to_string(), unit, better: Better::Lower, values }
    };
    Ok(vec![
        row("start to first token", Unit::Seconds, |s| s.seconds),
        row("peak RSS", Unit::Megabytes, |s| s.memory.peak_bytes as f64),
        row("RSS that is no file", Unit::Megabytes, |s| s.memory.anon_bytes as f64),
    ])
}

/// Both engines loaded, one run each in turn.
fn tests(args: &BenchArgs, path: &Path, name: &str) -> Result<(Vec<Row>, [String; 2])> {
    // Tests of one group are run one right after the other: their results are divided.
    let mut groups: Vec<Vec<Test>> = Vec::new();
    for &depth in &args.depth {
        let prompts = args.n_prompt.iter().filter(|n| **n > 0);
        groups.extend(prompts.map(|&n| vec![Test::Prompt { n, depth }]));
        let answers = args.n_gen.iter().filter(|n| **n > 0);
        groups.extend(answers.map(|&n| vec![Test::Generate { n, depth }]));
    }
    if args.verify > 0 {
        let depth = args.verify_depth;
        groups.push([1, args.verify].map(|n| Test::Verify { n, depth }).to_vec());
    }
    let Some(context) = groups.iter().flatten().map(Test::context).max() else {
        bail!("there is nothing to measure; give -p, -n or --verify")
    };
    let context = u32::try_from(context)?;
    let start = |engine| {
        Worker::start(&Setup { engine, model: path, threads: args.threads, context, mmproj: None })
    };
    let mut workers = [start(ENGINES[0])?, start(ENGINES[1])?];
    let mut rows = Vec::new();
    for group in groups {
        let names: Vec<String> = group.iter().map(Test::name).collect();
        eprint!("{name}: {}", names.join(", "));
        rows.extend(in_turn(args.repetitions, &group, &mut workers)?);
    }
    if args.verify > 0
        && let [.., one, many] = rows.as_slice()
    {
        rows.push(cost(args, one, many));
    }
    let engines = [0, 1].map(|i| workers[i].describe.clone());
    Ok((rows, engines))
}

/// Both engines loaded with their towers; an image and an audio clip each in turn.
fn media(
    args: &BenchArgs,
    path: &Path,
    towers: &Path,
    name: &str,
) -> Result<(Vec<Row>, [String; 2])> {
    let known = lapidary_gemma::open(
        path,
        &OpenOptions { mmproj: Some(towers.to_path_buf()), ..OpenOptions::default() },
    )?;
    let mut tests = Vec::new();
    for modality in known.metadata().media.modalities() {
        match modality {
            Modality::Image => tests.push(IMAGE),
            Modality::Audio => tests.push(AUDIO),
            Modality::Video => {}
        }
    }
    drop(known);
    let Some(context) = tests.iter().map(Test::context).max() else {
        bail!("{} has no towers", towers.display())
    };
    let context = u32::try_from(context)?;
    let threads = args.threads;
    let start = |engine| {
        Worker::start(&Setup { engine, model: path, threads, context, mmproj: Some(towers) })
    };
    let mut workers = [start(ENGINES[0])?, start(ENGINES[1])?];
    let mut rows = Vec::new();
    for test in tests {
        eprint!("{name}: {}", test.name());
        rows.extend(shown_in_turn(args.repetitions, test, &mut workers)?);
    }
    let engines = [0, 1].map(|i| workers[i].describe.clone());
    Ok((rows, engines))
}

fn shown_in_turn(repetitions: u16, test: Test, workers: &mut [Worker; 2]) -> Result<Vec<Row>> {
    let row = |what: &str, unit| Row {
        test: format!("{}: {what}", test.name()),
        unit,
        better: Better::Lower,
        values: [Vec::new(), Vec::new()],
    };
    let mut rows = [
        row("encoding", Unit::Seconds),
        row("first token", Unit::Seconds),
        row("soft tokens", Unit::Tokens),
        row("peak RSS", Unit::Megabytes),
    ];
    let pids = [workers[0].pid(), workers[1].pid()];
    let begin = CpuTime::now(&pids);
    for repetition in 0..=repetitions {
        for i in order(repetition) {
            std::thread::sleep(PAUSE);
            let (cost, memory) = workers[i].show(test)?;
            // The first run touches pages and grows buffers.
            if repetition > 0 {
                let peak = memory.peak_bytes as f64;
                let values = [cost.encode_s, cost.first_token_s, cost.n_soft as f64, peak];
                rows.iter_mut().zip(values).for_each(|(row, value)| row.values[i].push(value));
            }
        }
    }
    say_others(begin, CpuTime::now(&pids));
    Ok(rows.into())
}

fn say_others(begin: Option<CpuTime>, end: Option<CpuTime>) {
    match begin.zip(end) {
        Some((then, now)) => eprintln!(" (others: {:.0} %)", 100.0 * now.others_since(&then)),
        None => eprintln!(),
    }
}

fn in_turn(repetitions: u16, group: &[Test], workers: &mut [Worker; 2]) -> Result<Vec<Row>> {
    let pids = [workers[0].pid(), workers[1].pid()];
    let mut rows: Vec<Row> = group.iter().map(empty_row).collect();
    let begin = CpuTime::now(&pids);
    for repetition in 0..=repetitions {
        for i in order(repetition) {
            for (test, row) in group.iter().zip(&mut rows) {
                std::thread::sleep(PAUSE);
                let seconds = workers[i].measure(*test)?;
                // The first run touches pages and grows buffers.
                if repetition > 0 {
                    row.values[i].push(match test {
                        Test::Prompt { n, .. } | Test::Generate { n, .. } => *n as f64 / seconds,
                        _ => seconds,
                    });
                }
            }
        }
    }
    say_others(begin, CpuTime::now(&pids));
    Ok(rows)
}

fn empty_row(test: &Test) -> Row {
    let (unit, better) = match test {
        Test::Prompt { .. } | Test::Generate { .. } => (Unit::TokensPerSecond, Better::Higher),
        _ => (Unit::Milliseconds, Better::Lower),
    };
    Row { test: test.name(), unit, better, values: [Vec::new(), Vec::new()] }
}

/// Who goes first changes from pair to pair, so that a machine that slows down favours nobody.
fn order(repetition: u16) -> [usize; 2] {
    if repetition.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// What several tokens at once cost, in single tokens.
fn cost(args: &BenchArgs, one: &Row, many: &Row) -> Row {
    let values = [0, 1]
        .map(|i| many.values[i].iter().zip(&one.values[i]).map(|(many, one)| many / one).collect());
    let test = format!("{} tokens at once / 1 @ d{}", args.verify, args.verify_depth);
    Row { test, unit: Unit::Times, better: Better::Lower, values }
}

/// Generation as a part of what the memory could give.
fn of_bandwidth(rows: &[Row], decode_bytes: u64, bytes_per_s: f64) -> Vec<Row> {
    let generated = rows.iter().filter(|r| r.test.starts_with("tg"));
    generated
        .map(|row| {
            let part = |rate: &f64| rate * decode_bytes as f64 / bytes_per_s;
            let values = [0, 1].map(|i| row.values[i].iter().map(part).collect());
            let test = format!("{} of bandwidth", row.test);
            Row { test, unit: Unit::Percent, better: Better::Higher, values }
        })
        .collect()
}
