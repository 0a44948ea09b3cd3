#![allow(unsafe_code)]
//! A part of a buffer, as a buffer.

use crate::buf::{IoBuf, IoBufMut};

/// A part of a buffer that can be lent in place of the whole; made by
/// [`IoBuf::slice`] and [`IoBufMut::slice_mut`].
///
/// After a read into it, its initialised bytes are exactly those that were read, and its
/// capacity is what it was, so it can be read into again. The buffer within keeps what
/// stood before and behind them; its length only grows.
///
/// ```
/// use roundel_reactor::{IoBuf, IoBufMut};
/// let mut part = b"0123456789".to_vec().slice_mut(2..8);
/// part.fill_from(b"ab");
/// assert_eq!(part.as_bytes(), b"ab");
/// assert_eq!(part.into_inner(), b"01ab456789");
/// ```
#[derive(Debug, Clone)]
pub struct Slice<B> {
    buf: B,
    begin: usize,
    end: usize,
    /// Where the bytes that were read into it end, once there was a read.
    filled: Option<usize>,
}

impl<B> Slice<B> {
    /// `begin..end` was checked against the buffer by the caller.
    pub(crate) fn new(buf: B, begin: usize, end: usize) -> Self {
        Slice {
            buf,
            begin,
            end,
            filled: None,
        }
    }

    /// Where the part begins in the whole.
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// Where the part ends in the whole.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

// SAFETY: the bytes are the inner buffer's, which promises the same; `begin <= end` and
// both lie inside it, so the pointer and the count stay inside it, too.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn stable_ptr(&self) -> *const u8 {
        self.buf.stable_ptr().wrapping_add(self.begin)
    }
    fn bytes_init(&self) -> usize {
        let end = self.filled.unwrap_or(self.end);
        end.min(self.buf.bytes_init()).saturating_sub(self.begin)
    }
}

// SAFETY: as above, up to `end`, which lies inside the inner buffer's capacity.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.buf.stable_mut_ptr().wrapping_add(self.begin)
    }
    fn bytes_total(&self) -> usize {
        self.end - self.begin
    }
    unsafe fn set_init(&mut self, count: usize) {
        let filled = self.begin + count;
        self.filled = Some(filled);
        if self.buf.bytes_init() < filled {
            // SAFETY: the bytes before `begin` are initialised (a slice may not begin
            // behind them), the `count` behind `begin` by our caller's promise.
            unsafe { self.buf.set_init(filled) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short read leaves room for the next one, also in a part of a part whose end was
    /// never initialised.
    #[test]
    fn a_short_read_keeps_the_capacity() {
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"head");
        let mut part = buf.slice_mut(4..12);
        assert_eq!(part.fill_from(b"ab"), 2);
        assert_eq!((part.as_bytes(), part.bytes_total()), (b"ab".as_slice(), 8));
        let mut rest = part.slice_mut(2..);
        assert_eq!(rest.fill_from(b"cdefghij"), 6);
        let part = rest.into_inner();
        assert_eq!(part.as_bytes(), b"abcdefgh");
        assert_eq!(part.into_inner(), b"headabcdefgh");
    }
}
