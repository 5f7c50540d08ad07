//! What must hold for any program with a `forward` method.

use std::sync::{Arc, OnceLock};

use lapidary_backend::{
    Backend, Call as BackendCall, Draw, DrawRule, Engine, Error, Feed, FeedData, KvType,
    LoadOptions, PageId, Precision, Results, Ticket, TicketRows, TopK, Want, Wanted,
};
use lapidary_program::{Encoding, Op, Program, ValueType, input, method, output};
use lapidary_reference::ReferenceBackend;

use crate::case::{Data, compare, data, open, run_whole};
use crate::harness::Checked;
use crate::paging::{Paged, Place, Placed, limits, with_pages};
use crate::tolerance::{Class, FAST_MODEL, KV_BF16_MODEL, KV_INT8_MODEL, MODEL};

pub(crate) type Property = fn(&Subject<'_>) -> Checked;

/// A program with a prompt, on a backend, in one way to round.
pub(crate) struct Run {
    pub backend: &'static dyn Backend,
    pub program: Arc<Program>,
    pub tokens: Vec<i32>,
    pub class: Class,
    pub rounding: Rounding,
    /// Logits of every token in one chunk, made by the first property that asks.
    one_shot: OnceLock<Result<Vec<f64>, String>>,
}

/// The ways to round a program that a backend has, each to be tried with every property.
///
/// How far the reference may be depends on what is rounded, [`Rounding::tolerance`].
pub(crate) fn runs(
    backend: &'static dyn Backend,
    program: &Arc<Program>,
    tokens: &[i32],
    class: Class,
) -> Vec<Arc<Run>> {
    let mut roundings = vec![Rounding { precision: Precision::Exact, kv: None }];
    if program.weights().values().any(|w| matches!(w.encoding, Encoding::Quant(_))) {
        roundings.push(Rounding { precision: Precision::Fast, kv: None });
    }
    // The reference does not round.
    if !program.states().is_empty() && backend.name() != ReferenceBackend.name() {
        let kinds = [KvType::Bf16, KvType::Int8];
        roundings.extend(kinds.map(|kv| Rounding { precision: Precision::Exact, kv: Some(kv) }));
    }
    let run = |rounding| {
        let (program, tokens) = (program.clone(), tokens.to_vec());
        Arc::new(Run { backend, program, tokens, class, rounding, one_shot: OnceLock::new() })
    };
    roundings.into_iter().map(run).collect()
}

impl Run {
    /// Checks one property.
    pub(crate) fn check(&self, property: Property) -> Checked {
        let mut subject = self.subject();
        let one_shot = self.one_shot.get_or_init(|| subject.one_shot());
        subject.one_shot = one_shot.clone().map_err(|e| format!("one-shot prefill: {e}"))?;
        property(&subject)
    }

    /// The options of the whole prompt in one chunk.
    pub(crate) fn options(&self) -> LoadOptions {
        let subject = self.subject();
        subject.options(subject.largest_chunk(), 1)
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            backend: self.backend,
            program: self.program.clone(),
            tokens: &self.tokens,
            one_shot: Vec::new(),
            vocab: self.program.metadata().vocab_size as usize,
            tolerance: self.class.tolerance(self.rounding.tolerance() > MODEL),
            exact_trace: self.class.has_exact_trace(),
            rounding: self.rounding,
        }
    }
}

/// Chunks that a prompt is cut into, besides single tokens.
pub(crate) const CHUNKS: [usize; 6] = [2, 3, 5, 7, 16, 33];

/// What must hold.
pub(crate) const PROPERTIES: [(&str, Property); 13] = [
    ("agrees with the reference", agrees_with_reference),
    ("chunked prefill equals one-shot prefill", chunked_prefill),
    ("decode equals prefill", decode),
    ("two sequences side by side equal two runs", side_by_side),
    ("a prompt can be rewound", rewound),
    ("threads change nothing", threads),
    ("only asked rows are computed", asked_rows),
    ("results keep their storage", result_storage),
    ("trace shows what run computes", trace),
    ("bad feeds are refused", bad_feeds),
    ("a plan is made without loading", plan),
    ("pages can be copied, read and written", pages),
    ("wants say what comes back", wants),
];

/// What an engine may round.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
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
        f.write_str(if self.precision == Precision::Exact { "exact" } else { "fast" })?;
        self.kv.map_or(Ok(()), |kv| write!(f, ", KV {}", kv.name()))
    }
}

/// A program on a backend, with the logits of every token in one chunk.
pub(crate) struct Subject<'a> {
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

impl Subject<'_> {
    /// Logits of every token in one chunk.
    fn one_shot(&self) -> Result<Vec<f64>, String> {
        let mut engine = self.load(self.largest_chunk(), 1)?;
        let logits = wide(&self.in_chunks(&mut engine, self.largest_chunk())?);
        match logits.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(format!("logit {i} is {}", logits[i])),
            None => Ok(logits),
        }
    }

    /// The whole prompt, if the method allows.
    fn largest_chunk(&self) -> usize {
        let allowed = self.program.methods()[method::FORWARD].max_chunk as usize;
        self.tokens.len().min(allowed)
    }

    fn options(&self, max_chunk: usize, n_sequences: u32) -> LoadOptions {
        let max_context = self.tokens.len() as u32;
        LoadOptions {
            max_context,
            n_sequences,
            limits: limits(max_chunk, n_sequences),
            threads: Some(2),
            precision: self.rounding.precision,
            kv: self.rounding.kv,
            ..LoadOptions::default()
        }
    }

    fn load(&self, max_chunk: usize, n_sequences: u32) -> Result<Paged, String> {
        Paged::load(self.backend, &self.program, &self.options(max_chunk, n_sequences))
    }

    /// Logits of every token of the prompt, fed in chunks to sequence 0.
    fn in_chunks(&self, engine: &mut Paged, chunk: usize) -> Result<Vec<f32>, String> {
        self.feed_in_chunks(engine, self.tokens, chunk)
    }

    fn feed_in_chunks(
        &self,
        engine: &mut Paged,
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
    fn run(&self, engine: &mut Paged, call: &Call) -> Result<Vec<f32>, String> {
        let mut results = Results::default();
        self.run_into(engine, call, &mut results)?;
        Ok(data(&results, output::LOGITS)?.to_vec())
    }

    fn run_into(
        &self,
        engine: &mut Paged,
        call: &Call,
        results: &mut Results,
    ) -> Result<(), String> {
        let feeds = call.feeds(&self.program)?;
        let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
        engine.run(method::FORWARD, &feeds, &call.places, results)
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
    places: Vec<Place>,
    rows: Vec<i32>,
}

impl Call {
    /// Part of a prompt, all rows asked for.
    fn of(prompt: &[i32], sequence: i32, part: std::ops::Range<usize>) -> Self {
        let mut call = Call::default();
        for i in part {
            call.push(prompt[i], sequence, i);
        }
        call
    }

    fn push(&mut self, token: i32, sequence: i32, position: usize) {
        self.rows.push(self.tokens.len() as i32);
        self.tokens.push(token);
        self.places.push(Place::new(sequence, position as i32));
    }

    /// What `forward` takes, as plain text: no soft tokens, no horizon beyond the token.
    fn feeds(&self, program: &Program) -> Result<Vec<(String, Data)>, String> {
        let inputs = &program.methods()[method::FORWARD].graph.inputs;
        let feed = |i: &lapidary_program::Input| {
            let data = match (i.name.as_str(), &i.value_type) {
                (input::TOKENS, _) => Data::I32(self.tokens.clone()),
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
    let mut oracle = Paged::load(&ReferenceBackend, &s.program, &s.options(chunk, 1))?;
    let truth = s.in_chunks(&mut oracle, chunk)?;
    let got: Vec<f32> = s.one_shot.iter().map(|x| *x as f32).collect();
    compare(&got, &wide(&truth), s.rounding.tolerance())
}

fn chunked_prefill(s: &Subject<'_>) -> Checked {
    // The engine is made for the chunk, so that there are as few pages as may be.
    for chunk in CHUNKS {
        let chunk = chunk.min(s.largest_chunk());
        let mut engine = s.load(chunk, 1)?;
        let logits = s.in_chunks(&mut engine, chunk)?;
        compare(&logits, &s.one_shot, s.tolerance)
            .map_err(|e| format!("chunks of {chunk}: {e}"))?;
    }
    Ok(())
}

fn decode(s: &Subject<'_>) -> Checked {
    let mut engine = s.load(1, 1)?;
    let logits = s.in_chunks(&mut engine, 1)?;
    compare(&logits, &s.one_shot, s.tolerance).map_err(|e| format!("from the first token: {e}"))?;
    // A prefill of half the prompt, then token by token, in an engine made for both.
    let half = (s.tokens.len() / 2).clamp(1, s.largest_chunk());
    let mut engine = s.load(half, 1)?;
    s.run(&mut engine, &Call::of(s.tokens, 0, 0..half))?;
    for i in half..s.tokens.len() {
        let logits = s.run(&mut engine, &Call::of(s.tokens, 0, i..i + 1))?;
        compare(&logits, s.truth(i..i + 1), s.tolerance).map_err(|e| format!("token {i}: {e}"))?;
    }
    Ok(())
}

fn side_by_side(s: &Subject<'_>) -> Checked {
    // The second conversation is the prompt backwards.
    let backwards: Vec<i32> = s.tokens.iter().rev().copied().collect();
    let mut engine = s.load(s.largest_chunk(), 1)?;
    let other = wide(&s.feed_in_chunks(&mut engine, &backwards, s.largest_chunk())?);
    let chunk = 6.min(s.largest_chunk());
    if chunk < 2 {
        return Ok(());
    }
    let mut engine = s.load(chunk, 3)?;
    let (n, vocab, half) = (s.tokens.len(), s.vocab, chunk / 2);
    for start in (0..n).step_by(half) {
        let end = (start + half).min(n);
        let mut call = Call::of(s.tokens, 2, start..end);
        let second = Call::of(&backwards, 0, start..end);
        call.tokens.extend(&second.tokens);
        call.places.extend(&second.places);
        call.rows = (0..call.tokens.len() as i32).collect();
        let logits = s.run(&mut engine, &call)?;
        for (row, logits) in logits.chunks(vocab).enumerate() {
            let (len, first) = (end - start, row < end - start);
            let (i, truth) =
                if first { (start + row, &s.one_shot) } else { (start + row - len, &other) };
            compare(logits, &truth[i * vocab..(i + 1) * vocab], s.tolerance)
                .map_err(|e| format!("sequence {}, token {i}: {e}", if first { 2 } else { 0 }))?;
        }
    }
    Ok(())
}

fn rewound(s: &Subject<'_>) -> Checked {
    let chunk = 8.min(s.largest_chunk());
    let mut engine = s.load(chunk, 1)?;
    let mut at = 0;
    // Each round feeds a chunk of wrong tokens, goes back, and feeds the right ones.
    while at < s.tokens.len() {
        let end = (at + chunk).min(s.tokens.len());
        let wrong: Vec<i32> = s.tokens.iter().map(|t| (t + 1) % s.vocab as i32).collect();
        s.run(&mut engine, &Call::of(&wrong, 0, at..end))?;
        let logits = s.run(&mut engine, &Call::of(s.tokens, 0, at..end))?;
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
        let mut engine = Paged::load(s.backend, &s.program, &options)?;
        let logits = s.in_chunks(&mut engine, chunk)?;
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
        let logits = s.run(&mut engine, &call)?;
        let truth: Vec<f64> = rows
            .iter()
            .flat_map(|row| s.truth(*row as usize..*row as usize + 1))
            .copied()
            .collect();
        compare(&logits, &truth, s.tolerance).map_err(|e| format!("rows {rows:?}: {e}"))?;
    }
    Ok(())
}

fn result_storage(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk().min(5);
    let mut engine = s.load(chunk, 1)?;
    let mut results = Results::default();
    // An engine may hand out a few in turn, but makes no more of them after a while.
    let mut known = Vec::new();
    for round in 0..4 {
        s.run_into(&mut engine, &Call::of(s.tokens, 0, 0..chunk), &mut results)?;
        for i in 0..chunk {
            s.run_into(&mut engine, &Call::of(s.tokens, 0, i..i + 1), &mut results)?;
            let logits = data(&results, output::LOGITS)?;
            compare(logits, s.truth(i..i + 1), s.tolerance)
                .map_err(|e| format!("token {i}: {e}"))?;
            if round < 2 {
                known.push(logits.as_ptr());
            } else if !known.contains(&logits.as_ptr()) {
                return Err(format!("token {i}: the storage of `logits` was not reused"));
            }
        }
    }
    Ok(())
}

fn trace(s: &Subject<'_>) -> Checked {
    let chunk = s.largest_chunk();
    let mut engine = s.load(chunk, 1)?;
    let call = Call::of(s.tokens, 0, 0..chunk);
    let logits = s.run(&mut engine, &call)?;
    let feeds = call.feeds(&s.program)?;
    let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
    let mut seen: Vec<(usize, Vec<f32>)> = Vec::new();
    let placed = engine.paging.place(&call.places);
    let mut sink = |node: usize, data: &[f32]| seen.push((node, data.to_vec()));
    placed
        .with(|spans| {
            let (feeds, horizons) = (&feeds[..], &placed.horizons[..]);
            let call = BackendCall {
                method: method::FORWARD,
                feeds,
                spans,
                horizons,
                ..Default::default()
            };
            engine.engine.trace(&call, &mut sink)
        })
        .map_err(|e| e.to_string())?;
    let graph = &s.program.methods()[method::FORWARD].graph;
    let makes_f32 = |node: &lapidary_program::Node| !matches!(node.op, Op::KvWrite { .. });
    let wanted: Vec<usize> =
        (0..graph.nodes.len()).filter(|i| makes_f32(&graph.nodes[*i])).collect();
    let shown: Vec<usize> = seen.iter().map(|(node, _)| *node).collect();
    if shown != wanted {
        return Err(format!("shows the values of nodes {shown:?}, not {wanted:?}"));
    }
    let output = graph.outputs.iter().find(|o| o.name == output::LOGITS).ok_or("no logits")?;
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
    let placed = engine.paging.place(&good.places);
    let spoil = |f: &dyn Fn(&mut Call)| {
        let mut call = good.clone();
        f(&mut call);
        call
    };
    let bad = [
        ("a token outside the vocabulary", spoil(&|c| c.tokens[0] = s.vocab as i32)),
        ("a negative token", spoil(&|c| c.tokens[0] = -1)),
        ("a row that is not there", spoil(&|c| c.rows[0] = chunk as i32)),
        ("no tokens", Call::default()),
    ];
    for (what, call) in &bad {
        let feeds = call.feeds(&s.program)?;
        expect_refusal(&mut *engine.engine, method::FORWARD, (&feeds, &placed), what)?;
    }
    let feeds = good.feeds(&s.program)?;
    let misplaced = |f: &dyn Fn(&mut Placed)| {
        let mut placed = placed.clone();
        f(&mut placed);
        placed
    };
    let context = s.tokens.len() as u32;
    let mut misplaced = vec![
        ("a position outside the context", misplaced(&|p| p.spoil_start(context))),
        ("a position that overflows", misplaced(&|p| p.spoil_start(u32::MAX))),
        ("fewer places than tokens", misplaced(&|p| p.spoil_len(chunk as u32 - 1))),
        ("more places than tokens", misplaced(&|p| p.spoil_len(chunk as u32 + 1))),
        ("fewer horizons than tokens", misplaced(&|p| p.horizons.truncate(1))),
        ("a horizon outside the call", misplaced(&|p| p.horizons[0] = chunk as u32)),
        ("no spans", Placed::default()),
    ];
    if chunk == 1 {
        misplaced.retain(|(what, _)| *what != "fewer horizons than tokens");
    }
    if !s.program.states().is_empty() {
        let spoil_tables = |change: &dyn Fn(&mut Vec<PageId>)| {
            let mut placed = placed.clone();
            placed.spoil_tables(change);
            placed
        };
        misplaced.push(("a page that is not there", spoil_tables(&|p| p[0] = PageId(1 << 20))));
        misplaced.push(("no pages", spoil_tables(&|p| p.clear())));
    }
    for (what, placed) in &misplaced {
        expect_refusal(&mut *engine.engine, method::FORWARD, (&feeds, placed), what)?;
    }
    if s.tokens.len() > chunk {
        let long = Call::of(s.tokens, 0, 0..chunk + 1);
        let placed = engine.paging.clone().place(&long.places);
        let feeds = long.feeds(&s.program)?;
        let what = "a sequence with more than a chunk";
        expect_refusal(&mut *engine.engine, method::FORWARD, (&feeds, &placed), what)?;
    }
    if !s.program.states().is_empty() && chunk > 1 {
        // Two spans that write the same page.
        let twice = Call::of(s.tokens, 0, 0..1);
        let mut call = twice.clone();
        call.tokens.extend(&twice.tokens);
        call.places.extend(&twice.places);
        let placed = engine.paging.clone().place(&call.places);
        let feeds = call.feeds(&s.program)?;
        let what = "two spans of one sequence";
        expect_refusal(&mut *engine.engine, method::FORWARD, (&feeds, &placed), what)?;
    }
    let mut wrong = feeds.clone();
    wrong[0].1 = Data::F32(vec![0.0; chunk]);
    for (method, feeds, what) in [
        (method::FORWARD, &feeds[1..], "a missing input"),
        (method::FORWARD, &wrong[..], "an input of the wrong type"),
        ("no such method", &feeds[..], "an unknown method"),
    ] {
        expect_refusal(&mut *engine.engine, method, (feeds, &placed), what)?;
    }
    // And nothing of this has harmed the engine.
    let logits = s.run(&mut engine, &good)?;
    compare(&logits, s.truth(0..chunk), s.tolerance).map_err(|e| format!("afterwards: {e}"))
}

fn expect_refusal(
    engine: &mut dyn Engine,
    method: &str,
    (feeds, placed): (&[(String, Data)], &Placed),
    what: &str,
) -> Checked {
    let feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
    match run_whole(engine, method, &feeds, placed, &mut Results::default()) {
        Err(Error::Feed { .. } | Error::Program(_)) => Ok(()),
        Err(e) => Err(format!("{what}: the error is of the wrong kind: {e}")),
        Ok(()) => Err(format!("{what}: it was accepted")),
    }
}

fn plan(s: &Subject<'_>) -> Checked {
    let device = open(s.backend)?;
    let once = with_pages(&s.program, &s.options(s.largest_chunk(), 1));
    let pages = once.pages.iter().map(|n| 4 * n).collect();
    let four_times = LoadOptions { pages, ..once.clone() };
    let plan = |options| device.plan(&s.program, options).map_err(|e| e.to_string());
    let (one, four) = (plan(&once)?, plan(&four_times)?);
    if s.program.states().is_empty() || four.kv == 4 * one.kv && one.kv > 0 {
        Ok(())
    } else {
        Err(format!("pages take {} bytes of KV, four times as many take {}", one.kv, four.kv))
    }
}

/// A prompt whose pages are copied to others, and brought there as bytes, goes on as it did.
fn pages(s: &Subject<'_>) -> Checked {
    if s.program.states().is_empty() || s.tokens.len() < 4 {
        return Ok(());
    }
    let half = (s.tokens.len() / 2).min(s.largest_chunk());
    let next = half..half + 1;
    // Room for the same sequence three times.
    let mut engine = s.load(s.largest_chunk(), 3)?;
    s.run(&mut engine, &Call::of(s.tokens, 0, 0..half))?;
    let held = engine.paging.pages_of(0);
    for (copy, by_bytes) in [(1, false), (2, true)] {
        // The same windows, so the same number of pages: first those that the prompt had.
        let first = Call::of(s.tokens, copy, 0..half);
        engine.paging.place(&first.places);
        for (group, (from, to)) in held.iter().zip(engine.paging.pages_of(copy)).enumerate() {
            let pairs: Vec<(PageId, PageId)> = from.iter().copied().zip(to).collect();
            if !by_bytes {
                engine.engine.copy_pages(group, &pairs).map_err(|e| e.to_string())?;
                continue;
            }
            let mut bytes = Vec::new();
            for (from, to) in pairs {
                engine.engine.read_page(group, from, &mut bytes).map_err(|e| e.to_string())?;
                if bytes.len() != engine.engine.page_bytes(group) {
                    return Err(format!("a page of {} bytes", bytes.len()));
                }
                engine.engine.write_page(group, to, &bytes).map_err(|e| e.to_string())?;
                let short = &bytes[..bytes.len() - 1];
                if engine.engine.write_page(group, to, short).is_ok() {
                    return Err("a page that is cut short was written".into());
                }
            }
        }
        let logits = s.run(&mut engine, &Call::of(s.tokens, copy, next.clone()))?;
        compare(&logits, s.truth(next.clone()), s.tolerance)
            .map_err(|e| format!("{}: {e}", if by_bytes { "as bytes" } else { "copied" }))?;
    }
    Ok(())
}

/// Candidates are the largest logits, a mask leaves some out, a drawn token feeds the next call, and
/// what is skipped does not come back.
fn wants(s: &Subject<'_>) -> Checked {
    let n = s.largest_chunk().min(5);
    let mut engine = s.load(n, 1)?;
    let most = engine.engine.abilities().max_top_k;
    let k = 7.min(most).min(s.vocab);
    if k == 0 {
        return Ok(());
    }
    let call = Call::of(s.tokens, 0, 0..n);
    let whole = s.run(&mut engine, &call)?;
    let last = &whole[(n - 1) * s.vocab..];
    let mut mask = vec![u32::MAX; s.vocab.div_ceil(32)];
    let mut results = Results::default();
    let mut left: Vec<usize> = (0..s.vocab).collect();
    for round in 0..3 {
        let masks = vec![Some(&mask[..]); n];
        let masks = if round == 0 { &[][..] } else { &masks[..] };
        let top = TopK { k, masks, logsumexp: true };
        run_wanting(&mut engine, s, &call, Want::TopK(top), &mut results)?;
        let out = results.get(output::LOGITS).ok_or("nothing came back")?;
        if !out.data.is_empty() || results.outputs().len() != 1 {
            return Err("more came back than was wanted".into());
        }
        let got: Vec<u32> = out.candidates_of(n - 1).iter().map(|c| c.index).collect();
        left.sort_by(|a, b| last[*b].total_cmp(&last[*a]).then(a.cmp(b)));
        let want: Vec<u32> = left[..k].iter().map(|i| *i as u32).collect();
        if got != want {
            return Err(format!("round {round}: candidates {got:?}, not {want:?}"));
        }
        let sum: f64 = left.iter().map(|i| f64::from(last[*i]).exp()).sum();
        let logsumexp = f64::from(out.logsumexp[n - 1]);
        if (logsumexp - sum.ln()).abs() > 1e-3 {
            return Err(format!("round {round}: log-sum-exp {logsumexp}, not {}", sum.ln()));
        }
        // The best is left out next time.
        mask[left[0] / 32] &= !(1 << (left[0] % 32));
        left.remove(0);
    }
    drawn(s, &mut engine, &call, k)
}

/// Three greedy tokens, each fed by the call before, are those that the host would have chosen.
fn drawn(s: &Subject<'_>, engine: &mut Paged, prompt: &Call, k: usize) -> Checked {
    let n = prompt.tokens.len();
    if n + 3 > s.tokens.len() {
        return Ok(());
    }
    let best = |logits: &[f32]| {
        let last = &logits[logits.len() - s.vocab..];
        let at = (0..s.vocab).max_by(|a, b| last[*a].total_cmp(&last[*b]).then(b.cmp(a)));
        at.unwrap_or(0) as i32
    };
    let mut truth = vec![best(&s.run(engine, prompt)?)];
    for i in 0..2 {
        let mut call = Call::default();
        call.push(truth[i], 0, n + i);
        truth.push(best(&s.run(engine, &call)?));
    }
    let rule =
        DrawRule { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };
    let rules = vec![rule; n];
    let draw = |rows: usize| Want::Draw(Draw { top: TopK::of(k), rules: &rules[..rows] });
    let mut tickets = vec![submit_wanting(engine, s, prompt, draw(n), None)?];
    let mut rows = n as u32 - 1;
    let mut seen = Vec::new();
    let mut results = Results::default();
    for i in 0..2 {
        let mut call = Call::default();
        call.push(0, 0, n + i);
        let row = [rows];
        let fed = TicketRows { ticket: tickets[i], output: output::LOGITS, rows: &row };
        if engine.engine.abilities().max_in_flight < 2 {
            engine.engine.wait(tickets[i], &mut results).map_err(|e| e.to_string())?;
            seen.extend(results.get(output::LOGITS).and_then(|out| out.drawn.last()).copied());
        }
        tickets.push(submit_wanting(engine, s, &call, draw(1), Some(fed))?);
        rows = 0;
    }
    for ticket in tickets.iter().skip(seen.len()) {
        engine.engine.wait(*ticket, &mut results).map_err(|e| e.to_string())?;
        seen.extend(results.get(output::LOGITS).and_then(|out| out.drawn.last()).copied());
    }
    tickets.iter().for_each(|ticket| engine.engine.release(*ticket));
    let seen: Vec<i32> = seen.iter().map(|id| *id as i32).collect();
    if seen == truth { Ok(()) } else { Err(format!("drew {seen:?}, not {truth:?}")) }
}

fn run_wanting(
    engine: &mut Paged,
    s: &Subject<'_>,
    call: &Call,
    want: Want<'_>,
    results: &mut Results,
) -> Checked {
    let ticket = submit_wanting(engine, s, call, want, None)?;
    let waited = engine.engine.wait(ticket, results).map_err(|e| e.to_string());
    engine.engine.release(ticket);
    waited
}

/// Submits a call of whose outputs only logits are wanted; its tokens may come from an earlier one.
fn submit_wanting(
    engine: &mut Paged,
    s: &Subject<'_>,
    call: &Call,
    want: Want<'_>,
    tokens: Option<TicketRows<'_>>,
) -> Result<Ticket, String> {
    let feeds = call.feeds(&s.program)?;
    let mut feeds: Vec<Feed<'_>> = feeds.iter().map(|(name, data)| data.feed(name)).collect();
    if let (Some(rows), Some(feed)) =
        (tokens, feeds.iter_mut().find(|feed| feed.name == input::TOKENS))
    {
        feed.data = FeedData::Of(rows);
    }
    let placed = engine.paging.place(&call.places);
    let wants = [Wanted { output: output::LOGITS, want }];
    placed
        .with(|spans| {
            let (feeds, horizons, wants) = (&feeds[..], &placed.horizons[..], &wants[..]);
            let method = method::FORWARD;
            engine.engine.submit(&BackendCall { method, feeds, spans, horizons, wants, stop: None })
        })
        .map_err(|e| e.to_string())
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}
