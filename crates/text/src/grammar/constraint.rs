use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::closing::{Closers, Marks};
use super::compiler::fault;
use crate::constraint::TokenConstraint;
use crate::error::Result;

/// A grammar on its way through one answer. A clone goes on from the same place.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    mask: Option<SimpleVob>,
    /// How an answer is brought to its end; `None` for one that may be cut anywhere.
    closing: Option<(Arc<Closers>, Marks)>,
    winds_down: bool,
}

impl Constraint {
    pub(super) fn new(matcher: Matcher, closing: Option<(Arc<Closers>, Marks)>) -> Self {
        Constraint { matcher, mask: None, closing, winds_down: false }
    }

    /// Another that shares nothing with this one, not even what both would find out.
    pub(super) fn apart(&self) -> Self {
        Constraint { matcher: self.matcher.deep_clone(), ..self.clone() }
    }

    /// The tokens that may come next: token `i` may if bit `i % 32` of word `i / 32` is set.
    /// At the end of the grammar only tokens that end the answer may.
    pub fn mask(&mut self) -> Result<&[u32]> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => {
                let mut mask = self.matcher.compute_mask_or_eos().map_err(fault)?;
                if let Some((closers, marks)) = self.closing.as_ref().filter(|_| self.winds_down) {
                    let matcher = &mut self.matcher;
                    let mut fits =
                        |ids: &[u32]| matcher.validate_tokens(ids).is_ok_and(|n| n == ids.len());
                    closers.narrow(marks, &mut mask, &mut fits);
                }
                mask
            }
        };
        Ok(self.mask.insert(mask).as_slice())
    }

    /// There is little room left: from now on, JSON and calls are closed as soon as can be. Text may
    /// go on, since it may be cut anywhere.
    pub fn wind_down(&mut self) {
        if !self.winds_down {
            self.winds_down = true;
            self.mask = None;
        }
    }

    /// Takes the token that came.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        self.mask = None;
        self.matcher.consume_token(id).map_err(fault)
    }

    /// Whether nothing but the end may come.
    pub fn is_done(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Whether the end may come.
    pub fn may_end(&mut self) -> Result<bool> {
        Ok(self.is_done() || self.matcher.is_accepting().map_err(fault)?)
    }
}

impl TokenConstraint for Constraint {
    /// A grammar that can't be followed any further allows nothing.
    fn mask(&mut self) -> Option<&[u32]> {
        Some(Constraint::mask(self).unwrap_or_default())
    }

    fn wind_down(&mut self) {
        Constraint::wind_down(self);
    }

    fn accept(&mut self, token: u32) {
        // What goes wrong here shows in the next mask.
        let _ = Constraint::accept(self, token);
    }

    fn is_done(&self) -> bool {
        Constraint::is_done(self)
    }

    fn copy(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
