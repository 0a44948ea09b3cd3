//! What a submitter holds: the job as a future, and the right to abort it.

use crate::account::Crew;
use crate::error::JobError;
use crate::job::{Awaited, Task};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A job that was handed to the pool: a future of its closure's result.
///
/// The job does not need its handle: dropping a `Job` detaches it, it still runs, and its output is
/// dropped when it is done. To drop a job unrun, [`abort`](Job::abort) it first.
///
/// # Cancellation
///
/// Dropping the future loses nothing but the result: a job that is queued or running goes on.
#[must_use = "a `Job` is a future; to let the job run detached, `drop` its handle"]
pub struct Job<T> {
    cell: Arc<dyn Awaited<T>>,
    crew: Arc<Crew>,
}

impl<T> Job<T> {
    pub(crate) fn new(cell: Arc<dyn Awaited<T>>, crew: Arc<Crew>) -> Self {
        Job { cell, crew }
    }

    /// Cancels the job if it has not started: its closure is dropped before this returns, wherever the
    /// job was, and awaiting it gives an error with [`JobError::is_cancelled`].
    ///
    /// Returns whether the job was still queued. A job that runs cannot be stopped: `false`, and it
    /// finishes as if nothing had been asked.
    pub fn abort(&self) -> bool {
        self.crew.cancel(&*self.cell, JobError::cancelled())
    }

    /// A handle that can abort this job, and does not keep its output.
    pub fn abort_handle(&self) -> AbortHandle
    where
        T: 'static,
    {
        AbortHandle {
            task: self.cell.clone(),
            crew: self.crew.clone(),
        }
    }

    /// Whether the job has ended: it returned, panicked, or was cancelled.
    pub fn is_finished(&self) -> bool {
        self.cell.header().is_finished()
    }

    /// The number of this job, unique in its pool.
    pub fn id(&self) -> JobId {
        self.cell.header().id
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, JobError>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(cx)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.cell.detach();
    }
}

impl<T> fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id())
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// The right to abort one job, apart from the future that waits for it.
#[derive(Clone)]
pub struct AbortHandle {
    task: Task,
    crew: Arc<Crew>,
}

impl AbortHandle {
    /// As [`Job::abort`].
    pub fn abort(&self) -> bool {
        self.crew.cancel(&*self.task, JobError::cancelled())
    }

    /// As [`Job::is_finished`].
    pub fn is_finished(&self) -> bool {
        self.task.header().is_finished()
    }

    /// As [`Job::id`].
    pub fn id(&self) -> JobId {
        self.task.header().id
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AbortHandle").field(&self.id()).finish()
    }
}

/// The number of a job, unique in its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(pub(crate) u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
