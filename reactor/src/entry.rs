#![allow(unsafe_code)]
//! One submission: the kernel's 64-byte entry.
//!
//! Operations build one; a kernel ring copies it as it is. A backend that is not the kernel
//! decodes it into a `Request`, in `request.rs`.

use std::os::fd::RawFd;

use io_uring::squeue;

/// A 64-byte submission queue entry.
#[derive(Clone, Debug)]
pub struct Entry(pub(crate) squeue::Entry);

/// The fields of `struct io_uring_sqe` that requests are decoded from; unions are named
/// for the members used here (see `io_uring_enter(2)`).
#[repr(C)]
pub(crate) struct Fields {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) ioprio: u16,
    pub(crate) fd: i32,
    /// `off`, `addr2`
    pub(crate) off: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// `rw_flags`, `fsync_flags`, `accept_flags`, `cancel_flags`, `open_flags`, ...
    pub(crate) op_flags: u32,
    pub(crate) user_data: u64,
    pub(crate) rest: [u64; 3],
}

const _: () = assert!(size_of::<Fields>() == size_of::<squeue::Entry>());

impl Entry {
    /// The number that comes back with the completion.
    pub fn user_data(&self) -> u64 {
        self.0.get_user_data()
    }

    #[inline]
    pub(crate) fn with_user_data(mut self, user_data: u64) -> Self {
        self.0.set_user_data(user_data);
        self
    }

    /// The kernel's number of the operation.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.fields().opcode
    }

    /// The descriptor the operation names, or -1.
    #[inline]
    pub fn fd(&self) -> RawFd {
        self.fields().fd
    }

    #[inline]
    pub(crate) fn fields(&self) -> &Fields {
        // SAFETY: both types are `repr(C)` and 64 bytes large, the kernel's alignment is 8
        // like ours, and every bit pattern is a valid `Fields`.
        unsafe { &*std::ptr::from_ref(&self.0).cast::<Fields>() }
    }
}
