//! Prompts from whatever thread a request arrives on.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use lapidary_program::{Metadata, Modality, Program};

use crate::answer::AnswerParser;
use crate::chat::{ChatInput, ChatTemplate, Message, Rendered, load_template, tools};
use crate::error::{Error, Result};
use crate::grammar::{Constraint, Grammar, GrammarCompiler, Thinking};
use crate::media::{Assembly, Medium, Prompt, place, soft_tokens};
use crate::tokenizer::{Tokenizer, load_tokenizer};

/// Makes prompts for one program. A clone shares the tokenizer and the template.
#[derive(Clone)]
pub struct PromptBuilder {
    metadata: Arc<Metadata>,
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<Arc<ChatTemplate>>,
    /// Made when the first grammar comes.
    grammars: Arc<OnceLock<GrammarCompiler>>,
}

impl PromptBuilder {
    /// Reads the tokenizer and the chat template from the program.
    pub fn new(program: &Program) -> Result<Self> {
        let tokenizer = load_tokenizer(program)?.map(Arc::new);
        let template = load_template(program, tokenizer.as_deref())?.map(Arc::new);
        Ok(Self::with_parts(program.metadata().clone(), tokenizer, template))
    }

    /// Takes a tokenizer and a template that were loaded apart.
    pub fn with_parts(
        metadata: Metadata,
        tokenizer: Option<Arc<Tokenizer>>,
        template: Option<Arc<ChatTemplate>>,
    ) -> Self {
        PromptBuilder {
            metadata: Arc::new(metadata),
            tokenizer,
            template,
            grammars: Arc::default(),
        }
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tokenizer, if the program has one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or(Error::NoTokenizer)
    }

    /// The chat template, if the program has one.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>> {
        self.template.as_ref().ok_or(Error::NoChatTemplate)
    }

    /// Tokens of plain text, after the token that begins a sequence if the model wants it.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens: Vec<u32> = self.bos().into_iter().collect();
        tokens.extend(self.tokenizer()?.encode_text(text)?);
        Ok(tokens)
    }

    /// Plain text after media, and after the token that begins a sequence if the model wants it.
    pub fn media_prompt(&self, media: &[Medium], text: &str) -> Result<Prompt> {
        let mut prompt = Assembly::new(self.tokenizer()?, None, self.filler());
        if let Some(bos) = self.bos() {
            prompt.token(bos);
        }
        media.iter().try_for_each(|m| prompt.medium(m))?;
        let mut prompt = prompt.finish()?;
        prompt.tokens.extend(self.tokenizer()?.encode_text(text)?);
        Ok(prompt)
    }

    /// Tokens of a conversation. Each image, video or audio that it shows is the next of `media`.
    pub fn chat_prompt(&self, input: &ChatInput<'_>, media: &[Medium]) -> Result<Prompt> {
        let tokenizer = self.tokenizer()?;
        let rendered = self.render(input)?;
        let known = &self.metadata.media;
        let shown = |m: Modality| Some((m, soft_tokens(known, m)?.placeholder.as_str()));
        let placeholders: Vec<(Modality, &str)> =
            known.modalities().into_iter().filter_map(shown).collect();
        let mut prompt = Assembly::new(tokenizer, rendered.guard(), self.filler());
        prompt.template(rendered.guarded(), &placeholders, media)?;
        prompt.finish()
    }

    /// The text of a conversation. A template that knows no tools is given them as text.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<Rendered> {
        let (template, tokenizer) = (self.template()?, self.tokenizer()?);
        let format = self.metadata.answer.as_ref();
        let mut messages = Cow::Borrowed(input.messages);
        let mut tools = input.tools;
        if format.and_then(|f| f.thinking.as_ref()).is_some_and(|t| t.trim_history) {
            trim_thoughts(&mut messages);
        }
        let calls = format.and_then(|f| f.calls.as_ref());
        if let Some((calls, told)) = calls.and_then(|c| Some((c, c.told.as_ref()?))) {
            messages = tools::as_text(&messages, tools, calls, told).into();
            tools = &[];
        }
        let input = ChatInput { messages: &messages, tools, ..input.clone() };
        template.render(&input, Some(tokenizer))
    }

    /// Ids that already have one for each soft token, with the media that they stand for, in order.
    pub fn ids_prompt(&self, ids: Vec<u32>, media: &[Medium]) -> Result<Prompt> {
        let known = &self.metadata.media;
        if media.is_empty() {
            // Nothing stands for them: the model never learnt what such an id is by itself.
            let soft = |modality: Modality| soft_tokens(known, modality);
            let as_padding = |id: u32| {
                let mut all = known.modalities().into_iter().filter_map(soft);
                all.any(|tokens| tokens.id == id && tokens.is_padding)
            };
            let read = |id: u32| if as_padding(id) { self.filler() } else { id };
            return Ok(ids.into_iter().map(read).collect::<Vec<u32>>().into());
        }
        let id = |modality: Modality| soft_tokens(known, modality).map(|t| t.id);
        let soft_ids: Vec<u32> = known.modalities().into_iter().filter_map(id).collect();
        let mut inputs = Vec::new();
        for m in media {
            let id = id(m.modality()).ok_or_else(|| Error::modality(known, m.modality()))?;
            inputs.extend(m.inputs().map(|input| (id, input.clone())));
        }
        place(ids, inputs, &soft_ids, self.filler())
    }

    /// Reads the answer to a prompt. Special tokens that mark nothing are left out, or spelled out if
    /// `keep_special`.
    pub fn answer_parser(&self, prompt: &Prompt, keep_special: bool) -> Result<AnswerParser> {
        let tokenizer = self.tokenizer()?;
        let parser = AnswerParser::new(self.metadata.answer.as_ref(), tokenizer, keep_special);
        Ok(parser.after(&prompt.tokens, tokenizer))
    }

    /// The tokens that end a thought, if the model thinks aloud.
    pub fn thinking_close(&self) -> Option<Vec<u32>> {
        let close = &self.metadata.answer.as_ref()?.thinking.as_ref()?.close;
        let tokenizer = self.tokenizer.as_ref()?;
        match tokenizer.added_id(close) {
            Some(id) => Some(vec![id]),
            None => tokenizer.encode_text(close).ok(),
        }
    }

    /// What holds the answer to a prompt to a grammar. `may_think` allows a thought before it.
    pub fn constraint(
        &self,
        grammar: &Grammar,
        prompt: &Prompt,
        may_think: bool,
    ) -> Result<Constraint> {
        let tokenizer = self.tokenizer()?;
        let format = self.metadata.answer.as_ref();
        let begun = AnswerParser::new(format, tokenizer, false)
            .after(&prompt.tokens, tokenizer)
            .is_thinking();
        let thinking = match (begun, may_think) {
            (true, _) => Thinking::Begun,
            (false, true) => Thinking::Allowed,
            (false, false) => Thinking::None,
        };
        self.grammars()?.compile(grammar, format, tokenizer, thinking)
    }

    /// The compiler of grammars; the first call takes a moment.
    pub fn grammars(&self) -> Result<&GrammarCompiler> {
        if let Some(made) = self.grammars.get() {
            return Ok(made);
        }
        let made = GrammarCompiler::new(self.tokenizer()?, &self.metadata.eos_ids)?;
        Ok(self.grammars.get_or_init(|| made))
    }

    fn bos(&self) -> Option<u32> {
        self.metadata.bos_id.filter(|_| self.metadata.add_bos)
    }

    /// The id that stands at soft positions.
    fn filler(&self) -> u32 {
        self.metadata.pad_id.unwrap_or(0)
    }
}

/// Leaves out what was thought before the user spoke last.
fn trim_thoughts(messages: &mut Cow<'_, [Message]>) {
    let last = messages.iter().rposition(|m| m.role == "user").unwrap_or(0);
    if messages.iter().take(last).any(|m| m.reasoning.is_some()) {
        messages.to_mut().iter_mut().take(last).for_each(|m| m.reasoning = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_of_earlier_turns_are_left_out() {
        let thought = |role: &str, text: Option<&str>| Message {
            reasoning: text.map(str::to_string),
            ..Message::new(role, "x")
        };
        let all = [
            thought("user", None),
            thought("assistant", Some("old")),
            thought("user", None),
            thought("assistant", Some("new")),
        ];
        let mut messages = Cow::Borrowed(&all[..]);
        trim_thoughts(&mut messages);
        let left: Vec<Option<&str>> = messages.iter().map(|m| m.reasoning.as_deref()).collect();
        assert_eq!(left, [None, None, None, Some("new")]);
    }

    #[test]
    fn prompts_are_made_on_any_thread() {
        fn any_thread<T: Send + Sync + Clone + 'static>() {}
        any_thread::<PromptBuilder>();
    }
}
