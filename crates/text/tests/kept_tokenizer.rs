//! Tokenizers that are kept on disk: the same as those that are made, whatever became of the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lapidary_program::Blob;
use lapidary_program::cache_file::{self, CacheFolder};
use lapidary_text::{CacheUse, Error, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

const FILE: &str = include_str!("data/tokenizer.json");
const VOCAB: u32 = 396;
const TEXTS: &[&str] = &[
    "",
    "the",
    " the  hello world\n\n",
    "a\n\nb<br>c\n",
    "жя日本é",
    "🙂\u{0}ü",
    "<bos><s>a<s>b",
    "<|turn> user\nhi <turn|>  the",
    "<soft>",
];

fn changed(change: impl FnOnce(&mut Value)) -> Blob {
    let mut file: Value = serde_json::from_str(FILE).unwrap();
    change(&mut file);
    serde_json::to_vec(&file).unwrap().into()
}

fn folder(root: &Path) -> CacheFolder {
    CacheFolder(root.to_path_buf())
}

fn load(blob: &Blob, root: &Path) -> (Tokenizer, CacheUse) {
    Tokenizer::from_blob(blob, VOCAB, Some((&folder(root), "a model"))).unwrap()
}

/// The only file of a cache.
fn kept(root: &Path) -> PathBuf {
    let mut files = fs::read_dir(root.join("tokenizers")).unwrap().map(|f| f.unwrap().path());
    let file = files.next().unwrap();
    assert_eq!(files.next(), None);
    file
}

/// A cache that holds one tokenizer, its file and the file's bytes.
fn cache(blob: &Blob) -> (TempDir, PathBuf, Vec<u8>) {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(load(blob, root.path()).1, CacheUse::Written));
    let path = kept(root.path());
    let bytes = fs::read(&path).unwrap();
    (root, path, bytes)
}

#[track_caller]
fn assert_same(a: &Tokenizer, b: &Tokenizer) {
    for text in TEXTS {
        let ids = a.encode_text(text).unwrap();
        assert_eq!(b.encode_text(text).unwrap(), ids, "{text:?}");
        assert_eq!(b.decode(&ids, true), a.decode(&ids, true), "{text:?}");
        match (a.encode_template(text, None), b.encode_template(text, None)) {
            (Ok(a), Ok(b)) => assert_eq!(a, b, "{text:?}"),
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("{text:?}: {a:?}, {b:?}"),
        }
    }
    for id in 0..VOCAB + 100 {
        assert_eq!(a.token(id), b.token(id));
        assert_eq!(a.is_special(id), b.is_special(id));
        assert_eq!(a.decode(&[id], false), b.decode(&[id], false), "{id}");
    }
    assert_eq!(a.unk_id(), b.unk_id());
    assert!(a.specials().eq(b.specials()));
}

#[test]
fn a_kept_tokenizer_is_the_same_as_one_that_is_made() {
    let strips = |f: &mut Value| {
        for token in f["added_tokens"].as_array_mut().unwrap() {
            token["lstrip"] = json!(token["content"] == "<turn|>");
            token["rstrip"] = json!(token["content"] == "<|turn>");
        }
    };
    let other_decoder = |f: &mut Value| {
        let steps = f["decoder"]["decoders"].as_array_mut().unwrap();
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    };
    let set = |pointer: &'static str, value: Value| {
        changed(move |f| *f.pointer_mut(pointer).unwrap() = value)
    };
    for blob in [
        Blob::from(FILE.as_bytes()),
        changed(strips),
        changed(other_decoder),
        changed(|f| f["model"]["ignore_merges"] = json!(true)),
        changed(|f| f["model"]["byte_fallback"] = json!(false)),
        changed(|f| f["model"]["fuse_unk"] = json!(false)),
        set("/normalizer", Value::Null),
        set("/pre_tokenizer", Value::Null),
        set("/decoder", Value::Null),
    ] {
        let (root, ..) = cache(&blob);
        let made = Tokenizer::from_json(blob.bytes().unwrap(), VOCAB).unwrap();
        let (read, cache) = load(&blob, root.path());
        assert!(matches!(cache, CacheUse::Read), "{cache:?}");
        assert_same(&made, &read);
    }
}

#[test]
fn what_is_kept_need_not_be_made() {
    let root = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let blob = || {
        let count = count.clone();
        Blob::made_by([3; 32], move || {
            count.fetch_add(1, Relaxed);
            Ok(FILE.as_bytes().to_vec())
        })
    };
    assert!(matches!(load(&blob(), root.path()).1, CacheUse::Written));
    assert!(matches!(load(&blob(), root.path()).1, CacheUse::Read));
    assert_eq!(count.load(Relaxed), 1);
    // A model with another number of rows has a tokenizer of its own.
    let other =
        Tokenizer::from_blob(&blob(), VOCAB + 10, Some((&folder(root.path()), "a model"))).unwrap();
    assert!(matches!(other.1, CacheUse::Written));
}

#[test]
fn a_tokenizer_that_is_refused_is_refused_with_a_cache_too() {
    let root = tempfile::tempdir().unwrap();
    let bad = changed(|f| f["model"]["type"] = json!("Unigram"));
    let broken = Blob::made_by([1; 32], || Err(Arc::new(std::io::Error::other("no such pieces"))));
    for _ in 0..2 {
        let e = Tokenizer::from_blob(&bad, VOCAB, Some((&folder(root.path()), "x"))).err().unwrap();
        assert!(matches!(&e, Error::Tokenizer(what) if what.contains("Unigram")), "{e}");
        let e =
            Tokenizer::from_blob(&broken, VOCAB, Some((&folder(root.path()), "x"))).err().unwrap();
        assert_eq!(e.to_string(), "no such pieces");
    }
    assert!(!root.path().join("tokenizers").exists());
}

#[test]
fn f17_a_damaged_file_is_made_anew() {
    let blob = Blob::from(FILE.as_bytes());
    let made = Tokenizer::from_json(FILE.as_bytes(), VOCAB).unwrap();
    let (root, path, bytes) = cache(&blob);
    let (head, start) = cache_file::read_head(&mut bytes.as_slice()).unwrap();
    let name = bytes.windows(7).position(|w| w == b"a model").unwrap();
    let json_end = bytes[..start as usize].iter().rposition(|b| *b == b'}').unwrap() + 1;
    assert_eq!(head.of, "a model");
    for at in (0..start as usize).chain((start as usize..bytes.len()).step_by(97)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        fs::write(&path, &damaged).unwrap();
        let (read, cache) = load(&blob, root.path());
        // Nothing hangs on the name, which is for people, nor on padding.
        let matters = !(name..name + 7).contains(&at) && !(json_end..start as usize).contains(&at);
        assert!(matches!(cache, CacheUse::Written) || !matters, "byte {at}: {cache:?}");
        if at % 16 == 0 {
            assert_same(&made, &read);
        }
        assert_eq!(read.encode_text(TEXTS[2]).unwrap(), made.encode_text(TEXTS[2]).unwrap());
    }
}

#[test]
fn f17_a_file_that_is_cut_short_or_goes_on_is_made_anew() {
    let blob = Blob::from(FILE.as_bytes());
    let (root, path, bytes) = cache(&blob);
    for len in (0..bytes.len()).step_by(131).chain([bytes.len() - 1]) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(matches!(load(&blob, root.path()).1, CacheUse::Written), "{len} bytes");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    assert!(matches!(load(&blob, root.path()).1, CacheUse::Written));
}

#[test]
fn f17_a_file_of_something_else_is_made_anew() {
    let other = changed(|f| f["model"]["fuse_unk"] = json!(false));
    let (_other_root, _, foreign) = cache(&other);
    let blob = Blob::from(FILE.as_bytes());
    let (root, path, bytes) = cache(&blob);
    let (mut head, start) = cache_file::read_head(&mut bytes.as_slice()).unwrap();
    head.kind = "pack".into();
    let wrong_kind = [&cache_file::head_bytes(&head)[..], &bytes[start as usize..]].concat();
    for file in [&foreign[..], &wrong_kind, b"", FILE.as_bytes(), &[0; 4096]] {
        fs::write(&path, file).unwrap();
        assert!(matches!(load(&blob, root.path()).1, CacheUse::Written));
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    // What stands there may not even be a file; then nothing can be kept.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(load(&blob, root.path()).1, CacheUse::NotWritten(_)));
}

/// Hashes guard against damage, not against people: what was made to look audio may say something
/// else, but nothing worse.
#[test]
fn f17_wrong_contents_under_a_right_hash_do_no_harm() {
    let blob = Blob::from(FILE.as_bytes());
    let (root, path, bytes) = cache(&blob);
    let (head, start) = cache_file::read_head(&mut bytes.as_slice()).unwrap();
    let payload = &bytes[start as usize..];
    let mut n_read = 0;
    for at in (0..64).chain((64..payload.len()).step_by(53)) {
        for change in [1u8, 0x80, 0xFF] {
            let mut payload = payload.to_vec();
            payload[at] ^= change;
            let mut head = head.clone();
            head.contents["blake3"] = json!(blake3::hash(&payload).to_hex().as_str());
            fs::write(&path, [cache_file::head_bytes(&head), payload].concat()).unwrap();
            let (tokenizer, cache) = load(&blob, root.path());
            n_read += u32::from(matches!(cache, CacheUse::Read));
            for text in TEXTS {
                if let Ok(ids) = tokenizer.encode_text(text) {
                    tokenizer.decode(&ids, true);
                }
            }
        }
    }
    assert!(n_read > 0);
}

#[test]
fn f17_a_cache_that_can_not_be_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("file");
    fs::write(&root, "not a folder").unwrap();
    let blob = Blob::from(FILE.as_bytes());
    let (tokenizer, cache) = load(&blob, &root);
    assert!(matches!(cache, CacheUse::NotWritten(_)), "{cache:?}");
    assert_same(&Tokenizer::from_json(FILE.as_bytes(), VOCAB).unwrap(), &tokenizer);
    assert_eq!(fs::read_to_string(&root).unwrap(), "not a folder");
}

#[test]
fn f17_many_may_write_at_once() {
    let root = tempfile::tempdir().unwrap();
    let blob = Blob::from(FILE.as_bytes());
    let made = Tokenizer::from_json(FILE.as_bytes(), VOCAB).unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| assert_same(&made, &load(&blob, root.path()).0));
        }
    });
    kept(root.path());
    assert!(matches!(load(&blob, root.path()).1, CacheUse::Read));
}
