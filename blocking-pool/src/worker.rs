//! What worker threads do: find a job, run it, and what they do between jobs (M8, M9).
//!
//! Both kinds of worker alternate between *searching* (counted in the crew, so that producers wake nobody
//! else meanwhile) and *busy*. A fixed worker runs private work first, then public work, then what its
//! siblings have left lying; an ordinary worker runs public work only. How they sleep and wake stands in
//! `account.rs`, `fixed.rs` and `ordinary.rs`.

use crate::account::{Crew, Stage};
use crate::atomics::{Batch, fence, spin_loop, thread_local_const};
use crate::fixed::{Phase, Seat};
use crate::job::{Home, Task};
use crate::ordinary::{Rest, Sleeper};
use crate::roster::{Current, Stats};
use crate::watch;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Private jobs after which a fixed worker takes a public one, so that public work cannot starve (M8).
const PRIVATE_STREAK: usize = 64;

/// How long a worker looks for work before it sleeps. Measured: at 20 us three workers on two CPUs lose two
/// thirds of their throughput; without any spin they pay a wake for every few jobs.
const SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 5 });

/// Jobs that run inside each other on one worker before the next has to wait for room instead: each takes a
/// part of the worker's stack.
const INLINE_DEPTH: usize = 16;

thread_local_const! {
    static DEPTH: Cell<usize> = Cell::new(0);
}

/// The life of a fixed worker. Whoever started it has occupied the seat and counted it as searching.
pub(crate) fn fixed(crew: &Arc<Crew>, index: usize, stats: &Arc<Stats>) {
    let seat = &crew.seats()[index];
    let mut worker = Fixed {
        crew,
        seat,
        batch: seat.sit_down(),
        streak: 0,
    };
    // Ends when the seat is surplus or the pool shuts down.
    while let Some(first) = worker.search() {
        seat.count_started();
        run(crew, first, stats);
        // Bounded by the work there is.
        while !worker.must_leave()
            && let Some(task) = worker.find()
        {
            seat.count_started();
            run(crew, task, stats);
        }
        crew.start_searching();
        seat.set_phase(Phase::Searching);
    }
    crew.leave_seat(seat, worker.batch);
}

struct Fixed<'a> {
    crew: &'a Arc<Crew>,
    seat: &'a Seat,
    batch: Batch<Task>,
    /// Private jobs since the last public one.
    streak: usize,
}

impl Fixed<'_> {
    /// Looks for work, spins, sleeps. Afterwards the worker is busy (`Some`) or leaves (`None`), and is not
    /// counted as searching any more.
    fn search(&mut self) -> Option<Task> {
        // Each further round begins with a wake or with work that was seen.
        loop {
            let since = Instant::now();
            loop {
                if self.must_leave() {
                    self.crew.stop_searching();
                    return None;
                }
                if let Some(task) = self.find() {
                    self.seat.set_phase(Phase::Busy);
                    self.crew.found_work();
                    return Some(task);
                }
                if since.elapsed() >= SPIN {
                    break;
                }
                spin_loop();
            }
            if self.crew.stage() != Stage::Open {
                self.crew.stop_searching();
                return None;
            }
            self.seat.set_phase(Phase::Asleep);
            self.crew.stop_searching();
            fence(SeqCst);
            if !self.crew.anything_to_do() && !self.must_leave() {
                self.seat.sleep();
            } else if self.seat.claim_sleeper() {
                self.crew.start_searching();
            }
            // Whoever claimed this worker has counted it as searching.
        }
    }

    fn must_leave(&self) -> bool {
        self.crew.is_surplus(self.seat.index()) || self.crew.stage() == Stage::Closed
    }

    fn find(&mut self) -> Option<Task> {
        if self.streak < PRIVATE_STREAK
            && let Some(task) = self.seat.next(&self.batch)
        {
            self.streak += 1;
            return Some(task);
        }
        self.streak = 0;
        self.crew
            .public
            .pop()
            .or_else(|| self.seat.next(&self.batch))
            .or_else(|| self.steal())
    }

    /// From the next seat on, so that not all thieves go to the same victim.
    fn steal(&self) -> Option<Task> {
        let (before, from_here) = self.crew.seats().split_at(self.seat.index());
        from_here[1..]
            .iter()
            .chain(before)
            .filter(|victim| victim.has_stealable())
            .find_map(|victim| victim.steal(&self.batch))
    }
}

/// The life of an ordinary worker. Whoever started it has counted it as alive and as searching.
pub(crate) fn ordinary(crew: &Arc<Crew>, stats: &Arc<Stats>) {
    let sleeper = Sleeper::new();
    // Ends with retirement or shutdown.
    loop {
        if let Some(first) = search_public(crew) {
            crew.found_work();
            run(crew, first, stats);
            // Bounded by the work there is.
            while crew.stage() != Stage::Closed
                && let Some(task) = crew.public.pop()
            {
                run(crew, task, stats);
            }
            crew.start_searching();
            continue;
        }
        crew.ordinary.lie_down(&sleeper);
        crew.stop_searching();
        fence(SeqCst);
        if crew.stage() != Stage::Open {
            if !crew.ordinary.get_up(&sleeper) {
                // It was called, and counted as searching once more.
                crew.stop_searching();
            }
            crew.ordinary.leave();
            // Somebody may have relied on this search while the queues are drained.
            crew.call();
            return;
        }
        // Work that came meanwhile may have relied on this worker's search, also private work, which it does
        // not run. The call may reach this worker itself.
        crew.call();
        if crew.watch.take() {
            watch::keep(crew, &sleeper);
        }
        let needed_if_last = || crew.fixed_alive() == 0;
        if crew.ordinary.rest(&sleeper, needed_if_last) == Rest::Retired {
            fence(SeqCst);
            if crew.public.is_empty() || !crew.ordinary.join() {
                return;
            }
            crew.start_searching();
        }
    }
}

/// Looks at the public queue until the spin is over. Nothing starts when the pool is closed.
fn search_public(crew: &Crew) -> Option<Task> {
    let since = Instant::now();
    loop {
        if crew.stage() == Stage::Closed {
            return None;
        }
        let task = crew.public.pop();
        if task.is_some() || since.elapsed() >= SPIN {
            return task;
        }
        spin_loop();
    }
}

/// Runs one job that was popped, unless only its shell is left; then its lane moves on.
fn run(crew: &Arc<Crew>, task: Task, stats: &Stats) {
    if let Some(home) = task.header().claim() {
        crew.release(home);
        if matches!(home, Home::Seat(index) if stats.seat != Some(index)) {
            stats.count_stolen();
        }
        execute(&task, stats);
    }
    if let Some(lane) = task.header().lane {
        crew.lane_moves_on(lane);
    }
}

/// Runs a job on the worker that submits it, because the queue is full. False: too many run inside each other.
pub(crate) fn run_inline(task: &Task, stats: &Stats) -> bool {
    let depth = DEPTH.with(Cell::get);
    if depth >= INLINE_DEPTH {
        return false;
    }
    task.header()
        .claim()
        .expect("a job that no one else knows yet is still queued");
    DEPTH.with(|nested| nested.set(depth + 1));
    stats.count_inline();
    // It cannot unwind: panics of the closure are its outcome, all others are contained.
    execute(task, stats);
    DEPTH.with(|nested| nested.set(depth));
    true
}

fn execute(task: &Task, stats: &Stats) {
    let header = task.header();
    let outer = stats.set_current(Some(Current {
        id: header.id,
        name: header.name,
        since: Instant::now(),
    }));
    // Counted before the submitter is woken, so that it finds its own job in the counters.
    task.execute(&|panicked| {
        stats.count_run(panicked);
        stats.set_current(outer);
    });
}
