//! The runner: an engine with its tokenizer and template, and the conversations in its slots.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lapidary_backend::{Engine, Largest, Outputs};
use lapidary_program::{Metadata, Modality, Program, blob, method};

use crate::batch::{self, Batch};
use crate::chat::{ChatInput, ChatTemplate, TokenNames};
use crate::error::{Error, Result};
use crate::generation::{Generation, Limits, check_ids};
use crate::kv::{self, Ring, Slot};
use crate::media::{Assembly, Medium, Prompt, SoftRun, place, soft_tokens, unknown};
use crate::request::{CancelToken, Event, Finish, GenerationId, Request};
use crate::sampler::{Sampler, SamplingParams, all_finite};
use crate::soft::{SoftRows, SoftUse};
use crate::tokenizer::{Tokenizer, load_tokenizer};

/// Runs generations on an engine.
///
/// [`generate`](Runner::generate) is the simple way: one request from beginning to end.
/// [`submit`](Runner::submit) and [`step`](Runner::step) run many at once: each step packs the next
/// token of every answer and the next chunk of every prompt into one call of the engine.
pub struct Runner {
    pub(crate) engine: Box<dyn Engine>,
    program: Arc<Program>,
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<Arc<ChatTemplate>>,
    pub(crate) load_s: Option<f64>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) rings: Vec<Ring>,
    pub(crate) limit: CallLimit,
    max_context: usize,
    pub(crate) batch: Batch,
    pub(crate) outputs: Outputs,
    pub(crate) largest: Largest,
    pub(crate) soft_rows: SoftRows,
    pub(crate) sampler: Sampler,
    pub(crate) waiting: VecDeque<Generation>,
    pub(crate) active: Vec<Generation>,
    pub(crate) failed: Vec<(Generation, Error)>,
    next_id: u64,
    pub(crate) clock: u64,
}

/// How much one call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimit {
    /// Tokens of one slot.
    pub(crate) chunk: usize,
    /// Tokens of all slots.
    pub(crate) tokens: usize,
}

/// Which rows of logits are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One for each token.
    All,
    /// That of the last token.
    Last,
}

impl Runner {
    /// A runner over an engine; reads the tokenizer and the chat template from the program.
    pub fn new(engine: Box<dyn Engine>) -> Result<Self> {
        let program = engine.program().clone();
        let tokenizer = load_tokenizer(&program)?.map(Arc::new);
        let template = load_template(&program, tokenizer.as_deref())?.map(Arc::new);
        Self::with_parts(engine, tokenizer, template)
    }

    /// A runner with a tokenizer and a template that were loaded apart, for instance while the
    /// weights were being packed.
    pub fn with_parts(
        engine: Box<dyn Engine>,
        tokenizer: Option<Arc<Tokenizer>>,
        template: Option<Arc<ChatTemplate>>,
    ) -> Result<Self> {
        let program = engine.program().clone();
        let options = engine.options().clone();
        let forward = program.method(method::FORWARD).map_err(lapidary_backend::Error::from)?;
        let chunk = options.max_chunk.min(forward.max_chunk).max(1) as usize;
        let n_slots = options.n_slots.max(1) as usize;
        let tokens = (options.max_chunk.max(1) as usize).max(n_slots);
        let max_context = options.max_context.min(program.metadata().max_context_len) as usize;
        Ok(Runner {
            rings: kv::rings(&program, &options),
            engine,
            program,
            tokenizer,
            template,
            load_s: None,
            slots: vec![Slot::default(); n_slots],
            limit: CallLimit { chunk, tokens },
            max_context,
            batch: Batch::with_capacity(tokens),
            outputs: Outputs::default(),
            largest: Largest::default(),
            soft_rows: SoftRows::default(),
            sampler: Sampler::default(),
            waiting: VecDeque::new(),
            active: Vec::with_capacity(n_slots),
            failed: Vec::new(),
            next_id: 0,
            clock: 0,
        })
    }

    /// Tells how long loading took, for the statistics.
    pub fn set_load_seconds(&mut self, seconds: f64) {
        self.load_s = Some(seconds);
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        self.program.metadata()
    }

    /// One line about backend and device.
    pub fn describe(&self) -> String {
        self.engine.describe()
    }

    /// The tokenizer, if the program has one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or(Error::NoTokenizer)
    }

    /// The chat template, if the program has one.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>> {
        self.template.as_ref().ok_or(Error::NoChatTemplate)
    }

    /// Tokens that prompt and answer may fill together.
    pub fn max_context(&self) -> usize {
        self.max_context
    }

    /// Tokens of plain text, behind the token that begins a sequence if the model wants it.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let mut tokens = Vec::new();
        let metadata = self.metadata();
        tokens.extend(metadata.bos_id.filter(|_| metadata.add_bos));
        tokens.extend(tokenizer.encode_text(text)?);
        Ok(tokens)
    }

    /// Plain text behind media, and behind the token that begins a sequence if the model wants it.
    pub fn media_prompt(&self, media: &[Medium], text: &str) -> Result<Prompt> {
        let metadata = self.metadata();
        let mut prompt = Assembly::new(self.tokenizer()?, None, self.filler());
        if let Some(bos) = metadata.bos_id.filter(|_| metadata.add_bos) {
            prompt.token(bos);
        }
        media.iter().try_for_each(|m| prompt.medium(m))?;
        let mut prompt = prompt.finish()?;
        prompt.tokens.extend(self.tokenizer()?.encode_text(text)?);
        Ok(prompt)
    }

    /// Tokens of a conversation. Each picture, film or sound that it shows is the next of `media`.
    pub fn chat_prompt(&self, input: &ChatInput<'_>, media: &[Medium]) -> Result<Prompt> {
        let tokenizer = self.tokenizer()?;
        let rendered = self.template()?.render(input, Some(tokenizer))?;
        let known = &self.metadata().media;
        let shown = |m: Modality| Some((m, soft_tokens(known, m)?.placeholder.as_str()));
        let placeholders: Vec<(Modality, &str)> =
            known.modalities().into_iter().filter_map(shown).collect();
        let mut prompt = Assembly::new(tokenizer, rendered.guard(), self.filler());
        prompt.template(rendered.guarded(), &placeholders, media)?;
        prompt.finish()
    }

    /// Ids that already have one for each soft token, with the media that they stand for, in order.
    pub fn ids_prompt(&self, ids: Vec<u32>, media: &[Medium]) -> Result<Prompt> {
        if media.is_empty() {
            return Ok(ids.into());
        }
        let known = &self.metadata().media;
        let id = |modality: Modality| soft_tokens(known, modality).map(|t| t.id);
        let soft_ids: Vec<u32> = known.modalities().into_iter().filter_map(id).collect();
        let mut inputs = Vec::new();
        for m in media {
            let id = id(m.modality()).ok_or_else(|| unknown(known, m.modality()))?;
            inputs.extend(m.inputs().map(|input| (id, input.clone())));
        }
        place(ids, inputs, &soft_ids, self.filler())
    }

    /// The id that stands at soft positions.
    fn filler(&self) -> u32 {
        self.metadata().pad_id.unwrap_or(0)
    }

    /// Runs one request from beginning to end, telling `on_event` what happens.
    /// No other generation may be under way.
    pub fn generate(
        &mut self,
        request: Request,
        cancel: &CancelToken,
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<Finish> {
        self.idle()?;
        self.submit(request, cancel)?;
        self.run_alone(&mut on_event)
    }

    /// The `n` most likely next tokens one after another, with no token suppressed or taken for an
    /// end. No other generation may be under way.
    pub fn greedy(&mut self, prompt: impl Into<Prompt>, n: usize) -> Result<Vec<u32>> {
        self.idle()?;
        let request = Request {
            max_new: n,
            ignore_eos: true,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        self.enqueue(request, &CancelToken::new(), false)?;
        let mut answer = Vec::with_capacity(n.min(self.max_context));
        self.run_alone(&mut |event| {
            if let Event::Token { id } = event {
                answer.push(id);
            }
        })?;
        Ok(answer)
    }

    /// Runs tokens from position 0 in chunks of at most `chunk` and shows the logits of each chunk:
    /// `sink` gets the number of the first token and one row for each asked token of the chunk.
    /// No generation may be under way.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        rows: Rows,
        chunk: Option<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.logits_with(tokens, &[], rows, chunk, sink)
    }

    /// The same for tokens of which some are soft. A chunk may be longer than asked for where a
    /// block of soft tokens is.
    pub fn logits_with(
        &mut self,
        tokens: &[u32],
        soft: &[SoftRun],
        rows: Rows,
        chunk: Option<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.idle()?;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > self.max_context {
            let (prompt, max_context) = (tokens.len(), self.max_context);
            return Err(Error::ContextLength { prompt, max_context });
        }
        check_ids(tokens, self.metadata().vocab_size)?;
        let blocks = SoftUse::of(&self.program).check(soft, tokens.len(), self.limit.chunk)?;
        let made = soft
            .iter()
            .map(|run| self.soft_rows.get(self.engine.as_mut(), &run.input))
            .collect::<Result<Vec<_>>>()?;
        let chunk = chunk.unwrap_or(usize::MAX).clamp(blocks.longest().max(1), self.limit.chunk);
        self.slots[0].forget();
        let mut first = 0;
        while first < tokens.len() {
            let n = blocks.cut(first, chunk.min(tokens.len() - first));
            let part = &tokens[first..first + n];
            self.batch.clear();
            self.batch.push(0, first, part);
            let made = soft.iter().zip(&made).map(|(run, rows)| (run, rows.as_slice()));
            blocks.apply(&mut self.batch, (0, first, n), made);
            let last = first + part.len() == tokens.len();
            match rows {
                Rows::All => (0..part.len()).for_each(|t| _ = self.batch.ask(t)),
                Rows::Last if last => _ = self.batch.ask_last(),
                Rows::Last => {}
            }
            if let Err(e) = self.batch.run(self.engine.as_mut(), &mut self.outputs) {
                self.slots[0].forget();
                return Err(e);
            }
            self.slots[0].wrote(part);
            if rows == Rows::All || last {
                let logits = batch::logits(&self.outputs)?.0;
                if !all_finite(logits) {
                    self.slots[0].forget();
                    let node = self.batch.first_non_finite(self.engine.as_mut());
                    return Err(Error::NonFiniteLogits { node });
                }
                sink(if rows == Rows::All { first } else { tokens.len() - 1 }, logits);
            }
            first += n;
        }
        // Soft tokens are not noted, so nothing here may be continued.
        if !soft.is_empty() {
            self.slots[0].forget();
        }
        Ok(())
    }

    /// Adds a request to those that [`step`](Runner::step) works on.
    pub fn submit(&mut self, request: Request, cancel: &CancelToken) -> Result<GenerationId> {
        self.enqueue(request, cancel, true)
    }

    /// Generations that are waiting or under way.
    pub fn n_generations(&self) -> usize {
        self.waiting.len() + self.active.len()
    }

    /// Forgets all cached tokens of slots that are not in use, and all soft rows.
    pub fn forget(&mut self) {
        self.soft_rows.forget();
        for i in 0..self.slots.len() {
            if !self.active.iter().any(|g| g.slot == i) {
                self.slots[i].forget();
            }
        }
    }

    fn enqueue(
        &mut self,
        request: Request,
        cancel: &CancelToken,
        suppress: bool,
    ) -> Result<GenerationId> {
        let metadata = self.program.metadata();
        let limits = Limits {
            vocab_size: metadata.vocab_size,
            max_context: self.max_context,
            // A block must find room beside the next token of every other answer.
            max_block: self.limit.chunk.min(self.limit.tokens + 1 - self.slots.len()),
            soft: SoftUse::of(&self.program),
            eos_ids: &metadata.eos_ids,
            suppress_ids: if suppress { &metadata.suppress_ids } else { &[] },
            tokenizer: self.tokenizer.as_deref(),
        };
        let id = GenerationId(self.next_id);
        let seed = RandomState::new().hash_one(self.next_id);
        let generation = Generation::new(id, request, cancel.clone(), seed, &limits)?;
        self.next_id += 1;
        self.waiting.push_back(generation);
        Ok(id)
    }

    fn idle(&self) -> Result<()> {
        match self.n_generations() {
            0 => Ok(()),
            active => Err(Error::Busy { active }),
        }
    }

    /// Steps until the only generation ends.
    fn run_alone(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Finish> {
        let mut end: Option<Result<Finish>> = None;
        while end.is_none() {
            self.step(&mut |_, event| {
                match &event {
                    Event::Finished(finish) => end = Some(Ok((*finish).clone())),
                    Event::Failed(error) => end = Some(Err((*error).clone())),
                    Event::Token { .. } | Event::Text { .. } => {}
                }
                on_event(event);
            });
        }
        end.expect("the loop ends only with an end")
    }
}

/// Compiles the program's chat template, if it has one.
pub fn load_template(
    program: &Program,
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<ChatTemplate>> {
    let bytes = program.blob(blob::CHAT_TEMPLATE).map_err(lapidary_backend::Error::from)?;
    let Some(bytes) = bytes else { return Ok(None) };
    let source = std::str::from_utf8(bytes)
        .map_err(|_| Error::Program("the chat template is not UTF-8".to_string()))?;
    let names = tokenizer.map(|t| TokenNames::of(program.metadata(), t)).unwrap_or_default();
    ChatTemplate::new(source, names).map(Some)
}
