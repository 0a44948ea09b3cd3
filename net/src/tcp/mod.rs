//! TCP: listeners, streams, and sockets that are not one of the two yet.

mod address;
mod arrivals;
mod backoff;
mod connection;
mod incoming;
mod listener;
mod options;
mod socket;
mod split;
mod stream;

pub use incoming::Incoming;
pub use listener::TcpListener;
pub use socket::TcpSocket;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use stream::TcpStream;
