#![allow(unsafe_code)]
//! Buffers on guard pages: a late touch by the kernel is an error and not a secret.
//!
//! No memory tool sees the kernel write into freed memory. A [`GuardBuf`] ends at a page
//! that nobody may touch, and when it is freed its own pages become such pages, too, and
//! stay so: an operation that still has its address gets `EFAULT`, which the helper counts.

use std::ptr::{NonNull, null_mut};

use roundel_reactor::{IoBuf, IoBufMut};

/// A buffer of a fixed capacity between guard pages.
#[derive(Debug)]
pub struct GuardBuf {
    map: NonNull<u8>,
    map_len: usize,
    /// Where the buffer begins, so that its end is the guard page's beginning.
    start: usize,
    capacity: usize,
    len: usize,
}

const PAGE: usize = 4096;

impl GuardBuf {
    /// Zeroed, empty, of this capacity.
    ///
    /// # Panics
    ///
    /// If there is no memory.
    pub fn with_capacity(capacity: usize) -> Self {
        let inner = capacity.div_ceil(PAGE).max(1) * PAGE;
        let map_len = inner + PAGE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let map = NonNull::new(map.cast::<u8>()).expect("a mapping is not at address zero");
        // SAFETY: the last page lies inside the mapping just made.
        let guarded =
            unsafe { libc::mprotect(map.as_ptr().add(inner).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(guarded, 0, "{}", std::io::Error::last_os_error());
        GuardBuf {
            map,
            map_len,
            start: inner - capacity,
            capacity,
            len: 0,
        }
    }

    /// Full of these bytes.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut this = Self::with_capacity(bytes.len());
        this.fill_from(bytes);
        this
    }
}

// SAFETY: the bytes lie in a mapping of their own, which neither a move of this value nor
// forgetting it touches; all of it was zeroed, so all of it is initialised.
unsafe impl IoBuf for GuardBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.map.as_ptr().wrapping_add(self.start)
    }
    fn bytes_init(&self) -> usize {
        self.len
    }
}

// SAFETY: as above, up to the capacity, where the guard page begins.
unsafe impl IoBufMut for GuardBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_ptr().wrapping_add(self.start)
    }
    fn bytes_total(&self) -> usize {
        self.capacity
    }
    unsafe fn set_init(&mut self, count: usize) {
        self.len = count;
    }
}

impl Drop for GuardBuf {
    fn drop(&mut self) {
        // The address space is not given back: whoever still has the address shall fault,
        // and not meet another mapping. Test processes are short.
        // SAFETY: the mapping is ours and nobody uses it any more.
        let closed = unsafe {
            libc::mmap(
                self.map.as_ptr().cast(),
                self.map_len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        debug_assert_ne!(closed, libc::MAP_FAILED);
    }
}
