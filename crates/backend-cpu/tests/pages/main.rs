//! KV pages: their order, sharing, copies and bytes change no bit of any result; and what becomes of
//! outputs.

mod sample;

use lapidary_backend::{
    Call, Draw, DrawRule, Error, Feed, FeedData, KvType, PAGE, PageId, Results, Span, StopFlag,
    TicketRows, TopK, Want, Wanted,
};
use lapidary_program::{input, output};
use sample::{CHUNK, HIDDEN, Sequence, VOCAB, feed, load, tokens, try_feed};

/// Tokens of all tests: more than three pages.
const LEN: usize = 3 * PAGE + 11;

/// The logits of a sequence in consecutive pages, in one call.
fn truth(kv: KvType, tokens: &[i32]) -> Vec<f32> {
    feed(&mut *load(kv), &mut Sequence::new(0..4), tokens)
}

#[test]
fn pages_in_any_order_and_calls_of_any_length_change_no_bit() {
    let prompt = tokens(LEN, 1);
    for kv in KvType::ALL {
        let truth = truth(kv, &prompt);
        assert!(truth.iter().all(|x| x.is_finite()));
        let mut engine = load(kv);
        // One engine: pages hold what the sequence before has left there.
        for (pages, len) in [([9, 2, 7, 4], LEN), ([3, 2, 1, 0], 77), ([0, 20, 4, 29], 1)] {
            let mut sequence = Sequence::new(pages);
            let got: Vec<f32> = prompt
                .chunks(len)
                .flat_map(|part| feed(&mut *engine, &mut sequence, part))
                .collect();
            assert!(got == truth, "{kv:?}, {pages:?} by {len}");
        }
    }
}

#[test]
fn sequences_side_by_side_change_no_bit() {
    let prompts = [tokens(LEN, 1), tokens(LEN, 2), tokens(LEN, 3)];
    for kv in KvType::ALL {
        let truths = prompts.each_ref().map(|prompt| truth(kv, prompt));
        let mut engine = load(kv);
        let mut sequences = [[1, 4, 7, 10], [0, 3, 6, 9], [2, 5, 8, 11]].map(Sequence::new);
        let mut got = [const { Vec::new() }; 3];
        // The first goes on alone, then all go on together by parts of different lengths.
        got[0].extend(feed(&mut *engine, &mut sequences[0], &prompts[0][..150]));
        while got.iter().zip(&truths).any(|(got, truth)| got.len() < truth.len()) {
            let mut fed: Vec<(usize, (&mut Sequence, &[i32]))> = Vec::new();
            for (i, sequence) in sequences.iter_mut().enumerate() {
                let start = sequence.len as usize;
                let end = (start + [1, 64, 99][i]).min(LEN);
                if start < end {
                    fed.push((i, (sequence, &prompts[i][start..end])));
                }
            }
            let (numbers, mut fed): (Vec<usize>, Vec<_>) = fed.into_iter().unzip();
            for (i, logits) in numbers.into_iter().zip(try_feed(&mut *engine, &mut fed).unwrap()) {
                got[i].extend(logits);
            }
        }
        assert!(got == truths, "{kv:?}");
    }
}

#[test]
fn a_shared_beginning_is_read_by_all() {
    let (one, mut other) = (tokens(LEN, 1), tokens(LEN, 2));
    other[..2 * PAGE].copy_from_slice(&one[..2 * PAGE]);
    for kv in KvType::ALL {
        let mut engine = load(kv);
        let mut first = Sequence::new([8, 1, 5, 0]);
        feed(&mut *engine, &mut first, &one);
        // The other has the pages of the beginning, and its own after them.
        let mut second = Sequence::new([8, 1, 3, 2]);
        second.len = 2 * PAGE as u32;
        let got = feed(&mut *engine, &mut second, &other[2 * PAGE..]);
        assert!(got == truth(kv, &other)[2 * PAGE * VOCAB as usize..], "{kv:?}");
    }
}

#[test]
fn a_page_may_be_shared_in_one_call_but_not_written_by_two() {
    let prompt = tokens(2 * PAGE + 1, 1);
    let mut engine = load(KvType::F32);
    let mut first = Sequence::new([8, 1, 5]);
    feed(&mut *engine, &mut first, &prompt[..2 * PAGE]);
    let mut second = Sequence { len: first.len, ..Sequence::new([8, 1, 3]) };
    let last = &prompt[2 * PAGE..];
    let both = [(&mut first.clone(), last), (&mut second, last)];
    let got = try_feed(&mut *engine, &mut { both }).unwrap();
    let whole = truth(KvType::F32, &prompt);
    assert!(got.iter().all(|got| *got == whole[2 * PAGE * VOCAB as usize..]));
    let both = [(&mut first.clone(), last), (&mut first.clone(), last)];
    let refused = try_feed(&mut *engine, &mut { both }).unwrap_err();
    assert!(refused.to_string().contains("page 5"), "{refused}");
}

#[test]
fn a_copy_goes_its_own_way() {
    let (one, mut other) = (tokens(LEN, 1), tokens(LEN, 2));
    let fork = 2 * PAGE + 40;
    other[..fork].copy_from_slice(&one[..fork]);
    for kv in KvType::ALL {
        let mut engine = load(kv);
        let mut first = Sequence::new([8, 1, 5, 0]);
        feed(&mut *engine, &mut first, &one[..fork]);
        for group in 0..2 {
            engine.copy_pages(group, &[(PageId(5), PageId(7))]).unwrap();
        }
        let mut second = Sequence { len: first.len, ..Sequence::new([8, 1, 7, 2]) };
        let after = fork * VOCAB as usize;
        let got = feed(&mut *engine, &mut second, &other[fork..]);
        assert!(got == truth(kv, &other)[after..], "{kv:?}: the copy");
        let got = feed(&mut *engine, &mut first, &one[fork..]);
        assert!(got == truth(kv, &one)[after..], "{kv:?}: the original");
    }
}

#[test]
fn pages_go_to_another_engine_and_back() {
    let prompt = tokens(LEN, 1);
    let most = LEN - 30;
    for kv in KvType::ALL {
        let (mut from, mut to) = (load(kv), load(kv));
        let sequence = &mut Sequence::new([8, 1, 5, 0]);
        feed(&mut *from, sequence, &prompt[..most]);
        let mut moved = Sequence { len: sequence.len, ..Sequence::new([3, 9, 0, 29]) };
        let mut bytes = vec![1, 2, 3];
        for (old, new) in sequence.all.iter().zip(&moved.all) {
            for group in 0..2 {
                from.read_page(group, *old, &mut bytes).unwrap();
                assert_eq!(bytes.len(), from.page_bytes(group));
                to.write_page(group, *new, &bytes).unwrap();
                let mut again = Vec::new();
                to.read_page(group, *new, &mut again).unwrap();
                assert!(again == bytes, "{kv:?}");
            }
        }
        let got = feed(&mut *to, &mut moved, &prompt[most..]);
        assert!(got == truth(kv, &prompt)[most * VOCAB as usize..], "{kv:?}");
    }
}

#[test]
fn pages_before_a_window_are_given_up() {
    let prompt = tokens(LEN, 1);
    for kv in KvType::ALL {
        let truth = truth(kv, &prompt);
        for len in [1, 60, 130] {
            let mut engine = load(kv);
            let mut sequence = Sequence::new([8, 1, 5, 0]);
            let mut got = Vec::new();
            for part in prompt.chunks(len) {
                got.extend(feed(&mut *engine, &mut sequence, part));
                sequence.slide();
            }
            assert!(sequence.near_first == 2 && sequence.near.len() == 2);
            assert!(got == truth, "{kv:?} by {len}");
        }
    }
}

#[test]
fn pages_that_are_not_there_are_refused() {
    let mut engine = load(KvType::Bf16);
    let mut bytes = Vec::new();
    assert!(matches!(engine.read_page(0, PageId(30), &mut bytes), Err(Error::Device(_))));
    assert!(matches!(engine.read_page(2, PageId(0), &mut bytes), Err(Error::Device(_))));
    assert!(engine.copy_pages(1, &[(PageId(0), PageId(30))]).is_err());
    engine.read_page(0, PageId(29), &mut bytes).unwrap();
    assert!(engine.write_page(0, PageId(29), &bytes[1..]).is_err());
    assert!(engine.write_page(0, PageId(29), &bytes).is_ok());
}

/// A call of some tokens of a sequence, asking for the last row.
fn with_call<T>(
    sequence: &Sequence,
    data: FeedData<'_>,
    (len, wants): (usize, &[Wanted<'_>]),
    f: impl FnOnce(&Call<'_>) -> T,
) -> T {
    let (tables, rows) = (sequence.tables(), [len as i32 - 1]);
    let call = Call {
        method: "forward",
        feeds: &[Feed { name: input::TOKENS, data }, Feed::i32(input::ROWS, &rows)],
        spans: &[Span { start: sequence.len, len: len as u32, tables: &tables }],
        wants,
        ..Call::default()
    };
    f(&call)
}

fn last_row(logits: &[f32]) -> &[f32] {
    &logits[logits.len() - VOCAB as usize..]
}

#[test]
fn outputs_become_what_was_wanted() {
    let prompt = tokens(70, 4);
    let logits = truth(KvType::F32, &prompt);
    let best = last_row(&logits).iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut engine = load(KvType::F32);
    let sequence = Sequence::new([3]);
    let top = TopK { logsumexp: true, ..TopK::of(5) };
    let wants = [Wanted { output: output::LOGITS, want: Want::TopK(top) }];
    let mut results = Results::default();
    with_call(&sequence, FeedData::I32(&prompt), (70, &wants), |call| {
        engine.run(call, &mut results).unwrap();
    });
    let found = results.get(output::LOGITS).unwrap();
    assert_eq!((found.rows, found.per_row, found.data.len()), (1, 5, 0));
    assert_eq!(found.candidates_of(0)[0].value, best);
    assert_eq!(found.logsumexp.len(), 1);
    assert!(results.get(output::HIDDEN).is_none(), "nobody asked for it");
    // What nobody wants need not be made, but keys and values must be.
    with_call(&sequence, FeedData::I32(&prompt), (70, &[]), |call| {
        engine.run(call, &mut results).unwrap();
    });
    assert!(results.outputs().is_empty());
    let mut sequence = Sequence { len: 70, ..sequence };
    let next = feed(&mut *engine, &mut sequence, &[5]);
    let whole = truth(KvType::F32, &[prompt, vec![5]].concat());
    assert!(next == last_row(&whole));
}

#[test]
fn a_drawn_token_feeds_the_next_call() {
    let prompt = tokens(70, 4);
    let mut engine = load(KvType::F32);
    let sequence = Sequence::new([3]);
    let rule =
        DrawRule { temperature: 0.7, top_k: 0, top_p: 0.95, min_p: 0.0, seed: 11, position: 70 };
    let draw = Draw { top: TopK::of(20), rules: &[rule] };
    let wants = [Wanted { output: output::LOGITS, want: Want::Draw(draw) }];
    let ticket = with_call(&sequence, FeedData::I32(&prompt), (70, &wants), |call| {
        engine.submit(call).unwrap()
    });
    let mut results = Results::default();
    assert!(engine.poll(ticket, &mut results).unwrap());
    let drawn = results.get(output::LOGITS).unwrap().drawn[0];
    let sequence = Sequence { len: 70, ..sequence };
    let rows = FeedData::Of(TicketRows { ticket, output: output::LOGITS, rows: &[0] });
    let wants = [Wanted::whole(output::LOGITS)];
    with_call(&sequence, rows, (1, &wants), |call| engine.run(call, &mut results).unwrap());
    let whole = truth(KvType::F32, &[prompt, vec![drawn as i32]].concat());
    assert!(results.get(output::LOGITS).unwrap().data == last_row(&whole));
    engine.release(ticket);
    let gone = with_call(&sequence, rows, (1, &wants), |call| engine.submit(call).unwrap_err());
    assert!(matches!(gone, Error::UnknownTicket(_)), "{gone}");
}

#[test]
fn what_was_kept_feeds_another_method() {
    let prompt = tokens(9, 4);
    let mut engine = load(KvType::F32);
    let sequence = Sequence::new([3]);
    let wants = [
        Wanted { output: output::HIDDEN, want: Want::Keep },
        Wanted { output: output::LOGITS, want: Want::Draw(Draw { top: TopK::of(1), rules: &[] }) },
    ];
    let ticket = with_call(&sequence, FeedData::I32(&prompt), (9, &wants), |call| {
        engine.submit(call).unwrap()
    });
    let mut results = Results::default();
    let wants = [Wanted::whole(output::HIDDEN)];
    with_call(&sequence, FeedData::I32(&prompt), (9, &wants), |call| {
        engine.run(call, &mut results).unwrap();
    });
    let hidden = results.get(output::HIDDEN).unwrap().data.clone();
    assert_eq!(hidden.len(), HIDDEN as usize);
    let mut again = |data: FeedData<'_>| {
        let feeds = [Feed { name: "x", data }];
        let wants = [Wanted::whole("y")];
        let call = Call { method: "again", feeds: &feeds, wants: &wants, ..Call::default() };
        engine.run(&call, &mut results).map(|()| results.get("y").unwrap().data.clone())
    };
    let of = |output, rows| FeedData::Of(TicketRows { ticket, output, rows });
    let truth = again(FeedData::F32(&hidden)).unwrap();
    assert_eq!(again(of(output::HIDDEN, &[0])).unwrap(), truth);
    assert_eq!(again(of(output::HIDDEN, &[0, 0])).unwrap(), [&truth[..], &truth].concat());
    assert!(again(of(output::HIDDEN, &[1])).is_err(), "there is one row");
    assert!(again(of(output::LOGITS, &[])).is_err(), "tokens are no activations");
}

#[test]
fn a_call_ends_when_it_is_told_to() {
    let mut engine = load(KvType::F32);
    let sequence = Sequence::new(0..4);
    let prompt = tokens(CHUNK as usize, 1);
    let stop = StopFlag::new();
    let mut shown = 0;
    let ended = with_call(&sequence, FeedData::I32(&prompt), (prompt.len(), &[]), |call| {
        let call = Call { stop: Some(&stop), ..*call };
        engine.trace(&call, &mut |_, _| {
            shown += 1;
            stop.set();
        })
    });
    assert!(matches!(ended, Err(Error::Stopped)));
    assert_eq!(shown, 1);
    // What it has left undone does no harm.
    let got = feed(&mut *engine, &mut Sequence::new(0..4), &prompt);
    assert!(got == truth(KvType::F32, &prompt));
}

#[test]
fn a_trace_shows_every_node() {
    let mut engine = load(KvType::F32);
    let program = engine.program().clone();
    let graph = &program.methods()["forward"].graph;
    let mut nodes = Vec::new();
    with_call(&Sequence::new([0]), FeedData::I32(&[1, 2, 3]), (3, &[]), |call| {
        engine.trace(call, &mut |node, data| {
            assert!(!data.is_empty());
            nodes.push(node);
        })
    })
    .unwrap();
    let makes_floats = |i: &usize| graph.nodes[*i].op.n_outputs() > 0;
    let all: Vec<usize> = (0..graph.nodes.len()).filter(makes_floats).collect();
    assert_eq!(nodes, all);
}
