//! `lapidary logits`: raw ids in, a safetensors file out.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use lapidary::program::out_file::OutFile;
use lapidary::runner::Rows;
use lapidary::{Precision, Request, Towers};
use serde_json::json;

use crate::args::{self, LogitsArgs};
use crate::exit::Usage;
use crate::input;
use crate::interrupt::remove_on_interrupt;
use crate::model;
use crate::target;

/// Writes `logits` and `greedy`.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let tokens = read_tokens(&args.tokens)?;
    target::check(&args.out, args.force)?;
    let model = model::open(&args.model)?;
    let vocab_size = model.metadata().vocab_size as usize;
    let media = model::media(&args.media, &model)?;
    let needed = u32::try_from(tokens.len().saturating_add(args.greedy)).unwrap_or(u32::MAX);
    let say = args.device.backend == "auto";
    let load = model::load_args(&args.device, say)
        .context(needed.max(1))
        .towers(Towers::of(&media, &model)?);
    let mut load = model::engine_args(load, &args.device.engine, Precision::Exact);
    if let Some(chunk) = args.chunk {
        load = load.chunk(chunk);
    }
    // Raw ids need no tokenizer, and a broken one does not stand in the way.
    let mut runner = model::load_runner(&model, load, say)?.runner;

    let prompt = Request::ids(tokens, media).prompt(&model)?;
    let n_rows = match args.rows {
        args::Rows::All => prompt.tokens.len(),
        args::Rows::Last => 1,
    };
    let mut file = TensorFile::create(args, n_rows, vocab_size, args.greedy)?;
    remove_on_interrupt(file.out.get_ref().unfinished())?;
    let rows = match args.rows {
        args::Rows::All => Rows::All,
        args::Rows::Last => Rows::Last,
    };
    let mut written: std::io::Result<()> = Ok(());
    runner.logits_with(&prompt.tokens, &prompt.soft, rows, None, &mut |_, logits| {
        if written.is_ok() {
            written = file.f32(logits);
        }
    })?;
    written.with_context(|| args.out.display().to_string())?;
    let greedy = if args.greedy > 0 { runner.greedy(prompt, args.greedy)? } else { vec![] };
    file.finish(&greedy, &args.out)
}

/// Ids between commas or spaces, in brackets or not; or a file that holds them.
fn read_tokens(text: &str) -> Result<Vec<u32>> {
    let path = Path::new(text);
    let punctuation = |c: char| c.is_whitespace() || ",[]".contains(c);
    let start = text.trim_start_matches(punctuation);
    let looks_like_ids = start.is_empty() || start.starts_with(|c: char| c.is_ascii_digit());
    let text = if looks_like_ids && !path.exists() {
        text.to_string()
    } else {
        input::file(path)
            .context("--tokens takes token ids, `2,105,2364`, or a file that holds them")?
    };
    let ids: Result<Vec<u32>> = text
        .split(punctuation)
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| Usage(format!("`{word}` is not a token id")).into()))
        .collect();
    let ids = ids?;
    if ids.is_empty() {
        return Err(Usage("there are no token ids".into()).into());
    }
    Ok(ids)
}

/// A safetensors file whose header is known before its data, so that logits of long inputs are
/// written as they come. It has its name only when it is whole.
struct TensorFile {
    out: BufWriter<OutFile>,
}

impl TensorFile {
    fn create(args: &LogitsArgs, rows: usize, vocab: usize, greedy: usize) -> Result<Self> {
        let too_many = || Usage(format!("--greedy {greedy} is more tokens than a file holds"));
        let bytes = |n: usize, of: usize| n.checked_mul(of).ok_or_else(too_many);
        let logits_end = bytes(bytes(rows, vocab)?, 4)?;
        let end = logits_end.checked_add(bytes(greedy, 8)?).ok_or_else(too_many)?;
        let mut header = json!({
            "logits": {"dtype": "F32", "shape": [rows, vocab], "data_offsets": [0, logits_end]},
            "greedy": {
                "dtype": "I64", "shape": [greedy],
                "data_offsets": [logits_end, end],
            },
        })
        .to_string()
        .into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let temp = OutFile::create(&args.out, target::existing(args.force))
            .with_context(|| format!("can't write {}", args.out.display()))?;
        let mut out = BufWriter::with_capacity(1 << 20, temp);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        Ok(TensorFile { out })
    }

    fn f32(&mut self, values: &[f32]) -> std::io::Result<()> {
        values.iter().try_for_each(|x| self.out.write_all(&x.to_le_bytes()))
    }

    fn finish(mut self, greedy: &[u32], path: &Path) -> Result<()> {
        for id in greedy {
            self.out.write_all(&i64::from(*id).to_le_bytes())?;
        }
        let temp = self.out.into_inner().map_err(|e| e.into_error())?;
        temp.finish().with_context(|| format!("can't write {}", path.display()))
    }
}
