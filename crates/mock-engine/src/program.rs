//! The mock's program: as small as one can be that has caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, ImageSize, ImageSpec, Media, MemoryStore,
    Metadata, Method, Op, PatchLayout, Program, Resample, SamplingDefaults, SoftTokens, StateDecl,
    Sym, ValueType, WeightDecl, blob, input, method, output,
};

use crate::Mock;

/// Channels of all rows.
pub(crate) const CHANNELS: u64 = 4;
/// Numbers of a patch: one pixel.
const PATCH: u64 = 3;

pub(crate) fn program(mock: &Mock) -> Program {
    let vocab = u64::from(mock.vocab_size);
    let weights = BTreeMap::from([
        ("table".to_string(), WeightDecl::dense([vocab, CHANNELS], DType::F32)),
        ("see".to_string(), WeightDecl::dense([CHANNELS, PATCH], DType::F32)),
        ("draft".to_string(), WeightDecl::dense([CHANNELS, 2 * CHANNELS], DType::F32)),
    ]);
    let states: Vec<StateDecl> = mock
        .windows
        .iter()
        .enumerate()
        .map(|(i, window)| StateDecl {
            name: format!("kv.{i}"),
            n_kv_heads: 1,
            head_dim: CHANNELS as u32,
            window: *window,
        })
        .collect();
    let build = || -> lapidary_program::Result<BTreeMap<String, Method>> {
        let mut methods = BTreeMap::new();
        let mut g = GraphBuilder::new(&weights, &states);
        forward(mock, &states, &mut g)?;
        methods.insert(method::FORWARD.to_string(), Method::new(mock.method_chunk, g.finish()));
        if mock.drafts {
            let mut g = GraphBuilder::new(&weights, &states);
            draft(&states, &mut g)?;
            methods.insert(method::DRAFT.to_string(), Method::new(mock.method_chunk, g.finish()));
        }
        if mock.images {
            let mut g = GraphBuilder::new(&weights, &states);
            let patches = g.input(input::PATCHES, ValueType::rows(Sym::Patches, PATCH));
            let see = Op::Linear { weight: "see".into(), bias: None };
            let soft = g.node("see", see, &[patches])?;
            g.output(output::SOFT, soft);
            methods.insert(method::VISION.to_string(), Method::new(4096, g.finish()));
        }
        Ok(methods)
    };
    let methods = build().expect("every op of the mock's program takes what it is given");
    let description = Description { metadata: metadata(mock), states, methods, weights };
    let blobs = [(blob::TOKENIZER, mock.tokenizer), (blob::CHAT_TEMPLATE, mock.template)];
    let blobs = blobs
        .into_iter()
        .filter_map(|(name, text)| text.map(|t| (name.to_string(), t.as_bytes().into())))
        .collect();
    Program::new(description, blobs, Arc::new(MemoryStore::default()))
        .expect("the mock's program is valid")
}

fn forward(
    mock: &Mock,
    states: &[StateDecl],
    g: &mut GraphBuilder<'_>,
) -> lapidary_program::Result<()> {
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let soft = mock.images.then(|| {
        let index = g.input(input::SOFT_INDEX, ValueType::indices(Sym::Tokens));
        (index, g.input(input::SOFT, ValueType::rows(Sym::Soft, CHANNELS)))
    });
    let mut x = g.node("embed", Op::embed("table", 1.0), &[tokens])?;
    if let Some((index, soft)) = soft {
        x = g.node("merge", Op::SoftMerge, &[x, index, soft])?;
    }
    for (i, s) in states.iter().enumerate() {
        let write = Op::KvWrite { state: s.name.clone() };
        g.node(format!("write.{i}"), write, &[x, x])?;
        x = g.node(format!("attend.{i}"), attend(s, mock.images, true), &[x])?;
    }
    let x = g.node("rows", Op::GatherRows, &[x, rows])?;
    let head = Op::Linear { weight: "table".into(), bias: None };
    let logits = g.node("head", head, &[x])?;
    g.output(output::LOGITS, logits);
    if mock.hidden {
        g.output(output::HIDDEN, x);
    }
    Ok(())
}

/// A step of the drafter: it reads all caches.
fn draft(states: &[StateDecl], g: &mut GraphBuilder<'_>) -> lapidary_program::Result<()> {
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let before = g.input(input::HIDDEN, ValueType::rows(Sym::Tokens, CHANNELS));
    let x = g.node("draft.embed", Op::embed("table", 1.0), &[tokens])?;
    let both = g.node("draft.both", Op::Concat, &[x, before])?;
    let mut x = g.node("draft.in", Op::Linear { weight: "draft".into(), bias: None }, &[both])?;
    for (i, s) in states.iter().enumerate() {
        x = g.node(format!("draft.attend.{i}"), attend(s, false, false), &[x])?;
    }
    let head = Op::Linear { weight: "table".into(), bias: None };
    let logits = g.node("draft.head", head, &[x])?;
    g.output(output::LOGITS, logits);
    g.output(output::HIDDEN, x);
    Ok(())
}

fn attend(state: &StateDecl, bidirectional: bool, own_key: bool) -> Op {
    let spec = AttentionSpec {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: CHANNELS as u32,
        scale: 1.0,
        window: state.window,
        bidirectional,
        own_key,
    };
    Op::Attention { state: state.name.clone(), spec }
}

fn metadata(mock: &Mock) -> Metadata {
    let image = ImageSpec {
        size: ImageSize::Budget { choices: vec![4, 40], default: 4 },
        resample: Resample::Bilinear,
        patch: 1,
        pool: 1,
        layout: PatchLayout::Planar,
        scale: 1.0,
        shift: 0.0,
        pan_and_scan: None,
        tokens: SoftTokens {
            placeholder: "<image>".into(),
            before: String::new(),
            after: String::new(),
            id: 0,
            is_padding: false,
        },
    };
    Metadata {
        name: "mock".into(),
        architecture: "mock".into(),
        made_by: "tests".into(),
        vocab_size: mock.vocab_size,
        max_context_len: mock.max_context_len,
        bos_id: Some(2),
        pad_id: Some(0),
        eos_ids: mock.eos_ids.clone(),
        suppress_ids: mock.suppress_ids.clone(),
        add_bos: true,
        sampling: SamplingDefaults::default(),
        answer: None,
        media: Media { image: mock.images.then_some(image), ..Media::default() },
    }
}
