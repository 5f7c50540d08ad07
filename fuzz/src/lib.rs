//! What the fuzzers run. Each function takes arbitrary bytes and must return.
//!
//! `targets/` holds the binaries for `cargo fuzz`; `tests/replay.rs` feeds the corpus, and
//! mutations of it, to the same functions in ordinary tests.

mod graph;
mod pack;

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use lapidary_gemma::{assemble, gguf, hf_config};
use lapidary_media::{Audio, Image, Limits as MediaLimits, Video};
use lapidary_program::{FileBytes, lap};
use lapidary_server::Limits;
use lapidary_server::http::Out;
use lapidary_text::{
    Answer, AnswerParser, ChatInput, ChatTemplate, Grammar, GrammarCompiler, Message, Thinking,
    TokenNames, Tokenizer,
};
use serde_json::Value;

pub use graph::program_graph;
pub use pack::pack_cache;

/// A target: its name, which is also its corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("lap_open", lap_open),
    ("gguf_open", gguf_open),
    ("mmproj_open", mmproj_open),
    ("pack_cache", pack_cache),
    ("config_json", config_json),
    ("tokenizer_json", tokenizer_json),
    ("tokenizer_parts", tokenizer_parts),
    ("chat_template", chat_template),
    ("answer_stream", answer_stream),
    ("json_schema", json_schema),
    ("image_decode", image_decode),
    ("audio_decode", audio_decode),
    ("program_graph", program_graph),
    ("request_body", request_body),
    ("event_stream", event_stream),
];

/// Opens a `.lap` file and reads a row of each weight.
pub fn lap_open(data: &[u8]) {
    let Ok(program) = lap::from_bytes(FileBytes::from_vec(data.to_vec())) else { return };
    for (name, decl) in program.weights() {
        if let Ok(weight) = program.weight(name) {
            weight.row_f32(decl.rows() - 1, &mut vec![0.0; decl.cols()]);
        }
    }
}

/// Imports a GGUF file and reads a row of each weight.
pub fn gguf_open(data: &[u8]) {
    let bytes = FileBytes::from_vec(data.to_vec());
    let Ok(imported) = gguf::read_model(Path::new("fuzz.gguf"), bytes) else { return };
    let Ok(program) = assemble(imported, None) else { return };
    for (name, decl) in program.weights() {
        if let Ok(weight) = program.weight(name) {
            weight.row_f32(decl.rows() - 1, &mut vec![0.0; decl.cols()]);
        }
    }
}

/// Reads the towers of an mmproj file.
pub fn mmproj_open(data: &[u8]) {
    let bytes = FileBytes::from_vec(data.to_vec());
    let Ok(towers) = gguf::read_towers(Path::new("fuzz.gguf"), bytes) else { return };
    for (name, decl) in &towers.weights {
        assert!(decl.rows() > 0 && decl.cols() > 0, "{name}");
    }
}

/// Parses a `config.json`.
pub fn config_json(data: &[u8]) {
    let _ = hf_config::parse(data);
}

/// Loads a `tokenizer.json`, encodes a text with it and decodes that again.
pub fn tokenizer_json(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(data, 1 << 20) else { return };
    if let Ok(ids) = tokenizer.encode_text("Hello  wörld\n<bos> 👋") {
        let mut text = String::new();
        let mut decoder = tokenizer.stream(false);
        for id in ids {
            decoder.push(id, &mut text);
        }
        decoder.flush(&mut text);
    }
}

/// Loads a tokenizer that normalises, splits and decodes as the file says, and encodes a text.
pub fn tokenizer_parts(data: &[u8]) {
    static TOKENIZER: &[u8] = include_bytes!("../../crates/text/tests/data/tokenizer.json");
    let Ok(parts) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(mut file) = serde_json::from_slice::<Value>(TOKENIZER) else { return };
    for name in ["normalizer", "pre_tokenizer", "decoder"] {
        file[name] = parts.get(name).cloned().unwrap_or_default();
    }
    let Ok(tokenizer) = Tokenizer::from_json(file.to_string().as_bytes(), 396) else { return };
    for text in ["", " the  hell", "a\n\nb<br>c 🙂\u{0}ü", "   "] {
        let Ok(ids) = tokenizer.encode_text(text) else { continue };
        let whole = tokenizer.decode(&ids, false);
        let mut pieces = String::new();
        let mut decoder = tokenizer.stream(false);
        ids.iter().for_each(|id| decoder.push(*id, &mut pieces));
        decoder.flush(&mut pieces);
        assert_eq!(whole, pieces);
    }
}

/// Renders a conversation with a template.
pub fn chat_template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, TokenNames::default()) else { return };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi <turn|>"),
        Message::new("assistant", "Yes?"),
    ];
    let input = ChatInput { messages: &messages, ..ChatInput::default() };
    if let Ok(rendered) = template.render(&input, None) {
        assert!(rendered.text().len() < 64 << 20);
    }
}

/// Reads an answer in one piece and letter by letter, which is the same.
pub fn answer_stream(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for architecture in ["gemma3", "gemma4"] {
        let Some(format) = lapidary_gemma::answer_format(architecture) else { return };
        let whole = Answer::read(&text, &format);
        let (mut parser, mut letters) = (AnswerParser::of_text(&format), Answer::default());
        for c in text.chars() {
            parser.push_text(c.encode_utf8(&mut [0; 4]), &mut |delta| letters.push(delta));
        }
        parser.finish(&mut |delta| letters.push(delta));
        assert_eq!(whole, letters);
    }
}

/// Holds an answer, and the arguments of a call, to a JSON schema.
pub fn json_schema(data: &[u8]) {
    static TOKENIZER: &[u8] = include_bytes!("../../crates/text/tests/data/tokenizer.json");
    static COMPILER: OnceLock<Option<(Tokenizer, GrammarCompiler)>> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| {
        let tokenizer = Tokenizer::from_json(TOKENIZER, 396).ok()?;
        let compiler = GrammarCompiler::new(&tokenizer, &[1]).ok()?;
        Some((tokenizer, compiler))
    });
    let Some((tokenizer, compiler)) = compiler else { return };
    let Ok(schema) = serde_json::from_slice::<Value>(data) else { return };
    let tools = vec![serde_json::json!({"name": "f", "parameters": schema})];
    let calls = Grammar::ToolCalls { tools, required: true, parallel: false };
    let format = lapidary_gemma::answer_format("gemma4");
    for grammar in [Grammar::JsonSchema(schema), calls] {
        let made = compiler.compile(&grammar, format.as_ref(), tokenizer, Thinking::None);
        let Ok(mut constraint) = made else { continue };
        for _ in 0..8 {
            let Ok(mask) = constraint.mask() else { break };
            let first = mask.iter().position(|word| *word != 0);
            let Some((word, bits)) = first.map(|i| (i, mask[i])) else { break };
            if constraint.accept(word as u32 * 32 + bits.trailing_zeros()).is_err() {
                break;
            }
        }
    }
}

/// Little enough that a run takes no time, and more than the seeds need.
fn media_limits() -> MediaLimits {
    MediaLimits {
        max_pixels: 1 << 18,
        max_decode_bytes: 4 << 20,
        max_video_pixels: 1 << 18,
        max_audio_s: 5,
        max_pcm_bytes: 4 << 20,
        ..MediaLimits::default()
    }
}

/// Decodes an image, and the frames of an animation.
pub fn image_decode(data: &[u8]) {
    let limits = media_limits();
    if let Ok(image) = Image::decode(data, &limits) {
        let pixels = u64::from(image.width()) * u64::from(image.height());
        assert!(pixels > 0 && pixels <= limits.max_pixels);
        assert_eq!(image.data().len() as u64, pixels * 3);
    }
    if let Ok(video) = Video::from_animation(data, 8, &limits) {
        assert!(video.count() <= 8);
    }
}

/// Decodes an audio clip.
pub fn audio_decode(data: &[u8]) {
    let limits = media_limits();
    if let Ok(audio) = Audio::decode(data, &limits) {
        assert!(audio.seconds() <= limits.max_audio_s as f64);
        assert!(audio.samples().iter().all(|sample| sample.is_finite()));
    }
}

/// Reads and checks the body of a request, as each route does. Whatever is wrong with it is the client's
/// fault, and is told with a status that says so.
pub fn request_body(data: &[u8]) {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    let limits = LIMITS.get_or_init(Limits::default);
    for (path, check) in lapidary_server::CHECKS {
        if let Err(failure) = check(data, limits) {
            assert!(failure.status.is_client_error(), "{path}: {failure:?}");
            assert!(!failure.message.is_empty());
        }
    }
}

/// Reads tokens as text, and events that carry it in pieces. The text is that of the tokens read whole,
/// and the events are what was put in, wherever the stream is cut.
pub fn event_stream(data: &[u8]) {
    static TOKENIZER: &[u8] = include_bytes!("../../crates/text/tests/data/tokenizer.json");
    static READ: OnceLock<Option<Tokenizer>> = OnceLock::new();
    let tokenizer = READ.get_or_init(|| Tokenizer::from_json(TOKENIZER, 396).ok());
    let Some(tokenizer) = tokenizer else { return };
    let ids: Vec<u32> = data.chunks(2).map(|two| two.iter().map(|b| u32::from(*b)).sum()).collect();
    let mut decoder = tokenizer.stream(true);
    let (mut whole, mut pieces) = (String::new(), Vec::new());
    for id in &ids {
        let mut text = String::new();
        decoder.push(*id, &mut text);
        pieces.push(text);
    }
    let mut rest = String::new();
    decoder.flush(&mut rest);
    pieces.push(rest);
    pieces.iter().for_each(|piece| whole.push_str(piece));
    assert_eq!(whole, tokenizer.decode(&ids, true));
    let mut out = Out::default();
    for piece in &pieces {
        out.data(&Value::from(piece.as_str()));
        out.event("more", &Value::from(piece.as_str()));
    }
    let frames: Vec<u8> = out.frames().flatten().collect();
    let mut events = lapidary_measure::EventReader::new(Slow(&frames, data.len() % 7 + 1));
    for piece in pieces.iter().flat_map(|piece| [piece, piece]) {
        let event = events.next().and_then(Result::ok);
        assert_eq!(event, Some(Value::from(piece.as_str()).to_string()));
    }
    assert!(events.next().is_none());
    // And what no server should send.
    lapidary_measure::EventReader::new(data).take_while(Result::is_ok).for_each(drop);
}

/// Gives a few bytes at a time.
struct Slow<'a>(&'a [u8], usize);

impl Read for Slow<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let n = self.1.min(bytes.len()).min(self.0.len());
        let (now, later) = self.0.split_at(n);
        bytes[..n].copy_from_slice(now);
        self.0 = later;
        Ok(n)
    }
}
