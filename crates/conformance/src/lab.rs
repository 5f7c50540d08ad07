//! Makes programs of few ops with random weights, remembering what the weights are.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::{bf16, f16};
use lapidary_program::{
    DType, Description, Encoding, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    QuantLayout, Result, SamplingDefaults, ScaleFormat, StateDecl, Sym, ValueId, ValueType,
    WeightDecl,
};

use crate::random::Random;

/// The method of a one-op program.
pub(crate) const OP: &str = "op";
/// Its output.
pub(crate) const Y: &str = "y";

/// A program that is being made.
pub(crate) struct Lab {
    pub random: Random,
    weights: BTreeMap<String, WeightDecl>,
    store: MemoryStore,
    states: Vec<StateDecl>,
    methods: BTreeMap<String, Method>,
}

impl Lab {
    pub(crate) fn new(seed: u64) -> Self {
        Lab {
            random: Random::new(seed),
            weights: BTreeMap::new(),
            store: MemoryStore::new(),
            states: Vec::new(),
            methods: BTreeMap::new(),
        }
    }

    /// Adds a random weight and returns its numbers.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        encoding: Encoding,
        scale: f32,
    ) -> Vec<f64> {
        match encoding {
            Encoding::Dense(dtype) => {
                let values = self.random.normals(shape.iter().product(), scale);
                self.dense(name, shape, dtype, &values)
            }
            Encoding::Quant(q) => self.quantised(name, shape, q, scale),
        }
    }

    /// Adds a dense weight of the given numbers, rounded to `dtype`, and returns them.
    pub(crate) fn dense(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        values: &[f32],
    ) -> Vec<f64> {
        let (bytes, rounded) = encode(dtype, values);
        self.insert(name, WeightDecl::dense(lengths(shape), dtype), vec![(Part::Data, bytes)]);
        rounded.into_iter().map(f64::from).collect()
    }

    /// Adds a table of indices.
    pub(crate) fn indices(&mut self, name: &str, values: &[i64]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let decl = WeightDecl::dense([values.len() as u64], DType::I64);
        self.insert(name, decl, vec![(Part::Data, bytes)]);
    }

    fn insert(&mut self, name: &str, decl: WeightDecl, parts: Vec<(Part, Vec<u8>)>) {
        for (part, bytes) in parts {
            self.store.insert(name, part, bytes);
        }
        self.weights.insert(name.to_string(), decl);
    }

    fn quantised(&mut self, name: &str, shape: &[usize], q: QuantLayout, scale: f32) -> Vec<f64> {
        let cols = *shape.last().expect("a weight has lengths");
        let rows = shape.iter().product::<usize>() / cols;
        let group = q.group as usize;
        let codes: Vec<u8> =
            (0..rows * cols).map(|_| self.random.below(1 << q.bits) as u8).collect();
        let packed: Vec<u8> = codes.chunks(cols).flat_map(|row| pack(q.bits, row)).collect();
        let mut parts = vec![(Part::Data, packed)];
        let n = rows * cols / group;
        let step = scale * 4.0 / (1u32 << q.bits) as f32;
        let scales = self.factors(n, &q, [Part::Scale, Part::SuperScale], step, &mut parts);
        let biases = if q.affine {
            self.factors(n, &q, [Part::Bias, Part::SuperBias], -2.0 * scale, &mut parts)
        } else {
            vec![0.0; n]
        };
        self.insert(name, WeightDecl::quant(lengths(shape), q), parts);
        let value = |(k, code): (usize, &u8)| {
            let scaled = (f32::from(*code) - f32::from(q.offset)) * scales[k / group];
            f64::from(if q.affine { scaled + biases[k / group] } else { scaled })
        };
        codes.iter().enumerate().map(value).collect()
    }

    /// Scales or biases around `typical`, plain or nested.
    fn factors(
        &mut self,
        n: usize,
        q: &QuantLayout,
        [part, super_part]: [Part; 2],
        typical: f32,
        parts: &mut Vec<(Part, Vec<u8>)>,
    ) -> Vec<f32> {
        let mut near = |typical: f32| typical * (1.0 + 0.3 * self.random.normal());
        match q.scale {
            ScaleFormat::Plain { dtype } => {
                let values: Vec<f32> = (0..n).map(|_| near(typical)).collect();
                let (bytes, rounded) = encode(dtype, &values);
                parts.push((part, bytes));
                rounded
            }
            ScaleFormat::Nested { per, sub, dtype } => {
                let per = per as usize;
                let supers: Vec<f32> = (0..n / per).map(|_| near(typical / 40.0)).collect();
                let (bytes, supers) = encode(dtype, &supers);
                parts.push((super_part, bytes));
                let low = if sub == DType::I8 { -20i32 } else { 0 };
                let subs: Vec<i32> = (0..n).map(|_| low + self.random.below(80) as i32).collect();
                parts.push((part, subs.iter().map(|s| *s as u8).collect()));
                subs.iter().enumerate().map(|(i, s)| *s as f32 * supers[i / per]).collect()
            }
        }
    }

    pub(crate) fn state(&mut self, name: &str, heads: usize, head_dim: usize, window: Option<u32>) {
        let (n_kv_heads, head_dim) = (heads as u32, head_dim as u32);
        self.states.push(StateDecl { name: name.to_string(), n_kv_heads, head_dim, window });
    }

    /// Adds a method.
    pub(crate) fn method(
        &mut self,
        name: &str,
        max_chunk: u32,
        build: impl FnOnce(&mut GraphBuilder<'_>) -> Result<()>,
    ) {
        let mut graph = GraphBuilder::new(&self.weights, &self.states);
        build(&mut graph).expect("the suite makes valid graphs");
        self.methods.insert(name.to_string(), Method::new(max_chunk, graph.finish()));
    }

    /// A program of one op with the given inputs; its values are the outputs `y`, or `y0`, `y1`.
    pub(crate) fn one_op(self, op: Op, inputs: &[(&str, ValueType)]) -> Arc<Program> {
        self.one_op_beside(op, inputs, &[])
    }

    /// The same with inputs that the op does not read.
    pub(crate) fn one_op_beside(
        mut self,
        op: Op,
        inputs: &[(&str, ValueType)],
        unread: &[(&str, ValueType)],
    ) -> Arc<Program> {
        self.method(OP, 1 << 16, |graph| {
            let ids: Vec<ValueId> =
                inputs.iter().map(|(name, t)| graph.input(name, t.clone())).collect();
            unread.iter().for_each(|(name, t)| _ = graph.input(name, t.clone()));
            let n = op.n_outputs();
            let first = graph.node("node", op, &ids)?;
            for i in 0..n {
                let name = if n == 1 { Y.to_string() } else { format!("{Y}{i}") };
                graph.output(&name, ValueId(first.0 + i as u32));
            }
            Ok(())
        });
        self.finish(1 << 20, 1 << 20)
    }

    pub(crate) fn finish(self, vocab_size: u32, max_context_len: u32) -> Arc<Program> {
        let metadata = Metadata {
            name: "conformance".into(),
            architecture: "random".into(),
            made_by: "the conformance suite".into(),
            vocab_size,
            max_context_len,
            bos_id: None,
            pad_id: None,
            eos_ids: vec![],
            suppress_ids: vec![],
            add_bos: false,
            sampling: SamplingDefaults::default(),
            media: Default::default(),
            answer: None,
        };
        let description = Description {
            metadata,
            states: self.states,
            methods: self.methods,
            weights: self.weights,
        };
        let program = Program::new(description, BTreeMap::new(), Arc::new(self.store));
        Arc::new(program.expect("the suite makes valid programs"))
    }
}

/// `[T, channels]`.
pub(crate) fn rows(channels: usize) -> ValueType {
    ValueType::rows(Sym::Tokens, channels as u64)
}

/// `[T]`.
pub(crate) fn indices() -> ValueType {
    ValueType::indices(Sym::Tokens)
}

/// Every encoding that a row of `cols` can have.
pub(crate) fn encodings(cols: usize) -> Vec<Encoding> {
    let mut all = vec![
        Encoding::Dense(DType::F32),
        Encoding::Dense(DType::F16),
        Encoding::Dense(DType::Bf16),
    ];
    let scales = [DType::Bf16, DType::F16, DType::F32];
    for bits in 2..=8u8 {
        for (i, group) in [16, 32, 64, cols].into_iter().enumerate() {
            if cols.is_multiple_of(group) && (group == cols || i < 3) {
                let dtype = scales[(usize::from(bits) + i) % 3];
                all.push(Encoding::Quant(QuantLayout::symmetric(bits, group as u32, dtype)));
                all.push(Encoding::Quant(QuantLayout::affine(bits, group as u32, dtype)));
            }
        }
    }
    // GGUF's K-quants, and a nested one with an odd number of groups.
    for (bits, group, per, sub, affine) in [
        (4, 32, 8, DType::U8, true),
        (5, 32, 8, DType::U8, true),
        (6, 16, 16, DType::I8, false),
        (3, 16, 3, DType::I8, false),
        (2, 16, 4, DType::U8, true),
    ] {
        if cols.is_multiple_of(group * per) {
            let scale = ScaleFormat::Nested { per: per as u32, sub, dtype: DType::F16 };
            let offset = if affine { 0 } else { 1 << (bits - 1) };
            all.push(Encoding::Quant(QuantLayout {
                bits,
                group: group as u32,
                offset,
                scale,
                affine,
            }));
        }
    }
    all
}

/// Numbers as stored, and what they then are.
fn encode(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        DType::F16 => {
            let halves: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
            (halves.iter().flat_map(|x| x.to_le_bytes()).collect(), to_f32(&halves))
        }
        DType::Bf16 => {
            let halves: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
            (halves.iter().flat_map(|x| x.to_le_bytes()).collect(), to_f32(&halves))
        }
        _ => (values.iter().flat_map(|x| x.to_le_bytes()).collect(), values.to_vec()),
    }
}

fn to_f32<T: Copy + Into<f32>>(values: &[T]) -> Vec<f32> {
    values.iter().map(|x| (*x).into()).collect()
}

/// Codes as a string of bits, low first.
fn pack(bits: u8, codes: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; (codes.len() * usize::from(bits)).div_ceil(8)];
    for (k, code) in codes.iter().enumerate() {
        for bit in 0..usize::from(bits) {
            let at = k * usize::from(bits) + bit;
            out[at / 8] |= (code >> bit & 1) << (at % 8);
        }
    }
    out
}

fn lengths(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|n| *n as u64).collect()
}
