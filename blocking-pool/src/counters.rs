//! What a pool has done and what it does: a snapshot that any thread can take without stopping anything.

use crate::account::Crew;
use crate::handle::JobId;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A snapshot of a pool. Its numbers are read one after the other while the pool runs, so sums may be off
/// by the few jobs that moved meanwhile; once the pool is quiet they are exact.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The bound account.
    pub bound: AccountCounters,
    /// The unbound account.
    pub unbound: AccountCounters,
}

/// One account. When it is quiet, `accepted` is the sum of `run` and `cancelled`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AccountCounters {
    /// Jobs accepted, the inline ones among them.
    pub accepted: u64,
    /// Jobs whose closure returned or panicked.
    pub run: u64,
    /// Of `run`: those that another worker than the one they were given to has run.
    pub stolen: u64,
    /// Of `run`: those that panicked.
    pub panicked: u64,
    /// Of `run`: those that a worker ran inside another job, because the queue was full.
    pub inline: u64,
    /// Jobs that were accepted and cancelled before they started.
    pub cancelled: u64,
    /// Submissions that were not accepted: full, shut down, or no worker.
    pub rejected: u64,
    /// Jobs that have not started, those that wait for room among them.
    pub depth: usize,
    /// Of `depth`: jobs that have a place in the public queue.
    pub public_depth: usize,
    /// Of `depth`: jobs that wait for room, or for their turn in a serial lane.
    pub waiting: usize,
    /// The age of the job that has been running longest.
    pub longest_running: Option<Duration>,
    /// Fixed workers that may run, as registered.
    pub nr_workers: usize,
    /// The bound of each private queue, as registered.
    pub max_works: usize,
    /// Threads that the system refused to start.
    pub threads_refused: u64,
    /// The workers that live.
    pub workers: Vec<WorkerCounters>,
}

/// One worker thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerCounters {
    /// The thread's name.
    pub name: String,
    /// Whether it is a fixed worker; otherwise an ordinary one.
    pub fixed: bool,
    /// Jobs inserted into its private queue, over all threads that had this seat; 0 for ordinary workers.
    pub accepted: u64,
    /// Jobs it has run.
    pub run: u64,
    /// Of `run`: those taken from siblings.
    pub stolen: u64,
    /// Of `run`: those that panicked.
    pub panicked: u64,
    /// Jobs in its private queue and batch.
    pub depth: usize,
    /// The job it runs.
    pub running: Option<RunningJob>,
}

/// A job that runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its number.
    pub id: JobId,
    /// The type of its closure, which names the function that it was written in.
    pub name: &'static str,
    /// How long it has been running.
    pub running_for: Duration,
}

impl AccountCounters {
    pub(crate) fn read(crew: &Crew) -> Self {
        let now = Instant::now();
        let totals = crew.roster.totals();
        let workers: Vec<WorkerCounters> = crew
            .roster
            .workers()
            .iter()
            .map(|worker| {
                let seat = worker.seat.map(|index| &crew.seats()[index]);
                let totals = worker.totals();
                WorkerCounters {
                    name: worker.name.clone(),
                    fixed: seat.is_some(),
                    accepted: seat.map_or(0, |seat| seat.accepted()),
                    run: totals.run,
                    stolen: totals.stolen,
                    panicked: totals.panicked,
                    depth: seat.map_or(0, |seat| seat.queued()),
                    running: worker.current().map(|current| RunningJob {
                        id: current.id,
                        name: current.name,
                        running_for: now.saturating_duration_since(current.since),
                    }),
                }
            })
            .collect();
        let (private_accepted, private_queued) = crew.private_counts();
        let (public_depth, waiting) = (crew.public.queued(), crew.public.unplaced());
        AccountCounters {
            accepted: private_accepted + crew.public_accepted.load(Relaxed) + totals.inline,
            run: totals.run,
            stolen: totals.stolen,
            panicked: totals.panicked,
            inline: totals.inline,
            cancelled: crew.cancelled.load(Relaxed),
            rejected: crew.rejected.load(Relaxed),
            depth: private_queued + public_depth + waiting,
            public_depth,
            waiting,
            longest_running: workers
                .iter()
                .filter_map(|worker| Some(worker.running.as_ref()?.running_for))
                .max(),
            nr_workers: crew.nr_workers(),
            max_works: crew.max_works(),
            threads_refused: crew.threads_refused.load(Relaxed),
            workers,
        }
    }
}
