//! How workers come and go: start, registration, exit, and the end of the crew (M12).
//!
//! Shutdown against everyone who queues a job:
//! 1. The stage is raised by swap, then everyone is woken, then the queues are emptied and their jobs cancelled.
//! 2. Whoever pushed a job fences and reads the stage after it. If the crew was closed meanwhile, it cancels its own
//!    job. One of 1 and 2 sees the other, so no job is left in a queue that nobody serves.
//! 3. While the crew drains, a worker leaves only when it finds nothing; a submitter that is late cancels its own
//!    job unless a worker has it.

use super::{Crew, Stage};
use crate::atomics::{AtomicUsize, Batch, fence};
use crate::config::{
    Account, InvalidSetting, Registered, Registration, check_max_works, check_workers,
};
use crate::current;
use crate::error::JobError;
use crate::fixed::{Phase, Seat};
use crate::job::{Home, Task};
use crate::roster::Stats;
use crate::{thread, worker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

impl Crew {
    /// Before the public queue accepts a job, someone must be there to run it.
    pub(super) fn ensure_server(self: &Arc<Self>) -> io::Result<()> {
        if self.has_servers() {
            return Ok(());
        }
        self.searching.fetch_add(1, AcqRel);
        let Some(started) = self.grow() else {
            // Another submitter was first.
            self.retract_search();
            return Ok(());
        };
        if started.is_err() {
            self.retract_search();
        }
        started
    }

    fn has_servers(&self) -> bool {
        self.ordinary.alive() + self.fixed_alive() > 0
    }

    /// A thread could not be started. Others may have relied on it to serve what they had queued: if nobody else
    /// is there, those jobs end with the error rather than never.
    fn give_up(self: &Arc<Self>, error: &io::Error) {
        while !self.has_servers()
            && let Some(task) = self.public.pop()
        {
            self.cancel(&*task, JobError::no_worker(error));
            if let Some(lane) = task.header().lane {
                self.lane_moves_on(lane);
            }
        }
    }

    /// Starts an ordinary worker, which the caller has counted as searching. `None`: there are as many as may be.
    pub(super) fn grow(self: &Arc<Self>) -> Option<io::Result<()>> {
        if !self.ordinary.join() {
            return None;
        }
        let number = self.ordinary.number();
        let name = format!("{}-{}o{number}", self.settings.prefix, self.letter());
        let started = self.start(Stats::new(name, None), worker::ordinary);
        if let Err(error) = &started {
            self.ordinary.leave();
            self.give_up(error);
        }
        Some(started)
    }

    /// Starts any fixed worker that may run and does not; the caller has counted it as searching.
    pub(super) fn start_any_fixed(self: &Arc<Self>) -> bool {
        self.seats[..self.nr_workers()]
            .iter()
            .any(|seat| seat.phase() == Phase::Vacant && self.start_fixed(seat))
    }

    /// Starts the worker of a vacant seat, which the caller has counted as searching. False: the seat is taken,
    /// or the thread could not be started.
    pub(super) fn start_fixed(self: &Arc<Self>, seat: &Seat) -> bool {
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
        fence(SeqCst);
        if self.stage() == Stage::Closed {
            // The end of the crew waits for those on the roster: it sees this one, or we see that it is closed.
            self.roster.remove(&stats);
            return Err(io::ErrorKind::BrokenPipe.into());
        }
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
    pub(crate) fn register(
        self: &Arc<Self>,
        wanted: Registration,
    ) -> Result<Registered, InvalidSetting> {
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
    fn wake_sleepers(self: &Arc<Self>, from: usize) {
        let surplus = self.seats().iter().skip(from);
        for seat in surplus.filter(|seat| seat.phase() == Phase::Asleep) {
            self.claim(seat);
        }
    }

    /// Raises the stage and wakes everyone, so that they see it.
    pub(crate) fn raise_stage(self: &Arc<Self>, stage: Stage) {
        self.stage.fetch_max(stage as usize, AcqRel);
        fence(SeqCst);
        self.wake_sleepers(0);
        loop {
            self.searching.fetch_add(1, AcqRel);
            if !self.ordinary.call_idle() {
                self.retract_search();
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
