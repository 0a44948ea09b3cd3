//! The seat of a fixed worker: its private bounded queue, its batch, and how it sleeps, wakes and leaves
//! (M8, M9, M12).
//!
//! A seat outlives the threads that sit in it: an account has a fixed row of seats, and registration only
//! says how many of them may be taken. Producers insert under the seat's own lock, one of many, so they
//! seldom meet. The worker drains at most half of its queue in one lock hold and runs that batch without
//! the lock; the other half stays where siblings can take it, and so does the batch itself
//! ([`Batch`]), so short jobs never wait behind a long one while a sibling is idle.
//!
//! ```text
//!              start 1              found work 2            watch 7
//!   Vacant ─────────────► Searching ───────────► Busy ◄─────────────► Stuck
//!     ▲                   ▲  │    ▲               │       next job 8
//!     │           claim 5 │  │ 4  └───────────────┘
//!     │                   │  ▼        ran dry 3
//!     │                  Asleep
//!     └── leave 6, from Searching
//!
//!   1 `occupy`   2, 3, 4 `set_phase`, by `worker.rs`   5 `claim_sleeper`   6 `stand_up`
//!   7 `mark_stuck`   8 `count_started`
//! ```
//!
//! Insertion against going to sleep:
//! 1. The producer pushes under the seat's lock and counts the job in `queued`.
//! 2. It fences, then reads `phase`; if that is `Asleep`, it claims the worker by compare-and-swap and unparks it.
//! 3. The worker sets `phase` to `Asleep` by swap, fences, then looks at every queue once more
//!    (`Crew::anything_to_do`); if there is something it claims itself. One of 2 and 3 sees the other.
//! 4. Of two that claim, one wins: one job wakes one worker once.
//!
//! Insertion against exit:
//! 1. The leaving worker closes the queue and takes all of it in one lock hold (`close`).
//! 2. A producer that holds the lock before it has its job taken along; one that comes after it is refused and
//!    goes to another queue. Nothing can be inserted unseen.
//! 3. What was taken, the drained batch with it, moves to the public queue (`Crew::hand_over`).
//! 4. Only then the seat is `Vacant`, and another thread may sit down.
//!
//! Steal against drain:
//! 1. The drain moves jobs from queue to batch while it holds the queue's lock, so at no moment is a job in
//!    neither; only the one job that the worker is about to run is in nobody's reach.
//! 2. A thief takes the oldest half of the batch, or, if that is empty, half of the queue under its lock.
//! 3. A stolen job keeps its home: it counts against this seat until it starts.

use crate::atomics::{AtomicU64, AtomicUsize, Batch, BatchStealer, Mutex, Parking, lock};
use crate::job::{Home, Task, take_shells};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// What the worker in a seat does at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Vacant = 0,
    Asleep = 1,
    Searching = 2,
    Busy = 3,
    /// Busy with one job for so long that what waited behind it was moved elsewhere.
    Stuck = 4,
}

impl Phase {
    fn of(word: usize) -> Phase {
        match word {
            0 => Phase::Vacant,
            1 => Phase::Asleep,
            2 => Phase::Searching,
            3 => Phase::Busy,
            4 => Phase::Stuck,
            _ => unreachable!("only `Seat` writes the phase"),
        }
    }
}

/// Jobs that one drain takes at most, so that a long queue stays mostly stealable without a lock on the batch.
const DRAIN_MAX: usize = 32;

// Seats stand in a row and are written by different threads: two cache lines each, since the hardware
// fetches lines in pairs.
#[repr(align(128))]
pub(crate) struct Seat {
    index: usize,
    /// Written by the worker and by those who start or claim it; read by producers.
    phase: AtomicUsize,
    /// Live jobs that count against `max_works`: raised under the queue's lock, lowered by whoever starts
    /// or aborts one.
    queued: AtomicUsize,
    queue: Mutex<Private>,
    stealer: BatchStealer<Task>,
    /// The owner's end of the batch, while nobody sits here.
    spare: Mutex<Option<Batch<Task>>>,
    parking: Mutex<Option<Parking>>,
    /// Jobs ever inserted; written under the queue's lock.
    accepted: AtomicU64,
    /// Jobs that the worker began; only it writes.
    started: AtomicU64,
}

struct Private {
    open: bool,
    jobs: VecDeque<Task>,
}

impl Seat {
    pub(crate) fn new(index: usize) -> Self {
        let (batch, stealer) = Batch::new();
        Seat {
            index,
            phase: AtomicUsize::new(Phase::Vacant as usize),
            queued: AtomicUsize::new(0),
            queue: Mutex::new(Private {
                open: false,
                jobs: VecDeque::new(),
            }),
            stealer,
            spare: Mutex::new(Some(batch)),
            parking: Mutex::new(None),
            accepted: AtomicU64::new(0),
            started: AtomicU64::new(0),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Acquire))
    }

    /// The worker's own change of phase.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.swap(phase as usize, AcqRel);
    }

    /// Takes a vacant seat for a thread that is about to start, and opens its queue.
    pub(crate) fn occupy(&self) -> bool {
        let taken = self.exchange(Phase::Vacant, Phase::Searching);
        if taken {
            lock(&self.queue).open = true;
        }
        taken
    }

    /// Claims a sleeping worker: the caller must `unpark` it.
    #[must_use]
    pub(crate) fn claim_sleeper(&self) -> bool {
        self.phase() == Phase::Asleep && self.exchange(Phase::Asleep, Phase::Searching)
    }

    fn exchange(&self, from: Phase, to: Phase) -> bool {
        self.phase
            .compare_exchange(from as usize, to as usize, AcqRel, Acquire)
            .is_ok()
    }

    /// The watcher's mark: this worker does not come back from its job.
    pub(crate) fn mark_stuck(&self) -> bool {
        self.exchange(Phase::Busy, Phase::Stuck)
    }

    /// The worker begins a job; if it was held to be stuck, it is not any more.
    pub(crate) fn count_started(&self) {
        self.started.store(self.started.load(Relaxed) + 1, Relaxed);
        if self.phase() == Phase::Stuck {
            self.set_phase(Phase::Busy);
        }
    }

    pub(crate) fn started(&self) -> u64 {
        self.started.load(Relaxed)
    }

    pub(crate) fn unpark(&self) {
        if let Some(parking) = self.parking() {
            parking.unpark();
        }
    }

    /// Parks until someone has claimed this seat's worker.
    pub(crate) fn sleep(&self) {
        let parking = self.parking().expect("the worker that calls sits here");
        // A job may leave a stray unpark behind; the phase says whether this one was meant.
        while self.phase() == Phase::Asleep {
            parking.park(None);
        }
    }

    /// A clone, so that the system calls happen with the lock free.
    fn parking(&self) -> Option<Parking> {
        lock(&self.parking).clone()
    }

    /// The calling thread is the worker from here on: it can be unparked, and owns the batch.
    pub(crate) fn sit_down(&self) -> Batch<Task> {
        *lock(&self.parking) = Some(Parking::of_this_thread());
        lock(&self.spare)
            .take()
            .expect("the last worker put the batch back before the seat was vacant")
    }

    /// The seat is free for another thread (step 4 of the exit).
    pub(crate) fn stand_up(&self, batch: Batch<Task>) {
        *lock(&self.spare) = Some(batch);
        *lock(&self.parking) = None;
        self.set_phase(Phase::Vacant);
    }

    /// Inserts a job that no one else knows yet. False: full or closed.
    pub(crate) fn insert(&self, task: &Task, max_works: usize) -> bool {
        if self.queued() >= max_works {
            return false;
        }
        let mut private = lock(&self.queue);
        if !private.open || self.queued() >= max_works {
            return false;
        }
        self.queued.fetch_add(1, AcqRel);
        task.header().set_home(Home::Seat(self.index));
        private.jobs.push_back(task.clone());
        self.accepted
            .store(self.accepted.load(Relaxed) + 1, Relaxed);
        true
    }

    /// Takes out the shells; the caller drops them.
    pub(crate) fn take_shells(&self) -> Vec<Task> {
        take_shells(&mut lock(&self.queue).jobs)
    }

    /// One job that was inserted here has started or was aborted.
    pub(crate) fn release(&self) {
        self.queued.fetch_sub(1, AcqRel);
    }

    /// Jobs inserted here that are still to run, wherever they are by now.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Acquire)
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// The worker's next private job: from its batch, else the first of a fresh drain.
    pub(crate) fn next(&self, batch: &Batch<Task>) -> Option<Task> {
        batch.pop().or_else(|| self.take_half(batch))
    }

    /// Moves half of the queue into `batch` and returns the first; for the owner and for thieves.
    fn take_half(&self, batch: &Batch<Task>) -> Option<Task> {
        if self.queued() == 0 {
            // Nothing but shells can be here.
            return None;
        }
        let mut private = lock(&self.queue);
        let half = private.jobs.len().div_ceil(2).min(DRAIN_MAX);
        let first = private.jobs.pop_front();
        for task in private.jobs.drain(..half.saturating_sub(1)) {
            batch.push(task);
        }
        first
    }

    /// Takes half of what waits here, for the worker that owns `thief`.
    pub(crate) fn steal(&self, thief: &Batch<Task>) -> Option<Task> {
        self.stealer
            .steal_half(thief)
            .or_else(|| self.take_half(thief))
    }

    /// Takes one job of what waits here, for those that have no batch.
    pub(crate) fn steal_one(&self) -> Option<Task> {
        self.stealer
            .steal()
            .or_else(|| lock(&self.queue).jobs.pop_front())
    }

    /// Whether a sibling would find something here.
    pub(crate) fn has_stealable(&self) -> bool {
        // The batch may hold jobs of other seats, which `queued` does not count.
        !self.stealer.is_empty() || (self.queued() > 0 && !lock(&self.queue).jobs.is_empty())
    }

    /// Steps 1 and 2 of the exit.
    pub(crate) fn close(&self) -> VecDeque<Task> {
        let mut private = lock(&self.queue);
        private.open = false;
        std::mem::take(&mut private.jobs)
    }
}
