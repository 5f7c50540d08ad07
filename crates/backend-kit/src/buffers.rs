//! Buffers that the values of methods take turns in.

use lapidary_backend::Sizes;
use lapidary_program::Dim;

/// Buffers that the values of all methods take turns in: which there are, and which are free.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    /// The lengths that room is kept for.
    planned: Sizes,
    /// By buffer the rows and channels of the values that it may hold.
    values: Vec<Vec<(Dim, usize)>>,
    free: Vec<usize>,
}

impl Buffers {
    /// None yet; they will be made for calls of these lengths.
    pub fn new(planned: Sizes) -> Self {
        Buffers { planned, values: Vec::new(), free: Vec::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Gives back everything: methods do not run at the same time, so each may use all.
    pub fn free_all(&mut self) {
        self.free = (0..self.values.len()).collect();
    }

    /// Takes a free buffer for a value: the smallest that is large enough, or else the largest,
    /// made larger, or else a new one.
    pub fn take(&mut self, rows: Dim, channels: usize) -> usize {
        let need = self.planned.len(rows) * channels;
        let fit = |buffer: usize| {
            let len = self.len(buffer, self.planned);
            if len >= need { (0, len) } else { (1, usize::MAX - len) }
        };
        let best = (0..self.free.len()).min_by_key(|at| fit(self.free[*at]));
        let buffer = match best {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.values.push(Vec::new());
                self.values.len() - 1
            }
        };
        if !self.values[buffer].contains(&(rows, channels)) {
            self.values[buffer].push((rows, channels));
        }
        buffer
    }

    /// Gives a buffer back: nobody needs what it holds.
    pub fn give_back(&mut self, buffer: usize) {
        debug_assert!(!self.free.contains(&buffer), "buffer {buffer} is given back twice");
        self.free.push(buffer);
    }

    /// Numbers of a buffer in calls of such lengths.
    pub fn len(&self, buffer: usize, sizes: Sizes) -> usize {
        let values = self.values[buffer].iter();
        values.map(|(rows, channels)| sizes.len(*rows) * channels).max().unwrap_or(0)
    }

    /// Numbers of every buffer in calls of such lengths.
    pub fn lens(&self, sizes: Sizes) -> impl Iterator<Item = usize> + '_ {
        (0..self.count()).map(move |buffer| self.len(buffer, sizes))
    }

    /// Bytes of all buffers, four for each number.
    pub fn size_bytes(&self, sizes: Sizes) -> u64 {
        self.lens(sizes).map(|len| len as u64 * 4).sum()
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::Sym;

    use super::*;

    #[test]
    fn the_smallest_that_is_large_enough_is_taken() {
        let sizes = Sizes { tokens: 10, rows: 2, ..Sizes::default() };
        let mut buffers = Buffers::new(sizes);
        let (tokens, rows) = (Dim::Sym(Sym::Tokens), Dim::Sym(Sym::Rows));
        let [large, small, least] = [(tokens, 8), (tokens, 4), (rows, 3)]
            .map(|(rows, channels)| buffers.take(rows, channels));
        assert_eq!(buffers.lens(sizes).collect::<Vec<_>>(), [80, 40, 6]);
        buffers.give_back(large);
        buffers.give_back(small);
        assert_eq!(buffers.take(tokens, 3), small);
        assert_eq!(buffers.take(tokens, 3), large);
        buffers.give_back(least);
        assert_eq!(buffers.take(tokens, 1), least, "the only one is made larger");
        assert_eq!(buffers.len(least, sizes), 10);
        assert_eq!(buffers.len(least, Sizes { rows: 7, ..sizes }), 21, "as either value asks");
        assert_eq!(buffers.size_bytes(sizes), 4 * 130);
        buffers.free_all();
        assert_eq!(buffers.take(rows, 1), least);
        assert_eq!(buffers.count(), 3);
    }
}
