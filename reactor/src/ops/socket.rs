#![allow(unsafe_code)]
//! Operations on sockets.

use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use io_uring::{opcode, types};

use crate::address::Address;
use crate::backend::Completion;
use crate::block::Block;
use crate::buf::{BufResult, IoBuf, IoBufMut, Lent, filled, transfer_len};
use crate::entry::Entry;
use crate::fd::FdHold;
use crate::multishot::MultishotOperation;
use crate::op::Operation;

/// Receives. Linux 5.6+.
pub struct Recv<B> {
    fd: FdHold,
    buf: Lent<B>,
}

impl<B: IoBufMut> Recv<B> {
    /// Fills `buf` from its start with what has come, at least a byte; 0 is the end.
    pub fn new(fd: FdHold, buf: B) -> Self {
        Recv {
            fd,
            buf: Lent::new(buf),
        }
    }
}

// SAFETY: the only pointer is the buffer's, which `IoBufMut` keeps where it is while the
// buffer is alive; `Lent` hides it from everybody until `complete`.
unsafe impl<B: IoBufMut> Operation for Recv<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let buf = self.buf.get_mut();
        let len = transfer_len(buf.bytes_total());
        Entry(opcode::Recv::new(fd, buf.stable_mut_ptr(), len).build())
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let result = completion.into_result().map(|count| count as usize);
        filled(result, self.buf.take())
    }
}

/// Sends. Linux 5.6+. A peer that is gone is an error, never a signal (H31).
pub struct Send<B> {
    fd: FdHold,
    buf: Lent<B>,
}

impl<B: IoBuf> Send<B> {
    /// Sends the initialised bytes of `buf`, or the first of them.
    pub fn new(fd: FdHold, buf: B) -> Self {
        Send {
            fd,
            buf: Lent::new(buf),
        }
    }
}

// SAFETY: the only pointer is the buffer's, which `IoBuf` keeps where it is while the
// buffer is alive; `Lent` hides it from everybody until `complete`.
unsafe impl<B: IoBuf> Operation for Send<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let buf = self.buf.get_mut();
        let len = transfer_len(buf.bytes_init());
        Entry(
            opcode::Send::new(fd, buf.stable_ptr(), len)
                .flags(libc::MSG_NOSIGNAL)
                .build(),
        )
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let result = completion.into_result().map(|count| count as usize);
        (result, self.buf.take())
    }
}

/// Takes one connection. Linux 5.5+. The new descriptor is close-on-exec.
pub struct Accept {
    fd: FdHold,
    peer: Block<Address>,
}

impl Accept {
    /// From a listening socket.
    pub fn new(fd: FdHold) -> Self {
        Accept {
            fd,
            peer: Block::new(Address::empty()),
        }
    }
}

// SAFETY: the pointers lead into the address's block, which stays while `self` is alive
// and is not looked at before `complete`.
unsafe impl Operation for Accept {
    type Output = io::Result<(OwnedFd, Option<SocketAddr>)>;

    fn entry(&mut self) -> Entry {
        let address = self.peer.as_ptr();
        // SAFETY: the block is alive; only addresses are computed.
        let (storage, len) = unsafe { (&raw mut (*address).storage, &raw mut (*address).len) };
        Entry(
            opcode::Accept::new(types::Fd(self.fd.as_raw_fd()), storage.cast(), len)
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        )
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let fd = own(completion)?;
        Ok((fd, self.peer.get()))
    }
}

/// Takes connections until it is cancelled or fails. Linux 5.19+.
pub struct AcceptMulti {
    fd: FdHold,
}

impl AcceptMulti {
    /// From a listening socket.
    pub fn new(fd: FdHold) -> Self {
        AcceptMulti { fd }
    }
}

// SAFETY: the entry has no pointers.
unsafe impl MultishotOperation for AcceptMulti {
    type Item = io::Result<OwnedFd>;

    fn entry(&mut self) -> Entry {
        Entry(
            opcode::AcceptMulti::new(types::Fd(self.fd.as_raw_fd()))
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        )
    }

    fn item(&mut self, completion: Completion) -> io::Result<OwnedFd> {
        own(completion)
    }
}

/// Connects. Linux 5.5+.
pub struct Connect {
    fd: FdHold,
    peer: Block<Address>,
}

impl Connect {
    /// To an internet address.
    pub fn new(fd: FdHold, peer: SocketAddr) -> Self {
        Connect {
            fd,
            peer: Block::new(Address::new(peer)),
        }
    }
}

// SAFETY: the pointer leads into the address's block, which stays while `self` is alive,
// until the last completion (H02: a poller reads it after the submitting call returned).
unsafe impl Operation for Connect {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        let len = self.peer.len;
        let storage = self.peer.storage.as_ptr();
        Entry(opcode::Connect::new(types::Fd(self.fd.as_raw_fd()), storage.cast(), len).build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        completion.into_result().map(drop)
    }
}

/// Shuts a direction down. Linux 5.11+.
pub struct Shutdown {
    fd: FdHold,
    how: net::Shutdown,
}

impl Shutdown {
    /// `how` as in std.
    pub fn new(fd: FdHold, how: net::Shutdown) -> Self {
        Shutdown { fd, how }
    }
}

// SAFETY: the entry has no pointers.
unsafe impl Operation for Shutdown {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        let how = match self.how {
            net::Shutdown::Read => libc::SHUT_RD,
            net::Shutdown::Write => libc::SHUT_WR,
            net::Shutdown::Both => libc::SHUT_RDWR,
        };
        Entry(opcode::Shutdown::new(types::Fd(self.fd.as_raw_fd()), how).build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        completion.into_result().map(drop)
    }
}

/// The descriptor that a completion brings.
fn own(completion: Completion) -> io::Result<OwnedFd> {
    completion.into_result().map(|fd| {
        // SAFETY: the kernel just made the descriptor for this completion alone.
        unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
    })
}
