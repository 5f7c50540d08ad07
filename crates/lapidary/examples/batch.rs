//! Many prompts at once: `cargo run --release -p lapidary --example batch [MODEL] < PROMPTS`.

use lapidary::{Load, Message, Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "pebble".into());
    let prompts: Vec<String> = std::io::stdin().lines().collect::<Result<_, _>>()?;
    // Eight are answered at once, the others wait. A reader that comes late is waited for.
    let load = Load::default().sequences(8).queue(prompts.len()).events(4096);
    let engine = Model::open(name)?.load(load)?;
    let ask = |prompt: &String| {
        engine.answer(Request::chat(vec![Message::user(prompt)]).max_tokens(128).seed(1))
    };
    let answers = prompts.iter().map(ask).collect::<Result<Vec<_>, _>>()?;
    for (prompt, answer) in prompts.iter().zip(answers) {
        println!("{prompt}\t{}", answer.text()?.replace('\n', " "));
    }
    eprintln!("{:?}", engine.metrics());
    Ok(())
}
