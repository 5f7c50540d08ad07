//! How a product is shared among threads.

use crate::simd::LANES;

/// Multiplications that are worth a thread of their own.
const ITEM_WORK: usize = 1 << 15;
/// The most tokens of an item: all its panels read their activations, one after another, and those
/// of thousands of tokens would come from main memory each time.
const ITEM_TOKENS: usize = 512;

/// A product cut into items: some tokens times some panels each.
pub(super) struct Split {
    n_tokens: usize,
    tokens_per_item: usize,
    n_panels: usize,
    panels_per_item: usize,
}

impl Split {
    pub(super) fn new(n_tokens: usize, n_panels: usize, n_in: usize, n_threads: usize) -> Self {
        // Several items per thread, so that a slow thread leaves its share to others.
        let wanted = 8 * n_threads;
        let panel_work = (n_tokens * n_in * LANES).max(1);
        let panels_per_item = n_panels
            .div_ceil(wanted)
            .max(ITEM_WORK.div_ceil(panel_work))
            .next_multiple_of(4)
            .min(n_panels.max(1));
        let panel_items = n_panels.div_ceil(panels_per_item);
        // Tall products are cut along the tokens too, those of few panels sooner.
        let token_items =
            (2 * n_threads).div_ceil(panel_items.max(1)).max(n_tokens.div_ceil(ITEM_TOKENS));
        let tokens_per_item = n_tokens.div_ceil(token_items).next_multiple_of(24).max(24);
        Split { n_tokens, tokens_per_item, n_panels, panels_per_item }
    }

    pub(super) fn n_items(&self) -> usize {
        self.n_tokens.div_ceil(self.tokens_per_item) * self.panel_items()
    }

    fn panel_items(&self) -> usize {
        self.n_panels.div_ceil(self.panels_per_item)
    }

    pub(super) fn item(&self, item: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let t = item / self.panel_items() * self.tokens_per_item;
        let p = item % self.panel_items() * self.panels_per_item;
        (
            t..(t + self.tokens_per_item).min(self.n_tokens),
            p..(p + self.panels_per_item).min(self.n_panels),
        )
    }
}
