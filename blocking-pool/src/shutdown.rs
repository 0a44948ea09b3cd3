//! The bounded end of a pool: what is still queued, what is still running, and what had to be left behind.

use crate::account::{Crew, Stage};
use crate::current;
use crate::handle::JobId;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the end of a pool left undone.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PoolReport {
    /// Jobs that were queued and have been cancelled.
    pub cancelled: usize,
    /// Jobs that still ran at the deadline. Their threads go on until the closures return, and end then.
    pub abandoned: Vec<Abandoned>,
}

/// A job that did not return in time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// The name of the worker thread.
    pub thread: String,
    /// The job's number.
    pub id: JobId,
    /// The type of its closure, which names the function that it was written in.
    pub job: &'static str,
    /// How long it has been running.
    pub running_for: Duration,
}

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "job {} ({}) on thread {}, running for {:?}",
            self.id, self.job, self.thread, self.running_for
        )
    }
}

/// What becomes of queued jobs at shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    Drop,
    Run,
}

/// Ends the crews, at the deadline at the latest.
pub(crate) fn end(crews: &[Arc<Crew>], queued: Queued, deadline: Instant) -> PoolReport {
    if queued == Queued::Run {
        crews
            .iter()
            .for_each(|crew| crew.raise_stage(Stage::Draining));
        for crew in crews {
            // Work that was queued for workers that are not there any more.
            crew.call();
            crew.roster
                .wait_empty(deadline, current::worker_of(crew).as_ref());
        }
    }
    let mut report = PoolReport {
        cancelled: close(crews),
        abandoned: Vec::new(),
    };
    let now = Instant::now();
    for crew in crews {
        // A job that ends its own pool does not wait for itself.
        let own = current::worker_of(crew);
        for worker in crew.roster.wait_empty(deadline, own.as_ref()) {
            if let Some(current) = worker.current() {
                report.abandoned.push(Abandoned {
                    thread: worker.name.clone(),
                    id: current.id,
                    job: current.name,
                    running_for: now
                        .max(Instant::now())
                        .saturating_duration_since(current.since),
                });
            }
        }
    }
    report
}

/// Ends the crews without waiting: queued jobs are dropped, running ones finish. Returns how many were dropped.
pub(crate) fn close(crews: &[Arc<Crew>]) -> usize {
    crews
        .iter()
        .for_each(|crew| crew.raise_stage(Stage::Closed));
    crews.iter().map(|crew| crew.cancel_all()).sum()
}
