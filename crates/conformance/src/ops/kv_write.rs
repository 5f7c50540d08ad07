//! With a window of 1 and as many heads as KV heads, attention gives back the value that was
//! written at the token's own place, whatever the keys are.

use super::attention::{Scenario, case, prefill, scenario, spec};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let mut all: Vec<Scenario> = Vec::new();
    for (heads, head_dim) in [(1, 1), (1, 8), (3, 20), (2, 256), (7, 33)] {
        let calls = vec![prefill(0, 0..33), prefill(1, 0..7), prefill(0, 33..60), prefill(1, 7..8)];
        let spec = spec(heads, heads, head_dim, Some(1));
        all.push(scenario(format!("{heads} heads of {head_dim}"), spec, calls));
    }
    all.into_iter().map(case).collect()
}
