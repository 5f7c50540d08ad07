//! `lapidary run`.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_backend::Precision;
use lapidary_program::{Metadata, Program};
use lapidary_runner::{
    ChatInput, ChatTemplate, Error, Event, FinishReason, Message, Request, Runner, SamplingParams,
    Stats, Tokenizer, load_template,
};
use serde_json::{Map, Value};

use crate::args::{RunArgs, SamplingArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::model::{self, DEFAULT_CONTEXT, Wanted};
use crate::tell::tell;

/// Answers a prompt, token by token.
pub fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let program = model::open(&args.model)?;
    // Whatever can be refused is refused before the weights are packed, which may take minutes.
    let (tokenizer, template) = text_parts(args, &program)?;
    let sampling = sampling(&args.sampling, program.metadata());
    sampling.check(program.metadata().vocab_size)?;
    let own = program.metadata().max_context_len;
    let context = args.ctx.unwrap_or_else(|| own.min(DEFAULT_CONTEXT));
    if args.ctx.is_none() && own > DEFAULT_CONTEXT && !args.quiet {
        tell(format_args!("note: context {context} of the model's {own}; --ctx takes more"));
    }
    let wanted = Wanted { context, chunk: None, say: !args.quiet, precision: Precision::Fast };
    let loaded = model::load(program, &args.device, &wanted)?;
    let mut runner = Runner::with_parts(loaded.engine, Some(tokenizer), template)?;
    runner.set_load_seconds(loaded.took.as_secs_f64());

    let tokens = tokens(args, &runner, &prompt)?;
    let request = Request {
        max_new: args.max_tokens,
        stop: args.stop.clone(),
        ..Request::new(tokens, sampling)
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
        tell(format_args!("{}", statistics(&finish.stats, finish.reason)));
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
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Usage("give a prompt after the model, or pipe one in".into()).into());
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).context("can't read standard input")?;
    let text = String::from_utf8(bytes).map_err(|_| Usage("the prompt is not UTF-8".into()))?;
    // What a shell's echo or a here-document adds at the end is not meant.
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

/// The tokenizer and, unless plain text is continued, the chat template.
fn text_parts(
    args: &RunArgs,
    program: &Program,
) -> Result<(Arc<Tokenizer>, Option<Arc<ChatTemplate>>)> {
    let tokenizer = Arc::new(model::tokenizer(program, &args.model)?);
    if args.raw {
        return Ok((tokenizer, None));
    }
    let Some(template) = load_template(program, Some(&tokenizer))? else {
        let what = "this model has no chat template (it is probably a base model); --raw continues \
                    plain text";
        return Err(Usage(what.into()).into());
    };
    Ok((tokenizer, Some(Arc::new(template))))
}

fn tokens(args: &RunArgs, runner: &Runner, prompt: &str) -> Result<Vec<u32>> {
    if args.raw {
        return Ok(runner.text_prompt(prompt)?);
    }
    let mut messages = Vec::new();
    messages.extend(args.system.as_ref().map(|s| Message::new("system", s.as_str())));
    messages.push(Message::new("user", prompt));
    let mut kwargs = Map::new();
    if args.think {
        kwargs.insert("enable_thinking".into(), Value::Bool(true));
    }
    let input = ChatInput { messages: &messages, kwargs, ..ChatInput::default() };
    Ok(runner.chat_prompt(&input)?)
}

fn sampling(args: &SamplingArgs, metadata: &Metadata) -> SamplingParams {
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

fn statistics(s: &Stats, reason: FinishReason) -> String {
    let seconds = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2} s"));
    let rate = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.1} tok/s"));
    let memory = s
        .peak_memory_bytes
        .map_or(String::new(), |n| format!(" · peak {}", indicatif::HumanBytes(n)));
    format!(
        "load {} · first token {} · prompt {} ({}) · answer {} ({}) · {} · seed {}{memory}",
        seconds(s.load_s),
        seconds(s.first_token_s),
        s.prompt_tokens,
        rate(s.prefill_tokens_per_s()),
        s.new_tokens,
        rate(s.decode_tokens_per_s()),
        reason.name(),
        s.seed,
    )
}
