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

/// A thread-local with a constant first value (loom's has no `const` form).
macro_rules! thread_local_const {
    (static $name:ident: $type:ty = $first:expr;) => {
        #[cfg(not(loom))]
        std::thread_local! { static $name: $type = const { $first }; }
        #[cfg(loom)]
        loom::thread_local! { static $name: $type = $first; }
    };
}
pub(crate) use thread_local_const;

#[cfg(not(loom))]
mod shipped {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;

    use crossbeam_deque::{Injector, Steal, Stealer, Worker};
    use std::time::Duration;

    /// One thread's sleep, which any thread may end.
    #[derive(Clone)]
    pub(crate) struct Parking(thread::Thread);

    impl Parking {
        pub(crate) fn of_this_thread() -> Self {
            Parking(thread::current())
        }

        /// Sleeps until it is unparked, at most for `limit`; may return early. Only for the thread it belongs to.
        pub(crate) fn park(&self, limit: Option<Duration>) {
            match limit {
                Some(limit) => thread::park_timeout(limit),
                None => thread::park(),
            }
        }

        pub(crate) fn unpark(&self) {
            self.0.unpark();
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

    use super::{PoisonError, lock};
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    // Loom's own `unpark` also ends a wait for a lock, which it then takes for a fault of the model.
    #[derive(Clone)]
    pub(crate) struct Parking(Arc<(Mutex<bool>, Condvar)>);

    impl Parking {
        pub(crate) fn of_this_thread() -> Self {
            Parking(Arc::new((Mutex::new(false), Condvar::new())))
        }

        /// Loom has no clock: a limit never passes.
        pub(crate) fn park(&self, _limit: Option<Duration>) {
            let mut unparked = lock(&self.0.0);
            while !*unparked {
                unparked = self
                    .0
                    .1
                    .wait(unparked)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *unparked = false;
        }

        pub(crate) fn unpark(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
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
