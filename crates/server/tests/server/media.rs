//! Rows R7 to R10: images and audio.

use lapidary::Model;
use lapidary_server::Source;
use lapidary_server::service::base64;
use serde_json::{Value, json};

use crate::client::{Reply, post};
use crate::{CHAT, config, said, shared, start};

fn file(path: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn uri(kind: &str, bytes: &[u8]) -> String {
    format!("data:{kind};base64,{}", base64::encode(bytes))
}

fn ask(at: std::net::SocketAddr, part: Value) -> Reply {
    let text = json!({"type": "text", "text": "Describe this image."});
    let message = json!({"role": "user", "content": [part, text]});
    post(at, CHAT, &json!({"messages": [message], "temperature": 0, "max_tokens": 20}))
}

fn show(url: &str) -> Reply {
    ask(shared(), json!({"type": "image_url", "image_url": {"url": url}}))
}

/// Refused without a word of where anything lies.
fn refused(reply: &Reply, what: &str) {
    assert_eq!(reply.status, 400, "{what}: {}", reply.text());
    let message = reply.error("message").as_str().unwrap().to_string();
    for secret in ["0x", "/work", "/tmp", "/home", ".rs", "panicked"] {
        assert!(!message.contains(secret), "{what}: {message}");
    }
}

/// A BMP of a size, with the pixels that are given.
fn bmp(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    let size = 54 + pixels.len() as u32;
    for n in
        [size, 0, 54, 40, width, height, 1 | 24 << 16, 0, pixels.len() as u32, 2835, 2835, 0, 0]
    {
        bytes.extend(n.to_le_bytes());
    }
    bytes.extend(pixels);
    bytes
}

#[test]
fn r07_images_are_decoded_within_limits_or_refused() {
    let drawing = file("pebble/heldout/images/drawing17.png");
    let said = said(&show(&uri("image/png", &drawing)));
    assert!(said.contains("star"), "{said}");
    // The kind is that of the bytes.
    assert_eq!(show(&uri("image/jpeg", &drawing)).status, 200);
    assert_eq!(show(&uri("image/bmp", &bmp(1, 1, &[0; 4]))).status, 200);
    refused(&show(&uri("image/bmp", &bmp(65_000, 65_000, &[0; 4]))), "a bomb");
    refused(&show(&uri("image/png", &drawing[..drawing.len() / 2])), "half");
    refused(&show(&uri("image/png", b"not an image")), "letters");
    refused(&show(&uri("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>")), "SVG");
    refused(&show(&uri("image/png", b"")), "nothing");
    refused(&show("data:image/png;base64,@@@@"), "no base64");
    refused(&show("data:image/png,abc"), "no base64");
    refused(&show(&uri("audio/wav", &drawing)), "another kind");
    let strip = bmp(1, 65_535, &vec![0; 4 * 65_535]);
    assert!(matches!(show(&uri("image/bmp", &strip)).status, 200 | 400));
    let mut n = 0;
    let folder = format!("{}/../../testdata/media/pictures", env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let reply = show(&uri("image/*", &std::fs::read(&path).unwrap()));
        assert!(matches!(reply.status, 200 | 400), "{}: {}", path.display(), reply.text());
        n += usize::from(reply.status == 200);
    }
    assert!(n > 30, "{n}");
    let many =
        vec![json!({"type": "image_url", "image_url": {"url": uri("image/png", &drawing)}}); 17];
    let body = json!({"messages": [{"role": "user", "content": many}]});
    refused(&post(shared(), CHAT, &body), "too many");
}

/// A model that hears, with random weights; its folder goes with it.
fn hearing(folder: &std::path::Path) -> Source {
    let testdata = |path: &str| format!("{}/../../testdata/{path}", env!("CARGO_MANIFEST_DIR"));
    for (of, name) in [
        ("tiny/gemma4_mm_e", "config.json"),
        ("tiny/gemma4_mm_e", "generation_config.json"),
        ("tiny/gemma4_mm_e", "model.safetensors"),
        ("seen/gemma4_mm_e", "processor_config.json"),
    ] {
        std::fs::copy(testdata(&format!("{of}/{name}")), folder.join(name)).unwrap();
    }
    let twin = Model::open(testdata("gguf/gemma4_mm_e/model.gguf")).unwrap();
    let tokenizer = twin.program().blob(lapidary::program::blob::TOKENIZER).unwrap().unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    let template = "{{ bos_token }}{% for m in messages %}{% if m.content is string %}\
                    {{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}\
                    {{ p.text }}{% else %}<|{{ p.type }}|>{% endif %}{% endfor %}{% endif %}\
                    {% endfor %}";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let load = lapidary::Load::default().backend("cpu").threads(2).pack_cache(None);
    Source::new("hears", Model::open(folder).unwrap(), load)
}

#[test]
fn r08_audio_is_decoded_within_limits_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&config(), vec![hearing(folder.path())]);
    let play = |data: &str| {
        let audio = json!({"data": data, "format": "wav"});
        ask(server.at, json!({"type": "input_audio", "input_audio": audio}))
    };
    let wav = file("testdata/seen/short.wav");
    let heard = play(&base64::encode(&wav));
    assert_eq!(heard.status, 200, "{}", heard.text());
    let silent =
        json!({"messages": [{"role": "user", "content": "Describe this image."}], "max_tokens": 1});
    let silent = post(server.at, CHAT, &silent).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(heard.json()["usage"]["prompt_tokens"].as_u64().unwrap() > silent);
    // The same as a URI.
    assert_eq!(play(&uri("audio/wav", &wav)).status, 200);
    let header = |rate: u32, data: u32| {
        let mut bytes = b"RIFF".to_vec();
        bytes.extend(36u32.wrapping_add(data).to_le_bytes());
        bytes.extend(b"WAVEfmt ");
        bytes.extend(16u32.to_le_bytes());
        bytes.extend([1, 0, 1, 0]);
        bytes.extend(rate.to_le_bytes());
        bytes.extend((rate.wrapping_mul(2)).to_le_bytes());
        bytes.extend([2, 0, 16, 0]);
        bytes.extend(b"data");
        bytes.extend(data.to_le_bytes());
        bytes
    };
    refused(&play(&base64::encode(&header(16_000, 0))), "no samples");
    refused(&play(&base64::encode(&header(0, 4))), "no rate");
    refused(&play(&base64::encode(&header(u32::MAX, u32::MAX))), "a forged rate and size");
    refused(&play(&base64::encode(b"fLaC")), "a head of FLAC");
    refused(&play(&base64::encode(b"letters")), "letters");
    refused(&play(""), "nothing");
    refused(&play("@@"), "no base64");
    let mut float = file("testdata/media/sounds/float.wav");
    let n = float.len();
    float[n - 400..].chunks_exact_mut(4).for_each(|s| s.copy_from_slice(&f32::NAN.to_le_bytes()));
    refused(&play(&base64::encode(&float)), "samples that are no numbers");
    for sound in ["stereo.flac", "stereo.mp3", "stereo.ogg", "ulaw.wav", "double.wav"] {
        let reply = play(&base64::encode(&file(&format!("testdata/media/sounds/{sound}"))));
        assert_eq!(reply.status, 200, "{sound}: {}", reply.text());
    }
}

#[test]
fn r09_nothing_is_fetched() {
    let addresses = [
        "http://example.com/a.png",
        "https://example.com/a.png",
        "HTTP://example.com/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "http://a\\@b/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "ftp://example.com/a.png",
        "gopher://localhost",
    ];
    for url in addresses {
        let reply = show(url);
        refused(&reply, url);
        assert_eq!(reply.error("param"), "messages[0].content[0].image_url");
        let flat = json!({"type": "input_image", "image_url": url});
        let input = json!([{"role": "user", "content": [flat]}]);
        refused(&post(shared(), "/v1/responses", &json!({"input": input})), url);
    }
}

#[test]
fn r10_what_a_model_does_not_take_is_refused_with_what_it_does() {
    let audio = json!({"data": base64::encode(&file("testdata/seen/short.wav")), "format": "wav"});
    let reply = ask(shared(), json!({"type": "input_audio", "input_audio": audio}));
    refused(&reply, "audio");
    let message = reply.error("message").as_str().unwrap().to_string();
    assert!(message.contains("image") && message.contains("not audio"), "{message}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/gguf/gemma3_text/model.gguf");
    let load = lapidary::Load::default().backend("cpu").threads(2).pack_cache(None);
    let server = start(&config(), vec![Source::new("reads", Model::open(path).unwrap(), load)]);
    let drawing = file("pebble/heldout/images/drawing17.png");
    let url = uri("image/png", &drawing);
    let reply = ask(server.at, json!({"type": "image_url", "image_url": {"url": url}}));
    refused(&reply, "image");
    assert!(reply.error("message").as_str().unwrap().contains("text only"), "{}", reply.text());
}
