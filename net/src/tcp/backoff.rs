//! How long a listener waits after it ran out of descriptors or memory.
//!
//! The connection that could not be taken is still there, so the next accept would fail at
//! once, again and again: `loop { match listener.accept().await { .. } }` would burn a core
//! until somebody closes a descriptor (H24). So the accept after a failed one waits first,
//! twice as long each time, and no more after a success.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use roundel_reactor::ops::Timeout;
use roundel_reactor::{Op, current};
use rustix::io::Errno;

/// Short enough not to be noticed if a descriptor comes back at once, as it usually does
/// on a busy server.
const FIRST: Duration = Duration::from_millis(10);
/// Twice a second costs nothing, and service is back within that after the shortage ends.
const LONGEST: Duration = Duration::from_millis(500);

/// The wait of one listener.
#[derive(Default)]
pub(crate) struct Backoff {
    /// The last wait of this shortage; zero if there is none.
    last: Duration,
    running: Option<Op<Timeout>>,
}

impl Backoff {
    /// An accept failed for want of something: the next one waits, counted from now.
    pub(crate) fn start(&mut self) {
        self.last = (self.last * 2).clamp(FIRST, LONGEST);
        self.running = Some(current::submit(Timeout::new(self.last)));
    }

    /// An accept succeeded: the shortage is over.
    pub(crate) fn reset(&mut self) {
        self.last = Duration::ZERO;
    }

    /// Whether the wait that was started last is not over.
    pub(crate) fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|op| !op.is_finished())
    }

    /// Waits for the end of the wait, if one was started.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(op) = &mut self.running {
            // A wait that could not be had is over, too: the accept will say what is wrong.
            let _ = ready!(Pin::new(op).poll(cx));
            self.running = None;
        }
        Poll::Ready(())
    }
}

/// Whether an accept failed because the process or the system has run out of something,
/// while the connection is still there to be taken later.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
