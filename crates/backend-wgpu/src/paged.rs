//! Tests of pages, tickets and tokens that stay on the device.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::{
    Backend as _, Call, Device, DeviceId, Draw, DrawRule, Engine, Error, Feed, FeedData,
    LoadOptions, PAGE, PageId, PageTable, Precision, Results, Span, Ticket, TicketRows, TopK, Want,
    Wanted, Wishes,
};
use lapidary_backend_kit::draw;
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    RopeSpec, SamplingDefaults, StateDecl, Sym, ValueId, ValueType, WeightDecl, input, output,
};

use crate::WgpuBackend;

const VOCAB: usize = 300;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 16;
const CHANNELS: usize = (HEADS * HEAD_DIM) as usize;
const CONTEXT: u32 = 640;
const WINDOW: u32 = 150;

/// One layer that sees everything and one that sees a window; outputs are logits and what they are
/// made of. A second method feeds that back.
fn program() -> Arc<Program> {
    let kv = (KV_HEADS * HEAD_DIM) as usize;
    let shapes = [("embed", VOCAB), ("q", CHANNELS), ("k", kv), ("v", kv), ("o", CHANNELS)];
    let matrix = |n: usize| WeightDecl::dense([n as u64, CHANNELS as u64], DType::F32);
    let mut weights: BTreeMap<String, WeightDecl> =
        shapes.iter().map(|(name, n)| ((*name).to_string(), matrix(*n))).collect();
    weights.insert("norm".into(), WeightDecl::dense([u64::from(HEAD_DIM)], DType::F32));
    let mut store = MemoryStore::new();
    for (seed, (name, n)) in shapes.iter().enumerate() {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
        let numbers: Vec<f32> = (0..n * CHANNELS).map(number).collect();
        store.insert_f32(*name, &numbers);
    }
    store.insert_f32("norm", &[1.25; HEAD_DIM as usize]);
    let state = |name: &str, window| StateDecl {
        name: name.into(),
        n_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        window,
    };
    let states = vec![state("all", None), state("near", Some(WINDOW))];
    let mut graph = GraphBuilder::new(&weights, &states);
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed =
        Op::Embed { weight: "embed".into(), scale: 4.0, start: 0, stride: 1, soft_id: None };
    let mut x = graph.node("x", embed, &[tokens]).unwrap();
    for state in &states {
        x = layer(&mut graph, state, x);
    }
    let x = graph.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let head = |graph: &mut GraphBuilder<'_>, x| {
        let head = Op::Linear { weight: "embed".into(), bias: None };
        let logits = graph.node("head", head, &[x]).unwrap();
        graph.output(output::LOGITS, logits);
    };
    head(&mut graph, x);
    graph.output(output::HIDDEN, x);
    let forward = Method::new(1 << 10, graph.finish());
    let mut graph = GraphBuilder::new(&weights, &states);
    let x = graph.input("hidden", ValueType::rows(Sym::Rows, CHANNELS as u64));
    head(&mut graph, x);
    let again = Method::new(1 << 10, graph.finish());
    let methods = [("forward".to_string(), forward), ("again".to_string(), again)].into();
    let metadata = Metadata {
        name: "paged".into(),
        architecture: "none".into(),
        made_by: "a test".into(),
        vocab_size: VOCAB as u32,
        max_context_len: CONTEXT,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description = Description { metadata, states, methods, weights };
    Arc::new(Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap())
}

/// Attention as models have it: norms, ropes, and a sum.
fn layer(graph: &mut GraphBuilder<'_>, state: &StateDecl, x: ValueId) -> ValueId {
    let mut node = |name: &str, op: Op, inputs: &[ValueId]| {
        graph.node(format!("{name} {}", state.name), op, inputs).unwrap()
    };
    let linear = |weight: &str| Op::Linear { weight: weight.into(), bias: None };
    let norm =
        || Op::RmsNorm { weight: Some("norm".into()), eps: 1e-6, offset: 0.0, width: HEAD_DIM };
    let rope = || {
        Op::Rope(RopeSpec {
            head_dim: HEAD_DIM,
            theta: 1e4,
            rotated_pairs: HEAD_DIM / 2,
            factor: 1.0,
        })
    };
    let [q, k, v] = ["q", "k", "v"].map(|weight| node(weight, linear(weight), &[x]));
    let [q, k] = [("q", q), ("k", k)].map(|(name, x)| node(&format!("{name} norm"), norm(), &[x]));
    let [q, k] = [("q", q), ("k", k)].map(|(name, x)| node(&format!("{name} rope"), rope(), &[x]));
    node("kv", Op::KvWrite { state: state.name.clone() }, &[k, v]);
    let spec = AttentionSpec {
        n_heads: HEADS,
        n_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: 0.25,
        window: state.window,
        bidirectional: false,
        own_key: true,
    };
    let seen = node("attention", Op::Attention { state: state.name.clone(), spec }, &[q]);
    let seen = node("o", linear("o"), &[seen]);
    node("sum", Op::Add, &[x, seen])
}

/// The GPU as it is, with nothing but what every GPU has, and with attention of long contexts.
fn devices() -> Vec<Box<dyn Device>> {
    let least = WgpuBackend::VULKAN.with_least();
    let backends = [WgpuBackend::VULKAN, WgpuBackend::VULKAN.with_most_keys(3), least];
    if let Err(e) = WgpuBackend::VULKAN.devices() {
        _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
        return Vec::new();
    }
    backends.iter().map(|backend| backend.open(&DeviceId::new("vulkan", 0)).unwrap()).collect()
}

fn options(device: &dyn Device, program: &Program, precision: Precision) -> LoadOptions {
    let (max_context, n_sequences) = (CONTEXT, 4);
    let wishes = Wishes { max_context, n_sequences, chunk: Some(256), block: None };
    let limits = device.limits(program, &wishes);
    let pages = limits.pages(program, max_context, n_sequences);
    LoadOptions { max_context, n_sequences, limits, pages, precision, ..LoadOptions::default() }
}

fn load(device: &dyn Device) -> Box<dyn Engine> {
    let program = program();
    let options = options(device, &program, Precision::Fast);
    device.load(&program, &options, &mut |_, _| {}).unwrap()
}

/// Pages for one sequence of each group.
#[derive(Clone)]
struct Pages {
    groups: [Vec<PageId>; 2],
}

impl Pages {
    /// Numbers from `from` on, `step` apart, in turns over the pool.
    fn new(engine: &dyn Engine, from: u32, step: u32) -> Self {
        let of = |group: usize| {
            let pool = engine.options().pages[group];
            let n = CONTEXT.div_ceil(PAGE as u32);
            (0..n).map(|i| PageId((from + i * step) % pool)).collect()
        };
        Pages { groups: [of(0), of(1)] }
    }

    fn tables(&self) -> [PageTable<'_>; 2] {
        [0, 1].map(|group| PageTable { first: 0, pages: &self.groups[group] })
    }
}

fn tokens(n: usize, seed: usize) -> Vec<i32> {
    (0..n).map(|i| ((i * i + 3 * i + 7 * seed) % VOCAB) as i32).collect()
}

/// Runs some tokens of one sequence and gives the logits of the last.
fn run(engine: &mut dyn Engine, pages: &Pages, start: usize, tokens: &[i32]) -> Vec<f32> {
    let tables = pages.tables();
    let rows = [tokens.len() as i32 - 1];
    let call = Call {
        method: "forward",
        feeds: &[Feed::i32(input::TOKENS, tokens), Feed::i32(input::ROWS, &rows)],
        spans: &[Span { start: start as u32, len: tokens.len() as u32, tables: &tables }],
        wants: &[Wanted::whole(output::LOGITS)],
        ..Call::default()
    };
    let mut results = Results::default();
    engine.run(&call, &mut results).unwrap();
    results.get(output::LOGITS).unwrap().data.clone()
}

/// The logits after a prompt in chunks, tokens one by one, and calls of three sequences.
fn conversation(engine: &mut dyn Engine, pages: &[Pages; 3]) -> Vec<Vec<f32>> {
    let prompt = tokens(330, 1);
    let mut made = vec![run(engine, &pages[0], 0, &prompt[..200])];
    made.push(run(engine, &pages[0], 200, &prompt[200..]));
    for (i, token) in tokens(6, 2).iter().enumerate() {
        made.push(run(engine, &pages[0], 330 + i, &[*token]));
    }
    made.push(run(engine, &pages[1], 0, &tokens(140, 3)));
    made.push(run(engine, &pages[2], 0, &tokens(20, 4)));
    let lens = [(336u32, 1u32), (140, 30), (20, 2)];
    for lens in [[lens[0], (140, 1), (20, 1)], lens] {
        let tables = pages.each_ref().map(Pages::tables);
        let spans =
            [0, 1, 2].map(|i| Span { start: lens[i].0, len: lens[i].1, tables: &tables[i] });
        let n: u32 = lens.iter().map(|(_, len)| len).sum();
        let ids = tokens(n as usize, 5);
        let rows: Vec<i32> = (0..n as i32).collect();
        let call = Call {
            method: "forward",
            feeds: &[Feed::i32(input::TOKENS, &ids), Feed::i32(input::ROWS, &rows)],
            spans: &spans,
            wants: &[Wanted::whole(output::LOGITS)],
            ..Call::default()
        };
        let mut results = Results::default();
        engine.run(&call, &mut results).unwrap();
        made.push(results.get(output::LOGITS).unwrap().data.clone());
    }
    made
}

#[test]
fn pages_in_any_order_are_those_in_a_row() {
    for device in devices() {
        let mut engine = load(device.as_ref());
        let of = |engine: &dyn Engine, step| {
            // The window's pool is small: sequences of a few pages each stand apart.
            [0, 6, 9].map(|from| Pages::new(engine, from, step))
        };
        let straight = of(engine.as_ref(), 1);
        let wanted = conversation(engine.as_mut(), &straight);
        let mut engine = load(device.as_ref());
        let mut mixed = straight.clone();
        for (group, pool) in [0, 1].map(|g| (g, engine.options().pages[g])) {
            // Another number for every page, none of them twice.
            let mix = |page: &mut PageId| page.0 = (page.0 * 3 + 1) % pool;
            assert!(pool % 3 != 0, "pages would meet");
            mixed.iter_mut().for_each(|pages| pages.groups[group].iter_mut().for_each(mix));
        }
        assert_eq!(conversation(engine.as_mut(), &mixed), wanted);
        assert!(wanted.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_copied_page_is_the_same() {
    for device in devices() {
        let mut engine = load(device.as_ref());
        let pages = Pages::new(engine.as_ref(), 0, 1);
        run(engine.as_mut(), &pages, 0, &tokens(200, 1));
        let copy = Pages {
            groups: [0, 1].map(|g| pages.groups[g].iter().map(|p| PageId(p.0 + 6)).collect()),
        };
        for group in [0, 1] {
            let pairs: Vec<_> =
                (0..2).map(|i| (pages.groups[group][i], copy.groups[group][i])).collect();
            engine.copy_pages(group, &pairs).unwrap();
        }
        let wanted = run(engine.as_mut(), &pages, 200, &[5]);
        // What is written to the first is not seen by the second.
        run(engine.as_mut(), &pages, 100, &tokens(100, 9));
        assert_eq!(run(engine.as_mut(), &copy, 200, &[5]), wanted);
        assert!(engine.copy_pages(0, &[(PageId(0), PageId(1 << 20))]).is_err());
    }
}

#[test]
fn a_page_that_was_read_can_be_written_to_another_engine() {
    for device in devices() {
        let mut engine = load(device.as_ref());
        let pages = Pages::new(engine.as_ref(), 0, 1);
        run(engine.as_mut(), &pages, 0, &tokens(200, 1));
        let mut other = load(device.as_ref());
        let elsewhere = Pages::new(other.as_ref(), 5, 1);
        let mut bytes = Vec::new();
        for group in [0, 1] {
            for i in 0..2 {
                engine.read_page(group, pages.groups[group][i], &mut bytes).unwrap();
                assert_eq!(bytes.len(), engine.page_bytes(group));
                other.write_page(group, elsewhere.groups[group][i], &bytes).unwrap();
            }
        }
        let wanted = run(engine.as_mut(), &pages, 200, &[5]);
        assert_eq!(run(other.as_mut(), &elsewhere, 200, &[5]), wanted);
        assert!(other.write_page(0, PageId(0), &bytes[1..]).is_err());
    }
}

const GREEDY: DrawRule =
    DrawRule { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, position: 0 };

/// Submits one token of a sequence, from the host or from an earlier call.
fn submit(
    engine: &mut dyn Engine,
    pages: &Pages,
    position: usize,
    token: FeedData<'_>,
    rule: DrawRule,
) -> lapidary_backend::Result<Ticket> {
    let tables = pages.tables();
    let rule = [DrawRule { position: position as u32 + 1, ..rule }];
    let draw = Draw { top: TopK::of(40), rules: &rule };
    engine.submit(&Call {
        method: "forward",
        feeds: &[Feed { name: input::TOKENS, data: token }, Feed::i32(input::ROWS, &[0])],
        spans: &[Span { start: position as u32, len: 1, tables: &tables }],
        wants: &[Wanted { output: output::LOGITS, want: Want::Draw(draw) }],
        ..Call::default()
    })
}

/// Tokens that are drawn one after another, by the device or by the host.
fn chain(engine: &mut dyn Engine, on_device: bool, rule: DrawRule) -> Vec<u32> {
    let pages = Pages::new(engine, 0, 1);
    run(engine, &pages, 0, &tokens(130, 1));
    let mut results = Results::default();
    let mut drawn = Vec::new();
    let mut tickets: Vec<Ticket> = Vec::new();
    for i in 0..16 {
        let last = drawn.last().map_or([3], |id: &u32| [*id as i32]);
        let data = match tickets.last() {
            Some(ticket) if on_device => {
                FeedData::Of(TicketRows { ticket: *ticket, output: output::LOGITS, rows: &[0] })
            }
            _ => FeedData::I32(&last),
        };
        tickets.push(submit(engine, &pages, 130 + i, data, rule).unwrap());
        if on_device && i > 0 {
            // One call is always queued after another.
            engine.wait(tickets[i - 1], &mut results).unwrap();
        } else if !on_device {
            engine.wait(tickets[i], &mut results).unwrap();
        } else {
            continue;
        }
        drawn.push(taken(&results, rule, 130 + i + usize::from(!on_device)));
    }
    if on_device {
        while !engine.poll(tickets[15], &mut results).unwrap() {}
        drawn.push(taken(&results, rule, 130 + 16));
    }
    assert!(matches!(engine.poll(tickets[15], &mut results), Err(Error::UnknownTicket(_))));
    tickets.into_iter().for_each(|ticket| engine.release(ticket));
    drawn
}

/// The token of a call, which is the sampler's.
fn taken(results: &Results, rule: DrawRule, position: usize) -> u32 {
    let out = results.get(output::LOGITS).unwrap();
    let rule = DrawRule { position: position as u32, ..rule };
    let token = draw::draw(out.candidates_of(0), &rule, &mut draw::Scratch::default());
    assert_eq!(Some(out.drawn[0]), token);
    out.drawn[0]
}

#[test]
fn tokens_that_stay_on_the_device_are_those_that_the_host_feeds() {
    for device in devices() {
        let rules =
            [GREEDY, DrawRule { temperature: 1.0, top_k: 20, top_p: 0.9, seed: 7, ..GREEDY }];
        for rule in rules {
            let mut engine = load(device.as_ref());
            let wanted = chain(engine.as_mut(), false, rule);
            assert_eq!(wanted.len(), 16);
            // Where tables are on the host, a call waits for the token, but takes it.
            let made = chain(engine.as_mut(), true, rule);
            assert_eq!(made, wanted, "{}", engine.describe());
        }
    }
}

#[test]
fn an_output_that_is_kept_feeds_another_method() {
    for device in devices() {
        let mut engine = load(device.as_ref());
        let pages = Pages::new(engine.as_ref(), 0, 1);
        let (tables, ids) = (pages.tables(), tokens(50, 1));
        let rows: Vec<i32> = (0..50).collect();
        let call = Call {
            method: "forward",
            feeds: &[Feed::i32(input::TOKENS, &ids), Feed::i32(input::ROWS, &rows)],
            spans: &[Span { start: 0, len: 50, tables: &tables }],
            wants: &[
                Wanted::whole(output::LOGITS),
                Wanted { output: output::HIDDEN, want: Want::Keep },
            ],
            ..Call::default()
        };
        let ticket = engine.submit(&call).unwrap();
        let mut results = Results::default();
        engine.wait(ticket, &mut results).unwrap();
        let logits = results.get(output::LOGITS).unwrap().clone();
        assert!(results.get(output::HIDDEN).is_none());
        let wanted = [3, 4, 49, 7];
        let of = |rows| FeedData::Of(TicketRows { ticket, output: output::HIDDEN, rows });
        let again = |data| Call {
            method: "again",
            feeds: std::slice::from_ref(Box::leak(Box::new(Feed { name: "hidden", data }))),
            wants: const { &[Wanted { output: output::LOGITS, want: Want::Whole }] },
            ..Call::default()
        };
        let mut results = Results::default();
        engine.run(&again(of(&wanted)), &mut results).unwrap();
        let made = results.get(output::LOGITS).unwrap();
        for (i, row) in wanted.iter().enumerate() {
            let pairs = made.row(i).iter().zip(logits.row(*row as usize));
            assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-3), "row {row}");
        }
        assert!(engine.run(&again(of(&[50])), &mut results).is_err());
        engine.release(ticket);
        let gone = engine.run(&again(of(&wanted)), &mut results);
        assert!(matches!(gone, Err(Error::UnknownTicket(_))));
    }
}

#[test]
fn what_nobody_wants_is_not_made_but_caches_are_written() {
    for device in devices() {
        let mut engine = load(device.as_ref());
        let pages = Pages::new(engine.as_ref(), 0, 1);
        let ids = tokens(60, 1);
        let wanted = {
            run(engine.as_mut(), &pages, 0, &ids);
            run(engine.as_mut(), &pages, 60, &[5])
        };
        let mut engine = load(device.as_ref());
        let tables = pages.tables();
        let call = Call {
            method: "forward",
            feeds: &[Feed::i32(input::TOKENS, &ids), Feed::i32(input::ROWS, &[59])],
            spans: &[Span { start: 0, len: 60, tables: &tables }],
            ..Call::default()
        };
        let mut results = Results::default();
        engine.run(&call, &mut results).unwrap();
        assert!(results.outputs().is_empty());
        assert_eq!(run(engine.as_mut(), &pages, 60, &[5]), wanted);
    }
}

#[test]
fn devices_are_known_by_their_number() {
    let Ok(all) = WgpuBackend::VULKAN.devices() else { return };
    for (i, info) in all.iter().enumerate() {
        assert_eq!(info.id, DeviceId::new("vulkan", i as u32));
        assert_eq!(WgpuBackend::VULKAN.open(&info.id).unwrap().info(), info);
    }
    let missing = WgpuBackend::VULKAN.open(&DeviceId::new("vulkan", 99)).err().unwrap();
    assert!(matches!(&missing, Error::UnknownDevice { known, .. } if known.contains("vulkan:0")));
}
