//! Text, an image, a tool call and a cancelled answer.
use lapidary::{Error, Event, Load, Message, Model, Sampling, serde_json::json};

fn main() -> Result<(), Error> {
    let load = Load::default().backend("cpu").context(512).pack_cache(None);
    let engine = Model::pebble()?.load(load)?;

    let mut chat = engine.conversation();
    chat.sampling(Sampling::greedy()).max_tokens(64);
    println!("text: {}", chat.user("What can you do?").answer()?.text()?);

    let mut sees = chat.fork();
    sees.clear().user("Describe this image.").image(include_bytes!(env!("DRAWING")));
    println!("image: {}", sees.answer()?.text()?);

    let city = json!({"type": "string", "description": "The name of the city."});
    let parameters = json!({"type": "object", "properties": {"city": city}, "required": ["city"]});
    let mut calls = chat.fork();
    calls.clear().tools(vec![json!({"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather in a city.",
        "parameters": parameters,
    }})]);
    for call in calls.user("What is the weather in Auckland?").answer()?.reply()?.tool_calls {
        println!("tool call: {} {:?}", call.name, call.arguments["city"]);
    }

    let mut answer = chat.message(Message::user("Tell me a story.")).answer()?;
    let word = answer.find_map(|event| matches!(event, Ok(Event::Text(_))).then_some(event));
    drop(answer); // cancels
    engine.with_runner(|runner| assert_eq!(runner.n_generations(), 0))?;
    println!("cancelled after a word: {}", word.is_some());
    Ok(())
}
