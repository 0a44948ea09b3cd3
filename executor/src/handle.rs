//! The face of a runtime that may be sent and kept anywhere.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use roundel_blocking_pool::{Account, Pool};

use crate::current;
use crate::join::{Id, JoinError, SendJoinHandle};
use crate::metrics::Snapshot;
use crate::shard::Home;
use crate::task;

/// Spawns on a runtime's shards from any thread.
///
/// It does not keep the runtime running: what is spawned after the runtime ended is
/// dropped, and its handle says that it was cancelled.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) homes: Vec<Arc<Home>>,
    pub(crate) pool: Pool,
    /// Whose turn it is.
    next: AtomicUsize,
}

impl Handle {
    pub(crate) fn new(homes: Vec<Arc<Home>>, pool: Pool) -> Self {
        Handle {
            shared: Arc::new(Shared {
                homes,
                pool,
                next: AtomicUsize::new(0),
            }),
        }
    }

    /// The handle of the runtime whose shard runs on this thread.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    pub fn current() -> Handle {
        current::expect().handle().clone()
    }

    /// The same, or `None` where no shard runs.
    pub fn try_current() -> Option<Handle> {
        current::with(|shard| shard.handle().clone())
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shared.homes.len()
    }

    /// Spawns a task on some shard, one after the other. `make` runs there and makes the
    /// future, which need not be `Send`.
    pub fn spawn<C, F>(&self, make: C) -> SendJoinHandle<F::Output>
    where
        C: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send,
    {
        let turn = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.spawn_on(turn % self.shards(), make)
    }

    /// Spawns a task on the shard with this number.
    ///
    /// # Panics
    ///
    /// If there is no such shard.
    pub fn spawn_on<C, F>(&self, shard: usize, make: C) -> SendJoinHandle<F::Output>
    where
        C: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send,
    {
        let shards = self.shards();
        assert!(
            shard < shards,
            "there is no shard {shard}: this runtime has the shards 0 to {}",
            shards - 1
        );
        SendJoinHandle::of_task(task::spawn_remote(&self.shared.homes[shard], make))
    }

    /// Runs a closure that may block on the pool's unbound account.
    ///
    /// While the account is full the job waits for room when it is awaited.
    pub fn spawn_blocking<F, T>(&self, f: F) -> SendJoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let deliver = roundel_blocking_pool::current::deliver();
        let job = self.shared.pool.submit(Account::Unbound, deliver, f);
        SendJoinHandle::of_job(job, Id::next())
    }

    /// Spawns a task on some shard and parks this thread until it is over.
    ///
    /// # Errors
    ///
    /// If the task panicked, or the runtime ended.
    ///
    /// # Panics
    ///
    /// On a shard's thread, which it would block: await [`spawn`](Self::spawn) there. Also
    /// on the thread that built the runtime while it is in no `block_on`: the task may be
    /// for that very thread, shard 0, and would never run.
    pub fn block_on<C, F>(&self, make: C) -> Result<F::Output, JoinError>
    where
        C: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send,
    {
        assert!(
            Handle::try_current().is_none(),
            "a shard runs on this thread, and blocking it would stop its tasks: await \
             `Handle::spawn` instead of calling `Handle::block_on`"
        );
        let home = self.home(0);
        assert!(
            home.thread() != std::thread::current().id() || home.is_stopped(),
            "this thread is shard 0 and would wait for itself: call `Runtime::block_on` instead \
             of `Handle::block_on`"
        );
        park_on(self.spawn(make))
    }

    /// What each shard has counted so far.
    pub fn metrics(&self) -> Vec<ShardMetrics> {
        // A shard publishes some numbers once a turn; who asks on its thread gets those of now.
        let _ = current::with(|shard| shard.publish());
        let homes = self.shared.homes.iter();
        homes
            .map(|home| ShardMetrics {
                tasks: home.metrics.snapshot(),
                ring: home.counters.snapshot(),
            })
            .collect()
    }

    /// The blocking pool of this runtime.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn home(&self, shard: usize) -> &Arc<Home> {
        &self.shared.homes[shard]
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("shards", &self.shards())
            .finish_non_exhaustive()
    }
}

/// What one shard has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardMetrics {
    /// Its loop, tasks and timers.
    pub tasks: Snapshot,
    /// Its ring.
    pub ring: roundel_reactor::CountersSnapshot,
}

/// Polls a future on this thread, which parks in between.
fn park_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    // Ends when the future does: a wake between poll and park leaves the token set.
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}
