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
}

/// One length of a value's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// Known when the program is built.
    Fixed(u64),
    /// Known when the method runs.
    Sym(Sym),
}

/// The shape of a value: a symbolic or fixed leading length, then fixed ones.
pub type Shape = Vec<Dim>;

impl fmt::Display for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sym::Tokens => "T",
            Sym::Rows => "R",
            Sym::Soft => "S",
        })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Sym(s) => write!(f, "{s}"),
        }
    }
}
