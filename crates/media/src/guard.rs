//! Decoders of others, kept from ending the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// What a decoder gives. If it panics, it met a file that its authors did not think of: that is a
/// damaged file. Nothing that it held is used again.
pub(crate) fn guarded<T>(what: &'static str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or(Err(Error::Decoder { what }))
}

#[cfg(test)]
mod tests {
    use super::guarded;
    use crate::Error;

    #[test]
    fn a_panic_is_an_error() {
        let overflown = guarded("audio", || Ok([1u8, 2][std::hint::black_box(7)]));
        assert!(matches!(overflown, Err(Error::Decoder { what: "audio" })));
        assert!(matches!(guarded("audio", || Ok(5)), Ok(5)));
    }
}
