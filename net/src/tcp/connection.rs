//! What the handles of one TCP connection share: its descriptor and its two directions.
//!
//! Receiving is [`Inflow`]'s: the receive in flight belongs to the connection. Sending goes
//! one at a time: a [`Turn`] travels with each send to the kernel, so that the next one,
//! and a shutdown, starts after the kernel's last word on it, also if its future was
//! dropped.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{self, SocketAddr};

use roundel_reactor::ops::{Recv, Send, Shutdown};
use roundel_reactor::{
    BufResult, Guarded, Inflow, IoBuf, IoBufMut, Shared, SharedFd, Turn, Turnstile, current,
};
use socket2::SockRef;

use super::address::internet;

/// One connection.
pub(crate) struct Connection {
    pub(crate) fd: SharedFd,
    /// Replaced by an empty one when the connection is closed.
    inflow: RefCell<Shared<Inflow>>,
    outflow: Turnstile,
    peer: Cell<Option<SocketAddr>>,
}

impl Connection {
    pub(crate) fn new(fd: SharedFd, peer: Option<SocketAddr>) -> Self {
        Connection {
            fd,
            inflow: RefCell::new(Shared::new(Inflow::new())),
            outflow: Turnstile::new(),
            peer: Cell::new(peer),
        }
    }

    pub(crate) async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let inflow = self.inflow.borrow().clone();
        inflow.receive(&self.fd, buf, Recv::new).await
    }

    pub(crate) async fn read_exact<B: IoBufMut>(&self, mut buf: B) -> BufResult<(), B> {
        let total = buf.bytes_total();
        // The buffer's length is what has arrived, whatever stood in it before.
        let mut arrived = buf.fill_from(&[]);
        while arrived < total {
            let (result, part) = self.read(buf.slice_mut(arrived..total)).await;
            buf = part.into_inner();
            match result {
                Ok(0) => return (Err(too_early(arrived, total)), buf),
                Ok(count) => arrived += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    pub(crate) async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let turn = self.outflow.turn().await;
        let (result, _turn) = self.send(buf, turn).await;
        result
    }

    pub(crate) async fn write_all<B: IoBuf>(&self, mut buf: B) -> BufResult<(), B> {
        let mut turn = self.outflow.turn().await;
        let total = buf.bytes_init();
        let mut sent = 0;
        while sent < total {
            let (result, part);
            ((result, part), turn) = self.send(buf.slice(sent..), turn).await;
            buf = part.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => sent += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends what the kernel takes at once. The turn goes with it and comes back.
    async fn send<B: IoBuf>(&self, buf: B, turn: Turn) -> (BufResult<usize, B>, Turn) {
        let hold = match self.fd.hold() {
            Ok(hold) if buf.bytes_init() > 0 => hold,
            nothing_to_do => {
                let result = nothing_to_do.map(|_| 0);
                // Nothing is waited for here, so it has to be paid for.
                poll_fn(current::spend_budget).await;
                return ((result, buf), turn);
            }
        };
        current::submit(Guarded::new(Send::new(hold, buf), turn)).await
    }

    pub(crate) async fn shutdown(&self, how: net::Shutdown) -> io::Result<()> {
        if how == net::Shutdown::Read {
            return current::submit(Shutdown::new(self.fd.hold()?, how)).await;
        }
        let turn = self.outflow.turn().await;
        let shutdown = Shutdown::new(self.fd.hold()?, how);
        current::submit(Guarded::new(shutdown, turn)).await.0
    }

    /// Tells the peer that nothing more will come, at once: `shutdown(2)` does not block.
    pub(crate) fn finish(&self) {
        if let Ok(fd) = self.fd.get() {
            // It fails if there is no peer any more, and then there is nobody to tell.
            let _ = SockRef::from(&fd).shutdown(net::Shutdown::Write);
        }
    }

    pub(crate) async fn close(&self) -> io::Result<()> {
        // A receive that nobody polls would keep the descriptor in use; who waits for one
        // is woken by the cancel.
        let kept = self.inflow.replace(Shared::new(Inflow::new()));
        drop(kept);
        self.fd.close().await
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(SockRef::from(&self.fd.get()?).local_addr())
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        if let Some(peer) = self.peer.get() {
            return Ok(peer);
        }
        let peer = internet(SockRef::from(&self.fd.get()?).peer_addr())?;
        self.peer.set(Some(peer));
        Ok(peer)
    }
}

fn too_early(arrived: usize, total: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the stream ended after {arrived} of {total} bytes"),
    )
}
