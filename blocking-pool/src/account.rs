//! One account's crew: its queues, its workers, and the rules by which a job finds a worker (M8, M10).
//!
//! **Where a job goes** (`place`): to a fixed worker that looks for work at this moment; else to one that
//! sleeps or has not started, which is then woken; else behind the job of a busy one; always only where
//! there is room, round-robin among equals. If no private queue takes it, it goes to the public queue, and if
//! that is full the submitter waits, is refused, or (a worker of this crew) runs it itself. A job from a
//! worker, and every job of a serial lane, goes to the public queue at once: behind its own submitter it
//! might wait for ever.
//!
//! **Who is woken** (`call`): nobody while somebody *searches*. A searcher looks at every queue, and does so
//! again after it announced that it goes to sleep. When it finds something and was the last searcher, it calls
//! the next if more is left. So work that waits always has a searcher, or every worker is busy:
//! 1. A producer pushes, fences, reads `searching`. Above zero: done. Otherwise it raises `searching`, claims
//!    one sleeper (or starts a thread), which inherits that count.
//! 2. If it found nobody, it lowers `searching` again, fences, and if work and a sleeper are there now, tries
//!    again: another producer may have seen its raised count and relied on it.
//! 3. A searcher that found work lowers `searching`; if it was the last, it does as a producer does.
//! 4. A searcher that found nothing announces its sleep, lowers `searching`, fences, looks at every queue.
//!
//! **Shutdown**: the stage is raised by swap before the queues are emptied; whoever pushed reads it after a
//! fence, and cancels its own job if the pool was closed meanwhile. One of the two sees the other, so no job
//! is left in a queue that nobody serves.

use crate::atomics::{AtomicU64, AtomicUsize, Batch, fence};
use crate::config::{Account, AccountConfig, InvalidSetting, Registered, Registration};
use crate::config::{check_max_works, check_workers};
use crate::error::JobError;
use crate::fixed::{Phase, Seat};
use crate::job::{Home, Queued, Task};
use crate::lane::Lanes;
use crate::ordinary::Ordinaries;
use crate::public::Public;
use crate::roster::{Roster, Stats};
use crate::thread::{self, ThreadSettings};
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
            return Placed::NoWorker(error);
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
                        self.stop_searching();
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

    /// Makes sure that a job just inserted here is seen (step 2 of the seat's protocol).
    fn wake_for(self: &Arc<Self>, seat: &Seat) {
        fence(SeqCst);
        match seat.phase() {
            Phase::Searching => {}
            Phase::Asleep => {
                if !self.claim(seat) {
                    self.call();
                }
            }
            Phase::Busy | Phase::Stuck | Phase::Vacant => self.call_for_private(),
        }
    }

    /// The short way of `call` for what every producer does when all workers are busy: a look at the phases
    /// tells that nobody is there to be woken. (Who announces its sleep later sees the job.)
    fn call_for_private(self: &Arc<Self>) {
        let mut anyone = false;
        for seat in &self.seats[..self.nr_workers()] {
            match seat.phase() {
                Phase::Searching => return,
                Phase::Asleep | Phase::Vacant => anyone = true,
                Phase::Busy | Phase::Stuck => {}
            }
        }
        if anyone {
            self.call();
        } else if self.watch.arm() {
            self.summon_ordinary();
        }
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

    /// Sees to it that work that waits has a searcher, or that every worker is busy; in that case, that
    /// someone watches over what waits in private queues.
    pub(crate) fn call(self: &Arc<Self>) {
        // Each further round means that a worker went to sleep meanwhile.
        loop {
            fence(SeqCst);
            if self.searching.load(Acquire) > 0 || self.stage() == Stage::Closed {
                return;
            }
            let public = !self.public.is_empty();
            let private = self.seats().iter().any(Seat::has_stealable);
            if !public && !private {
                return;
            }
            self.searching.fetch_add(1, AcqRel);
            if public && self.ordinary.call_idle()
                || self.claim_any()
                || private && self.start_any_fixed()
                || public && self.grow().is_ok()
            {
                return;
            }
            self.searching.fetch_sub(1, AcqRel);
            fence(SeqCst);
            let anyone = public && self.ordinary.any_idle()
                || self
                    .seats()
                    .iter()
                    .any(|seat| seat.phase() == Phase::Asleep);
            if anyone {
                continue;
            }
            if private && self.watch.arm() {
                self.summon_ordinary();
            }
            return;
        }
    }

    /// Sees to it that an ordinary worker comes by, if there may be one more: it is to watch.
    pub(crate) fn summon_ordinary(self: &Arc<Self>) {
        self.searching.fetch_add(1, AcqRel);
        if !self.ordinary.call_idle() && self.grow().is_err() {
            self.searching.fetch_sub(1, AcqRel);
            self.call();
        }
    }

    /// Claims and wakes the worker of one seat.
    fn claim(&self, seat: &Seat) -> bool {
        self.searching.fetch_add(1, AcqRel);
        let claimed = seat.claim_sleeper();
        if claimed {
            seat.unpark();
        } else {
            self.searching.fetch_sub(1, AcqRel);
        }
        claimed
    }

    /// Wakes any fixed worker that sleeps; the caller has counted it as searching.
    fn claim_any(&self) -> bool {
        let sleeper = self.seats().iter().find(|seat| seat.claim_sleeper());
        if let Some(seat) = sleeper {
            seat.unpark();
        }
        sleeper.is_some()
    }

    /// A worker looks for work from here on.
    pub(crate) fn start_searching(&self) {
        self.searching.fetch_add(1, AcqRel);
    }

    /// A searcher found work (step 3).
    pub(crate) fn found_work(self: &Arc<Self>) {
        if self.searching.fetch_sub(1, AcqRel) == 1 {
            self.call();
        }
    }

    /// A searcher ends its search, having announced its sleep or its exit.
    pub(crate) fn stop_searching(&self) {
        self.searching.fetch_sub(1, AcqRel);
    }

    /// The last look of a fixed worker that has announced its sleep (step 4).
    pub(crate) fn anything_to_do(&self) -> bool {
        self.stage() != Stage::Open
            || !self.public.is_empty()
            || self.seats().iter().any(Seat::has_stealable)
    }

    /// The seats that may be taken: those beyond were never asked for.
    pub(crate) fn seats(&self) -> &[Seat] {
        &self.seats[..self.seats_used.load(Acquire)]
    }

    /// Before the public queue accepts a job, someone must be there to run it.
    fn ensure_server(self: &Arc<Self>) -> io::Result<()> {
        if self.ordinary.alive() + self.fixed_alive() > 0 {
            return Ok(());
        }
        self.searching.fetch_add(1, AcqRel);
        let started = self.grow();
        if started.is_err() {
            self.searching.fetch_sub(1, AcqRel);
        }
        started
    }

    /// Starts an ordinary worker, which the caller has counted as searching.
    fn grow(self: &Arc<Self>) -> io::Result<()> {
        if !self.ordinary.join() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let name = format!(
            "{}-{}o{}",
            self.settings.prefix,
            self.letter(),
            self.ordinary.number()
        );
        let started = self.start(Stats::new(name, None), worker::ordinary);
        if started.is_err() {
            self.ordinary.leave();
        }
        started
    }

    /// Starts any fixed worker that may run and does not; the caller has counted it as searching.
    fn start_any_fixed(self: &Arc<Self>) -> bool {
        self.seats[..self.nr_workers()]
            .iter()
            .any(|seat| seat.phase() == Phase::Vacant && self.start_fixed(seat))
    }

    /// Starts the worker of a vacant seat, which the caller has counted as searching. False: the seat is taken,
    /// or the thread could not be started.
    fn start_fixed(self: &Arc<Self>, seat: &Seat) -> bool {
        if !seat.occupy() {
            return false;
        }
        self.fixed_alive.fetch_add(1, AcqRel);
        let index = seat.index();
        let name = format!("{}-{}{index}", self.settings.prefix, self.letter());
        let started = self.start(Stats::new(name, Some(index)), move |crew, stats| {
            worker::fixed(crew, index, stats);
        });
        if started.is_err() {
            // Others may have inserted while the thread was being started.
            let accepted = seat.close();
            seat.set_phase(Phase::Vacant);
            self.fixed_alive.fetch_sub(1, AcqRel);
            accepted.into_iter().for_each(|task| self.hand_over(task));
        }
        started.is_ok()
    }

    fn start(
        self: &Arc<Self>,
        stats: Arc<Stats>,
        body: impl FnOnce(&Arc<Crew>, &Arc<Stats>) + Send + 'static,
    ) -> io::Result<()> {
        self.roster.add(stats.clone());
        let (crew, worker) = (self.clone(), stats.clone());
        let started = thread::start(stats.name.clone(), move || {
            crew.settings.apply(&worker.name);
            let guard = current::enter_worker(&crew, &worker);
            body(&crew, &worker);
            drop(guard);
            crew.roster.remove(&worker);
        });
        if started.is_err() {
            self.roster.remove(&stats);
            self.threads_refused.fetch_add(1, Relaxed);
        }
        started
    }

    fn letter(&self) -> char {
        match self.account {
            Account::Bound => 'b',
            Account::Unbound => 'u',
        }
    }

    /// Whether the worker of this seat is one too many.
    pub(crate) fn is_surplus(&self, index: usize) -> bool {
        index >= self.nr_workers()
    }

    /// Moves a job out of a seat's hands into the public queue (step 3 of the exit).
    pub(crate) fn hand_over(self: &Arc<Self>, task: Task) {
        if let Some(Home::Seat(seat)) = task.header().home() {
            let to = if self.public.reserve() {
                Home::Public
            } else {
                self.public.add_unplaced();
                Home::Waiting
            };
            if task.header().move_home(Home::Seat(seat), to) {
                self.seats[seat].release();
            } else {
                // It was aborted just now; its canceller has freed the place at the seat.
                self.release(to);
            }
        }
        self.send_out(task);
    }

    /// The worker of a seat ends: all it had accepted goes to the public queue.
    pub(crate) fn leave_seat(self: &Arc<Self>, seat: &Seat, batch: Batch<Task>) {
        let accepted = seat.close();
        while let Some(task) = batch.pop() {
            self.hand_over(task);
        }
        accepted.into_iter().for_each(|task| self.hand_over(task));
        seat.stand_up(batch);
        self.fixed_alive.fetch_sub(1, AcqRel);
        fence(SeqCst);
        self.call();
    }

    /// Changes the fixed workers while the crew runs (M12).
    pub(crate) fn register(&self, wanted: Registration) -> Result<Registered, InvalidSetting> {
        let mut clamped = None;
        let mut nr_workers = wanted.nr_workers;
        if let Some(asked) = nr_workers {
            check_workers(asked, self.seats.len())?;
            clamped = thread::threads_max().filter(|&max| max < asked);
            nr_workers = clamped.or(nr_workers);
        }
        if let Some(max_works) = wanted.max_works {
            check_max_works(max_works)?;
        }
        let swap = |value: &AtomicUsize, new: Option<usize>| match new {
            Some(new) => value.swap(new, AcqRel),
            None => value.load(Acquire),
        };
        if let Some(wanted) = nr_workers {
            self.seats_used.fetch_max(wanted, AcqRel);
        }
        let previous = Registered {
            nr_workers: swap(&self.nr_workers, nr_workers),
            max_works: swap(&self.max_works, wanted.max_works),
            clamped,
        };
        fence(SeqCst);
        // Those that sleep must see that they are to leave.
        self.wake_sleepers(self.nr_workers());
        Ok(previous)
    }

    /// Claims and wakes every fixed worker that sleeps, from this seat on.
    fn wake_sleepers(&self, from: usize) {
        for seat in self.seats().iter().skip(from) {
            self.claim(seat);
        }
    }

    /// Raises the stage and wakes everyone, so that they see it.
    pub(crate) fn raise_stage(&self, stage: Stage) {
        self.stage.fetch_max(stage as usize, AcqRel);
        fence(SeqCst);
        self.wake_sleepers(0);
        loop {
            self.searching.fetch_add(1, AcqRel);
            if !self.ordinary.call_idle() {
                self.searching.fetch_sub(1, AcqRel);
                break;
            }
        }
    }

    /// Cancels everything that is queued; only once the crew is closed. Returns how many jobs it were.
    pub(crate) fn cancel_all(self: &Arc<Self>) -> usize {
        let mut cancelled = 0;
        let mut cancel = |task: Task| {
            cancelled += usize::from(self.cancel(&*task, JobError::cancelled()));
        };
        // Lanes and the waiting list first: they feed the public queue.
        self.lanes.take_all().into_iter().for_each(&mut cancel);
        self.public.take_waiting().into_iter().for_each(&mut cancel);
        for seat in &self.seats {
            seat.close().into_iter().for_each(&mut cancel);
            while let Some(task) = seat.steal_one() {
                cancel(task);
            }
        }
        while let Some(task) = self.public.pop() {
            cancel(task);
        }
        cancelled
    }
}
