//! Who may ask, and who shares cached tokens with whom.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::secret::secret;

/// Whose cached tokens a request may use, and whose stored answers. The same key, the same scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// The keys that are accepted.
#[derive(Clone, Default)]
pub struct Keys {
    hashes: Vec<[u8; 32]>,
}

impl Keys {
    /// These keys; without any, everybody may ask.
    pub fn new(keys: &[String]) -> Self {
        Keys { hashes: keys.iter().map(|key| hash(key.as_bytes())).collect() }
    }

    /// Whether keys are needed.
    pub fn are_needed(&self) -> bool {
        !self.hashes.is_empty()
    }

    /// The scope of a key, and its number. The time this takes does not depend on the key: hashes are
    /// compared with all others, whole.
    pub fn find(&self, given: Option<&[u8]>) -> Option<(Scope, Option<u32>)> {
        if !self.are_needed() {
            return Some((Scope(0), None));
        }
        let given = hash(given?);
        let mut is_found = Choice::from(0);
        let mut found = 0u32;
        for (number, known) in (0u32..).zip(&self.hashes) {
            let is_it = known.as_slice().ct_eq(given.as_slice());
            found.conditional_assign(&number, is_it);
            is_found |= is_it;
        }
        if !bool::from(is_found) {
            return None;
        }
        let mut scope = [0; 8];
        scope.copy_from_slice(&given[..8]);
        Some((Scope(u64::from_le_bytes(scope)), Some(found)))
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    *blake3::keyed_hash(secret(), key).as_bytes()
}

/// Keys are never shown.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("n", &self.hashes.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_and_nothing_like_it() {
        let keys = Keys::new(&["one".to_string(), "two".to_string()]);
        let (first, n) = keys.find(Some(b"one")).unwrap();
        assert_eq!(n, Some(0));
        let (second, n) = keys.find(Some(b"two")).unwrap();
        assert_eq!(n, Some(1));
        assert_ne!(first, second);
        for wrong in [&b"on"[..], b"onee", b"", b"ONE", b"one\0"] {
            assert!(keys.find(Some(wrong)).is_none());
        }
        assert!(keys.find(None).is_none());
        assert_eq!(Keys::default().find(None), Some((Scope(0), None)));
        assert!(!format!("{keys:?}").contains("one"));
    }
}
