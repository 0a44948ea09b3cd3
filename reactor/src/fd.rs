#![allow(unsafe_code)]
//! A descriptor, its handles and its operations.
//!
//! Handles and operations are counted apart. A queued entry names a number, not a file, so
//! the number must not be freed while an operation has it: the descriptor is closed when
//! the last handle *and* the last operation are gone, through the ring of this thread's
//! shard, or by `close(2)` where none runs. Dropping never blocks.
//!
//! [`SharedFd::close`] closes for every handle at once, and says how it went.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::task::{Poll, ready};

use crate::block::Shared;
use crate::current;
use crate::ops::Close;
use crate::waiters::Waiters;

/// A handle to a descriptor. Clones are handles to the same one.
///
/// It belongs to this thread's shard. Dropping the last handle closes the descriptor once
/// its operations are over; dropping one of several does nothing.
pub struct SharedFd(Shared<State>);

/// An operation's hold on a descriptor: its number stays ours as long.
pub struct FdHold(Shared<State>);

struct State {
    fd: RawFd,
    handles: Cell<usize>,
    operations: Cell<usize>,
    phase: Cell<Phase>,
    /// Whoever closes, until the operations are over.
    closers: Waiters,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Somebody closes it for all: no new operations.
    Closing,
    /// The number is no longer ours.
    Closed,
}

impl SharedFd {
    /// Takes a descriptor over.
    pub fn new(fd: OwnedFd) -> Self {
        SharedFd(Shared::new(State {
            fd: fd.into_raw_fd(),
            handles: Cell::new(1),
            operations: Cell::new(0),
            phase: Cell::new(Phase::Open),
            closers: Waiters::new(),
        }))
    }

    /// A hold for an operation.
    ///
    /// # Errors
    ///
    /// `NotConnected` if the descriptor was closed through another handle.
    #[inline]
    pub fn hold(&self) -> io::Result<FdHold> {
        if self.0.phase.get() != Phase::Open {
            return Err(closed());
        }
        self.0.operations.set(self.0.operations.get() + 1);
        Ok(FdHold(self.0.clone()))
    }

    /// Closes the descriptor for every handle: cancels the operations in flight, waits for
    /// them alone, and reports what `close(2)` says. A ring operation (Linux 5.6+).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if somebody else closed it.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future leaves the descriptor unusable; it is closed with its last
    /// handle.
    pub async fn close(&self) -> io::Result<()> {
        let state = &self.0;
        if state.phase.get() != Phase::Open {
            return Err(closed());
        }
        let reactor = current::expect_current();
        state.phase.set(Phase::Closing);
        let submitted = if state.operations.get() > 0 {
            reactor.cancel_descriptor(state.fd)
        } else {
            Vec::new()
        };
        let mut leaving = Leaving { state, key: None };
        poll_fn(|cx| {
            // Ends: each round but the first follows the end of a hold.
            loop {
                let unclaimed = ready!(reactor.poll_unclaimed(&submitted, cx));
                // An operation that is over keeps its hold until its task takes the result,
                // which may be long after; the kernel has nothing of it.
                if state.operations.get() <= unclaimed || reactor.has_ended() {
                    return Poll::Ready(());
                }
                let _ = ready!(state.closers.poll_wait(&mut leaving.key, cx));
            }
        })
        .await;
        drop(leaving);
        reactor.detach(&submitted);
        state.phase.set(Phase::Closed);
        match reactor.submit(Close::new(state.fd)).await {
            // Linux has freed the number by then.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            closed => closed,
        }
    }

    /// The descriptor for a synchronous call.
    ///
    /// # Errors
    ///
    /// `NotConnected` if it was closed through another handle.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        if self.0.phase.get() == Phase::Closed {
            return Err(closed());
        }
        Ok(self.as_fd())
    }
}

/// Leaves the queue of closers if the close is given up.
struct Leaving<'a> {
    state: &'a State,
    key: Option<crate::waiters::Key>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.state.closers.remove(&mut self.key);
    }
}

impl Clone for SharedFd {
    fn clone(&self) -> Self {
        self.0.handles.set(self.0.handles.get() + 1);
        SharedFd(self.0.clone())
    }
}

impl Drop for SharedFd {
    fn drop(&mut self) {
        self.0.handles.set(self.0.handles.get() - 1);
        self.0.close_if_last();
    }
}

impl Drop for FdHold {
    fn drop(&mut self) {
        self.0.operations.set(self.0.operations.get() - 1);
        if self.0.phase.get() == Phase::Closing {
            self.0.closers.wake_all();
        }
        self.0.close_if_last();
    }
}

impl State {
    #[inline]
    fn close_if_last(&self) {
        let last = self.handles.get() == 0 && self.operations.get() == 0;
        if !last || self.phase.get() == Phase::Closed {
            return;
        }
        self.phase.set(Phase::Closed);
        if !current::close(self.fd) {
            close_now(self.fd);
        }
    }
}

impl AsFd for SharedFd {
    /// For synchronous calls. Do not close it, and do not use it after
    /// [`close`](SharedFd::close).
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is ours until the last handle is gone or `close` resolved;
        // after a close `get` refuses, and this is documented as misuse, which at worst
        // names a descriptor that is not open or another's, like any raw number.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl AsRawFd for FdHold {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl fmt::Debug for SharedFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedFd").field(&self.0.fd).finish()
    }
}

fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "this descriptor was closed through another handle",
    )
}

/// Closes a number that is ours, at once.
pub(crate) fn close_now(fd: RawFd) {
    // SAFETY: callers pass a descriptor that nobody else owns, and forget it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}
