//! Answers that later requests go on from: in memory, bounded, each key's for itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapidary::Message;
use serde_json::Value;

use crate::service::Scope;

/// Answers that later requests go on from.
pub struct Store {
    scopes: Mutex<HashMap<Scope, Kept>>,
    n: usize,
    bytes: usize,
}

#[derive(Default)]
struct Kept {
    all: HashMap<String, Stored>,
    /// From the oldest on.
    order: VecDeque<String>,
    bytes: usize,
}

/// An answer, and what it answered.
#[derive(Clone)]
pub struct Stored {
    /// The conversation with the answer, without instructions.
    pub messages: Vec<Message>,
    /// As it was told, in JSON: as values it would take ten times as much.
    pub response: Box<str>,
    /// The items that it answered, in JSON.
    pub input: Box<str>,
    /// About how many bytes it takes.
    pub bytes: usize,
}

impl Store {
    /// With room for so many, and so many bytes, of each key.
    pub fn new(n: usize, bytes: usize) -> Self {
        Store { scopes: Mutex::default(), n, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, Kept>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer; the oldest go when there is no room.
    pub fn put(&self, scope: Scope, id: &str, stored: Stored) {
        if self.n == 0 || stored.bytes > self.bytes {
            return;
        }
        let mut scopes = self.lock();
        let kept = scopes.entry(scope).or_default();
        kept.bytes += stored.bytes;
        kept.all.insert(id.to_string(), stored);
        kept.order.push_back(id.to_string());
        while kept.order.len() > self.n || kept.bytes > self.bytes {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.forget(&oldest);
        }
    }

    /// An answer of this key.
    pub fn get(&self, scope: Scope, id: &str) -> Option<Stored> {
        self.lock().get(&scope)?.all.get(id).cloned()
    }

    /// An item of this key, of what was answered or of what was asked.
    pub fn item(&self, scope: Scope, id: &str) -> Option<Value> {
        let scopes = self.lock();
        let kept = scopes.get(&scope)?;
        // What is referred to was mostly said last.
        let mut newest = kept.order.iter().rev().filter_map(|id| kept.all.get(id));
        newest.find_map(|Stored { response, input, .. }| {
            // Most answers need not be read to know that it is not there.
            let read = |text: &str| match text.contains(id) {
                true => serde_json::from_str(text).unwrap_or(Value::Null),
                false => Value::Null,
            };
            let (mut response, input) = (read(response), read(input));
            let items = [response["output"].take(), input];
            let mut items = items.into_iter().filter_map(|all| match all {
                Value::Array(all) => Some(all),
                _ => None,
            });
            items.find_map(|all| all.into_iter().find(|item| item["id"] == id))
        })
    }

    /// Forgets an answer; whether it was there.
    pub fn remove(&self, scope: Scope, id: &str) -> bool {
        let mut scopes = self.lock();
        let Some(kept) = scopes.get_mut(&scope) else { return false };
        kept.order.retain(|known| known != id);
        kept.forget(id)
    }
}

impl Kept {
    fn forget(&mut self, id: &str) -> bool {
        let gone = self.all.remove(id);
        self.bytes = self.bytes.saturating_sub(gone.as_ref().map_or(0, |s| s.bytes));
        gone.is_some()
    }
}

/// About how many bytes a value takes.
pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 24,
        Value::Array(all) => all.iter().map(size).sum::<usize>() + 24,
        Value::Object(all) => all.iter().map(|(k, v)| k.len() + 40 + size(v)).sum::<usize>() + 24,
        _ => 24,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored { messages: vec![], response: "{}".into(), input: "[]".into(), bytes }
    }

    #[test]
    fn items_are_found_by_their_ids() {
        let store = Store::new(4, 1000);
        let kept = |id: &str| Stored {
            response: format!("{{\"output\":[{{\"id\":\"msg_{id}\",\"x\":1}}]}}").into(),
            input: format!("[{{\"id\":\"in_{id}\"}}]").into(),
            ..stored(10)
        };
        store.put(Scope(1), "a", kept("a"));
        store.put(Scope(1), "b", kept("b"));
        assert_eq!(store.item(Scope(1), "msg_a").unwrap()["x"], 1);
        assert!(store.item(Scope(1), "in_b").is_some());
        assert!(store.item(Scope(1), "msg_").is_none() && store.item(Scope(1), "").is_none());
        assert!(store.item(Scope(2), "msg_a").is_none());
    }

    #[test]
    fn the_oldest_go_and_keys_see_their_own() {
        let store = Store::new(2, 100);
        let (one, two) = (Scope(1), Scope(2));
        for (i, id) in ["a", "b", "c"].into_iter().enumerate() {
            store.put(one, id, stored(10 + i));
        }
        assert!(store.get(one, "a").is_none() && store.get(one, "b").is_some());
        assert!(store.get(two, "b").is_none());
        store.put(one, "large", stored(95));
        assert!(store.get(one, "b").is_none() && store.get(one, "large").is_some());
        store.put(one, "larger", stored(101));
        assert!(store.get(one, "larger").is_none() && store.get(one, "large").is_some());
        assert!(!store.remove(two, "large") && store.remove(one, "large"));
        assert!(store.get(one, "large").is_none());
        assert_eq!(store.lock()[&one].bytes, 0);
    }
}
