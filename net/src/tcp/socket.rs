//! A TCP socket that is neither bound nor connected yet.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use roundel_reactor::ops::Connect;
use roundel_reactor::{SharedFd, current};
use socket2::{Domain, Protocol, Socket, Type};

use super::address::{internet, naming};
use super::listener::TcpListener;
use super::stream::TcpStream;

/// A TCP socket to be set up before it listens or connects, as tokio's.
///
/// Setting up is synchronous and does not block. The socket is close-on-exec, and blocking
/// as the kernel understands it, which is what the ring needs.
///
/// # Examples
///
/// A listener with a long backlog:
///
/// ```
/// use roundel_net::TcpSocket;
///
/// let socket = TcpSocket::new_v4()?;
/// socket.set_reuseaddr(true)?;
/// socket.bind("127.0.0.1:0".parse().unwrap())?;
/// let listener = socket.listen(4096)?;
/// assert_ne!(listener.local_addr()?.port(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpSocket {
    socket: Socket,
}

impl TcpSocket {
    /// A socket for IPv4.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new_v4() -> io::Result<Self> {
        Self::new(Domain::IPV4)
    }

    /// A socket for IPv6.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new_v6() -> io::Result<Self> {
        Self::new(Domain::IPV6)
    }

    pub(super) fn for_address(addr: SocketAddr) -> io::Result<Self> {
        Self::new(Domain::for_address(addr))
    }

    fn new(domain: Domain) -> io::Result<Self> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        Ok(TcpSocket { socket })
    }

    /// Whether [`bind`](Self::bind) may take an address that old connections still hold
    /// (`SO_REUSEADDR`). Off unless set, unlike in [`TcpListener::bind`].
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.socket.set_reuse_address(reuseaddr)
    }

    /// The setting of [`set_reuseaddr`](Self::set_reuseaddr).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn reuseaddr(&self) -> io::Result<bool> {
        self.socket.reuse_address()
    }

    /// Whether several sockets may listen at one address and share its clients
    /// (`SO_REUSEPORT`); see [`TcpListener::bind_reuseport`].
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.socket.set_reuse_port(reuseport)
    }

    /// The setting of [`set_reuseport`](Self::set_reuseport).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn reuseport(&self) -> io::Result<bool> {
        self.socket.reuse_port()
    }

    /// Whether small writes leave at once (`TCP_NODELAY`). A listener's connections
    /// inherit it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.set_tcp_nodelay(nodelay)
    }

    /// The setting of [`set_nodelay`](Self::set_nodelay).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket.tcp_nodelay()
    }

    /// Binds to `addr`; port 0 lets the kernel choose.
    ///
    /// # Errors
    ///
    /// The kernel's, naming the address.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.bind_plainly(addr)
            .map_err(|error| naming(&error, "bind to", addr))
    }

    /// Binds for a caller that names the address itself.
    pub(super) fn bind_plainly(&self, addr: SocketAddr) -> io::Result<()> {
        self.socket.bind(&addr.into())
    }

    /// The address it is bound to.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(self.socket.local_addr())
    }

    /// Listens. The kernel keeps up to `backlog` connections that are not yet accepted, or
    /// `net.core.somaxconn` of them if that is less.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        self.socket.listen(backlog)?;
        Ok(TcpListener::from_fd(self.socket.into()))
    }

    /// Connects to `addr`. Ring operation `CONNECT` (Linux 5.5+).
    ///
    /// Dropping this future cancels the attempt and closes the socket.
    ///
    /// # Errors
    ///
    /// The kernel's, naming the address.
    pub async fn connect(self, addr: SocketAddr) -> io::Result<TcpStream> {
        self.connect_plainly(addr)
            .await
            .map_err(|error| naming(&error, "connect to", addr))
    }

    /// Connects for a caller that names the address itself.
    pub(super) async fn connect_plainly(self, addr: SocketAddr) -> io::Result<TcpStream> {
        let fd = SharedFd::new(self.socket.into());
        current::submit(Connect::new(fd.hold()?, addr)).await?;
        Ok(TcpStream::from_shared(fd, Some(addr)))
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for TcpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpSocket")
            .field("fd", &self.socket.as_raw_fd())
            .finish()
    }
}
