//! Bytes inside of JSON.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as base64.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let sextet = (bits >> (18 - 6 * i)) & 63;
            let is_there = i <= chunk.len();
            text.push(if is_there { char::from(ALPHABET[sextet as usize]) } else { '=' });
        }
    }
    text
}

/// Bytes of base64, padded or not; `None` if it is none. Line ends are left out.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches(['=', '\n', '\r']);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut n) = (0u32, 0u32);
    for c in text.bytes() {
        let sextet = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'\n' | b'\r' => continue,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(sextet);
        n += 6;
        if n >= 8 {
            n -= 8;
            bytes.push((bits >> n).to_le_bytes()[0]);
            bits &= (1 << n) - 1;
        }
    }
    // A single sextet at the end is no byte.
    (n < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for n in 0..70usize {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 37 + n) as u8).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
        assert_eq!(encode(b"Man"), "TWFu");
        assert_eq!(encode(b"Ma"), "TWE=");
        assert_eq!(decode("TWE"), Some(b"Ma".to_vec()));
        assert_eq!(decode("TW\nFu\n"), Some(b"Man".to_vec()));
        for wrong in ["T", "T!==", "data:", "TW Fu"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
