//! The living worker threads of an account: what each runs, what each has counted, and waiting for their end.

use crate::atomics::{AtomicU64, Condvar, Mutex, lock};
use crate::handle::JobId;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub(crate) struct Roster {
    living: Mutex<Living>,
    someone_left: Condvar,
}

#[derive(Default)]
struct Living {
    workers: Vec<Arc<Stats>>,
    /// The counts of the workers that are gone.
    gone: Totals,
}

/// What workers count.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) run: u64,
    pub(crate) stolen: u64,
    pub(crate) panicked: u64,
    pub(crate) inline: u64,
}

/// One worker's counts. Only the worker writes them, so a plain load and store suffice; anyone reads.
pub(crate) struct Stats {
    pub(crate) name: String,
    /// The seat of a fixed worker.
    pub(crate) seat: Option<usize>,
    run: AtomicU64,
    stolen: AtomicU64,
    panicked: AtomicU64,
    inline: AtomicU64,
    current: Mutex<Option<Current>>,
}

/// The job that a worker runs.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) id: JobId,
    pub(crate) name: &'static str,
    pub(crate) since: Instant,
}

impl Stats {
    pub(crate) fn new(name: String, seat: Option<usize>) -> Arc<Self> {
        Arc::new(Stats {
            name,
            seat,
            run: AtomicU64::new(0),
            stolen: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            inline: AtomicU64::new(0),
            current: Mutex::new(None),
        })
    }

    /// Notes what runs from now on, and gives what ran before: a job that runs inside another one.
    pub(crate) fn set_current(&self, current: Option<Current>) -> Option<Current> {
        std::mem::replace(&mut *lock(&self.current), current)
    }

    pub(crate) fn current(&self) -> Option<Current> {
        *lock(&self.current)
    }

    pub(crate) fn count_run(&self, panicked: bool) {
        self.run.store(self.run.load(Relaxed) + 1, Relaxed);
        if panicked {
            self.panicked
                .store(self.panicked.load(Relaxed) + 1, Relaxed);
        }
    }

    pub(crate) fn count_stolen(&self) {
        self.stolen.store(self.stolen.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn count_inline(&self) {
        self.inline.store(self.inline.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            run: self.run.load(Relaxed),
            stolen: self.stolen.load(Relaxed),
            panicked: self.panicked.load(Relaxed),
            inline: self.inline.load(Relaxed),
        }
    }
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.run += other.run;
        self.stolen += other.stolen;
        self.panicked += other.panicked;
        self.inline += other.inline;
    }
}

impl Roster {
    pub(crate) fn new() -> Self {
        Roster {
            living: Mutex::new(Living::default()),
            someone_left: Condvar::new(),
        }
    }

    pub(crate) fn add(&self, stats: Arc<Stats>) {
        lock(&self.living).workers.push(stats);
    }

    /// The last thing a worker does.
    pub(crate) fn remove(&self, stats: &Arc<Stats>) {
        let mut living = lock(&self.living);
        living.workers.retain(|other| !Arc::ptr_eq(other, stats));
        living.gone.add(stats.totals());
        drop(living);
        self.someone_left.notify_all();
    }

    pub(crate) fn workers(&self) -> Vec<Arc<Stats>> {
        lock(&self.living).workers.clone()
    }

    /// The counts of all workers that ever lived.
    pub(crate) fn totals(&self) -> Totals {
        let living = lock(&self.living);
        let mut totals = living.gone;
        for worker in &living.workers {
            totals.add(worker.totals());
        }
        totals
    }

    /// Waits until no worker lives but `except`, at most until the deadline; gives those that still do.
    pub(crate) fn wait_empty(
        &self,
        deadline: Instant,
        except: Option<&Arc<Stats>>,
    ) -> Vec<Arc<Stats>> {
        let mut living = lock(&self.living);
        // Ends at the deadline at the latest.
        loop {
            let others = living
                .workers
                .iter()
                .filter(|worker| !except.is_some_and(|except| Arc::ptr_eq(worker, except)));
            if others.clone().next().is_none() {
                return Vec::new();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return others.cloned().collect();
            }
            living = self
                .someone_left
                .wait_timeout(living, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
