use lapidary_program::{AnswerFormat, CallFormat, CallSyntax, ThinkingFormat};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::answer::{Answer, AnswerParser};
use crate::error::Error;
use crate::tokenizer::Tokenizer;

const TOKENIZER: &[u8] = include_bytes!("../../tests/data/tokenizer.json");
const EOS: u32 = 1;

/// Markers that the tokenizer of the tests has tokens for.
fn format() -> AnswerFormat {
    AnswerFormat {
        thinking: Some(ThinkingFormat {
            open: "<|turn>".into(),
            header: "thought\n".into(),
            footer: "\n".into(),
            close: "<turn|>".into(),
            trim_history: true,
        }),
        calls: Some(CallFormat {
            open: "<bos>".into(),
            close: "<s>".into(),
            syntax: CallSyntax::Braces { prefix: "call:".into(), quote: "<pad>".into() },
            told: None,
        }),
    }
}

fn fenced() -> AnswerFormat {
    let calls = CallFormat {
        open: "```tool_code\n".into(),
        close: "\n```".into(),
        syntax: CallSyntax::Code,
        told: None,
    };
    AnswerFormat { thinking: None, calls: Some(calls) }
}

struct Lab {
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
}

fn lab() -> Lab {
    let tokenizer = Tokenizer::from_json(TOKENIZER, 396).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS]).unwrap();
    Lab { tokenizer, compiler }
}

fn tools() -> Vec<Value> {
    let weather = json!({"type": "function", "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where", "minLength": 1, "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"enum": ["c", "f"]},
                "at": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
            },
            "required": ["city", "unit"],
        },
    }});
    vec![weather, json!({"name": "stop"})]
}

fn calls(required: bool, parallel: bool) -> Grammar {
    Grammar::ToolCalls { tools: tools(), required, parallel }
}

impl Lab {
    fn compile(&self, grammar: &Grammar, format: &AnswerFormat) -> Result<Constraint, Error> {
        self.compiler.compile(grammar, Some(format), &self.tokenizer, Thinking::None)
    }

    /// Whether a text may be the whole answer. Special tokens are spelled out in it.
    fn fits(&self, constraint: &Constraint, text: &str) -> bool {
        let mut constraint = constraint.clone();
        for id in self.tokenizer.encode_template(text, None).unwrap() {
            if !allows(constraint.mask().unwrap(), id) {
                return false;
            }
            constraint.accept(id).unwrap();
        }
        let ends = constraint.may_end().unwrap();
        assert_eq!(ends, allows(constraint.mask().unwrap(), EOS));
        ends
    }

    fn check(&self, constraint: &Constraint, right: &[&str], wrong: &[&str]) {
        for text in right {
            assert!(self.fits(constraint, text), "{text}");
        }
        for text in wrong {
            assert!(!self.fits(constraint, text), "{text}");
        }
    }
}

fn allows(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

#[test]
fn json_is_held_to_its_schema() {
    let lab = lab();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let constraint = lab.compile(&Grammar::JsonSchema(schema), &format()).unwrap();
    let right = ["{\"name\":\"Jo\",\"age\":7}", "{\n  \"name\": \"\\n\",\n  \"age\": 70\n}"];
    let wrong = [
        "{\"name\":\"Jo\"}",
        "{\"name\":\"Jo\",\"age\":-7}",
        "{\"name\":\"Jo\",\"age\":7}x",
        "[]",
        "",
        "<bos>",
        "{\"age\":7,\"name\":\"Jo\",\"more\":1}",
    ];
    lab.check(&constraint, &right, &wrong);
    let any = lab.compile(&Grammar::JsonObject, &format()).unwrap();
    lab.check(&any, &["{}", "{\"a\": [1, null]}"], &["[]", "{", "1"]);
}

#[test]
fn at_the_end_only_the_end_may_come() {
    let lab = lab();
    let mut constraint = lab.compile(&Grammar::Regex("ab?".into()), &format()).unwrap();
    assert!(!constraint.is_done() && !constraint.may_end().unwrap());
    for c in ["a", "b"] {
        let id = lab.tokenizer.encode_text(c).unwrap()[0];
        constraint.accept(id).unwrap();
    }
    assert!(constraint.is_done());
    let ones: u32 = constraint.mask().unwrap().iter().map(|w| w.count_ones()).sum();
    assert_eq!(ones, 1);
    assert!(allows(constraint.mask().unwrap(), EOS));
}

#[test]
fn regular_expressions_and_lark() {
    let lab = lab();
    let regex = lab.compile(&Grammar::Regex("(yes|no)(, [a-z]+)?!".into()), &format()).unwrap();
    lab.check(&regex, &["yes!", "no, thanks!"], &["yes", "maybe!", "yes!!"]);
    let lark = "start: \"(\" start \")\" | \"x\"";
    let lark = lab.compile(&Grammar::Lark(lark.into()), &format()).unwrap();
    lab.check(&lark, &["x", "((x))"], &["((x)", "()"]);
}

#[test]
fn calls_are_held_to_the_tools_schemas() {
    let lab = lab();
    let constraint = lab.compile(&calls(true, false), &format()).unwrap();
    let q = |s: &str| format!("<bos>call:{}<s>", s.replace('\'', "<pad>"));
    let right = [
        "stop{}",
        "get_weather{city:'Rome',unit:'c'}",
        "get_weather{at:[1],city:'Rome',unit:'f'}",
        "get_weather{at:[1,-2.5],city:'a',days:14,unit:'c'}",
    ];
    let wrong = [
        "get_weather{city:'Rome'}",
        "get_weather{city:'',unit:'c'}",
        "get_weather{city:'much too long',unit:'c'}",
        "get_weather{city:'Rome',days:15,unit:'c'}",
        "get_weather{city:'Rome',unit:'k'}",
        "get_weather{at:[],city:'Rome',unit:'c'}",
        "get_weather{at:[1,2,3],city:'Rome',unit:'c'}",
        "get_weather{city:'Rome',unit:'c',more:1}",
        "get_weather{city:\"Rome\",unit:'c'}",
        "stop{a:1}",
        "start{}",
    ];
    let right: Vec<String> = right.iter().map(|s| q(s)).collect();
    let wrong: Vec<String> = wrong.iter().map(|s| q(s)).collect();
    let as_str = |all: &[String]| all.iter().map(String::clone).collect::<Vec<_>>();
    for text in as_str(&right) {
        assert!(lab.fits(&constraint, &text), "{text}");
    }
    for text in as_str(&wrong) {
        assert!(!lab.fits(&constraint, &text), "{text}");
    }
    let stop = q("stop{}");
    let twice = format!("{stop}{stop}");
    lab.check(&constraint, &[&stop], &["", "hello", &format!("hello{stop}"), &twice]);
    let several = lab.compile(&calls(true, true), &format()).unwrap();
    lab.check(&several, &[&stop, &twice], &["", &format!("{stop} {stop}")]);
    let auto = lab.compile(&calls(false, true), &format()).unwrap();
    lab.check(
        &auto,
        &["", "hello", &stop, &format!("hello{twice}")],
        &["<bos>", "<bos>call:go{}<s>"],
    );
}

#[test]
fn calls_in_fences_are_held_to_the_tools_schemas() {
    let lab = lab();
    let constraint = lab.compile(&calls(true, true), &fenced()).unwrap();
    let call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\", \"unit\": \"c\"}}";
    let fence = |code: &str| format!("```tool_code\n{code}\n```");
    let two = fence(&format!("{call}\n{{\"name\":\"stop\",\"parameters\":{{}}}}"));
    lab.check(&constraint, &[&fence(call), &two], &["hello", call, &fence("{\"name\":\"go\"}")]);
    assert_eq!(Answer::read(&two, &fenced()).calls.len(), 2);
}

#[test]
fn thinking_comes_first() {
    let lab = lab();
    let grammar = Grammar::JsonSchema(json!({"const": 1}));
    let compile = |thinking| {
        lab.compiler.compile(&grammar, Some(&format()), &lab.tokenizer, thinking).unwrap()
    };
    let thought = "<|turn>thought\nHm {} \n<turn|>1";
    lab.check(&compile(Thinking::None), &["1"], &[thought]);
    lab.check(&compile(Thinking::Allowed), &["1", thought], &["Hm", "<|turn>1", "1<|turn><turn|>"]);
    lab.check(&compile(Thinking::Begun), &["Hm<turn|>1", "<turn|>1"], &["1", thought]);
    let all = calls(true, false);
    let all = lab.compiler.compile(&all, Some(&format()), &lab.tokenizer, Thinking::Allowed);
    lab.check(&all.unwrap(), &["<|turn>a<turn|><bos>call:stop{}<s>"], &["a<bos>call:stop{}<s>"]);
}

#[test]
fn text_calls_nothing() {
    let lab = lab();
    let text = lab.compile(&Grammar::Text, &format()).unwrap();
    lab.check(&text, &["", "hello {}"], &["<bos>call:stop{}<s>", "hello<bos>"]);
    let compiled = |thinking| {
        lab.compiler.compile(&Grammar::Text, Some(&format()), &lab.tokenizer, thinking).unwrap()
    };
    lab.check(&compiled(Thinking::Allowed), &["", "a", "<|turn>b<turn|>a"], &["<|turn>b"]);
}

#[test]
fn an_answer_is_calls_or_what_else_it_is_held_to() {
    let lab = lab();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    let both = |parallel, otherwise| Grammar::CallsOr {
        tools: tools(),
        parallel,
        otherwise: Box::new(otherwise),
    };
    let json = || Grammar::JsonSchema(schema.clone());
    let compile = |grammar: &Grammar, thinking| {
        lab.compiler.compile(grammar, Some(&format()), &lab.tokenizer, thinking).unwrap()
    };
    let one = "<bos>call:stop{}<s>";
    let two = format!("{one}{one}");
    let right = ["{\"a\":1}", one];
    let wrong = ["hello", "{}", "{\"a\":1}<bos>call:stop{}<s>", "<bos>call:go{}<s>", &two];
    lab.check(&compile(&both(false, json()), Thinking::None), &right, &wrong);
    lab.check(&compile(&both(true, json()), Thinking::None), &[&two], &["", "x"]);
    let think = compile(&both(false, json()), Thinking::Allowed);
    let thought: Vec<String> = right.iter().map(|r| format!("<|turn>hm<turn|>{r}")).collect();
    lab.check(&think, &[right[0], right[1], &thought[0], &thought[1]], &wrong);
    let begun = compile(&both(false, json()), Thinking::Begun);
    lab.check(&begun, &["hm<turn|>{\"a\": 1}", &format!("<turn|>{one}")], &right);
    let nested = both(true, calls(true, true));
    assert!(matches!(lab.compile(&nested, &format()), Err(Error::Grammar(_))));
}

#[test]
fn what_is_not_strict_is_held_to_as_far_as_can_be() {
    let lab = lab();
    let tool = |strict: bool| {
        json!({"name": "f", "strict": strict, "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "string", "format": "uri"},
                "b": {"type": "integer", "not": {"const": 3}},
                "c": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": true},
                "d": {"$ref": "http://example.com"},
                "e": {"if": {}, "then": {}},
            },
            "required": ["a", "b"],
            "anyOf": [{"required": ["c"]}, {"required": ["d"]}],
            "propertyNames": {"maxLength": 3},
        }})
    };
    let grammar = |strict, required| Grammar::ToolCalls {
        tools: vec![tool(strict)],
        required,
        parallel: true,
    };
    let loose = lab.compile(&grammar(false, false), &format()).unwrap();
    let q = |s: &str| format!("<bos>call:f{}<s>", s.replace('\'', "<pad>"));
    let right = ["{a:'x',b:3}", "{a:'x',b:1,c:[true,true],d:[{}],e:null}"].map(q);
    let wrong = ["{a:1,b:3}", "{b:3}", "{a:'x',b:'y'}", "{a:'x',b:1,c:[1]}"].map(q);
    lab.check(&loose, &right.each_ref().map(String::as_str), &wrong.each_ref().map(String::as_str));
    for (strict, required) in [(true, false), (false, true), (true, true)] {
        let refused = lab.compile(&grammar(strict, required), &format());
        assert!(matches!(refused, Err(Error::SchemaKeyword { .. })), "{strict} {required}");
    }
    // What nobody can make sense of still may be called.
    for parameters in [json!({"type": "array"}), json!({"properties": {"a": {"pattern": "("}}})] {
        let tools = vec![json!({"name": "f", "parameters": parameters})];
        let grammar = Grammar::ToolCalls { tools, required: false, parallel: true };
        match lab.compile(&grammar, &format()) {
            Ok(constraint) => {
                lab.check(&constraint, &[&q("{a:'x'}"), "hello"], &["<bos>call:g{}<s>"])
            }
            Err(e) => assert!(matches!(e, Error::Param { .. }), "{e}"),
        }
    }
}

#[test]
fn what_was_compiled_is_found_again_and_begins_anew() {
    let lab = lab();
    let grammar = Grammar::Regex("[0-9]{3}kept".into());
    let mut first = lab.compile(&grammar, &format()).unwrap();
    let id = lab.tokenizer.encode_text("7").unwrap()[0];
    first.accept(id).unwrap();
    for _ in 0..3 {
        let again = lab.compile(&grammar, &format()).unwrap();
        lab.check(&again, &["123kept"], &["23kept", "kept"]);
    }
    lab.check(&first, &["23kept"], &["123kept"]);
    // Another way to think is another grammar.
    let thinking = lab.compiler.compile(&grammar, Some(&format()), &lab.tokenizer, Thinking::Begun);
    lab.check(&thinking.unwrap(), &["a<turn|>123kept"], &["123kept"]);
}

#[test]
fn unsupported_keywords_are_named() {
    let lab = lab();
    let refused = |grammar: &Grammar| match lab.compile(grammar, &format()) {
        Err(Error::SchemaKeyword { keyword, at }) => (keyword, at),
        other => panic!("{other:?}"),
    };
    let schema = json!({"type": "object", "properties": {"a": {"items": {"not": {}}}}});
    let (keyword, at) = refused(&Grammar::JsonSchema(schema.clone()));
    assert_eq!((keyword.as_str(), at.as_str()), ("not", "#/properties/a/items"));
    let of_tool = |parameters: Value| Grammar::ToolCalls {
        tools: vec![json!({"name": "f", "parameters": parameters})],
        required: true,
        parallel: false,
    };
    let a = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    let cases = [
        (schema, "not"),
        (a(json!({"patternProperties": {}})), "patternProperties"),
        (a(json!({"type": "string", "pattern": "a^b"})), "pattern"),
        (a(json!({"type": "string", "format": "hostname"})), "format"),
        (a(json!({"allOf": [{}, {}]})), "allOf"),
        (a(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]})), "oneOf"),
        (a(json!({"$ref": "http://example.com"})), "$ref"),
        (a(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
    ];
    for (parameters, want) in cases {
        assert_eq!(refused(&of_tool(parameters)).0, want);
    }
    let one_of = json!({"oneOf": [{"type": "number"}, {"type": "integer"}]});
    let cases = [
        (a(one_of), "oneOf", "#/properties/a"),
        (a(json!({"$ref": "http://example.com"})), "$ref", "#/properties/a"),
        (a(json!({"type": "string", "pattern": "(?=a)b"})), "pattern", "#/properties/a"),
        (a(json!({"type": "string", "format": "regex"})), "format", "#/properties/a"),
        (json!({"type": "strin"}), "type", "#"),
    ];
    for (schema, keyword, at) in cases {
        let named = refused(&Grammar::JsonSchema(schema));
        assert_eq!((named.0.as_str(), named.1.as_str()), (keyword, at));
    }
    // A format that nobody knows is a note.
    let note = a(json!({"type": "string", "format": "made-up"}));
    assert!(lab.compile(&Grammar::JsonSchema(note), &format()).is_ok());
    let message = Error::SchemaKeyword { keyword: "not".into(), at: "#/a".into() }.to_string();
    assert!(message.contains("`not` at #/a"), "{message}");
}

#[test]
fn the_rest_of_json_schema_in_braces() {
    let lab = lab();
    let q = |s: &str| format!("<bos>call:f{}<s>", s.replace('\'', "<pad>"));
    let (long, longer) =
        (format!("{{a:-{}}}", "5".repeat(40)), format!("{{a:{}}}", "5".repeat(40)));
    let cases: [(Value, &[&str], &[&str]); 12] = [
        // Longer numbers would be read as others.
        (json!({"type": "integer", "maximum": -990, "multipleOf": 5}), &["{a:-995}"], &[&long]),
        (json!({"type": "number", "minimum": 7}), &["{a:7.5}", "{a:700000}"], &[&longer]),
        (json!({"type": ["string", "null"]}), &["{a:''}", "{a:null}"], &["{a:1}", "{}"]),
        (json!({"type": "string", "nullable": true}), &["{a:'x'}", "{a:null}"], &["{a:1}"]),
        (json!({}), &["{a:1}", "{a:[{b:'x'},[]]}", "{a:{}}"], &["{a:x}"]),
        (json!({"type": "object"}), &["{a:{}}", "{a:{b:1,c:true}}"], &["{a:1}"]),
        (json!({"additionalProperties": {"type": "integer"}}), &["{a:{b:1}}"], &["{a:{b:true}}"]),
        (
            json!({"anyOf": [{"type": "integer"}, {"const": "x y"}]}),
            &["{a:1}", "{a:'x y'}"],
            &["{a:'y'}"],
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}),
            &["{a:1}", "{a:true}"],
            &["{a:null}"],
        ),
        (
            json!({"type": "string", "pattern": "^[a-c]+$"}),
            &["{a:'abc'}"],
            &["{a:'abd'}", "{a:''}"],
        ),
        (json!({"type": "string", "format": "date"}), &["{a:'2026-11-18'}"], &["{a:'2026-13-18'}"]),
        (
            json!({"$ref": "#/$defs/tree"}),
            &["{a:{left:{},right:{left:{}}}}", "{a:{}}"],
            &["{a:{up:{}}}"],
        ),
    ];
    for (schema, right, wrong) in cases {
        let tree = json!({"type": "object", "properties": {
            "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}});
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"],
            "$defs": {"tree": tree}});
        let tools = vec![json!({"name": "f", "parameters": parameters})];
        let grammar = Grammar::ToolCalls { tools, required: true, parallel: false };
        let constraint = lab.compile(&grammar, &format()).unwrap();
        for text in right {
            assert!(lab.fits(&constraint, &q(text)), "{text}: {parameters}");
        }
        for text in wrong {
            assert!(!lab.fits(&constraint, &q(text)), "{text}: {parameters}");
        }
    }
}

#[test]
fn abuse_is_refused_and_takes_little_time() {
    let lab = lab();
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"items": deep});
    }
    let loops = json!({"$ref": "#"});
    let tool = |parameters: &Value| Grammar::ToolCalls {
        tools: vec![json!({"name": "f", "parameters": parameters})],
        required: true,
        parallel: false,
    };
    let named = |names: &[&str]| Grammar::ToolCalls {
        tools: names.iter().map(|n| json!({"name": n})).collect(),
        required: true,
        parallel: false,
    };
    let long = "x".repeat(MAX_BYTES + 1);
    let many: Vec<&str> = vec!["f"; MAX_TOOLS + 1];
    let contradiction = json!({"type": "string", "minLength": 2, "maxLength": 1});
    let abuse = [
        Grammar::JsonSchema(deep.clone()),
        Grammar::JsonSchema(json!({"enum": [&long]})),
        Grammar::JsonSchema(json!("a string")),
        Grammar::JsonSchema(json!({"type": "wrong"})),
        Grammar::JsonSchema(json!({"$ref": "#/nowhere"})),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "("})),
        Grammar::JsonSchema(Value::Bool(false)),
        Grammar::JsonSchema(contradiction.clone()),
        Grammar::Regex("(".into()),
        Grammar::Regex(String::new()),
        Grammar::Regex(long.clone()),
        Grammar::Lark("start: undefined".into()),
        Grammar::Lark("start: start \"x\"".into()),
        Grammar::Lark("not a grammar".into()),
        Grammar::Lark("start: <[999999]>".into()),
        tool(&json!({"properties": {"a": deep}})),
        tool(&json!({"type": "array"})),
        tool(&loops),
        tool(&json!({"properties": {"a": contradiction}, "required": ["a"]})),
        tool(&json!({"properties": {"a": false}})),
        tool(&json!("text")),
        named(&[]),
        named(&[""]),
        named(&["a b"]),
        named(&["f", "f"]),
        named(&many),
    ];
    let start = std::time::Instant::now();
    for grammar in &abuse {
        let refused = lab.compile(grammar, &format());
        let text = format!("{grammar:?}");
        let e = refused.map(|_| ()).expect_err(&text[..text.len().min(200)]);
        assert!(!e.to_string().contains("panic"), "{e}");
    }
    assert!(start.elapsed().as_secs() < 20);
    // What is large but allowed works.
    let nested = lab.compile(&Grammar::Regex("((x*)*)*y".into()), &format()).unwrap();
    lab.check(&nested, &["xxy", "y"], &["x"]);
    let no_format = AnswerFormat { thinking: None, calls: None };
    assert!(matches!(lab.compile(&calls(true, true), &no_format), Err(Error::Param { .. })));
}

/// Follows the mask as `choices` say, and winds down after `free` tokens.
fn walk(mut constraint: Constraint, choices: &[u32], free: usize) -> (Vec<u32>, Option<usize>) {
    let mut ids = Vec::new();
    for (i, choice) in choices.iter().enumerate() {
        if i == free {
            constraint.wind_down();
        }
        let mask = constraint.mask().unwrap();
        let allowed: Vec<u32> = (0..396).filter(|id| allows(mask, *id)).collect();
        let id = allowed[*choice as usize % allowed.len()];
        if id == EOS {
            return (ids, Some(i));
        }
        constraint.accept(id).unwrap();
        ids.push(id);
    }
    let ended = constraint.may_end().unwrap();
    (ids, ended.then_some(choices.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever it stands when room gets short, an answer comes to its end within few tokens.
    #[test]
    fn what_winds_down_ends_soon(
        choices in prop::collection::vec(any::<u32>(), 300),
        free in 0usize..120,
        which in 0usize..4,
    ) {
        let lab = lab();
        let schema = json!({"type": "object", "properties": {
            "name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
            "n": {"type": "integer"}, "in": {"type": "object"},
            "at": {"type": "string", "format": "time"}}, "required": ["name", "n"]});
        let grammar = match which {
            0 => Grammar::JsonObject,
            1 => Grammar::JsonSchema(schema.clone()),
            2 => calls(true, true),
            _ => Grammar::CallsOr {
                tools: tools(),
                parallel: true,
                otherwise: Box::new(Grammar::JsonSchema(schema.clone())),
            },
        };
        let thinking = if free % 2 == 0 { Thinking::None } else { Thinking::Begun };
        let made = lab.compiler.compile(&grammar, Some(&format()), &lab.tokenizer, thinking);
        let (ids, end) = walk(made.unwrap(), &choices, free);
        let text = lab.tokenizer.decode(&ids, true);
        prop_assert!(end.is_some_and(|end| end <= free + 90), "{end:?} after {free}: {text}");
        if which < 2 {
            let json = text.rsplit("<turn|>").next().unwrap();
            let said: Result<Value, _> = serde_json::from_str(json);
            prop_assert!(said.is_ok(), "{json}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever follows the mask writes a call that can be read, with arguments that fit.
    #[test]
    fn every_walk_ends_in_a_call_that_fits(choices in prop::collection::vec(any::<u32>(), 600)) {
        let lab = lab();
        let format = format();
        let mut constraint = lab.compile(&calls(true, false), &format).unwrap();
        let mut parser = AnswerParser::new(Some(&format), &lab.tokenizer, false);
        let mut answer = Answer::default();
        for choice in choices {
            let mask = constraint.mask().unwrap();
            let allowed: Vec<u32> = (0..396).filter(|id| allows(mask, *id)).collect();
            prop_assert!(!allowed.is_empty());
            let id = allowed[choice as usize % allowed.len()];
            if id == EOS {
                break;
            }
            constraint.accept(id).unwrap();
            parser.push(id, &mut |d| answer.push(d));
        }
        parser.finish(&mut |d| answer.push(d));
        prop_assert!(constraint.may_end().unwrap(), "{answer:?}");
        prop_assert_eq!(answer.calls.len(), 1, "{:?}", answer);
        let call = &answer.calls[0];
        if call.name == "get_weather" {
            let city = call.arguments["city"].as_str().unwrap();
            prop_assert!((1..=8).contains(&city.chars().count()), "{}", city);
            prop_assert!(["c", "f"].contains(&call.arguments["unit"].as_str().unwrap()));
            if let Some(days) = call.arguments.get("days") {
                prop_assert!((1..=14).contains(&days.as_i64().unwrap()));
            }
        } else {
            prop_assert_eq!(&call.name, "stop");
        }
    }
}
