//! The mock is what tests above the contract take for the truth, so it is tested itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lapidary_backend::{
    Abilities, Call, Draw, DrawRule, Engine, Error, Feed, FeedData, PAGE, PageId, PageTable,
    Result, Results, Span, Ticket, TicketRows, TopK, Want, Wanted,
};
use lapidary_mock_engine::{Fault, Mock};
use lapidary_program::{input, method, output};

const WHOLE: &[Wanted<'_>] = &[Wanted { output: output::LOGITS, want: Want::Whole }];

/// One cache with a window of 40 and one without, for three sequences of 300 tokens.
fn mock() -> Mock {
    Mock { windows: vec![Some(40), None], ..Mock::default() }.sized(300, 160, 3)
}

fn text(n: usize) -> Vec<i32> {
    (0..n).map(|i| (i * i % 47) as i32).collect()
}

/// Where consecutive tokens stand: the first position, how many, and the pages of both groups.
struct Place<'a> {
    start: usize,
    len: usize,
    pages: &'a [u32],
}

/// Submits a call that asks for the row after the last token of every span.
fn submit(
    engine: &mut dyn Engine,
    places: &[Place<'_>],
    tokens: FeedData<'_>,
    wants: &[Wanted<'_>],
) -> Result<Ticket> {
    let ids = |place: &Place<'_>| place.pages.iter().map(|n| PageId(*n)).collect();
    let pages: Vec<Vec<PageId>> = places.iter().map(ids).collect();
    let tables: Vec<[PageTable<'_>; 2]> =
        pages.iter().map(|pages| [PageTable { first: 0, pages }; 2]).collect();
    let spans = places.iter().zip(&tables).map(|(place, tables)| Span {
        start: place.start as u32,
        len: place.len as u32,
        tables,
    });
    let spans: Vec<Span<'_>> = spans.collect();
    let mut end = 0;
    let rows = places.iter().map(|place| {
        end += place.len as i32;
        end - 1
    });
    let rows: Vec<i32> = rows.collect();
    engine.submit(&Call {
        method: method::FORWARD,
        feeds: &[Feed { name: input::TOKENS, data: tokens }, Feed::i32(input::ROWS, &rows)],
        spans: &spans,
        wants,
        ..Call::default()
    })
}

/// The logits after some tokens of one sequence.
fn run(engine: &mut dyn Engine, start: usize, tokens: &[i32], pages: &[u32]) -> Result<Vec<f32>> {
    let place = Place { start, len: tokens.len(), pages };
    let ticket = submit(engine, &[place], FeedData::I32(tokens), WHOLE)?;
    let mut results = Results::default();
    engine.wait(ticket, &mut results)?;
    Ok(results.get(output::LOGITS).unwrap().data.clone())
}

fn oracle(mock: &Mock, tokens: &[i32]) -> Vec<f32> {
    let mut oracle = mock.oracle();
    tokens.iter().for_each(|token| oracle.push(*token as u32));
    oracle.logits()
}

#[test]
fn chunks_in_any_pages_give_what_the_oracle_says() {
    let mock = mock();
    let text = text(290);
    for (pages, cuts) in
        [([0, 1, 2], vec![150, 290]), ([4, 0, 3], vec![1, 127, 128, 129, 289, 290])]
    {
        let mut engine = mock.engine();
        let mut start = 0;
        for end in cuts {
            let logits = run(engine.as_mut(), start, &text[start..end], &pages).unwrap();
            assert_eq!(logits, oracle(&mock, &text[..end]), "up to {end}");
            start = end;
        }
    }
    assert_eq!(mock.log().stale, 0);
    assert_eq!(mock.log().n_tokens(), 2 * 290);
}

#[test]
fn a_wrong_page_changes_the_answer_and_is_counted() {
    let mock = mock();
    let mut engine = mock.engine();
    let text = text(140);
    run(engine.as_mut(), 0, &text[..130], &[0, 1]).unwrap();
    let wrong = run(engine.as_mut(), 130, &text[130..], &[2, 1]).unwrap();
    assert_ne!(wrong, oracle(&mock, &text));
    // The window of 40 sees 38 keys of the page that was never written first, and fewer each time;
    // the other group all 128, ten times.
    assert_eq!(mock.log().stale, (29..=38).rev().map(|n| n - 1).sum::<usize>() + 10 * 128);
}

#[test]
fn spans_share_what_they_read_and_nothing_that_is_written() {
    let mock = mock();
    let mut engine = mock.engine();
    let text = text(200);
    run(engine.as_mut(), 0, &text[..PAGE], &[0]).unwrap();
    let tokens = [text[PAGE], text[PAGE] + 1];
    let mut both = |a: &[u32], b: &[u32]| {
        let place = |pages| Place { start: PAGE, len: 1, pages };
        submit(engine.as_mut(), &[place(a), place(b)], FeedData::I32(&tokens), WHOLE)
    };
    let refused = |done: Result<Ticket>, words: &str| {
        let e = done.unwrap_err();
        assert!(matches!(&e, Error::Feed { what, .. } if what.contains(words)), "{e}");
    };
    refused(both(&[0, 1], &[0, 1]), "two spans write page 1");
    refused(both(&[0, 1], &[1, 2]), "span 1 reads page 1 of KV group");
    refused(both(&[2, 1], &[0, 2]), "span 0 reads page 2 of KV group");
    let ticket = both(&[0, 1], &[0, 2]).unwrap();
    let mut results = Results::default();
    engine.wait(ticket, &mut results).unwrap();
    let logits = results.get(output::LOGITS).unwrap();
    for (row, token) in tokens.iter().enumerate() {
        assert_eq!(logits.row(row), oracle(&mock, &[&text[..PAGE], &[*token]].concat()));
    }
    // A page that is in a table, but out of reach of the window and of the context, is nobody's
    // business.
    let near = Mock { windows: vec![Some(40)], ..Mock::default() }.sized(300, 160, 3);
    let mut engine = near.engine();
    for (start, pages) in [(0, [0, 1, 2]), (200, [1, 3, 4])] {
        let tokens = &text[..30];
        let ids: Vec<PageId> = pages.iter().map(|n| PageId(*n)).collect();
        let tables = [PageTable { first: 0, pages: &ids }];
        let call = Call {
            method: method::FORWARD,
            feeds: &[Feed::i32(input::TOKENS, tokens), Feed::i32(input::ROWS, &[29])],
            spans: &[Span { start, len: 30, tables: &tables }],
            ..Call::default()
        };
        engine.run(&call, &mut results).unwrap();
    }
}

#[test]
fn faults_happen_to_the_call_that_they_were_ordered_for() {
    let text = text(20);
    for fault in [Fault::Nan, Fault::Error, Fault::LateError, Fault::Panic] {
        let mock = mock();
        mock.fail(1, fault);
        let mut engine = mock.engine();
        run(engine.as_mut(), 0, &text[..10], &[0]).unwrap();
        let again = |engine: &mut dyn Engine| run(engine, 10, &text[10..], &[0]);
        let done = catch_unwind(AssertUnwindSafe(|| again(engine.as_mut())));
        match (fault, done) {
            (Fault::Nan, Ok(Ok(logits))) => {
                assert_eq!(logits.iter().filter(|x| x.is_nan()).count(), 1);
            }
            (Fault::Error | Fault::LateError, Ok(Err(e))) => {
                assert!(matches!(e, Error::Device(_)), "{e}");
                // What it wrote is of no use.
                let next = run(engine.as_mut(), 20, &[1], &[0]).unwrap();
                assert_ne!(next, oracle(&mock, &[text.as_slice(), &[1]].concat()));
            }
            (Fault::Panic, Err(_)) => {}
            (_, done) => panic!("{fault:?}: {done:?}"),
        }
        // The third call is as it should be.
        assert_eq!(again(engine.as_mut()).unwrap(), oracle(&mock, &text));
    }
}

const GREEDY: DrawRule =
    DrawRule { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };

#[test]
fn drawn_tokens_feed_the_next_call() {
    let abilities = Abilities { max_top_k: 64, prefers_top_k: true, max_in_flight: 2 };
    let text = text(10);
    for wrong_draws in [0, 1] {
        let mock = Mock { abilities, wrong_draws, ..mock() };
        let mut engine = mock.engine();
        let rules = [GREEDY];
        let draw = Want::Draw(Draw { top: TopK::of(8), rules: &rules });
        let wants = [Wanted { output: output::LOGITS, want: draw }];
        let at = |start, len| [Place { start, len, pages: &[0] }];
        let first = submit(engine.as_mut(), &at(0, 10), FeedData::I32(&text), &wants).unwrap();
        let of = |ticket, rows| FeedData::Of(TicketRows { ticket, output: output::LOGITS, rows });
        let next = submit(engine.as_mut(), &at(10, 1), of(first, &[0]), WHOLE).unwrap();
        let mut results = Results::default();
        engine.wait(first, &mut results).unwrap();
        let best = mock.greedy(&text.iter().map(|token| *token as u32).collect::<Vec<_>>());
        let out = results.get(output::LOGITS).unwrap();
        assert_eq!(out.candidates_of(0)[0].index, best);
        let drawn = out.drawn[0];
        assert_eq!(drawn == best, wrong_draws == 0);
        engine.wait(next, &mut results).unwrap();
        let seen = [text.as_slice(), &[drawn as i32]].concat();
        assert_eq!(results.get(output::LOGITS).unwrap().data, oracle(&mock, &seen));
        let log = mock.log();
        assert_eq!((log.fed, log.in_flight), (1, 2));
        drop(log);
        // Rows that are not there, and calls that are not known.
        let e = submit(engine.as_mut(), &at(11, 1), of(first, &[1]), WHOLE).unwrap_err();
        assert!(matches!(e, Error::Feed { .. }), "{e}");
        engine.release(first);
        let e = submit(engine.as_mut(), &at(11, 1), of(first, &[0]), WHOLE).unwrap_err();
        assert!(matches!(e, Error::UnknownTicket(_)), "{e}");
    }
}

#[test]
fn time_goes_by_with_calls_and_polls_are_counted() {
    let cost = (Duration::from_millis(10), Duration::from_millis(1));
    let abilities = Abilities { max_in_flight: 2, ..Mock::default().abilities };
    let mock = Mock { cost, abilities, polls: 2, ..mock() };
    let mut engine = mock.engine();
    let text = text(7);
    let mut start = |at, tokens: &[i32]| {
        let place = Place { start: at, len: tokens.len(), pages: &[0] };
        submit(engine.as_mut(), &[place], FeedData::I32(tokens), WHOLE).unwrap()
    };
    let tickets = [start(0, &text[..5]), start(5, &text[5..])];
    assert_eq!(mock.clock.now(), Duration::ZERO);
    let mut results = Results::default();
    for (ticket, end) in tickets.into_iter().zip([15, 27]) {
        assert!(!engine.poll(ticket, &mut results).unwrap());
        assert!(!engine.poll(ticket, &mut results).unwrap());
        assert!(engine.poll(ticket, &mut results).unwrap());
        assert_eq!(mock.clock.now(), Duration::from_millis(end));
    }
}

#[test]
fn pages_are_copied_and_carried_to_another_engine() {
    let mock = mock();
    let text = text(140);
    let mut engine = mock.engine();
    run(engine.as_mut(), 0, &text[..130], &[0, 1]).unwrap();
    let mut other = mock.engine();
    for group in [0, 1] {
        engine.copy_pages(group, &[(PageId(0), PageId(3)), (PageId(1), PageId(2))]).unwrap();
        for page in [0, 1] {
            let mut bytes = vec![];
            engine.read_page(group, PageId(page), &mut bytes).unwrap();
            assert_eq!(bytes.len(), engine.page_bytes(group));
            other.write_page(group, PageId(page + 2), &bytes).unwrap();
            assert!(other.write_page(group, PageId(0), &bytes[1..]).is_err());
        }
    }
    let wanted = oracle(&mock, &text);
    assert_eq!(run(engine.as_mut(), 130, &text[130..], &[3, 2]).unwrap(), wanted);
    assert_eq!(run(other.as_mut(), 130, &text[130..], &[2, 3]).unwrap(), wanted);
    let log = mock.log();
    assert_eq!((log.stale, log.copied), (0, 4));
}
