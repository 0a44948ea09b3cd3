//! One account's crew: its queues, its workers, and the rules by which a job finds a worker (M8, M10).
//!
//! **Where a job goes** (`place`): to a fixed worker that looks for work at this moment; else to one that
//! sleeps or has not started, which is then woken; else behind the job of a busy one; always only where
//! there is room, round-robin among equals. If no private queue takes it, it goes to the public queue, and if
//! that is full the submitter waits, is refused, or (a worker of this crew) runs it itself. A job from a
//! worker, and every job of a serial lane, goes to the public queue at once: behind its own submitter it
//! might wait for ever.
//!
//! Who is woken for it stands in `account/calling.rs`; how workers come and go, and how the crew ends, in
//! `account/staff.rs`.

mod calling;
mod staff;

use crate::atomics::{AtomicU64, AtomicUsize, fence};
use crate::config::{Account, AccountConfig};
use crate::error::JobError;
use crate::fixed::{Phase, Seat};
use crate::job::{Home, Queued, Task};
use crate::lane::Lanes;
use crate::ordinary::Ordinaries;
use crate::public::Public;
use crate::roster::Roster;
use crate::thread::ThreadSettings;
use crate::watch::Watch;
use crate::{Owner, current, worker};
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Weak};

pub(crate) struct Crew {
    pub(crate) account: Account,
    seats: Box<[Seat]>,
    /// The most seats that were ever asked for: those behind need not be looked at.
    seats_used: AtomicUsize,
    pub(crate) public: Public,
    pub(crate) lanes: Lanes,
    pub(crate) ordinary: Ordinaries,
    pub(crate) watch: Watch,
    pub(crate) roster: Roster,
    pub(crate) settings: Arc<ThreadSettings>,
    pub(crate) owner: Weak<Owner>,
    nr_workers: AtomicUsize,
    max_works: AtomicUsize,
    /// Seats that are taken.
    fixed_alive: AtomicUsize,
    /// Workers that look for work, and those that were called to.
    searching: AtomicUsize,
    stage: AtomicUsize,
    ticket: AtomicUsize,
    /// Jobs aborted since the last sweep.
    shells: AtomicUsize,
    pub(crate) public_accepted: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) threads_refused: AtomicU64,
}

/// How far the shutdown has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Open = 0,
    /// No new jobs; queued ones still run.
    Draining = 1,
    /// Nothing starts any more.
    Closed = 2,
}

/// What a submitter wants if there is no room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Wait,
    Refuse,
}

/// What became of a submission.
pub(crate) enum Placed {
    Accepted,
    Full,
    ShutDown,
    NoWorker(io::Error),
}

impl Crew {
    pub(crate) fn new(
        account: Account,
        config: &AccountConfig,
        settings: Arc<ThreadSettings>,
        owner: Weak<Owner>,
    ) -> Arc<Self> {
        Arc::new(Crew {
            account,
            seats: (0..config.workers_max).map(Seat::new).collect(),
            seats_used: AtomicUsize::new(config.workers),
            public: Public::new(config.public_bound),
            lanes: Lanes::new(),
            ordinary: Ordinaries::new(config.ordinary_limit, config.idle_timeout),
            watch: Watch::new(),
            roster: Roster::new(),
            settings,
            owner,
            nr_workers: AtomicUsize::new(config.workers),
            max_works: AtomicUsize::new(config.max_works),
            fixed_alive: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            stage: AtomicUsize::new(Stage::Open as usize),
            ticket: AtomicUsize::new(0),
            shells: AtomicUsize::new(0),
            public_accepted: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            threads_refused: AtomicU64::new(0),
        })
    }

    /// A number for a job, and its turn among the fixed workers.
    pub(crate) fn ticket(&self) -> usize {
        self.ticket.fetch_add(1, Relaxed)
    }

    pub(crate) fn nr_workers(&self) -> usize {
        self.nr_workers.load(Acquire)
    }

    pub(crate) fn max_works(&self) -> usize {
        self.max_works.load(Acquire)
    }

    pub(crate) fn fixed_alive(&self) -> usize {
        self.fixed_alive.load(Acquire)
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Acquire) {
            0 => Stage::Open,
            1 => Stage::Draining,
            _ => Stage::Closed,
        }
    }

    /// Accepts a job that nobody else knows yet, or says why not.
    pub(crate) fn place(
        self: &Arc<Self>,
        task: &Task,
        ticket: usize,
        patience: Patience,
    ) -> Placed {
        if self.stage() != Stage::Open {
            return Placed::ShutDown;
        }
        if self.shells.load(Relaxed) > self.max_works() {
            self.sweep();
        }
        let placed = self.find_place(task, ticket, patience);
        if matches!(placed, Placed::Accepted) {
            fence(SeqCst);
            if self.stage() != Stage::Open {
                // Nobody may serve the queues any more. If a worker has the job already, it runs.
                self.cancel(&**task, JobError::cancelled());
            }
        }
        placed
    }

    fn find_place(self: &Arc<Self>, task: &Task, ticket: usize, patience: Patience) -> Placed {
        let lane = task.header().lane;
        let worker = current::worker_of(self);
        if lane.is_none() && worker.is_none() && self.insert_private(task, ticket) {
            return Placed::Accepted;
        }
        if let Err(error) = self.ensure_server() {
            return match self.stage() {
                Stage::Open => Placed::NoWorker(error),
                Stage::Draining | Stage::Closed => Placed::ShutDown,
            };
        }
        if let Some(lane) = lane {
            self.public_accepted.fetch_add(1, Relaxed);
            self.public.add_unplaced();
            if self.lanes.enter(lane, task) {
                self.send_out(task.clone());
            }
        } else if self.public.reserve() {
            self.public_accepted.fetch_add(1, Relaxed);
            task.header().set_home(Home::Public);
            self.push(task.clone());
        } else if patience == Patience::Refuse {
            return Placed::Full;
        } else if !worker.is_some_and(|worker| worker::run_inline(task, &worker)) {
            self.public_accepted.fetch_add(1, Relaxed);
            self.public.add_unplaced();
            self.push_all(self.public.wait(task.clone()));
        }
        Placed::Accepted
    }

    /// Tries the private queues, best worker first.
    fn insert_private(self: &Arc<Self>, task: &Task, ticket: usize) -> bool {
        let seats = &self.seats[..self.nr_workers()];
        if seats.is_empty() {
            return false;
        }
        let max_works = self.max_works();
        let turn = ticket % seats.len();
        let in_turn = || seats[turn..].iter().chain(&seats[..turn]);
        for wanted in [Phase::Searching, Phase::Asleep, Phase::Vacant, Phase::Busy] {
            for seat in in_turn().filter(|seat| seat.phase() == wanted) {
                if wanted == Phase::Vacant {
                    self.searching.fetch_add(1, AcqRel);
                    if !self.start_fixed(seat) {
                        self.retract_search();
                        continue;
                    }
                }
                if seat.insert(task, max_works) {
                    self.wake_for(seat);
                    return true;
                }
            }
        }
        false
    }

    /// Pushes a job to the public queue, or to the waiting list if it has no place and none is free.
    fn send_out(self: &Arc<Self>, task: Task) {
        if task.header().home() == Some(Home::Waiting) {
            if !self.public.reserve() {
                return self.push_all(self.public.wait(task));
            }
            if !self.public.settle(&task) {
                self.push_all(self.public.release());
            }
        }
        self.push(task);
    }

    fn push_all(self: &Arc<Self>, tasks: Vec<Task>) {
        tasks.into_iter().for_each(|task| self.push(task));
    }

    fn push(self: &Arc<Self>, task: Task) {
        self.public.push(task.clone());
        fence(SeqCst);
        if self.stage() == Stage::Closed {
            self.cancel(&*task, JobError::cancelled());
        }
        self.call();
    }

    /// A place at `home` is free: those who wait for it move up.
    pub(crate) fn release(self: &Arc<Self>, home: Home) {
        match home {
            Home::Seat(index) => self.seats[index].release(),
            Home::Public => {
                let promoted = self.public.release();
                self.push_all(promoted);
            }
            Home::Waiting => self.public.remove_unplaced(),
        }
    }

    /// The job of this lane that was out has ended: the next goes out.
    pub(crate) fn lane_moves_on(self: &Arc<Self>, lane: u64) {
        if let Some(next) = self.lanes.next(lane) {
            self.send_out(next);
        }
    }

    /// Cancels a job if it has not started (M13).
    pub(crate) fn cancel<Q: Queued + ?Sized>(self: &Arc<Self>, task: &Q, error: JobError) -> bool {
        let Some(home) = task.header().cancel() else {
            return false;
        };
        self.cancelled.fetch_add(1, Relaxed);
        self.shells.fetch_add(1, Relaxed);
        task.discard(error);
        self.release(home);
        true
    }

    /// Ends a job that no queue accepted.
    pub(crate) fn refuse(&self, task: &Task, error: JobError) {
        self.rejected.fetch_add(1, Relaxed);
        if task.header().cancel().is_some() {
            task.discard(error);
        }
    }

    /// Jobs ever inserted into private queues, and those of them that are still to run.
    pub(crate) fn private_counts(&self) -> (u64, usize) {
        self.seats()
            .iter()
            .fold((0, 0), |(accepted, queued), seat| {
                (accepted + seat.accepted(), queued + seat.queued())
            })
    }

    /// Takes the shells out of the queues, so that aborted jobs do not pile up behind a worker that is held.
    fn sweep(self: &Arc<Self>) {
        self.shells.store(0, Relaxed);
        for seat in &self.seats {
            drop(seat.take_shells());
        }
        drop(self.lanes.take_shells());
        let mut shells = self.public.take_waiting_shells();
        // One round: what is pushed meanwhile is young.
        for _ in 0..self.public.entries() {
            match self.public.pop() {
                Some(task) if task.header().is_shell() => shells.push(task),
                Some(task) => self.public.push(task),
                None => break,
            }
        }
        for lane in shells.iter().filter_map(|task| task.header().lane) {
            self.lane_moves_on(lane);
        }
        // A worker may have found the queue empty while the jobs were in our hands.
        self.call();
    }

    /// The seats that may be taken: those beyond were never asked for.
    pub(crate) fn seats(&self) -> &[Seat] {
        &self.seats[..self.seats_used.load(Acquire)]
    }
}
