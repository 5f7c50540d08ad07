//! F21: a graph hands an op the index of another. Each such file is refused when it is opened.

use std::sync::Arc;

use lapidary_program::{
    DType, Description, Error, Graph, Input, Node, Op, Program, Sym, ValueId, ValueType,
    WeightDecl, input,
};

use crate::sample;

/// The sample with soft rows and experts: inputs `tokens`, `rows`, `soft_index`, `soft`.
fn description() -> Description {
    let mut d = sample::description();
    let hidden = sample::HIDDEN;
    for (name, shape) in [
        ("router", vec![4, hidden]),
        ("gate_up", vec![4, 16, hidden]),
        ("down", vec![4, hidden, 8]),
        ("fewer_gate_up", vec![3, 16, hidden]),
        ("fewer_down", vec![3, hidden, 8]),
    ] {
        d.weights.insert(name.into(), WeightDecl::dense(shape, DType::F32));
    }
    d.weights.insert("expert_scale".into(), WeightDecl::dense([4], DType::F32));
    let graph = forward(&mut d);
    assert_eq!([&*graph.inputs[0].name, &*graph.inputs[1].name], [input::TOKENS, input::ROWS]);
    let soft_index =
        Input { name: input::SOFT_INDEX.into(), value_type: ValueType::indices(Sym::Tokens) };
    let soft = Input { name: input::SOFT.into(), value_type: ValueType::rows(Sym::Soft, hidden) };
    graph.inputs.extend([soft_index, soft]);
    // Values after the inputs move by two, and those after the embedding by four more: a merge, a
    // router with its two values, and experts.
    let moved = |v: u32| match v {
        0 | 1 => v,
        2 => 8,
        _ => v + 6,
    };
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(|v| v.0 = moved(v.0));
    }
    graph.outputs.iter_mut().for_each(|o| o.value.0 = moved(o.value.0));
    let node = |name: &str, op, inputs: &[u32]| Node {
        name: name.into(),
        op,
        inputs: inputs.iter().map(|v| ValueId(*v)).collect(),
    };
    let router =
        Op::Router { weight: "router".into(), expert_scale: "expert_scale".into(), top_k: 2 };
    let experts = Op::Experts { gate_up: "gate_up".into(), down: "down".into() };
    graph.nodes.splice(
        1..1,
        [
            node("merge", Op::SoftMerge, &[4, 2, 3]),
            node("router", router, &[5]),
            node("experts", experts, &[5, 6, 7]),
        ],
    );
    d
}

fn forward(d: &mut Description) -> &mut Graph {
    &mut d.methods.get_mut("forward").unwrap().graph
}

fn node<'a>(d: &'a mut Description, name: &str) -> &'a mut Node {
    forward(d).nodes.iter_mut().find(|n| n.name == name).unwrap()
}

fn open(d: Description) -> Result<Program, Error> {
    let store = sample::store(&d);
    Program::new(d, Default::default(), Arc::new(store))
}

fn refused(change: impl FnOnce(&mut Description)) -> String {
    let mut d = description();
    change(&mut d);
    match open(d) {
        Ok(_) => panic!("a graph with a wrong index was accepted"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn the_sample_is_right_before_it_is_changed() {
    open(description()).unwrap();
}

#[test]
fn f21_an_index_in_the_place_of_another_is_refused_by_name() {
    let [tokens, rows, soft_index, soft] = [0, 1, 2, 3].map(ValueId);
    let soft_rows_for_tokens = |d: &mut Description| {
        // As long as tokens are, but not theirs.
        forward(d).inputs[2].value_type = ValueType::indices(Sym::Tokens);
        node(d, "embed").inputs = vec![soft_index];
    };
    for (op, said) in [
        ("embed", refused(soft_rows_for_tokens)),
        ("merge", refused(|d| node(d, "merge").inputs[1] = tokens)),
        ("rows", refused(|d| node(d, "rows").inputs[1] = soft_index)),
        ("rows", refused(|d| node(d, "rows").inputs[1] = tokens)),
        ("experts", refused(|d| node(d, "experts").inputs[1] = tokens)),
        ("experts", refused(|d| node(d, "experts").inputs[1] = rows)),
        ("merge", refused(|d| node(d, "merge").inputs[2] = ValueId(4))),
        ("rows", refused(|d| node(d, "rows").inputs[0] = soft)),
    ] {
        assert!(said.starts_with(&format!("invalid op `{op}`")), "{said}");
    }
}

#[test]
fn f21_a_router_chooses_among_experts_that_are_there() {
    let said = refused(|d| {
        node(d, "experts").op =
            Op::Experts { gate_up: "fewer_gate_up".into(), down: "fewer_down".into() };
    });
    assert!(said.contains("4 experts") && said.contains('3'), "{said}");
}

#[test]
fn f21_no_op_can_be_told_where_its_tokens_stand() {
    // What files of an older build carried, and what a crafted file may try.
    for op in ["k_rope", "kv_write", "attention"] {
        for index in [0, 1, 2].map(ValueId) {
            let said = refused(|d| node(d, op).inputs.push(index));
            assert!(said.contains("inputs, has"), "{op}: {said}");
        }
    }
    for name in ["slots", "positions", "horizons"] {
        let said = refused(|d| {
            let value_type = ValueType::indices(Sym::Tokens);
            forward(d).inputs[2] = Input { name: name.into(), value_type };
        });
        assert!(said.starts_with("invalid"), "{name}: {said}");
    }
    // Rows that stand for no token have no position.
    let said = refused(|d| {
        let at = forward(d).nodes.iter().position(|n| n.name == "attention").unwrap();
        let query = forward(d).nodes[at].inputs[0];
        forward(d).inputs[3].value_type = ValueType::rows(Sym::Rows, sample::HIDDEN);
        assert_ne!(query, ValueId(3));
        forward(d).nodes[at].inputs[0] = ValueId(3);
    });
    assert!(said.starts_with("invalid"), "{said}");
}

#[test]
fn f21_a_file_of_an_earlier_build_is_refused_with_what_to_do() {
    let bytes = sample::file();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains(r#""own_key":true"#) && text.contains(r#"{"name":"rows""#));
    // Of the same length, so that the container stays whole.
    let change = |from: &str, to: &str, bytes: &mut Vec<u8>| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    };
    let mut old = bytes.clone();
    change(r#"own_key":true"#, r#"owner":false "#, &mut old);
    change(r#"{"name":"rows","#, r#"{"name":"slots""#, &mut old);
    let said = lapidary_program::lap::from_bytes(lapidary_program::FileBytes::from_vec(old));
    let said = said.map(drop).unwrap_err().to_string();
    assert!(said.contains("export it again"), "{said}");
}

#[test]
fn f21_a_query_sees_its_own_key_only_where_it_is_written() {
    let own = |d: &mut Description, own: bool| match &mut node(d, "attention").op {
        Op::Attention { spec, .. } => spec.own_key = own,
        _ => unreachable!("the sample has an attention of this name"),
    };
    let without_writes = |d: &mut Description| {
        forward(d).nodes.retain(|n| n.name != "kv_write");
    };
    let said = refused(|d| without_writes(d));
    assert!(said.contains("own key"), "{said}");
    let mut d = description();
    without_writes(&mut d);
    own(&mut d, false);
    open(d).unwrap();
    let said = refused(|d| {
        own(d, false);
        match &mut node(d, "attention").op {
            Op::Attention { spec, .. } => spec.bidirectional = true,
            _ => unreachable!("the sample has an attention of this name"),
        }
    });
    assert!(said.contains("own key"), "{said}");
}

#[test]
fn f21_states_that_do_not_fit_are_refused() {
    let add = |d: &mut Description, n_kv_heads, head_dim, window| {
        let mut state = d.states[0].clone();
        (state.name, state.n_kv_heads) = ("other".into(), n_kv_heads);
        (state.head_dim, state.window) = (head_dim, window);
        d.states.push(state);
    };
    let swap = |d: &mut Description, name: &str| match &mut node(d, name).op {
        Op::Attention { state, .. } | Op::KvWrite { state } => *state = "other".into(),
        _ => unreachable!("the sample has an op of this name"),
    };
    for (heads, dim, window) in [(1, 16, Some(5)), (2, 8, Some(5)), (2, 16, Some(4))] {
        let said = refused(|d| {
            add(d, heads, dim, window);
            swap(d, "attention");
            swap(d, "kv_write");
        });
        assert!(said.starts_with("invalid op"), "{said}");
    }
    // One that fits must be written before it is read.
    let said = refused(|d| {
        add(d, 2, 16, Some(5));
        swap(d, "attention");
    });
    assert!(said.contains("own key"), "{said}");
}
