//! How a product is shared among threads.

use crate::simd::LANES;

/// Multiplications that are worth a thread of their own.
const ITEM_WORK: usize = 1 << 15;
/// The most multiplications of an item, some 20 ms: a call that is stopped ends with the items that
/// have begun.
const MOST_WORK: usize = 1 << 30;
/// The most tokens of an item: all its panels read their activations, one after another, and those
/// of thousands of tokens would come from main memory each time.
const ITEM_TOKENS: usize = 512;

/// A product cut into items: some tokens times some panels each.
pub(super) struct Split {
    n_tokens: usize,
    tokens_per_item: usize,
    n_panels: usize,
    panels_per_item: usize,
    /// Runs of items that are next to each other: one for each thread if weights are read once.
    n_runs: usize,
}

/// Up to this many tokens a product is bound by reading its weights.
const FEW_TOKENS: usize = 16;

impl Split {
    pub(super) fn new(n_tokens: usize, n_panels: usize, n_in: usize, n_threads: usize) -> Self {
        // Several items per thread, so that a slow thread leaves its share to others.
        let wanted = 8 * n_threads;
        let panel_work = (n_tokens * n_in * LANES).max(1);
        let item_work = (n_tokens.min(ITEM_TOKENS) * n_in * LANES).max(1);
        let panels_per_item = n_panels
            .div_ceil(wanted)
            .min(MOST_WORK / item_work)
            .max(ITEM_WORK.div_ceil(panel_work))
            .next_multiple_of(4)
            .min(n_panels.max(1));
        let panel_items = n_panels.div_ceil(panels_per_item);
        // Tall products are cut along the tokens too, those of few panels sooner.
        let token_items =
            (2 * n_threads).div_ceil(panel_items.max(1)).max(n_tokens.div_ceil(ITEM_TOKENS));
        let tokens_per_item = n_tokens.div_ceil(token_items).next_multiple_of(24).max(24);
        let n_runs = if n_tokens <= FEW_TOKENS { n_threads.max(1) } else { 1 };
        Split { n_tokens, tokens_per_item, n_panels, panels_per_item, n_runs }
    }

    pub(super) fn n_items(&self) -> usize {
        self.n_tokens.div_ceil(self.tokens_per_item) * self.panel_items()
    }

    fn panel_items(&self) -> usize {
        self.n_panels.div_ceil(self.panels_per_item)
    }

    /// Threads take items in turn. So that each of them still reads its weights in one go, as the
    /// machine likes it best, consecutive items are dealt from as many runs as there are threads.
    fn dealt(&self, item: usize) -> usize {
        let per_run = self.n_items() / self.n_runs;
        if item < per_run * self.n_runs {
            item % self.n_runs * per_run + item / self.n_runs
        } else {
            item
        }
    }

    pub(super) fn item(&self, item: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let item = self.dealt(item);
        let t = item / self.panel_items() * self.tokens_per_item;
        let p = item % self.panel_items() * self.panels_per_item;
        (
            t..(t + self.tokens_per_item).min(self.n_tokens),
            p..(p + self.panels_per_item).min(self.n_panels),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_WORK, Split};
    use crate::simd::LANES;

    #[test]
    fn items_cover_a_product_once() {
        for (n_tokens, n_panels, n_in, n_threads) in
            [(1, 1, 64, 2), (1, 72, 640, 2), (3, 1000, 256, 7), (16, 33, 2048, 4), (600, 50, 64, 3)]
        {
            let split = Split::new(n_tokens, n_panels, n_in, n_threads);
            let mut times = vec![0; n_tokens * n_panels];
            for item in 0..split.n_items() {
                let (tokens, panels) = split.item(item);
                for t in tokens {
                    panels.clone().for_each(|p| times[t * n_panels + p] += 1);
                }
            }
            assert!(times.iter().all(|n| *n == 1), "{n_tokens} × {}", n_panels * LANES);
        }
    }

    #[test]
    fn no_item_takes_long() {
        for (n_tokens, n_in) in [(512, 21_504), (4096, 1152), (300, 5376)] {
            let split = Split::new(n_tokens, 16_384, n_in, 2);
            let most = (0..split.n_items()).map(|item| {
                let (tokens, panels) = split.item(item);
                tokens.len() * panels.len() * LANES * n_in
            });
            // Panels come in fours.
            assert!(most.max().unwrap() <= 2 * MOST_WORK, "{n_tokens} × {n_in}");
        }
    }
}
