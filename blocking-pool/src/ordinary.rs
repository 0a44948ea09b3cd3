//! The ordinary workers of an account: how many there are, which are idle, when they grow and retire (M8).
//!
//! They serve the public queue only. One is started when the public queue has work, nobody looks for work,
//! nobody is idle, and the limit allows; it looks for work at once, and if it finds some and more is left,
//! it calls the next (`Crew::stop_searching`). So a burst of jobs that block grows the account as fast as
//! threads start, and a burst of short ones hardly at all. The last to go idle is the first to be called,
//! so that the others reach their idle timeout.
//!
//! Retirement against insertion into the public queue:
//! 1. The idle worker's wait times out. Under the lock it checks that nobody claimed it, that it is not the
//!    last whom the public queue may need, then takes itself off the list and lowers `alive`.
//! 2. It fences and looks at the public queue once more; if there is work, it joins again (or, at the limit,
//!    leaves it to those who took its place).
//! 3. A producer pushes, fences, then looks for an idle worker or a free number. Before 1 it finds the worker
//!    idle; after 1 it starts another; in between, 2 sees its job.

use crate::atomics::{AtomicBool, AtomicUsize, Mutex, Parking, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

pub(crate) struct Ordinaries {
    limit: usize,
    idle_timeout: Duration,
    idle: Mutex<Vec<Arc<Sleeper>>>,
    /// Mirrors of what stands under the lock, for those who only want to know whether to take it.
    idle_count: AtomicUsize,
    alive: AtomicUsize,
    /// Gives each worker the number in its name.
    started: AtomicUsize,
}

/// One ordinary worker, as those see it who may wake it.
pub(crate) struct Sleeper {
    called: AtomicBool,
    parking: Parking,
}

/// How a wait for work ended.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Someone called; the caller has counted the worker as searching.
    Called,
    /// The idle timeout passed, and the worker must end.
    Retired,
}

impl Sleeper {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Sleeper {
            called: AtomicBool::new(false),
            parking: Parking::of_this_thread(),
        })
    }

    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Acquire)
    }

    /// Only for the worker itself.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        self.parking.park(limit);
    }

    fn call(&self) {
        self.called.store(true, Release);
        self.parking.unpark();
    }
}

impl Ordinaries {
    pub(crate) fn new(limit: usize, idle_timeout: Duration) -> Self {
        Ordinaries {
            limit,
            idle_timeout,
            idle: Mutex::new(Vec::new()),
            idle_count: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
        }
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Acquire)
    }

    pub(crate) fn any_idle(&self) -> bool {
        self.idle_count.load(Acquire) > 0
    }

    /// Counts one more worker, if the limit allows.
    pub(crate) fn join(&self) -> bool {
        self.alive
            .fetch_update(AcqRel, Acquire, |alive| {
                (alive < self.limit).then_some(alive + 1)
            })
            .is_ok()
    }

    /// One worker is gone, or could not be started.
    pub(crate) fn leave(&self) {
        self.alive.fetch_sub(1, AcqRel);
    }

    /// The number in the name of the next worker.
    pub(crate) fn number(&self) -> usize {
        self.started.fetch_add(1, Relaxed)
    }

    /// Calls the worker that went idle last. False: none is idle.
    pub(crate) fn call_idle(&self) -> bool {
        if !self.any_idle() {
            return false;
        }
        let mut idle = lock(&self.idle);
        let sleeper = idle.pop();
        self.idle_count.store(idle.len(), Release);
        drop(idle);
        if let Some(sleeper) = &sleeper {
            sleeper.call();
        }
        sleeper.is_some()
    }

    /// The worker stands on the idle list from here on; it must look at the queues once more before it
    /// waits.
    pub(crate) fn lie_down(&self, sleeper: &Arc<Sleeper>) {
        sleeper.called.store(false, Relaxed);
        let mut idle = lock(&self.idle);
        idle.push(sleeper.clone());
        self.idle_count.store(idle.len(), Release);
    }

    /// Takes the worker off the idle list. False: someone has called it.
    pub(crate) fn get_up(&self, sleeper: &Arc<Sleeper>) -> bool {
        let mut idle = lock(&self.idle);
        let place = idle.iter().position(|other| Arc::ptr_eq(other, sleeper));
        if let Some(place) = place {
            idle.remove(place);
        }
        self.idle_count.store(idle.len(), Release);
        place.is_some()
    }

    /// Waits for a call. `needed_if_last` says whether the public queue has nobody else.
    pub(crate) fn rest(&self, sleeper: &Arc<Sleeper>, needed_if_last: impl Fn() -> bool) -> Rest {
        let idle_since = Instant::now();
        let mut limit = Some(self.idle_timeout);
        // Ends with a call, or when the timeout finds that the worker may go.
        while !sleeper.is_called() {
            match limit.map(|limit| limit.saturating_sub(idle_since.elapsed())) {
                // It may not go: it waits without waking again and again.
                None => sleeper.park(None),
                Some(Duration::ZERO) if self.try_retire(sleeper, needed_if_last()) => {
                    return Rest::Retired;
                }
                Some(Duration::ZERO) => limit = None,
                Some(left) => sleeper.park(Some(left)),
            }
        }
        Rest::Called
    }

    /// Step 1 of the retirement.
    fn try_retire(&self, sleeper: &Arc<Sleeper>, needed_if_last: bool) -> bool {
        let mut idle = lock(&self.idle);
        if needed_if_last && self.alive() == 1 {
            return false;
        }
        let Some(place) = idle.iter().position(|other| Arc::ptr_eq(other, sleeper)) else {
            return false;
        };
        idle.remove(place);
        self.idle_count.store(idle.len(), Release);
        self.leave();
        true
    }
}
