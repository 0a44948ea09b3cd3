//! A pool of threads for calls that block.
//!
//! An async shard must never wait in a call: name look-ups, reads from file systems that do not work
//! asynchronously, checksums of large buffers. Such calls go to a [`Pool`], and come back as futures.
//!
//! ```text
//!                       a fixed worker: private queue ─► batch ─► runs        (never times out)
//!                      ╱                     ╲ half        ╲ half
//!   submit ─► account ╳                       ╰─► idle siblings take both ◄─╯
//!                      ╲
//!   submit_serial ─► lane ─► public queue ─► ordinary workers (grown on demand, retired when idle),
//!                                            and fixed workers that have nothing private
//! ```
//!
//! * A pool has two **accounts** with separate workers, queues and limits: [`Account::Bound`] for calls that
//!   finish by themselves, [`Account::Unbound`] for those that may wait for ever. One cannot hold up the other.
//! * A producer inserts into the **private queue** of one fixed worker, and wakes only that one, and only if
//!   it sleeps. Producers and workers so share many short locks instead of one long queue.
//! * What does not fit goes to the **public queue**, which any worker serves. If that is full too, the job
//!   waits for room ([`Pool::submit`]) or comes back ([`Pool::try_submit`]).
//! * Jobs with a **key** ([`Pool::submit_serial`]) run one at a time, in the order they were submitted; jobs
//!   with other keys are not held up.
//! * Each job ends exactly once: it is run, or it is cancelled before it starts ([`Job::abort`]).
//!
//! # Which call when
//!
//! | you have | use |
//! |---|---|
//! | a call that blocks, in async code | [`Pool::submit`], and await the [`Job`] |
//! | more work than memory for it | [`Pool::try_submit`], and shed what comes back |
//! | order among calls for one thing | [`Pool::submit_serial`] |
//! | library code on a shard | [`current::submit`] |
//!
//! A pool starts no thread before it has work.
//!
//! # Example
//!
//! ```
//! use roundel_blocking_pool::{Account, Config, Pool};
//!
//! let pool = Pool::new(Config::new())?;
//! let job = pool.submit(Account::Unbound, None, || 6 * 7);
//! # use std::future::Future;
//! # fn block_on<F: Future>(future: F) -> F::Output {
//! #     struct Unpark(std::thread::Thread);
//! #     impl std::task::Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
//! #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
//! #     let mut cx = std::task::Context::from_waker(&waker);
//! #     let mut future = std::pin::pin!(future);
//! #     loop {
//! #         if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut cx) { return out }
//! #         std::thread::park();
//! #     }
//! # }
//! assert_eq!(block_on(job)?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod account;
mod atomics;
mod config;
mod counters;
pub mod current;
mod error;
mod fixed;
mod handle;
mod job;
mod lane;
#[cfg(all(test, loom))]
mod loom_model;
mod ordinary;
mod public;
mod roster;
mod shutdown;
mod thread;
mod watch;
mod worker;

pub use config::{Account, AccountConfig, Config, InvalidSetting, Registered, Registration};
pub use counters::{AccountCounters, Counters, RunningJob, WorkerCounters};
pub use error::{Full, JobError};
pub use handle::{AbortHandle, Job, JobId};
pub use shutdown::{Abandoned, PoolReport};

use account::{Crew, Patience, Placed};
use error::Why;
use job::{Cell, Task};
use shutdown::Queued;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use thread::ThreadSettings;

/// A pool of worker threads; a value whose clones are the same pool.
///
/// Dropping the last clone shuts the pool down without blocking: queued jobs are cancelled, running ones
/// finish on their threads. [`Pool::shutdown`] and [`Pool::drain`] do so with a deadline and a report.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// What the clones of a pool share; workers do not hold it.
pub(crate) struct Owner {
    crews: [Arc<Crew>; 2],
}

/// Where finished jobs hand the wakers of those who await them.
///
/// A shard implements it by pushing the waker into its own queue, so that many jobs that finish together
/// cost one notification. Without one, the worker calls [`Waker::wake`](std::task::Waker::wake) itself.
pub trait Deliver: Send + Sync {
    /// Sees to it that the waker is woken. Called on a worker, or by whoever aborted the job; must not block.
    fn deliver(&self, waker: std::task::Waker);
}

impl Pool {
    /// A pool with these settings. It has no threads yet.
    ///
    /// # Errors
    ///
    /// If a setting cannot be.
    pub fn new(config: Config) -> Result<Pool, InvalidSetting> {
        if config.name.contains('\0') {
            // The system takes a thread's name as a C string.
            return Err(InvalidSetting("the name has a zero byte".into()));
        }
        config.bound.check()?;
        config.unbound.check()?;
        let settings = Arc::new(ThreadSettings::new(&config));
        Ok(Pool::from_owner(Arc::new_cyclic(|owner| Owner {
            crews: [
                Crew::new(
                    Account::Bound,
                    &config.bound,
                    settings.clone(),
                    owner.clone(),
                ),
                Crew::new(Account::Unbound, &config.unbound, settings, owner.clone()),
            ],
        })))
    }

    pub(crate) fn from_owner(owner: Arc<Owner>) -> Pool {
        Pool { owner }
    }

    /// Submits a closure that may block; awaiting the [`Job`] gives what it returns.
    ///
    /// If the account is full, the job waits for room, in order of arrival; awaiting it so holds back the submitter.
    /// The bound is on what the queues hold: whoever drops the handles of jobs that wait, instead of awaiting them,
    /// lets the waiting list grow ([`try_submit`](Pool::try_submit) is the call that sheds load).
    ///
    /// On a worker of the same account nothing waits for room: the closure runs there and then, inside the job that
    /// submits it. (Sixteen levels deep; from there on it waits.) A job may wait for another job, but each that
    /// does holds a worker: when all the workers that the account may have wait like that, nothing moves.
    ///
    /// `deliver` gets the waker of whoever awaits the job when it is done; `None` wakes directly.
    ///
    /// After shutdown, or if not a single worker thread can be started, the job is cancelled at once.
    ///
    /// # Panics
    ///
    /// A panic of the closure is given to whoever awaits the job ([`JobError::is_panic`]); the worker survives.
    pub fn submit<F, T>(&self, account: Account, deliver: Option<Arc<dyn Deliver>>, f: F) -> Job<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.accept(account, None, deliver, f)
    }

    /// As [`submit`](Pool::submit), but a full account gives the closure back at once.
    ///
    /// # Errors
    ///
    /// [`Full`] with the closure, if there is no room, the pool has been shut down, or no worker thread can be
    /// started.
    pub fn try_submit<F, T>(
        &self,
        account: Account,
        deliver: Option<Arc<dyn Deliver>>,
        f: F,
    ) -> Result<Job<T>, Full<F>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let crew = self.crew(account);
        let ticket = crew.ticket();
        let cell = Arc::new(Cell::new(
            JobId(ticket as u64 * 2 + account as u64),
            None,
            deliver,
            f,
        ));
        let task: Task = cell.clone();
        let why = match crew.place(&task, ticket, Patience::Refuse) {
            Placed::Accepted => return Ok(Job::new(cell, crew.clone())),
            Placed::Full => Why::Full,
            Placed::ShutDown => Why::ShutDown,
            Placed::NoWorker(error) => Why::NoWorker(error.kind()),
        };
        crew.rejected.fetch_add(1, Relaxed);
        Err(Full::new(cell.reclaim(), why))
    }

    /// Submits a closure to the serial lane of a key: jobs with equal keys run one at a time, in the order in
    /// which they were submitted, wherever in the pool; jobs with other keys or none are not held up.
    ///
    /// A job that panics or is aborted does not stop its lane. If the account is full, the job keeps its turn in
    /// the lane and waits for room; also on a worker, since running it at once would break the order. So a job
    /// must not wait for a job of its own lane.
    pub fn submit_serial<K, F, T>(
        &self,
        account: Account,
        key: K,
        deliver: Option<Arc<dyn Deliver>>,
        f: F,
    ) -> Job<T>
    where
        K: Hash,
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let lane = self.crew(account).lanes.lane_of(&key);
        self.accept(account, Some(lane), deliver, f)
    }

    fn accept<F, T>(
        &self,
        account: Account,
        lane: Option<u64>,
        deliver: Option<Arc<dyn Deliver>>,
        f: F,
    ) -> Job<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let crew = self.crew(account);
        let ticket = crew.ticket();
        let cell = Arc::new(Cell::new(
            JobId(ticket as u64 * 2 + account as u64),
            lane,
            deliver,
            f,
        ));
        let task: Task = cell.clone();
        match crew.place(&task, ticket, Patience::Wait) {
            Placed::Accepted => {}
            Placed::NoWorker(error) => crew.refuse(&task, JobError::no_worker(&error)),
            Placed::Full | Placed::ShutDown => crew.refuse(&task, JobError::cancelled()),
        }
        Job::new(cell, crew.clone())
    }

    /// Changes the fixed workers of an account while the pool runs, and gives the previous values.
    ///
    /// A worker that is one too many leaves after the job it runs; what it had accepted moves to the public
    /// queue. Additional ones start when they are needed. A new `max_works` counts from the next insertion on.
    ///
    /// # Errors
    ///
    /// If a value cannot be; then nothing was changed.
    pub fn register(
        &self,
        account: Account,
        registration: Registration,
    ) -> Result<Registered, InvalidSetting> {
        self.crew(account).register(registration)
    }

    /// What the pool has done and does.
    pub fn counters(&self) -> Counters {
        Counters {
            bound: AccountCounters::read(self.crew(Account::Bound)),
            unbound: AccountCounters::read(self.crew(Account::Unbound)),
        }
    }

    /// Ends the pool, for all its clones: queued jobs are cancelled, running ones may finish until the deadline.
    ///
    /// Blocks the calling thread until all workers have ended or the deadline has passed. Jobs that have not
    /// returned by then are abandoned and named in the report. Calling it again waits again.
    pub fn shutdown(&self, deadline: Instant) -> PoolReport {
        shutdown::end(&self.owner.crews, Queued::Drop, deadline)
    }

    /// Ends the pool as [`shutdown`](Pool::shutdown) does, but runs what is queued, until the deadline; only
    /// what has not started by then is cancelled.
    pub fn drain(&self, deadline: Instant) -> PoolReport {
        shutdown::end(&self.owner.crews, Queued::Run, deadline)
    }

    fn crew(&self, account: Account) -> &Arc<Crew> {
        match account {
            Account::Bound => &self.owner.crews[0],
            Account::Unbound => &self.owner.crews[1],
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        shutdown::close(&self.crews);
    }
}
