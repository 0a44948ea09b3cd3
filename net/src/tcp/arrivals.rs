//! What comes to a listener: the accepts in flight, and what they brought.
//!
//! Accepting consumes: a connection that the kernel has taken out of the backlog exists
//! only here. So the accepts belong to the listener; futures only look in, and a dropped
//! one loses no client (P3).
//!
//! There are two ways to ask. A single accept brings one connection and its peer's address;
//! it is submitted when somebody asks and nothing else is in flight. A multishot accept
//! brings connections until it ends, and is armed anew as long as somebody wants more.
//! Whoever asks is served from all that is there, oldest first.
//!
//! A multishot takes connections whether or not anybody claims them. Beyond
//! [`UNCLAIMED_MAX`] the reactor therefore cancels it (it is *paused*), so that further
//! clients wait in the kernel's backlog, also while nobody asks. A new one is armed when half
//! have been claimed; the old one's rest is then *draining*.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use roundel_reactor::ops::{Accept, AcceptMulti};
use roundel_reactor::{FdHold, Multishot, Op, SharedFd, current};
use rustix::io::Errno;

use super::backoff::{Backoff, is_shortage};

/// How many connections a multishot accept may bring before somebody claims them. Enough
/// for a burst between two turns of a busy shard; each costs a descriptor.
pub(crate) const UNCLAIMED_MAX: usize = 128;

/// A connection, and its peer's address if the accept brought it.
pub(crate) type Arrival = (OwnedFd, Option<SocketAddr>);

/// How to ask the kernel if nothing is in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// For one connection.
    Once,
    /// For more and more.
    Repeatedly,
}

/// The accepts of one listener. Only who has the listener's turn polls them.
#[derive(Default)]
pub(crate) struct Arrivals(RefCell<State>);

#[derive(Default)]
struct State {
    once: Option<Op<Accept>>,
    many: Option<Multishot<AcceptMulti>>,
    /// The rest of a former `many`, which was cancelled.
    draining: Option<Multishot<AcceptMulti>>,
    backoff: Backoff,
    /// Who waits, to be told if the accepts are given up.
    waker: Option<Waker>,
}

impl Arrivals {
    /// The next connection; `None` if the descriptor was closed.
    ///
    /// # Errors
    ///
    /// The kernel's, but not those of a connection that died before it was taken.
    pub(crate) fn poll(
        &self,
        cx: &mut Context<'_>,
        fd: &SharedFd,
        ask: Ask,
    ) -> Poll<Option<io::Result<Arrival>>> {
        let mut state = self.0.borrow_mut();
        let polled = state.poll(cx, fd, ask);
        if polled.is_ready() {
            state.waker = None;
        } else if let Some(waker) = &mut state.waker {
            waker.clone_from(cx.waker());
        } else {
            state.waker = Some(cx.waker().clone());
        }
        polled
    }

    /// Lets what was accepted wait here, but accepts no more by multishot.
    pub(crate) fn pause(&self) {
        self.0.borrow_mut().pause();
    }

    /// Drops everything, cancels what is in flight, and wakes whoever waits.
    pub(crate) fn give_up(&self) {
        // Dropping and waking may come back to us, so neither happens under the borrow.
        let mut former = std::mem::take(&mut *self.0.borrow_mut());
        let waker = former.waker.take();
        drop(former);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        fd: &SharedFd,
        ask: Ask,
    ) -> Poll<Option<io::Result<Arrival>>> {
        self.balance(fd, ask);
        // Ends: each round takes a completion that is there, or arms once, or waits.
        loop {
            let Some(taken) = ready!(self.take(cx)) else {
                ready!(self.backoff.poll(cx));
                let Ok(hold) = fd.hold() else {
                    // Nothing is waited for here, so it has to be paid for.
                    ready!(current::spend_budget(cx));
                    return Poll::Ready(None);
                };
                self.arm(hold, ask);
                continue;
            };
            match taken {
                Ok(arrival) => {
                    self.backoff.reset();
                    self.balance(fd, ask);
                    return Poll::Ready(Some(Ok(arrival)));
                }
                Err(error) if died_before_it_was_taken(&error) => {}
                // Another accept found the same shortage, which was reported already.
                Err(error) if is_shortage(&error) && self.backoff.is_running() => {}
                Err(error) => {
                    if is_shortage(&error) {
                        self.backoff.start();
                    }
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// What has arrived, oldest first; `None` if nothing is in flight either.
    fn take(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Arrival>>> {
        let mut waiting = false;
        for source in [&mut self.draining, &mut self.many] {
            match poll_many(source, cx) {
                Poll::Ready(Some(item)) => return Poll::Ready(Some(item)),
                Poll::Ready(None) => {}
                Poll::Pending => waiting = true,
            }
        }
        if let Some(op) = &mut self.once {
            if let Poll::Ready(accepted) = Pin::new(op).poll(cx) {
                self.once = None;
                return Poll::Ready(Some(accepted));
            }
            waiting = true;
        }
        if waiting {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    fn arm(&mut self, hold: FdHold, ask: Ask) {
        match ask {
            Ask::Once => self.once = Some(current::submit(Accept::new(hold))),
            Ask::Repeatedly => {
                let accept = AcceptMulti::new(hold);
                self.many = Some(current::submit_multishot_bounded(accept, UNCLAIMED_MAX));
            }
        }
    }

    /// Replaces a paused multishot of which enough has been claimed.
    fn balance(&mut self, fd: &SharedFd, ask: Ask) {
        let Some(many) = &self.many else { return };
        let claimed = many.is_cancelled() && many.queued() <= UNCLAIMED_MAX / 2;
        let wanted = ask == Ask::Repeatedly && self.draining.is_none();
        if claimed
            && wanted
            && !self.backoff.is_running()
            && let Ok(hold) = fd.hold()
        {
            self.draining = self.many.take();
            self.arm(hold, ask);
        }
    }

    fn pause(&mut self) {
        if let Some(many) = &self.many
            && !many.is_cancelled()
        {
            many.cancel();
        }
    }
}

/// The next of a multishot, which leaves when it has ended; `None` if there is none.
fn poll_many(
    source: &mut Option<Multishot<AcceptMulti>>,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<Arrival>>> {
    // Ends: there are finitely many items, and the end comes after the last.
    while let Some(many) = source {
        match ready!(many.poll_next(cx)) {
            None => *source = None,
            Some(Ok(fd)) => return Poll::Ready(Some(Ok((fd, None)))),
            // The answer to our own cancel.
            Some(Err(error)) if many.is_cancelled() && is_cancel(&error) => {}
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
        }
    }
    Poll::Ready(None)
}

fn is_cancel(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::CANCELED)
}

/// Whether the error is of one connection and not of the listener: `accept(2)` reports
/// pending network errors of the new socket, and asks to take them as a reason to retry.
fn died_before_it_was_taken(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::NONET
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::TIMEDOUT
        )
    )
}
