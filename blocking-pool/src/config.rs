//! Settings of a pool, each with its default and the reason for it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Whose work a job is: the two accounts have separate workers, queues, limits and locks, so that work
/// of one never holds up work of the other (M10).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Account {
    /// Work that finishes by itself: reads, writes and metadata of regular files, pure computation.
    Bound,
    /// Work that may take arbitrarily long: name look-ups, waiting for a child process, closures of
    /// unknown length.
    Unbound,
}

/// Settings of one account.
#[derive(Clone, Debug)]
pub struct AccountConfig {
    pub(crate) workers: usize,
    pub(crate) workers_max: usize,
    pub(crate) max_works: usize,
    pub(crate) ordinary_limit: usize,
    pub(crate) idle_timeout: Duration,
    pub(crate) public_bound: usize,
}

impl AccountConfig {
    /// The defaults of an account.
    pub fn new(account: Account) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        AccountConfig {
            workers: cpus,
            workers_max: (2 * cpus).max(32),
            max_works: 256,
            ordinary_limit: match account {
                Account::Bound => 2 * cpus,
                Account::Unbound => 512,
            },
            idle_timeout: Duration::from_secs(10),
            public_bound: 16_384,
        }
    }

    /// Fixed workers, which have a private queue each and never time out. They start when they are first
    /// needed. Default: one for each CPU, since more could not run at once.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self.workers_max = self.workers_max.max(count);
        self
    }

    /// The most fixed workers that [`Pool::register`](crate::Pool::register) may ask for. Default: twice
    /// the CPUs, at least 32; each costs a few hundred bytes while it does not run.
    pub fn workers_max(mut self, count: usize) -> Self {
        self.workers_max = count;
        self
    }

    /// Jobs that one private queue holds, with the batch its worker has drained and not started.
    /// Default: 256, enough that a burst stays private, few enough that a queue is soon moved elsewhere.
    pub fn max_works(mut self, jobs: usize) -> Self {
        self.max_works = jobs;
        self
    }

    /// The most ordinary workers, which serve the public queue only. They are started when the public queue
    /// waits, and retire after the idle timeout. At least 1. Default: twice the CPUs for bound work, which
    /// gains nothing from more; 512 for unbound work, where a worker may be held for long.
    pub fn ordinary_limit(mut self, count: usize) -> Self {
        self.ordinary_limit = count;
        self
    }

    /// How long an ordinary worker waits for work before it retires. Default: 10 s, so that traffic in
    /// bursts does not start threads again and again.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Jobs that the public queue and the serial lanes hold together. Default: 16,384: a few MiB.
    pub fn public_bound(mut self, jobs: usize) -> Self {
        self.public_bound = jobs;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        check_workers(self.workers, self.workers_max)?;
        check_max_works(self.max_works)?;
        if self.ordinary_limit == 0 {
            return Err(InvalidSetting(
                "ordinary_limit is 0: the public queue needs at least one worker".into(),
            ));
        }
        if self.public_bound == 0 {
            return Err(InvalidSetting(
                "public_bound is 0: the public queue must hold a job".into(),
            ));
        }
        Ok(())
    }
}

/// Beyond this no machine has threads to serve, and the home of a job must fit its state word.
const SEATS_MAX: usize = 4096;
const WORKS_MAX: usize = 1 << 24;

pub(crate) fn check_workers(workers: usize, workers_max: usize) -> Result<(), InvalidSetting> {
    if workers_max > SEATS_MAX {
        return Err(InvalidSetting(format!(
            "workers_max is {workers_max}: at most {SEATS_MAX} are possible"
        )));
    }
    if workers > workers_max {
        return Err(InvalidSetting(format!(
            "{workers} fixed workers: the pool was built for at most {workers_max}"
        )));
    }
    Ok(())
}

pub(crate) fn check_max_works(max_works: usize) -> Result<(), InvalidSetting> {
    if max_works == 0 || max_works > WORKS_MAX {
        return Err(InvalidSetting(format!(
            "max_works is {max_works}: it must be within 1..={WORKS_MAX}"
        )));
    }
    Ok(())
}

/// What a worker thread runs first.
pub(crate) type StartHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Settings of a [`Pool`](crate::Pool).
///
/// ```
/// use roundel_blocking_pool::{Account, AccountConfig, Config, Pool};
///
/// let pool = Pool::new(
///     Config::new()
///         .name("files")
///         .nice(5)
///         .bound(AccountConfig::new(Account::Bound).workers(4).max_works(64)),
/// )?;
/// # drop(pool);
/// # Ok::<(), roundel_blocking_pool::InvalidSetting>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) bound: AccountConfig,
    pub(crate) unbound: AccountConfig,
    pub(crate) name: String,
    pub(crate) nice: Option<i32>,
    pub(crate) cpus: Option<Vec<usize>>,
    pub(crate) on_start: Option<StartHook>,
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Config {
            bound: AccountConfig::new(Account::Bound),
            unbound: AccountConfig::new(Account::Unbound),
            name: "roundel".into(),
            nice: None,
            cpus: None,
            on_start: None,
        }
    }

    /// Settings of the bound account.
    pub fn bound(mut self, account: AccountConfig) -> Self {
        self.bound = account;
        self
    }

    /// Settings of the unbound account.
    pub fn unbound(mut self, account: AccountConfig) -> Self {
        self.unbound = account;
        self
    }

    /// The first part of the threads' names. A fixed worker of the bound account is called `roundel-b0`, one
    /// of the unbound account `roundel-u0`; ordinary ones `roundel-bo0` and `roundel-uo0`. Default: `roundel`.
    pub fn name(mut self, prefix: impl Into<String>) -> Self {
        self.name = prefix.into();
        self
    }

    /// The nice value of the workers, -20 to 19. Default: as the thread that starts them. If the kernel
    /// refuses it, the worker runs with the value it has.
    pub fn nice(mut self, value: i32) -> Self {
        self.nice = Some(value);
        self
    }

    /// The CPUs that workers may run on. Default: those that the thread which builds the pool may run on,
    /// whichever thread starts a worker later; so a shard that is pinned does not pin its workers. If the
    /// kernel refuses the set, the worker runs where it may.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cpus = Some(cpus.into_iter().collect());
        self
    }

    /// What every worker calls first, on its own thread, with its name: the place for set-up of its own,
    /// such as one CPU for each worker. A panic in it is contained. Default: nothing.
    pub fn on_worker_start(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(hook));
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::new()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .field("bound", &self.bound)
            .field("unbound", &self.unbound)
            .field("nice", &self.nice)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}

/// A change of an account's fixed workers while the pool runs; `None` leaves a value as it is (M12).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Registration {
    /// Fixed workers; 0 is allowed and leaves all work to ordinary workers.
    pub nr_workers: Option<usize>,
    /// Jobs that each private queue holds.
    pub max_works: Option<usize>,
}

/// What a registration found and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// Fixed workers before.
    pub nr_workers: usize,
    /// The bound of a private queue before.
    pub max_works: usize,
    /// The count that took effect, if the process's limit on threads (RLIMIT_NPROC) is lower than what was
    /// asked for.
    pub clamped: Option<usize>,
}

/// A setting that cannot be; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidSetting(pub(crate) String);

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for InvalidSetting {}
