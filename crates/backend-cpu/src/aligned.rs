//! Arrays that start on a cache line.
//!
//! A 64-byte load that straddles two lines costs twice, and the heap aligns to 16 bytes only.
//! Large arrays are anonymous mappings: their pages come zeroed and are taken when first touched. For
//! weights the system is asked for huge pages, which reading them at full bandwidth needs; caches and
//! activations, of which a short call touches little, would only grow by them.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};

use lapidary_backend::{Error, Result};
use memmap2::MmapMut;

/// Bytes of a cache line, and of the widest vector.
const LINE: usize = 64;
/// From this size on an array is a mapping of its own. The zeros of smaller ones are written, and so
/// take memory before anybody needs it: the caches of a small model are many arrays of half a MiB.
const MAP_FROM: usize = 1 << 17;

/// Types for which every bit pattern is a value, all zeros being zero.
///
/// # Safety
/// The type has no padding, no invalid bit pattern and no destructor.
pub(crate) unsafe trait Plain: Copy + Default + Send + Sync + 'static {}

// SAFETY: IEEE numbers.
unsafe impl Plain for f32 {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for i8 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::bf16 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::f16 {}

/// A fixed-length array on a cache-line boundary.
pub(crate) struct Aligned<T: Plain> {
    storage: Storage,
    /// Bytes before the first element.
    skip: usize,
    len: usize,
    element: PhantomData<T>,
}

enum Storage {
    Heap(Vec<u8>),
    Map(MmapMut),
}

impl<T: Plain> Aligned<T> {
    /// `len` zeros that will all be written, and read again and again.
    pub(crate) fn huge(len: usize) -> Result<Self> {
        let array = Self::zeroed(len)?;
        #[cfg(target_os = "linux")]
        if let Storage::Map(map) = &array.storage {
            // Only advice: without huge pages everything still works.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(array)
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Result<Self> {
        let fail = || {
            Error::OutOfMemory(format!("not enough memory for {len} × {} bytes", size_of::<T>()))
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(fail)?;
        let mut storage = if bytes >= MAP_FROM
            && let Ok(map) = MmapMut::map_anon(bytes)
        {
            Storage::Map(map)
        } else {
            let mut heap = Vec::new();
            heap.try_reserve_exact(bytes + LINE).map_err(|_| fail())?;
            heap.resize(bytes + LINE, 0);
            Storage::Heap(heap)
        };
        let skip = match &mut storage {
            Storage::Heap(heap) => heap.as_ptr().align_offset(LINE).min(LINE),
            Storage::Map(_) => 0,
        };
        Ok(Aligned { storage, skip, len, element: PhantomData })
    }

    /// Makes room for `len` elements; what it held is lost if it has to grow.
    pub(crate) fn grow(&mut self, len: usize) -> Result<()> {
        if self.len < len {
            *self = Self::zeroed(len)?;
        }
        Ok(())
    }
}

impl<T: Plain> Default for Aligned<T> {
    fn default() -> Self {
        Aligned { storage: Storage::Heap(Vec::new()), skip: 0, len: 0, element: PhantomData }
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        let bytes: &[u8] = match &self.storage {
            Storage::Heap(heap) => heap,
            Storage::Map(map) => map,
        };
        // SAFETY: `zeroed` took `skip + len · size_of::<T>()` bytes, aligned at `skip`; they stay
        // where they are while `self` lives, and any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().add(self.skip).cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        let bytes: &mut [u8] = match &mut self.storage {
            Storage::Heap(heap) => heap,
            Storage::Map(map) => map,
        };
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(bytes.as_mut_ptr().add(self.skip).cast(), self.len)
        }
    }
}

/// Numbers as bytes, in the order of this machine.
pub(crate) fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: a plain type has no padding, so all its bytes are there to be read.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The same, to be written.
pub(crate) fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are a value of a plain type.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::{Aligned, LINE};

    #[test]
    fn arrays_are_aligned_and_zero() {
        for len in [0usize, 1, 15, 16, 1000, 1 << 18, (1 << 18) + 3] {
            let mut a = Aligned::<f32>::zeroed(len).unwrap();
            assert_eq!(a.len(), len);
            assert!(a.iter().all(|x| *x == 0.0), "{len}");
            assert!(len == 0 || (a.as_ptr() as usize).is_multiple_of(LINE), "{len}");
            if let Some(last) = a.last_mut() {
                *last = 1.0;
            }
            assert_eq!(a.iter().sum::<f32>(), if len == 0 { 0.0 } else { 1.0 });
        }
    }
}
