//! Tries the addresses of a name one after the other.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The first success of `attempt` over the addresses of `addr`, or else the error of the
/// last, which says what was attempted and at which address.
///
/// Looking a host name up blocks the thread; an address, or a text that is one, does not.
pub(crate) async fn try_each<T>(
    addr: impl ToSocketAddrs,
    what: &str,
    mut attempt: impl AsyncFnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addr.to_socket_addrs()? {
        match attempt(addr).await {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(naming(&error, what, addr)),
        }
    }
    Err(last.unwrap_or_else(|| {
        let text = format!("{what}: the name has no addresses");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    }))
}

/// The same error, of the same kind, with the address in its text.
pub(crate) fn naming(error: &io::Error, what: &str, addr: SocketAddr) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {addr}: {error}"))
}

/// The internet address in what a socket says of itself or its peer.
///
/// # Errors
///
/// The kernel's; `InvalidData` if the socket is of another family.
pub(crate) fn internet(addr: io::Result<socket2::SockAddr>) -> io::Result<SocketAddr> {
    addr?.as_socket().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "this socket's address is not an internet address",
        )
    })
}
