//! Soft tokens: towers are steps of their own, and blocks are never split.

use std::sync::Arc;

use lapidary_mock_engine::Mock;
use lapidary_runner::{
    CancelToken, Error, Event, FinishReason, Request, Rows, Runner, SamplingParams,
};
use lapidary_text::{Prompt, SoftInput, SoftRun};

use crate::{greedy, text};

fn mock(n_sequences: u32) -> Mock {
    let mock = Mock { windows: vec![None, Some(60)], images: true, ..Mock::default() };
    mock.sized(600, 48, n_sequences)
}

fn image(n_soft: usize, byte: u8) -> Arc<SoftInput> {
    Arc::new(SoftInput {
        method: "vision",
        rows: ("patches", (0..3 * n_soft).map(|i| (i * usize::from(byte)) as f32).collect()),
        indices: vec![],
        n_soft,
        block: true,
        hash: [byte; 32],
    })
}

/// Text of 30 tokens, an image, text of 100 tokens, an image, text of 5 tokens.
fn prompt(first: u8, second: u8) -> Prompt {
    let mut tokens = text(30, 0);
    let soft = vec![
        SoftRun { start: 30, input: image(40, first) },
        SoftRun { start: 170, input: image(40, second) },
    ];
    tokens.extend([0; 40]);
    tokens.extend(text(100, 1));
    tokens.extend([0; 40]);
    tokens.extend(text(5, 2));
    Prompt { tokens, soft }
}

fn request(prompt: Prompt, max_new: usize) -> Request {
    Request { max_new, ..Request::new(prompt, SamplingParams::greedy()) }
}

fn answer(runner: &mut Runner, prompt: &Prompt) -> (Vec<u32>, usize) {
    let mut tokens = vec![];
    let finish = runner.generate(request(prompt.clone(), 6), &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    });
    (tokens, finish.unwrap().stats.reused_tokens)
}

fn fresh(prompt: &Prompt) -> Vec<u32> {
    answer(&mut Runner::new(mock(1).engine()).unwrap(), prompt).0
}

#[test]
fn images_are_reused_whole_or_not_at_all() {
    let mock = mock(1);
    let mut runner = Runner::new(mock.engine()).unwrap();
    assert_eq!(answer(&mut runner, &prompt(1, 2)), (fresh(&prompt(1, 2)), 0));
    assert_eq!(mock.log().towers, 2);
    assert_eq!(answer(&mut runner, &prompt(1, 2)), (fresh(&prompt(1, 2)), 214));
    // Another second image: all before it is at hand.
    assert_eq!(answer(&mut runner, &prompt(1, 3)), (fresh(&prompt(1, 3)), 170));
    assert_eq!(answer(&mut runner, &prompt(4, 2)), (fresh(&prompt(4, 2)), 30));
    assert_ne!(fresh(&prompt(1, 3)), fresh(&prompt(1, 2)));
    assert_eq!(mock.log().towers, 4, "rows are kept as well");
    assert_eq!(mock.log().stale, 0);
}

#[test]
fn chunks_of_any_length_give_the_same() {
    let mut runner = Runner::new(mock(1).engine()).unwrap();
    let Prompt { tokens, soft } = prompt(1, 2);
    let mut logits = |chunk| {
        let mut all = vec![];
        let mut sink = |_: usize, rows: &[f32]| all.extend_from_slice(rows);
        runner.logits_with(&tokens, &soft, Rows::All, chunk, &mut sink).unwrap();
        all
    };
    let whole = logits(None);
    assert_eq!(whole.len(), tokens.len() * 48);
    assert_eq!(logits(Some(1)), whole);
    assert_eq!(logits(Some(45)), whole);
    let e = runner.logits_with(
        &tokens,
        &[SoftRun { start: 0, input: image(49, 1) }],
        Rows::Last,
        None,
        &mut |_, _| {},
    );
    assert!(matches!(e, Err(Error::BlockLength { block: 49, chunk: 48 })));
}

#[test]
fn answers_go_on_between_towers() {
    let mock = mock(4);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    let talk = runner.submit(greedy(&text(10, 0), 200), &cancel).unwrap();
    runner.step(&mut |_, _| {});
    for i in 0..3 {
        runner.submit(request(prompt(10 + i, 20 + i), 3), &cancel).unwrap();
    }
    let (mut tokens, mut steps, mut without) = (0, 0, 0);
    let mut answers = vec![];
    while answers.len() < 3 {
        let before = tokens;
        runner.step(&mut |id, event| match event {
            Event::Token { .. } if id == talk => tokens += 1,
            Event::Finished(finish) => answers.push((id, finish.reason)),
            _ => {}
        });
        without = if tokens == before { without + 1 } else { 0 };
        assert!(without <= 1, "two steps without a token of the answer");
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(mock.log().towers, 6);
    assert!(answers.iter().all(|(_, reason)| *reason == FinishReason::Length));
}

#[test]
fn many_at_once_are_as_alone() {
    let mock = mock(3).with_pages(6);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let prompts: Vec<Prompt> = (0..8).map(|i| prompt(i % 3 + 1, i + 1)).collect();
    let cancel = CancelToken::new();
    let names: Vec<_> = prompts
        .iter()
        .map(|prompt| runner.submit(request(prompt.clone(), 6), &cancel).unwrap())
        .collect();
    let mut tokens = vec![vec![]; prompts.len()];
    while runner.step(&mut |name, event| {
        let i = names.iter().position(|n| *n == name).unwrap();
        match event {
            Event::Token { id, .. } => tokens[i].push(id),
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }) {}
    for (prompt, tokens) in prompts.iter().zip(tokens) {
        assert_eq!(tokens, fresh(prompt));
    }
    assert_eq!(mock.log().stale, 0);
}

#[test]
fn a_tower_of_a_cancelled_request_never_runs() {
    let mock = mock(1);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    runner.submit(request(prompt(1, 2), 3), &cancel).unwrap();
    runner.step(&mut |_, _| {});
    assert_eq!(mock.log().towers, 1);
    cancel.cancel();
    while runner.step(&mut |_, _| {}) {}
    assert_eq!(mock.log().towers, 1);
}
