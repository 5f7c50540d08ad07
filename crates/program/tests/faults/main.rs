//! Bad program files. Each test is named after its row in the fault list: F1 to F11, F16, F21.

mod indices;
#[path = "../sample/mod.rs"]
mod sample;

use std::time::{Duration, Instant};

use lapidary_program::{
    DType, Description, Encoding, Error, FileBytes, Op, Program, QuantLayout, Result, ScaleFormat,
    Sym, ValueId, ValueType, WeightDecl, lap,
};
use serde_json::{Value, json};

fn open(bytes: &[u8]) -> Result<Program> {
    lap::from_bytes(FileBytes::from_vec(bytes.to_vec()))
}

fn refused(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("a bad file was accepted"),
        Err(e) => e.to_string(),
    }
}

/// Splits a file into its header and its data.
fn split(bytes: &[u8]) -> (Value, Vec<u8>) {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

fn join(header: &Value, data: &[u8]) -> Vec<u8> {
    join_text(&serde_json::to_string(header).unwrap(), data)
}

fn join_text(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// The sample file with its header changed.
fn with_header(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let (mut header, data) = split(&sample::file());
    change(&mut header);
    join(&header, &data)
}

/// What is said about the sample program with its description changed.
fn with_description(change: impl FnOnce(&mut Description)) -> String {
    let mut d = sample::description();
    let store = sample::store(&d);
    change(&mut d);
    match Program::new(d, Default::default(), std::sync::Arc::new(store)) {
        Ok(_) => panic!("a bad description was accepted"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn f01_truncated_at_every_byte_of_the_header_and_at_segment_edges() {
    let bytes = sample::file();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, _) = split(&bytes);
    let mut cuts: Vec<usize> = (0..8 + n).collect();
    for (_, tensor) in header.as_object().unwrap().iter().filter(|(k, _)| *k != "__metadata__") {
        for edge in tensor["data_offsets"].as_array().unwrap() {
            let edge = 8 + n + edge.as_u64().unwrap() as usize;
            cuts.extend([edge.saturating_sub(1), edge, edge + 1]);
        }
    }
    for cut in cuts.into_iter().filter(|c| *c < bytes.len()) {
        match open(&bytes[..cut]) {
            Err(Error::Container { offset, .. }) => assert!(offset <= cut as u64, "{offset} {cut}"),
            Err(other) => panic!("cut at {cut}: {other}"),
            Ok(_) => panic!("cut at {cut}: accepted"),
        }
    }
}

#[test]
fn f02_other_formats_are_named_with_what_to_do() {
    for (bytes, names) in [
        (b"GGUF\x03\0\0\0aaaaaaaaaaaaaaaa".as_slice(), "GGUF"),
        (b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaa", "pickle"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0aaaaaaa", "ONNX"),
        (b"\x80\x02ccollections\nOrderedDict\n", "pickle"),
        (b"{\"model_type\": \"gemma3\", \"x\": 1}", "JSON"),
    ] {
        let said = refused(bytes);
        assert!(said.contains(names), "{said}");
    }
    let foreign =
        join(&json!({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), &[0; 4]);
    assert!(refused(&foreign).contains("safetensors file of another program"));
}

#[test]
fn f03_versions_outside_the_window() {
    for (version, remedy) in
        [("0", "export"), ("2", "upgrade"), ("99", "upgrade"), ("x", "upgrade")]
    {
        let said = refused(&with_header(|h| h["__metadata__"]["version"] = json!(version)));
        assert!(said.contains(version) && said.contains(remedy), "{said}");
        assert!(said.contains("versions 1 to 1"), "{said}");
    }
}

/// The quickest of three runs: a machine that does something else for a moment is no fault of ours.
fn quickest(mut run: impl FnMut()) -> Duration {
    let mut time = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..3).map(|_| time()).min().unwrap_or_default()
}

#[test]
fn f04_header_lengths_are_refused_before_allocation() {
    let body = sample::file()[8..].to_vec();
    for len in [u64::MAX, u64::MAX / 2, 1 << 40, 101 << 20, body.len() as u64 + 1] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(&body);
        let took = quickest(|| assert!(open(&bytes).is_err(), "length {len}"));
        assert!(took < Duration::from_millis(50), "length {len}: {took:?}");
    }
    let nested = format!("{{\"a\":{}", "[".repeat(1 << 20));
    let nested = join_text(&nested, &[]);
    let took = quickest(|| assert!(open(&nested).is_err()));
    assert!(took < Duration::from_millis(500), "nested: {took:?}");
}

#[test]
fn f05_huge_counts_in_a_tiny_file() {
    for shape in [json!([u32::MAX]), json!([u32::MAX, u32::MAX]), json!([u64::MAX])] {
        let bytes = with_header(|h| h["embed"]["shape"] = shape.clone());
        let took = quickest(|| _ = refused(&bytes));
        assert!(took < Duration::from_millis(50), "{shape}: {took:?}");
    }
    let said = with_description(|d| d.methods.values_mut().for_each(|m| m.max_chunk = u32::MAX));
    assert!(said.contains("4294967295"), "{said}");
}

#[test]
fn f06_shapes_that_overflow_or_are_empty() {
    for shape in [
        vec![],
        vec![0, 32],
        vec![24, 0],
        vec![1 << 31, 32],
        vec![1 << 63, 2],
        vec![u64::MAX, u64::MAX],
        vec![1 << 30, 1 << 30],
        vec![1; 9],
    ] {
        let said = with_description(|d| {
            d.weights.insert("embed".into(), WeightDecl::dense(shape.clone(), DType::F32));
        });
        assert!(said.contains("`embed`"), "{shape:?}: {said}");
    }
}

#[test]
fn f07_offsets_that_overlap_leave_gaps_or_pass_the_end() {
    let offsets = |name: &'static str, start: u64, end: u64| {
        with_header(move |h| h[name]["data_offsets"] = json!([start, end]))
    };
    let (header, data) = split(&sample::file());
    let place = |name: &str| -> (u64, u64) {
        let o = &header[name]["data_offsets"];
        (o[0].as_u64().unwrap(), o[1].as_u64().unwrap())
    };
    let (start, end) = place("norm");
    refused(&offsets("norm", start + 4, end + 4));
    refused(&offsets("norm", start - 64, end - 64));
    refused(&offsets("norm", start, end + 64));
    refused(&offsets("norm", end, start));
    refused(&offsets("norm", u64::MAX - 64, u64::MAX));
    refused(&offsets("norm", data.len() as u64, data.len() as u64 + 128));

    let mut longer = sample::file();
    longer.extend(b"trailing bytes");
    refused(&longer);

    let text = serde_json::to_string(&header).unwrap();
    let entry = format!("\"norm\":{}", header["norm"]);
    let doubled = text.replacen(&entry, &format!("{entry},{entry}"), 1);
    assert_ne!(doubled, text);
    assert!(refused(&join_text(&doubled, &data)).contains("twice"));
    let other = json!({"dtype": "F32", "shape": [32], "data_offsets": [start - 128, end - 128]});
    let twice = text.replacen(&entry, &format!("{entry},\"norm\":{other}"), 1);
    refused(&join_text(&twice, &data));
}

#[test]
fn f08_dtypes_and_quantised_layouts() {
    let said = refused(&with_header(|h| h["embed"]["dtype"] = json!("F24")));
    assert!(said.contains("header is damaged"), "{said}");
    let said = refused(&with_header(|h| h["norm"]["dtype"] = json!("I32")));
    assert!(said.contains("`norm`"), "{said}");
    let quant = |layout: QuantLayout| {
        with_description(move |d| {
            d.weights.insert("q".into(), WeightDecl::quant([32, 32], layout));
        })
    };
    let ok = QuantLayout::symmetric(4, 32, DType::F16);
    for bad in [
        QuantLayout { bits: 1, ..ok },
        QuantLayout { bits: 9, ..ok },
        QuantLayout { group: 0, ..ok },
        QuantLayout { group: 5, ..ok },
        QuantLayout { group: 64, ..ok },
        QuantLayout { offset: 16, ..ok },
        QuantLayout { scale: ScaleFormat::Plain { dtype: DType::I8 }, ..ok },
        QuantLayout {
            scale: ScaleFormat::Nested { per: 3, sub: DType::I8, dtype: DType::F16 },
            ..QuantLayout { group: 16, ..ok }
        },
        QuantLayout {
            scale: ScaleFormat::Nested { per: 1, sub: DType::F32, dtype: DType::F16 },
            ..ok
        },
    ] {
        let said = quant(bad);
        assert!(said.contains("`q`"), "{bad:?}: {said}");
    }
    // One scale too few: the tensor is refused by name.
    let said = refused(&with_header(|h| {
        let o = h["q:scale"]["data_offsets"].clone();
        let bytes = o[1].as_u64().unwrap() - o[0].as_u64().unwrap();
        h["q:scale"]["shape"] = json!([bytes / 2]);
    }));
    assert!(said.contains("q:scale"), "{said}");
}

#[test]
fn f10_graphs_that_refer_to_what_is_not_there() {
    fn forward(d: &mut Description) -> &mut lapidary_program::Graph {
        &mut d.methods.get_mut("forward").unwrap().graph
    }
    let broken: Vec<(&str, String)> = vec![
        ("missing weight", with_description(|d| drop(d.weights.remove("q")))),
        ("missing state", with_description(|d| d.states.clear())),
        ("later value", with_description(|d| forward(d).nodes[1].inputs = vec![ValueId(40)])),
        ("itself", with_description(|d| forward(d).nodes[0].inputs = vec![ValueId(4)])),
        ("arity", with_description(|d| forward(d).nodes[0].inputs.clear())),
        ("wrong type", with_description(|d| forward(d).nodes[0].inputs = vec![ValueId(4)])),
        ("no output", with_description(|d| forward(d).outputs.clear())),
        ("output", with_description(|d| forward(d).outputs[0].value = ValueId(999))),
        (
            "duplicate",
            with_description(|d| {
                let name = forward(d).nodes[0].name.clone();
                forward(d).nodes[1].name = name;
            }),
        ),
        ("no method", with_description(|d| d.methods.clear())),
        ("input's name", with_description(|d| forward(d).inputs[0].name = "tokensx".into())),
        (
            "input's type",
            with_description(|d| {
                let rows = ValueType::indices(Sym::Rows);
                forward(d).inputs[0].value_type = rows;
            }),
        ),
        (
            "unwritten cache",
            with_description(|d| {
                let at = forward(d).nodes.iter().position(|n| n.name == "kv_write").unwrap();
                let write = forward(d).nodes.remove(at);
                forward(d).nodes.push(write);
            }),
        ),
        ("cap", with_description(|d| forward(d).nodes[8].op = Op::SoftCap { cap: -1.0 })),
    ];
    for (what, said) in broken {
        assert!(said.starts_with("invalid"), "{what}: {said}");
    }
    for text in [
        r#"{"metadata": 1}"#.to_string(),
        "[]".into(),
        serde_json::to_string(&sample::description()).unwrap().replace("\"linear\"", "\"lineal\""),
        serde_json::to_string(&sample::description())
            .unwrap()
            .replace("\"eps\":", "\"eps\":\"x\",\"e\":"),
        serde_json::to_string(&sample::description())
            .unwrap()
            .replace("\"vocab_size\":24", "\"vocab_size\":\"24\""),
    ] {
        assert!(
            serde_json::from_str::<Description>(&text).is_err(),
            "{}",
            &text[..text.len().min(80)]
        );
    }
}

#[test]
fn f11_metadata_that_lies_is_refused_with_both_values() {
    let said = with_description(|d| d.metadata.vocab_size = 25);
    assert!(said.contains("25") && said.contains("24"), "{said}");
    let said = with_description(|d| d.metadata.eos_ids = vec![24]);
    assert!(said.contains("24"), "{said}");
    for ctx in [0, 1 << 31] {
        let said = with_description(|d| d.metadata.max_context_len = ctx);
        assert!(said.contains(&ctx.to_string()), "{said}");
    }
    let said = with_description(|d| d.metadata.max_context_len = 4);
    assert!(said.contains("window 5") && said.contains('4'), "{said}");
    let said = with_description(|d| d.states[0].window = Some(0));
    assert!(said.contains("window 0"), "{said}");
    let said = with_description(|d| {
        let graph = &mut d.methods.get_mut("forward").unwrap().graph;
        for node in &mut graph.nodes {
            if let Op::Attention { spec, .. } = &mut node.op {
                spec.n_heads = 3;
            }
        }
    });
    assert!(said.contains("3 heads") && said.contains("2 KV heads"), "{said}");
}

#[test]
fn f16_a_failed_export_leaves_nothing_under_the_final_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lap");
    // A store that fails half-way, as a disk that fills up does.
    let d = sample::description();
    let mut store = sample::store(&d);
    store.insert("head", lapidary_program::Part::Data, vec![1, 2, 3]);
    let program = Program::new(d, Default::default(), std::sync::Arc::new(store)).unwrap();
    assert!(lap::write(&program, &path, &mut |_, _| true).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");

    // An existing file is replaced whole or not at all.
    lap::write(&sample::program(), &path, &mut |_, _| true).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(lap::write(&program, &path, &mut |_, _| true).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);

    // Two exports to the same path: the last one wins, and it is whole.
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| lap::write(&sample::program(), &path, &mut |_, _| true).unwrap());
        }
    });
    lap::check_hashes(&path).unwrap();

    // An export that is told to stop stops, and what it replaces stays.
    let stopped = lap::write(&sample::program(), &path, &mut |_, _| false).unwrap_err();
    assert!(matches!(stopped, Error::Stopped), "{stopped}");
    lap::check_hashes(&path).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");

    let missing = folder.path().join("no/such/folder/a.lap");
    let said = lap::write(&sample::program(), &missing, &mut |_, _| true).unwrap_err();
    assert!(matches!(said, Error::Io { .. }), "{said}");
}

#[test]
fn single_byte_changes_never_panic() {
    let bytes = sample::file();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut accepted = 0;
    for i in 0..8 + n + 4096.min(bytes.len() - 8 - n) {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[i] ^= flip;
            accepted += usize::from(open(&changed).is_ok());
        }
    }
    // Names of values and numbers in weights may change without harm; most of a header may not.
    assert!(accepted < (8 + n + 4096) * 3, "something was refused");
    assert!(matches!(sample::description().weights["q"].encoding, Encoding::Quant(_)));
}
