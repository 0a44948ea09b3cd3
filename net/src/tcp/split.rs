//! A connection as two handles: one reads, one writes.

use std::error::Error;
use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;

use roundel_reactor::{BufResult, IoBuf, IoBufMut, Shared};

use super::connection::Connection;
use super::stream::TcpStream;

/// The reading half of a [`TcpStream`]; made by [`TcpStream::into_split`].
///
/// The socket is closed when both halves are gone. Dropping this one alone does nothing.
pub struct OwnedReadHalf {
    connection: Shared<Connection>,
}

/// The writing half of a [`TcpStream`]; made by [`TcpStream::into_split`].
///
/// Dropping it shuts writing down: the peer reads the end, and the reading half goes on.
/// [`forget`](Self::forget) drops it without that.
pub struct OwnedWriteHalf {
    connection: Shared<Connection>,
    /// Dropping tells the peer.
    finishes: bool,
}

pub(super) fn split(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let reader = OwnedReadHalf {
        connection: stream.connection.clone(),
    };
    let writer = OwnedWriteHalf {
        connection: stream.connection,
        finishes: true,
    };
    (reader, writer)
}

impl OwnedReadHalf {
    /// As [`TcpStream::read`]. Dropping this future loses no byte.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.connection.read(buf).await
    }

    /// As [`TcpStream::read_exact`]. Dropping this future loses the parts that had arrived.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        self.connection.read_exact(buf).await
    }

    /// The stream again.
    ///
    /// # Errors
    ///
    /// Both halves, if they are not of the same stream.
    pub fn reunite(self, writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        reunite(self, writer)
    }

    /// As [`TcpStream::local_addr`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// As [`TcpStream::peer_addr`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }
}

impl OwnedWriteHalf {
    /// As [`TcpStream::write`]. Dropping this future cancels the send, which may have sent
    /// a part.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.connection.write(buf).await
    }

    /// As [`TcpStream::write_all`]. Dropping this future cancels the send; some of the
    /// bytes may have been sent.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        self.connection.write_all(buf).await
    }

    /// Tells the peer that no more will come, as [`TcpStream::shutdown`] of writing; waits
    /// for its turn behind the writes, and reports. Dropping this future may or may not
    /// leave the direction open.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.connection.shutdown(std::net::Shutdown::Write).await
    }

    /// Drops this half without telling the peer: it learns when the reading half goes.
    pub fn forget(mut self) {
        self.finishes = false;
    }

    /// The stream again.
    ///
    /// # Errors
    ///
    /// Both halves, if they are not of the same stream.
    pub fn reunite(self, reader: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        reunite(reader, self)
    }

    /// As [`TcpStream::local_addr`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// As [`TcpStream::peer_addr`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.peer_addr()
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if mem::take(&mut self.finishes) {
            self.connection.finish();
        }
    }
}

fn reunite(reader: OwnedReadHalf, writer: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
    if !std::ptr::eq(&*reader.connection, &*writer.connection) {
        return Err(ReuniteError(reader, writer));
    }
    writer.forget();
    Ok(TcpStream {
        connection: reader.connection,
    })
}

/// Two halves that were to be reunited and are not of the same stream.
#[derive(Debug)]
pub struct ReuniteError(
    /// The reading half.
    pub OwnedReadHalf,
    /// The writing half.
    pub OwnedWriteHalf,
);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these halves are not of the same stream")
    }
}

impl Error for ReuniteError {}

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedReadHalf")
            .field("fd", &self.connection.fd)
            .finish()
    }
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedWriteHalf")
            .field("fd", &self.connection.fd)
            .finish()
    }
}
