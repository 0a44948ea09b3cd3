//! What a reactor counts, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::backend::Crossings;

/// The counters of one reactor. Its thread alone writes them, so a count costs a load and
/// a store.
#[derive(Debug, Default)]
pub struct Counters {
    submitted: AtomicU64,
    completed: AtomicU64,
    enters: AtomicU64,
    poller_wakes: AtomicU64,
    faults: AtomicU64,
    slots: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountersSnapshot {
    /// Entries handed to the kernel, the reactor's own among them.
    pub submitted: u64,
    /// Completions taken from it.
    pub completed: u64,
    /// Calls of `io_uring_enter(2)`.
    pub enters: u64,
    /// Those of them that woke a kernel poller which had gone to sleep.
    pub poller_wakes: u64,
    /// Completions with `EFAULT`: the kernel was given memory that is not there. More than
    /// none is a bug of a buffer type, or of ours.
    pub faults: u64,
    /// Operations in flight or finished and not yet taken, when the ring was last entered.
    pub slots: u64,
}

impl Counters {
    pub(crate) fn entered(&self, submitted: usize, slots: usize, crossings: Crossings) {
        add(&self.submitted, submitted);
        self.slots.store(slots as u64, Relaxed);
        self.enters.store(crossings.enters, Relaxed);
        self.poller_wakes.store(crossings.poller_wakes, Relaxed);
    }

    pub(crate) fn reaped(&self, completed: usize) {
        add(&self.completed, completed);
    }

    pub(crate) fn fault(&self) {
        add(&self.faults, 1);
    }

    /// Nothing is in a slot any more.
    pub(crate) fn ended(&self, slots: usize) {
        self.slots.store(slots as u64, Relaxed);
    }

    /// Reads them all; not at one instant, but each is right.
    pub fn snapshot(&self) -> CountersSnapshot {
        CountersSnapshot {
            submitted: self.submitted.load(Relaxed),
            completed: self.completed.load(Relaxed),
            enters: self.enters.load(Relaxed),
            poller_wakes: self.poller_wakes.load(Relaxed),
            faults: self.faults.load(Relaxed),
            slots: self.slots.load(Relaxed),
        }
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.store(counter.load(Relaxed) + count as u64, Relaxed);
}
