//! This thread's reactor, and what is left of the running task's share of it.
//!
//! Leaf futures and typed handles find their reactor here, so that no call has to pass it.
//! The shard that runs on the thread enters it; between two `block_on`s there is none.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::block::Cache;
use crate::multishot::{Multishot, MultishotOperation};
use crate::op::{Op, Operation};
use crate::reactor::Reactor;

/// What a leaf future may complete in one poll of its task before it has to let others
/// run. Tokio's figure; a poll of an always-ready task then takes some tens of
/// microseconds, the length of a heavy task in our fairness measurements.
pub const BUDGET: u32 = 128;

/// Outside of a task nobody refills the budget, so there it has no end.
const UNLIMITED: u32 = u32::MAX;

thread_local! {
    // `ManuallyDrop` keeps the thread-local free of a destructor, so that it can be used
    // at any time in a thread's life; the guard empties it.
    static CURRENT: ManuallyDrop<RefCell<Option<Rc<Reactor>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    static BUDGET_LEFT: Cell<u32> = const { Cell::new(UNLIMITED) };
}

/// What a misplaced call is told.
const NO_SHARD: &str =
    "no shard runs on this thread: call this inside `Runtime::block_on` or a task";

/// Makes a reactor this thread's until dropped, when the former one is back.
#[must_use = "the reactor is left when the guard is dropped"]
pub struct Entered {
    former: Option<Rc<Reactor>>,
}

/// Makes `reactor` this thread's.
pub fn enter(reactor: Rc<Reactor>) -> Entered {
    Entered {
        former: CURRENT.with(|current| current.replace(Some(reactor))),
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = CURRENT.with(|current| current.replace(self.former.take()));
        // Its last owner may be gone meanwhile, and its end is no matter for a borrow.
        drop(left);
    }
}

#[inline]
fn with<R>(f: impl FnOnce(&Rc<Reactor>) -> R) -> Option<R> {
    CURRENT.with(|current| current.borrow().as_ref().map(f))
}

/// This thread's reactor.
///
/// # Panics
///
/// If no shard runs on this thread.
pub(crate) fn expect_current() -> Rc<Reactor> {
    with(Rc::clone).expect(NO_SHARD)
}

/// Submits an operation to this thread's reactor. That cannot fail: what the kernel
/// refuses completes with its errno.
///
/// # Panics
///
/// If no shard runs on this thread.
#[inline]
pub fn submit<T: Operation>(operation: T) -> Op<T> {
    CURRENT.with(|current| match &*current.borrow() {
        Some(reactor) => reactor.submit(operation),
        None => panic!("{NO_SHARD}"),
    })
}

/// Submits a multishot operation to this thread's reactor.
///
/// # Panics
///
/// If no shard runs on this thread.
pub fn submit_multishot<T: MultishotOperation>(operation: T) -> Multishot<T> {
    expect_current().submit_multishot(operation)
}

/// Submits a multishot operation that is cancelled once more than `bound` items wait.
///
/// # Panics
///
/// If no shard runs on this thread.
pub fn submit_multishot_bounded<T: MultishotOperation>(operation: T, bound: usize) -> Multishot<T> {
    expect_current().submit_multishot_bounded(operation, bound)
}

/// Whether a shard runs on this thread.
pub fn is_entered() -> bool {
    with(|_| ()).is_some()
}

/// Closes a descriptor through this thread's ring; false if there is none that runs.
pub(crate) fn close(fd: RawFd) -> bool {
    with(|reactor| reactor.close(fd)).unwrap_or(false)
}

/// The recycled memory of this thread's reactor.
#[inline]
pub(crate) fn with_cache<R>(f: impl FnOnce(&Cache) -> R) -> Option<R> {
    with(|reactor| f(reactor.cache()))
}

/// Gives the task that is polled next its share, and takes the rest back when the guard
/// is dropped: what was left of an outer task's share, if this poll is inside another's.
#[must_use = "the share ends when the guard is dropped"]
pub struct Share {
    former: u32,
}

/// Starts a task's poll.
#[inline]
pub fn refill_budget() -> Share {
    Share {
        former: BUDGET_LEFT.replace(BUDGET),
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        BUDGET_LEFT.set(self.former);
    }
}

/// Spends one completion of the running task's share. A leaf future calls it when it is
/// about to resolve. `Pending`: the share is used up; the task has been woken, and the
/// future returns `Pending`, too, keeping what it has for the next poll.
#[inline]
pub fn spend_budget(cx: &mut Context<'_>) -> Poll<()> {
    if take_from_budget() {
        return Poll::Ready(());
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// The same without the wake, which is foreign code; false if the share is used up.
#[inline]
pub(crate) fn take_from_budget() -> bool {
    match BUDGET_LEFT.get() {
        UNLIMITED => true,
        0 => false,
        left => {
            BUDGET_LEFT.set(left - 1);
            true
        }
    }
}
