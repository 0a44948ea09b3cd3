//! Waits for signals that ask the process to end.
//!
//! The first call for a signal installs a handler for the rest of the process's life: from
//! then on the signal no longer ends the process, whether or not anybody waits for it.
//!
//! # How it works
//!
//! Each call registers the write end of a socket pair of its own with the handler, which
//! does nothing but write a byte into every one that is registered. The future receives
//! that byte through the ring of its shard. So no thread waits for signals, an idle program
//! uses no CPU for them, and any number of waiters on any number of shards get each signal.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use roundel_reactor::{SharedFd, current, ops};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

/// Waits for the next SIGINT, which Ctrl-C in a terminal sends. Ring operation `RECV`,
/// Linux 5.6+.
///
/// It listens **from the call on**, not from the first poll: a signal between the two is
/// not lost. One that comes between the end of one call and the next call is seen by
/// nobody; call again before acting on a signal if each one matters. Several signals that
/// come before the future is polled count as one.
///
/// From the first call on, SIGINT no longer ends the process by itself, also while nobody
/// waits for it and after this future was dropped.
///
/// # Errors
///
/// If there is no descriptor left, or the handler could not be installed.
///
/// # Panics
///
/// When polled, if no shard runs on this thread.
///
/// Dropping this future stops listening, no more.
///
/// ```
/// # use std::{future::Future, pin::pin, rc::Rc, task::{Context, Poll, Waker}};
/// # use roundel_reactor::{Reactor, RingConfig, Wait, current};
/// # fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
/// #     let _entered = current::enter(reactor.clone());
/// #     let mut future = pin!(future);
/// #     let mut cx = Context::from_waker(Waker::noop());
/// #     loop {
/// #         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) { return output; }
/// #         reactor.enter(Wait::Forever).expect("the ring works");
/// #         reactor.reap();
/// #     }
/// # }
/// # let reactor = Reactor::new(&RingConfig::default())?;
/// # block_on(&reactor, async {
/// use roundel_process::signal;
///
/// let pressed = signal::ctrl_c();
/// # let kill = ["-INT".to_owned(), std::process::id().to_string()];
/// # assert!(std::process::Command::new("kill").args(kill).status()?.success());
/// pressed.await?;
/// println!("until next time");
/// # std::io::Result::Ok(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn ctrl_c() -> impl Future<Output = io::Result<()>> {
    listen(SIGINT)
}

/// Waits for the next SIGTERM, by which service managers and `kill` ask a process to end.
/// Ring operation `RECV`, Linux 5.6+.
///
/// All that is said of [`ctrl_c`] holds for it, too.
///
/// # Errors
///
/// As [`ctrl_c`].
///
/// # Panics
///
/// As [`ctrl_c`].
///
/// Dropping this future stops listening, no more.
pub fn terminate() -> impl Future<Output = io::Result<()>> {
    listen(SIGTERM)
}

/// Registers at once, and waits when it is polled.
fn listen(signal: i32) -> impl Future<Output = io::Result<()>> {
    let listener = Listener::register(signal);
    async move { listener?.receive().await }
}

/// One waiter's place with the handler.
struct Listener {
    id: SigId,
    reader: SharedFd,
}

impl Listener {
    fn register(signal: i32) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        Ok(Listener {
            id: pipe::register(signal, writer)?,
            reader: SharedFd::new(OwnedFd::from(reader)),
        })
    }

    /// Waits for the handler's byte.
    async fn receive(&self) -> io::Result<()> {
        let receive = ops::Recv::new(self.reader.hold()?, Box::new([0_u8; 1]));
        let (received, _byte) = current::submit(receive).await;
        match received? {
            0 => unreachable!("the handler has the write end until it is unregistered"),
            _ => Ok(()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It closes the write end. False would mean that it was done before: only here.
        unregister(self.id);
    }
}
