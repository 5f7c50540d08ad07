//! A mock engine: deterministic logits, caches that are checked key by key, faults on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lapidary_backend::{Engine, Error, Feed, FeedData, LoadOptions, Outputs, Result, bind};
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, blob, input, method,
};

/// What the mock does wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The logits of the last asked row are not finite.
    Nan,
    /// The call fails.
    Error,
    /// The call panics.
    Panic,
}

/// What the engine was asked to do.
#[derive(Debug, Default)]
pub struct Log {
    /// Tokens of each call.
    pub calls: Vec<usize>,
    /// Rows of each call.
    pub rows: Vec<usize>,
    /// The fault of a call, by its number.
    pub faults: BTreeMap<usize, Fault>,
    /// Every `trace` call.
    pub traces: usize,
}

/// What a mock is made of.
#[derive(Clone, Debug)]
pub struct Mock {
    pub vocab_size: u32,
    pub windows: Vec<Option<u32>>,
    pub max_context_len: u32,
    pub method_chunk: u32,
    pub options: LoadOptions,
    pub eos_ids: Vec<u32>,
    pub suppress_ids: Vec<u32>,
    pub tokenizer: Option<&'static str>,
    pub template: Option<&'static str>,
    pub log: Arc<Mutex<Log>>,
}

/// The position and the token that a cell of a cache holds.
type Cell = Option<(usize, u32)>;

struct MockEngine {
    program: Arc<Program>,
    options: LoadOptions,
    /// `[state][slot][cell]`.
    caches: Vec<Vec<Vec<Cell>>>,
    /// `[slot][position]`: a flat cache, whether the program has one or not.
    flat: Vec<Vec<u32>>,
    log: Arc<Mutex<Log>>,
}

impl Default for Mock {
    fn default() -> Self {
        Mock {
            vocab_size: 48,
            windows: vec![Some(4), None],
            max_context_len: 64,
            method_chunk: 8,
            options: LoadOptions {
                max_context: 64,
                max_chunk: 8,
                n_slots: 1,
                threads: None,
                ..LoadOptions::default()
            },
            eos_ids: vec![],
            suppress_ids: vec![],
            tokenizer: None,
            template: None,
            log: Arc::default(),
        }
    }
}

impl Mock {
    pub fn engine(&self) -> Box<dyn Engine> {
        let program = Arc::new(self.program());
        let o = &self.options;
        let slots = o.n_slots as usize;
        let cells = |s: &StateDecl| {
            vec![vec![None; s.capacity(o.max_context, o.max_chunk) as usize]; slots]
        };
        Box::new(MockEngine {
            caches: program.states().iter().map(cells).collect(),
            flat: vec![vec![0; o.max_context as usize]; slots],
            program,
            options: self.options.clone(),
            log: self.log.clone(),
        })
    }

    /// The token that the model would take after these.
    pub fn greedy(&self, tokens: &[u32]) -> u32 {
        let row = row(hash(tokens), self.vocab_size as usize);
        let best = row.iter().fold(f32::MIN, |m, x| m.max(*x));
        row.iter().position(|x| *x == best).unwrap() as u32
    }

    fn program(&self) -> Program {
        let vocab = u64::from(self.vocab_size);
        let table = WeightDecl::dense([vocab, 4], DType::F32);
        let weights = BTreeMap::from([("table".to_string(), table)]);
        let states: Vec<StateDecl> = self
            .windows
            .iter()
            .enumerate()
            .map(|(i, window)| StateDecl {
                name: format!("kv.{i}"),
                n_kv_heads: 1,
                head_dim: 4,
                window: *window,
            })
            .collect();
        let mut g = GraphBuilder::new(&weights, &states);
        let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
        let slots = g.input(input::SLOTS, ValueType::indices(Sym::Tokens));
        let positions = g.input(input::POSITIONS, ValueType::indices(Sym::Tokens));
        let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
        let embed = Op::embed("table", 1.0);
        let mut x = g.node("embed", embed, &[tokens]).unwrap();
        for (i, s) in states.iter().enumerate() {
            let write = Op::KvWrite { state: s.name.clone() };
            g.node(format!("write.{i}"), write, &[x, x, slots, positions]).unwrap();
            let spec = AttentionSpec {
                n_heads: 1,
                n_kv_heads: 1,
                head_dim: 4,
                scale: 1.0,
                window: s.window,
                bidirectional: false,
            };
            let attend = Op::Attention { state: s.name.clone(), spec };
            x = g.node(format!("attend.{i}"), attend, &[x, slots, positions]).unwrap();
        }
        let x = g.node("rows", Op::GatherRows, &[x, rows]).unwrap();
        let head = Op::Linear { weight: "table".into(), bias: None };
        let logits = g.node("head", head, &[x]).unwrap();
        g.output("logits", logits);
        let forward = Method::new(self.method_chunk, g.finish());
        let metadata = Metadata {
            name: "mock".into(),
            architecture: "mock".into(),
            made_by: "tests".into(),
            vocab_size: self.vocab_size,
            max_context_len: self.max_context_len,
            bos_id: Some(2),
            pad_id: Some(0),
            eos_ids: self.eos_ids.clone(),
            suppress_ids: self.suppress_ids.clone(),
            add_bos: true,
            sampling: SamplingDefaults::default(),
            media: Default::default(),
        };
        let methods = BTreeMap::from([(method::FORWARD.to_string(), forward)]);
        let description = Description { metadata, states, methods, weights };
        let blobs = [(blob::TOKENIZER, self.tokenizer), (blob::CHAT_TEMPLATE, self.template)];
        let blobs = blobs
            .into_iter()
            .filter_map(|(name, text)| text.map(|t| (name.to_string(), t.as_bytes().into())))
            .collect();
        Program::new(description, blobs, Arc::new(MemoryStore::default())).unwrap()
    }
}

impl MockEngine {
    /// Writes the call's tokens, then checks that every query finds every key of its window.
    fn attend(&mut self, tokens: &[i32], slots: &[i32], positions: &[i32]) {
        for ((t, s), p) in tokens.iter().zip(slots).zip(positions) {
            let (t, s, p) = (*t as u32, *s as usize, *p as usize);
            self.flat[s][p] = t;
            for cache in &mut self.caches {
                let capacity = cache[s].len();
                cache[s][p % capacity] = Some((p, t));
            }
        }
        for (decl, cache) in self.program.states().iter().zip(&self.caches) {
            for (s, p) in slots.iter().zip(positions) {
                let (s, p) = (*s as usize, *p as usize);
                let window = decl.window.map_or(p + 1, |w| w as usize);
                let capacity = cache[s].len();
                for k in (p + 1).saturating_sub(window)..=p {
                    let held = cache[s][k % capacity];
                    assert_eq!(
                        held,
                        Some((k, self.flat[s][k])),
                        "{}: slot {s}, the query at {p} needs the key at {k}",
                        decl.name
                    );
                }
            }
        }
    }
}

impl Engine for MockEngine {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        "mock".into()
    }

    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        let program = self.program.clone();
        let (sizes, bound) = bind(&program, method, feeds, &self.options)?;
        let [tokens, slots, positions, rows] = bound.as_slice() else { panic!("four inputs") };
        let i32s = |d: &FeedData<'_>| match d {
            FeedData::I32(d) => d.to_vec(),
            FeedData::F32(_) => panic!("all inputs are indices"),
        };
        let (tokens, slots, positions) = (i32s(tokens), i32s(slots), i32s(positions));
        for s in 0..self.options.n_slots as i32 {
            let n = slots.iter().filter(|x| **x == s).count();
            let chunk = self.options.max_chunk.min(program.method(method)?.max_chunk) as usize;
            assert!(n <= chunk, "{n} tokens of slot {s} in one call");
        }
        let fault = {
            let mut log = self.log.lock().unwrap();
            let call = log.calls.len();
            log.calls.push(sizes.tokens);
            log.rows.push(sizes.rows);
            log.faults.get(&call).copied()
        };
        match fault {
            Some(Fault::Error) => return Err(Error::Device("unplugged".into())),
            Some(Fault::Panic) => panic!("mock panic"),
            Some(Fault::Nan) | None => {}
        }
        self.attend(&tokens, &slots, &positions);
        let vocab = program.metadata().vocab_size as usize;
        let out = outputs.prepare(0, "logits", sizes.rows, vocab);
        for (i, r) in i32s(rows).into_iter().enumerate() {
            let (slot, position) = (slots[r as usize] as usize, positions[r as usize] as usize);
            let h = hash(&self.flat[slot][..=position]);
            out[i * vocab..(i + 1) * vocab].copy_from_slice(&row(h, vocab));
        }
        if fault == Some(Fault::Nan) && sizes.rows > 0 {
            out[(sizes.rows - 1) * vocab + 7] = f32::NAN;
        }
        outputs.truncate(1);
        Ok(())
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        bind(&self.program, method, feeds, &self.options)?;
        self.log.lock().unwrap().traces += 1;
        sink(0, &[1.0; 4]);
        sink(2, &[1.0, f32::INFINITY]);
        sink(4, &[f32::NAN]);
        Ok(())
    }
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0x9E37_79B9_7F4A_7C15, |h, t| mix(h ^ u64::from(*t)))
}

fn row(h: u64, vocab: usize) -> Vec<f32> {
    (0..vocab).map(|v| (mix(h ^ mix(v as u64)) >> 40) as f32 / (1u32 << 21) as f32 - 4.0).collect()
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
