//! Numbers that nobody can guess.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Random bytes that stay the same as long as the process runs. The standard library seeds its hashes
/// from the system.
pub fn secret() -> &'static [u8; 32] {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    SECRET.get_or_init(|| {
        let mut hash = blake3::Hasher::new();
        for i in 0..8u64 {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u64(i);
            hash.update(&hasher.finish().to_le_bytes());
        }
        *hash.finalize().as_bytes()
    })
}

/// A new name: the prefix and 24 letters and digits that nobody can guess.
pub fn new_id(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut hash = blake3::Hasher::new_keyed(secret());
    hash.update(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let hex = hash.finalize().to_hex();
    format!("{prefix}{}", &hex.as_str()[..24])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_all_different() {
        let names: std::collections::HashSet<String> = (0..1000).map(|_| new_id("x-")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|n| n.len() == 26 && n.starts_with("x-")));
    }
}
