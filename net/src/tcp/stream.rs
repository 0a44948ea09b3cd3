//! A TCP connection.

use std::fmt;
use std::io;
use std::net::{self, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use roundel_reactor::{BufResult, IoBuf, IoBufMut, Shared, SharedFd};

use super::address::try_each;
use super::connection::Connection;
use super::socket::TcpSocket;
use super::split::{OwnedReadHalf, OwnedWriteHalf, split};

/// A TCP connection, as `std::net::TcpStream` and tokio's.
///
/// It belongs to the shard on whose thread it was made. All calls take `&self`, so that one
/// task can read while another writes; [`into_split`](Self::into_split) gives each of two
/// tasks its own half.
///
/// **Buffers are lent.** A call takes a buffer by value and gives it back with the result.
/// A read fills it from its start up to its capacity and sets its length; a write sends it
/// up to its length. See [`IoBuf`] for what can be lent, and `slice` for parts.
///
/// **Reads lose nothing.** What the kernel has received belongs to the stream: after a
/// dropped read (`select!`, a timeout) the next one gets those bytes, in order. Only the
/// buffer of the dropped read does not come back.
///
/// A read that was polled keeps its place in the line until it resolves or is dropped: one
/// that is kept without being polled, or forgotten, holds up the reads behind it.
///
/// **It stays on its shard.** To serve connections on all shards let each have a listener,
/// bound with [`TcpListener::bind_reuseport`](crate::TcpListener::bind_reuseport).
///
/// **Writes keep their order.** One send is in flight at a time, and calls go in the order
/// in which they asked. A dropped write is cancelled, and may have sent a part; the next
/// write or shutdown starts after the kernel's last word on it.
///
/// `WouldBlock` and `Interrupted` are never returned, and a peer that is gone is an error
/// (`BrokenPipe`, `ConnectionReset`) and never a signal.
///
/// Dropping the stream cancels what is in flight and closes the socket, without blocking.
///
/// # Examples
///
/// ```
/// use roundel_net::TcpStream;
///
/// async fn ask(question: &'static str) -> std::io::Result<Vec<u8>> {
///     let stream = TcpStream::connect("127.0.0.1:7777").await?;
///     let (written, _) = stream.write_all(question).await;
///     written?;
///     let (read, answer) = stream.read(Vec::with_capacity(4096)).await;
///     read?;
///     Ok(answer)
/// }
/// ```
pub struct TcpStream {
    pub(super) connection: Shared<Connection>,
}

impl TcpStream {
    /// Connects to the first of the addresses that answers, each with a fresh socket. Ring
    /// operation `CONNECT` (Linux 5.5+).
    ///
    /// A host name is looked up on the calling thread, which blocks the shard meanwhile;
    /// addresses and texts that are addresses need no look-up.
    ///
    /// Dropping this future cancels the attempt and closes its socket.
    ///
    /// # Errors
    ///
    /// The kernel's for the last address, naming it.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        try_each(addr, "connect to", async |addr| {
            TcpSocket::for_address(addr)?.connect_plainly(addr).await
        })
        .await
    }

    /// Takes over a connection of std's, and makes it blocking, as the ring needs it: on a
    /// non-blocking one operations may fail with `WouldBlock` where they should wait. The
    /// flag is shared with clones of the stream; do not set it again through one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn from_std(stream: net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self::from_fd(stream.into(), None))
    }

    pub(super) fn from_fd(fd: OwnedFd, peer: Option<SocketAddr>) -> Self {
        Self::from_shared(SharedFd::new(fd), peer)
    }

    pub(super) fn from_shared(fd: SharedFd, peer: Option<SocketAddr>) -> Self {
        TcpStream {
            connection: Shared::new(Connection::new(fd, peer)),
        }
    }

    /// Receives at least a byte, as much as is there and fits. Ring operation `RECV` (Linux
    /// 5.6+).
    ///
    /// Returns the count, which is also the buffer's length afterwards. 0 is the end: the
    /// peer will send no more (or the buffer has no room). Several readers are served in
    /// the order in which they asked.
    ///
    /// Dropping this future loses no byte: the receive stays with the stream, and the next
    /// read gets what it brings, or its error. The buffer does not come back.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was [closed](Self::close).
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.connection.read(buf).await
    }

    /// Fills the buffer up to its capacity. Ring operation `RECV` (Linux 5.6+), repeated.
    ///
    /// A vector may have a larger capacity than was asked for, and a used one has all of its
    /// own: lend `buf.slice_mut(..n)` where the length has to be exact, as for a header.
    ///
    /// With an error, too, the buffer comes back holding what had arrived.
    ///
    /// Dropping this future drops the buffer with the parts that had arrived; only the part
    /// in flight stays with the stream. A second reader would get parts from between. So
    /// unlike [`read`](Self::read) this does not belong into `select!`.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); `UnexpectedEof` if the peer ends before.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        self.connection.read_exact(buf).await
    }

    /// Sends the buffer or the first part of it, and returns how much. Ring operation
    /// `SEND` (Linux 5.6+).
    ///
    /// Dropping this future cancels the send, which may have sent a part.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was [closed](Self::close).
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.connection.write(buf).await
    }

    /// Sends all of the buffer. Ring operation `SEND` (Linux 5.6+), repeated. Nobody else's
    /// bytes get in between.
    ///
    /// Dropping this future cancels the send; some of the bytes may have been sent.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); some of the bytes may have been sent.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        self.connection.write_all(buf).await
    }

    /// Shuts down reading, writing or both. Ring operation `SHUTDOWN` (Linux 5.11+).
    ///
    /// Shutting down writing waits for its turn behind the writes, and tells the peer that
    /// no more will come; reading goes on. There is no need to shut down only to close.
    ///
    /// Dropping this future may or may not leave the direction open.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the connection or the stream was closed.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.connection.shutdown(how).await
    }

    /// Closes the connection for all tasks that use it: cancels what is in flight, waits
    /// until the kernel is finished with the socket, and closes it (ring operation `CLOSE`,
    /// Linux 5.6+). Reads and writes that were waiting end with the error of a cancelled
    /// operation (`ECANCELED`); later calls fail with `NotConnected`. To let writes finish, [`shutdown`](Self::shutdown) writing
    /// first. Dropping the stream closes, too, but without a report.
    ///
    /// Dropping this future leaves the stream unusable; it is closed when it is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if it was closed before.
    pub async fn close(&self) -> io::Result<()> {
        self.connection.close().await
    }

    /// This side's address.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// The other side's address. Known since `connect` or `accept`, and no call then;
    /// otherwise the kernel is asked once.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the connection or the stream was closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }

    /// A half for whoever reads and one for whoever writes, which two tasks of this shard
    /// can own. Dropping the writing half tells the peer that no more will come.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split(self)
    }
}

impl AsFd for TcpStream {
    /// For synchronous calls such as setting options. Do not read or write through it or a
    /// duplicate of it (what a dropped read still brings belongs to this stream), do
    /// not make it non-blocking, and do not use it after [`close`](TcpStream::close).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.fd.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.fd.as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("fd", &self.as_raw_fd())
            .field("local_addr", &self.local_addr().ok())
            .field("peer_addr", &self.peer_addr().ok())
            .finish()
    }
}
