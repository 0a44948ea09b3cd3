//! One job from submission to its single end: queued, running, finished or cancelled (M13).
//!
//! A job is one allocation that its queue, its worker and its handle share. `Header::word` is the one
//! place where it is decided who ends it: a start and a cancellation both move it out of `Queued` by
//! compare-and-swap, so exactly one of them gets the closure, wherever the job is at that moment: in the
//! public queue, in a private queue, in a batch that a worker has drained, in a serial lane. The word
//! also names the *home*, the queue whose bound the job counts against, so that whoever takes the job out
//! of `Queued` knows exactly which place it frees.
//!
//! ```text
//!               claim 1             execute 2
//!   Queued(h) ───────────► Running ───────────► Finished
//!     │  ▲ │
//!     │  └─┘ move_home 3
//!     │ cancel 4
//!     ▼
//!   Cancelled
//! ```
//!
//! 1 `Header::claim`, 2 `Cell::finish`, 3 `Header::move_home`, 4 `Header::cancel`.
//!
//! A cancelled job's closure is dropped at once by the canceller. What stays in the queue is a *shell*:
//! whoever pops it runs nothing.
//!
//! Abort against start, step by step:
//! 1. Both read the word and see `Queued(h)`.
//! 2. Both compare-and-swap; one wins, the other sees `Running` or `Cancelled` and leaves the job alone.
//! 3. The winner alone takes the closure (`Body::closure`) and frees the place at `h`.
//! 4. The winner stores the outcome under the body's lock, takes the waker there, and wakes after it.

use crate::Deliver;
use crate::atomics::{AtomicUsize, Mutex, lock};
use crate::error::{JobError, contain};
use crate::handle::JobId;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

/// A job as queues and workers see it.
pub(crate) type Task = Arc<dyn Queued>;

/// What queues and workers may do with a job.
pub(crate) trait Queued: Send + Sync {
    fn header(&self) -> &Header;
    /// Runs the closure; only after `Header::claim` gave the right to. Tells `ended` whether it panicked,
    /// before anyone is woken.
    fn execute(&self, ended: &dyn Fn(bool));
    /// Drops the closure and ends the job with `error`; only after `Header::cancel` gave the right to.
    fn discard(&self, error: JobError);
}

/// What the handle may do with a job.
pub(crate) trait Awaited<T>: Queued {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, JobError>>;
    /// Nobody will ask for the outcome any more.
    fn detach(&self);
}

/// Takes the shells out of a queue, so that they are dropped when its lock is free again.
pub(crate) fn take_shells(queue: &mut VecDeque<Task>) -> Vec<Task> {
    let mut shells = Vec::new();
    queue.retain(|task| {
        let shell = task.header().is_shell();
        if shell {
            shells.push(task.clone());
        }
        !shell
    });
    shells
}

/// The queue whose bound a queued job counts against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// None yet: it waits for room.
    Waiting,
    Public,
    /// The private queue of this fixed worker.
    Seat(usize),
}

const STAGE_BITS: u32 = 2;
const STAGE_MASK: usize = (1 << STAGE_BITS) - 1;
const QUEUED: usize = 0;
const RUNNING: usize = 1;
const FINISHED: usize = 2;
const CANCELLED: usize = 3;

impl Home {
    fn queued(self) -> usize {
        let code = match self {
            Home::Waiting => 0,
            Home::Public => 1,
            Home::Seat(index) => index + 2,
        };
        code << STAGE_BITS | QUEUED
    }

    fn of(word: usize) -> Home {
        match word >> STAGE_BITS {
            0 => Home::Waiting,
            1 => Home::Public,
            code => Home::Seat(code - 2),
        }
    }
}

/// The part of a job that does not depend on its closure.
pub(crate) struct Header {
    word: AtomicUsize,
    pub(crate) id: JobId,
    /// The serial lane, for jobs with a key.
    pub(crate) lane: Option<u64>,
    /// The closure's type, which names the function it was written in.
    pub(crate) name: &'static str,
}

impl Header {
    fn new(id: JobId, lane: Option<u64>, name: &'static str) -> Self {
        Header {
            word: AtomicUsize::new(Home::Waiting.queued()),
            id,
            lane,
            name,
        }
    }

    /// Sets the first home, before any other thread can see the job.
    pub(crate) fn set_home(&self, home: Home) {
        self.word.store(home.queued(), Relaxed);
    }

    /// Takes the right to run the job; gives the place that is free now. `None`: it is a shell.
    pub(crate) fn claim(&self) -> Option<Home> {
        self.leave_queued(RUNNING)
    }

    /// Takes the right to drop the job unrun; gives the place that is free now. `None`: it has started.
    pub(crate) fn cancel(&self) -> Option<Home> {
        self.leave_queued(CANCELLED)
    }

    fn leave_queued(&self, stage: usize) -> Option<Home> {
        let mut word = self.word.load(Acquire);
        // Each further round means that another thread moved the job's home; a job moves a few times at most.
        while word & STAGE_MASK == QUEUED {
            match self
                .word
                .compare_exchange_weak(word, stage, AcqRel, Acquire)
            {
                Ok(_) => return Some(Home::of(word)),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Moves a queued job's count from one queue to another. False: it is not queued there any more.
    pub(crate) fn move_home(&self, from: Home, to: Home) -> bool {
        self.word
            .compare_exchange(from.queued(), to.queued(), AcqRel, Acquire)
            .is_ok()
    }

    /// Where a queued job counts; `None` once it has left the queue for good.
    pub(crate) fn home(&self) -> Option<Home> {
        let word = self.word.load(Acquire);
        (word & STAGE_MASK == QUEUED).then(|| Home::of(word))
    }

    /// Whether the job was cancelled and only its shell is left.
    pub(crate) fn is_shell(&self) -> bool {
        self.word.load(Acquire) & STAGE_MASK == CANCELLED
    }

    /// Whether the job has ended, in whatever way.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.word.load(Acquire) & STAGE_MASK, FINISHED | CANCELLED)
    }
}

/// A job with its closure and its output.
pub(crate) struct Cell<F, T> {
    header: Header,
    deliver: Option<Arc<dyn Deliver>>,
    body: Mutex<Body<F, T>>,
}

struct Body<F, T> {
    closure: Option<F>,
    outcome: Option<Result<T, JobError>>,
    waker: Option<Waker>,
    detached: bool,
}

impl<F, T> Cell<F, T> {
    pub(crate) fn new(
        id: JobId,
        lane: Option<u64>,
        deliver: Option<Arc<dyn Deliver>>,
        closure: F,
    ) -> Self {
        Cell {
            header: Header::new(id, lane, std::any::type_name::<F>()),
            deliver,
            body: Mutex::new(Body {
                closure: Some(closure),
                outcome: None,
                waker: None,
                detached: false,
            }),
        }
    }

    /// The closure of a job that no queue accepted.
    pub(crate) fn reclaim(&self) -> F {
        lock(&self.body)
            .closure
            .take()
            .expect("a job that was never queued has its closure")
    }

    /// Stores the outcome, or drops it if nobody wants it; then wakes.
    fn finish(&self, outcome: Result<T, JobError>, ran: bool) {
        let mut body = lock(&self.body);
        let unwanted = if body.detached {
            Some(outcome)
        } else {
            body.outcome = Some(outcome);
            None
        };
        let waker = body.waker.take();
        if ran {
            self.header.word.store(FINISHED, Release);
        }
        drop(body);
        if unwanted.is_some() {
            contain(|| drop(unwanted));
        }
        let Some(waker) = waker else { return };
        contain(|| match &self.deliver {
            Some(deliver) => deliver.deliver(waker),
            None => waker.wake(),
        });
    }
}

impl<F, T> Queued for Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn header(&self) -> &Header {
        &self.header
    }

    fn execute(&self, ended: &dyn Fn(bool)) {
        let closure = lock(&self.body)
            .closure
            .take()
            .expect("only the one claim takes the closure");
        let outcome = catch_unwind(AssertUnwindSafe(closure)).map_err(JobError::panic);
        ended(outcome.is_err());
        self.finish(outcome, true);
    }

    fn discard(&self, error: JobError) {
        let closure = lock(&self.body).closure.take();
        contain(|| drop(closure));
        self.finish(Err(error), false);
    }
}

impl<F, T> Awaited<T> for Cell<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, JobError>> {
        // A waker's clone and drop are the user's code: neither happens under the lock.
        let waker = cx.waker().clone();
        let mut body = lock(&self.body);
        if let Some(outcome) = body.outcome.take() {
            body.detached = true;
            return Poll::Ready(outcome);
        }
        assert!(
            !body.detached,
            "a `Job` was polled after it gave its outcome"
        );
        let previous = body.waker.replace(waker);
        drop(body);
        drop(previous);
        Poll::Pending
    }

    fn detach(&self) {
        let mut body = lock(&self.body);
        body.detached = true;
        let unwanted = body.outcome.take();
        let waker = body.waker.take();
        drop(body);
        contain(|| drop(unwanted));
        contain(|| drop(waker));
    }
}
