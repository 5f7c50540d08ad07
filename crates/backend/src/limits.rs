//! How much one call may take: computed here and nowhere else.

use lapidary_program::{Op, Program, method};

use crate::pages::pages_for;

/// How much one call may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Tokens of one sequence.
    pub chunk: u32,
    /// Tokens of all sequences together.
    pub tokens: u32,
    /// Tokens of one block that see each other in both directions, and so go into one call.
    pub block: u32,
}

/// What a loader wishes for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Positions of one sequence.
    pub max_context: u32,
    /// Sequences that are answered at once.
    pub n_sequences: u32,
    /// Tokens of one sequence in one call, if somebody asked for a number.
    pub chunk: Option<u32>,
    /// The longest block that will come, if that is known; `None` for the longest that the program
    /// knows, 0 if no image will come.
    pub block: Option<u32>,
}

impl CallLimits {
    /// The limits of a program on a device that gains from chunks of `preferred` tokens.
    ///
    /// A chunk is as long as the longest block that the program may need, even where the device
    /// or the user wants shorter ones: a block can't be cut. A call has room for a whole chunk
    /// beside the next token of every other sequence, so no block is refused because others
    /// are being answered.
    pub fn new(program: &Program, preferred: u32, wishes: &Wishes) -> Self {
        let most = program.methods().get(method::FORWARD).map_or(u32::MAX, |m| m.max_chunk);
        let most = most.min(wishes.max_context).max(1);
        let block = wishes.block.unwrap_or_else(|| longest_block(program)).min(most);
        let chunk = wishes.chunk.unwrap_or(preferred).clamp(1, most).max(block);
        let tokens = chunk.saturating_add(wishes.n_sequences.saturating_sub(1));
        CallLimits { chunk, tokens, block: chunk }
    }

    /// Pages that each group's pool needs for `n_sequences` sequences of `max_context` positions,
    /// all at once.
    ///
    /// A group with a window keeps what the next token of every sequence sees, which may begin in
    /// the middle of a page. Chunks are short while all are at work, so together they need a third
    /// of a window besides; a sequence that is alone has room for a whole chunk, or for the window
    /// where its answer began, so that it can begin there again.
    pub fn pages(&self, program: &Program, max_context: u32, n_sequences: u32) -> Vec<u32> {
        let whole = pages_for(max_context as usize);
        let n_sequences = n_sequences.max(1) as usize;
        let pages = program.kv_groups().iter().map(|group| match group.window {
            None => n_sequences * whole,
            Some(window) => {
                let kept = (pages_for(window as usize) + 1).min(whole);
                let alone = kept + pages_for(self.chunk as usize).max(kept + 1);
                let all = n_sequences * kept + kept.div_ceil(3);
                all.max(alone).min(n_sequences * whole)
            }
        });
        pages.map(|n| u32::try_from(n).unwrap_or(u32::MAX)).collect()
    }
}

/// Tokens of the longest block that sees itself in both directions: an image's, where any
/// attention of `forward` has horizons.
fn longest_block(program: &Program) -> u32 {
    let Some(forward) = program.methods().get(method::FORWARD) else { return 1 };
    let has_blocks = forward
        .graph
        .nodes
        .iter()
        .any(|node| matches!(&node.op, Op::Attention { spec, .. } if spec.bidirectional));
    match &program.metadata().media.image {
        Some(image) if has_blocks => image.max_soft(),
        _ => 1,
    }
}
