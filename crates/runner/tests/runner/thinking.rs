//! Thoughts that are too long are ended, and room is left for the answer.

use lapidary_backend::Abilities;
use lapidary_mock_engine::Mock;
use lapidary_program::{AnswerFormat, ThinkingFormat};
use lapidary_runner::{CancelToken, Event, Request, Runner, SamplingParams, ThinkingLimit};
use lapidary_text::{AnswerParser, Grammar, GrammarCompiler, Thinking, TokenConstraint};

const TOKENIZER: &str = include_str!("../../../text/tests/data/tokenizer.json");
const OPEN: &str = "<|turn>";
const CLOSE: &str = "<turn|>";

fn format() -> AnswerFormat {
    let thinking = ThinkingFormat {
        open: OPEN.into(),
        header: String::new(),
        footer: String::new(),
        close: CLOSE.into(),
        trim_history: true,
    };
    AnswerFormat { thinking: Some(thinking), calls: None }
}

fn mock() -> Mock {
    let mock =
        Mock { vocab_size: 396, tokenizer: Some(TOKENIZER), eos_ids: vec![1], ..Mock::default() };
    mock.sized(300, 64, 2)
}

/// Tokens of the answer to a prompt that begins a thought.
fn answer(
    mock: &Mock,
    tokens: usize,
    max_new: usize,
    constraint: Option<Box<dyn TokenConstraint>>,
) -> (Vec<u32>, u32) {
    let mut runner = Runner::new(mock.engine()).unwrap();
    let tokenizer = runner.tokenizer().unwrap().clone();
    let id = |marker| tokenizer.encode_template(marker, None).unwrap()[0];
    let (open, close) = (id(OPEN), id(CLOSE));
    let mut prompt = crate::text(20, 3);
    prompt.push(open);
    let parser = AnswerParser::new(Some(&format()), &tokenizer, false).after(&prompt, &tokenizer);
    assert!(parser.is_thinking());
    // It would never end a thought by itself.
    let params = SamplingParams {
        seed: Some(5),
        top_k: 20,
        logit_bias: vec![(close, -100.0), (1, -100.0)],
        ..SamplingParams::default()
    };
    let request = Request {
        max_new,
        parser: Some(parser),
        constraint,
        thinking: Some(ThinkingLimit { tokens, close: vec![close] }),
        ..Request::new(prompt, params)
    };
    let mut answer = Vec::new();
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            answer.push(id);
        }
    });
    assert_eq!(finish.unwrap().stats.new_tokens, answer.len());
    (answer, close)
}

#[test]
fn a_thought_ends_when_its_budget_is_used_up() {
    let ahead = Abilities { max_in_flight: 3, prefers_top_k: true, max_top_k: 64 };
    for abilities in [Mock::default().abilities, ahead] {
        let mock = Mock { abilities, ..mock() };
        for (tokens, max_new, want) in [(10, 60, 10), (1, 60, 1), (0, 60, 1), (1000, 40, 30)] {
            let (answer, close) = answer(&mock, tokens, max_new, None);
            assert_eq!(answer.len(), max_new);
            let at: Vec<usize> = (0..max_new).filter(|i| answer[*i] == close).collect();
            assert_eq!(at, [want], "{tokens} of {max_new}: {answer:?}");
        }
    }
}

#[test]
fn the_answer_after_it_is_held_to_its_grammar() {
    let mock = mock();
    let tokenizer = Runner::new(mock.engine()).unwrap().tokenizer().unwrap().clone();
    let compiler = GrammarCompiler::new(&tokenizer, &[1]).unwrap();
    let grammar = Grammar::Regex("(yes|no)!".into());
    let made = compiler.compile(&grammar, Some(&format()), &tokenizer, Thinking::Begun).unwrap();
    let (answer, close) = answer(&mock, 7, 60, Some(Box::new(made)));
    assert_eq!(answer[7], close);
    let said = tokenizer.decode(&answer[8..], true);
    assert!(["yes!", "no!"].contains(&said.as_str()), "{said}");
}
