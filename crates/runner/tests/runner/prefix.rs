//! Pages as bytes: saved by one process, restored by another.

use lapidary_backend::KvType;
use lapidary_mock_engine::Mock;
use lapidary_runner::{CancelToken, Error, Runner};
use lapidary_text::Prompt;

use crate::{Job, greedy, text, together};

fn mock() -> Mock {
    Mock { windows: vec![None, Some(200)], ..Mock::default() }.sized(1000, 64, 2)
}

fn saved(mock: &Mock, tokens: &[u32]) -> Vec<u8> {
    let mut runner = Runner::new(mock.engine()).unwrap();
    runner.generate(greedy(tokens, 1), &CancelToken::new(), |_| {}).unwrap();
    let mut bytes = vec![];
    let n = runner.save_prefix(&Prompt::from(tokens.to_vec()), 0, &mut bytes).unwrap();
    assert_eq!(n, tokens.len());
    bytes
}

#[test]
fn what_was_saved_is_as_good_as_run() {
    for n in [1, 127, 128, 129, 500] {
        let tokens = text(n, 0);
        let bytes = saved(&mock(), &tokens);
        let mock = mock();
        let mut runner = Runner::new(mock.engine()).unwrap();
        assert_eq!(runner.restore_prefix(&mut bytes.as_slice(), 0).unwrap(), n);
        // Another time changes nothing.
        assert_eq!(runner.restore_prefix(&mut bytes.as_slice(), 0).unwrap(), n);
        let longer: Vec<u32> = tokens.iter().copied().chain(text(20, 3)).collect();
        let outcome = together(&mut runner, &[Job::greedy(longer.clone(), 10)]).remove(0);
        assert_eq!(outcome.tokens, mock.continuation(&longer, 10));
        assert_eq!(mock.log().n_tokens(), 20 + 9);
        assert_eq!(mock.log().stale, 0);
        // Other scopes know nothing of it.
        mock.clear_log();
        let request = lapidary_runner::Request { scope: 5, ..greedy(&longer, 1) };
        runner.generate(request, &CancelToken::new(), |_| {}).unwrap();
        assert_eq!(mock.log().n_tokens(), n + 20);
    }
}

#[test]
fn nothing_at_hand_is_nothing_saved() {
    let mut runner = Runner::new(mock().engine()).unwrap();
    let mut bytes = vec![];
    assert_eq!(runner.save_prefix(&Prompt::from(text(50, 0)), 0, &mut bytes).unwrap(), 0);
    assert!(bytes.is_empty());
}

#[test]
fn only_the_same_program_takes_it() {
    let bytes = saved(&mock(), &text(300, 0));
    let other_vocab = Mock { vocab_size: 60, ..mock() };
    let other_windows = Mock { windows: vec![None], ..Mock::default() }.sized(1000, 64, 2);
    let mut other_kv = mock();
    other_kv.options.kv = Some(KvType::Int8);
    let short = Mock { max_context_len: 1000, ..mock() }.sized(200, 64, 2);
    for wrong in [other_vocab, other_windows, other_kv, short] {
        let mut runner = Runner::new(wrong.engine()).unwrap();
        let e = runner.restore_prefix(&mut bytes.as_slice(), 0).unwrap_err();
        assert!(matches!(e, Error::Prefix(_)), "{e}");
    }
    // Too few pages are no fault of the file.
    let few = mock().with_pages(2);
    let mut runner = Runner::new(few.engine()).unwrap();
    let e = runner.restore_prefix(&mut bytes.as_slice(), 0).unwrap_err();
    assert!(matches!(&e, Error::Engine(_) | Error::Prefix(_)), "{e}");
}

#[test]
fn damage_is_found_wherever_it_is() {
    let bytes = saved(&mock(), &text(140, 0));
    let mut runner = Runner::new(mock().engine()).unwrap();
    let mut refuse = |bytes: &[u8]| {
        let e = runner.restore_prefix(&mut &bytes[..], 0).unwrap_err();
        assert!(matches!(e, Error::Prefix(_)), "{e}");
    };
    for n in (0..200).chain((200..bytes.len()).step_by(97)).chain([bytes.len() - 1]) {
        refuse(&bytes[..n]);
    }
    for at in (0..200).chain((200..bytes.len()).step_by(97)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        refuse(&damaged);
        // A forger can make the hash right.
        let end = damaged.len() - 32;
        let hash = blake3::hash(&damaged[..end]);
        damaged[end..].copy_from_slice(hash.as_bytes());
        if let Err(e) = runner_of_forgeries().restore_prefix(&mut damaged.as_slice(), 0) {
            assert!(matches!(e, Error::Prefix(_)), "{e}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refuse(&longer);
}

fn runner_of_forgeries() -> Runner {
    Runner::new(mock().engine()).unwrap()
}
