#![allow(unsafe_code)]
//! An entry, decoded.
//!
//! A backend that is not the kernel decodes an entry *once* into a [`Request`] and matches on
//! that; the pointers an entry carries are read here and nowhere else.

use std::ffi::CStr;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use crate::address;
use crate::entry::Entry;

/// An entry's meaning. Unknown opcodes are [`Request::Unknown`]: answer them `EINVAL`, as
/// the kernel would.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields are named as in io_uring_enter(2)")]
pub enum Request {
    /// Does nothing.
    Nop,
    /// `read(2)` or `pread(2)`.
    Read {
        fd: RawFd,
        buffer: Buffer,
        offset: u64,
    },
    /// `write(2)` or `pwrite(2)`.
    Write {
        fd: RawFd,
        buffer: Buffer,
        offset: u64,
    },
    /// `fsync(2)`, or `fdatasync(2)` if only data is asked for.
    Fsync { fd: RawFd, data_only: bool },
    /// `ftruncate(2)`.
    Truncate { fd: RawFd, len: u64 },
    /// `openat(2)`.
    OpenAt {
        dir: RawFd,
        path: Vec<u8>,
        flags: i32,
        mode: u32,
    },
    /// `close(2)`.
    Close { fd: RawFd },
    /// `statx(2)`.
    Statx {
        dir: RawFd,
        path: Vec<u8>,
        flags: i32,
        mask: u32,
    },
    /// `accept4(2)`, once or until cancelled.
    Accept {
        fd: RawFd,
        flags: i32,
        multishot: bool,
    },
    /// `connect(2)`.
    Connect {
        fd: RawFd,
        address: Option<SocketAddr>,
    },
    /// `recv(2)`.
    Recv {
        fd: RawFd,
        buffer: Buffer,
        flags: i32,
    },
    /// `send(2)`.
    Send {
        fd: RawFd,
        buffer: Buffer,
        flags: i32,
    },
    /// `shutdown(2)`.
    Shutdown { fd: RawFd, how: i32 },
    /// Cancels the operation with this user data, or every one.
    Cancel { target: Option<u64> },
    /// An opcode this version does not decode.
    Unknown { opcode: u8 },
}

/// The memory an entry names. Its methods are safe because a backend holds a [`Request`]
/// only while the operation is in flight: until it posts the completion, the operation
/// keeps this memory valid (the contract of [`Operation`](crate::Operation)) and forms no
/// reference into it.
#[derive(Debug)]
pub struct Buffer {
    ptr: *mut u8,
    len: usize,
}

impl Buffer {
    /// How many bytes may be moved.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte may be moved.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` into it as far as they fit, and returns how many that were.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len);
        // SAFETY: the operation in flight keeps `len` bytes at `ptr` writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr, count) };
        count
    }

    /// A copy of the bytes that are to be sent.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: the operation in flight keeps `len` initialised bytes at `ptr`; backends
        // call this for sources only.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }.to_vec()
    }
}

impl Entry {
    /// What the entry asks for.
    pub fn decode(&self) -> Request {
        use io_uring::opcode::*;
        let fields = self.fields();
        let fd = fields.fd;
        let buffer = || Buffer {
            ptr: fields.addr as *mut u8,
            len: fields.len as usize,
        };
        match fields.opcode {
            Nop::CODE => Request::Nop,
            Read::CODE => Request::Read {
                fd,
                buffer: buffer(),
                offset: fields.off,
            },
            Write::CODE => Request::Write {
                fd,
                buffer: buffer(),
                offset: fields.off,
            },
            Fsync::CODE => Request::Fsync {
                fd,
                data_only: fields.op_flags & FSYNC_DATASYNC != 0,
            },
            Ftruncate::CODE => Request::Truncate {
                fd,
                len: fields.off,
            },
            OpenAt::CODE => Request::OpenAt {
                dir: fd,
                path: path_at(fields.addr),
                flags: fields.op_flags as i32,
                mode: fields.len,
            },
            Close::CODE => Request::Close { fd },
            Statx::CODE => Request::Statx {
                dir: fd,
                path: path_at(fields.addr),
                flags: fields.op_flags as i32,
                mask: fields.len,
            },
            Accept::CODE => Request::Accept {
                fd,
                flags: fields.op_flags as i32,
                multishot: fields.ioprio & ACCEPT_MULTISHOT != 0,
            },
            Connect::CODE => Request::Connect {
                fd,
                address: address::at(
                    fields.addr as *const libc::sockaddr_storage,
                    fields.off as u32,
                ),
            },
            Recv::CODE => Request::Recv {
                fd,
                buffer: buffer(),
                flags: fields.op_flags as i32,
            },
            Send::CODE => Request::Send {
                fd,
                buffer: buffer(),
                flags: fields.op_flags as i32,
            },
            Shutdown::CODE => Request::Shutdown {
                fd,
                how: fields.len as i32,
            },
            AsyncCancel::CODE => Request::Cancel {
                target: (fields.op_flags & CANCEL_ANY == 0).then_some(fields.addr),
            },
            opcode => Request::Unknown { opcode },
        }
    }
}

/// `IORING_FSYNC_DATASYNC`
const FSYNC_DATASYNC: u32 = 1;
/// `IORING_ACCEPT_MULTISHOT`
const ACCEPT_MULTISHOT: u16 = 1;
/// `IORING_ASYNC_CANCEL_ANY`
const CANCEL_ANY: u32 = 4;

/// The path an entry names, without its terminating zero.
fn path_at(addr: u64) -> Vec<u8> {
    // SAFETY: operations build path entries from a `CStr` that they keep alive and
    // unchanged until the last completion (contract of `Operation`).
    unsafe { CStr::from_ptr(addr as *const libc::c_char) }
        .to_bytes()
        .to_vec()
}
