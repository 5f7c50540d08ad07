//! What the other languages call, called from here, with the built-in model on the CPU.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use lapidary_ffi::{
    AnswerOptions, AnswerStream, Engine, ErrorCode, Event, FinishReason, Format, LapidaryError,
    LoadOptions, Message, Modality, Model, Part, Role, Tool, ToolCall, error_code_name,
};
use pollster::block_on;

fn load() -> LoadOptions {
    LoadOptions {
        backend: Some("cpu".into()),
        context: Some(512),
        threads: Some(2),
        pack_cache: Some("off".into()),
        ..LoadOptions::default()
    }
}

fn engine_with(options: LoadOptions) -> Arc<Engine> {
    block_on(async { Model::pebble().await.unwrap().load(Some(options)).engine().await.unwrap() })
}

fn engine() -> Arc<Engine> {
    engine_with(load())
}

fn greedy(max_tokens: u32) -> Option<AnswerOptions> {
    let max_tokens = Some(max_tokens);
    Some(AnswerOptions { temperature: Some(0.0), max_tokens, ..AnswerOptions::default() })
}

fn user(text: &str) -> Message {
    Message {
        role: Role::User,
        parts: vec![Part::Text { text: text.into() }],
        thinking: None,
        tool_calls: vec![],
        tool_call_id: None,
        name: None,
    }
}

const STORY: &str = "Tell me a story about a brave fox.";

/// An engine that waits for its readers, so that no answer ends before it is read.
fn patient() -> Arc<Engine> {
    engine_with(LoadOptions { events: Some(1), patience_ms: Some(3_600_000), ..load() })
}

fn telling(engine: &Engine) -> Arc<AnswerStream> {
    block_on(engine.answer(vec![user(STORY)], greedy(48))).unwrap()
}

fn code<T>(result: Result<T, LapidaryError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("it went well"),
        Err(LapidaryError::Failed { code, .. }) => code,
    }
}

fn drawing() -> Part {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pebble/heldout/images/drawing17.png");
    Part::Image { bytes: std::fs::read(path).unwrap() }
}

#[test]
fn a_model_says_what_it_is_and_what_it_would_take() {
    let model = block_on(Model::open("pebble".into(), None)).unwrap();
    let info = model.info();
    assert!(info.name.contains("pebble") && info.parameters > 10_000_000, "{info:?}");
    assert!(info.modalities.contains(&Modality::Image), "{info:?}");
    assert!(info.can_call_tools && info.context >= 512);
    let plan = block_on(model.plan(Some(load()))).unwrap();
    assert!(plan.fits && plan.shortage.is_none() && plan.text.contains("sequences"), "{plan:?}");
    assert_eq!((plan.backend.as_str(), plan.context), ("cpu", 512));
    assert_eq!(plan.total_bytes, plan.weight_bytes + plan.kv_bytes + plan.activation_bytes);
    let wide = LoadOptions { sequences: Some(8), ..load() };
    assert!(block_on(model.plan(Some(wide))).unwrap().kv_bytes > plan.kv_bytes);
    let tokens = block_on(model.tokenise(STORY.into())).unwrap();
    let counted = block_on(model.count_tokens(vec![user(STORY)], None)).unwrap();
    assert!(counted as usize > tokens.len(), "the template adds some");
    let backends = block_on(lapidary_ffi::backends()).unwrap();
    assert!(backends.iter().any(|b| b.name == "cpu" && !b.devices.is_empty()), "{backends:?}");
}

#[test]
fn loading_tells_how_far_it_is_and_can_be_given_up() {
    let model = block_on(Model::pebble()).unwrap();
    let loading = model.load(Some(load()));
    let mut told = vec![];
    while let Some(progress) = block_on(loading.next()) {
        told.push(progress.fraction);
    }
    assert!(told.is_sorted() && told.iter().all(|f| (0.0..=1.0).contains(f)), "{told:?}");
    let engine = block_on(loading.engine()).unwrap();
    assert!(Arc::ptr_eq(&engine, &block_on(loading.engine()).unwrap()));
    drop(loading);
    assert!(engine.is_loaded() && engine.describe().contains("cpu"), "{}", engine.describe());

    let given_up = model.load(Some(load()));
    given_up.cancel();
    assert_eq!(code(block_on(given_up.engine())), ErrorCode::Cancelled);
    assert!(block_on(given_up.next()).is_none());
    let wrong = LoadOptions { backend: Some("abacus".into()), ..load() };
    assert_eq!(code(block_on(model.load(Some(wrong)).engine())), ErrorCode::InvalidArgument);
}

#[test]
fn a_conversation_is_streamed_remembered_and_edited() {
    let engine = engine();
    let chat = engine.conversation(Some("Be brief.".into()), greedy(48)).unwrap();
    assert_eq!(chat.system().as_deref(), Some("Be brief."));
    chat.set_system(None);
    let answer = block_on(chat.send("What can you do?".into(), vec![])).unwrap();
    assert_eq!(code(block_on(chat.send("And?".into(), vec![]))), ErrorCode::Busy);
    let mut text = String::new();
    let mut finish = None;
    while let Some(event) = block_on(answer.next()).unwrap() {
        assert!(finish.is_none(), "{event:?} came after the end");
        match event {
            Event::Text { text: more } => text += &more,
            Event::Finished { finish: end } => finish = Some(end),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(finish.as_ref().unwrap().reason, FinishReason::Stop);
    assert_eq!(block_on(answer.next()).unwrap(), None);
    let reply = answer.so_far();
    assert_eq!((&reply.text, &reply.finish), (&text, &finish));
    assert!(text.contains("stories"), "{text}");

    let second = block_on(chat.send("What is 2 + 2?".into(), vec![])).unwrap();
    let stats = block_on(second.reply()).unwrap().finish.unwrap().stats;
    assert!(stats.reused_tokens > 0, "the first turn is kept: {stats:?}");
    let history = chat.history();
    let roles: Vec<Role> = history.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
    assert_eq!(history[1].parts, [Part::Text { text: text.clone() }]);

    let branch = chat.fork();
    chat.truncate(2).unwrap();
    assert_eq!((chat.history().len(), branch.history().len()), (2, 4));
    let n_tokens = block_on(chat.count_tokens()).unwrap();
    assert!(n_tokens > 0 && n_tokens < block_on(branch.count_tokens()).unwrap());
    block_on(branch.set_history(history[..1].to_vec())).unwrap();
    let again = block_on(block_on(branch.answer()).unwrap().reply()).unwrap();
    assert_eq!(again.text, text, "the same is asked again");
    let again = block_on(block_on(branch.regenerate()).unwrap().reply()).unwrap();
    assert_eq!((again.text, branch.history().len()), (text, 2));
    chat.clear();
    assert!(chat.history().is_empty());
    assert_eq!(code(block_on(chat.answer())), ErrorCode::InvalidArgument);
}

#[test]
fn what_cant_be_answered_was_not_said() {
    let engine = engine();
    let chat = engine.conversation(None, greedy(8)).unwrap();
    let broken = Part::Image { bytes: b"no image".to_vec() };
    assert_eq!(code(block_on(chat.send("What?".into(), vec![broken]))), ErrorCode::InvalidArgument);
    let long = "fox ".repeat(600);
    assert_eq!(code(block_on(chat.send(long, vec![]))), ErrorCode::ContextLengthExceeded);
    let hot = AnswerOptions { temperature: Some(-1.0), ..AnswerOptions::default() };
    chat.set_options(hot).unwrap();
    assert_eq!(code(block_on(chat.send("Hi.".into(), vec![]))), ErrorCode::InvalidArgument);
    chat.set_options(greedy(8).unwrap()).unwrap();
    chat.add(user("Hello.")).unwrap();
    block_on(block_on(chat.answer()).unwrap().reply()).unwrap();
    assert_eq!(chat.history().len(), 2);
}

#[test]
fn it_sees_images() {
    let engine = engine();
    let chat = engine.conversation(None, greedy(64)).unwrap();
    let answer = block_on(chat.send("Describe this image.".into(), vec![drawing()])).unwrap();
    let seen = block_on(answer.reply()).unwrap();
    assert!(seen.text.contains("yellow") && seen.text.contains("star"), "{}", seen.text);
    assert!(seen.finish.unwrap().stats.encode_seconds > 0.0);
    assert_eq!(chat.history()[0].parts[0], drawing());
}

#[test]
fn it_calls_tools_and_hears_what_they_return() {
    let engine = engine();
    let parameters = r#"{"type": "object", "properties": {"city": {"type": "string",
        "description": "The name of the city."}}, "required": ["city"]}"#;
    let tool = |name: &str, description: &str| Tool {
        name: name.into(),
        description: description.into(),
        parameters: parameters.into(),
        strict: false,
    };
    let tools = vec![
        tool("get_time", "Get the current time in a city."),
        tool("get_weather", "Get the current weather in a city."),
    ];
    let options = AnswerOptions { tools, ..greedy(64).unwrap() };
    let chat = engine.conversation(None, Some(options)).unwrap();
    let answer = block_on(chat.send("What is the weather in Auckland?".into(), vec![])).unwrap();
    let mut calls = vec![];
    while let Some(event) = block_on(answer.next()).unwrap() {
        if let Event::ToolCall { id, name, arguments, .. } = event {
            calls.push(ToolCall { id, name, arguments });
        }
    }
    assert_eq!(calls.len(), 1, "{calls:?}");
    let call = calls.remove(0);
    assert_eq!((&*call.name, &*call.arguments), ("get_weather", r#"{"city":"Auckland"}"#));
    chat.add_tool_result(call, r#"{"temperature": 17, "sky": "clear"}"#.into()).unwrap();
    let told = block_on(block_on(chat.answer()).unwrap().reply()).unwrap();
    assert!(!told.text.is_empty(), "{told:?}");
    assert_eq!(chat.history().len(), 4);
}

#[test]
fn a_schema_holds_the_answer() {
    let engine = engine();
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"], "additionalProperties": false}"#;
    let format = Some(Format::JsonSchema { schema: schema.into() });
    let options = AnswerOptions { format, ..greedy(40).unwrap() };
    let answer = block_on(engine.answer(vec![user("What is 2 + 2?")], Some(options))).unwrap();
    let text = block_on(answer.reply()).unwrap().text;
    let json: lapidary::serde_json::Value = lapidary::serde_json::from_str(&text).unwrap();
    assert!(json["n"].is_i64() && json.as_object().unwrap().len() == 1, "{text}");
}

#[test]
fn the_same_seed_gives_the_same_answer_and_everything_asked_for_is_told() {
    let engine = engine();
    let options = AnswerOptions {
        temperature: Some(1.0),
        seed: Some(u64::MAX),
        max_tokens: Some(12),
        logprobs: Some(2),
        progress: true,
        ..AnswerOptions::default()
    };
    let run = || {
        let answer = block_on(engine.answer(vec![user(STORY)], Some(options.clone()))).unwrap();
        let mut events = vec![];
        while let Some(event) = block_on(answer.next()).unwrap() {
            events.push(event);
        }
        events
    };
    let (first, second) = (run(), run());
    let tokens = |events: &[Event]| -> Vec<u32> {
        let id = |event: &Event| match event {
            Event::Token { id, logprob, top } => {
                assert!(logprob.is_some_and(|l| l <= 0.0) && top.len() == 2);
                Some(*id)
            }
            _ => None,
        };
        events.iter().filter_map(id).collect()
    };
    assert_eq!(tokens(&first), tokens(&second));
    assert_eq!(tokens(&first).len(), 12);
    assert!(first.iter().any(|e| matches!(e, Event::Progress { .. })));
    let Some(Event::Finished { finish }) = first.last() else { panic!("{first:?}") };
    assert_eq!((finish.reason, finish.stats.seed), (FinishReason::Length, u64::MAX));
}

#[test]
fn cancelling_ends_a_stream_and_dropping_it_frees_the_engine() {
    let engine = patient();
    let answer = telling(&engine);
    assert!(matches!(block_on(answer.next()).unwrap(), Some(Event::Text { .. })));
    answer.cancel();
    let reply = block_on(answer.reply()).unwrap();
    assert_eq!(reply.finish.unwrap().reason, FinishReason::Cancelled);
    assert!(!reply.text.is_empty());

    let answer = telling(&engine);
    assert!(block_on(answer.next()).unwrap().is_some());
    drop(answer);
    while engine.metrics().open > 0 {
        thread::yield_now();
    }
    assert_eq!(engine.metrics().cancelled, 2);
}

#[test]
fn m10_an_unloaded_engine_says_so_and_nothing_crashes() {
    let engine = patient();
    let (read, left) = (telling(&engine), telling(&engine));
    assert!(block_on(read.next()).unwrap().is_some());
    let chat = engine.conversation(None, greedy(8)).unwrap();
    let threads = thread::scope(|scope| {
        let unloads: Vec<_> = (0..3).map(|_| scope.spawn(|| block_on(engine.unload()))).collect();
        let dropped = scope.spawn(move || drop(left));
        dropped.join().unwrap();
        unloads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(threads.iter().all(Result::is_ok));
    let end = loop {
        match block_on(read.next()) {
            Ok(Some(Event::Text { .. })) => {}
            end => break end,
        }
    };
    assert_eq!(code(end), ErrorCode::Unloaded);
    assert_eq!(block_on(read.next()), Ok(None));
    assert!(!engine.is_loaded());
    for failed in [
        block_on(engine.answer(vec![user("Hi.")], None)).map(drop),
        block_on(chat.send("Hi.".into(), vec![])).map(drop),
        block_on(engine.embed(vec!["a fox".into()])).map(drop),
    ] {
        assert_eq!(code(failed), ErrorCode::Unloaded);
    }
    block_on(engine.unload()).unwrap();
    assert_eq!(error_code_name(ErrorCode::Unloaded), "model_unloaded");
}

#[test]
fn an_answer_outlives_the_objects_that_it_came_from() {
    let answer = {
        let engine = engine();
        let chat = engine.conversation(None, greedy(48)).unwrap();
        block_on(chat.send("What can you do?".into(), vec![])).unwrap()
    };
    assert!(block_on(answer.reply()).unwrap().text.contains("stories"));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn many_may_wait_for_one_stream_and_one_may_go() {
    let engine = engine();
    let answer = block_on(engine.answer(vec![user(STORY)], greedy(32))).unwrap();
    // One who waits and goes does not take the others' wakers along.
    {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count);
        let mut gone = Box::pin(answer.next());
        let polled = gone.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Ok(Some(_)))));
    }
    let read: Vec<Vec<Event>> = thread::scope(|scope| {
        let read = || {
            let mut events = vec![];
            while let Some(event) = block_on(answer.next()).unwrap() {
                events.push(event);
            }
            events
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let ends = read.iter().flatten().filter(|e| matches!(e, Event::Finished { .. })).count();
    assert_eq!(ends, 1);
}

#[test]
fn a_saved_conversation_goes_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.json").display().to_string();
    let first = engine();
    let chat = first.conversation(None, greedy(48)).unwrap();
    block_on(block_on(chat.send("What can you do?".into(), vec![])).unwrap().reply()).unwrap();
    let kept = block_on(chat.save(path.clone())).unwrap();
    assert!(kept > 0);
    let second = engine();
    let resumed = second.conversation(None, greedy(48)).unwrap();
    assert_eq!(block_on(resumed.resume(path)).unwrap(), kept);
    assert_eq!(resumed.history(), chat.history());
    let missing = block_on(resumed.resume("/nowhere/chat.json".into()));
    assert_eq!(code(missing), ErrorCode::NotFound);
}

#[test]
fn embeddings_are_made_in_order() {
    let engine = engine();
    let [a, b, c] = ["a fox", "a bear", "a fox"].map(String::from);
    let made = block_on(engine.embed(vec![a, b, c])).unwrap();
    assert_eq!((made.len(), &made[0]), (3, &made[2]));
    assert_ne!(made[0], made[1]);
}
