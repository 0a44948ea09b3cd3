#![allow(unsafe_code)]
//! Memory that may be lent to the kernel.
//!
//! An operation owns its buffer until the kernel is finished with it, and gives it back
//! with the result: `(io::Result<usize>, B)`, a [`BufResult`]. So a dropped future can
//! never leave the kernel writing into memory that belongs to somebody else (P1).
//!
//! A read fills the buffer **from its start**, up to its capacity, and sets its length to
//! the number of bytes read; what stood there before is gone. To read into a part, or
//! behind what is there, lend a [`Slice`]: `buf.slice(buf.len()..)`. A write sends the
//! initialised bytes, from the start to the length.

use std::io;
use std::mem::MaybeUninit;
use std::ops::{Bound, RangeBounds};

use crate::slice::Slice;

/// The result of an operation that borrowed a buffer: the buffer always comes back.
pub type BufResult<T, B> = (io::Result<T>, B);

/// The most bytes the kernel moves in one call: 2 GiB less a page.
///
/// Longer buffers are transferred in parts, so a length is capped here and never wrapped.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// A buffer the kernel may read from.
///
/// # Safety
///
/// The bytes at `stable_ptr()` up to `bytes_init()` are initialised and stay where they
/// are, valid and unchanged, while the buffer is alive and nobody uses it, even if the
/// buffer value itself is moved or forgotten.
pub unsafe trait IoBuf: 'static {
    /// Where the bytes begin.
    fn stable_ptr(&self) -> *const u8;

    /// How many bytes, from the start, are initialised.
    fn bytes_init(&self) -> usize;

    /// The initialised bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: `bytes_init` bytes at `stable_ptr` are initialised (contract of the
        // trait), and they are borrowed from `self` here, so nobody changes them.
        unsafe { std::slice::from_raw_parts(self.stable_ptr(), self.bytes_init()) }
    }

    /// The part of this buffer that `range` names, as a buffer of its own.
    ///
    /// Only the initialised part can be sliced through this trait's bound alone; a buffer
    /// that is [`IoBufMut`] can also be sliced behind it with
    /// [`slice_mut`](IoBufMut::slice_mut). Take the whole back with [`Slice::into_inner`].
    ///
    /// # Panics
    ///
    /// If the range is decreasing or ends behind the initialised bytes.
    ///
    /// ```
    /// use roundel_reactor::IoBuf;
    /// let part = b"hello world".to_vec().slice(6..);
    /// assert_eq!(part.as_bytes(), b"world");
    /// assert_eq!(part.into_inner(), b"hello world");
    /// ```
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let init = self.bytes_init();
        let (begin, end) = resolve(range, init);
        assert!(
            begin <= end && end <= init,
            "slice {begin}..{end} of a buffer with {init} initialised bytes"
        );
        Slice::new(self, begin, end)
    }
}

/// A buffer the kernel may write into.
///
/// # Safety
///
/// Besides the contract of [`IoBuf`]: `bytes_total()` bytes at `stable_mut_ptr()` may be
/// written by anybody while the buffer is alive and nobody uses it, even if the buffer
/// value itself is moved or forgotten.
pub unsafe trait IoBufMut: IoBuf {
    /// Where the bytes begin.
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// How many bytes fit.
    fn bytes_total(&self) -> usize;

    /// Says that the first `count` bytes are what the buffer holds now: a growable buffer
    /// takes that as its length, one of fixed size ignores it.
    ///
    /// # Safety
    ///
    /// The first `count` bytes are initialised, and `count <= self.bytes_total()`.
    unsafe fn set_init(&mut self, count: usize);

    /// The part of this buffer's memory that `range` names, to be filled: it may lie
    /// behind the initialised bytes, but must not begin behind them.
    ///
    /// # Panics
    ///
    /// If the range is decreasing, ends behind the capacity, or leaves a gap behind the
    /// initialised bytes.
    ///
    /// ```
    /// use roundel_reactor::{IoBuf, IoBufMut};
    /// let mut buf = Vec::with_capacity(16);
    /// buf.extend_from_slice(b"head");
    /// let end = buf.len();
    /// let rest = buf.slice_mut(end..);     // to read behind what is there
    /// assert_eq!(rest.bytes_total(), 12);
    /// assert_eq!(rest.into_inner(), b"head");
    /// ```
    fn slice_mut(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let total = self.bytes_total();
        let (begin, end) = resolve(range, total);
        assert!(
            begin <= end && end <= total && begin <= self.bytes_init(),
            "slice {begin}..{end} of a buffer with {} initialised of {total} bytes",
            self.bytes_init()
        );
        Slice::new(self, begin, end)
    }

    /// Fills the buffer from `bytes` as far as they fit, as a read would, and returns how
    /// many that were.
    fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.bytes_total());
        // SAFETY: `count` is no more than either side holds; the sides do not overlap,
        // since we hold this buffer exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.stable_mut_ptr(), count) };
        // SAFETY: the first `count` bytes were just written, and they fit.
        unsafe { self.set_init(count) };
        count
    }
}

fn resolve(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let begin = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => len,
    };
    (begin, end)
}

// SAFETY: a vector's bytes lie on the heap; moving the vector does not move them.
unsafe impl IoBuf for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above, up to the capacity.
unsafe impl IoBufMut for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn bytes_total(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_init(&mut self, count: usize) {
        // SAFETY: our caller's promise is `set_len`'s.
        unsafe { self.set_len(count) }
    }
}

// SAFETY: a boxed slice's bytes lie on the heap, all of them initialised.
unsafe impl IoBuf for Box<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Box<[u8]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn bytes_total(&self) -> usize {
        self.len()
    }
    unsafe fn set_init(&mut self, _count: usize) {}
}

// SAFETY: a boxed array's bytes lie on the heap, all of them initialised.
unsafe impl<const N: usize> IoBuf for Box<[u8; N]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        N
    }
}

// SAFETY: as above.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn bytes_total(&self) -> usize {
        N
    }
    unsafe fn set_init(&mut self, _count: usize) {}
}

// SAFETY: static bytes are there for ever.
unsafe impl IoBuf for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: static bytes are there for ever.
unsafe impl IoBuf for &'static str {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: a string's bytes lie on the heap. It is a source only: the kernel does not
// promise UTF-8.
unsafe impl IoBuf for String {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: the bytes are shared and immutable, on the heap or static, wherever the handle is.
unsafe impl IoBuf for bytes::Bytes {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: the bytes lie on the heap, and this handle alone may touch its range of them.
unsafe impl IoBuf for bytes::BytesMut {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn bytes_init(&self) -> usize {
        self.len()
    }
}

#[cfg(feature = "bytes")]
// SAFETY: as above, up to the capacity.
unsafe impl IoBufMut for bytes::BytesMut {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn bytes_total(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_init(&mut self, count: usize) {
        // SAFETY: our caller's promise is `set_len`'s.
        unsafe { self.set_len(count) }
    }
}

/// A buffer that is lent: the value is kept, but hidden from the compiler, which would
/// otherwise take each move of an owner (a `Box`, say) as a promise that nobody else
/// touches the memory. The kernel does.
pub(crate) struct Lent<B>(MaybeUninit<B>);

impl<B> Lent<B> {
    pub(crate) fn new(buf: B) -> Self {
        Lent(MaybeUninit::new(buf))
    }

    /// The buffer, before the kernel has it: to ask for its address and size.
    pub(crate) fn get_mut(&mut self) -> &mut B {
        // SAFETY: `new` filled it; only `take` and Drop empty it, and both end `self`.
        unsafe { self.0.assume_init_mut() }
    }

    /// The buffer back, once the kernel is finished with it.
    pub(crate) fn take(self) -> B {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is initialised, and `this` is not used or dropped after it.
        unsafe { this.0.assume_init_read() }
    }
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        // SAFETY: initialised since `new`, and `take` does not drop.
        unsafe { self.0.assume_init_drop() }
    }
}

/// A length the kernel takes, from a length a buffer has.
#[inline]
pub(crate) fn transfer_len(len: usize) -> u32 {
    len.min(TRANSFER_MAX) as u32
}

/// Sets a filled buffer's length after a read that returned `result`.
pub(crate) fn filled<B: IoBufMut>(result: io::Result<usize>, mut buf: B) -> BufResult<usize, B> {
    if let Ok(count) = result {
        // SAFETY: the kernel was given at most `bytes_total` bytes of this buffer and says
        // that it wrote the first `count` of them.
        unsafe { buf.set_init(count) };
    }
    (result, buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length above what the kernel takes is capped, not wrapped (H17).
    #[test]
    fn h17_long_buffers_are_capped_not_wrapped() {
        assert_eq!(transfer_len(1 << 32), 0x7fff_f000);
        assert_eq!(transfer_len((1 << 32) + 5), 0x7fff_f000);
        assert_eq!(transfer_len(5), 5);
    }

    /// A shorter fill makes the buffer shorter: no stale byte stays in its length (H52).
    #[test]
    fn filling_sets_the_length_exactly() {
        let mut buf = Vec::with_capacity(16);
        assert_eq!(buf.fill_from(b"0123456789"), 10);
        assert_eq!(buf.fill_from(b"abc"), 3);
        assert_eq!(buf, b"abc");
    }

    #[test]
    #[should_panic(expected = "initialised")]
    fn a_slice_may_not_leave_a_gap() {
        let _ = Vec::with_capacity(16).slice_mut(4..8);
    }
}
