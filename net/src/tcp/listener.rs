//! Waits for clients.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{self, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use roundel_reactor::{SharedFd, Turnstile};
use socket2::SockRef;

use super::address::{internet, try_each};
use super::arrivals::{Arrival, Arrivals, Ask};
use super::incoming::Incoming;
use super::socket::TcpSocket;
use super::stream::TcpStream;

/// How many connections the kernel keeps until they are accepted. std's 128 is less than a
/// burst of clients that come between two turns of a busy shard; the kernel caps it at
/// `net.core.somaxconn`, 4096 unless set otherwise.
const BACKLOG: u32 = 1024;

/// A TCP socket that listens, as `std::net::TcpListener` and tokio's.
///
/// It belongs to the shard on whose thread it was made; to serve with all shards, give each
/// its own by [`bind_reuseport`](Self::bind_reuseport). It takes connections in two ways,
/// [`accept`](Self::accept) and [`incoming`](Self::incoming), which may be mixed. Several
/// tasks may wait on one listener; they are served in the order in which they asked.
///
/// **No client is lost.** What the kernel has accepted belongs to the listener and not to
/// the future that asked: `select!` and `timeout` around either call are safe, and what a
/// dropped future would have got goes to the next call. Dropping the listener cancels what
/// is in flight and closes what nobody claimed.
///
/// **No descriptors left.** When the process or the system runs out of descriptors or
/// memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`), the call returns that error, and the
/// next call on this listener waits before it tries again, 10 ms at first, then twice as
/// long each time up to 500 ms. So a loop that logs errors and goes on does not burn a core
/// and recovers by itself.
///
/// # Examples
///
/// ```
/// use roundel_net::TcpListener;
///
/// async fn greet_everybody() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     println!("listening on {}", listener.local_addr()?);
///     loop {
///         let (stream, peer) = listener.accept().await?;
///         let (written, _) = stream.write_all("hello\n").await;
///         if let Err(error) = written {
///             eprintln!("{peer}: {error}");
///         }
///     }
/// }
/// ```
pub struct TcpListener {
    fd: SharedFd,
    /// Whose turn it is to look at the arrivals.
    turnstile: Turnstile,
    arrivals: Arrivals,
}

impl TcpListener {
    /// Listens at the first of the addresses that can be bound. Port 0 lets the kernel
    /// choose one, which [`local_addr`](Self::local_addr) tells.
    ///
    /// The socket has `SO_REUSEADDR` (a restarted server gets its port back from
    /// connections in `TIME_WAIT`), is close-on-exec, and has a backlog of 1024 (std's 128
    /// is less than a burst that comes while the shard is busy). [`TcpSocket`] offers other
    /// settings.
    ///
    /// A host name is looked up on the calling thread, which blocks the shard meanwhile;
    /// addresses and texts that are addresses need no look-up.
    ///
    /// # Errors
    ///
    /// The kernel's for the last address, naming it.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        try_each(addr, "listen at", async |addr| listen(addr, false)).await
    }

    /// As [`bind`](Self::bind), with `SO_REUSEPORT`: sockets of the same user that all set
    /// it may listen at the same address, and the kernel deals the clients out among them
    /// by a hash of the addresses. One listener a shard serves with all shards and no lock.
    ///
    /// With port 0 each would get a port of its own: let the first shard bind, and the
    /// others bind the address of its [`local_addr`](Self::local_addr).
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub async fn bind_reuseport(addr: impl ToSocketAddrs) -> io::Result<Self> {
        try_each(addr, "listen at", async |addr| listen(addr, true)).await
    }

    /// Takes over a listening socket of std's, and makes it blocking, as the ring needs it:
    /// on a non-blocking one an accept may fail with `WouldBlock` where it should wait. The
    /// flag is shared with clones of the socket; do not set it again through one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn from_std(listener: net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        Ok(Self::from_fd(listener.into()))
    }

    pub(super) fn from_fd(fd: OwnedFd) -> Self {
        TcpListener {
            fd: SharedFd::new(fd),
            turnstile: Turnstile::new(),
            arrivals: Arrivals::default(),
        }
    }

    /// Takes the next connection, and its peer's address. Ring operation `ACCEPT` (Linux
    /// 5.5+), submitted when asked for.
    ///
    /// Connections that died before they were taken are passed over.
    ///
    /// Dropping this future loses no client: the accept stays with the listener, and what
    /// it brings goes to the next call. One that was polled keeps its place in the line until
    /// it resolves or is dropped, so do not keep it without polling it while others accept.
    ///
    /// # Errors
    ///
    /// The kernel's. After one of the shortages that the [type](Self) names, the next call
    /// waits first. `NotConnected` if the listener was [closed](Self::close).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let _turn = self.turnstile.turn().await;
        // Ends: each round but the last consumes a connection that was reset meanwhile.
        loop {
            let arrived = poll_fn(|cx| self.poll_arrival(cx, Ask::Once)).await;
            let (fd, peer) = arrived.unwrap_or_else(|| Err(closed()))?;
            let stream = TcpStream::from_fd(fd, peer);
            // A multishot brings no address, and a reset connection has none any more.
            if let Ok(peer) = stream.peer_addr() {
                return Ok((stream, peer));
            }
        }
    }

    /// Connections as they come, as a stream; see [`Incoming`].
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming::new(self)
    }

    /// The next arrival, for whoever has the turn.
    pub(super) fn poll_arrival(
        &self,
        cx: &mut Context<'_>,
        ask: Ask,
    ) -> Poll<Option<io::Result<Arrival>>> {
        self.arrivals.poll(cx, &self.fd, ask)
    }

    pub(super) fn turnstile(&self) -> &Turnstile {
        &self.turnstile
    }

    /// Nobody asks for more: accepts no further connection ahead.
    pub(super) fn pause(&self) {
        self.arrivals.pause();
    }

    /// The address at which it listens, with the port the kernel chose.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the listener was closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(SockRef::from(&self.fd.get()?).local_addr())
    }

    /// Stops listening: cancels what is in flight, closes connections that nobody claimed,
    /// waits until the kernel is finished with the socket, and closes it (ring operation
    /// `CLOSE`, Linux 5.6+). Tasks that wait in [`accept`](Self::accept) get `NotConnected`,
    /// and an [`Incoming`] ends. Dropping the listener does the same without a report.
    ///
    /// Dropping this future leaves the listener unusable; it is closed when it is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if it was closed before.
    pub async fn close(&self) -> io::Result<()> {
        // Otherwise accepts that nobody polls would keep the descriptor in use.
        self.arrivals.give_up();
        self.fd.close().await
    }
}

fn listen(addr: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = TcpSocket::for_address(addr)?;
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    socket.bind_plainly(addr)?;
    socket.listen(BACKLOG)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "this listener was closed")
}

impl AsFd for TcpListener {
    /// For synchronous calls such as setting options. Do not accept through it, do not make
    /// it non-blocking, and do not use it after [`close`](TcpListener::close).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("fd", &self.fd.as_raw_fd())
            .field("local_addr", &self.local_addr().ok())
            .finish()
    }
}
