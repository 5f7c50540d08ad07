//! Asks a model.

use lapidary::{
    Answer as Coming, Engine, Event, FinishReason, Media, Message, Prompt, Request, Sampling, Stats,
};

use crate::error::{Error, Result};
use crate::item::Item;

/// Where images come from: the encoded file of a name.
pub type Images<'a> = dyn Fn(&str) -> std::io::Result<Vec<u8>> + 'a;

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

/// An item as the engine takes it.
pub fn prompt(engine: &Engine, item: &Item, images: &Images<'_>) -> Result<Prompt> {
    let read = |name: &str| {
        let failed = |source| Error::Image { item: item.id.clone(), name: name.into(), source };
        images(name).map_err(failed)
    };
    // Read even if no message shows it: an item that names a file without one is wrong.
    let image = item.image.as_deref().map(read).transpose()?.unwrap_or_default();
    let mut shown = |_: &lapidary::text::Part| -> Result<Media> { Ok(Media::image(image.clone())) };
    let messages = item.messages.iter().cloned();
    let messages = messages.map(|m| Message::of_text(m, &mut shown)).collect::<Result<_>>()?;
    Ok(Request::chat(messages).tools(item.tools.clone()).prompt(engine.model())?)
}

/// The greedy answer to a prompt, of at most `max_new` tokens; `on_text` sees it grow.
pub fn answer(
    engine: &Engine,
    prompt: Prompt,
    max_new: usize,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer> {
    let request = Request::of_prompt(prompt)
        .sampling(Sampling::greedy())
        .max_tokens(max_new)
        .keep_special()
        .tokens();
    read(engine.answer(request)?, on_text)
}

fn read(mut coming: Coming, on_text: &mut dyn FnMut(&str)) -> Result<Answer> {
    for event in &mut coming {
        if let Event::Text(text) = event? {
            on_text(&text);
        }
    }
    let reply = coming.reply()?;
    let finish =
        reply.finish.ok_or(lapidary::runner::Error::Cancelled).map_err(lapidary::Error::from)?;
    let mut tokens = reply.tokens;
    tokens.extend(finish.stop_id);
    Ok(Answer { tokens, text: reply.text, reason: finish.reason, stats: finish.stats })
}
