//! Sockets on the ring.
//!
//! Typed names for the socket operations of `roundel-reactor`: TCP so far. Names and
//! meanings are std's and tokio's, except that buffers are lent: `stream.read(buf)` takes
//! the buffer and gives it back with the result. Everything belongs to the shard that made
//! it and is not `Send`.
//!
//! | call | ring operation | Linux | dropping its future |
//! |---|---|---|---|
//! | [`TcpListener::bind`], [`bind_reuseport`](TcpListener::bind_reuseport) | none, synchronous | | nothing was waited for |
//! | [`TcpListener::accept`] | `ACCEPT` | 5.5 | loses no client: the next call gets it |
//! | [`Incoming::next`] | `ACCEPT`, multishot | 5.19 | loses no client: the next call gets it |
//! | [`TcpListener::close`] | `CLOSE` | 5.6 | the listener is unusable, and closed when dropped |
//! | [`TcpStream::connect`], [`TcpSocket::connect`] | `CONNECT` | 5.5 | cancels, closes the socket |
//! | [`TcpStream::read`] | `RECV` | 5.6 | loses no byte: the next read gets them |
//! | [`TcpStream::read_exact`] | `RECV`, repeated | 5.6 | loses the parts that had arrived |
//! | [`TcpStream::write`] | `SEND` | 5.6 | cancels; a part may have been sent |
//! | [`TcpStream::write_all`] | `SEND`, repeated | 5.6 | cancels; a part may have been sent |
//! | [`TcpStream::shutdown`] | `SHUTDOWN` | 5.11 | it may or may not have happened |
//! | [`TcpStream::close`] | `CLOSE` | 5.6 | the stream is unusable, and closed when dropped |
//! | options, addresses, [`TcpSocket`]'s settings | none, synchronous | | |
//! | waiting after `EMFILE` and its like | `TIMEOUT` | 5.4 | the next call goes on waiting |
//!
//! A ring of roundel's needs Linux 6.1, so that all of these are there.
//!
//! # How it works
//!
//! What the kernel has consumed on behalf of a future must outlive it: accepted connections
//! belong to the [`TcpListener`], received bytes to the [`TcpStream`], and futures only wait
//! on them. What may be repeated or given up (a connect, a send) belongs to its future.
//!
//! No call allocates in the steady state: operations own their arguments in the reactor's
//! recycled memory, and so do the connections.
//!
//! # Examples
//!
//! An echo server for one client, on a loop of its own; programs use the crate `roundel`,
//! which has `spawn` and `block_on`:
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//!
//! use roundel_net::{TcpListener, TcpStream};
//! use roundel_reactor::{Reactor, RingConfig, Wait, current};
//!
//! async fn echo(stream: TcpStream) -> std::io::Result<()> {
//!     let mut buf = Vec::with_capacity(4096);
//!     loop {
//!         let (read, bytes) = stream.read(buf).await;
//!         if read? == 0 {
//!             return Ok(());
//!         }
//!         let (written, bytes) = stream.write_all(bytes).await;
//!         written?;
//!         buf = bytes;
//!     }
//! }
//!
//! async fn greet() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let client = TcpStream::connect(listener.local_addr()?).await?;
//!     let (stream, _peer) = listener.accept().await?;
//!     client.write_all("hello").await.0?;
//!     client.shutdown(std::net::Shutdown::Write).await?;
//!     echo(stream).await?;
//!     let (read, answer) = client.read_exact(Vec::with_capacity(5)).await;
//!     read?;
//!     assert_eq!(answer, b"hello");
//!     Ok(())
//! }
//!
//! let reactor = Reactor::new(&RingConfig::default())?;
//! let _entered = current::enter(reactor.clone());
//! let mut greeting = pin!(greet());
//! let mut cx = Context::from_waker(Waker::noop());
//! loop {
//!     if let Poll::Ready(greeted) = greeting.as_mut().poll(&mut cx) {
//!         break greeted?;
//!     }
//!     reactor.enter(Wait::Forever)?;
//!     reactor.reap();
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod tcp;

pub use tcp::{
    Incoming, OwnedReadHalf, OwnedWriteHalf, ReuniteError, TcpListener, TcpSocket, TcpStream,
};
