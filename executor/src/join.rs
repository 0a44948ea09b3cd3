//! Handles to tasks and jobs: join, abort, ask.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use roundel_blocking_pool::{Job, JobError};

use crate::task::{Header, Join, detach, poll_join};

/// A task's number, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

impl Id {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Id(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How to reach a task: what it shares, and how to have it polled.
#[derive(Clone)]
pub(crate) struct TaskRef {
    header: Arc<Header>,
    waker: Waker,
}

impl TaskRef {
    pub(crate) fn new(header: Arc<Header>, waker: Waker) -> Self {
        TaskRef { header, waker }
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// Waits for a task of this shard: a future of its output, or of why there is none.
///
/// Made by [`spawn`](crate::spawn). It stays on its shard; for one that can be sent see
/// [`SendJoinHandle`].
///
/// Dropping this handle detaches the task, which goes on.
#[must_use = "dropping it detaches the task; say so with `drop` or `let _`"]
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
    task: TaskRef,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(join: Rc<RefCell<Join<T>>>, task: TaskRef) -> Self {
        JoinHandle { join, task }
    }

    /// Ends the task: it is not polled again, and its future is dropped on its shard soon.
    /// Awaiting the handle then gives an error that [`is_cancelled`](JoinError::is_cancelled),
    /// unless the task had finished before.
    pub fn abort(&self) {
        AbortHandle::abort_task(&self.task);
    }

    /// A handle that can end the task from any thread, and cannot wait for it.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Abort::Task(self.task.clone()))
    }

    /// Whether the task's future is gone, so that awaiting gives an answer at once.
    pub fn is_finished(&self) -> bool {
        self.task.header.is_finished()
    }

    /// The task's number.
    pub fn id(&self) -> Id {
        self.task.header.id()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If polled after it resolved.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_join(&self.join, cx)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        detach(&self.join);
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("id", &self.id())
            .finish()
    }
}

/// Waits for a task of any shard, or for a blocking job, from any thread.
///
/// Made by [`spawn_on`](crate::spawn_on), [`spawn_any`](crate::spawn_any),
/// [`spawn_blocking`](crate::spawn_blocking) and [`Handle::spawn`](crate::Handle::spawn).
///
/// Dropping this handle detaches the task or job, which goes on.
#[must_use = "dropping it detaches the task; say so with `drop` or `let _`"]
pub struct SendJoinHandle<T>(Source<T>);

enum Source<T> {
    Task(Arc<Mutex<Join<T>>>, TaskRef),
    Job(Job<T>, Id),
}

impl<T> SendJoinHandle<T> {
    pub(crate) fn of_task(join: Arc<Mutex<Join<T>>>, task: TaskRef) -> Self {
        SendJoinHandle(Source::Task(join, task))
    }

    pub(crate) fn of_job(job: Job<T>, id: Id) -> Self {
        SendJoinHandle(Source::Job(job, id))
    }

    /// Ends the task, whose future is dropped on its shard soon; takes a blocking job that
    /// has not begun out of its queue, and does nothing to one that has. Awaiting the
    /// handle then gives an error that [`is_cancelled`](JoinError::is_cancelled), unless
    /// the task or job had finished, or the job had begun.
    pub fn abort(&self) {
        match &self.0 {
            Source::Task(_, task) => AbortHandle::abort_task(task),
            Source::Job(job, _) => drop(job.abort()),
        }
    }

    /// A handle that can end it from any thread, and cannot wait for it.
    pub fn abort_handle(&self) -> AbortHandle
    where
        T: Send + 'static,
    {
        AbortHandle(match &self.0 {
            Source::Task(_, task) => Abort::Task(task.clone()),
            Source::Job(job, id) => Abort::Job(job.abort_handle(), *id),
        })
    }

    /// Whether awaiting gives an answer at once.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Source::Task(_, task) => task.header.is_finished(),
            Source::Job(job, _) => job.is_finished(),
        }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        match &self.0 {
            Source::Task(_, task) => task.header.id(),
            Source::Job(_, id) => *id,
        }
    }
}

impl<T> Future for SendJoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If polled after it resolved.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Source::Task(join, _) => poll_join(join, cx),
            Source::Job(job, id) => {
                let id = *id;
                Pin::new(job)
                    .poll(cx)
                    .map_err(|error| JoinError::of_job(id, error))
            }
        }
    }
}

impl<T> Drop for SendJoinHandle<T> {
    fn drop(&mut self) {
        if let Source::Task(join, _) = &self.0 {
            detach(join);
        }
    }
}

impl<T> fmt::Debug for SendJoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendJoinHandle")
            .field("id", &self.id())
            .finish()
    }
}

/// Ends a task or takes a job back, from any thread. See [`JoinHandle::abort_handle`].
#[derive(Clone)]
pub struct AbortHandle(Abort);

#[derive(Clone)]
enum Abort {
    Task(TaskRef),
    Job(roundel_blocking_pool::AbortHandle, Id),
}

impl AbortHandle {
    /// As [`SendJoinHandle::abort`].
    pub fn abort(&self) {
        match &self.0 {
            Abort::Task(task) => Self::abort_task(task),
            Abort::Job(job, _) => drop(job.abort()),
        }
    }

    /// Whether it is over.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Abort::Task(task) => task.header.is_finished(),
            Abort::Job(job, _) => job.is_finished(),
        }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        match &self.0 {
            Abort::Task(task) => task.header.id(),
            Abort::Job(_, id) => *id,
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle")
            .field("id", &self.id())
            .finish()
    }
}

/// Why a task or a job has no output: it panicked, or it was cancelled.
pub struct JoinError {
    id: Id,
    cause: Cause,
}

enum Cause {
    /// With the reason, if it is not the usual one.
    Cancelled(Option<String>),
    /// A `Mutex` only so that the error is `Sync`, which payloads are not.
    Panic(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    pub(crate) fn cancelled(id: Id) -> Self {
        JoinError {
            id,
            cause: Cause::Cancelled(None),
        }
    }

    pub(crate) fn panic(id: Id, payload: Box<dyn Any + Send>) -> Self {
        JoinError {
            id,
            cause: Cause::Panic(Mutex::new(payload)),
        }
    }

    fn of_job(id: Id, error: JobError) -> Self {
        match error.try_into_panic() {
            Ok(payload) => Self::panic(id, payload),
            Err(error) => JoinError {
                id,
                cause: Cause::Cancelled(Some(error.to_string())),
            },
        }
    }

    /// Whether it was cancelled: aborted, or its runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause, Cause::Cancelled(_))
    }

    /// Whether it panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.cause, Cause::Panic(_))
    }

    /// What it panicked with, fit for [`std::panic::resume_unwind`].
    ///
    /// # Panics
    ///
    /// If it did not panic; see [`try_into_panic`](Self::try_into_panic).
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self.try_into_panic() {
            Ok(payload) => payload,
            Err(error) => panic!("`into_panic` on what did not panic: {error}"),
        }
    }

    /// What it panicked with.
    ///
    /// # Errors
    ///
    /// The error itself if it did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        let JoinError { id, cause } = self;
        match cause {
            Cause::Panic(payload) => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            cause => Err(JoinError { id, cause }),
        }
    }

    /// The number of the task or job.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The text it panicked with.
    pub(crate) fn panic_message(&self) -> Option<String> {
        match &self.cause {
            Cause::Cancelled(_) => None,
            Cause::Panic(payload) => {
                let payload = payload.lock().unwrap_or_else(PoisonError::into_inner);
                Some(panic_message(&**payload).to_owned())
            }
        }
    }
}

/// The text of a panic's payload.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match &self.cause {
            Cause::Cancelled(None) => write!(f, "task {id} was cancelled"),
            Cause::Cancelled(Some(reason)) => write!(f, "task {id} did not run: {reason}"),
            Cause::Panic(_) => {
                let message = self.panic_message().unwrap_or_default();
                write!(f, "task {id} panicked: {message}")
            }
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    /// An error of the kind `Other` with this one as its source, as in tokio.
    fn from(error: JoinError) -> Self {
        io::Error::other(error)
    }
}
