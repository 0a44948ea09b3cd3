//! A join handle that ends its task when it is dropped.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::join::{AbortHandle, Id, JoinError, JoinHandle, SendJoinHandle};

/// Waits for a task as its join handle does, and aborts it when dropped.
///
/// So a task can be a part of its owner: when the owner is dropped, whether it was done or not, the
/// task goes, too. `H` is the handle: [`new`](Self::new) takes a [`JoinHandle`], [`From`] also a
/// [`SendJoinHandle`], of which the result is as `Send` as the handle.
///
/// # Cancellation
///
/// Dropping it aborts the task: it is not polled again, and its future is dropped on its shard
/// soon, not before this drop returns. A blocking job that has begun goes on. Wait on `&mut handle`
/// to keep it.
///
/// # Examples
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use roundel_executor::sync::oneshot;
/// use roundel_executor::{AbortOnDropHandle, spawn};
///
/// let (sender, receiver) = oneshot::channel::<()>();
/// let task = AbortOnDropHandle::new(spawn(async move {
///     std::future::pending::<()>().await;
///     drop(sender);
/// }));
/// drop(task);
/// assert!(receiver.await.is_err(), "the task has dropped its sender");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping it aborts the task"]
pub struct AbortOnDropHandle<T, H = JoinHandle<T>> {
    /// `None` once it was detached.
    handle: Option<H>,
    abort: AbortHandle,
    output: PhantomData<fn() -> T>,
}

impl<T> AbortOnDropHandle<T> {
    /// Ends the task of this handle when dropped.
    pub fn new(handle: JoinHandle<T>) -> Self {
        let abort = handle.abort_handle();
        AbortOnDropHandle::of(handle, abort)
    }
}

impl<T, H> AbortOnDropHandle<T, H> {
    fn of(handle: H, abort: AbortHandle) -> Self {
        AbortOnDropHandle {
            handle: Some(handle),
            abort,
            output: PhantomData,
        }
    }

    /// Ends the task now; awaiting this then gives an error that
    /// [`is_cancelled`](JoinError::is_cancelled), unless the task had finished before.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// A handle that can end the task from any thread, and cannot wait for it.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Whether awaiting this gives an answer at once.
    pub fn is_finished(&self) -> bool {
        self.abort.is_finished()
    }

    /// The task's number.
    pub fn id(&self) -> Id {
        self.abort.id()
    }

    /// Gives the join handle back, whose drop does not abort the task.
    pub fn detach(mut self) -> H {
        self.handle
            .take()
            .expect("it has its handle until it is detached")
    }
}

impl<T> From<JoinHandle<T>> for AbortOnDropHandle<T> {
    fn from(handle: JoinHandle<T>) -> Self {
        AbortOnDropHandle::new(handle)
    }
}

impl<T: Send + 'static> From<SendJoinHandle<T>> for AbortOnDropHandle<T, SendJoinHandle<T>> {
    fn from(handle: SendJoinHandle<T>) -> Self {
        let abort = handle.abort_handle();
        AbortOnDropHandle::of(handle, abort)
    }
}

impl<T, H> Future for AbortOnDropHandle<T, H>
where
    H: Future<Output = Result<T, JoinError>> + Unpin,
{
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If polled after it resolved.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let handle = self.handle.as_mut();
        Pin::new(handle.expect("it has its handle until it is detached")).poll(cx)
    }
}

impl<T, H> Drop for AbortOnDropHandle<T, H> {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.abort.abort();
        }
    }
}

impl<T, H> fmt::Debug for AbortOnDropHandle<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortOnDropHandle")
            .field("id", &self.id())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::sync::oneshot;
    use crate::time::timeout;
    use crate::{Builder, Cores, spawn, spawn_on, yield_now};

    fn run<F: Future>(future: F) -> F::Output {
        let builder = Builder::new().cores(Cores::Count(1));
        let waited = timeout(Duration::from_secs(20), future);
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(waited).expect("it ends in time")
    }

    fn is_send<T: Send>(_: &T) {}

    /// Awaited, it gives what the task gives.
    #[test]
    fn joins() {
        run(async {
            let mut task = AbortOnDropHandle::new(spawn(async { 1 }));
            assert!(!task.is_finished());
            assert_eq!((&mut task).await.expect("no panic"), 1);
            assert!(task.is_finished());
            let panicked = AbortOnDropHandle::from(spawn(async { panic!("it panics") }));
            assert!(panicked.await.unwrap_err().is_panic());
        });
    }

    /// Dropped, it has the task's future dropped, once; a running and a fresh one alike.
    #[test]
    fn aborts_when_dropped() {
        run(async {
            for started in [true, false] {
                let held = Rc::new(());
                let inner = held.clone();
                let (sender, receiver) = oneshot::channel::<()>();
                let task = AbortOnDropHandle::new(spawn(async move {
                    let _held = (inner, sender);
                    pending::<()>().await;
                }));
                if started {
                    yield_now().await;
                }
                drop(task);
                assert!(receiver.await.is_err());
                assert_eq!(Rc::strong_count(&held), 1);
            }
        });
    }

    /// Detached, the task goes on, and the handle joins it; aborted, it says so.
    #[test]
    fn detaches_and_aborts() {
        run(async {
            let (sender, receiver) = oneshot::channel::<()>();
            let task = AbortOnDropHandle::new(spawn(receiver));
            let handle = task.detach();
            assert!(sender.send(()).is_ok(), "the receiver lives");
            assert!(handle.await.expect("not aborted").is_ok());
            let task = AbortOnDropHandle::new(spawn(pending::<()>()));
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        });
    }

    /// Over a handle that can be sent it can be sent, and ends the task of the other side.
    #[test]
    fn of_a_send_handle() {
        run(async {
            let task = AbortOnDropHandle::from(spawn_on(0, || async { 2 }));
            is_send(&task);
            assert_eq!(task.await.expect("no panic"), 2);
            let task = AbortOnDropHandle::from(spawn_on(0, pending::<()>));
            let abort = task.abort_handle();
            drop(task);
            while !abort.is_finished() {
                yield_now().await;
            }
        });
    }
}
