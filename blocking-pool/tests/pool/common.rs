//! What the tests of the pool share: waiting for a future without an executor, and pools of a known shape.

use roundel_blocking_pool::{Account, AccountConfig, Config, Pool};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// No wait in a test is longer: beyond it something hangs.
pub const LIVENESS: Duration = Duration::from_secs(20);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread; panics if it takes longer than [`LIVENESS`].
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let deadline = Instant::now() + LIVENESS;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(left > Duration::ZERO, "the future hangs");
        thread::park_timeout(left);
    }
}

/// Waits for a condition that another thread makes true.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIVENESS;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// An account of this shape: fixed workers, ordinary ones, private bound, public bound.
pub fn account(fixed: usize, ordinary: usize, max_works: usize, public: usize) -> AccountConfig {
    AccountConfig::new(Account::Bound)
        .workers(fixed)
        .ordinary_limit(ordinary)
        .max_works(max_works)
        .public_bound(public)
}

/// A pool whose accounts both have this shape.
pub fn pool(fixed: usize, ordinary: usize, max_works: usize, public: usize) -> Pool {
    let account = account(fixed, ordinary, max_works, public);
    Pool::new(Config::new().bound(account.clone()).unbound(account)).unwrap()
}

/// A pool with one worker in all, which serves the public queue.
pub fn single(public: usize) -> Pool {
    pool(0, 1, 1, public)
}

/// A job that holds its worker until the gate is dropped.
pub struct Gate {
    _open: Sender<()>,
}

/// Holds one worker of the account; returns when the worker is held.
pub fn hold(pool: &Pool, account: Account) -> Gate {
    let (open, closed): (Sender<()>, Receiver<()>) = channel();
    let (started, has_started) = channel();
    drop(pool.submit(account, None, move || {
        started.send(()).unwrap();
        let _ = closed.recv();
    }));
    has_started
        .recv_timeout(LIVENESS)
        .expect("the holding job starts");
    Gate { _open: open }
}
