//! The types that threads share: std and crossbeam as shipped, loom's under `cfg(loom)`.
//!
//! Every file of the crate takes its locks, atomics, thread calls and stealable queues from here, so that
//! the loom models run the shipped code. crossbeam's queues are unknown to loom; under loom a queue is a
//! deque behind one of loom's mutexes, which has the same meaning (each push and each pop is one step).

#[cfg(not(loom))]
pub(crate) use shipped::*;

#[cfg(loom)]
pub(crate) use modelled::*;

use std::sync::PoisonError;

/// Locks; a poisoned lock is taken as it is. No code of a user runs under a lock of this crate, so a
/// panic while one is held is a fault of ours, and going on serves the other jobs best.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(loom))]
mod shipped {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;

    use crossbeam_deque::{Injector, Steal, Stealer, Worker};
    use std::time::Duration;

    /// Parks this thread, at most for `limit`. May return early.
    pub(crate) fn park(limit: Option<Duration>) {
        match limit {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
    }

    /// A queue that any thread pushes to and any thread pops from, first in, first out.
    pub(crate) struct Queue<T>(Injector<T>);

    impl<T> Queue<T> {
        pub(crate) fn new() -> Self {
            Queue(Injector::new())
        }

        pub(crate) fn push(&self, value: T) {
            self.0.push(value);
        }

        /// The oldest value. Loops only while another thread's pop gets in the way, and that one progressed.
        pub(crate) fn pop(&self) -> Option<T> {
            loop {
                match self.0.steal() {
                    Steal::Success(value) => return Some(value),
                    Steal::Empty => return None,
                    Steal::Retry => spin_loop(),
                }
            }
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }
    }

    /// A worker's drained jobs: its owner pushes and pops, siblings steal.
    pub(crate) struct Batch<T>(Worker<T>);

    /// The face of a [`Batch`] for everyone but its owner.
    pub(crate) struct BatchStealer<T>(Stealer<T>);

    impl<T> Batch<T> {
        pub(crate) fn new() -> (Self, BatchStealer<T>) {
            let worker = Worker::new_fifo();
            let stealer = worker.stealer();
            (Batch(worker), BatchStealer(stealer))
        }

        pub(crate) fn push(&self, value: T) {
            self.0.push(value);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.pop()
        }
    }

    impl<T> BatchStealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        /// The oldest value, taken from the owner.
        pub(crate) fn steal(&self) -> Option<T> {
            loop {
                match self.0.steal() {
                    Steal::Success(value) => return Some(value),
                    Steal::Empty => return None,
                    Steal::Retry => spin_loop(),
                }
            }
        }

        /// Moves half into `thief` and returns the oldest.
        pub(crate) fn steal_half(&self, thief: &Batch<T>) -> Option<T> {
            loop {
                match self.0.steal_batch_and_pop(&thief.0) {
                    Steal::Success(value) => return Some(value),
                    Steal::Empty => return None,
                    Steal::Retry => spin_loop(),
                }
            }
        }
    }
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread;

    use super::lock;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    /// Parks this thread. Loom has no clock: a limit never passes.
    pub(crate) fn park(_limit: Option<Duration>) {
        thread::park();
    }

    pub(crate) struct Queue<T>(Mutex<VecDeque<T>>);

    impl<T> Queue<T> {
        pub(crate) fn new() -> Self {
            Queue(Mutex::new(VecDeque::new()))
        }

        pub(crate) fn push(&self, value: T) {
            lock(&self.0).push_back(value);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            lock(&self.0).pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            lock(&self.0).is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            lock(&self.0).len()
        }
    }

    pub(crate) struct Batch<T>(Arc<Mutex<VecDeque<T>>>);

    pub(crate) struct BatchStealer<T>(Arc<Mutex<VecDeque<T>>>);

    impl<T> Batch<T> {
        pub(crate) fn new() -> (Self, BatchStealer<T>) {
            let shared = Arc::new(Mutex::new(VecDeque::new()));
            (Batch(shared.clone()), BatchStealer(shared))
        }

        pub(crate) fn push(&self, value: T) {
            lock(&self.0).push_back(value);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            lock(&self.0).pop_front()
        }
    }

    impl<T> BatchStealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            lock(&self.0).is_empty()
        }

        pub(crate) fn steal(&self) -> Option<T> {
            lock(&self.0).pop_front()
        }

        pub(crate) fn steal_half(&self, thief: &Batch<T>) -> Option<T> {
            let mut victim = lock(&self.0);
            let half = victim.len().div_ceil(2);
            let mut taken = victim.drain(..half).collect::<VecDeque<_>>();
            drop(victim);
            let first = taken.pop_front();
            lock(&thief.0).extend(taken);
            first
        }
    }
}
