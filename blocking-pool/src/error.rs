//! How a job can fail to give its value.

use crate::atomics::{Mutex, lock};
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

/// Why a [`Job`](crate::Job) has no value: it was cancelled before it started, or its closure panicked.
pub struct JobError(Cause);

enum Cause {
    Cancelled,
    NoWorker(io::ErrorKind),
    // The mutex makes the error `Sync`, which payloads are not; it is never contended.
    Panic(Mutex<Box<dyn Any + Send>>),
}

impl JobError {
    pub(crate) fn cancelled() -> Self {
        JobError(Cause::Cancelled)
    }

    pub(crate) fn no_worker(error: &io::Error) -> Self {
        JobError(Cause::NoWorker(error.kind()))
    }

    pub(crate) fn panic(payload: Box<dyn Any + Send>) -> Self {
        JobError(Cause::Panic(Mutex::new(payload)))
    }

    /// Whether the job never ran: it was aborted while it was queued, the pool was shut down, or no
    /// worker thread could be started for it.
    pub fn is_cancelled(&self) -> bool {
        !self.is_panic()
    }

    /// Whether the closure panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Cause::Panic(_))
    }

    /// The payload the closure panicked with, fit for [`std::panic::resume_unwind`].
    ///
    /// # Panics
    ///
    /// If the job did not panic; see [`JobError::try_into_panic`].
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self.try_into_panic() {
            Ok(payload) => payload,
            Err(error) => panic!("`into_panic` on a job that did not panic: {error}"),
        }
    }

    /// The payload the closure panicked with.
    ///
    /// # Errors
    ///
    /// The error itself if the job did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JobError> {
        match self.0 {
            Cause::Panic(payload) => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            other => Err(JobError(other)),
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Cancelled => f.write_str("the job was cancelled before it started"),
            Cause::NoWorker(kind) => {
                write!(f, "no worker thread could be started for the job: {kind}")
            }
            Cause::Panic(payload) => match message(&**lock(payload)) {
                Some(message) => write!(f, "the job panicked: {message}"),
                None => f.write_str("the job panicked"),
            },
        }
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobError({self})")
    }
}

impl Error for JobError {}

fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// The account had no place for a job, and the submitter did not want to wait: the closure comes back.
pub struct Full<F> {
    closure: F,
    why: Why,
}

#[derive(Clone, Copy)]
pub(crate) enum Why {
    Full,
    ShutDown,
    NoWorker(io::ErrorKind),
}

impl<F> Full<F> {
    pub(crate) fn new(closure: F, why: Why) -> Self {
        Full { closure, why }
    }

    /// The closure that was not accepted.
    pub fn into_inner(self) -> F {
        self.closure
    }

    /// Whether trying again cannot help, because the pool has been shut down.
    pub fn is_shut_down(&self) -> bool {
        matches!(self.why, Why::ShutDown)
    }
}

impl<F> fmt::Display for Full<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Full => f.write_str("the blocking pool is full"),
            Why::ShutDown => f.write_str("the blocking pool has been shut down"),
            Why::NoWorker(kind) => write!(f, "no worker thread could be started: {kind}"),
        }
    }
}

impl<F> fmt::Debug for Full<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Full({self})")
    }
}

impl<F> Error for Full<F> {}

/// Runs code of a user whose panic nobody waits for: dropping a closure or an output, waking a waker.
/// The panic has been printed by the panic hook; it ends here.
pub(crate) fn contain(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        // A payload may panic in its own drop. That second payload is leaked rather than dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_happened_and_give_the_payload_back() {
        let error = JobError::panic(Box::new("boom"));
        assert!(error.is_panic() && !error.is_cancelled());
        assert_eq!(error.to_string(), "the job panicked: boom");
        assert_eq!(*error.into_panic().downcast::<&str>().unwrap(), "boom");
        let error = JobError::cancelled();
        assert!(error.is_cancelled() && error.try_into_panic().is_err());
        fn sync<T: Send + Sync>() {}
        sync::<JobError>();
    }

    /// A payload that panics when it is dropped does not escape either.
    #[test]
    fn contain_survives_a_payload_that_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any("second");
            }
        }
        contain(|| std::panic::panic_any(Bomb));
    }
}
