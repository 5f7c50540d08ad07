//! Decoders of others, kept from ending the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// What a decoder gives. If it panics, it met a file that its authors did not think of: that is a
/// damaged file. Nothing that it held is used again.
pub(crate) fn guarded<T>(what: &'static str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or(Err(Error::Decoder { what }))
}

/// Fails where the system would not give so many bytes. Decoders take theirs without asking.
pub(crate) fn room(what: &'static str, bytes: u64) -> Result<()> {
    let refused = || Error::Memory { what, bytes };
    let n = usize::try_from(bytes).map_err(|_| refused())?;
    Vec::<u8>::new().try_reserve_exact(n).map_err(|_| refused())
}

/// So many zeros.
pub(crate) fn zeros<T: Clone + Default>(what: &'static str, n: usize) -> Result<Vec<T>> {
    let bytes = n.saturating_mul(size_of::<T>());
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(n).map_err(|_| Error::Memory { what, bytes })?;
    zeros.resize(n, T::default());
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::{guarded, room, zeros};

    #[test]
    fn m2_what_can_not_be_had_is_an_error() {
        for bytes in [u64::MAX, 1 << 60, 1 << 50] {
            assert!(
                matches!(room("image", bytes), Err(Error::Memory { bytes: b, .. }) if b == bytes)
            );
        }
        assert!(room("image", 1000).is_ok());
        assert!(zeros::<[u8; 4]>("image", usize::MAX).is_err());
        assert_eq!(zeros::<f32>("audio", 2).unwrap(), [0.0, 0.0]);
    }
    use crate::Error;

    #[test]
    fn a_panic_is_an_error() {
        let overflown = guarded("audio", || Ok([1u8, 2][std::hint::black_box(7)]));
        assert!(matches!(overflown, Err(Error::Decoder { what: "audio" })));
        assert!(matches!(guarded("audio", || Ok(5)), Ok(5)));
    }
}
