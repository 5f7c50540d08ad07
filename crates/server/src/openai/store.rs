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
    /// As it was told.
    pub response: Value,
    /// What it answered, as it was given.
    pub input: Vec<Value>,
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
        Stored { messages: vec![], response: Value::Null, input: vec![], bytes }
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
