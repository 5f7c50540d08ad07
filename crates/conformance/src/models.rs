//! Small random decoders, built by hand from ops.

use std::sync::Arc;

pub(crate) fn all() -> Vec<(Arc<lapidary_program::Program>, Vec<i32>)> {
    vec![]
}
