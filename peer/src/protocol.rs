//! What the parent asks its children for, and what they answer: one line of JSON each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum EngineName {
    Lapidary,
    Llama,
}

impl EngineName {
    /// As the command line spells it.
    pub fn word(self) -> &'static str {
        match self {
            EngineName::Lapidary => "lapidary",
            EngineName::Llama => "llama",
        }
    }
}

/// Positions of a test with a medium: more soft tokens than any default budget makes, and the text.
const MEDIA_CONTEXT: usize = 1024;

/// One measurement. Filling the caches up to `depth` is not timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// `n` tokens at once, logits of the last.
    Prompt { n: usize, depth: usize },
    /// `n` tokens one by one, logits of each.
    Generate { n: usize, depth: usize },
    /// `n` tokens in one call, logits of each: what it costs to check a draft.
    Verify { n: usize, depth: usize },
    /// An image and some text, into empty caches.
    Image { width: u32, height: u32 },
    /// An audio clip and some text, into empty caches.
    Audio { seconds: u32 },
}

impl Test {
    /// `pp512`, `tg64 @ d1024`, as llama-bench says it.
    pub fn name(&self) -> String {
        let (what, n, depth) = match *self {
            Test::Prompt { n, depth } => ("pp", n, depth),
            Test::Generate { n, depth } => ("tg", n, depth),
            Test::Verify { n, depth } => ("verify", n, depth),
            Test::Image { width, height } => return format!("image of {width} x {height}"),
            Test::Audio { seconds } => return format!("audio of {seconds} s"),
        };
        if depth > 0 { format!("{what}{n} @ d{depth}") } else { format!("{what}{n}") }
    }

    /// Positions that the test needs, with some to spare: engines differ in whether they begin
    /// with a token of their own and whether they make room for one after the last.
    pub fn context(&self) -> usize {
        match *self {
            Test::Prompt { n, depth } | Test::Generate { n, depth } | Test::Verify { n, depth } => {
                n.saturating_add(depth).saturating_add(2)
            }
            Test::Image { .. } | Test::Audio { .. } => MEDIA_CONTEXT,
        }
    }
}

/// An answer of a child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The model is loaded; a line about engine and instruction set.
    Ready { describe: String },
    /// A test was run.
    Seconds { seconds: f64 },
    /// A test with a medium was run: seconds in the tower, seconds until the first token after
    /// medium and text, and tokens that the medium became.
    Medium { encode_s: f64, first_token_s: f64, n_soft: usize, memory: Memory },
    /// The first token of an answer.
    FirstToken { token: u32 },
    /// The memory of the process after some tokens.
    Memory(Memory),
}

/// The memory of a process, as the system counts it. Pages of a mapped file count, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The most that was ever resident.
    pub peak_bytes: u64,
    /// Resident now and the process's own: it can't be dropped.
    pub anon_bytes: u64,
    /// Resident now and backed by files: it can be dropped and read again.
    pub file_bytes: u64,
}

/// The same tokens for both engines: arbitrary, spread over the vocabulary.
pub fn arbitrary_tokens(n: usize, vocab_size: u32) -> Vec<u32> {
    (0u32..).take(n).map(|i| i.wrapping_mul(2_654_435_761) % vocab_size.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_llama_bench() {
        assert_eq!(Test::Prompt { n: 512, depth: 0 }.name(), "pp512");
        assert_eq!(Test::Generate { n: 64, depth: 1024 }.name(), "tg64 @ d1024");
    }

    #[test]
    fn lines_survive_the_pipe() {
        let replies = [
            Reply::Ready { describe: "x".to_string() },
            Reply::Seconds { seconds: 0.25 },
            Reply::FirstToken { token: 7 },
            Reply::Medium {
                encode_s: 0.5,
                first_token_s: 1.5,
                n_soft: 256,
                memory: Memory::default(),
            },
            Reply::Memory(Memory { peak_bytes: 3, anon_bytes: 1, file_bytes: 2 }),
        ];
        for reply in replies {
            let line = serde_json::to_string(&reply).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), reply);
        }
    }

    #[test]
    fn tokens_stay_in_the_vocabulary() {
        let tokens = arbitrary_tokens(1000, 262_144);
        assert_eq!(tokens.len(), 1000);
        assert!(tokens.iter().all(|t| *t < 262_144));
    }
}
