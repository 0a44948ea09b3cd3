//! The pool of this thread: entered by a shard for the time it runs, and by every pool worker.
//!
//! It lets `spawn_blocking` and file operations find their pool without a global one. The thread-local is
//! `const` and has no destructor: it is usable from other thread-locals' destructors, and costs one load.

use crate::account::Crew;
use crate::atomics::thread_local_const;
use crate::config::Account;
use crate::handle::Job;
use crate::roster::Stats;
use crate::{Deliver, Pool};
use std::cell::RefCell;
use std::hash::Hash;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

thread_local_const! {
    // `ManuallyDrop` is what keeps the destructor away: every value that is put in is taken out by its guard.
    static CURRENT: RefCell<ManuallyDrop<Option<Entered>>> = RefCell::new(ManuallyDrop::new(None));
}

#[derive(Clone)]
enum Entered {
    Shard {
        pool: Pool,
        deliver: Option<Arc<dyn Deliver>>,
    },
    // A worker does not keep its pool alive, or the pool would never end.
    Worker {
        crew: Arc<Crew>,
        stats: Arc<Stats>,
    },
}

/// Makes `pool` the pool of this thread until the guard is dropped. Jobs that are submitted through
/// [`submit`] hand their wakers to `deliver`.
///
/// Guards nest: dropping one brings back what was there before. They must be dropped in reverse order.
pub fn enter(pool: &Pool, deliver: Option<Arc<dyn Deliver>>) -> Guard {
    enter_as(Entered::Shard {
        pool: pool.clone(),
        deliver,
    })
}

pub(crate) fn enter_worker(crew: &Arc<Crew>, stats: &Arc<Stats>) -> Guard {
    enter_as(Entered::Worker {
        crew: crew.clone(),
        stats: stats.clone(),
    })
}

fn enter_as(entered: Entered) -> Guard {
    Guard {
        before: swap(Some(entered)),
        stays_on_its_thread: PhantomData,
    }
}

fn swap(entered: Option<Entered>) -> Option<Entered> {
    let before = CURRENT.with(|current| current.replace(ManuallyDrop::new(entered)));
    ManuallyDrop::into_inner(before)
}

/// Ends the time that [`enter`] began.
#[must_use = "the pool is this thread's pool only while the guard lives"]
pub struct Guard {
    before: Option<Entered>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What was entered is dropped after the borrow: it may be the last clone of its pool.
        drop(swap(self.before.take()));
    }
}

/// The pool of this thread, if there is one.
///
/// On a pool worker it is the worker's own pool, unless that pool's last handle is gone.
pub fn pool() -> Option<Pool> {
    CURRENT.with(|current| match &**current.borrow() {
        Some(Entered::Shard { pool, .. }) => Some(pool.clone()),
        Some(Entered::Worker { crew, .. }) => crew.owner.upgrade().map(Pool::from_owner),
        None => None,
    })
}

/// Where jobs of this thread deliver, if it is a shard.
pub fn deliver() -> Option<Arc<dyn Deliver>> {
    CURRENT.with(|current| match &**current.borrow() {
        Some(Entered::Shard { deliver, .. }) => deliver.clone(),
        _ => None,
    })
}

/// Submits a job to the pool of this thread, as [`Pool::submit`].
///
/// On a worker whose pool has shut down the job is cancelled at once.
///
/// # Panics
///
/// If this thread has no pool.
pub fn submit<F, T>(account: Account, f: F) -> Job<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    expect_pool().submit(account, deliver(), f)
}

/// Submits a job to a serial lane of this thread's pool, as [`Pool::submit_serial`].
///
/// # Panics
///
/// If this thread has no pool.
pub fn submit_serial<K, F, T>(account: Account, key: K, f: F) -> Job<T>
where
    K: Hash,
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    expect_pool().submit_serial(account, key, deliver(), f)
}

fn expect_pool() -> Pool {
    pool().expect(
        "no blocking pool on this thread: call this inside `Runtime::block_on`, on a shard, or in a job",
    )
}

/// The calling worker's counts, if it is a worker of this crew.
pub(crate) fn worker_of(crew: &Arc<Crew>) -> Option<Arc<Stats>> {
    CURRENT.with(|current| match &**current.borrow() {
        Some(Entered::Worker { crew: own, stats }) if Arc::ptr_eq(own, crew) => Some(stats.clone()),
        _ => None,
    })
}
