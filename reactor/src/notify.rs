#![allow(unsafe_code)]
//! Wakes a reactor from another thread.
//!
//! The doorbell is an eventfd. While its reactor waits in the kernel a read of it is in
//! flight; a [`Notifier`] writes to it, the read completes, and the wait returns. Whether
//! anybody sleeps, and so needs a ring, is not known here: the executor's inbox keeps that
//! flag, since an awake reactor should not be rung at the price of a system call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, types};

use crate::block::Block;
use crate::entry::Entry;

/// Wakes a reactor that waits in the kernel. It may outlive the reactor, and then wakes
/// nobody.
#[derive(Clone, Debug)]
pub struct Notifier {
    eventfd: Arc<OwnedFd>,
}

impl Notifier {
    /// Makes the present or the next wait of the reactor return. One system call; never
    /// blocks.
    pub fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the descriptor is open while `self` holds it; the eight bytes are ours.
        let written =
            unsafe { libc::write(self.eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        debug_assert_eq!(written, 8, "an eventfd takes eight bytes");
    }
}

/// The reactor's side: what is rung.
pub(crate) struct Doorbell {
    eventfd: Arc<OwnedFd>,
    /// The kernel writes here while a read is in flight.
    count: Block<MaybeUninit<u64>>,
}

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        // Blocking, so that the ring waits for a ring of the bell instead of EAGAIN.
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Doorbell {
            // SAFETY: the descriptor was just made and is nobody else's.
            eventfd: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }),
            count: Block::new(MaybeUninit::uninit()),
        })
    }

    pub(crate) fn notifier(&self) -> Notifier {
        Notifier {
            eventfd: self.eventfd.clone(),
        }
    }

    /// A read of the bell; at most one is in flight.
    pub(crate) fn entry(&self) -> Entry {
        let fd = types::Fd(self.eventfd.as_raw_fd());
        Entry(opcode::Read::new(fd, self.count.as_ptr().cast(), 8).build())
    }

    /// Gives the count's memory to the kernel for good, which may still write there.
    pub(crate) fn leak(&mut self) {
        let count = std::mem::replace(&mut self.count, Block::new(MaybeUninit::uninit()));
        let _ = count.into_raw();
    }
}
