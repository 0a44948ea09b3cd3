//! Where the outcome of a task waits for a handle on any thread.
//!
//! One side leaves the outcome once ([`Mailbox::resolve`]); the other polls for it until it has it, or
//! goes ([`Mailbox::detach`]). An outcome that nobody takes is dropped by the side that comes last.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use roundel_reactor::current::spend_budget;

use super::stage::{Outcome, wake_joiner};
use super::{contain, discard, log_panic};
use crate::atomics::{AtomicBool, Mutex, MutexGuard, Ordering};

/// See the module.
pub(super) struct Mailbox<T> {
    /// Set once, when the future is gone and the outcome is there.
    resolved: AtomicBool,
    /// Nothing of the user's runs while it is locked.
    join: Mutex<Join<T>>,
}

/// Where an outcome waits for who joins the task.
enum Join<T> {
    /// Not there yet; who joins is to be woken.
    Awaited(Option<Waker>),
    /// There.
    Done(Outcome<T>),
    /// Taken, or not wanted: the handle is gone.
    Over,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Self {
        Mailbox {
            resolved: AtomicBool::new(false),
            join: Mutex::new(Join::Awaited(None)),
        }
    }

    /// Whether there is an outcome, or was.
    pub(super) fn is_resolved(&self) -> bool {
        self.resolved.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Join<T>> {
        // Nothing of the user's runs under the lock, so a poisoned one is as good.
        self.join.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task's side: leaves the outcome, and wakes who joins.
    pub(super) fn resolve(&self, outcome: Outcome<T>) {
        let mut join = self.lock();
        let Join::Awaited(waker) = &mut *join else {
            self.resolved.store(true, Ordering::Release);
            drop(join);
            discard(outcome);
            return;
        };
        let waker = waker.take();
        *join = Join::Done(outcome);
        self.resolved.store(true, Ordering::Release);
        drop(join);
        if let Some(waker) = waker {
            wake_joiner(waker);
        }
    }

    /// The handle's side: takes the outcome, or leaves the waker.
    ///
    /// # Panics
    ///
    /// If called after it gave the outcome.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        // The clone is the user's code, and the old waker's drop is, too: neither runs while the
        // state is locked.
        let mut waker = Some(cx.waker().clone());
        let ready = match &mut *self.lock() {
            Join::Awaited(stored) => {
                std::mem::swap(stored, &mut waker);
                false
            }
            Join::Done(_) => true,
            Join::Over => panic!("a join handle was polled after it resolved"),
        };
        drop(waker);
        if !ready || spend_budget(cx).is_pending() {
            return Poll::Pending;
        }
        let join = std::mem::replace(&mut *self.lock(), Join::Over);
        match join {
            Join::Done(outcome) => Poll::Ready(outcome),
            Join::Awaited(_) | Join::Over => unreachable!("it was done a moment ago"),
        }
    }

    /// The handle goes: the task is detached, and an outcome that waits is dropped here.
    pub(super) fn detach(&self) {
        let join = std::mem::replace(&mut *self.lock(), Join::Over);
        match join {
            Join::Done(outcome) => discard(outcome),
            Join::Awaited(waker) => {
                if let Err(payload) = contain(|| drop(waker)) {
                    log_panic("the drop of a waker", payload);
                }
            }
            Join::Over => {}
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicUsize as StdAtomicUsize, Ordering as StdOrdering};
    use std::task::{Context, Poll, Wake, Waker};

    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::Mailbox;

    /// The joining thread's waker: it unparks it.
    #[derive(Default)]
    struct Parker {
        woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Wake for Parker {
        fn wake(self: StdArc<Self>) {
            *self.woken.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    /// An output that counts its drops.
    struct Counted(StdArc<StdAtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, StdOrdering::Relaxed);
        }
    }

    /// A task ends on one thread and is joined on another, which polls and parks: it gets the outcome.
    #[test]
    fn loom_join_across_threads() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let task = {
                let mailbox = mailbox.clone();
                thread::spawn(move || mailbox.resolve(Ok(7)))
            };
            let parker = StdArc::new(Parker::default());
            let waker = Waker::from(parker.clone());
            let mut cx = Context::from_waker(&waker);
            let output = loop {
                if let Poll::Ready(outcome) = mailbox.poll(&mut cx) {
                    break outcome.unwrap();
                }
                let mut woken = parker.woken.lock().unwrap();
                while !*woken {
                    woken = parker.changed.wait(woken).unwrap();
                }
                *woken = false;
            };
            assert_eq!(output, 7);
            assert!(mailbox.is_resolved());
            task.join().unwrap();
        });
    }

    /// Who sees that a task has ended sees what it did.
    #[test]
    fn loom_resolved_is_the_last_thing() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let done = Arc::new(AtomicBool::new(false));
            let task = {
                let (mailbox, done) = (mailbox.clone(), done.clone());
                thread::spawn(move || {
                    done.store(true, Ordering::Relaxed);
                    mailbox.resolve(Ok(()));
                })
            };
            if mailbox.is_resolved() {
                assert!(done.load(Ordering::Relaxed));
            }
            task.join().unwrap();
        });
    }

    /// A handle that goes while its task ends: the output is dropped once, by one of them.
    #[test]
    fn loom_detach_against_the_end() {
        loom::model(|| {
            let dropped = StdArc::new(StdAtomicUsize::new(0));
            let mailbox = Arc::new(Mailbox::new());
            let task = {
                let (mailbox, output) = (mailbox.clone(), Counted(dropped.clone()));
                thread::spawn(move || mailbox.resolve(Ok(output)))
            };
            let _ = mailbox
                .poll(&mut Context::from_waker(Waker::noop()))
                .map(drop);
            mailbox.detach();
            task.join().unwrap();
            assert_eq!(dropped.load(StdOrdering::Relaxed), 1);
        });
    }
}
