//! From answers to bodies: as they come, or whole.

use std::collections::VecDeque;

use axum::body::Bytes;
use futures_util::{Stream, stream};
use lapidary::Logprobs;
use serde_json::Value;

use crate::service::{Answers, Call, End, Failure, Piece, Pieces, Result};

/// Frames that wait to go out.
#[derive(Default)]
pub struct Out(VecDeque<Bytes>);

impl Out {
    /// An event without a name.
    pub fn data(&mut self, data: &Value) {
        self.0.push_back(format!("data: {data}\n\n").into());
    }

    /// An event with a name.
    pub fn event(&mut self, name: &str, data: &Value) {
        self.0.push_back(format!("event: {name}\ndata: {data}\n\n").into());
    }

    /// A line of JSON.
    pub fn line(&mut self, data: &Value) {
        self.0.push_back(format!("{data}\n").into());
    }

    /// The frames, in order.
    pub fn frames(self) -> impl Iterator<Item = Bytes> {
        self.0.into_iter()
    }

    /// Anything else.
    pub fn text(&mut self, text: &'static str) {
        self.0.push_back(Bytes::from_static(text.as_bytes()));
    }
}

/// Tells answers in an API's words.
pub trait Teller: Send + 'static {
    /// Before anything else.
    fn begin(&mut self, out: &mut Out);
    /// One thing of an answer.
    fn piece(&mut self, answer: usize, piece: Piece, out: &mut Out);
    /// Something failed; nothing comes after it.
    fn failed(&mut self, failure: &Failure, out: &mut Out);
    /// All answers are complete.
    fn done(&mut self, out: &mut Out);
}

struct Telling<T> {
    answers: Answers,
    pieces: Vec<Pieces>,
    n_ended: usize,
    teller: T,
    out: Out,
    is_over: bool,
}

/// The frames of answers. `grows_calls` tells calls while they grow.
pub fn tell<T: Teller>(
    answers: Answers,
    n: usize,
    grows_calls: bool,
    mut teller: T,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let mut out = Out::default();
    teller.begin(&mut out);
    let pieces = (0..n).map(|_| Pieces::new(grows_calls)).collect();
    let telling = Telling { answers, pieces, n_ended: 0, teller, out, is_over: false };
    stream::unfold(telling, async |mut telling| {
        loop {
            if let Some(frame) = telling.out.0.pop_front() {
                return Some((frame, telling));
            }
            if telling.is_over {
                return None;
            }
            telling.step().await;
        }
    })
}

impl<T: Teller> Telling<T> {
    async fn step(&mut self) {
        match self.answers.next().await {
            Some((answer, Ok(event))) => {
                let Some(pieces) = self.pieces.get_mut(answer) else { return };
                for piece in pieces.take(event) {
                    self.n_ended += usize::from(matches!(piece, Piece::End(_)));
                    self.teller.piece(answer, piece, &mut self.out);
                }
            }
            Some((_, Err(failure))) => {
                self.teller.failed(&failure, &mut self.out);
                self.is_over = true;
            }
            None => {
                match self.n_ended == self.pieces.len() {
                    true => self.teller.done(&mut self.out),
                    false => self.teller.failed(&cut_off(), &mut self.out),
                }
                self.is_over = true;
            }
        }
    }
}

fn cut_off() -> Failure {
    let what = "the answer was cut off because it was not read fast enough";
    Failure::unavailable("slow_reader", what.to_string())
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Whole {
    /// What is said.
    pub text: String,
    /// What was thought.
    pub thinking: String,
    /// What is called.
    pub calls: Vec<Call>,
    /// A call that the end cut off: its arguments are no whole JSON.
    pub cut: Option<Call>,
    /// The tokens of the text, if log-probabilities were asked for.
    pub tokens: Vec<(u32, Logprobs)>,
    /// How likely the tokens of the prompt were, if that was asked for.
    pub prompt_logprobs: Vec<Option<Logprobs>>,
    /// The prompt's embedding, if that was asked for.
    pub embedding: Vec<f32>,
    /// How it ended.
    pub end: Option<End>,
}

/// Reads answers to their ends. `grows_calls` tells a call that is cut off as one; else what was
/// written of it is text.
pub async fn whole(mut answers: Answers, n: usize, grows_calls: bool) -> Result<Vec<(Whole, End)>> {
    let new = |_| (Pieces::new(grows_calls), Whole::default());
    let mut all: Vec<(Pieces, Whole)> = (0..n).map(new).collect();
    while let Some((answer, event)) = answers.next().await {
        let Some((pieces, whole)) = all.get_mut(answer) else { continue };
        for piece in pieces.take(event?) {
            whole.take(piece);
        }
    }
    let ended = |(_, mut whole): (Pieces, Whole)| {
        let end = whole.end.take().ok_or_else(cut_off)?;
        Ok((whole, end))
    };
    all.into_iter().map(ended).collect()
}

impl Whole {
    fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Text { text, tokens } => {
                self.text.push_str(&text);
                self.tokens.extend(tokens);
            }
            Piece::Thinking(text) => self.thinking.push_str(&text),
            Piece::CallBegin { index, id, name } => {
                self.cut = Some(Call { index, id, name, arguments: String::new() });
            }
            Piece::CallArguments { json, .. } => {
                self.cut.iter_mut().for_each(|call| call.arguments.push_str(&json));
            }
            Piece::CallEnd(call) => {
                self.cut = None;
                self.calls.push(call);
            }
            Piece::PromptLogprobs(tokens) => self.prompt_logprobs.extend(tokens),
            Piece::Embedding(values) => self.embedding = values,
            Piece::End(end) => self.end = Some(end),
            Piece::Progress { .. } => {}
        }
    }
}
