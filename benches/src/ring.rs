//! A ring without a runtime: the set-up that roundel's own rings have, one buffer a slot, nothing else.
//!
//! The `io-uring` crate encodes the entries and maps the ring. Entering is a call of our own, with the
//! ring's registered descriptor: the crate forgets that one from call to call. A [`Ring`] owns its
//! buffers and lets nobody see one that the kernel has, which makes its use safe; the price is one
//! `bool` an operation.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use io_uring::{IoUring, opcode, squeue, types};

/// Entries of the submission queue; the completion queue has twice as many. More than slots are used.
const ENTRIES: u32 = 1024;

// From linux/io_uring.h; the crate has no public names for them.
const ENTER_GETEVENTS: libc::c_uint = 1 << 0;
const ENTER_REGISTERED_RING: libc::c_uint = 1 << 4;
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Registration {
    offset: u32,
    reserved: u32,
    descriptor: u64,
}

/// A ring with slots, each of which has a buffer and at most one operation in flight.
pub struct Ring {
    ring: IoUring,
    /// Number of the registered ring descriptor, which belongs to the thread.
    registered: u32,
    buffers: Vec<Vec<u8>>,
    /// The kernel has the slot's buffer.
    in_flight: Vec<bool>,
    /// Entries in the submission queue that the kernel has not taken.
    staged: u32,
}

/// An operation has ended.
#[derive(Clone, Copy)]
pub struct Done {
    /// The slot that it was staged in.
    pub slot: usize,
    /// Its count, or a negative errno.
    result: i32,
}

impl Done {
    /// The bytes that were moved.
    ///
    /// # Errors
    ///
    /// The operation's.
    pub fn count(self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

impl Ring {
    /// A ring for the calling thread, with `slots` zeroed buffers of `len` bytes.
    ///
    /// # Errors
    ///
    /// What the kernel says to making or registering it.
    pub fn new(slots: usize, len: usize) -> io::Result<Ring> {
        assert!(
            slots <= ENTRIES as usize,
            "the queue has room for every slot"
        );
        let build = |no_array: bool| {
            let mut builder = IoUring::builder();
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .setup_clamp();
            if no_array {
                builder.setup_no_sqarray();
            }
            builder.build(ENTRIES)
        };
        // NO_SQARRAY came with Linux 6.6.
        let ring = build(true).or_else(|_| build(false))?;
        let mut registration = Registration {
            offset: u32::MAX, // any number that is free
            reserved: 0,
            descriptor: ring.as_raw_fd() as u64,
        };
        register(&ring, REGISTER_RING_FDS, &mut registration)?;
        Ok(Ring {
            ring,
            registered: registration.offset,
            buffers: vec![vec![0; len]; slots],
            in_flight: vec![false; slots],
            staged: 0,
        })
    }

    /// The slot's buffer. Panics if an operation has it.
    pub fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.in_flight[slot], "an operation has the buffer");
        &mut self.buffers[slot]
    }

    /// Stages a read of the file at `offset` that fills the slot's buffer.
    pub fn read(&mut self, slot: usize, file: RawFd, offset: u64) {
        let (buffer, len) = self.lend(slot, 0..self.buffers[slot].len());
        let entry = opcode::Read::new(types::Fd(file), buffer, len).offset(offset);
        self.push(slot, entry.build());
    }

    /// Stages a receive into this part of the slot's buffer.
    pub fn receive(&mut self, slot: usize, socket: RawFd, part: Range<usize>) {
        let (buffer, len) = self.lend(slot, part);
        self.push(
            slot,
            opcode::Recv::new(types::Fd(socket), buffer, len).build(),
        );
    }

    /// Stages a send of this part of the slot's buffer.
    pub fn send(&mut self, slot: usize, socket: RawFd, part: Range<usize>) {
        let (buffer, len) = self.lend(slot, part);
        self.push(
            slot,
            opcode::Send::new(types::Fd(socket), buffer, len).build(),
        );
    }

    /// Submits what is staged, waits for one completion at least, and takes all that are there.
    ///
    /// # Errors
    ///
    /// What the kernel says to the enter call.
    pub fn turn(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        done.clear();
        self.enter()?;
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            self.in_flight[slot] = false;
            done.push(Done {
                slot,
                result: entry.result(),
            });
        }
        Ok(())
    }

    /// The part's address and length, for one operation.
    fn lend(&mut self, slot: usize, part: Range<usize>) -> (*mut u8, u32) {
        let part = &mut self.buffer(slot)[part];
        let len = u32::try_from(part.len()).expect("buffers are some KiB long");
        let address = part.as_mut_ptr();
        self.in_flight[slot] = true;
        (address, len)
    }

    fn push(&mut self, slot: usize, entry: squeue::Entry) {
        let entry = entry.user_data(slot as u64);
        // SAFETY: the entry's only pointer is into the slot's buffer, which is neither touched (see
        // `buffer`) nor freed (see `drop`) before the operation's completion was taken.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are more entries than slots");
        self.staged += 1;
    }

    fn enter(&mut self) -> io::Result<()> {
        // SAFETY: the ring is this thread's; the call's pointers are null, which it allows; what the
        // entries point to is seen to by `push`.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.registered,
                self.staged,
                1 as libc::c_uint,
                ENTER_GETEVENTS | ENTER_REGISTERED_RING,
                ptr::null::<libc::c_void>(),
                0_usize,
            )
        };
        let Ok(taken) = u32::try_from(taken) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        };
        self.staged -= taken;
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut registration = Registration {
            offset: self.registered,
            reserved: 0,
            descriptor: 0,
        };
        // A number that stays taken is one of 16 that the thread has; the next ring would say so.
        let _ = register(&self.ring, UNREGISTER_RING_FDS, &mut registration);
        if self.in_flight.contains(&true) {
            // Closing a ring does not wait for its operations: they may write for some time yet.
            std::mem::forget(std::mem::take(&mut self.buffers));
        }
    }
}

fn register(
    ring: &IoUring,
    operation: libc::c_uint,
    registration: &mut Registration,
) -> io::Result<()> {
    // SAFETY: the call reads and writes one structure of this layout, which outlives it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            operation,
            ptr::from_mut(registration),
            1 as libc::c_uint,
        )
    };
    match done {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// What is sent arrives, in the part of the buffer it was asked for, and rings can be made in any
    /// number one after the other (their registered descriptors are given back).
    #[test]
    fn bytes_arrive_over_many_rings() {
        let (here, there) = UnixStream::pair().unwrap();
        for round in 0..40_u8 {
            let mut ring = Ring::new(2, 8).unwrap();
            ring.buffer(0).fill(round);
            ring.send(0, here.as_raw_fd(), 0..4);
            ring.receive(1, there.as_raw_fd(), 2..8);
            let (mut all, mut done) = (Vec::new(), Vec::new());
            while all.len() < 2 {
                ring.turn(&mut done).unwrap();
                all.extend_from_slice(&done);
            }
            assert!(all.iter().all(|done| done.count().unwrap() == 4));
            let r = round;
            assert_eq!(ring.buffer(1), [0, 0, r, r, r, r, 0, 0]);
        }
    }

    /// A buffer that the kernel has cannot be looked at.
    #[test]
    #[should_panic(expected = "an operation has the buffer")]
    fn a_lent_buffer_is_out_of_reach() {
        let (here, _there) = UnixStream::pair().unwrap();
        let mut ring = Ring::new(1, 8).unwrap();
        ring.receive(0, here.as_raw_fd(), 0..8);
        ring.buffer(0);
    }
}
