//! What is kept of prompts and conversations between two starts.

use std::fs;

use crate::support::{Ran, lapidary, names, piped, run, temp, testdata};

/// A prompt of several pages.
fn long() -> String {
    let words = (0..120).map(|i| format!("word{} and more", i % 7)).collect::<Vec<_>>();
    format!("{} What is 12 + 30?", words.join(" "))
}

fn kept(ran: &Ran) -> usize {
    let (_, rest) = ran.stderr.split_once("prompt ").expect("statistics");
    let inside = rest.split_once('(').expect("a rate").1;
    inside.split_once(" kept").map_or(0, |(n, _)| n.parse().expect("a number"))
}

#[test]
fn a_prefix_cache_spares_the_prompt_and_changes_nothing() {
    let dir = temp();
    let cache = dir.path().join("prefixes");
    let ask = |prompt: &str, cached: bool| {
        let mut command = lapidary("run");
        command.args(["-p", prompt, "-t", "0", "-n", "16", "--ctx", "2048"]);
        if cached {
            command.arg("--prefix-cache").arg(&cache);
        }
        run(&mut command).done()
    };
    let plain = ask(&long(), false);
    let first = ask(&long(), true);
    assert_eq!((kept(&first), first.text()), (0, plain.text()));
    assert_eq!(names(&cache).len(), 1);
    let second = ask(&long(), true);
    assert!(kept(&second) > 128, "{}", second.stderr);
    assert_eq!(second.text(), plain.text());
    // One that begins alike has that much in common.
    let other = long().replace("12 + 30", "2 + 2");
    let alike = ask(&other, true);
    assert!(kept(&alike) > 128, "{}", alike.stderr);
    assert_eq!(alike.text(), ask(&other, false).text());
    // A damaged file is as good as none, and a short prompt leaves none.
    let file = cache.join(&names(&cache)[0]);
    let mut bytes = fs::read(&file).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("written");
    let damaged = ask(&long(), true);
    assert_eq!((kept(&damaged), damaged.text()), (0, plain.text()));
    assert!(kept(&ask(&long(), true)) > 128, "it was not replaced");
    ask("hi", true);
    assert_eq!(names(&cache).len(), 1);
}

#[test]
fn m9_a_chat_goes_on_where_it_was_saved() {
    let dir = temp();
    let file = dir.path().join("chat.json");
    let drawing = testdata("../pebble/heldout/images/drawing17.png");
    let chat = || {
        let mut command = lapidary("chat");
        command.args(["-t", "0", "-n", "48", "--ctx", "2048"]);
        command
    };
    let first = format!("/image {}\nDescribe this image.\n", drawing.display());
    let next = "Tell me a story about a brave fox.\n";
    let whole = piped(&mut chat(), &format!("{first}{next}")).done();
    let saved = piped(chat().arg("--save").arg(&file), &first).done();
    assert!(saved.stderr.contains("saved 2 messages"), "{}", saved.stderr);
    assert_eq!(names(dir.path()), ["chat.json", "chat.json.kv"]);
    let resumed = piped(chat().arg("--resume").arg(&file), next).done();
    assert!(resumed.stderr.contains("after 2 messages"), "{}", resumed.stderr);
    assert!(!resumed.stderr.contains(" 0 of their tokens"), "{}", resumed.stderr);
    let said = format!("{}{}", saved.text(), resumed.text());
    assert_eq!(said, whole.text());
    // Without what was computed it takes longer, and says the same.
    fs::remove_file(dir.path().join("chat.json.kv")).expect("removed");
    let again = piped(chat().arg("--resume").arg(&file), next).done();
    assert_eq!(again.text(), resumed.text());
    let lost = piped(chat().arg("--resume").arg(dir.path().join("none.json")), next);
    lost.refused(5, &["none.json"]);
}
