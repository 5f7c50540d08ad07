//! What loading a model would take.

use std::fmt;
use std::sync::Arc;

use lapidary_backend::{CallLimits, DeviceInfo, KvType, MemoryPlan, Precision};

/// What loading a model would take, and what was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// The backend that was chosen.
    pub backend: &'static str,
    /// The device that was chosen.
    pub device: DeviceInfo,
    /// Why each better backend was passed over, if the choice was open.
    pub passed_over: Vec<String>,
    /// Positions of one sequence.
    pub context: u32,
    /// Positions that the model was made for.
    pub model_context: u32,
    /// Sequences that are answered at once.
    pub sequences: u32,
    /// Tokens that the pool of pages holds, of all sequences together.
    pub positions: u64,
    /// How much one call takes.
    pub limits: CallLimits,
    /// How activations meet quantised weights.
    pub precision: Precision,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// The methods that are loaded.
    pub methods: Vec<String>,
    /// Bytes, by part.
    pub memory: MemoryPlan,
    /// Why it can't be loaded, if it does not fit.
    pub(crate) shortage: Option<Arc<lapidary_backend::Error>>,
}

impl Plan {
    /// Whether the device can hold it, as far as the system tells.
    pub fn fits(&self) -> bool {
        self.shortage.is_none()
    }

    /// Why it does not fit, and what to do.
    pub fn shortage(&self) -> Option<String> {
        self.shortage.as_ref().map(ToString::to_string)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { model, device, memory, context, sequences, positions, .. } = self;
        writeln!(f, "{model} on {} ({})", device.id, device.name)?;
        for why in &self.passed_over {
            writeln!(f, "  passed over {why}")?;
        }
        writeln!(f, "  {memory}")?;
        write!(f, "  {sequences} sequences of {context} positions")?;
        if *positions < u64::from(*context) * u64::from(*sequences) {
            write!(f, ", {positions} of them at once")?;
        }
        writeln!(f, ", KV as {}", self.kv_type.name())?;
        let CallLimits { chunk, tokens, .. } = self.limits;
        write!(f, "  chunks of {chunk} tokens, calls of {tokens}")?;
        match &self.shortage {
            Some(shortage) => write!(f, "\n  does not fit: {shortage}"),
            None => Ok(()),
        }
    }
}
