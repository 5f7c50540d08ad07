//! Bytes before they are taken.

use std::fmt;

use lapidary_program::Program;

use crate::{DeviceInfo, Error, LoadOptions, PAGE, Result};

/// Bytes that a loaded program takes, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights.
    pub weights: u64,
    /// The pages of all KV caches.
    pub kv: u64,
    /// Activations and scratch of one call.
    pub activations: u64,
}

impl MemoryPlan {
    /// All parts together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.activations)
    }

    /// Bytes of all KV pages, `element_bytes` per number.
    pub fn kv_bytes(program: &Program, options: &LoadOptions, element_bytes: u64) -> u64 {
        let states = program.states();
        let groups = program.kv_groups().iter().enumerate();
        groups.fold(0u64, |sum, (g, group)| {
            let channels: u64 = group.states.iter().map(|s| states[*s].channels()).sum();
            let positions = options.pages_of(g) as u64 * PAGE as u64;
            let one = channels.saturating_mul(2).saturating_mul(element_bytes);
            sum.saturating_add(one.saturating_mul(positions))
        })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} for weights + {} KV + {} activations",
            Bytes(self.weights),
            Bytes(self.kv),
            Bytes(self.activations)
        )
    }
}

/// Refuses a plan that the device can't hold, with two remedies. To be called before `load`.
pub fn fit(
    plan: &MemoryPlan,
    program: &Program,
    device: &DeviceInfo,
    options: &LoadOptions,
) -> Result<()> {
    let Some(have) = device.available_bytes else { return Ok(()) };
    if plan.total() <= have {
        return Ok(());
    }
    let fixed = plan.weights.saturating_add(plan.activations);
    let context =
        if fixed < have { shorter_context(program, options, plan, have - fixed) } else { None };
    let first = match context {
        Some(n) => format!("--ctx {n}"),
        None if options.n_sequences > 1 => "fewer sequences at once".to_string(),
        None => "a smaller model".to_string(),
    };
    // Four bits help where weights are most of the need and are not so small already.
    let quantised = program.weight_bytes() < program.n_params();
    let weighs = plan.weights > plan.total() / 2;
    let second = if weighs && !quantised {
        "a 4-bit export of this model (`lapidary export --quant int4`)"
    } else {
        "a machine with more memory"
    };
    Err(Error::OutOfMemory(format!(
        "need {} ({plan} at ctx {}), {} has {} free; try {first} or {second}",
        Bytes(plan.total()),
        options.max_context,
        device.name,
        Bytes(have),
    )))
}

/// The largest round context whose KV fits in `room`.
fn shorter_context(
    program: &Program,
    options: &LoadOptions,
    plan: &MemoryPlan,
    room: u64,
) -> Option<u32> {
    let full = MemoryPlan::kv_bytes(program, options, 4).max(1);
    let mut n = options.max_context / 2;
    while n >= 256 {
        let pages = options.limits.pages(program, n, options.n_sequences);
        let shorter = LoadOptions { max_context: n, pages, ..options.clone() };
        let kv = MemoryPlan::kv_bytes(program, &shorter, 4);
        if (kv as f64) * (plan.kv as f64 / full as f64) <= room as f64 {
            return Some(n);
        }
        n /= 2;
    }
    None
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let x = self.0 as f64;
        match self.0 {
            0..0x400 => write!(f, "{} B", self.0),
            0x400..0x10_0000 => write!(f, "{:.1} KiB", x / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", x / 1024f64.powi(2)),
            _ => write!(f, "{:.1} GiB", x / 1024f64.powi(3)),
        }
    }
}
