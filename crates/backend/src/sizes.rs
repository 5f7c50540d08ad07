//! The lengths of one call.

use lapidary_program::{Dim, Sym, ValueType};

use crate::LoadOptions;

/// The lengths of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// `T`.
    pub tokens: usize,
    /// `R`.
    pub rows: usize,
    /// `S`.
    pub soft: usize,
    /// `P`.
    pub patches: usize,
    /// `F`.
    pub frames: usize,
}

impl Sizes {
    /// The lengths that room is kept for. A call may ask for more rows than there are sequences
    /// (all logits of a prompt).
    pub fn planned(options: &LoadOptions) -> Self {
        let tokens = options.limits.tokens as usize;
        Sizes {
            tokens,
            rows: (options.n_sequences as usize).min(tokens),
            soft: tokens,
            patches: options.max_patches as usize,
            frames: options.max_frames as usize,
        }
    }

    /// The value of a symbol.
    pub fn of(&self, sym: Sym) -> usize {
        match sym {
            Sym::Tokens => self.tokens,
            Sym::Rows => self.rows,
            Sym::Soft => self.soft,
            Sym::Patches => self.patches,
            Sym::Frames => self.frames,
        }
    }

    /// A length of this call.
    pub fn len(&self, dim: Dim) -> usize {
        match dim {
            Dim::Fixed(n) => n as usize,
            Dim::Sym(s) => self.of(s),
            Dim::Part { of, by } => self.of(of).div_ceil(by.max(1) as usize),
        }
    }

    /// The length (first dimension) of a value.
    pub fn len_of(&self, t: &ValueType) -> usize {
        t.shape().first().map_or(1, |dim| self.len(*dim))
    }

    pub(crate) fn of_mut(&mut self, sym: Sym) -> &mut usize {
        match sym {
            Sym::Tokens => &mut self.tokens,
            Sym::Rows => &mut self.rows,
            Sym::Soft => &mut self.soft,
            Sym::Patches => &mut self.patches,
            Sym::Frames => &mut self.frames,
        }
    }
}
