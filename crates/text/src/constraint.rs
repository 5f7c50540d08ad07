//! What an answer may be, token by token.

use std::fmt;

/// Says at each token of an answer which may come next: a grammar, a schema, a choice.
pub trait TokenConstraint: Send {
    /// The tokens that may come next: bit `id % 32` of word `id / 32`. `None` if all may.
    fn mask(&mut self) -> Option<&[u32]>;

    /// Takes the token that came, which was one of those.
    fn accept(&mut self, token: u32);

    /// There is little room left: from now on, what is open is closed as soon as can be.
    fn wind_down(&mut self) {}

    /// Whether the answer is complete: no token may follow.
    fn is_done(&self) -> bool;

    /// Another that stands where this one does.
    fn copy(&self) -> Box<dyn TokenConstraint>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        self.copy()
    }
}

impl fmt::Debug for dyn TokenConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenConstraint")
    }
}
