//! The connections of a listener as a stream.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use roundel_reactor::{Pass, Turn};

use super::arrivals::Ask;
use super::listener::TcpListener;
use super::stream::TcpStream;

/// The connections of a [`TcpListener`] as they come; made by
/// [`incoming`](TcpListener::incoming).
///
/// Ring operation `ACCEPT` as a multishot (Linux 5.19+): one submission brings connections
/// until it ends by itself or by an error, and it is armed again when that happens. That is
/// a tenth cheaper a connection than [`accept`](TcpListener::accept), which in turn knows
/// the peer's address; here [`TcpStream::peer_addr`] asks the kernel for it.
///
/// Connections are taken ahead of demand. When more than 128 of them wait unclaimed at the
/// time of a call, the multishot is cancelled, so that further clients wait in the kernel's
/// backlog, and armed again when half have been claimed.
///
/// It ends (`None`) only when the listener was [closed](TcpListener::close). An error is an
/// item, and does not end it; for shortages see [`TcpListener`].
///
/// Dropping it loses no client: connections accepted ahead stay with the listener and go to
/// the next call of `accept` or `incoming` on it.
///
/// # Examples
///
/// ```
/// # use roundel_net::TcpListener;
/// async fn serve(listener: &TcpListener) {
///     let mut incoming = listener.incoming();
///     while let Some(accepted) = incoming.next().await {
///         match accepted {
///             Ok(stream) => drop(stream), // or spawn a task that serves it
///             Err(error) => eprintln!("accept: {error}"),
///         }
///     }
/// }
/// ```
#[must_use = "streams do nothing unless they are polled"]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
    place: Place<'a>,
}

/// Where this stands among those who wait on the listener.
enum Place<'a> {
    Nowhere,
    InLine(Pass<'a>),
    InFront { _turn: Turn },
}

impl<'a> Incoming<'a> {
    pub(super) fn new(listener: &'a TcpListener) -> Self {
        Incoming {
            listener,
            place: Place::Nowhere,
        }
    }

    /// The next connection.
    ///
    /// Dropping this future loses no client: what has come is there for the next call.
    ///
    /// # Errors
    ///
    /// As [`TcpListener::accept`], as an item.
    pub async fn next(&mut self) -> Option<io::Result<TcpStream>> {
        /// Lets others go ahead if the future is dropped.
        struct GiveWay<'b, 'a>(&'b mut Incoming<'a>);
        impl Drop for GiveWay<'_, '_> {
            fn drop(&mut self) {
                self.0.place = Place::Nowhere;
            }
        }
        let waiting = GiveWay(self);
        poll_fn(|cx| waiting.0.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<TcpStream>>> {
        // Ends: each round takes a step from nowhere over the line to the front.
        loop {
            match &mut self.place {
                Place::Nowhere => self.place = Place::InLine(self.listener.turnstile().turn()),
                Place::InLine(pass) => {
                    let turn = ready!(Pin::new(pass).poll(cx));
                    self.place = Place::InFront { _turn: turn };
                }
                Place::InFront { .. } => break,
            }
        }
        let arrived = ready!(self.listener.poll_arrival(cx, Ask::Repeatedly));
        self.place = Place::Nowhere;
        Poll::Ready(arrived.map(|arrived| {
            let (fd, peer) = arrived?;
            Ok(TcpStream::from_fd(fd, peer))
        }))
    }
}

impl Stream for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    /// Unlike [`next`](Incoming::next), which gives its place away when its future is
    /// dropped, a stream that returned `Pending` keeps its place in front of the listener's
    /// other users until it is polled again or dropped.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        self.listener.pause();
    }
}

impl fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("listener", self.listener)
            .finish_non_exhaustive()
    }
}
