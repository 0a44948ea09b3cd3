//! Where the crate takes its atomics, locks and the queue between threads from: std and crossbeam, or loom in a model.
//!
//! Code that shares state between threads imports from here and from nowhere else, so that the same
//! lines run in production and, under `--cfg loom`, in the models.
//!
//! [`Queue`] is a `crossbeam_deque::Injector`. In a model it is a mutexed `VecDeque` with its length
//! beside it, and `is_empty` (and a `pop` that finds nothing) looks only at that length, by a relaxed
//! load, which may be stale. A mutex alone would order everything that goes through the queue and so
//! hide the very mistakes that a model is there to find; this queue promises its users less than the
//! real one does: whoever needs to *see* a push must get that from elsewhere.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

#[cfg(not(loom))]
pub(crate) use cell::UnsafeCell;

pub(crate) use queue::Queue;

#[cfg(not(loom))]
mod cell {
    /// `std::cell::UnsafeCell` with the methods of loom's, which sees races by them.
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Gives out the address of the value, to be read.
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Gives out the address of the value, to be changed.
        pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }
}

#[cfg(not(loom))]
mod queue {
    use crossbeam_deque::{Injector, Steal};

    /// A queue that every thread may push to and pop from; first in, first out for each pusher.
    pub(crate) struct Queue<T>(Injector<T>);

    impl<T> Queue<T> {
        /// An empty queue.
        pub(crate) fn new() -> Self {
            Queue(Injector::new())
        }

        /// Appends an item.
        pub(crate) fn push(&self, item: T) {
            self.0.push(item);
        }

        /// Takes the oldest item.
        ///
        /// A push that has begun but not ended is waited for (a few instructions of another thread).
        pub(crate) fn pop(&self) -> Option<T> {
            // The injector pays a full fence to learn that it is empty, which is what it nearly
            // always is when a shard looks.
            if self.0.is_empty() {
                return None;
            }
            // Ends: each `Retry` means that another thread took an item instead.
            loop {
                match self.0.steal() {
                    Steal::Success(item) => return Some(item),
                    Steal::Empty => return None,
                    Steal::Retry => {}
                }
            }
        }

        /// Whether nothing is in the queue. A push that this thread does not know of may be missed.
        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }
    }
}

#[cfg(loom)]
mod queue {
    use std::collections::VecDeque;

    use loom::sync::Mutex;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    /// The queue of the models; see the module for what it leaves out on purpose.
    pub(crate) struct Queue<T> {
        items: Mutex<VecDeque<T>>,
        /// Changed with `items` locked, read without.
        len: AtomicUsize,
    }

    impl<T> Queue<T> {
        pub(crate) fn new() -> Self {
            Queue {
                items: Mutex::new(VecDeque::new()),
                len: AtomicUsize::new(0),
            }
        }

        pub(crate) fn push(&self, item: T) {
            let mut items = self.items.lock().expect("no push or pop panics");
            items.push_back(item);
            self.len.fetch_add(1, Ordering::Relaxed);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            if self.is_empty() {
                return None;
            }
            let mut items = self.items.lock().expect("no push or pop panics");
            let item = items.pop_front()?;
            self.len.fetch_sub(1, Ordering::Relaxed);
            Some(item)
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len.load(Ordering::Relaxed) == 0
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Queue;

    /// What one thread pushes comes out in its order, each item once, whoever pushes beside it.
    #[test]
    fn keeps_the_order_of_each_pusher() {
        const EACH: usize = 10_000;
        let queue = Queue::new();
        let mut next = [0, 0];
        std::thread::scope(|scope| {
            for pusher in 0..2 {
                let queue = &queue;
                scope.spawn(move || (0..EACH).for_each(|item| queue.push((pusher, item))));
            }
            // Ends: the scope's threads push exactly this many.
            while next != [EACH, EACH] {
                let Some((pusher, item)) = queue.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(item, next[pusher]);
                next[pusher] += 1;
            }
        });
        assert!(queue.is_empty());
        assert_eq!(queue.pop(), None);
    }
}
