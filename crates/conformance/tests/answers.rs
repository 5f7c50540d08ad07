//! Answers of the embedded model in their parts, and held to grammars: what comes out is what was
//! asked for, whatever the model would rather say.

use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions, Wishes};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::Program;
use lapidary_runner::{CancelToken, Event, Finish, FinishReason, Request, Runner, SamplingParams};
use lapidary_text::{Answer, ChatInput, Delta, Grammar, Message, Prompt};
use serde_json::{Value, json};

fn runner() -> Runner {
    let mut program = lapidary_pebble::open().unwrap();
    lapidary_gemma::add_answer_format(&mut program).unwrap();
    let program: Arc<Program> = Arc::new(program);
    let device = CpuBackend.open(&CpuBackend.devices().unwrap()[0].id).unwrap();
    let (max_context, n_sequences) = (512, 1);
    let wishes = Wishes { max_context, n_sequences, block: Some(0), ..Wishes::default() };
    let limits = device.limits(&program, &wishes);
    let pages = limits.pages(&program, max_context, n_sequences);
    let options = LoadOptions { max_context, n_sequences, limits, pages, ..LoadOptions::default() };
    Runner::new(device.load(&program, &options, &mut |_, _| {}).unwrap()).unwrap()
}

fn tools() -> Vec<Value> {
    let tool = |name: &str, argument: Value| {
        json!({"type": "function", "function": {
            "name": name,
            "description": "Get it.",
            "parameters": {"type": "object", "properties": argument, "required": ["city"]},
        }})
    };
    let city = json!({"city": {"type": "string", "description": "The name of the city."}});
    let unit = json!({"type": "string", "enum": ["celsius", "kelvin"]});
    let both =
        json!({"city": city["city"], "unit": unit, "days": {"type": "integer", "maximum": 9}});
    vec![tool("get_time", city), tool("get_weather", both)]
}

fn prompt(runner: &Runner, text: &str, tools: &[Value]) -> Prompt {
    let messages = [Message::new("user", text)];
    let input = ChatInput { messages: &messages, tools, ..ChatInput::default() };
    runner.prompts().chat_prompt(&input, &[]).unwrap()
}

fn ask(runner: &mut Runner, request: Request) -> (Answer, Finish) {
    let mut answer = Answer::default();
    let finish = runner.generate(request, &CancelToken::new(), |event| match event {
        Event::Text { text } => answer.push(Delta::Text(text)),
        Event::Thinking { text } => answer.push(Delta::Thinking(text)),
        Event::Call(call) => answer.push(Delta::Call(call)),
        _ => {}
    });
    (answer, finish.unwrap())
}

/// A request of an answer in its parts, held to a grammar.
fn held(runner: &Runner, prompt: Prompt, grammar: Option<&Grammar>, seed: u64) -> Request {
    let prompts = runner.prompts();
    let parser = prompts.answer_parser(&prompt, false).unwrap();
    let constraint = grammar.map(|g| prompts.constraint(g, &prompt, false).unwrap());
    let params = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    Request {
        max_new: 200,
        parser: Some(parser),
        constraint: constraint.map(|c| Box::new(c) as _),
        ..Request::new(prompt, params)
    }
}

#[test]
fn a_call_that_the_model_makes_by_itself_is_read() {
    let mut runner = runner();
    let prompt = prompt(&runner, "What is the time in Auckland?", &tools());
    let mut request = held(&runner, prompt, None, 0);
    request.params = SamplingParams::greedy();
    let (answer, finish) = ask(&mut runner, request);
    assert_eq!((answer.text.as_str(), answer.thinking.as_str()), ("", ""));
    let calls: Vec<&str> = answer.calls.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(calls, ["get_time"]);
    assert_eq!(answer.calls[0].arguments["city"], "Auckland");
    assert_eq!(finish.reason, FinishReason::Stop);
}

#[test]
fn json_answers_fit_their_schema() {
    let mut runner = runner();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "legs", "colours"],
        "additionalProperties": false,
    });
    let grammar = Grammar::JsonSchema(schema);
    for seed in 0..4 {
        let prompt = prompt(&runner, "Tell me a story about a cat.", &[]);
        let request = held(&runner, prompt, Some(&grammar), seed);
        let (answer, finish) = ask(&mut runner, request);
        assert_eq!(finish.reason, FinishReason::Stop, "{answer:?}");
        let said: Value = serde_json::from_str(&answer.text).unwrap();
        assert!(said["name"].as_str().unwrap().chars().count() <= 12, "{said}");
        assert!((0..=8).contains(&said["legs"].as_i64().unwrap()), "{said}");
        let colours = said["colours"].as_array().unwrap();
        assert!(colours.len() <= 3 && colours.iter().all(|c| c == "red" || c == "green"), "{said}");
        assert_eq!(said.as_object().unwrap().len(), 3, "{said}");
    }
}

#[test]
fn a_required_call_is_made_and_fits_the_tools_schema() {
    let mut runner = runner();
    let grammar = Grammar::ToolCalls { tools: tools(), required: true, parallel: false };
    for (seed, text) in ["What can you do?", "What is 4 + 5?", "Good morning!"].iter().enumerate() {
        let prompt = prompt(&runner, text, &tools());
        let request = held(&runner, prompt, Some(&grammar), seed as u64);
        let (answer, finish) = ask(&mut runner, request);
        assert_eq!(finish.reason, FinishReason::Stop, "{answer:?}");
        assert_eq!((answer.text.as_str(), answer.calls.len()), ("", 1), "{answer:?}");
        let arguments = &answer.calls[0].arguments;
        assert!(arguments["city"].is_string(), "{answer:?}");
        match answer.calls[0].name.as_str() {
            "get_time" => assert_eq!(arguments.len(), 1, "{answer:?}"),
            "get_weather" => {
                let unit = arguments.get("unit").is_none_or(|u| u == "celsius" || u == "kelvin");
                let days = arguments.get("days").is_none_or(|d| d.as_i64().is_some_and(|d| d <= 9));
                assert!(unit && days, "{answer:?}");
            }
            other => panic!("there is no tool `{other}`"),
        }
    }
}

#[test]
fn stops_are_looked_for_in_text_alone() {
    let mut runner = runner();
    // The grammar says what the answer is, letter by letter.
    let exact = "start: <|channel> \"thought\\none two\\n\" <channel|> \"one two three\"";
    let grammar = Grammar::Lark(exact.to_string());
    let prompt = prompt(&runner, "Count!", &[]);
    let whole = held(&runner, prompt.clone(), Some(&grammar), 0);
    let (answer, finish) = ask(&mut runner, whole);
    assert_eq!((answer.thinking.as_str(), answer.text.as_str()), ("one two", "one two three"));
    assert_eq!(finish.reason, FinishReason::Stop);
    let mut stopped = held(&runner, prompt, Some(&grammar), 0);
    stopped.stop = vec![" two".to_string()];
    let (answer, finish) = ask(&mut runner, stopped);
    assert_eq!((answer.thinking.as_str(), answer.text.as_str()), ("one two", "one"));
    assert_eq!(finish.stop_string, Some(0));
}
