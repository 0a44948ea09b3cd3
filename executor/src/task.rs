#![allow(unsafe_code)]
//! Tasks: spawn, poll, join, abort; what panics in them is contained.
//!
//! This is the only file that knows the task cell (today the crate `async-task`); the rest
//! of the executor sees a [`Ready`], a task that is to be polled, and nothing else of it.
//!
//! A task's future sits in a [`Contained`], which polls it and ends it under
//! `catch_unwind`, and hands the outcome to the [`Join`] that its handle waits at. It ends
//! in one of four ways: with its output, with a panic, because it was aborted, or because
//! its shard shut down. Its future is dropped on its shard, always: an abort, and the
//! shutdown, only mark the task and have it polled, and the poll drops the future.
//!
//! A task that was never polled holds nothing that belongs to a shard: spawned from
//! another thread it is still the closure that will make the future, which is `Send`. So a
//! remote spawn is a remote wake of a task that never ran, and may be dropped anywhere.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use roundel_reactor::current::spend_budget;

use crate::current;
use crate::join::{AbortHandle, Id, JoinError, JoinHandle, SendJoinHandle, TaskRef, panic_message};
use crate::run_queue::Class;
use crate::shard::Home;

/// A task that is to be polled, on its shard.
///
/// It may be dropped anywhere. A task that was never polled ends with that. One that was
/// is leaked: its future belongs to a shard's thread, and only a poll ends it there.
pub(crate) struct Ready(Option<async_task::Runnable<Arc<Header>>>);

impl Ready {
    /// Polls the task. Nothing of it panics out of here.
    pub(crate) fn run(mut self) {
        if let Some(runnable) = self.0.take() {
            // The answer only says whether it woke itself, and it is queued already then.
            let _ = runnable.run();
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(runnable) = self.0.take()
            && runnable.metadata().polled.load(Ordering::Relaxed)
        {
            // Its shard had no time left for it, and has named it in its report.
            std::mem::forget(runnable);
        }
    }
}

/// What everybody who knows a task shares of it.
pub(crate) struct Header {
    id: Id,
    /// Set by the first poll. Relaxed is enough: whoever holds a [`Ready`] has it from the
    /// poll before.
    polled: AtomicBool,
    /// Set by anybody, read by the task's poll: it ends instead of going on.
    aborted: AtomicBool,
    /// Set once, when the future is gone and the outcome is there.
    finished: AtomicBool,
}

impl Header {
    fn new() -> Arc<Self> {
        Arc::new(Header {
            id: Id::next(),
            polled: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        })
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// The next poll ends the task.
    pub(crate) fn mark_aborted(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}

/// Spawns a task that stays on `home`'s shard, which is this thread's.
pub(crate) fn spawn_local<F>(home: &Arc<Home>, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let join = Rc::new(RefCell::new(Join::new()));
    let task = start(home, future, join.clone());
    JoinHandle::new(join, task)
}

/// Spawns a task on `home`'s shard from anywhere: `make` runs there.
pub(crate) fn spawn_remote<C, F>(home: &Arc<Home>, make: C) -> SendJoinHandle<F::Output>
where
    C: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    let join = Arc::new(Mutex::new(Join::new()));
    let task = start(home, async move { make().await }, join.clone());
    SendJoinHandle::of_task(join, task)
}

fn start<F, J>(home: &Arc<Home>, future: F, join: J) -> TaskRef
where
    F: Future + 'static,
    J: JoinPlace<F::Output> + 'static,
{
    let header = Header::new();
    let contained = Contained {
        future: Some(future),
        join,
        header: header.clone(),
        registered: None,
    };
    let home = home.clone();
    let schedule = move |runnable| Home::schedule(&home, Ready(Some(runnable)));
    let builder = async_task::Builder::new().metadata(header.clone());
    // SAFETY: the future is `'static`. It need not be `Send`: it is polled on its shard's
    // thread only, which debug builds assert, and ended there by a poll; a `Ready` that is
    // dropped ends only what was never polled. Of that, `spawn_local` queues its own on its
    // own thread at once, and `spawn_remote`'s future is a `Send` closure until its first
    // poll. The wakers may go anywhere and touch nothing but the cell's state and
    // `schedule`, which is `Send + Sync` (an `Arc<Home>`), as the metadata is.
    let (runnable, task) = unsafe { builder.spawn_unchecked(|_| contained, schedule) };
    task.detach();
    let waker = runnable.waker();
    runnable.schedule();
    TaskRef::new(header, waker)
}

/// A future and the place for its outcome. Whatever panics inside stays inside.
struct Contained<F, J>
where
    F: Future,
    J: JoinPlace<F::Output>,
{
    /// Pinned here: `None` once it was dropped.
    future: Option<F>,
    join: J,
    header: Arc<Header>,
    /// Its place among the live tasks of its shard, from the first poll to its end, and
    /// the thread it is bound to since.
    registered: Option<(usize, ThreadId)>,
}

impl<F, J> Future for Contained<F, J>
where
    F: Future,
    J: JoinPlace<F::Output>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is not moved out of here; it is polled in place, and dropped
        // in place by `end`. The other fields are not pinned.
        let this = unsafe { self.get_unchecked_mut() };
        let closing = current::with(|shard| {
            if this.registered.is_none() {
                let place = shard.register(cx.waker().clone());
                this.registered = Some((place, std::thread::current().id()));
                this.header.polled.store(true, Ordering::Relaxed);
            }
            shard.is_closing()
        });
        debug_assert_eq!(
            this.registered.map(|(_, thread)| thread),
            Some(std::thread::current().id()),
            "a task is polled on its own shard"
        );
        if closing.unwrap_or(true) || this.header.aborted.load(Ordering::Acquire) {
            this.end(Err(JoinError::cancelled(this.header.id)));
            return Poll::Ready(());
        }
        let Some(future) = &mut this.future else {
            return Poll::Ready(());
        };
        // SAFETY: `this` is pinned, and so is the future in it (see above).
        let future = unsafe { Pin::new_unchecked(future) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(JoinError::panic(this.header.id, payload)),
        };
        this.end(outcome);
        Poll::Ready(())
    }
}

impl<F, J> Contained<F, J>
where
    F: Future,
    J: JoinPlace<F::Output>,
{
    /// Drops the future, then hands the outcome over: who joins sees nothing of it alive.
    fn end(&mut self, outcome: Result<F::Output, JoinError>) {
        let outcome = match contain(|| self.future = None) {
            Ok(()) => outcome,
            // A cancelled task's destructor that panics is the task's panic.
            Err(payload) if outcome.as_ref().is_err_and(JoinError::is_cancelled) => {
                Err(JoinError::panic(self.header.id, payload))
            }
            Err(payload) => {
                log_panic("the drop of a task's future", payload);
                outcome
            }
        };
        if let Some((place, _)) = self.registered.take() {
            let _ = current::with(|shard| {
                if outcome.as_ref().is_err_and(JoinError::is_panic) {
                    shard.home().metrics.panic_caught();
                }
                shard.deregister(place)
            });
        }
        finish(&self.join, &self.header, outcome);
    }
}

impl<F, J> Drop for Contained<F, J>
where
    F: Future,
    J: JoinPlace<F::Output>,
{
    /// The cell drops it unfinished: it was never polled.
    fn drop(&mut self) {
        if self.future.is_some() {
            self.end(Err(JoinError::cancelled(self.header.id)));
        }
    }
}

/// Where a task's outcome waits for who joins it.
pub(crate) enum Join<T> {
    /// Not there yet; who joins is to be woken.
    Awaited(Option<Waker>),
    /// There.
    Done(Result<T, JoinError>),
    /// Taken, or not wanted: the handle is gone.
    Over,
}

impl<T> Join<T> {
    fn new() -> Self {
        Join::Awaited(None)
    }
}

/// A [`Join`] that its task and its handle share, on one shard or across threads.
pub(crate) trait JoinPlace<T> {
    fn with<R>(&self, f: impl FnOnce(&mut Join<T>) -> R) -> R;
}

impl<T> JoinPlace<T> for Rc<RefCell<Join<T>>> {
    fn with<R>(&self, f: impl FnOnce(&mut Join<T>) -> R) -> R {
        f(&mut self.borrow_mut())
    }
}

impl<T> JoinPlace<T> for Arc<Mutex<Join<T>>> {
    fn with<R>(&self, f: impl FnOnce(&mut Join<T>) -> R) -> R {
        // Nothing of the user's runs under the lock, so a poisoned one is as good.
        f(&mut self
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// The task's side: leaves the outcome, and wakes who joins.
fn finish<T>(join: &impl JoinPlace<T>, header: &Header, outcome: Result<T, JoinError>) {
    let mut outcome = Some(outcome);
    let waker = join.with(|join| match join {
        Join::Awaited(waker) => {
            let waker = waker.take();
            if let Some(outcome) = outcome.take() {
                *join = Join::Done(outcome);
            }
            waker
        }
        Join::Done(_) | Join::Over => None,
    });
    header.finished.store(true, Ordering::Release);
    if let Some(outcome) = outcome {
        discard(outcome);
    }
    if let Some(waker) = waker
        && let Err(payload) = contain(|| waker.wake())
    {
        log_panic("the waker of who joins a task", payload);
    }
}

/// The handle's side: takes the outcome, or leaves the waker.
pub(crate) fn poll_join<T>(
    join: &impl JoinPlace<T>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, JoinError>> {
    // The clone is the user's code, and the old waker's drop is, too: neither runs while
    // the place is held.
    let mut waker = Some(cx.waker().clone());
    let ready = join.with(|join| match join {
        Join::Awaited(stored) => {
            std::mem::swap(stored, &mut waker);
            false
        }
        Join::Done(_) => true,
        Join::Over => panic!("a join handle was polled after it resolved"),
    });
    drop(waker);
    if !ready || spend_budget(cx).is_pending() {
        return Poll::Pending;
    }
    match join.with(|join| std::mem::replace(join, Join::Over)) {
        Join::Done(outcome) => Poll::Ready(outcome),
        Join::Awaited(_) | Join::Over => unreachable!("it was done a moment ago"),
    }
}

/// The handle goes: the task is detached, and an outcome that waits is dropped here.
pub(crate) fn detach<T>(join: &impl JoinPlace<T>) {
    match join.with(|join| std::mem::replace(join, Join::Over)) {
        Join::Done(outcome) => discard(outcome),
        // The waker's drop is the user's code, and runs where the user dropped the handle.
        Join::Awaited(_) | Join::Over => {}
    }
}

/// Drops an outcome that nobody takes. A panic in it is said aloud; a panic in its drop
/// reaches nobody either (H44).
fn discard<T>(outcome: Result<T, JoinError>) {
    if let Err(error) = &outcome
        && error.is_panic()
    {
        say(format_args!("nobody joins a task that panicked: {error}"));
    }
    if let Err(payload) = contain(|| drop(outcome)) {
        log_panic("the drop of an output that nobody took", payload);
    }
}

/// Runs foreign code whose panic must not pass.
pub(crate) fn contain<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Says on standard error that something panicked which nobody joins.
pub(crate) fn log_panic(what: &str, payload: Box<dyn Any + Send>) {
    let message = panic_message(&*payload);
    say(format_args!("{what} panicked: {message}"));
    // A payload may panic in its drop: that second one is leaked.
    if let Err(second) = contain(|| drop(payload)) {
        std::mem::forget(second);
    }
}

/// Says something on standard error. That nobody listens there any more (a pipe whose
/// reader has gone) must not bring a shard down, as the panic of `eprintln!` would.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "roundel: {text}");
}

/// Wakes a task so that it is polled as a completion is: an abort ends a wait (M1).
pub(crate) fn wake_as_completion(waker: &Waker) {
    match current::with(|shard| shard.class()) {
        Some(former) => {
            let _ = current::with(|shard| shard.set_class(Class::Completion));
            waker.wake_by_ref();
            let _ = current::with(|shard| shard.set_class(former));
        }
        None => waker.wake_by_ref(),
    }
}

impl AbortHandle {
    /// Marks the task and has it polled, which drops its future on its own shard.
    pub(crate) fn abort_task(task: &TaskRef) {
        task.header().mark_aborted();
        wake_as_completion(task.waker());
    }
}
