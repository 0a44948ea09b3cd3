#![allow(unsafe_code)]
//! One submission, many completions.

use std::rc::Rc;
use std::task::{Context, Poll};

use crate::backend::Completion;
use crate::entry::Entry;
use crate::lifecycle::{Ending, Key};
use crate::op::Orphan;
use crate::reactor::Reactor;

/// An operation that the kernel completes again and again, until it ends by itself, by an
/// error or by a cancel.
///
/// # Safety
///
/// As for [`Operation`](crate::Operation): every pointer in the entry stays valid while
/// `self` is alive, even if `self` moves or is forgotten.
pub unsafe trait MultishotOperation: 'static {
    /// What each completion comes to.
    type Item;

    /// What the kernel is asked for.
    fn entry(&mut self) -> Entry;

    /// Makes an item of one completion.
    fn item(&mut self, completion: Completion) -> Self::Item;
}

/// A submitted multishot operation.
///
/// Dropping it cancels the operation; what it still brings is dropped.
#[must_use = "dropping it cancels the operation"]
pub struct Multishot<T: MultishotOperation> {
    reactor: Rc<Reactor>,
    key: Key,
    operation: Option<T>,
}

impl<T: MultishotOperation> Multishot<T> {
    pub(crate) fn new(reactor: Rc<Reactor>, key: Key, operation: T) -> Self {
        Multishot {
            reactor,
            key,
            operation: Some(operation),
        }
    }

    /// The next item; `None` when the kernel has ended the operation, which may then be
    /// submitted anew.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T::Item>> {
        let operation = self.operation.as_mut().expect("only drop takes it");
        self.reactor
            .poll_next(self.key, cx)
            .map(|completion| completion.map(|completion| operation.item(completion)))
    }

    /// How many items have arrived and not been taken.
    pub fn queued(&self) -> usize {
        self.reactor.queued(self.key)
    }

    /// Whether it was cancelled: by [`cancel`](Self::cancel), or because more items waited
    /// than its bound allows. It then ends with the error of a cancelled operation.
    pub fn is_cancelled(&self) -> bool {
        self.reactor.is_cancelled(self.key)
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Asks the kernel to end the operation; items keep coming until it has.
    pub fn cancel(&self) {
        self.reactor.cancel(self.key);
    }
}

impl<T: MultishotOperation> Drop for Multishot<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.reactor.abandon(self.key, Abandon(operation));
        }
    }
}

/// A multishot operation on its way to be abandoned.
struct Abandon<T>(T);

impl<T: MultishotOperation> Orphan for Abandon<T> {
    fn finish(&mut self, ending: Ending) {
        match ending {
            Ending::One(completion) => drop(self.0.item(completion)),
            Ending::Many(completions) => {
                for completion in completions {
                    drop(self.0.item(completion));
                }
            }
        }
    }
}
