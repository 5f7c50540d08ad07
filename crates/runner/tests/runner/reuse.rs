//! What was run before is not run again. More of this, on real engines as well, is in
//! `conformance/tests/sharing`.

use lapidary_mock_engine::Mock;
use lapidary_runner::Runner;

use crate::{Job, greedy, text, together};

fn mock(max_context: u32, n_sequences: u32) -> Mock {
    Mock { windows: vec![None, Some(512)], ..Mock::default() }.sized(max_context, 512, n_sequences)
}

#[test]
fn a_prefix_is_found_when_others_have_gone() {
    let mock = mock(5000, 2);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let prefix = text(1024, 0);
    for i in 0..6 {
        let prompt: Vec<u32> = prefix.iter().copied().chain(text(30, 10 + i)).collect();
        let outcome = together(&mut runner, &[Job::greedy(prompt.clone(), 10)]).remove(0);
        assert_eq!(outcome.tokens, mock.continuation(&prompt, 10));
    }
    let n = mock.log().n_tokens();
    assert!(n <= 1024 + 6 * 40, "{n} tokens");
}

#[test]
fn statistics_count_what_was_at_hand() {
    let mock = mock(1000, 1);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = lapidary_runner::CancelToken::new();
    let mut reused = |n: usize| {
        let finish = runner.generate(greedy(&text(n, 0), 1), &cancel, |_| {}).unwrap();
        finish.stats.reused_tokens
    };
    assert_eq!(reused(300), 0);
    assert_eq!(reused(300), 299);
    assert_eq!(reused(200), 199);
    assert_eq!(reused(500), 300);
}
