//! Inside an async program, whatever its runtime: an answer is a stream of events.
//!
//! `cargo run --release -p lapidary --example async_embed [MODEL]`

use std::pin::Pin;

use futures_core::Stream;
use lapidary::{Answer, Event, Load, Model};

/// What `StreamExt::next` of the `futures` crate does.
async fn next(answer: &mut Answer) -> Option<lapidary::Result<Event>> {
    std::future::poll_fn(|context| Pin::new(&mut *answer).poll_next(context)).await
}

async fn talk(name: &str) -> lapidary::Result<()> {
    // Opening and loading take long; a server does both before it serves, or on a thread.
    let engine = Model::open(name)?.load(Load::default())?;
    let mut chat = engine.conversation();
    let mut answer = chat.user("Tell me a story about a brave fox.").answer()?;
    let mut words = 0;
    while let Some(event) = next(&mut answer).await {
        if let Event::Text(text) = event? {
            print!("{text}");
            words += text.split_whitespace().count();
        }
        if words > 60 {
            break; // Dropping the answer cancels it.
        }
    }
    println!();
    Ok(())
}

fn main() -> lapidary::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "pebble".into());
    pollster::block_on(talk(&name))
}
