//! Bytes before they are taken.

use std::fmt;

use lapidary_program::Program;

use crate::{Device, Error, LoadOptions, Result, Sizes};

/// Bytes that a loaded program takes, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights.
    pub weights: u64,
    /// KV caches of all slots.
    pub kv: u64,
    /// Activations and scratch of one call.
    pub activations: u64,
}

impl MemoryPlan {
    /// All parts together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.activations)
    }

    /// Bytes of all KV caches, `element_bytes` per number.
    pub fn kv_bytes(program: &Program, options: &LoadOptions, element_bytes: u64) -> u64 {
        program.states().iter().fold(0u64, |sum, s| {
            let positions = u64::from(s.capacity(options.max_context, options.max_chunk));
            let slots = u64::from(options.n_slots);
            let one = s.channels().saturating_mul(2).saturating_mul(element_bytes);
            sum.saturating_add(one.saturating_mul(positions).saturating_mul(slots))
        })
    }

    /// An upper bound of the activations of one call: the widest values of any method, times the
    /// number of values that are alive at once, plus the logits of `rows` rows.
    pub fn activation_bytes(program: &Program, options: &LoadOptions) -> u64 {
        let sizes = Sizes::planned(options);
        let wanted = program.methods().iter().filter(|(name, _)| options.wants(name));
        wanted.fold(0u64, |worst, (_, m)| {
            let mut last_use = vec![0usize; m.types().len()];
            let (firsts, _) = m.graph.first_outputs();
            for (i, node) in m.graph.nodes.iter().enumerate() {
                for id in &node.inputs {
                    last_use[id.index()] = i;
                }
            }
            for out in &m.graph.outputs {
                last_use[out.value.index()] = m.graph.nodes.len();
            }
            let bytes = |v: usize| {
                let t = &m.types()[v];
                let len = sizes.len_of(t) as u64;
                len.saturating_mul(t.channels() as u64).saturating_mul(4)
            };
            let mut alive: u64 = (0..m.graph.inputs.len()).map(bytes).sum();
            let mut peak = alive;
            for (i, node) in m.graph.nodes.iter().enumerate() {
                let first = firsts[i].index();
                let made = first..first + node.op.n_outputs();
                alive += made.clone().map(bytes).sum::<u64>();
                peak = peak.max(alive);
                let mut done: Vec<usize> = node
                    .inputs
                    .iter()
                    .map(|v| v.index())
                    .chain(made)
                    .filter(|v| last_use[*v] <= i)
                    .collect();
                done.sort_unstable();
                done.dedup();
                alive = alive.saturating_sub(done.into_iter().map(bytes).sum());
            }
            worst.max(peak)
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
    device: &Device,
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
        None if options.n_slots > 1 => "fewer slots".to_string(),
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
        let shorter = LoadOptions { max_context: n, ..options.clone() };
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
