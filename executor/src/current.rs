//! The shard that runs on this thread.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::shard::Shard;
use crate::task::seat::{Owner, Seat};
use crate::timers::Timers;

thread_local! {
    // `ManuallyDrop` keeps the thread-local free of a destructor, so that it can be used
    // at any time in a thread's life; the guard empties it.
    static CURRENT: ManuallyDrop<RefCell<Option<Rc<Shard>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    // The seat of that shard, beside it: a waker looks here, and so does every spawn.
    static OWNER: Cell<Option<Owner>> = const { Cell::new(None) };
}

/// What a misplaced call is told.
pub(crate) const NO_SHARD: &str =
    "no shard runs on this thread: call this inside `Runtime::block_on` or a task";

/// The shard is this thread's until dropped.
#[must_use = "the shard is left when the guard is dropped"]
pub(crate) struct Entered(());

/// Makes `shard` this thread's; there must be none.
pub(crate) fn enter(shard: Rc<Shard>) -> Entered {
    OWNER.set(Some(shard.owner()));
    let former = CURRENT.with(|current| current.replace(Some(shard)));
    debug_assert!(former.is_none(), "a thread runs one shard at a time");
    Entered(())
}

impl Drop for Entered {
    fn drop(&mut self) {
        OWNER.set(None);
        let left = CURRENT.with(|current| current.replace(None));
        drop(left);
    }
}

/// The seat of this thread's shard.
pub(crate) fn owner() -> Option<Owner> {
    OWNER.get()
}

/// Whether this thread's shard has this seat.
pub(crate) fn owns(seat: &Seat) -> bool {
    OWNER
        .get()
        .is_some_and(|owner| std::ptr::eq(owner.seat(), seat))
}

/// Calls `f` with this thread's shard, if one runs. `f` must not call foreign code.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Rc<Shard>) -> R) -> Option<R> {
    CURRENT.with(|current| current.borrow().as_ref().map(f))
}

/// This thread's shard.
///
/// # Panics
///
/// If none runs.
pub(crate) fn expect() -> Rc<Shard> {
    with(Rc::clone).expect(NO_SHARD)
}

/// Calls `f` with the timers of this thread's shard, if one runs.
pub(crate) fn timers<R>(f: impl FnOnce(&RefCell<Timers>) -> R) -> Option<R> {
    with(|shard| f(shard.timers()))
}

/// Sets the shard of this thread aside until dropped: a runtime that ends on another's
/// thread drops its own tasks among their own.
pub(crate) struct Suspended(Option<Rc<Shard>>);

/// Sets this thread's shard aside, if one runs.
pub(crate) fn suspend() -> Suspended {
    OWNER.set(None);
    Suspended(CURRENT.with(|current| current.replace(None)))
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if let Some(shard) = self.0.take() {
            OWNER.set(Some(shard.owner()));
            let _ = CURRENT.with(|current| current.replace(Some(shard)));
        }
    }
}
