//! Shows an image: `cargo run --release -p lapidary --example image FILE [MODEL]`.

use lapidary::{Load, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let drawing = "pebble/heldout/images/drawing17.png";
    let file = args.next().unwrap_or_else(|| drawing.into());
    let engine =
        Model::open(args.next().unwrap_or_else(|| "pebble".into()))?.load(Load::default())?;
    let mut chat = engine.conversation();
    chat.user("Describe this image.").image(std::fs::read(file)?);
    println!("{}", chat.answer()?.text()?);
    Ok(())
}
