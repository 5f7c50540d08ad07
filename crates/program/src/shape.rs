use std::fmt;

use serde::{Deserialize, Serialize};

/// A length that is known only when a method runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sym {
    /// Tokens of one call.
    #[serde(rename = "T")]
    Tokens,
    /// Rows that were asked to reach the output head.
    #[serde(rename = "R")]
    Rows,
    /// Soft tokens (image, audio) of one call.
    #[serde(rename = "S")]
    Soft,
    /// Patches of one image.
    #[serde(rename = "P")]
    Patches,
    /// Frames of one audio clip.
    #[serde(rename = "F")]
    Frames,
}

/// One length of a value's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// Known when the program is built.
    Fixed(u64),
    /// Known when the method runs.
    Sym(Sym),
    /// A part of one that is known when the method runs, rounded up.
    Part {
        /// The whole.
        of: Sym,
        /// What it is divided by.
        by: u32,
    },
}

/// The shape of a value: a symbolic or fixed leading length, then fixed ones.
pub type Shape = Vec<Dim>;

impl Dim {
    /// A part of this length, rounded up; `None` for a part of nothing or by nothing.
    pub fn divided(self, by: u32) -> Option<Dim> {
        if by == 0 {
            return None;
        }
        match self {
            Dim::Fixed(n) => Some(Dim::Fixed(n.div_ceil(u64::from(by)))),
            Dim::Sym(of) => Some(if by == 1 { self } else { Dim::Part { of, by } }),
            // ⌈⌈n/a⌉/b⌉ = ⌈n/(a·b)⌉.
            Dim::Part { of, by: a } => Some(Dim::Part { of, by: a.checked_mul(by)? }),
        }
    }
}

impl fmt::Display for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sym::Tokens => "T",
            Sym::Rows => "R",
            Sym::Soft => "S",
            Sym::Patches => "P",
            Sym::Frames => "F",
        })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Sym(s) => write!(f, "{s}"),
            Dim::Part { of, by } => write!(f, "{of}/{by}"),
        }
    }
}
