//! Files that are dragged into the terminal arrive as words: quoted, escaped or plain.

use std::path::{Path, PathBuf};

/// A line without the words that `wanted` takes for files, and those files.
pub fn split(line: &str, wanted: &dyn Fn(&Path) -> bool) -> (String, Vec<PathBuf>) {
    let mut files = Vec::new();
    let mut rest = String::new();
    for word in words(line) {
        let path = PathBuf::from(word.meaning.strip_prefix("file://").unwrap_or(&word.meaning));
        // A bare word such as `cat` is hardly a file; a path has a slash or an ending.
        let like_a_path = word.meaning.contains(['/', '\\', '.']);
        if like_a_path && wanted(&path) {
            files.push(path);
            // One of the two spaces around it goes as well.
            rest.truncate(rest.trim_end().len());
        } else {
            rest.push_str(word.spelled);
        }
    }
    if files.is_empty() {
        return (line.to_string(), files);
    }
    (rest.trim().to_string(), files)
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
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => meaning.push(c),
            // A quote opens only where a word begins: `it's` is a word.
            (None, '"' | '\'') if meaning.is_empty() => quote = Some(c),
            (None, '\\') => match chars.next_if(|(_, next)| !next.is_alphanumeric()) {
                Some((_, escaped)) => meaning.push(escaped),
                None => meaning.push('\\'),
            },
            (None, c) if c.is_whitespace() => {
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
    use super::split;

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
