//! `lapidary run`.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use lapidary::{
    FinishReason, Media, Message, PrefixCache, Reply, Request, Sampling, Stats, Towers,
};
use serde_json::{Value, json};

use crate::args::{RunArgs, SamplingArgs};
use crate::exit::Usage;
use crate::interrupt::cancel_on_interrupt;
use crate::show::Shown;
use crate::tell::tell;
use crate::{input, model, named};

/// Answers a prompt, token by token.
pub fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let from = args.model.drafting(&args.draft);
    let model = match args.quiet {
        true => model::open_quietly(&from)?,
        false => model::open(&from)?,
    };
    // Whatever can be refused is refused before the weights are packed, which may take minutes.
    match args.raw {
        true => model::need_tokenizer(&model)?,
        false => model::need_template(&model)?,
    }
    let media = model::media(&args.media, &model)?;
    let towers = Towers::of(&media, &model)?;
    let sampling = args.sampling.sampling();
    sampling.check(model.metadata())?;
    let load = model::load_args(&args.device, !args.quiet).towers(towers);
    let load = model::context(load, args.ctx, !args.quiet).draft((&args.draft).into());
    let engine = model::load(&model, load, !args.quiet)?;

    let request = request(args, &prompt, media)
        .sampling(sampling)
        .max_tokens(args.max_tokens)
        .stop(args.stop.clone());
    let request = if args.quiet { request } else { request.progress() };
    let kept = args.prefix_cache.as_ref().map(PrefixCache::new).transpose()?;
    let prompt = request.prompt(&model)?;
    if let Some(kept) = &kept {
        kept.restore(&engine, &prompt, 0)?;
    }
    let answer = engine.answer(request.with_prompt(prompt.clone()))?;
    cancel_on_interrupt(answer.cancel_token())?;
    let reply = match args.json {
        true => Shown::progress_only(args.quiet).all(answer)?,
        false => Shown::standard(args.quiet).all(answer)?,
    };
    if let Some(kept) = &kept {
        kept.save(&engine, &prompt, 0)?;
    }
    if args.json {
        let mut out = crate::screen::out();
        let report = as_json(model.name(), engine.describe(), &reply);
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
    }
    let Some(finish) = reply.finish else { return Ok(()) };
    if !args.quiet && !args.json {
        tell(format_args!("{}", statistics(&finish.stats, Some(finish.reason))));
    }
    if finish.reason == FinishReason::Cancelled {
        return Err(lapidary::Error::from(lapidary::runner::Error::Cancelled).into());
    }
    Ok(())
}

fn prompt(args: &RunArgs) -> Result<String> {
    // Nobody shall type a text at length before hearing that there is no such model.
    if let Some(path) = args.model.path() {
        let located = named::locate(path, args.model.may_pull);
        let located = located.map_err(|e| match args.prompt {
            None => e.context(format!(
                "{} is not a model here (a prompt goes after -p)",
                path.display()
            )),
            Some(_) => e,
        })?;
        if let Err(e) = std::fs::metadata(&located.path) {
            return Err(anyhow::Error::new(e).context(named::not_there(path)));
        }
    }
    if let Some(prompt) = &args.prompt {
        // A text to work on may come along.
        return Ok(match input::piped()? {
            Some(text) => format!("{prompt}\n\n{}", text.strip_suffix('\n').unwrap_or(&text)),
            None => prompt.clone(),
        });
    }
    if std::io::stdin().is_terminal() {
        let what = "give a prompt, or pipe one in; `lapidary chat` holds a conversation";
        return Err(Usage(what.into()).into());
    }
    let text = input::standard()?;
    if text.is_empty() && args.model.model.is_none() {
        return Err(Usage("give a prompt: lapidary run \"Tell me a story.\"".into()).into());
    }
    // What a shell's echo or a here-document adds at the end is not meant.
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

/// The prompt after what is shown and played.
fn request(args: &RunArgs, prompt: &str, media: Vec<Media>) -> Request {
    if args.raw {
        return Request::text_after(media, prompt);
    }
    let mut messages: Vec<Message> = args.system.iter().map(Message::system).collect();
    let shown = media.into_iter().fold(Message::new("user"), Message::media);
    messages.push(shown.text(prompt));
    let request = Request::chat(messages);
    if args.think { request.thinking(true) } else { request }
}

impl SamplingArgs {
    /// What the user asks for; the rest is as the model's makers recommend.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..Sampling::default()
        }
    }
}

/// An answer and how it went, for programs.
fn as_json(model: &str, device: &str, reply: &Reply) -> Value {
    let calls: Vec<Value> = reply
        .tool_calls
        .iter()
        .map(|call| json!({"name": call.name, "arguments": call.arguments}))
        .collect();
    let finish = reply.finish.as_ref();
    let stats = finish.map(|finish| &finish.stats);
    json!({
        "model": model,
        "device": device,
        "text": reply.text,
        "thinking": reply.thinking,
        "tool_calls": calls,
        "finish_reason": finish.map(|finish| finish.reason.name()),
        "stats": stats.map(|s| json!({
            "load_s": s.load_s,
            "first_token_s": s.first_token_s,
            "encode_s": s.encode_s,
            "prompt_tokens": s.prompt_tokens,
            "reused_tokens": s.reused_tokens,
            "prompt_tokens_per_s": s.prefill_tokens_per_s(),
            "new_tokens": s.new_tokens,
            "tokens_per_s": s.decode_tokens_per_s(),
            "draft_calls": s.draft_calls,
            "drafted_tokens": s.drafted_tokens,
            "accepted_tokens": s.accepted_tokens,
            // A string: most readers of JSON have no whole numbers of 64 bits.
            "seed": s.seed.to_string(),
            "peak_memory_bytes": lapidary_measure::peak_memory_bytes(),
        })),
    })
}

/// How it went, in a line.
pub fn statistics(s: &Stats, reason: Option<FinishReason>) -> String {
    let seconds = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2} s"));
    let rate = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.1} tok/s"));
    let memory = lapidary_measure::peak_memory_bytes()
        .map_or(String::new(), |n| format!(" · peak {}", indicatif::HumanBytes(n)));
    let reason = reason.map_or(String::new(), |r| format!(" · {}", r.name()));
    let encode = match s.encode_s {
        0.0 => String::new(),
        x => format!("media {x:.2} s · "),
    };
    let reused = match s.reused_tokens {
        0 => String::new(),
        n => format!("{n} kept, "),
    };
    let drafts = match s.tokens_per_draft() {
        None => String::new(),
        Some(n) => format!(", {n:.1} tokens a guess"),
    };
    format!(
        "load {} · first token {} · {encode}prompt {} ({reused}{}) · answer {} ({}{drafts}){reason} · seed {}{memory}",
        seconds(s.load_s),
        seconds(s.first_token_s),
        s.prompt_tokens,
        rate(s.prefill_tokens_per_s()),
        s.new_tokens,
        rate(s.decode_tokens_per_s()),
        s.seed,
    )
}
