//! `lapidary run`.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_backend::Precision;
use lapidary_program::{Metadata, Program};
use lapidary_runner::{
    ChatInput, ChatTemplate, Error, Event, FinishReason, Medium, Message, Prompt, Request, Runner,
    SamplingParams, Stats, Tokenizer, load_template,
};
use serde_json::{Map, Value};

use crate::args::{ModelArgs, RunArgs, SamplingArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::media;
use crate::model::{self, MediaNeed, Wanted};
use crate::named::Named;
use crate::tell::tell;

/// Answers a prompt, token by token.
pub fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let program = match args.quiet {
        true => model::open_quietly(&args.model)?,
        false => model::open(&args.model)?,
    };
    // Whatever can be refused is refused before the weights are packed, which may take minutes.
    let (tokenizer, template) = text_parts(args, &program)?;
    let media = media::prepare(&args.media, &program)?;
    let sampling = sampling(&args.sampling, program.metadata());
    sampling.check(program.metadata().vocab_size)?;
    let context = model::context(args.ctx, &program, !args.quiet);
    let wanted = Wanted {
        context,
        chunk: None,
        say: !args.quiet,
        precision: Precision::Fast,
        media: MediaNeed::of(&media, &program),
    };
    let loaded = model::load(program, &args.device, &wanted)?;
    let mut runner = Runner::with_parts(loaded.engine, Some(tokenizer), template)?;
    runner.set_load_seconds(loaded.took.as_secs_f64());

    let prompt = assemble(args, &runner, &prompt, &media)?;
    let request = Request {
        max_new: args.max_tokens,
        stop: args.stop.clone(),
        ..Request::new(prompt, sampling)
    };
    let cancel = cancel_on_interrupt()?;
    let mut out = std::io::stdout().lock();
    let mut written: std::io::Result<()> = Ok(());
    let finish = runner.generate(request, &cancel, |event| {
        if let Event::Text { text } = event
            && written.is_ok()
        {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if written.is_err() {
                cancel.cancel();
            }
        }
    })?;
    written
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush())
        .context("can't write to standard output")?;
    if !args.quiet {
        tell(format_args!("{}", statistics(&finish.stats, Some(finish.reason))));
    }
    if finish.reason == FinishReason::Cancelled {
        return Err(Error::Cancelled.into());
    }
    Ok(())
}

fn prompt(args: &RunArgs) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    // Nobody shall type a text at length before hearing that there is no such model.
    if let Named::Path(path) = args.model.named()
        && let Err(e) = std::fs::metadata(path)
    {
        let what = format!("can't open the model {} (a prompt goes behind -p)", path.display());
        return Err(anyhow::Error::new(e).context(what));
    }
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        let what = "give a prompt, or pipe one in; `lapidary chat` holds a conversation";
        return Err(Usage(what.into()).into());
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).context("can't read standard input")?;
    let text = String::from_utf8(bytes).map_err(|_| Usage("the prompt is not UTF-8".into()))?;
    if text.is_empty() && args.model.model.is_none() {
        return Err(Usage("give a prompt: lapidary run \"Tell me a story.\"".into()).into());
    }
    // What a shell's echo or a here-document adds at the end is not meant.
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

/// The tokenizer and, unless plain text is continued, the chat template.
fn text_parts(
    args: &RunArgs,
    program: &Program,
) -> Result<(Arc<Tokenizer>, Option<Arc<ChatTemplate>>)> {
    if args.raw {
        return Ok((Arc::new(model::tokenizer(program, &args.model)?), None));
    }
    let (tokenizer, template) = template(&args.model, program)?;
    Ok((tokenizer, Some(Arc::new(template))))
}

/// The tokenizer and the chat template.
pub fn template(args: &ModelArgs, program: &Program) -> Result<(Arc<Tokenizer>, ChatTemplate)> {
    let tokenizer = Arc::new(model::tokenizer(program, args)?);
    let Some(template) = load_template(program, Some(&tokenizer))? else {
        let what = "this model has no chat template (it is probably a base model); \
                    `lapidary run --raw` continues plain text";
        return Err(Usage(what.into()).into());
    };
    Ok((tokenizer, template))
}

/// The prompt behind what is shown and played.
fn assemble(args: &RunArgs, runner: &Runner, prompt: &str, media: &[Medium]) -> Result<Prompt> {
    if args.raw {
        return Ok(runner.media_prompt(media, prompt)?);
    }
    let mut messages = Vec::new();
    messages.extend(args.system.as_ref().map(|s| Message::new("system", s.as_str())));
    messages.push(media::message("user", media, prompt));
    let mut kwargs = Map::new();
    if args.think {
        kwargs.insert("enable_thinking".into(), Value::Bool(true));
    }
    let input = ChatInput { messages: &messages, kwargs, ..ChatInput::default() };
    Ok(runner.chat_prompt(&input, media)?)
}

/// What the user asks for, and else what the model's makers recommend.
pub fn sampling(args: &SamplingArgs, metadata: &Metadata) -> SamplingParams {
    let own = SamplingParams::of(metadata);
    SamplingParams {
        temperature: args.temperature.unwrap_or(own.temperature),
        top_k: args.top_k.unwrap_or(own.top_k),
        top_p: args.top_p.unwrap_or(own.top_p),
        min_p: args.min_p.unwrap_or(own.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(own.repetition_penalty),
        seed: args.seed,
        ..own
    }
}

/// How it went, in a line.
pub fn statistics(s: &Stats, reason: Option<FinishReason>) -> String {
    let seconds = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2} s"));
    let rate = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.1} tok/s"));
    let memory = s
        .peak_memory_bytes
        .map_or(String::new(), |n| format!(" · peak {}", indicatif::HumanBytes(n)));
    let reason = reason.map_or(String::new(), |r| format!(" · {}", r.name()));
    let encode = match s.encode_s {
        0.0 => String::new(),
        x => format!("media {x:.2} s · "),
    };
    format!(
        "load {} · first token {} · {encode}prompt {} ({}) · answer {} ({}){reason} · seed {}{memory}",
        seconds(s.load_s),
        seconds(s.first_token_s),
        s.prompt_tokens,
        rate(s.prefill_tokens_per_s()),
        s.new_tokens,
        rate(s.decode_tokens_per_s()),
        s.seed,
    )
}
