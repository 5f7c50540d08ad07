//! Bytes inside of JSON: `data:image/png;base64,…`.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as a data URI.
pub(crate) fn encode(mime: &str, bytes: &[u8]) -> String {
    let mut text = format!("data:{mime};base64,");
    text.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut three = [0u8; 4];
        three[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(three);
        for i in 0..4 {
            let sextet = (bits >> (18 - 6 * i)) & 63;
            text.push(if i > chunk.len() { '=' } else { ALPHABET[sextet as usize] as char });
        }
    }
    text
}

/// The bytes of a data URI in base64, padded or not; `None` if it is none.
pub(crate) fn decode(uri: &str) -> Option<Vec<u8>> {
    let (head, data) = uri.strip_prefix("data:")?.split_once(',')?;
    head.ends_with(";base64").then_some(())?;
    let data = data.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(data.len() / 4 * 3 + 2);
    let (mut bits, mut n) = (0u32, 0u32);
    for c in data.bytes() {
        let sextet = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(sextet);
        n += 6;
        if n >= 8 {
            n -= 8;
            bytes.push((bits >> n) as u8);
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
            let uri = encode("image/png", &bytes);
            assert!(uri.starts_with("data:image/png;base64,"));
            assert_eq!(uri.len() % 4, "data:image/png;base64,".len() % 4);
            assert_eq!(decode(&uri), Some(bytes));
        }
        assert_eq!(encode("a/b", b"Man"), "data:a/b;base64,TWFu");
        assert_eq!(decode("data:;base64,TWE"), Some(b"Ma".to_vec()));
        for wrong in
            ["", "data:", "data:a/b,TWFu", "data:;base64,T", "data:;base64,T!==", "http://x"]
        {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
