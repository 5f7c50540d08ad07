use lapidary_program::{CallFormat, ThinkingFormat};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::chat::Message;

const TOKENIZER: &[u8] = include_bytes!("../../tests/data/tokenizer.json");

/// The words of one family of models.
fn braces() -> AnswerFormat {
    AnswerFormat {
        thinking: Some(ThinkingFormat {
            open: "<|channel>".into(),
            header: "thought\n".into(),
            footer: "\n".into(),
            close: "<channel|>".into(),
            trim_history: true,
        }),
        calls: Some(CallFormat {
            open: "<|tool_call>".into(),
            close: "<tool_call|>".into(),
            syntax: CallSyntax::Braces { prefix: "call:".into(), quote: "<|\"|>".into() },
            told: None,
        }),
    }
}

/// The words of another.
fn fenced() -> AnswerFormat {
    AnswerFormat {
        thinking: None,
        calls: Some(CallFormat {
            open: "```tool_code\n".into(),
            close: "\n```".into(),
            syntax: CallSyntax::Code,
            told: None,
        }),
    }
}

/// One that the tokenizer of the tests has tokens for.
fn with_tokens() -> AnswerFormat {
    let mut format = braces();
    let thinking = format.thinking.as_mut().unwrap();
    (thinking.open, thinking.close) = ("<|turn>".into(), "<turn|>".into());
    let calls = format.calls.as_mut().unwrap();
    (calls.open, calls.close) = ("<bos>".into(), "<eos>".into());
    calls.syntax = CallSyntax::Braces { prefix: "call:".into(), quote: "<pad>".into() };
    format
}

/// All that a parser gave, pieces joined.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// `(kind, text)`: neighbours of a kind are joined.
    pieces: Vec<(char, String)>,
    /// The JSON of each call as it grew.
    grown: Vec<String>,
}

impl Seen {
    fn add(&mut self, kind: char, text: &str) {
        match self.pieces.last_mut() {
            Some((last, all)) if *last == kind && "tx".contains(kind) => all.push_str(text),
            _ => self.pieces.push((kind, text.to_string())),
        }
    }

    fn push(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => self.add('t', text),
            Delta::Thinking(text) => self.add('x', text),
            Delta::Call(CallDelta::Begin { index, name }) => {
                assert_eq!(index, self.grown.len());
                self.grown.push(String::new());
                self.add('b', name);
            }
            Delta::Call(CallDelta::Arguments { index, json }) => {
                assert_eq!(index + 1, self.grown.len());
                self.grown[index].push_str(json);
            }
            Delta::Call(CallDelta::End { index, name, arguments, raw }) => {
                assert_eq!(self.grown[index], arguments);
                assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
                self.add('e', &format!("{name}{arguments}{raw}"));
            }
            Delta::Call(CallDelta::Failed { index }) => {
                assert_eq!(index + 1, self.grown.len());
                self.add('f', "");
            }
        }
    }
}

fn seen(format: &AnswerFormat, pieces: &[&str]) -> Seen {
    let mut parser = AnswerParser::of_text(format);
    let mut seen = Seen::default();
    for piece in pieces {
        parser.push_text(piece, &mut |d| seen.push(d));
    }
    parser.finish(&mut |d| seen.push(d));
    seen
}

fn one(arguments: &str) -> Option<Value> {
    let answer = Answer::read(&format!("<|tool_call>call:f{arguments}<tool_call|>"), &braces());
    match answer.calls.as_slice() {
        [call] => {
            assert_eq!((call.name.as_str(), answer.text.as_str()), ("f", ""));
            Some(Value::Object(call.arguments.clone()))
        }
        calls => {
            assert_eq!(calls.len(), 0);
            None
        }
    }
}

#[test]
fn every_kind_of_argument_is_read() {
    let q = |s: &str| s.replace('\'', "<|\"|>");
    let cases = [
        ("{}", json!({})),
        ("{city:'Rio de Janeiro'}", json!({"city": "Rio de Janeiro"})),
        ("{a:1,b:-2.5,c:1e3}", json!({"a": 1, "b": -2.5, "c": 1000.0})),
        ("{on:true,off:false,not:null}", json!({"on": true, "off": false, "not": null})),
        ("{a:['x','y,}]'],b:[]}", json!({"a": ["x", "y,}]"], "b": []})),
        ("{a:{b:{c:[1,{}]}}}", json!({"a": {"b": {"c": [1, {}]}}})),
        ("{text:'a \"quoted\" {word}: <br>'}", json!({"text": "a \"quoted\" {word}: <br>"})),
        ("{text:'two\nlines \\ \t\u{1}'}", json!({"text": "two\nlines \\ \t\u{1}"})),
        ("{text:''}", json!({"text": ""})),
        ("{text:'<tool_call|>'}", json!({"text": "<tool_call|>"})),
        // What models write though they were not told to.
        ("{ a : 1, b: [ 1 , 2 ] }", json!(null)),
        ("{a: 1, b: [ 1 , 2 ] }", json!({"a": 1, "b": [1, 2]})),
        ("{'a b':1,\"c\": \"d\\n\\u00e9\"}", json!({"a b": 1, "c": "d\né"})),
        ("{a:\"x\ny\"}", json!({"a": "x\ny"})),
    ];
    for (text, want) in cases {
        assert_eq!(one(&q(text)).unwrap_or_default(), want, "{text}");
    }
}

#[test]
fn several_calls_follow_each_other() {
    let text = " <|tool_call>call:a{}<tool_call|><|tool_call>call:b-c{n:1}<tool_call|>\n";
    let answer = Answer::read(text, &braces());
    let names: Vec<&str> = answer.calls.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["a", "b-c"]);
    assert_eq!(answer.text, " \n");
}

#[test]
fn what_is_no_call_is_text() {
    let whole = "<|tool_call>call:f{a:<|\"|>x<|\"|>,b:[1,{c:true}]}<tool_call|>";
    assert_eq!(Answer::read(whole, &braces()).calls.len(), 1);
    for end in 0..whole.len() {
        let answer = Answer::read(&whole[..end], &braces());
        assert_eq!((answer.text.as_str(), answer.calls.len()), (&whole[..end], 0));
    }
    let wrong =
        ["{a}", "{a:}", "{a:x}", "{:1}", "{a:1,}", "{a:1 b:2}", "{a:01}", "{a:1,a:2}", "{}x"];
    let deep = format!("{{a:{}1{}}}", "[".repeat(1 << 16), "]".repeat(1 << 16));
    for wrong in wrong.into_iter().chain([deep.as_str(), "", "(", "{a:\"\\x\"}"]) {
        let text = format!("<|tool_call>call:f{wrong}<tool_call|> and more");
        let answer = Answer::read(&text, &braces());
        assert_eq!((answer.text.as_str(), answer.calls.len()), (text.as_str(), 0));
    }
    // A call that has begun fails before its text comes back, and the next has a new number.
    let seen = seen(&braces(), &["<|tool_call>call:f{a:x}", whole]);
    let kinds: String = seen.pieces.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, "bftbe");
}

#[test]
fn a_call_without_end_is_given_back_when_it_is_too_long() {
    let text = format!("<|tool_call>call:f{{a:<|\"|>{}", "x".repeat(MAX_CALL));
    let mut parser = AnswerParser::of_text(&braces());
    let mut seen = Seen::default();
    parser.push_text(&text, &mut |d| seen.push(d));
    assert_eq!(seen.pieces.last(), Some(&('t', text)));
}

#[test]
fn thinking_is_set_apart() {
    let cases = [
        ("<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ("<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ("<|channel>thought<channel|>Yes.", "", "Yes."),
        ("<|channel>thoughtful<channel|>Yes.", "thoughtful", "Yes."),
        ("<|channel>tho<channel|>Yes.", "tho", "Yes."),
        ("<|channel>thought\na\n\nb\n\n<channel|>", "a\n\nb\n", ""),
        ("<|channel>thought\nnever ends\n", "never ends\n", ""),
        ("a<|channel>thought\nb<channel|>c<|channel>d<channel|>e", "bd", "ace"),
        ("no <channel|> and <|chan", "", "no <channel|> and <|chan"),
        // The next call ends a thought that was left open.
        ("<|channel>thought\nb<|tool_call>call:f{}<tool_call|>c", "b", "c"),
    ];
    for (text, thinking, said) in cases {
        let answer = Answer::read(text, &braces());
        assert_eq!((answer.thinking.as_str(), answer.text.as_str()), (thinking, said), "{text}");
    }
}

#[test]
fn calls_in_fences_are_read() {
    let cases = [
        ("{\"name\": \"f\", \"parameters\": {\"a\": [1, \"x\"]}}", json!({"a": [1, "x"]})),
        ("{\"name\":\"f\",\"arguments\":{}}", json!({})),
        ("[{\"name\":\"f\"}]", json!({})),
        (
            "f(a=1, b='it\\'s', c=[True, None, -1.5], d={\"k\": \"v\"})",
            json!({"a": 1, "b": "it's", "c": [true, null, -1.5], "d": {"k": "v"}}),
        ),
        ("[f()]", json!({})),
        ("f(\n  a = \"x\",\n)", json!({"a": "x"})),
    ];
    for (code, want) in cases {
        let text = format!("Well.\n```tool_code\n{code}\n```");
        let answer = Answer::read(&text, &fenced());
        assert_eq!(answer.text, "Well.\n", "{code}");
        assert_eq!(answer.calls.len(), 1, "{code}");
        assert_eq!(answer.calls[0].name, "f");
        assert_eq!(Value::Object(answer.calls[0].arguments.clone()), want, "{code}");
    }
    let two = "```tool_code\nf(a=1)\ng(b=2)\n```";
    assert_eq!(Answer::read(two, &fenced()).calls.len(), 2);
    for wrong in
        ["f(1)", "x = f(a=1)", "print(1)", "f(a=b)", "{\"name\": 1}", "f(a=1,a=2)", "f(a", ""]
    {
        let text = format!("```tool_code\n{wrong}\n``` ```python\n1\n```");
        let answer = Answer::read(&text, &fenced());
        assert_eq!((answer.text.as_str(), answer.calls.len()), (text.as_str(), 0));
    }
}

#[test]
fn answers_become_messages() {
    let text = "<|channel>thought\nHm.\n<channel|><|tool_call>call:f{a:1}<tool_call|>";
    let message = Answer::read(text, &braces()).into_message("");
    let want = json!({
        "role": "assistant",
        "tool_calls": [{"id": "call_0", "type": "function",
            "function": {"name": "f", "arguments": {"a": 1}}}],
        "reasoning": "Hm.",
    });
    assert_eq!(serde_json::to_value(message).unwrap(), want);
    let message = Answer::read("Hi", &braces()).into_message("");
    assert_eq!(message, Message::new("assistant", "Hi"));
}

#[test]
fn letters_are_no_markers_where_a_token_is() {
    let tokenizer = Tokenizer::from_json(TOKENIZER, 396).unwrap();
    let format = with_tokens();
    let read = |ids: &[u32]| {
        let mut parser = AnswerParser::new(Some(&format), &tokenizer, false);
        let mut answer = Answer::default();
        for id in ids {
            parser.push(*id, &mut |d| answer.push(d));
        }
        parser.finish(&mut |d| answer.push(d));
        answer
    };
    let text = "<|turn>thought\nab<turn|><bos>call:f{a:<pad>b<pad>}<eos>";
    let tokens = read(&tokenizer.encode_template(text, None).unwrap());
    assert_eq!((tokens.thinking.as_str(), tokens.text.as_str()), ("ab", ""));
    assert_eq!(tokens.calls[0].arguments, json!({"a": "b"}).as_object().unwrap().clone());
    let letters = read(&tokenizer.encode_text(text).unwrap());
    assert_eq!((letters.text.as_str(), letters.calls.len()), (text, 0));
    // Without a format, all is text.
    let mut parser = AnswerParser::new(None, &tokenizer, true);
    let mut answer = Answer::default();
    for id in tokenizer.encode_template(text, None).unwrap() {
        parser.push(id, &mut |d| answer.push(d));
    }
    assert_eq!(answer.text, text);
}

#[test]
fn a_prompt_may_end_inside_of_a_thought() {
    let tokenizer = Tokenizer::from_json(TOKENIZER, 396).unwrap();
    let format = with_tokens();
    for (prompt, text, thinking) in [
        ("a<|turn>thought\n", "b", "b"),
        ("a<|turn>", "thought\nb", "b"),
        ("a<|turn>thought\n<turn|>", "b", ""),
        ("a", "b", ""),
    ] {
        let prompt = tokenizer.encode_template(prompt, None).unwrap();
        let mut parser = AnswerParser::new(Some(&format), &tokenizer, false);
        parser = parser.after(&prompt, &tokenizer);
        let mut answer = Answer::default();
        for id in tokenizer.encode_text(text).unwrap() {
            parser.push(id, &mut |d| answer.push(d));
        }
        parser.finish(&mut |d| answer.push(d));
        assert_eq!(answer.thinking, thinking);
    }
}

/// Words that answers are made of, right and wrong.
fn garbage() -> impl Strategy<Value = String> {
    let words = vec![
        "<|channel>",
        "<channel|>",
        "thought\n",
        "\n",
        "<|tool_call>",
        "<tool_call|>",
        "call:",
        "f",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "<|\"|>",
        "\"",
        "\\",
        "1",
        "true",
        " ",
        "é",
        "<",
        "|",
        "a:1",
        "call:f{a:1}<tool_call|>",
        "<|tool_call>call:g{",
        "```tool_code\n",
        "\n```",
        "`",
        "f(a=1)",
        "{\"name\":\"f\"}",
        "🙂",
    ];
    prop::collection::vec(prop::sample::select(words), 0..40).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn cuts_change_nothing_and_nothing_is_lost(
        text in garbage(),
        cuts in prop::collection::vec(0usize..200, 0..12),
        is_fenced in any::<bool>(),
    ) {
        let format = if is_fenced { fenced() } else { braces() };
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| text.is_char_boundary(*c)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        let whole = seen(&format, &[&text]);
        prop_assert_eq!(&seen(&format, &pieces), &whole);
        prop_assert_eq!(&seen(&format, &chars), &whole);
        // Whatever is no marker of thinking is given back.
        let mut said = String::new();
        let mut parser = AnswerParser::of_text(&format);
        let mut take = |delta: Delta<'_>| match delta {
            Delta::Text(text) | Delta::Thinking(text) => said.push_str(text),
            Delta::Call(CallDelta::End { raw, .. }) => said.push_str(raw),
            Delta::Call(_) => {}
        };
        parser.push_text(&text, &mut take);
        parser.finish(&mut take);
        prop_assert!(is_all_of(&text, &said), "of `{text}` there is only `{said}`");
    }
}

/// Whether a text without some markers of thinking is what was said.
fn is_all_of(text: &str, said: &str) -> bool {
    let markers =
        ["<|channel>thought\n", "<|channel>thought", "<|channel>", "\n<channel|>", "<channel|>"];
    // How much of the text may be explained by how much of what was said.
    let mut reached = std::collections::BTreeSet::from([(0, 0)]);
    while let Some((i, j)) = reached.pop_first() {
        if (i, j) == (text.len(), said.len()) {
            return true;
        }
        let (left, more) = (&text.as_bytes()[i..], &said.as_bytes()[j..]);
        if !left.is_empty() && left.first() == more.first() {
            reached.insert((i + 1, j + 1));
        }
        for marker in markers.iter().filter(|m| left.starts_with(m.as_bytes())) {
            reached.insert((i + marker.len(), j));
        }
    }
    false
}
