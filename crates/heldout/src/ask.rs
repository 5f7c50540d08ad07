//! Asks a model.

use lapidary_media::{Limits, Picture, patches};
use lapidary_program::Modality;
use lapidary_runner::{
    CancelToken, ChatInput, Event, FinishReason, Medium, Prompt, Request, Runner, SamplingParams,
    SoftInput, Stats,
};

use crate::error::{Error, Result};
use crate::item::Item;

/// Where pictures come from: the encoded file of a name.
pub type Pictures<'a> = dyn Fn(&str) -> std::io::Result<Vec<u8>> + 'a;

/// What a model answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its tokens, with the one that ended it.
    pub tokens: Vec<u32>,
    /// Its text, special tokens spelled out, without the one that ended it.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// How it went.
    pub stats: Stats,
}

/// An item as the runner takes it.
pub fn prompt(runner: &Runner, item: &Item, pictures: &Pictures<'_>) -> Result<Prompt> {
    let mut media = Vec::new();
    if let Some(name) = &item.image {
        let bytes = pictures(name).map_err(|source| Error::Picture {
            item: item.id.clone(),
            name: name.clone(),
            source,
        })?;
        media.push(picture(runner, &bytes)?);
    }
    let input = ChatInput { messages: &item.messages, tools: &item.tools, ..ChatInput::default() };
    Ok(runner.chat_prompt(&input, &media)?)
}

/// The greedy answer to a prompt, of at most `max_new` tokens; `on_text` sees it grow.
pub fn answer(
    runner: &mut Runner,
    prompt: Prompt,
    max_new: usize,
    cancel: &CancelToken,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer> {
    let request =
        Request { max_new, keep_special: true, ..Request::new(prompt, SamplingParams::greedy()) };
    let (mut tokens, mut said) = (Vec::new(), String::new());
    let finish = runner.generate(request, cancel, |event| match event {
        Event::Token { id } => tokens.push(id),
        Event::Text { text } => {
            said.push_str(text);
            on_text(text);
        }
        _ => {}
    })?;
    if finish.reason == FinishReason::Cancelled {
        return Err(lapidary_runner::Error::Cancelled.into());
    }
    tokens.extend(finish.stop_id);
    Ok(Answer { tokens, text: said, reason: finish.reason, stats: finish.stats })
}

fn picture(runner: &Runner, bytes: &[u8]) -> Result<Medium> {
    let known = &runner.metadata().media;
    let Some(spec) = &known.image else {
        let (given, supported) = (Modality::Image, known.modalities());
        return Err(lapidary_runner::Error::Modality { given, supported }.into());
    };
    let p = patches(&Picture::decode(bytes, &Limits::default())?, spec, None)?;
    let hash = p.hash().0;
    let input = SoftInput::picture(p.data, [p.index, p.x, p.y], p.n_soft, hash);
    Ok(Medium::image(known, input, vec![])?)
}
