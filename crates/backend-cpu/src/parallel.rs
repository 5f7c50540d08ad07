//! Loops over activations that are shared among threads when they are long enough.
#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use lapidary_backend::Result;

use crate::matrix::Cpu;
use crate::shared::Shared;

/// Numbers that are worth a thread of their own.
const ITEM_LEN: usize = 1 << 13;

/// Calls `f(row, out_row)` for each row of `out`.
pub(crate) fn rows(
    cpu: Cpu<'_>,
    out: &mut [f32],
    channels: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    costly_rows(cpu, out, channels, channels, f);
}

/// The same, for rows that take as long as `cost` numbers.
fn costly_rows(
    cpu: Cpu<'_>,
    out: &mut [f32],
    channels: usize,
    cost: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    let n_rows = out.len() / channels;
    let per_item = ITEM_LEN.div_ceil(cost);
    let shared = Shared::new(out);
    cpu.run(n_rows.div_ceil(per_item), &|_, item| {
        for row in item * per_item..((item + 1) * per_item).min(n_rows) {
            // SAFETY: each row belongs to one item.
            f(row, unsafe { shared.slice(row * channels..(row + 1) * channels) });
        }
    });
}

/// The same, for rows that may fail; returns the first error that was met.
pub(crate) fn try_rows(
    cpu: Cpu<'_>,
    out: &mut [f32],
    channels: usize,
    cost: usize,
    f: impl Fn(usize, &mut [f32]) -> Result<()> + Sync,
) -> Result<()> {
    let failed = Mutex::new(None);
    costly_rows(cpu, out, channels, cost, |row, out| {
        if let Err(e) = f(row, out) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Calls `f(start, part)` for parts of `out` that together are all of it.
pub(crate) fn parts(cpu: Cpu<'_>, out: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    let len = out.len();
    let shared = Shared::new(out);
    cpu.run(len.div_ceil(ITEM_LEN), &|_, item| {
        let start = item * ITEM_LEN;
        // SAFETY: each part belongs to one item.
        f(start, unsafe { shared.slice(start..(start + ITEM_LEN).min(len)) });
    });
}
