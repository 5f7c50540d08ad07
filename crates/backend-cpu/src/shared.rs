//! A slice whose parts are written by several threads at once.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that can be handed to all workers; each must keep to its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `unsafe` methods whose callers promise disjoint parts.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// # Safety
    /// While the result lives, nothing else touches this part.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Where element `index` stands.
    ///
    /// # Safety
    /// `index ≤ len`, and the caller keeps what it does there to its own part.
    pub(crate) unsafe fn at(&self, index: usize) -> *mut T {
        debug_assert!(index <= self.len);
        // SAFETY: in bounds by the caller's promise.
        unsafe { self.start.add(index) }
    }
}
