//! What a compiled method is made of.

use lapidary_backend::Sizes;
use lapidary_backend_kit::{Buffers, Purposes};
use lapidary_program::{Activation, AttentionSpec, Dim, LocalAttentionSpec};

use crate::ops::embed::Picked;
use crate::ops::self_attention::Heads;
use crate::weights::{MatrixId, OrderingId, TableId, VectorId};

/// One entry point.
pub(crate) struct CompiledMethod {
    pub steps: Vec<Step>,
    /// By graph output: its name and where it is.
    pub outputs: Vec<(String, Value)>,
}

/// One op with its operands.
pub(crate) struct Step {
    /// The node that it does, unless it is an extra.
    pub node: Option<usize>,
    /// Calls that want nothing of this leave it out.
    pub purposes: Purposes,
    pub op: StepOp,
    pub inputs: Vec<Value>,
    pub outputs: Vec<Value>,
    /// Whether the output is where the first input was.
    pub in_place: bool,
}

/// Where a value is, and its lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub place: Place,
    pub rows: Dim,
    pub channels: usize,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// What the caller feeds.
    Feed(usize),
    /// A buffer of activations.
    Floats(usize),
    /// A buffer of indices.
    Ids(usize),
}

/// An op with its weights and caches resolved.
pub(crate) enum StepOp {
    Embed {
        table: TableId,
        picked: Picked,
        soft_id: Option<usize>,
    },
    SoftMerge,
    Linear {
        matrix: MatrixId,
        bias: Option<VectorId>,
    },
    RmsNorm {
        weight: Option<VectorId>,
        eps: f32,
        offset: f32,
        width: usize,
    },
    LayerNorm {
        weight: VectorId,
        bias: Option<VectorId>,
        eps: f32,
    },
    /// The angles of one call's positions; not a node.
    RopeTable {
        frequencies: Vec<f32>,
    },
    /// Its last input is a rope table.
    Rope {
        head_dim: usize,
        pairs: usize,
    },
    /// The angles of both directions of one call; not a node.
    AxialRopeTable {
        frequencies: Vec<f32>,
    },
    /// Its last input is a table of both directions.
    AxialRope {
        head_dim: usize,
    },
    KvWrite {
        cache: usize,
    },
    Attention {
        cache: usize,
        spec: AttentionSpec,
    },
    SelfAttention(Heads),
    LocalAttention {
        spec: LocalAttentionSpec,
        factors: VectorId,
        by_distance: VectorId,
    },
    Conv2d {
        panels: VectorId,
        n_in: usize,
        n_out: usize,
        width: usize,
    },
    CausalConv1d {
        taps: VectorId,
    },
    PoolRows {
        size: usize,
    },
    GeluGate,
    SigmoidGate,
    Activate {
        function: Activation,
    },
    Clamp {
        low: VectorId,
        high: VectorId,
    },
    Standardise {
        bias: VectorId,
        scale: VectorId,
    },
    Add,
    Scale {
        factor: f32,
    },
    ScaleBy {
        weight: VectorId,
    },
    SoftCap {
        cap: f32,
    },
    Slice {
        start: usize,
        len: usize,
    },
    Concat,
    GatherRows,
    Router {
        matrix: MatrixId,
        expert_scale: VectorId,
        top_k: usize,
    },
    Experts {
        gate_up: MatrixId,
        down: MatrixId,
    },
    CentroidHead {
        centroids: MatrixId,
        ordering: OrderingId,
        embedding: TableId,
        top: usize,
    },
}

/// The buffers that all methods share.
pub(crate) struct RoomShape {
    /// What they are made for. They grow when a call is longer.
    pub planned: Sizes,
    /// Activations.
    pub floats: Buffers,
    /// Indices that a router makes.
    pub ids: Buffers,
    /// Scratch of one thread.
    pub per_thread: usize,
    /// Scratch of one call.
    pub per_call: usize,
    /// Bytes for the activations of quantised weights.
    pub activation_bytes: u64,
    /// Bytes for the activations of weights of `bf16`.
    pub rounded_bytes: u64,
}

impl RoomShape {
    /// No buffers yet.
    pub(crate) fn new(planned: Sizes) -> Self {
        let (floats, ids) = (Buffers::new(planned), Buffers::new(planned));
        let (per_thread, per_call, activation_bytes, rounded_bytes) = (0, 0, 0, 0);
        RoomShape { planned, floats, ids, per_thread, per_call, activation_bytes, rounded_bytes }
    }

    /// Bytes of all buffers with so many threads.
    pub(crate) fn size_bytes(&self, n_threads: usize) -> u64 {
        let buffers = self.floats.size_bytes(self.planned) + self.ids.size_bytes(self.planned);
        let scratch = (self.per_thread * n_threads + self.per_call) as u64 * 4;
        buffers + scratch + self.activation_bytes + self.rounded_bytes
    }
}

impl Value {
    /// Rows of this value in a call.
    pub(crate) fn n_rows(&self, sizes: Sizes) -> usize {
        sizes.len(self.rows)
    }

    /// Numbers of this value in a call.
    pub(crate) fn len(&self, sizes: Sizes) -> usize {
        self.n_rows(sizes) * self.channels
    }
}
