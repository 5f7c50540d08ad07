//! Sets of questions.

use std::path::Path;

use lapidary::text::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A question, and what a right answer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its name, unique in its set.
    pub id: String,
    /// What sort of question it is.
    pub kind: String,
    /// The conversation, up to the model's turn.
    pub messages: Vec<Message>,
    /// Tools that the model may call, as OpenAI writes them.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// The image that the conversation shows.
    #[serde(default)]
    pub image: Option<String>,
    /// What a right answer is, if it can be told.
    #[serde(default)]
    pub check: Option<Check>,
}

/// What a right answer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "check", rename_all = "snake_case")]
pub enum Check {
    /// One of these, but for case and punctuation.
    Equals {
        /// The answers.
        answers: Vec<String>,
    },
    /// Each of these is among its words.
    Contains {
        /// The words.
        words: Vec<String>,
    },
    /// The last number in it is this.
    Number {
        /// The number.
        number: i64,
    },
    /// It is this call of a tool, and nothing else.
    ToolCall {
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: Map<String, Value>,
    },
}

/// The longest set that is read.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a set.
pub fn read(path: &Path) -> Result<Vec<Item>> {
    let text = lapidary::program::read_at_most(path, MAX_BYTES).and_then(|bytes| {
        String::from_utf8(bytes)
            .map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e))
    });
    let text = text.map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    parse(&text, &path.display().to_string())
}

/// A set from its text; `set` names it in errors.
pub fn parse(text: &str, set: &str) -> Result<Vec<Item>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|source| Error::Line {
                set: set.to_string(),
                line: i + 1,
                source,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_and_mistakes_have_a_line() {
        let text = concat!(
            r#"{"id": "a", "kind": "add", "messages": [{"role": "user", "content": "1+1"}],"#,
            r#" "check": {"check": "number", "number": 2}}"#,
            "\n\n",
            r#"{"id": "b", "kind": "talk", "check": null, "image": "x.png", "messages": "#,
            r#"[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]}"#,
        );
        let items = parse(text, "set").unwrap();
        assert_eq!(items[0].check, Some(Check::Number { number: 2 }));
        assert_eq!((items[1].image.as_deref(), &items[1].check), (Some("x.png"), &None));
        let said = parse(&format!("{text}\n{{}}"), "the set").unwrap_err().to_string();
        assert!(said.contains("the set, line 4"), "{said}");
        let said =
            parse(r#"{"id": "a", "kind": "k", "messages": [], "check": {"check": "x"}}"#, "s");
        assert!(said.is_err());
    }
}
