//! Handles to tasks and jobs: join, abort, ask.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use roundel_blocking_pool::{Job, JobError};

use crate::task::{self, Joining, RemoteTask, Shared, Target};

/// A task's number, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(NonZero<u64>);

/// Tells numbers that are counted from those that name a slot.
const COUNTED: u64 = 1 << 63;

impl Id {
    /// A number for what has no slot of its own, or none yet.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(COUNTED + 1);
        Id::of_number(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of the task that is the so manieth in a slot. The slot's own number is unique in
    /// the process, so this is, and costs no count that threads share.
    pub(crate) fn of_slot(slot: u32, generation: u32) -> Self {
        Id::of_number(u64::from(generation) << 32 | u64::from(slot))
    }

    fn of_number(number: u64) -> Self {
        Id(NonZero::new(number).expect("slots and counts begin with 1"))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Waits for a task of this shard: a future of its output, or of why there is none.
///
/// Made by [`spawn`](crate::spawn). It stays on its shard; for one that can be sent see
/// [`SendJoinHandle`].
///
/// Dropping this handle detaches the task, which goes on.
pub struct JoinHandle<T> {
    joining: Joining<T>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(joining: Joining<T>) -> Self {
        JoinHandle { joining }
    }

    /// Ends the task: it is not polled again, and its future is dropped on its shard soon.
    /// Awaiting the handle then gives an error that [`is_cancelled`](JoinError::is_cancelled),
    /// unless the task had finished before.
    pub fn abort(&self) {
        self.joining.abort();
    }

    /// A handle that can end the task from any thread, and cannot wait for it.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Abort::Task(self.joining.target(), self.joining.epoch()))
    }

    /// Whether the task's future is gone, so that awaiting gives an answer at once.
    pub fn is_finished(&self) -> bool {
        self.joining.target().is_finished()
    }

    /// The task's number.
    pub fn id(&self) -> Id {
        self.joining.target().id()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If polled after it resolved.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.joining.poll(cx)
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
pub struct SendJoinHandle<T>(Source<T>);

enum Source<T> {
    Task(Arc<Shared<T>>),
    Job(Job<T>, Id),
}

impl<T> SendJoinHandle<T> {
    pub(crate) fn of_task(shared: Arc<Shared<T>>) -> Self {
        SendJoinHandle(Source::Task(shared))
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
            Source::Task(task) => task.abort(),
            Source::Job(job, _) => drop(job.abort()),
        }
    }

    /// A handle that can end it from any thread, and cannot wait for it.
    pub fn abort_handle(&self) -> AbortHandle
    where
        T: Send + 'static,
    {
        AbortHandle(match &self.0 {
            Source::Task(task) => Abort::Remote(task.clone()),
            Source::Job(job, id) => Abort::Job(job.abort_handle(), *id),
        })
    }

    /// Whether awaiting gives an answer at once.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Source::Task(task) => task.is_finished(),
            Source::Job(job, _) => job.is_finished(),
        }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        match &self.0 {
            Source::Task(task) => task.id(),
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
            Source::Task(task) => task.poll(cx),
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
        if let Source::Task(task) = &self.0 {
            task.detach();
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
    /// With its shard's epoch.
    Task(Target, u64),
    Remote(Arc<dyn RemoteTask + Send + Sync>),
    Job(roundel_blocking_pool::AbortHandle, Id),
}

impl AbortHandle {
    /// As [`SendJoinHandle::abort`].
    pub fn abort(&self) {
        match &self.0 {
            Abort::Task(target, epoch) => task::abort(*target, *epoch),
            Abort::Remote(task) => task.abort(),
            Abort::Job(job, _) => drop(job.abort()),
        }
    }

    /// Whether it is over.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Abort::Task(target, _) => target.is_finished(),
            Abort::Remote(task) => task.is_finished(),
            Abort::Job(job, _) => job.is_finished(),
        }
    }

    /// Its number.
    pub fn id(&self) -> Id {
        match &self.0 {
            Abort::Task(target, _) => target.id(),
            Abort::Remote(task) => task.id(),
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
    /// `None`: cancelled, for the usual reason. In a box, so that an outcome is small: it stands in
    /// the slot of its task.
    cause: Option<Box<Cause>>,
}

const _: () = assert!(
    size_of::<Result<u64, JoinError>>() == 16,
    "what a task costs is documented"
);

enum Cause {
    Cancelled(String),
    /// A `Mutex` only so that the error is `Sync`, which payloads are not.
    Panic(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    pub(crate) fn cancelled(id: Id) -> Self {
        JoinError { id, cause: None }
    }

    #[cold]
    pub(crate) fn panic(id: Id, payload: Box<dyn Any + Send>) -> Self {
        JoinError {
            id,
            cause: Some(Box::new(Cause::Panic(Mutex::new(payload)))),
        }
    }

    fn of_job(id: Id, error: JobError) -> Self {
        match error.try_into_panic() {
            Ok(payload) => Self::panic(id, payload),
            Err(error) => JoinError {
                id,
                cause: Some(Box::new(Cause::Cancelled(error.to_string()))),
            },
        }
    }

    /// Whether it was cancelled: aborted, or its runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        !self.is_panic()
    }

    /// Whether it panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.cause.as_deref(), Some(Cause::Panic(_)))
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
        match cause.map(|cause| *cause) {
            Some(Cause::Panic(payload)) => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            Some(cause) => Err(JoinError {
                id,
                cause: Some(Box::new(cause)),
            }),
            None => Err(JoinError::cancelled(id)),
        }
    }

    /// The number of the task or job.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The text it panicked with.
    pub(crate) fn panic_message(&self) -> Option<String> {
        match self.cause.as_deref() {
            None | Some(Cause::Cancelled(_)) => None,
            Some(Cause::Panic(payload)) => {
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
        match self.cause.as_deref() {
            None => write!(f, "task {id} was cancelled"),
            Some(Cause::Cancelled(reason)) => write!(f, "task {id} did not run: {reason}"),
            Some(Cause::Panic(_)) => {
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
