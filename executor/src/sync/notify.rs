//! A signal from one task to another, or to all that wait for it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use roundel_reactor::current::spend_budget;
use roundel_reactor::waiters::{Key, Waiters};

/// Tells waiting tasks that something happened, without saying what.
///
/// It holds at most one *permit*: [`notify_one`](Notify::notify_one) with nobody waiting leaves one,
/// and the next [`notified`](Notify::notified) takes it and is ready at once. So no signal is lost
/// between looking at the state it stands for and waiting.
///
/// # Examples
///
/// ```
/// use std::rc::Rc;
/// use futures::executor::block_on;
/// use futures::join;
/// use roundel_executor::sync::Notify;
///
/// let notify = Rc::new(Notify::new());
/// block_on(async {
///     join!(notify.notified(), async { notify.notify_one() });
///     notify.notify_one();
///     notify.notified().await; // the permit was kept
/// });
/// ```
#[derive(Debug, Default)]
pub struct Notify {
    permit: Cell<bool>,
    /// Calls of `notify_waiters` so far: who was created before the last one is notified by it.
    calls: Cell<u64>,
    waiters: Waiters,
}

impl Notify {
    /// A signal nobody waits for, without a permit. Allocates nothing.
    pub const fn new() -> Notify {
        Notify {
            permit: Cell::new(false),
            calls: Cell::new(0),
            waiters: Waiters::new(),
        }
    }

    /// Notifies the task that has waited longest. If none waits, the permit is kept for the next one
    /// that does; a second permit is not.
    pub fn notify_one(&self) {
        if !self.waiters.wake_one() {
            self.permit.set(true);
        }
    }

    /// Notifies every task that waits, and every [`Notified`] that exists already even if it was
    /// never polled. Leaves no permit.
    pub fn notify_waiters(&self) {
        self.calls.set(self.calls.get().wrapping_add(1));
        self.waiters.wake_all();
    }

    /// Waits for a notification, or takes the permit.
    ///
    /// Tasks are notified in the order in which their futures were first polled.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses the place in line. If `notify_one` had chosen it, its notification
    /// goes to the next in line, or is kept as the permit.
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            state: State::New(self.calls.get()),
        }
    }
}

/// The future of [`Notify::notified`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Notified<'a> {
    notify: &'a Notify,
    state: State,
}

//          poll 1               poll 2
//   New ───────────► Waiting ───────────► Done
//    │ poll 3: permit, or `notify_waiters` since it was created             ▲
//    └──────────────────────────────────────────────────────────────────────┘
#[derive(Debug)]
enum State {
    /// Not polled yet; created after so many calls of `notify_waiters`.
    New(u64),
    Waiting(Option<Key>),
    Done,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        if let State::New(calls) = self.state {
            let called = notify.calls.get() != calls;
            if called || notify.permit.get() {
                ready!(spend_budget(cx));
                if !called {
                    notify.permit.set(false);
                }
                self.state = State::Done;
            } else {
                self.state = State::Waiting(None);
            }
        }
        if let State::Waiting(key) = &mut self.state {
            if notify.waiters.is_woken(key) {
                ready!(spend_budget(cx));
            }
            ready!(notify.waiters.poll_wait(key, cx));
            self.state = State::Done;
        }
        Poll::Ready(())
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let State::Waiting(key) = &mut self.state
            && self.notify.waiters.remove(key)
        {
            self.notify.permit.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tester;
    use super::*;

    /// One permit is kept, not two, and taken once.
    #[test]
    fn one_permit_is_kept() {
        let notify = Notify::new();
        notify.notify_one();
        notify.notify_one();
        let mut tester = Tester::new();
        assert!(tester.poll(&mut notify.notified()).is_ready());
        assert!(tester.poll(&mut notify.notified()).is_pending());
        notify.notify_one();
        assert!(tester.poll(&mut notify.notified()).is_ready());
    }

    /// Tasks are notified in order, one a call, and no permit stays.
    #[test]
    fn notifies_in_order() {
        let notify = Notify::new();
        let mut testers: [Tester; 3] = Default::default();
        let mut waits: [_; 3] = std::array::from_fn(|_| notify.notified());
        for (tester, wait) in testers.iter_mut().zip(&mut waits) {
            assert!(tester.poll(wait).is_pending());
        }
        for turn in 0..3 {
            notify.notify_one();
            for (index, tester) in testers.iter().enumerate() {
                assert_eq!(tester.wakes(), usize::from(index <= turn));
            }
        }
        for (tester, wait) in testers.iter_mut().zip(&mut waits) {
            assert!(tester.poll(wait).is_ready());
            assert!(tester.poll(wait).is_ready(), "it stays ready");
        }
        assert!(testers[0].poll(&mut notify.notified()).is_pending());
    }

    /// `notify_waiters` reaches who waits and who exists, leaves no permit and takes none.
    #[test]
    fn notifies_waiters() {
        let notify = Notify::new();
        let mut tester = Tester::new();
        let (mut polled, mut created) = (notify.notified(), notify.notified());
        assert!(tester.poll(&mut polled).is_pending());
        notify.notify_waiters();
        assert_eq!(tester.wakes(), 1);
        notify.notify_one();
        assert!(tester.poll(&mut polled).is_ready());
        assert!(tester.poll(&mut created).is_ready());
        assert!(tester.poll(&mut notify.notified()).is_ready(), "the permit");
        notify.notify_waiters();
        assert!(tester.poll(&mut notify.notified()).is_pending());
    }

    /// A notification given to a future that is dropped goes on to the next, or becomes the permit;
    /// one of `notify_waiters` does neither.
    #[test]
    fn a_dropped_notification_is_passed_on() {
        let notify = Notify::new();
        let (mut first, mut second) = (Tester::new(), Tester::new());
        let (mut chosen, mut next) = (notify.notified(), notify.notified());
        assert!(first.poll(&mut chosen).is_pending());
        assert!(second.poll(&mut next).is_pending());
        notify.notify_one();
        drop(chosen);
        assert_eq!(second.wakes(), 1);
        drop(next);
        assert!(first.poll(&mut notify.notified()).is_ready(), "the permit");
        let mut one_of_all = notify.notified();
        assert!(first.poll(&mut one_of_all).is_pending());
        notify.notify_waiters();
        drop(one_of_all);
        assert!(first.poll(&mut notify.notified()).is_pending());
    }

    /// A task without budget leaves permit and notification where they are.
    #[test]
    fn budget() {
        let notify = Notify::new();
        let mut tester = Tester::new();
        let mut waiting = notify.notified();
        assert!(tester.poll(&mut waiting).is_pending());
        notify.notify_one();
        notify.notify_one();
        let mut fresh = notify.notified();
        tester.without_budget(|tester| {
            assert!(tester.poll(&mut waiting).is_pending());
            assert!(tester.poll(&mut fresh).is_pending());
        });
        assert_eq!(tester.wakes(), 3, "one notification, two out of budget");
        assert!(tester.poll(&mut waiting).is_ready());
        assert!(tester.poll(&mut fresh).is_ready());
    }
}
