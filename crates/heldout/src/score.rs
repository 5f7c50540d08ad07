//! How many answers of a set are right.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::passes;
use crate::item::Item;

/// The answers of a set, counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Answers that have a check.
    pub n: usize,
    /// Those that pass it.
    pub right: usize,
    /// The same by the kind of question.
    pub kinds: BTreeMap<String, Kind>,
    /// Those that don't.
    pub wrong: Vec<Wrong>,
}

/// The answers of one kind, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Answers.
    pub n: usize,
    /// Those that are right.
    pub right: usize,
}

/// An answer that is not right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// The item's id.
    pub id: String,
    /// What was said.
    pub said: String,
}

impl Score {
    /// Counts an answer, if its item can be checked.
    pub fn add(&mut self, item: &Item, reply: &str) {
        let Some(check) = &item.check else { return };
        let right = usize::from(passes(check, reply));
        let kind = self.kinds.entry(item.kind.clone()).or_default();
        (self.n, self.right) = (self.n + 1, self.right + right);
        (kind.n, kind.right) = (kind.n + 1, kind.right + right);
        if right == 0 {
            self.wrong.push(Wrong { id: item.id.clone(), said: reply.to_string() });
        }
    }

    /// Of a hundred; nothing if nothing was checked.
    pub fn percent(&self) -> Option<f64> {
        (self.n > 0).then(|| 100.0 * self.right as f64 / self.n as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_kind() {
        let set = concat!(
            r#"{"id": "a", "kind": "x", "messages": [], "check": {"check": "number", "number": 1}}"#,
            "\n",
            r#"{"id": "b", "kind": "y", "messages": [], "check": {"check": "number", "number": 2}}"#,
            "\n",
            r#"{"id": "c", "kind": "y", "messages": [], "check": null}"#,
        );
        let items = crate::parse(set, "set").unwrap();
        let mut score = Score::default();
        assert_eq!(score.percent(), None);
        for item in &items {
            score.add(item, "It is 1.");
        }
        assert_eq!((score.n, score.right, score.percent()), (2, 1, Some(50.0)));
        assert_eq!(score.kinds["x"], Kind { n: 1, right: 1 });
        assert_eq!(score.kinds["y"], Kind { n: 1, right: 0 });
        assert_eq!(score.wrong, [Wrong { id: "b".into(), said: "It is 1.".into() }]);
    }
}
