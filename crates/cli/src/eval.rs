//! `lapidary eval ppl`.

use std::io::Write;
use std::time::Instant;

use anyhow::Result;
use lapidary_measure::perplexity;
use serde_json::json;

use crate::args::eval::PplArgs;
use crate::input;
use crate::model;
use crate::progress;

/// Prints the perplexity of a text.
pub fn ppl(args: &PplArgs) -> Result<()> {
    let text = input::file(&args.text.file)?;
    let model = model::open(&args.model)?;
    model::need_tokenizer(&model)?;
    let say = args.device.backend == "auto";
    let load = model::load_args(&args.device, say).context(args.text.window).text_only();
    let mut runner = model::load_runner(&model, load, say)?.runner;
    let mut tokens = model.tokenise(&text)?;
    tokens.truncate(args.text.tokens.unwrap_or(usize::MAX));
    let start = Instant::now();
    let bar = progress::Counted::windows();
    let window = args.text.window as usize;
    let result = perplexity(&mut runner, &tokens, window, &mut |done, all| bar.set(done, all))?;
    drop(bar);
    let took = start.elapsed().as_secs_f64();
    let mut out = crate::screen::out();
    if args.json {
        let mut report = serde_json::to_value(result)?;
        report["window"] = json!(args.text.window);
        report["seconds"] = json!(took);
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "perplexity {:.4} ± {:.4} ({} tokens scored in {} windows of {}, {took:.1} s)",
            result.ppl,
            result.ppl * result.nll_stderr,
            result.n_scored,
            result.n_windows,
            args.text.window
        )?;
    }
    Ok(out.flush()?)
}
