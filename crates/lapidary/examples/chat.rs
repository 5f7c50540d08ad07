//! A conversation in the terminal: `cargo run --release -p lapidary --example chat [MODEL]`.

use std::io::{BufRead, Write};

use lapidary::{Event, Load, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "pebble".into());
    let engine = Model::open(name)?.load(Load::default())?;
    eprintln!("{}", engine.plan());
    let mut chat = engine.conversation();
    for line in std::io::stdin().lock().lines() {
        for event in chat.user(line?).answer()? {
            match event? {
                Event::Text(text) => print!("{text}"),
                Event::Thinking(text) => eprint!("{text}"),
                _ => {}
            }
            std::io::stdout().flush()?;
        }
        println!();
    }
    Ok(())
}
