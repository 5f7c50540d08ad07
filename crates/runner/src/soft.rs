//! Soft tokens while a prompt is run: where a chunk may end, and the rows that were made.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use lapidary_backend::{Call, Engine, Feed, Results, StopFlag, Wanted};
use lapidary_program::{Media, Modality, Op, Program, method, output};
use lapidary_text::{SoftInput, SoftRun};

use crate::batch::{Batch, first_non_finite, guard};
use crate::error::{Error, Result};
use crate::pages::SoftKey;
use crate::sampler::all_finite;

/// Rows that are kept for the next turn, in bytes.
const KEPT: usize = 64 << 20;

/// Maximal runs of soft tokens that see each other, as ranges of positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(Vec<std::ops::Range<usize>>);

impl Blocks {
    /// The blocks of a prompt, if the program has any.
    pub(crate) fn new(runs: &[SoftRun], bidirectional: bool) -> Self {
        let mut blocks: Vec<std::ops::Range<usize>> = Vec::new();
        for run in runs.iter().filter(|r| bidirectional && r.input.block && r.input.n_soft > 0) {
            match blocks.last_mut() {
                Some(last) if last.end == run.start => last.end = run.range().end,
                _ => blocks.push(run.range()),
            }
        }
        Blocks(blocks)
    }

    /// The longest.
    pub(crate) fn longest(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    /// How many tokens from `start` on may go into one call, at most `n`: a block goes whole or
    /// not at all.
    pub(crate) fn cut(&self, start: usize, n: usize) -> usize {
        match self.0.iter().find(|b| b.start < start + n && start + n < b.end) {
            Some(block) => block.start.saturating_sub(start),
            None => n,
        }
    }

    /// Where the block ends that a position is in, or that comes after it.
    pub(crate) fn next_end(&self, position: usize) -> Option<usize> {
        self.0.iter().map(|b| b.end).find(|end| *end > position)
    }

    /// What stands at soft positions. Runs of one block see each other, so they are known together.
    pub(crate) fn keys(&self, runs: &[SoftRun]) -> Vec<SoftKey> {
        let mut keys: Vec<SoftKey> = Vec::with_capacity(runs.len());
        for run in runs.iter().filter(|run| run.input.n_soft > 0) {
            let SoftRun { start, input } = run;
            let joins = self.0.iter().any(|b| b.start < *start && *start < b.end);
            match keys.last_mut() {
                Some(last) if joins => {
                    let mut hasher = blake3::Hasher::new();
                    hasher.update(&last.hash).update(&input.hash);
                    hasher.update(&(last.len as u64).to_le_bytes());
                    last.hash = *hasher.finalize().as_bytes();
                    last.len += input.n_soft;
                }
                _ => keys.push(SoftKey { start: *start, len: input.n_soft, hash: input.hash }),
            }
        }
        keys
    }
}

/// What a program does with soft tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoftUse<'a> {
    /// What it takes besides text.
    pub(crate) media: &'a Media,
    /// Whether its `forward` lets blocks be seen in both directions.
    pub(crate) bidirectional: bool,
}

impl SoftUse<'_> {
    pub(crate) fn of(program: &Program) -> SoftUse<'_> {
        let forward = program.method(method::FORWARD);
        let sees_blocks = |op: &Op| matches!(op, Op::Attention { spec, .. } if spec.bidirectional);
        let bidirectional =
            forward.is_ok_and(|m| m.graph.nodes.iter().any(|node| sees_blocks(&node.op)));
        SoftUse { media: &program.metadata().media, bidirectional }
    }

    /// The blocks of soft tokens that this program can run, in calls of so many tokens.
    pub(crate) fn check(&self, runs: &[SoftRun], len: usize, chunk: usize) -> Result<Blocks> {
        let mut end = 0;
        for run in runs {
            let (known, given) = match run.input.method {
                method::AUDIO => (self.media.audio.is_some(), Modality::Audio),
                _ => (self.media.image.is_some(), Modality::Image),
            };
            if !known {
                return Err(lapidary_text::Error::modality(self.media, given).into());
            }
            if run.start < end || run.range().end > len {
                let what = "soft tokens overlap or stand outside the prompt";
                return Err(Error::param("prompt", what));
            }
            end = run.range().end;
        }
        let blocks = Blocks::new(runs, self.bidirectional);
        match blocks.longest() {
            block if block > chunk => Err(Error::BlockLength { block, chunk }),
            _ => Ok(blocks),
        }
    }
}

/// Soft rows by what they were made of, the newest first.
#[derive(Debug, Default)]
pub(crate) struct SoftRows {
    kept: VecDeque<([u8; 32], Arc<Vec<f32>>)>,
    results: Results,
}

impl SoftRows {
    /// The rows of an input, if they are still at hand.
    pub(crate) fn find(&mut self, input: &SoftInput) -> Option<Arc<Vec<f32>>> {
        let at = self.kept.iter().position(|(hash, _)| *hash == input.hash)?;
        let found = self.kept.remove(at)?;
        let rows = found.1.clone();
        self.kept.push_front(found);
        Some(rows)
    }

    /// The rows of an input, made now unless they are still at hand.
    pub(crate) fn get(
        &mut self,
        engine: &mut dyn Engine,
        input: &SoftInput,
        stop: Option<&StopFlag>,
    ) -> Result<Arc<Vec<f32>>> {
        if let Some(rows) = self.find(input) {
            return Ok(rows);
        }
        let rows = Arc::new(self.make(engine, input, stop)?);
        self.kept.push_front((input.hash, rows.clone()));
        let mut bytes = 0;
        self.kept.retain(|(_, rows)| {
            let first = bytes == 0;
            bytes += rows.len() * size_of::<f32>();
            first || bytes <= KEPT
        });
        Ok(rows)
    }

    /// Keeps nothing.
    pub(crate) fn forget(&mut self) {
        self.kept.clear();
    }

    fn make(
        &mut self,
        engine: &mut dyn Engine,
        from: &SoftInput,
        stop: Option<&StopFlag>,
    ) -> Result<Vec<f32>> {
        let feeds = feeds(from);
        let wants = [Wanted::whole(output::SOFT)];
        let call =
            Call { method: from.method, feeds: &feeds, wants: &wants, stop, ..Call::default() };
        let results = &mut self.results;
        guard(from.method, AssertUnwindSafe(|| engine.run(&call, results)))?;
        let made = self.results.get(output::SOFT).filter(|t| t.channels > 0);
        let rows = made.map_or(&[][..], |t| &t.data);
        let n = made.map_or(0, |t| t.data.len() / t.channels);
        if n != from.n_soft {
            let what = format!("method `{}` made {n} soft rows, not {}", from.method, from.n_soft);
            return Err(Error::Program(what));
        }
        if !all_finite(rows) {
            let node = first_non_finite(engine, &Call { wants: &[], ..call });
            return Err(Error::NonFiniteSoft { method: from.method, node });
        }
        Ok(rows.to_vec())
    }
}

fn feeds(input: &SoftInput) -> Vec<Feed<'_>> {
    let indices = input.indices.iter().map(|(name, data)| Feed::i32(name, data));
    std::iter::once(Feed::f32(input.rows.0, &input.rows.1)).chain(indices).collect()
}

impl Blocks {
    /// Tells the batch what its tokens from `token` on, which stand from `position` on, are and
    /// see.
    pub(crate) fn apply<'r>(
        &self,
        batch: &mut Batch,
        (token, position, n): (usize, usize, usize),
        rows: impl Iterator<Item = (&'r SoftRun, &'r [f32])>,
    ) {
        let end = position + n;
        for (run, rows) in rows {
            let range = run.range();
            let (from, to) = (range.start.max(position), range.end.min(end));
            if from >= to {
                continue;
            }
            let channels = rows.len() / run.input.n_soft;
            let part = &rows[(from - range.start) * channels..(to - range.start) * channels];
            batch.put_soft(token + from - position, part, to - from);
        }
        for block in self.0.iter().filter(|b| b.start < end && position < b.end) {
            for p in block.start.max(position)..block.end.min(end) {
                batch.see_to(token + p - position, block.end - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: usize, n_soft: usize, block: bool) -> SoftRun {
        let input = SoftInput {
            method: method::VISION,
            rows: (lapidary_program::input::PATCHES, vec![]),
            indices: vec![],
            n_soft,
            block,
            hash: [0; 32],
        };
        SoftRun { start, input: Arc::new(input) }
    }

    #[test]
    fn a_chunk_never_ends_inside_a_block() {
        // Two that touch are one; audio is none.
        let runs = [run(2, 3, true), run(7, 2, true), run(9, 2, true), run(12, 4, false)];
        let blocks = Blocks::new(&runs, true);
        assert_eq!(blocks.longest(), 4);
        let inside = |end: usize| (3..5).contains(&end) || (8..11).contains(&end);
        for start in (0..20).filter(|s| !inside(*s)) {
            for n in 1..20 {
                let cut = blocks.cut(start, n);
                assert!(cut <= n && !inside(start + cut), "{n} from {start}: {cut}");
                // Nothing is held back without need.
                assert!(cut == n || (start + cut + 1..=start + n).all(inside), "{n} from {start}");
                assert!(cut > 0 || n < blocks.longest());
            }
        }
        assert_eq!(Blocks::new(&runs, false).cut(0, 4), 4);
        assert_eq!([0, 4, 5, 11].map(|p| blocks.next_end(p)), [Some(5), Some(5), Some(11), None]);
    }

    #[test]
    fn what_sees_each_other_is_known_together() {
        let runs = [run(2, 3, true), run(7, 2, true), run(9, 2, true), run(11, 4, false)];
        let places = |bidirectional| {
            let keys = Blocks::new(&runs, bidirectional).keys(&runs);
            keys.iter().map(|k| (k.start, k.len)).collect::<Vec<_>>()
        };
        assert_eq!(places(true), [(2, 3), (7, 4), (11, 4)]);
        assert_eq!(places(false), [(2, 3), (7, 2), (9, 2), (11, 4)]);
        let keys = Blocks::new(&runs, true).keys(&runs);
        assert_eq!(keys[0].hash, [0; 32]);
        assert_ne!(keys[1].hash, [0; 32]);
    }
}
