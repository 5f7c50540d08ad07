//! When the context is full: what can be done, and how it is done.

use anyhow::Result;
use lapidary::{ErrorCode, Finish, FinishReason, Message};

use super::Chat;
use crate::show::Shown;
use crate::tell::tell;

/// What is said along with the error.
pub const ADVICE: &str = "the context is full, so this was not said: /compact puts a summary in place \
    of what was said, /drop forgets the oldest turns, /clear begins anew; then say it again";

/// What is said of an answer that is as long as it may be.
pub const CUT: &str = "the answer is cut: it reached max_tokens; /set max_tokens takes more, and \"go on\" \
    continues it";

/// What is said of an answer that the user ended.
pub const STOPPED: &str = "stopped; what was said until then is part of the conversation";

/// What the model is asked for.
const SUMMARISE: &str = "Summarise our conversation until now in a few sentences: what was asked, what \
    was found, and what matters for what comes next. Write nothing but the summary.";

/// How a conversation begins that went on from a summary.
const SUMMARY: &str = "This is a summary of our conversation until now:";

/// Whether an error says that there is no room for what was said.
pub fn is_full(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        ErrorCode::of(cause).is_some_and(|code| code == ErrorCode::ContextLengthExceeded)
    })
}

/// What is said of turns that were forgotten.
pub fn dropped(n: usize, of: usize) -> String {
    match (n, of - n) {
        (0, _) => "nothing was said that could be forgotten".to_string(),
        (1, 0) => "forgot the only turn; this is a new conversation".to_string(),
        (n, 0) => format!("forgot all {n} turns; this is a new conversation"),
        (1, left) => format!("forgot the oldest turn; {left} left"),
        (n, left) => format!("forgot the oldest {n} turns; {left} left"),
    }
}

/// Messages without the oldest turns; how many turns went, and how many there were.
fn without_oldest(messages: &[Message], n: usize) -> (Vec<Message>, usize, usize) {
    let begins = messages.iter().enumerate().filter(|(_, m)| m.role == "user").map(|(i, _)| i);
    let begins: Vec<usize> = begins.collect();
    let from = begins.get(n).copied().unwrap_or(messages.len());
    (messages[from..].to_vec(), n.min(begins.len()), begins.len())
}

impl Chat {
    /// Says why an answer ends where it does, if not because all was said.
    pub(super) fn say_if_cut(&self, finish: &Finish) {
        match finish.reason {
            FinishReason::Length => {
                let used = finish.stats.prompt_tokens + finish.stats.new_tokens;
                match finish.stats.new_tokens < self.settings.max_tokens {
                    true => tell(format_args!(
                        "note: the answer is cut: the context of {used} tokens is full; /compact \
                         puts a summary in place of what was said, /drop forgets the oldest turns, \
                         /clear begins anew"
                    )),
                    false => tell(format_args!("note: {CUT}")),
                }
            }
            FinishReason::Cancelled => tell(format_args!("note: {STOPPED}")),
            _ => {}
        }
    }

    /// Forgets the oldest turns.
    pub(super) fn drop_oldest(&mut self, n: usize) -> Result<()> {
        let (left, gone, all) = without_oldest(&self.conversation.messages(), n);
        if gone > 0 {
            self.conversation.set_messages(left)?;
        }
        tell(format_args!("{}", dropped(gone, all)));
        Ok(())
    }

    /// Puts a summary in place of what was said. Of what does not fit along with the question for it,
    /// the oldest turns are left out.
    pub(super) fn compact(&mut self) -> Result<()> {
        let messages = self.conversation.messages();
        if messages.is_empty() {
            tell(format_args!("nothing was said that could be summarised"));
            return Ok(());
        }
        let (mut left_out, mut kept) = (0, messages.clone());
        let reply = loop {
            match self.summary(kept) {
                Err(e) if is_full(&e) => {
                    left_out += 1;
                    let (rest, gone, all) = without_oldest(&messages, left_out);
                    if gone == all {
                        return Err(e.context(ADVICE));
                    }
                    kept = rest;
                }
                done => break done?,
            }
        };
        let is_whole = reply.finish.as_ref().is_some_and(|f| f.reason != FinishReason::Cancelled);
        let text = reply.text.trim();
        if !is_whole || text.is_empty() {
            tell(format_args!("there is no summary; the conversation is as it was"));
            return Ok(());
        }
        let n = messages.len();
        let summary = Message::new("user").text(format!("{SUMMARY}\n\n{text}"));
        let ready = Message::new("assistant").text("Let us go on from there.");
        self.conversation.set_messages(vec![summary, ready])?;
        let without = match left_out {
            0 => String::new(),
            n => format!(", without the oldest {n} turns, which did not fit"),
        };
        tell(format_args!("this summary stands in place of {n} messages{without}"));
        Ok(())
    }

    /// Asks for a summary of messages, beside the conversation.
    fn summary(&mut self, messages: Vec<Message>) -> Result<lapidary::Reply> {
        // An answer of half the context leaves nothing to go on with.
        let room = (self.engine.plan().context / 4).max(16) as usize;
        let mut aside = self.conversation.fork();
        aside.set_messages(messages)?;
        aside.message(Message::new("user").text(SUMMARISE));
        aside
            .system(self.system.clone().unwrap_or_default())
            .sampling(self.settings.params.clone().into())
            .max_tokens(room.min(self.settings.max_tokens))
            .thinking(false)
            .progress(true);
        let answer = aside.answer()?;
        let cancel = answer.cancel_token();
        self.interrupt.arm(move || cancel.cancel());
        let reply = Shown::rendered(self.plain).all(answer);
        self.interrupt.disarm();
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_turns_go_with_their_answers() {
        let said = |role: &str, text: &str| Message::new(role).text(text);
        let all = [
            said("user", "a"),
            said("assistant", "b"),
            said("user", "c"),
            said("assistant", "d"),
            said("user", "e"),
        ];
        let left = |n: usize| {
            let (left, gone, all) = without_oldest(&all, n);
            let texts: Vec<String> = left.iter().map(Message::plain_text).collect();
            (texts.concat(), gone, all)
        };
        assert_eq!(left(1), ("cde".to_string(), 1, 3));
        assert_eq!(left(2), ("e".to_string(), 2, 3));
        assert_eq!(left(9), (String::new(), 3, 3));
        assert!(dropped(1, 3).contains("2 left"));
        assert!(dropped(3, 3).contains("all 3"));
        assert!(dropped(0, 0).contains("nothing"));
    }
}
