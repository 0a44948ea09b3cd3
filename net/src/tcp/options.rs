//! Settings of a TCP connection: synchronous calls that do not block.

use std::io;
use std::time::Duration;

use socket2::SockRef;

use super::stream::TcpStream;

impl TcpStream {
    /// Whether small writes leave at once (`TCP_NODELAY`) and are not held back to be sent
    /// together. Off unless set.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        SockRef::from(&self.connection.fd.get()?).set_tcp_nodelay(nodelay)
    }

    /// The setting of [`set_nodelay`](Self::set_nodelay).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn nodelay(&self) -> io::Result<bool> {
        SockRef::from(&self.connection.fd.get()?).tcp_nodelay()
    }

    /// Over how many hops packets may go (`IP_TTL`).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        SockRef::from(&self.connection.fd.get()?).set_ttl_v4(ttl)
    }

    /// The setting of [`set_ttl`](Self::set_ttl).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn ttl(&self) -> io::Result<u32> {
        SockRef::from(&self.connection.fd.get()?).ttl_v4()
    }

    /// What closing does with bytes that were not sent yet (`SO_LINGER`): with a zero
    /// duration they are dropped and the peer sees a reset; with `None` (the default) the
    /// kernel sends them behind our back. Longer durations, in seconds, make the close last
    /// until they were sent.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        SockRef::from(&self.connection.fd.get()?).set_linger(linger)
    }

    /// The setting of [`set_linger`](Self::set_linger).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        SockRef::from(&self.connection.fd.get()?).linger()
    }

    /// The error that is pending on the socket, which is cleared (`SO_ERROR`).
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if the stream was closed.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        SockRef::from(&self.connection.fd.get()?).take_error()
    }
}
