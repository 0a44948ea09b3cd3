//! A hand that polls futures and counts wakes, for the tests of this module.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use roundel_reactor::current::{refill_budget, spend_budget};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A task of its own, as the futures see it.
#[derive(Default)]
pub(super) struct Tester(Arc<Count>);

impl Tester {
    pub(super) fn new() -> Tester {
        Tester::default()
    }

    /// How often the waker was called.
    pub(super) fn wakes(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }

    pub(super) fn poll<F: Future + Unpin>(&mut self, future: &mut F) -> Poll<F::Output> {
        self.with(|cx| Pin::new(future).poll(cx))
    }

    pub(super) fn with<R>(&mut self, f: impl FnOnce(&mut Context<'_>) -> R) -> R {
        let waker = Waker::from(self.0.clone());
        f(&mut Context::from_waker(&waker))
    }

    /// Runs `f` as a task that has used its share up.
    pub(super) fn without_budget(&mut self, f: impl FnOnce(&mut Tester)) {
        let share = refill_budget();
        let mut cx = Context::from_waker(Waker::noop());
        while spend_budget(&mut cx).is_ready() {}
        f(self);
        drop(share);
    }
}
