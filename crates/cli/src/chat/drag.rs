//! Files that are dragged into the terminal arrive as words: quoted, escaped or plain.

use std::path::{Path, PathBuf};

/// Words that a path without quotes may have.
const MOST_WORDS: usize = 16;

/// A line without the words that `wanted` takes for files, and those files.
pub fn split(line: &str, wanted: &dyn Fn(&Path) -> bool) -> (String, Vec<PathBuf>) {
    let mut files = Vec::new();
    let mut rest = String::new();
    let words = words(line);
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match file_at(&words[at..], wanted) {
            Some((path, n)) => {
                files.push(path);
                // One of the two spaces around it goes as well.
                rest.truncate(rest.trim_end().len());
                at += n;
            }
            None => {
                rest.push_str(word.spelled);
                at += 1;
            }
        }
    }
    if files.is_empty() {
        return (line.to_string(), files);
    }
    (rest.trim().to_string(), files)
}

/// The file that words begin with, and how many of them spell it.
fn file_at(words: &[Word<'_>], wanted: &dyn Fn(&Path) -> bool) -> Option<(PathBuf, usize)> {
    let word = words.first()?;
    let path = path_of(&word.meaning);
    // A bare word such as `cat` is hardly a file; a path has a slash or an ending.
    if word.meaning.contains(['/', '\\', '.']) && wanted(&path) {
        return Some((path, 1));
    }
    // Some desktops leave the spaces of a path as they are.
    let begins = ["/", "~/", "./", "../", "file://"].iter().any(|b| word.meaning.starts_with(b));
    let drive = word.meaning.get(1..3).is_some_and(|at| matches!(at, ":\\" | ":/"));
    if !begins && !drive {
        return None;
    }
    let mut spelled = word.spelled.trim_start().to_string();
    for (i, word) in words.iter().enumerate().take(MOST_WORDS).skip(1) {
        spelled.push_str(word.spelled);
        let path = path_of(&spelled);
        if wanted(&path) {
            return Some((path, i + 1));
        }
    }
    None
}

/// The path that stands alone after a command: in quotes, with escapes, or with spaces as they are.
pub fn path(text: &str) -> PathBuf {
    let words = words(text);
    match words.as_slice() {
        [word] => path_of(&word.meaning),
        _ => path_of(text),
    }
}

/// The path that a word spells: also as an address of the desktop's, or from the home folder on.
fn path_of(word: &str) -> PathBuf {
    if let Some(address) = word.strip_prefix("file://") {
        let path = address.strip_prefix("localhost").unwrap_or(address);
        return PathBuf::from(decoded(path));
    }
    match (word.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(word),
    }
}

/// An address without its `%20`.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Word<'a> {
    /// As it stands in the line, with the space before it.
    spelled: &'a str,
    /// Without quotes and escapes.
    meaning: String,
}

fn words(line: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = 0;
    let mut meaning = String::new();
    let mut quote: Option<char> = None;
    // A word that began with a quote may have more of them: `'it'\''s'`.
    let mut quoted = false;
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => meaning.push(c),
            // A quote opens only where a word begins: `it's` is a word.
            (None, '"' | '\'') if meaning.is_empty() || quoted => {
                quote = Some(c);
                quoted = true;
            }
            (None, '\\') => match chars.next_if(|(_, next)| !next.is_alphanumeric()) {
                Some((_, escaped)) => meaning.push(escaped),
                None => meaning.push('\\'),
            },
            (None, c) if c.is_whitespace() => {
                quoted = false;
                if !meaning.is_empty() {
                    let meaning = std::mem::take(&mut meaning);
                    words.push(Word { spelled: &line[start..at], meaning });
                    start = at;
                }
            }
            (None, c) => meaning.push(c),
        }
    }
    if start < line.len() {
        words.push(Word { spelled: &line[start..], meaning });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{path, split};

    #[test]
    fn a_path_after_a_command_is_read_in_every_spelling() {
        for spelled in [
            "/tmp/it's a cat.png",
            r"/tmp/it\'s\ a\ cat.png",
            r"'/tmp/it'\''s a cat.png'",
            "\"/tmp/it's a cat.png\"",
            "file:///tmp/it%27s%20a%20cat.png",
        ] {
            assert_eq!(path(spelled), std::path::Path::new("/tmp/it's a cat.png"), "{spelled}");
        }
        assert_eq!(path("my cat.png"), std::path::Path::new("my cat.png"));
        if let Some(home) = std::env::home_dir() {
            assert_eq!(path("~/a b.json"), home.join("a b.json"));
        }
    }

    #[test]
    fn dropped_files_are_found_however_the_terminal_writes_them() {
        let there = ["/tmp/a.png", "/tmp/my cat.jpg", "b.wav", "/tmp/it's.png"];
        let is_there = |p: &std::path::Path| there.iter().any(|t| p == std::path::Path::new(t));
        let cases = [
            ("what is this? /tmp/a.png", "what is this?", vec!["/tmp/a.png"]),
            ("'/tmp/my cat.jpg' what is it", "what is it", vec!["/tmp/my cat.jpg"]),
            (r"/tmp/my\ cat.jpg and b.wav too", "and too", vec!["/tmp/my cat.jpg", "b.wav"]),
            ("look \"/tmp/my cat.jpg\" there", "look there", vec!["/tmp/my cat.jpg"]),
            ("file:///tmp/a.png", "", vec!["/tmp/a.png"]),
            (r"/tmp/it\'s.png", "", vec!["/tmp/it's.png"]),
            (r"'/tmp/it'\''s.png' what?", "what?", vec!["/tmp/it's.png"]),
            (r#"'/tmp/it'"'"'s.png'"#, "", vec!["/tmp/it's.png"]),
            ("file:///tmp/my%20cat.jpg", "", vec!["/tmp/my cat.jpg"]),
            ("file://localhost/tmp/it%27s.png", "", vec!["/tmp/it's.png"]),
            ("/tmp/my cat.jpg what is it", "what is it", vec!["/tmp/my cat.jpg"]),
            ("see file:///tmp/my cat.jpg", "see", vec!["/tmp/my cat.jpg"]),
            ("/tmp/no such.jpg what", "/tmp/no such.jpg what", vec![]),
            ("it's  a  cat", "it's  a  cat", vec![]),
            ("'quoted' words \\ stay", "'quoted' words \\ stay", vec![]),
            ("", "", vec![]),
        ];
        for (line, rest, files) in cases {
            let (got, found) = split(line, &is_there);
            let found: Vec<_> = found.iter().map(|p| p.to_str().unwrap()).collect();
            assert_eq!((got.as_str(), found), (rest, files), "{line}");
        }
    }
}
