//! What must hold for any program with a `forward` method.

use std::sync::Arc;

use lapidary_backend::{Backend, Engine, Error, Feed, KvType, LoadOptions, Outputs, Precision};
use lapidary_program::{Encoding, Op, Program, ValueType, input, method};
use lapidary_reference::ReferenceBackend;

use crate::case::{Data, compare, data, load};
use crate::report::{Outcome, Report};
use crate::tolerance::{FAST_MODEL, KV_BF16_MODEL, KV_INT8_MODEL, MODEL, ROUNDED_WAYS, WAYS};

type Checked = Result<(), String>;
type Property = fn(&Subject<'_>) -> Checked;

/// Runs every property.
///
/// How far the reference may be depends on what is rounded, [`Rounding::tolerance`].
pub(crate) fn check(
    backend: &dyn Backend,
    program: &Arc<Program>,
    tokens: &[i32],
    apart: Apart,
) -> Report {
    let mut roundings = vec![Rounding { precision: Precision::Exact, kv: None }];
    if program.weights().values().any(|w| matches!(w.encoding, Encoding::Quant(_))) {
        roundings.push(Rounding { precision: Precision::Fast, kv: None });
    }
    // The reference does not round.
    if !program.states().is_empty() && backend.name() != ReferenceBackend.name() {
        let kinds = [KvType::Bf16, KvType::Int8];
        roundings.extend(kinds.map(|kv| Rounding { precision: Precision::Exact, kv: Some(kv) }));
    }
    let all = roundings.into_iter();
    all.flat_map(|rounding| check_as(backend, program, tokens, (apart, rounding))).collect()
}

/// How far two ways to compute the same may be apart.
#[derive(Clone, Copy)]
pub(crate) struct Apart {
    /// Where nothing is rounded.
    plain: f64,
    /// Where activations or caches are.
    rounded: f64,
    /// Whether a trace shows the bits that a run makes.
    exact_trace: bool,
}

impl Apart {
    /// A backend that gives equal bits however a prompt is cut, batched or threaded.
    pub(crate) const NEVER: Self = Apart { plain: 0.0, rounded: 0.0, exact_trace: true };
    /// A backend whose sums depend on nothing but a chunk's length.
    pub(crate) const A_LITTLE: Self = Apart { plain: MODEL, rounded: MODEL, exact_trace: true };
    /// A backend that has other kernels for few tokens than for many, and that fuses ops.
    pub(crate) const BY_ORDER: Self =
        Apart { plain: WAYS, rounded: ROUNDED_WAYS, exact_trace: false };

    fn tolerance(self, rounding: Rounding) -> f64 {
        if rounding.tolerance() > MODEL { self.rounded } else { self.plain }
    }
}

/// What an engine may round.
#[derive(Clone, Copy)]
struct Rounding {
    precision: Precision,
    /// `None` for what suits the precision.
    kv: Option<KvType>,
}

impl Rounding {
    /// How far logits may be from the reference's.
    fn tolerance(self) -> f64 {
        match (self.precision, self.kv) {
            (Precision::Fast, _) => FAST_MODEL,
            (Precision::Exact, None | Some(KvType::F32)) => MODEL,
            (Precision::Exact, Some(KvType::Bf16)) => KV_BF16_MODEL,
            (Precision::Exact, Some(KvType::Int8)) => KV_INT8_MODEL,
        }
    }
}

impl std::fmt::Display for Rounding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "properties, {:?}", self.precision)?;
        self.kv.map_or(Ok(()), |kv| write!(f, ", KV {}", kv.name()))
    }
}

fn check_as(
    backend: &dyn Backend,
    program: &Arc<Program>,
    tokens: &[i32],
    (apart, rounding): (Apart, Rounding),
) -> Vec<Outcome> {
    let subject = match Subject::new(backend, program, tokens, (apart, rounding)) {
        Ok(subject) => subject,
        Err(e) => {
            let name = format!("{rounding}/one-shot prefill");
            return vec![Outcome { name, failure: Some(e) }];
        }
    };
    let properties: [(&str, Property); 11] = [
        ("agrees with the reference", agrees_with_reference),
        ("chunked prefill equals one-shot prefill", chunked_prefill),
        ("decode equals prefill", decode),
        ("two interleaved slots equal two runs", interleaved_slots),
        ("a prompt can be rewound", rewound),
        ("threads change nothing", threads),
        ("only asked rows are computed", asked_rows),
        ("outputs keep their storage", output_storage),
        ("trace shows what run computes", trace),
        ("bad feeds are refused", bad_feeds),
        ("a plan is made without loading", plan),
    ];
    let outcome = |(name, property): (&str, Property)| Outcome {
        name: format!("{rounding}/{name}"),
        failure: property(&subject).err(),
    };
    properties.into_iter().map(outcome).collect()
}

/// A program on a backend, with the logits of every token in one chunk.
struct Subject<'a> {
    backend: &'a dyn Backend,
    program: Arc<Program>,
    tokens: &'a [i32],
    one_shot: Vec<f64>,
    vocab: usize,
    /// How far two ways to compute the same may be apart.
    tolerance: f64,
    exact_trace: bool,
    rounding: Rounding,
}

impl<'a> Subject<'a> {
    fn new(
        backend: &'a dyn Backend,
        program: &Arc<Program>,
        tokens: &'a [i32],
        (apart, rounding): (Apart, Rounding),
    ) -> Result<Self, String> {
        let vocab = program.metadata().vocab_size as usize;
        let (program, one_shot) = (program.clone(), vec![]);
        let (tolerance, exact_trace) = (apart.tolerance(rounding), apart.exact_trace);
        let mut subject =
            Subject { backend, program, tokens, one_shot, vocab, tolerance, exact_trace, rounding };
        let mut engine = subject.load(subject.largest_chunk(), 1)?;
        subject.one_shot = wide(&subject.in_chunks(&mut *engine, subject.largest_chunk())?);
        if let Some(i) = subject.one_shot.iter().position(|x| !x.is_finite()) {
            return Err(format!("logit {i} is {}", subject.one_shot[i]));
        }
        Ok(subject)
    }

    /// The whole prompt, if the method allows.
    fn largest_chunk(&self) -> usize {
        let allowed = self.program.methods()[method::FORWARD].max_chunk as usize;
        self.tokens.len().min(allowed)
    }

    fn options(&self, max_chunk: usize, n_slots: u32) -> LoadOptions {
        let max_context = self.tokens.len() as u32;
        LoadOptions {
            max_context,
            max_chunk: max_chunk as u32,
            n_slots,
            threads: Some(2),
            precision: self.rounding.precision,
            kv: self.rounding.kv,
            ..LoadOptions::default()
        }
    }

    fn load(&self, max_chunk: usize, n_slots: u32) -> Result<Box<dyn Engine>, String> {
        load(self.backend, &self.program, &self.options(max_chunk, n_slots))
    }

    /// Logits of every token of the prompt, fed in chunks to slot 0.
    fn in_chunks(&self, engine: &mut dyn Engine, chunk: usize) -> Result<Vec<f32>, String> {
        self.feed_in_chunks(engine, self.tokens, chunk)
    }

    fn feed_in_chunks(
        &self,
        engine: &mut dyn Engine,
        tokens: &[i32],
        chunk: usize,
    ) -> Result<Vec<f32>, String> {
        let mut logits = Vec::new();
        for start in (0..tokens.len()).step_by(chunk) {
            let end = (start + chunk).min(tokens.len());
            let call = Call::of(tokens, 0, start..end);
            logits.extend(self.run(engine, &call)?);
        }
        Ok(logits)
    }

    /// Logits of every token of one call.
    fn run(&self, engine: &mut dyn Engine, call: &Call) -> Result<Vec<f32>, String> {
        let mut outputs = Outputs::default();
        self.run_into(engine, call, &mut outputs)?;
        Ok(data(&outputs, "logits")?.to_vec())
    }

    fn run_into(
        &self,
        engine: &mut dyn Engine,
        call: &Call,
        outputs: &mut Outputs,
    ) -> Result<(), String> {
        let feeds = call.feeds(&self.program)?;
        let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
        engine.run(method::FORWARD, &feeds, outputs).map_err(|e| e.to_string())
    }

    /// The one-shot logits of some tokens.
    fn truth(&self, tokens: std::ops::Range<usize>) -> &[f64] {
        &self.one_shot[tokens.start * self.vocab..tokens.end * self.vocab]
    }
}

/// The tokens of one call.
#[derive(Clone, Default)]
struct Call {
    tokens: Vec<i32>,
    slots: Vec<i32>,
    positions: Vec<i32>,
    rows: Vec<i32>,
}

impl Call {
    /// Part of a prompt, all rows asked for.
    fn of(prompt: &[i32], slot: i32, part: std::ops::Range<usize>) -> Self {
        let mut call = Call::default();
        for i in part {
            call.push(prompt[i], slot, i);
        }
        call
    }

    fn push(&mut self, token: i32, slot: i32, position: usize) {
        self.rows.push(self.tokens.len() as i32);
        self.tokens.push(token);
        self.slots.push(slot);
        self.positions.push(position as i32);
    }

    /// What `forward` takes, as plain text: no soft tokens, no horizon beyond the token.
    fn feeds(&self, program: &Program) -> Result<Vec<(String, Data)>, String> {
        let inputs = &program.methods()[method::FORWARD].graph.inputs;
        let feed = |i: &lapidary_program::Input| {
            let data = match (i.name.as_str(), &i.value_type) {
                (input::TOKENS, _) => Data::I32(self.tokens.clone()),
                (input::SLOTS, _) => Data::I32(self.slots.clone()),
                (input::POSITIONS, _) | (input::HORIZONS, _) => Data::I32(self.positions.clone()),
                (input::ROWS, _) => Data::I32(self.rows.clone()),
                (input::SOFT_INDEX, _) => Data::I32(vec![-1; self.tokens.len()]),
                (input::SOFT, ValueType::F32(_)) => Data::F32(vec![]),
                (other, _) => return Err(format!("the suite does not know input `{other}`")),
            };
            Ok((i.name.clone(), data))
        };
        inputs.iter().map(feed).collect()
    }
}

fn agrees_with_reference(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk();
    let mut oracle = load(&ReferenceBackend, &s.program, &s.options(chunk, 1))?;
    let truth = s.in_chunks(&mut *oracle, chunk)?;
    let got: Vec<f32> = s.one_shot.iter().map(|x| *x as f32).collect();
    compare(&got, &wide(&truth), s.rounding.tolerance())
}

fn chunked_prefill(s: &Subject<'_>) -> Checked {
    // The engine is made for the chunk, so that rings are as short as they may be and wrap.
    for chunk in [2, 3, 5, 7, 16, 33] {
        let chunk = chunk.min(s.largest_chunk());
        let mut engine = s.load(chunk, 1)?;
        let logits = s.in_chunks(&mut *engine, chunk)?;
        compare(&logits, &s.one_shot, s.tolerance)
            .map_err(|e| format!("chunks of {chunk}: {e}"))?;
    }
    Ok(())
}

fn decode(s: &Subject<'_>) -> Checked {
    let mut engine = s.load(1, 1)?;
    let logits = s.in_chunks(&mut *engine, 1)?;
    compare(&logits, &s.one_shot, s.tolerance).map_err(|e| format!("from the first token: {e}"))?;
    // A prefill of half the prompt, then token by token, in an engine made for both.
    let half = (s.tokens.len() / 2).clamp(1, s.largest_chunk());
    let mut engine = s.load(half, 1)?;
    s.run(&mut *engine, &Call::of(s.tokens, 0, 0..half))?;
    for i in half..s.tokens.len() {
        let logits = s.run(&mut *engine, &Call::of(s.tokens, 0, i..i + 1))?;
        compare(&logits, s.truth(i..i + 1), s.tolerance).map_err(|e| format!("token {i}: {e}"))?;
    }
    Ok(())
}

fn interleaved_slots(s: &Subject<'_>) -> Checked {
    // The second conversation is the prompt backwards.
    let backwards: Vec<i32> = s.tokens.iter().rev().copied().collect();
    let mut engine = s.load(s.largest_chunk(), 1)?;
    let other = wide(&s.feed_in_chunks(&mut *engine, &backwards, s.largest_chunk())?);
    let chunk = 6.min(s.largest_chunk());
    if chunk < 2 {
        return Ok(());
    }
    let mut engine = s.load(chunk, 3)?;
    let (n, vocab) = (s.tokens.len(), s.vocab);
    for start in (0..n).step_by(chunk / 2) {
        let mut call = Call::default();
        let end = (start + chunk / 2).min(n);
        let both = s.tokens.iter().zip(&backwards).enumerate();
        for (i, (token, other)) in both.take(end).skip(start) {
            call.push(*token, 2, i);
            call.push(*other, 0, i);
        }
        let logits = s.run(&mut *engine, &call)?;
        for (row, logits) in logits.chunks(vocab).enumerate() {
            let i = start + row / 2;
            let truth = if row % 2 == 0 { &s.one_shot } else { &other };
            compare(logits, &truth[i * vocab..(i + 1) * vocab], s.tolerance)
                .map_err(|e| format!("slot {}, token {i}: {e}", 2 - row % 2 * 2))?;
        }
    }
    Ok(())
}

fn rewound(s: &Subject<'_>) -> Checked {
    let chunk = 8.min(s.largest_chunk());
    let mut engine = s.load(chunk, 1)?;
    let mut at = 0;
    // Each round feeds a chunk of wrong tokens, goes back as far as a ring remembers, and feeds
    // the right ones.
    while at < s.tokens.len() {
        let end = (at + chunk).min(s.tokens.len());
        let wrong: Vec<i32> = s.tokens.iter().map(|t| (t + 1) % s.vocab as i32).collect();
        s.run(&mut *engine, &Call::of(&wrong, 0, at..end))?;
        let logits = s.run(&mut *engine, &Call::of(s.tokens, 0, at..end))?;
        compare(&logits, s.truth(at..end), s.tolerance)
            .map_err(|e| format!("from token {at}: {e}"))?;
        at = end;
    }
    Ok(())
}

fn threads(s: &Subject<'_>) -> Checked {
    for threads in [Some(1), Some(3), None] {
        let chunk = s.largest_chunk();
        let options = LoadOptions { threads, ..s.options(chunk, 1) };
        let mut engine = load(s.backend, &s.program, &options)?;
        let logits = s.in_chunks(&mut *engine, chunk)?;
        compare(&logits, &s.one_shot, s.tolerance)
            .map_err(|e| format!("{threads:?} threads: {e}"))?;
    }
    Ok(())
}

fn asked_rows(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk();
    let mut engine = s.load(chunk, 1)?;
    let mut call = Call::of(s.tokens, 0, 0..chunk);
    let last = chunk as i32 - 1;
    for rows in [vec![last], vec![], vec![last, 0], vec![0, last / 2, last]] {
        call.rows = rows.clone();
        let logits = s.run(&mut *engine, &call)?;
        let truth: Vec<f64> = rows
            .iter()
            .flat_map(|row| s.truth(*row as usize..*row as usize + 1))
            .copied()
            .collect();
        compare(&logits, &truth, s.tolerance).map_err(|e| format!("rows {rows:?}: {e}"))?;
    }
    Ok(())
}

fn output_storage(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk().min(5);
    let mut engine = s.load(chunk, 1)?;
    let mut outputs = Outputs::default();
    s.run_into(&mut *engine, &Call::of(s.tokens, 0, 0..chunk), &mut outputs)?;
    let before = data(&outputs, "logits")?.as_ptr();
    for i in 0..chunk {
        s.run_into(&mut *engine, &Call::of(s.tokens, 0, i..i + 1), &mut outputs)?;
        let logits = data(&outputs, "logits")?;
        compare(logits, s.truth(i..i + 1), s.tolerance).map_err(|e| format!("token {i}: {e}"))?;
        if logits.as_ptr() != before {
            return Err(format!("token {i}: the storage of `logits` was not reused"));
        }
    }
    Ok(())
}

fn trace(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk();
    let mut engine = s.load(chunk, 1)?;
    let call = Call::of(s.tokens, 0, 0..chunk);
    let logits = s.run(&mut *engine, &call)?;
    let feeds = call.feeds(&s.program)?;
    let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
    let mut seen: Vec<(usize, Vec<f32>)> = Vec::new();
    engine
        .trace(method::FORWARD, &feeds, &mut |node, data| seen.push((node, data.to_vec())))
        .map_err(|e| e.to_string())?;
    let graph = &s.program.methods()[method::FORWARD].graph;
    let makes_f32 = |node: &lapidary_program::Node| !matches!(node.op, Op::KvWrite { .. });
    let wanted: Vec<usize> =
        (0..graph.nodes.len()).filter(|i| makes_f32(&graph.nodes[*i])).collect();
    let shown: Vec<usize> = seen.iter().map(|(node, _)| *node).collect();
    if shown != wanted {
        return Err(format!("shows the values of nodes {shown:?}, not {wanted:?}"));
    }
    let output = graph.outputs.iter().find(|o| o.name == "logits").ok_or("no logits")?;
    let (firsts, _) = graph.first_outputs();
    let node = firsts.iter().rposition(|first| *first <= output.value).ok_or("no node")?;
    let (_, last) = seen.iter().find(|(n, _)| *n == node).ok_or("logits are not shown")?;
    if s.exact_trace && *last != logits {
        return Err("the logits that it shows are not those of `run`".into());
    }
    compare(last, &wide(&logits), s.tolerance)
}

fn bad_feeds(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk().min(4);
    let mut engine = s.load(chunk, 2)?;
    let good = Call::of(s.tokens, 0, 0..chunk);
    let spoil = |f: &dyn Fn(&mut Call)| {
        let mut call = good.clone();
        f(&mut call);
        call
    };
    let context = s.tokens.len() as i32;
    let bad = [
        ("a token outside the vocabulary", spoil(&|c| c.tokens[0] = s.vocab as i32)),
        ("a negative token", spoil(&|c| c.tokens[0] = -1)),
        ("a slot that is not there", spoil(&|c| c.slots[0] = 2)),
        ("a negative slot", spoil(&|c| c.slots[0] = -1)),
        ("a position outside the context", spoil(&|c| c.positions[chunk - 1] = context)),
        ("a negative position", spoil(&|c| c.positions[0] = -1)),
        ("a row that is not there", spoil(&|c| c.rows[0] = chunk as i32)),
        ("no tokens", Call::default()),
        ("fewer slots than tokens", spoil(&|c| c.slots.truncate(chunk - 1))),
        ("a hole in the positions", spoil(&|c| c.positions[chunk - 1] += 1)),
    ];
    for (what, call) in &bad {
        // With one token there is no hole to make.
        if chunk == 1 && *what == "a hole in the positions" {
            continue;
        }
        let feeds = call.feeds(&s.program)?;
        expect_refusal(&mut *engine, method::FORWARD, &feeds, what)?;
    }
    if s.tokens.len() > chunk {
        let feeds = Call::of(s.tokens, 0, 0..chunk.max(2) + 1).feeds(&s.program)?;
        expect_refusal(&mut *engine, method::FORWARD, &feeds, "more tokens than a chunk")?;
    }
    if s.tokens.len() > 1 {
        // More slots than tokens of a chunk: a batch may be long, one slot's share of it not.
        let mut narrow = s.load(1, 3)?;
        let feeds = Call::of(s.tokens, 0, 0..2).feeds(&s.program)?;
        expect_refusal(&mut *narrow, method::FORWARD, &feeds, "a slot with more than a chunk")?;
    }
    let feeds = good.feeds(&s.program)?;
    expect_refusal(&mut *engine, method::FORWARD, &feeds[1..], "a missing input")?;
    let mut wrong = feeds.clone();
    wrong[0].1 = Data::F32(vec![0.0; chunk]);
    expect_refusal(&mut *engine, method::FORWARD, &wrong, "an input of the wrong type")?;
    expect_refusal(&mut *engine, "no such method", &feeds, "an unknown method")?;
    // And nothing of this has harmed the engine.
    let logits = s.run(&mut *engine, &good)?;
    compare(&logits, s.truth(0..chunk), s.tolerance).map_err(|e| format!("afterwards: {e}"))
}

fn expect_refusal(
    engine: &mut dyn Engine,
    method: &str,
    feeds: &[(String, Data)],
    what: &str,
) -> Checked {
    let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
    match engine.run(method, &feeds, &mut Outputs::default()) {
        Err(Error::Feed { .. } | Error::Program(_)) => Ok(()),
        Err(e) => Err(format!("{what}: the error is of the wrong kind: {e}")),
        Ok(()) => Err(format!("{what}: it was accepted")),
    }
}

fn plan(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk();
    let plan =
        |n_slots| s.backend.plan(&s.program, &s.options(chunk, n_slots)).map_err(|e| e.to_string());
    let (one, four) = (plan(1)?, plan(4)?);
    if s.program.states().is_empty() || four.kv == 4 * one.kv && one.kv > 0 {
        Ok(())
    } else {
        Err(format!("one slot takes {} bytes of KV, four take {}", one.kv, four.kv))
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}
