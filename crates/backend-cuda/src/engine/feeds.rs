//! What a call feeds: one stretch of bytes, copied to the device at once.
//!
//! Where each feed stands depends on a call's lengths and on what becomes of its outputs, never on its
//! numbers, so that kernels which were collected for one call serve the next.

use lapidary_backend::{Bound, Call, DrawRule, Fed, Mask, Sizes, Want};
use lapidary_backend_kit::GroupTables;
use lapidary_program::Method;

use super::outputs::OutputUse;
use crate::compile::CompiledMethod;

/// Where feeds begin.
const ALIGN: usize = 64;
/// Bytes of a token's place in a group, as `cache.cuh` has it.
const PLACE_BYTES: usize = 16;
/// Bytes of a rule, as `top.cu` has it.
const RULE_BYTES: usize = 32;

/// Where each feed of a call stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeedLayout {
    /// By input of the method.
    pub inputs: Vec<usize>,
    /// By input: which rows of an earlier call it is, if it is.
    pub picks: Vec<Option<usize>>,
    /// `[T]`.
    pub positions: usize,
    /// By group, `[T]` places.
    pub places: Vec<usize>,
    /// By group, `[spans, stride]` pages.
    pub pages: Vec<usize>,
    /// By output: the rules and the masks of its rows.
    pub rules: Vec<usize>,
    pub masks: Vec<usize>,
    /// In all.
    pub bytes: usize,
}

/// Hands out places, one after another.
struct Places {
    next: usize,
}

impl Places {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.next;
        self.next = (at + bytes).next_multiple_of(ALIGN);
        at
    }
}

impl FeedLayout {
    pub(crate) fn new(
        (method, compiled): (&Method, &CompiledMethod),
        sizes: Sizes,
        n_spans: usize,
        groups: &[GroupTables],
        uses: &[OutputUse],
        is_of: &[bool],
    ) -> Self {
        let mut places = Places { next: 0 };
        let mut layout = FeedLayout::default();
        for (i, of) in is_of.iter().enumerate() {
            let (rows, channels) = compiled.lens[i];
            let rows = sizes.len(rows);
            layout.inputs.push(places.take(4 * rows * channels));
            layout.picks.push(of.then(|| places.take(4 * rows)));
        }
        layout.positions = places.take(4 * sizes.tokens);
        for group in groups {
            layout.places.push(places.take(PLACE_BYTES * sizes.tokens));
            layout.pages.push(places.take(4 * group.stride * n_spans));
        }
        for (out, what) in method.graph.outputs.iter().zip(uses) {
            let (rows, channels) = compiled.lens[out.value.index()];
            let rows = sizes.len(rows);
            let OutputUse::Top { masks, draws, .. } = what else {
                layout.rules.push(0);
                layout.masks.push(0);
                continue;
            };
            layout.rules.push(places.take(if *draws { RULE_BYTES * rows } else { 0 }));
            let mask_bytes = 4 * channels.div_ceil(32) * rows;
            layout.masks.push(places.take(if *masks { mask_bytes } else { 0 }));
        }
        layout.bytes = places.next;
        layout
    }

    /// Writes the feeds of a call.
    pub(crate) fn fill(
        &self,
        out: &mut [u8],
        (method, call): (&Method, &Call<'_>),
        bound: &Bound<'_>,
        groups: &[GroupTables],
        uses: &[OutputUse],
    ) {
        for ((at, pick), fed) in self.inputs.iter().zip(&self.picks).zip(&bound.feeds) {
            match fed {
                Fed::I32(data) => put(out, *at, data.iter().map(|x| x.to_le_bytes())),
                Fed::F32(data) => put(out, *at, data.iter().map(|x| x.to_le_bytes())),
                Fed::Of(rows) => {
                    let at = pick.unwrap_or(0);
                    put(out, at, rows.rows.iter().map(|row| row.to_le_bytes()));
                }
            }
        }
        put(out, self.positions, bound.positions.iter().map(|p| p.to_le_bytes()));
        if !bound.positions.is_empty() {
            for (g, group) in groups.iter().enumerate() {
                self.fill_group(out, bound, g, group);
            }
        }
        for (i, (output, what)) in method.graph.outputs.iter().zip(uses).enumerate() {
            let OutputUse::Top { masks, draws, rows, channels, .. } = what else { continue };
            let (top, rules) = match call.want(&output.name) {
                Want::TopK(top) => (top, [].as_slice()),
                Want::Draw(draw) => (draw.top, draw.rules),
                _ => continue,
            };
            if *draws {
                let words = rules.iter().take(*rows).flat_map(rule_words);
                put(out, self.rules[i], words.map(u32::to_le_bytes));
            }
            if *masks {
                let words = channels.div_ceil(32);
                for row in 0..*rows {
                    let mask = top.masks.get(row).copied().flatten();
                    let at = self.masks[i] + 4 * words * row;
                    put(out, at, (0..words).map(|w| mask_word(mask, w).to_le_bytes()));
                }
            }
        }
    }

    fn fill_group(&self, out: &mut [u8], bound: &Bound<'_>, g: usize, group: &GroupTables) {
        let first_of = |span: usize| group.first_page(bound.spans[span].start as usize);
        let places = (0..bound.positions.len()).flat_map(|t| {
            let (span, position) = (bound.sequences[t] as usize, bound.positions[t]);
            let table = bound.spans[span].tables.get(g);
            let own = table.and_then(|table| table.find(position as usize));
            [
                position,
                (span * group.stride) as i32 - first_of(span) as i32,
                bound.horizons[t],
                own.map_or(0, |(page, _)| page.0 as i32),
            ]
        });
        put(out, self.places[g], places.map(i32::to_le_bytes));
        for (i, span) in bound.spans.iter().enumerate() {
            let table = span.tables.get(g).copied().unwrap_or_default();
            // Pages after the last key that is seen are not looked at.
            let last = (span.start as usize + span.len as usize).div_ceil(lapidary_backend::PAGE);
            let first = first_of(i);
            let pages = (first..last.min(first + group.stride)).map(|n| {
                let at = n.checked_sub(table.first as usize);
                at.and_then(|at| table.pages.get(at)).map_or(0, |page| page.0).to_le_bytes()
            });
            put(out, self.pages[g] + 4 * i * group.stride, pages);
        }
    }
}

fn put(out: &mut [u8], at: usize, words: impl Iterator<Item = [u8; 4]>) {
    let (out, _) = out[at..].as_chunks_mut::<4>();
    out.iter_mut().zip(words).for_each(|(to, word)| *to = word);
}

fn mask_word(mask: Mask<'_>, word: usize) -> u32 {
    mask.map_or(u32::MAX, |bits| bits.get(word).copied().unwrap_or(0))
}

/// `Rule` of `top.cu`.
fn rule_words(rule: &DrawRule) -> [u32; RULE_BYTES / 4] {
    [
        rule.temperature.to_bits(),
        rule.top_k,
        rule.top_p.to_bits(),
        rule.min_p.to_bits(),
        rule.seed as u32,
        (rule.seed >> 32) as u32,
        rule.position,
        0,
    ]
}
