//! One request at a time: budget, stopping, cancelling, errors, statistics.

use lapidary_mock_engine::{Fault, Mock};
use lapidary_runner::{
    CancelToken, Error, Event, Finish, FinishReason, Request, Rows, Runner, SamplingParams,
};
use lapidary_text::{self as text, ChatInput, Message};

use crate::greedy;

const TOKENIZER: &str = include_str!("../../../text/tests/data/tokenizer.json");

struct Answer {
    finish: Finish,
    tokens: Vec<u32>,
    text: String,
}

fn run(runner: &mut Runner, request: Request) -> Result<Answer, Error> {
    let (mut tokens, mut text) = (vec![], String::new());
    let finish = runner.generate(request, &CancelToken::new(), |event| match event {
        Event::Token { id, .. } => tokens.push(id),
        Event::Text { text: new } => {
            assert!(!new.is_empty());
            text.push_str(new);
        }
        Event::Thinking { .. } | Event::Call(_) => panic!("there is no parser"),
        Event::Finished(_) | Event::Failed(_) => {}
        Event::PromptLogprobs { .. } | Event::Embedding { .. } => {}
    })?;
    Ok(Answer { finish, tokens, text })
}

/// What the mock says, token by token.
fn continuation(mock: &Mock, prompt: &[u32], n: usize) -> Vec<u32> {
    mock.continuation(prompt, n)
}

fn with_text() -> Mock {
    Mock { vocab_size: 396, tokenizer: Some(TOKENIZER), ..Mock::default() }
}

#[test]
fn the_budget_is_what_the_context_leaves() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    assert_eq!(runner.max_context(), 64);
    let prompt: Vec<u32> = (0..60).map(|i| i % 48).collect();
    for (asked, new) in [(1, 1), (3, 3), (4, 4), (5, 4), (usize::MAX, 4)] {
        let answer = run(&mut runner, greedy(&prompt, asked)).unwrap();
        assert_eq!(answer.tokens, continuation(&mock, &prompt, new));
        assert_eq!(answer.finish.reason, FinishReason::Length);
        assert_eq!(answer.finish.stats.new_tokens, new);
    }
    let long: Vec<u32> = (0..63).map(|i| i % 48).collect();
    assert_eq!(run(&mut runner, greedy(&long, 9)).unwrap().tokens.len(), 1);
}

#[test]
fn bad_requests_are_refused_before_anything_runs() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let full: Vec<u32> = vec![1; 64];
    let e = run(&mut runner, greedy(&full, 1)).err().unwrap();
    assert!(matches!(e, Error::ContextLength { prompt: 64, max_context: 64 }), "{e}");
    assert!(e.to_string().contains("64 tokens"), "{e}");
    let e = run(&mut runner, greedy(&[], 1)).err().unwrap();
    assert!(matches!(e, Error::EmptyPrompt));
    let e = run(&mut runner, greedy(&[48], 1)).err().unwrap();
    assert!(matches!(e, Error::TokenId { id: 48, vocab_size: 48 }));
    let e = run(&mut runner, greedy(&[1], 0)).err().unwrap();
    assert!(matches!(e, Error::Param { param: "max_tokens", .. }));
    let stop = Request { stop: vec!["x".into()], ..greedy(&[1], 1) };
    assert!(matches!(run(&mut runner, stop).err().unwrap(), Error::Text(text::Error::NoTokenizer)));
    let e = runner.text_prompt("hi").unwrap_err();
    assert!(matches!(e, Error::Text(text::Error::NoTokenizer)));
    assert!(mock.log().calls.is_empty());
}

#[test]
fn an_end_token_stops_even_as_the_first_and_is_not_shown() {
    let plain = Mock::default();
    let answer = continuation(&plain, &[5, 6], 6);
    for (at, eos) in answer.iter().enumerate() {
        let first = answer.iter().position(|t| t == eos).unwrap();
        let mock = Mock { eos_ids: vec![*eos], ..Mock::default() };
        let mut runner = Runner::new(mock.engine()).unwrap();
        let got = run(&mut runner, greedy(&[5, 6], 6)).unwrap();
        assert_eq!(got.tokens, answer[..first], "stop at {at}");
        assert_eq!(got.finish.reason, FinishReason::Stop);
        assert_eq!(got.finish.stop_id, Some(*eos));
        assert_eq!(got.finish.stats.new_tokens, first + 1);
        // The request's own stop ids do the same, and `ignore_eos` undoes the program's.
        let mut runner = Runner::new(plain.engine()).unwrap();
        let request = Request { stop_ids: vec![*eos], ..greedy(&[5, 6], 6) };
        assert_eq!(run(&mut runner, request).unwrap().tokens, answer[..first]);
        let mut runner = Runner::new(mock.engine()).unwrap();
        let request = Request { ignore_eos: true, ..greedy(&[5, 6], 6) };
        assert_eq!(run(&mut runner, request).unwrap().tokens, answer);
        assert_eq!(runner.greedy(&[5, 6], 6).unwrap(), answer);
    }
}

#[test]
fn suppressed_tokens_are_never_sampled() {
    let plain = Mock::default();
    let first = plain.greedy(&[5]);
    let mock = Mock { suppress_ids: vec![first], ..Mock::default() };
    let mut runner = Runner::new(mock.engine()).unwrap();
    assert_ne!(run(&mut runner, greedy(&[5], 1)).unwrap().tokens, [first]);
    let all = SamplingParams { suppress: (0..48).collect(), ..SamplingParams::default() };
    let e = run(&mut runner, Request::new(vec![5], all)).err().unwrap();
    assert!(matches!(e, Error::AllMasked));
    // The raw continuation knows no suppression.
    assert_eq!(runner.greedy(&[5], 1).unwrap(), [first]);
}

#[test]
fn stop_strings_are_cut_and_what_was_held_back_is_shown_at_the_end() {
    let mock = with_text();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let whole = run(&mut runner, greedy(&[20, 30], 40)).unwrap();
    assert!(whole.text.chars().count() > 10, "{:?}", whole.text);
    let chars: Vec<char> = whole.text.chars().collect();
    for at in 0..chars.len() - 3 {
        let stop: String = chars[at..at + 3].iter().collect();
        let request = Request { stop: vec!["\u{1}".into(), stop.clone()], ..greedy(&[20, 30], 40) };
        let cut = run(&mut runner, request).unwrap();
        let expected = &whole.text[..whole.text.find(&stop).unwrap()];
        assert_eq!(cut.text, expected, "{stop:?}");
        assert_eq!(cut.finish.reason, FinishReason::Stop);
        assert_eq!(cut.finish.stop_string, Some(1));
        assert!(whole.tokens.starts_with(&cut.tokens));
    }
    // A stop that never completes holds nothing back in the end.
    let last: String = chars[chars.len() - 2..].iter().collect();
    let request = Request { stop: vec![format!("{last}never")], ..greedy(&[20, 30], 40) };
    let kept = run(&mut runner, request).unwrap();
    assert_eq!(kept.text, whole.text);
    assert_eq!(kept.finish.reason, FinishReason::Length);
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_one_does_not() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let mut sample = |seed| {
        let params = SamplingParams { seed, top_k: 20, ..SamplingParams::default() };
        let request = Request { max_new: 30, ..Request::new(vec![1, 2, 3], params) };
        let answer = run(&mut runner, request).unwrap();
        (answer.tokens, answer.finish.stats.seed)
    };
    let (first, seed) = sample(Some(11));
    assert_eq!(seed, 11);
    assert_eq!(sample(Some(11)).0, first);
    assert_ne!(sample(Some(12)).0, first);
    // A seed that was made up is told, and gives the answer again.
    let (made_up, seed) = sample(None);
    assert_eq!(sample(Some(seed)).0, made_up);
}

#[test]
fn prompts_run_in_chunks_and_only_the_last_row_reaches_the_head() {
    for (method_chunk, max_chunk, calls) in [(8, 8, vec![8, 8, 4]), (5, 8, vec![5, 5, 5, 5])] {
        let mock = Mock { method_chunk, ..Mock::default().sized(64, max_chunk, 1) };
        let mut runner = Runner::new(mock.engine()).unwrap();
        let prompt: Vec<u32> = (0..20).collect();
        let answer = run(&mut runner, greedy(&prompt, 1)).unwrap();
        assert_eq!(answer.tokens, continuation(&mock, &prompt, 1));
        let log = mock.log();
        assert_eq!(log.calls, calls);
        let rows: usize = log.rows.iter().sum();
        assert_eq!((rows, log.rows.last()), (1, Some(&1)));
    }
}

#[test]
fn the_next_turn_runs_only_what_is_new() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let mut prompt: Vec<u32> = (0..10).collect();
    let first = run(&mut runner, greedy(&prompt, 6)).unwrap();
    assert_eq!(first.finish.stats.reused_tokens, 0);
    prompt.extend(&first.tokens);
    prompt.extend([1, 2, 3]);
    mock.clear_log();
    let second = run(&mut runner, greedy(&prompt, 4)).unwrap();
    // The last token of an answer is sampled but not run.
    assert_eq!(second.finish.stats.reused_tokens, 15);
    assert_eq!(mock.log().calls, [4, 1, 1, 1]);
    assert_eq!(second.tokens, continuation(&mock, &prompt, 4));
    // Another scope shares nothing.
    let request = Request { scope: 9, ..greedy(&prompt, 1) };
    assert_eq!(run(&mut runner, request).unwrap().finish.stats.reused_tokens, 0);
    // Nor does a runner that was told to forget.
    runner.forget();
    let request = Request { scope: 9, ..greedy(&prompt, 1) };
    assert_eq!(run(&mut runner, request).unwrap().finish.stats.reused_tokens, 0);
}

#[test]
fn a_cancelled_answer_leaves_its_slot_usable() {
    let mock = Mock::default();
    let prompt: Vec<u32> = (0..20).collect();
    let whole = continuation(&mock, &prompt, 12);
    for after in 0..8 {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let cancel = CancelToken::new();
        if after == 0 {
            cancel.cancel();
        }
        let mut tokens = vec![];
        let finish = runner
            .generate(greedy(&prompt, 12), &cancel, |event| {
                if let Event::Token { id, .. } = event {
                    tokens.push(id);
                    if tokens.len() == after {
                        cancel.cancel();
                    }
                }
            })
            .unwrap();
        assert_eq!(finish.reason, FinishReason::Cancelled);
        assert_eq!(tokens, whole[..after]);
        assert_eq!(run(&mut runner, greedy(&prompt, 12)).unwrap().tokens, whole);
    }
}

#[test]
fn non_finite_logits_name_the_first_node_and_empty_the_slot() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    mock.fail(3, Fault::Nan);
    let prompt: Vec<u32> = (0..20).collect();
    let e = run(&mut runner, greedy(&prompt, 12)).err().unwrap();
    match &e {
        Error::NonFiniteLogits { node: Some(node) } => assert_eq!(node, "attend.0"),
        other => panic!("{other}"),
    }
    assert_eq!(mock.log().traces, 1);
    let answer = run(&mut runner, greedy(&prompt, 12)).unwrap();
    assert_eq!(answer.finish.stats.reused_tokens, 0);
    assert_eq!(answer.tokens, continuation(&mock, &prompt, 12));
}

#[test]
fn a_failing_or_panicking_engine_is_an_error_and_not_the_end() {
    for fault in [Fault::Error, Fault::Panic] {
        for call in [0, 1, 4] {
            let mock = Mock::default();
            let mut runner = Runner::new(mock.engine()).unwrap();
            mock.fail(call, fault);
            let prompt: Vec<u32> = (0..20).collect();
            let e = run(&mut runner, greedy(&prompt, 12)).err().unwrap();
            match fault {
                Fault::Error => assert!(
                    matches!(&e, Error::Engine(e) if matches!(**e, lapidary_backend::Error::Device(_)))
                ),
                _ => assert!(e.to_string().contains("mock panic"), "{e}"),
            }
            let answer = run(&mut runner, greedy(&prompt, 12)).unwrap();
            assert_eq!(answer.tokens, continuation(&mock, &prompt, 12));
        }
    }
}

#[test]
fn logits_come_chunk_by_chunk_and_agree_with_one_another() {
    let mock = Mock::default();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let tokens: Vec<u32> = (0..20).collect();
    let collect = |runner: &mut Runner, rows, chunk| {
        let (mut all, mut firsts) = (vec![], vec![]);
        runner
            .logits(&tokens, rows, chunk, &mut |first, data| {
                firsts.push(first);
                all.extend_from_slice(data);
            })
            .unwrap();
        (all, firsts)
    };
    let (all, firsts) = collect(&mut runner, Rows::All, None);
    assert_eq!(firsts, [0, 8, 16]);
    assert_eq!(all.len(), 20 * 48);
    let (by_three, firsts) = collect(&mut runner, Rows::All, Some(3));
    assert_eq!(firsts.len(), 7);
    assert_eq!(by_three, all);
    let (last, firsts) = collect(&mut runner, Rows::Last, Some(1000));
    assert_eq!(firsts, [19]);
    assert_eq!(last, all[19 * 48..]);
    // A whole context can be looked at, though nothing can be added to it.
    let full = vec![1; 64];
    let mut n = 0;
    runner.logits(&full, Rows::All, None, &mut |_, data| n += data.len() / 48).unwrap();
    assert_eq!(n, 64);
    let e = runner.logits(&[1; 65], Rows::Last, None, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, Error::ContextLength { prompt: 65, max_context: 64 }));
    // The slot holds what was run, for the next request to continue from.
    let answer = run(&mut runner, greedy(&[1, 1, 1, 1, 1, 1], 2)).unwrap();
    assert_eq!(answer.tokens, continuation(&mock, &[1; 6], 2));
}

#[test]
fn prompts_of_text_and_of_conversations() {
    let template = "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n\
                    {{ m.content | trim }}<turn|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|turn>model\n{% endif %}";
    let mock = Mock { template: Some(template), ..with_text() };
    let runner = Runner::new(mock.engine()).unwrap();
    let t = runner.tokenizer().unwrap().clone();
    let bos = t.id("<bos>").unwrap();
    let plain = runner.text_prompt("hello <bos>").unwrap();
    assert_eq!(plain[0], bos);
    assert_eq!(plain[1..], t.encode_text("hello <bos>").unwrap());
    assert!(!plain[1..].contains(&bos));
    assert_eq!(runner.text_prompt("").unwrap(), [bos]);
    let messages = [Message::new("user", " hello<turn|> ")];
    let input =
        ChatInput { messages: &messages, add_generation_prompt: true, ..ChatInput::default() };
    let ids = runner.chat_prompt(&input, &[]).unwrap().tokens;
    let specials: Vec<u32> = ids.iter().copied().filter(|id| t.is_special(*id)).collect();
    let id = |s: &str| t.id(s).unwrap();
    assert_eq!(specials, [bos, id("<|turn>"), id("<turn|>"), id("<|turn>")]);
    let shown = "<bos><|turn>user\nhello<turn|><turn|>\n<|turn>model\n";
    assert_eq!(t.decode(&ids, true), shown);
    let without = Runner::new(with_text().engine()).unwrap();
    assert!(matches!(
        without.chat_prompt(&input, &[]).unwrap_err(),
        Error::Text(text::Error::NoChatTemplate)
    ));
}

#[test]
fn statistics_say_what_was_done() {
    let mut runner = Runner::new(Mock::default().engine()).unwrap();
    runner.set_load_seconds(1.5);
    let answer = run(&mut runner, greedy(&[1, 2, 3], 5)).unwrap();
    let stats = answer.finish.stats;
    assert_eq!((stats.prompt_tokens, stats.reused_tokens, stats.new_tokens), (3, 0, 5));
    assert_eq!(stats.load_s, Some(1.5));
    assert!(stats.first_token_s.unwrap() >= stats.prefill_s);
    assert!(stats.prefill_tokens_per_s().unwrap() > 0.0);
    assert!(stats.decode_tokens_per_s().unwrap() > 0.0);
}
