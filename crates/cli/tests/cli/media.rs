//! Images and audio from files.

use std::fs;
use std::path::{Path, PathBuf};

use lapidary_program::blob;
use serde_json::Value;

use crate::support::{
    copy_of, difference, export, f32s, gguf, i64s, joined, lapidary, logits, run, temp, testdata,
    tiny,
};

const FAMILIES: &[&str] = &["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"];

fn seen(path: &str) -> PathBuf {
    testdata("seen").join(path)
}

/// A tiny checkpoint with the configuration of its own processors.
fn with_processor(family: &str, to: &Path) -> PathBuf {
    let folder = copy_of(family, to);
    for name in ["processor_config.json", "preprocessor_config.json"] {
        let from = seen(family).join(name);
        if from.exists() {
            fs::copy(from, folder.join(name)).expect("copied");
        }
    }
    folder
}

/// A checkpoint that can be talked to, and shown and played something.
fn with_chat(to: &Path) -> PathBuf {
    let folder = with_processor("gemma4_mm_e", to);
    let twin = testdata("gguf/gemma4_mm_e/model.gguf");
    let twin = lapidary_gemma::open(&twin, &Default::default()).expect("it opens");
    let tokenizer = twin.blob(blob::TOKENIZER).expect("it is made").expect("it has a tokenizer");
    fs::write(folder.join("tokenizer.json"), tokenizer).expect("written");
    let template = "{{ bos_token }}{% for m in messages %}{% if m.content is string %}\
                    {{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}\
                    {{ p.text }}{% else %}<|{{ p.type }}|>{% endif %}{% endfor %}{% endif %}\
                    {% endfor %}";
    fs::write(folder.join("chat_template.jinja"), template).expect("written");
    folder
}

/// What a family was shown and played, as flags.
fn flags(family: &str) -> Vec<String> {
    let bytes = fs::read(seen(family).join("files.json")).expect("the list of files");
    let files: Vec<String> = serde_json::from_slice(&bytes).expect("it is JSON");
    let flag = |f: &str| if f.ends_with(".png") { "--image" } else { "--audio" };
    let path = |f: &str| seen(f).display().to_string();
    files.iter().flat_map(|f| [flag(f).to_string(), path(f)]).collect()
}

#[test]
fn files_give_the_logits_of_transformers_on_every_backend() {
    let dir = temp();
    for family in FAMILIES {
        let model = with_processor(family, dir.path());
        let expected = seen(family).join("expected.safetensors");
        let (_, ids) = i64s(&expected, "ids");
        let (shape, want) = f32s(&expected, "logits");
        for backend in ["cpu", "reference"] {
            for chunk in ["512", "70"] {
                let mut more = flags(family);
                more.extend(["--backend", backend, "--chunk", chunk].map(String::from));
                let out = dir.path().join("out.safetensors");
                logits(&model, &joined(&ids, ","), &more, &out);
                let (got_shape, got) = f32s(&out, "logits");
                assert_eq!(got_shape, shape, "{family} on {backend}");
                let worst = difference(&got, &want);
                // The audio clips' mel spectra are computed in f32 by transformers, in f64 here.
                assert!(worst < 2e-4, "{family} on {backend} in chunks of {chunk}: {worst}");
            }
        }
    }
}

#[test]
fn an_exported_file_sees_and_hears_as_its_checkpoint_does() {
    let dir = temp();
    for family in FAMILIES {
        let model = with_processor(family, dir.path());
        let lap = export(&model, &dir.path().join(format!("{family}.lap")));
        let said = run(lapidary("verify").arg(&lap)).done();
        assert!(said.text().contains("vision: 1 call"), "{family}: {}", said.text());
        let hears = !matches!(*family, "gemma3_mm" | "gemma4_mm_large");
        assert_eq!(said.text().contains("audio: 1 call"), hears, "{family}");
        let (_, ids) = i64s(&seen(family).join("expected.safetensors"), "ids");
        let ids = joined(&ids, ",");
        let of_folder = logits(&model, &ids, &flags(family), &dir.path().join("folder"));
        let of_file = logits(&lap, &ids, &flags(family), &dir.path().join("file"));
        assert_eq!(f32s(&of_folder, "logits"), f32s(&of_file, "logits"), "{family}");
    }
}

#[test]
fn the_order_of_flags_is_the_order_of_media() {
    let dir = temp();
    let model = with_processor("gemma4_mm_e", dir.path());
    let (_, ids) = i64s(&seen("gemma4_mm_e").join("expected.safetensors"), "ids");
    let mut swapped = flags("gemma4_mm_e");
    swapped.rotate_left(2);
    let mut command = lapidary("logits");
    command.arg(&model).args(["--tokens", &joined(&ids, ",")]).args(&swapped);
    command.arg("-o").arg(dir.path().join("out"));
    run(&mut command).refused(2, &["medium 1", "soft tokens"]);
}

#[test]
fn a_prompt_is_answered_after_images_and_audio() {
    let dir = temp();
    let model = with_chat(dir.path());
    let answer = |more: &[&str]| {
        let mut command = lapidary("run");
        command.arg(&model).args(["hi", "-t", "0", "-n", "12"]).args(more);
        run(&mut command).done()
    };
    let (wide, tall) = (seen("wide.png"), seen("tall.png"));
    let (wide, tall) = (wide.to_str().unwrap(), tall.to_str().unwrap());
    let short = seen("short.wav");
    let short = short.to_str().unwrap();
    let blind = answer(&[]);
    assert!(!blind.stderr.contains("media"), "{}", blind.stderr);
    let one = answer(&["--image", wide]);
    let other = answer(&["--image", tall]);
    assert!(one.stderr.contains("media "), "{}", one.stderr);
    assert_ne!(one.stdout, blind.stdout);
    assert_ne!(one.stdout, other.stdout);
    let both = answer(&["--image", wide, "--audio", short, "--image", tall]);
    assert_ne!(both.stdout, other.stdout);
    assert_eq!(both.stdout, answer(&["--image", wide, "--audio", short, "--image", tall]).stdout);
    answer(&["--raw", "--image", wide]);
}

#[test]
fn a_folder_of_images_is_a_video() {
    let dir = temp();
    let model = with_chat(dir.path());
    let video = dir.path().join("video");
    fs::create_dir(&video).expect("a folder");
    for (i, name) in ["wide.png", "tall.png", "wide.png"].iter().enumerate() {
        fs::copy(seen(name), video.join(format!("frame{i}.png"))).expect("copied");
    }
    let mut command = lapidary("run");
    command.arg(&model).args(["hi", "-t", "0", "-n", "4", "--fps", "1", "--video"]).arg(&video);
    let ran = run(&mut command).done();
    assert!(ran.stderr.contains("media "), "{}", ran.stderr);
}

#[test]
fn a_chat_takes_images_that_are_dragged_into_it() {
    use std::io::Write;
    let dir = temp();
    let model = with_chat(dir.path());
    let saved = dir.path().join("chat.json");
    let image = dir.path().join("my image.png");
    fs::copy(seen("wide.png"), &image).expect("copied");
    let lines = format!(
        "hello\n'{}' what is\\\nthis?\n/set temperature 0\n/nonsense\n/save {}\n/bye\nnever said\n",
        image.display(),
        saved.display()
    );
    let mut command = lapidary("chat");
    command.arg(&model).args(["-n", "3", "--seed", "1"]).stdin(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
    let ran = crate::support::Ran::of(child.wait_with_output().expect("it ends")).done();
    assert!(ran.stderr.contains("/nonsense is not a command"), "{}", ran.stderr);
    let saved: Value = serde_json::from_slice(&fs::read(saved).expect("saved")).expect("JSON");
    let messages = saved["messages"].as_array().expect("messages");
    let roles: Vec<&str> = messages.iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    let shown = &messages[2]["content"][0];
    assert_eq!(shown["type"], "image_url");
    assert!(shown["image_url"]["url"].as_str().is_some_and(|url| url.starts_with("data:image/")));
    assert_eq!(messages[2]["content"][1]["text"], "what is\nthis?");
}

#[test]
fn inspect_says_what_a_model_takes() {
    let cases = [
        (tiny("gemma3_text"), "takes text\n"),
        (tiny("gemma3_mm"), "takes text, image\n"),
        (tiny("gemma4_mm_large"), "takes text, image, video\n"),
        (tiny("gemma4_mm_e"), "takes text, image, video, audio\n"),
        (testdata("gguf/gemma4_unified/model.gguf"), "takes text, image, video, audio\n"),
    ];
    for (model, want) in cases {
        let said = run(lapidary("inspect").arg(&model)).done();
        assert!(said.text().contains(want), "{}: {}", model.display(), said.text());
    }
}

#[test]
fn r10_media_that_a_model_does_not_take_are_refused_by_name() {
    let (wide, short) = (seen("wide.png"), seen("short.wav"));
    let cases = [
        (gguf(), "--image", &wide, "this model takes text only, not image"),
        (gguf(), "--audio", &short, "this model takes text only, not audio"),
        (gguf(), "--video", &wide, "this model takes text only, not video"),
        (
            testdata("gguf/gemma4_mm_large/model.gguf"),
            "--audio",
            &short,
            "this model takes text, image and video, not audio",
        ),
        (
            testdata("gguf/gemma3_mm/model.gguf"),
            "--audio",
            &short,
            "this model takes text and image, not audio",
        ),
    ];
    for (model, flag, file, why) in cases {
        let mut command = lapidary("run");
        command.arg(&model).arg("hi").arg(flag).arg(file);
        run(&mut command).refused(2, &[why]);
    }
}

#[test]
fn r07_images_that_cannot_be_read_are_refused() {
    let dir = temp();
    let model = with_chat(dir.path());
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    };
    let whole = fs::read(seen("wide.png")).expect("read");
    let cases = [
        (dir.path().join("none.png"), 5, "none.png"),
        (file("empty.png", b""), 2, "empty"),
        (file("text.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 2, "SVG"),
        (file("cut.png", &whole[..whole.len() / 2]), 2, "PNG"),
        (seen("short.wav"), 2, "WAV"),
    ];
    for (path, code, why) in cases {
        let mut command = lapidary("run");
        command.arg(&model).arg("hi").arg("--image").arg(&path);
        run(&mut command).refused(code, &[why]);
    }
    let mut command = lapidary("run");
    command.arg(&model).args(["hi", "--image-tokens", "71", "--image"]).arg(seen("wide.png"));
    run(&mut command).refused(2, &["71 soft tokens", "70"]);
    let mut command = lapidary("run");
    command.arg(&model).args(["hi", "--pan-and-scan", "--image"]).arg(seen("wide.png"));
    run(&mut command).refused(2, &["no crops"]);
}

#[test]
fn mmproj_files_are_found_named_and_refused() {
    let dir = temp();
    let pair = testdata("gguf/gemma4_mm_e");
    let alone = dir.path().join("model.gguf");
    fs::copy(pair.join("model.gguf"), &alone).expect("copied");
    let takes = |more: &[&Path]| {
        let mut command = lapidary("inspect");
        command.arg(&alone);
        for path in more {
            command.arg("--mmproj").arg(path);
        }
        run(&mut command).done().text().to_string()
    };
    assert!(takes(&[]).contains("takes text\n"));
    assert!(takes(&[&pair.join("mmproj.gguf")]).contains("takes text, image, video, audio\n"));
    fs::copy(pair.join("mmproj.gguf"), dir.path().join("mmproj-tiny-f32.gguf")).expect("copied");
    assert!(takes(&[]).contains("takes text, image, video, audio\n"));
    fs::copy(pair.join("mmproj.gguf"), dir.path().join("mmproj-tiny-f16.gguf")).expect("copied");
    let said = run(lapidary("inspect").arg(&alone)).done();
    assert!(said.text().contains("takes text\n"));
    assert!(said.stderr.contains("several mmproj files fit"), "{}", said.stderr);

    let refused = [
        (alone.clone(), "--mmproj", alone.clone(), 3),
        (pair.join("mmproj.gguf"), "--mmproj", pair.join("mmproj.gguf"), 3),
        (alone.clone(), "--mmproj", testdata("gguf/gemma3_mm/mmproj.gguf"), 3),
        (alone, "--mmproj", dir.path().join("none.gguf"), 5),
    ];
    for (model, flag, path, code) in refused {
        let mut command = lapidary("inspect");
        command.arg(&model).arg(flag).arg(&path);
        run(&mut command).refused(code, &[]);
    }
}
