#![allow(unsafe_code)]
//! An operation, and the future that waits for it.
//!
//! # The life of an operation
//!
//! An [`Operation`] owns everything the kernel may touch on its behalf: its buffer, its
//! arguments, a hold on its descriptor. Submitting one takes a slot in the reactor's
//! table, writes the 64-byte entry, and gives an [`Op`], the future that keeps the
//! operation while the kernel works on it. Three things can happen then:
//!
//! - **It completes and is polled.** The completion waits in the slot; the poll takes it,
//!   frees the slot, and [`Operation::complete`] makes the output of it.
//! - **It is dropped before the kernel has it.** The entry still stands in the staging
//!   queue: it is taken out, and the operation is over.
//! - **It is dropped while the kernel has it.** The operation moves into its slot, an
//!   *orphan*, and a cancel follows it to the kernel. Only the last completion ends the
//!   orphan: `complete` runs as always, and its output is dropped. So a buffer is freed
//!   when the kernel is done with it (P1), and a descriptor that an abandoned `accept` or
//!   `open` brings is closed (P2).
//!
//! Forgetting the future (`mem::forget`) forgets the operation with it: its memory is
//! never freed, so the kernel may write there for as long as it likes.
//!
//! An operation interrupted by a signal is started again in its slot; `EINTR` reaches
//! nobody (H13).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::backend::Completion;
use crate::block::Block;
use crate::entry::Entry;
use crate::lifecycle::{Ending, Key};
use crate::reactor::Reactor;

/// One thing the kernel can do for us.
///
/// A new kernel operation is one struct with an implementation of this.
///
/// # Safety
///
/// Every pointer in the entry stays valid while `self` is alive, even if `self` moves or
/// is forgotten, and nothing but the kernel uses that memory between `entry` and
/// `complete`.
pub unsafe trait Operation: 'static {
    /// What it comes to.
    type Output;

    /// What the kernel is asked for. Called again if the operation was interrupted before
    /// it did anything.
    fn entry(&mut self) -> Entry;

    /// Makes the output of the kernel's answer. Called once, after which the kernel no
    /// longer has any of `self`.
    fn complete(self, completion: Completion) -> Self::Output;
}

/// A submitted operation: resolves to its output.
///
/// Dropping this future cancels the operation; whatever it still brings is dropped.
#[must_use = "dropping it cancels the operation"]
pub struct Op<T: Operation> {
    reactor: Rc<Reactor>,
    key: Key,
    /// Its slot has no waker yet, and most likely no completion either.
    fresh: bool,
    /// `None` once it is over.
    operation: Option<T>,
}

// The kernel's pointers lead to memory that does not move with the operation (contract of
// `Operation`), so nothing here is pinned.
impl<T: Operation> Unpin for Op<T> {}

impl<T: Operation> Op<T> {
    pub(crate) fn new(reactor: Rc<Reactor>, key: Key, operation: T) -> Self {
        Op {
            reactor,
            key,
            fresh: true,
            operation: Some(operation),
        }
    }

    /// Goes on waiting for the same operation as a part of another one.
    pub(crate) fn map_operation<U: Operation>(mut self, map: impl FnOnce(T) -> U) -> Op<U> {
        let operation = self
            .operation
            .take()
            .expect("an unfinished future has its operation");
        Op {
            reactor: self.reactor.clone(),
            key: self.key,
            fresh: self.fresh,
            operation: Some(map(operation)),
        }
    }

    /// Whether a poll would find the operation finished.
    pub fn is_finished(&self) -> bool {
        self.operation.is_none() || self.reactor.is_ready(self.key)
    }
}

impl<T: Operation> Future for Op<T> {
    type Output = T::Output;

    /// # Panics
    ///
    /// If polled after it resolved, or if the runtime ended while the kernel still had the
    /// operation, so that there is neither a result nor a buffer to return.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.get_mut();
        let operation = this.operation.as_mut().expect("polled after it resolved");
        // Polled for the first time, usually in the breath that submitted it: there is nothing
        // to look for, and a waker to leave.
        if std::mem::take(&mut this.fresh) && !this.reactor.keep_waker(this.key, cx) {
            return Poll::Pending;
        }
        let polled = this.reactor.poll(this.key, cx, || operation.entry());
        let Poll::Ready(completion) = polled else {
            return Poll::Pending;
        };
        let operation = this.operation.take().expect("it was there a moment ago");
        Poll::Ready(operation.complete(completion))
    }
}

impl<T: Operation> Drop for Op<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.reactor.abandon(self.key, Abandon(Some(operation)));
        }
    }
}

/// An operation nobody waits for any more.
pub(crate) trait Orphan {
    /// Ends it with its last completions, and drops what they bring.
    fn finish(&mut self, ending: Ending);
}

/// A single-completion operation on its way to be abandoned.
pub(crate) struct Abandon<T>(pub(crate) Option<T>);

impl<T: Operation> Orphan for Abandon<T> {
    fn finish(&mut self, ending: Ending) {
        let operation = self.0.take().expect("an orphan is finished once");
        match ending {
            Ending::One(completion) => drop(operation.complete(completion)),
            Ending::Many(_) => unreachable!("a single operation has one completion"),
        }
    }
}

/// Moves an orphan into a block whose type nobody needs to know.
pub(crate) fn erase<T: Orphan + 'static>(orphan: T) -> Block<dyn Orphan> {
    let raw: *mut dyn Orphan = Block::new(orphan).into_raw();
    // SAFETY: the pointer comes from `into_raw` in the line above and is used once.
    unsafe { Block::from_raw(raw) }
}
