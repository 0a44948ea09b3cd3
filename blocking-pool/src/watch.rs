//! The watch over private queues: jobs do not wait behind one that blocks (an addition to M8).
//!
//! A private queue is fast because nobody else looks at it, and for the same reason a job in it could wait
//! for ever behind one that never returns, while the account may still start ordinary workers. So when jobs
//! wait in private queues and no worker is free (`Crew::call` finds nobody), somebody must watch. An ordinary
//! worker that is idle does: it looks at the seats once a tick, and where jobs wait but none has started since the last
//! tick, it marks the seat `Stuck` (producers pass it by until its worker is back) and moves its jobs to the
//! public queue, where ordinary workers grow on demand. With no such jobs for a while the watch ends.
//!
//! Arming against ending:
//! 1. Whoever calls for a private job has fenced after its insertion, and reads `on`. If it is off, it sets it by swap and summons an ordinary worker.
//! 2. The watcher ends by setting `on` to false, fences, and looks at the seats once more; if jobs wait, it
//!    sets `on` again by swap, and goes on if it was first. One of 1 and 2 sees the other.
//! 3. A watcher that is called to public work gives the watch back and, while it is on, summons another.

use crate::account::Crew;
use crate::atomics::{AtomicBool, fence};
use crate::fixed::{Phase, Seat};
use crate::ordinary::Sleeper;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// How long a job may stand behind one that blocks before it is moved. Far above what a short job takes, and
/// 1,000 looks a second cost a busy account under one per cent of a CPU.
const TICK: Duration = Duration::from_millis(1);

/// Ticks without a waiting job after which the watch ends: an account in steady use is not armed again and again.
const QUIET_TICKS: u32 = 16;

pub(crate) struct Watch {
    on: AtomicBool,
    /// One of the ordinary workers watches.
    taken: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Watch {
            on: AtomicBool::new(false),
            taken: AtomicBool::new(false),
        }
    }

    /// Step 1. True: the caller must summon a watcher.
    #[must_use]
    pub(crate) fn arm(&self) -> bool {
        !self.on.load(Relaxed) && !self.on.swap(true, AcqRel)
    }

    /// For an ordinary worker that goes idle. True: it is the watcher.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        self.on.load(Acquire) && !self.taken.swap(true, AcqRel)
    }
}

/// Watches until the worker is called or nothing has waited for a while.
pub(crate) fn keep(crew: &Arc<Crew>, sleeper: &Sleeper) {
    let mut started_before = HashMap::new();
    let mut quiet = 0;
    while !sleeper.is_called() {
        sleeper.park(Some(TICK));
        let waiting = look(crew, &mut started_before);
        quiet = if waiting { 0 } else { quiet + 1 };
        if quiet < QUIET_TICKS {
            continue;
        }
        crew.watch.on.store(false, Release);
        fence(SeqCst);
        if !crew.seats().iter().any(waits_behind_busy) || crew.watch.on.swap(true, AcqRel) {
            break;
        }
        quiet = 0;
    }
    crew.watch.taken.store(false, Release);
    fence(SeqCst);
    if crew.watch.on.load(Relaxed) {
        crew.summon_ordinary();
    }
}

/// One tick. Returns whether jobs wait anywhere.
fn look(crew: &Arc<Crew>, started_before: &mut HashMap<usize, u64>) -> bool {
    let mut waiting = false;
    for seat in crew.seats().iter().filter(|seat| waits_behind_busy(seat)) {
        waiting = true;
        let started = seat.started();
        let no_progress = started_before.insert(seat.index(), started) == Some(started);
        if no_progress && (seat.phase() == Phase::Stuck || seat.mark_stuck()) {
            // Ends: what is inserted meanwhile was already on its way when the seat was marked.
            while let Some(task) = seat.steal_one() {
                crew.hand_over(task);
            }
        }
    }
    waiting
}

fn waits_behind_busy(seat: &Seat) -> bool {
    matches!(seat.phase(), Phase::Busy | Phase::Stuck) && seat.has_stealable()
}
