//! What is kept to start faster: used, listed, pruned, and never in the way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::{Ran, gguf, lapidary, names, run, temp};

const KEY: &str = "00112233445566778899aabbccddeeff";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn tokens(cache: &Path) -> String {
    let mut command = lapidary("tokens");
    command.env("LAPIDARY_CACHE", cache).arg(gguf()).arg("the hello");
    run(&mut command).done().text().to_string()
}

fn cache(root: &Path, args: &[&str]) -> Ran {
    run(lapidary("cache").env("LAPIDARY_CACHE", root).args(args))
}

/// The only tokenizer of a cache.
fn tokenizer(root: &Path) -> PathBuf {
    let folder = root.join("tokenizers");
    let [name] = &names(&folder)[..] else { panic!("{:?}", names(&folder)) };
    folder.join(name)
}

fn unused_since(path: &Path, age: Duration) {
    let file = File::options().append(true).open(path).expect("it opens");
    file.set_modified(SystemTime::now() - age).expect("its time is set");
}

#[test]
fn f17_a_second_start_reads_what_the_first_kept_and_a_damaged_file_is_made_anew() {
    let dir = temp();
    let first = tokens(dir.path());
    let path = tokenizer(dir.path());
    let bytes = fs::read(&path).expect("it was kept");
    assert_eq!(tokens(dir.path()), first);
    for at in [3, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).expect("written");
        assert_eq!(tokens(dir.path()), first);
        assert_eq!(fs::read(&path).expect("it was made anew"), bytes);
    }
}

#[test]
fn f17_a_cache_that_is_off_or_can_not_be_written_is_no_error() {
    let dir = temp();
    let first = tokens(&dir.path().join("good"));
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("written");
    assert_eq!(tokens(&file), first);
    let mut command = lapidary("tokens");
    command.env("LAPIDARY_CACHE", &file).env("LAPIDARY_DEBUG", "1");
    let ran = run(command.arg(gguf()).arg("x")).done();
    assert_eq!(ran.stderr.lines().filter(|l| l.starts_with("debug: ")).count(), 1);
    let off = Path::new("off");
    assert_eq!(tokens(off), first);
    assert!(!off.exists());
    assert!(cache(off, &["ls"]).done().text().contains("no cache"));
    assert!(cache(off, &["ls", "--json"]).done().json()["root"].is_null());
    assert!(cache(off, &["prune"]).done().text().contains("freed 0 B"));
}

#[test]
fn ls_lists_what_is_whole_damaged_and_partial() {
    let dir = temp();
    assert_eq!(cache(dir.path(), &["ls", "--json"]).done().json()["size_bytes"], 0);
    tokens(dir.path());
    let folder = dir.path().join("tokenizers");
    fs::write(folder.join(format!("{KEY}.tok")), "x").expect("written");
    fs::write(folder.join(format!(".{KEY}.tok.1-0.partial")), "xy").expect("written");
    fs::write(folder.join("letter.txt"), "not ours").expect("written");
    let listed = cache(dir.path(), &["ls", "--json"]).done().json();
    let files = listed["files"].as_array().expect("a list");
    let mut states: Vec<_> = files.iter().map(|f| f["state"].as_str().expect("text")).collect();
    states.sort_unstable();
    assert_eq!(states, ["damaged", "partial", "whole"]);
    let whole = files.iter().find(|f| f["state"] == "whole").expect("it is there");
    assert_eq!(whole["kind"], "tokenizer");
    assert_eq!(whole["of"], "tiny random gemma4_text_dense");
    let sum: u64 = files.iter().filter_map(|f| f["size_bytes"].as_u64()).sum();
    assert_eq!(listed["size_bytes"], sum);
    let text = cache(dir.path(), &["ls"]).done();
    for word in ["in 3 files", "tokenizer", "damaged", "partial", "tiny random gemma4_text_dense"] {
        assert!(text.text().contains(word), "`{word}` is not in: {}", text.text());
    }
    let doctor = run(lapidary("doctor").env("LAPIDARY_CACHE", dir.path()).arg("--json")).done();
    assert_eq!(doctor.json()["cache"]["size_bytes"], sum);
    assert_eq!(doctor.json()["cache"]["root"], dir.path().to_str().expect("UTF-8"));
}

#[test]
fn prune_removes_what_is_old_damaged_or_abandoned_and_nothing_else() {
    let dir = temp();
    tokens(dir.path());
    let whole = tokenizer(dir.path());
    let folder = dir.path().join("tokenizers");
    let partial = |n: u32| folder.join(format!(".{KEY}.tok.{n}-0.partial"));
    let damaged = folder.join(format!("{KEY}.tok"));
    for path in [&partial(1), &partial(2), &damaged, &folder.join("letter.txt")] {
        fs::write(path, "x").expect("written");
    }
    fs::write(dir.path().join("letter.txt"), "not ours").expect("written");
    unused_since(&partial(1), Duration::from_secs(7200));
    unused_since(&folder.join("letter.txt"), 400 * DAY);
    unused_since(&whole, 29 * DAY);
    let said = cache(dir.path(), &["prune"]).done();
    assert!(said.text().contains("in 2 files, 2 left"), "{}", said.text());
    assert!(whole.exists() && partial(2).exists() && !partial(1).exists() && !damaged.exists());

    // A start is a use.
    tokens(dir.path());
    cache(dir.path(), &["prune", "--older-than", "1"]).done();
    assert!(whole.exists());
    unused_since(&whole, 2 * DAY);
    cache(dir.path(), &["prune", "--older-than", "1"]).done();
    assert!(!whole.exists());

    tokens(dir.path());
    cache(dir.path(), &["prune", "--all"]).done();
    assert_eq!(names(&folder), ["letter.txt"]);
    assert!(dir.path().join("letter.txt").exists());
    run(lapidary("cache").args(["prune", "--all", "--older-than", "3"])).refused(2, &[]);
}
