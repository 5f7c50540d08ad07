//! `lapidary eval heldout`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use lapidary::{Engine, Load, Model};
use lapidary_heldout::{Item, Score, answer, prompt};
use lapidary_measure::{Perplexity, perplexity_of_every_token};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::args::eval::{HeldoutArgs, SetArgs};
use crate::exit::Usage;
use crate::{input, model, progress};

/// Tokens of one window of a text, after the token that begins a sequence.
const WINDOW: usize = 511;

/// Asks a model, perhaps another one too, and prints how many answers are right.
pub fn run(args: &HeldoutArgs) -> Result<()> {
    let sets = Sets::read(args.sets.dir.as_deref(), &args.set, args.limit)?;
    let model = model::open(&args.model)?;
    let against = args
        .against
        .as_deref()
        .map(|path| model::open(&ModelArgs { no_mmap: args.model.no_mmap, ..ModelArgs::at(path) }));
    let against = against.transpose()?;
    let found = measure(args, model.name().to_string(), &model, &sets)?;
    // Both may carry the same name, so the other goes by its path.
    let path = args.against.as_ref().map_or(String::new(), |path| path.display().to_string());
    let other = against.map(|model| measure(args, path, &model, &sets)).transpose()?;
    let mut out = crate::screen::out();
    if args.sets.json {
        let mut report = found.report();
        if let Some(other) = &other {
            report["against"] = other.report();
            let lost = |name: &String| Some((name.clone(), json!(found.lost(other, name)?)));
            report["points_lost"] = found.scores.keys().filter_map(lost).collect();
        }
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", found.table(other.as_ref()))?;
    }
    Ok(out.flush()?)
}

/// Questions and texts, by name.
pub struct Sets {
    pub questions: BTreeMap<String, Vec<Item>>,
    texts: BTreeMap<String, String>,
    /// Where images are; without one, in the program itself.
    folder: Option<PathBuf>,
    limit: usize,
}

impl Sets {
    /// Reads the named ones, or all, cut to their first `limit` questions: those in a folder, or the
    /// project's own.
    pub fn read(folder: Option<&Path>, names: &[String], limit: Option<u32>) -> Result<Self> {
        let mut sets = Sets {
            questions: BTreeMap::new(),
            texts: BTreeMap::new(),
            folder: folder.map(Path::to_path_buf),
            limit: limit.map_or(usize::MAX, |n| n as usize),
        };
        let is_wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
        match folder {
            Some(folder) => sets.add_folder(folder, &is_wanted)?,
            None => sets.add_own(&is_wanted)?,
        }
        let shown = folder.map_or("lapidary".to_string(), |f| f.display().to_string());
        let known =
            |name: &&String| sets.questions.contains_key(*name) || sets.texts.contains_key(*name);
        if let Some(missing) = names.iter().find(|name| !known(name)) {
            return Err(Usage(format!("there is no set {missing} in {shown}")).into());
        }
        if sets.questions.is_empty() && sets.texts.is_empty() {
            return Err(Usage(format!("there are no sets in {shown}")).into());
        }
        Ok(sets)
    }

    fn add_folder(&mut self, folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let entries = std::fs::read_dir(folder).with_context(|| {
            format!("no held-out sets in {}; without --dir, there are some", folder.display())
        })?;
        for entry in entries {
            let path = entry?.path();
            let Some(name) = path.file_stem().and_then(|n| n.to_str()) else { continue };
            if !is_wanted(name) {
                continue;
            }
            match path.extension().and_then(|e| e.to_str()) {
                Some("jsonl") => self.add(name, lapidary_heldout::read(&path)?),
                Some("txt") => _ = self.texts.insert(name.to_string(), input::file(&path)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn add_own(&mut self, is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        for (file, bytes) in lapidary_heldout::SETS {
            let Some((name, ending)) = file.rsplit_once('.') else { continue };
            if !is_wanted(name) {
                continue;
            }
            let text = || String::from_utf8_lossy(bytes);
            match ending {
                "jsonl" => self.add(name, lapidary_heldout::parse(&text(), name)?),
                "txt" => _ = self.texts.insert(name.to_string(), text().into_owned()),
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, mut items: Vec<Item>) {
        items.truncate(self.limit);
        self.questions.insert(name.to_string(), items);
    }

    /// The encoded file of an image.
    pub fn image(&self, name: &str) -> std::io::Result<Vec<u8>> {
        if let Some(folder) = &self.folder {
            return lapidary::program::read_at_most(&folder.join(name), 64 << 20);
        }
        let found = lapidary_heldout::SETS.iter().find(|(file, _)| *file == name);
        found.map(|(_, bytes)| bytes.to_vec()).ok_or(std::io::ErrorKind::NotFound.into())
    }
}

/// What was found out about one model.
struct Found {
    model: String,
    device: String,
    scores: BTreeMap<String, Score>,
    texts: BTreeMap<String, Perplexity>,
    seconds: f64,
}

fn measure(args: &HeldoutArgs, name: String, model: &Model, sets: &Sets) -> Result<Found> {
    let load: Load = model::load_args(&args.device, true);
    let engine = model::load(model, load, true)?;
    let start = Instant::now();
    let (mut scores, mut texts) = (BTreeMap::new(), BTreeMap::new());
    for (name, items) in &sets.questions {
        scores.insert(name.clone(), score(&engine, name, items, (sets, &args.sets))?);
    }
    for (name, text) in &sets.texts {
        let mut tokens = model.tokenizer()?.encode_text(text).map_err(lapidary::Error::from)?;
        tokens.truncate(sets.limit.saturating_mul(WINDOW));
        let bar = progress::Counted::windows();
        let ppl = engine.with_runner(move |runner| {
            perplexity_of_every_token(runner, &tokens, WINDOW, &mut |done, all| {
                bar.set(done, all);
            })
        })?;
        texts.insert(name.clone(), ppl?);
    }
    let (device, seconds) = (engine.describe().to_string(), start.elapsed().as_secs_f64());
    Ok(Found { model: name, device, scores, texts, seconds })
}

fn score(
    engine: &Engine,
    name: &str,
    items: &[Item],
    (sets, args): (&Sets, &SetArgs),
) -> Result<Score> {
    let mut score = Score::default();
    let bar = progress::Counted::of(name.to_string());
    for (i, item) in items.iter().enumerate().filter(|(_, item)| item.check.is_some()) {
        let prompt = prompt(engine, item, &|image| sets.image(image))?;
        score.add(item, &answer(engine, prompt, args.max_tokens, &mut |_| {})?.text);
        bar.set(i + 1, items.len());
    }
    Ok(score)
}

impl Found {
    fn report(&self) -> Value {
        json!({
            "model": self.model,
            "device": self.device,
            "sets": self.scores,
            "texts": self.texts,
            "seconds": self.seconds,
        })
    }

    /// Points of a hundred that another model has more.
    fn lost(&self, other: &Found, set: &str) -> Option<f64> {
        Some(other.scores.get(set)?.percent()? - self.scores.get(set)?.percent()?)
    }

    fn table(&self, other: Option<&Found>) -> String {
        let shown = |s: &Score| match s.percent() {
            Some(percent) => format!("{} of {} | {percent:.1} %", s.right, s.n),
            None => "nothing to check | –".to_string(),
        };
        let mut lines = vec![format!("| set | {} | |", self.model), "| --- | ---: | ---: |".into()];
        if let Some(other) = other {
            lines = vec![
                format!("| set | {} | | {} | | points lost |", self.model, other.model),
                "| --- | ---: | ---: | ---: | ---: | ---: |".into(),
            ];
        }
        for (name, score) in &self.scores {
            let mut line = format!("| {name} | {} |", shown(score));
            if let Some(theirs) = other.and_then(|o| o.scores.get(name)) {
                let lost = other.and_then(|o| self.lost(o, name));
                let lost = lost.map_or("–".into(), |x| format!("{x:+.1}"));
                line += &format!(" {} | {lost} |", shown(theirs));
            }
            lines.push(line);
        }
        lines.push(String::new());
        for (name, ppl) in &self.texts {
            let mut line =
                format!("{name}: perplexity {:.3} ± {:.3}", ppl.ppl, ppl.ppl * ppl.nll_stderr);
            if let Some(theirs) = other.and_then(|o| o.texts.get(name)) {
                line += &format!(", {:.3} of {}", theirs.ppl, other.map_or("", |o| &o.model));
            }
            lines.push(format!("{line} ({} windows of {WINDOW} tokens)", ppl.n_windows));
        }
        for (found, score) in [Some(self), other]
            .into_iter()
            .flatten()
            .flat_map(|f| f.scores.values().map(move |score| (f, score)))
        {
            for wrong in &score.wrong {
                lines.push(format!("wrong, {}, {}: {}", found.model, wrong.id, wrong.said.trim()));
            }
        }
        lines.push(format!("{}, {:.0} s", self.device, self.seconds));
        lines.join("\n") + "\n"
    }
}
