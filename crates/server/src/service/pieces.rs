//! From the library's events to what an API tells: text, thoughts, calls.

use std::collections::HashMap;

use lapidary::{Event, Finish, FinishReason, Logprobs, ToolCall};

use super::secret::new_id;

/// One thing that an API tells of an answer, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// More text, and the tokens that it was made of if log-probabilities were asked for.
    Text {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: Vec<(u32, Logprobs)>,
    },
    /// More of a thought.
    Thinking(String),
    /// A call begins.
    CallBegin {
        /// Which call of the answer, from 0, without gaps.
        index: usize,
        /// Its id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments, as JSON.
    CallArguments {
        /// Which call.
        index: usize,
        /// More of their JSON.
        json: String,
    },
    /// A call is whole.
    CallEnd(Call),
    /// More of the prompt was read.
    Progress {
        /// Tokens that were read.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// How likely tokens of the prompt were, in order; `None` where that can't be told.
    PromptLogprobs(Vec<Option<Logprobs>>),
    /// The prompt's embedding.
    Embedding(Vec<f32>),
    /// The answer is complete.
    End(End),
}

/// A whole call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which call of the answer, from 0.
    pub index: usize,
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments, as a JSON object.
    pub arguments: String,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Why.
    pub reason: Reason,
    /// Tokens that were thought.
    pub thinking_tokens: usize,
    /// All that is known.
    pub finish: Finish,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it.
    Stop,
    /// One of the request's stop strings, by its number.
    StopString(usize),
    /// The budget or the context is used up.
    Length,
    /// Tools are called.
    Calls,
}

/// Makes pieces of one answer's events.
#[derive(Default)]
pub struct Pieces {
    /// Whether calls are told while they grow. Else they are told when they are whole: one that turns
    /// out to be none is then text, and nothing was said of it before.
    grows_calls: bool,
    calls: HashMap<usize, (usize, String)>,
    n_calls: usize,
    n_whole: usize,
    /// Whether a call that was told turned out to be cut: what was written of it comes again as text.
    is_cut: bool,
    /// Whether that happened to any call: its arguments can't be taken back, so the answer must not
    /// end as if it were whole.
    was_cut: bool,
    /// Tokens whose text has not come.
    pending: Vec<(u32, Logprobs)>,
    /// Tokens since the last text or thought.
    n_tokens: usize,
    thinking_tokens: usize,
}

impl Pieces {
    /// Tells calls while they grow, if they can't turn out to be none.
    pub fn new(grows_calls: bool) -> Self {
        Pieces { grows_calls, ..Self::default() }
    }

    /// What an event means.
    pub fn take(&mut self, event: Event) -> Vec<Piece> {
        match event {
            Event::Token { id, logprobs } => {
                self.n_tokens += 1;
                self.pending.extend(logprobs.map(|l| (id, l)));
                vec![]
            }
            Event::Text(text) => {
                self.n_tokens = 0;
                let tokens = std::mem::take(&mut self.pending);
                match self.is_cut {
                    true => vec![],
                    false => vec![Piece::Text { text, tokens }],
                }
            }
            Event::Thinking(text) => {
                self.thinking_tokens += std::mem::take(&mut self.n_tokens);
                self.pending.clear();
                vec![Piece::Thinking(text)]
            }
            Event::ToolCallBegin { index, name } if self.grows_calls => self.begin(index, name),
            Event::ToolCallArguments { index, json } if self.grows_calls => {
                let Some((index, _)) = self.calls.get(&index) else { return vec![] };
                vec![Piece::CallArguments { index: *index, json }]
            }
            Event::ToolCall(call) => self.whole(call),
            Event::ToolCallFailed { index } => {
                self.is_cut = self.calls.remove(&index).is_some();
                self.was_cut |= self.is_cut;
                vec![]
            }
            Event::Progress { done, total } => vec![Piece::Progress { done, total }],
            Event::PromptLogprobs { tokens, .. } => vec![Piece::PromptLogprobs(tokens)],
            Event::Embedding(values) => vec![Piece::Embedding(values)],
            Event::Finished(finish) => vec![Piece::End(self.end(finish))],
            _ => vec![],
        }
    }

    fn begin(&mut self, index: usize, name: String) -> Vec<Piece> {
        let (at, id) = (self.n_calls, new_id("call_"));
        self.n_calls += 1;
        self.is_cut = false;
        self.calls.insert(index, (at, id.clone()));
        vec![Piece::CallBegin { index: at, id, name }]
    }

    fn whole(&mut self, call: ToolCall) -> Vec<Piece> {
        self.n_tokens = 0;
        self.pending.clear();
        let ToolCall { index, name, arguments, .. } = call;
        let arguments = serde_json::Value::Object(arguments).to_string();
        let mut pieces = match self.calls.contains_key(&index) {
            true => vec![],
            false => self.begin(index, name.clone()),
        };
        let Some((index, id)) = self.calls.get(&index).cloned() else { return pieces };
        if !pieces.is_empty() {
            pieces.push(Piece::CallArguments { index, json: arguments.clone() });
        }
        self.n_whole += 1;
        pieces.push(Piece::CallEnd(Call { index, id, name, arguments }));
        pieces
    }

    fn end(&mut self, finish: Finish) -> End {
        let reason = match finish.reason {
            _ if self.was_cut => Reason::Length,
            _ if self.n_whole > 0 && finish.reason == FinishReason::Stop => Reason::Calls,
            FinishReason::Stop => finish.stop_string.map_or(Reason::Stop, Reason::StopString),
            _ => Reason::Length,
        };
        End { reason, thinking_tokens: self.thinking_tokens, finish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapidary::Stats;

    fn finish() -> Event {
        let finish = Finish {
            reason: FinishReason::Stop,
            stop_id: None,
            stop_logprobs: None,
            stop_string: None,
            stats: Stats::default(),
        };
        Event::Finished(finish)
    }

    fn begun(index: usize) -> Event {
        Event::ToolCallBegin { index, name: "f".to_string() }
    }

    fn whole(index: usize) -> Event {
        Event::ToolCall(ToolCall { index, name: "f".to_string(), ..ToolCall::default() })
    }

    #[test]
    fn a_call_that_fails_was_never_told() {
        let mut pieces = Pieces::new(false);
        let events = [begun(0), Event::ToolCallFailed { index: 0 }, begun(1), whole(1), finish()];
        let all: Vec<Piece> = events.into_iter().flat_map(|e| pieces.take(e)).collect();
        assert!(matches!(&all[0], Piece::CallBegin { index: 0, .. }), "{all:?}");
        assert!(matches!(&all[1], Piece::CallArguments { index: 0, json } if json == "{}"));
        assert!(matches!(&all[2], Piece::CallEnd(Call { index: 0, .. })));
        assert!(matches!(&all[3], Piece::End(End { reason: Reason::Calls, .. })));
        let mut pieces = Pieces::new(false);
        let events = [begun(0), Event::ToolCallFailed { index: 0 }, finish()];
        let all: Vec<Piece> = events.into_iter().flat_map(|e| pieces.take(e)).collect();
        assert!(matches!(&all[..], [Piece::End(End { reason: Reason::Stop, .. })]), "{all:?}");
    }

    #[test]
    fn a_call_that_is_cut_is_told_once() {
        let more = || Event::ToolCallArguments { index: 0, json: "{\"a\":".to_string() };
        let raw = || Event::Text("call:f{a:".to_string());
        let events = || [begun(0), more(), Event::ToolCallFailed { index: 0 }, raw()];
        let mut pieces = Pieces::new(true);
        let all: Vec<Piece> = events().into_iter().flat_map(|e| pieces.take(e)).collect();
        assert!(
            matches!(&all[..], [Piece::CallBegin { .. }, Piece::CallArguments { .. }]),
            "{all:?}"
        );
        let mut pieces = Pieces::new(false);
        let all: Vec<Piece> = events().into_iter().flat_map(|e| pieces.take(e)).collect();
        assert!(matches!(&all[..], [Piece::Text { .. }]), "{all:?}");
    }

    #[test]
    fn an_answer_with_half_a_call_does_not_end_as_if_it_were_whole() {
        let failed = || Event::ToolCallFailed { index: 0 };
        let ends = |grows_calls, events: Vec<Event>| {
            let mut pieces = Pieces::new(grows_calls);
            match events.into_iter().flat_map(|e| pieces.take(e)).last() {
                Some(Piece::End(end)) => end.reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ends(true, vec![begun(0), failed(), finish()]), Reason::Length);
        let later = vec![begun(0), failed(), begun(1), whole(1), finish()];
        assert_eq!(ends(true, later), Reason::Length);
        assert_eq!(ends(true, vec![begun(0), whole(0), finish()]), Reason::Calls);
        // Nothing was told of it: it is text, and the text is whole.
        assert_eq!(ends(false, vec![begun(0), failed(), finish()]), Reason::Stop);
    }

    #[test]
    fn a_call_that_grows_keeps_its_id() {
        let mut pieces = Pieces::new(true);
        let [Piece::CallBegin { id, .. }] = &pieces.take(begun(0))[..] else { panic!() };
        let [Piece::CallEnd(call)] = &pieces.take(whole(0))[..] else { panic!() };
        assert_eq!(call.id, *id);
    }

    #[test]
    fn tokens_go_with_the_text_that_they_make() {
        let token = |id| Event::Token { id, logprobs: Some(Logprobs::default()) };
        let mut pieces = Pieces::new(false);
        assert!(pieces.take(token(1)).is_empty());
        pieces.take(Event::Thinking("x".to_string()));
        pieces.take(token(2));
        pieces.take(token(3));
        let [Piece::Text { tokens, .. }] = &pieces.take(Event::Text("y".to_string()))[..] else {
            panic!()
        };
        assert_eq!(tokens.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3]);
        let [Piece::End(end)] = &pieces.take(finish())[..] else { panic!() };
        assert_eq!(end.thinking_tokens, 1);
    }
}
