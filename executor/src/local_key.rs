//! Values that a task carries with it: task-locals.
//!
//! **How it works.** A key is a thread-local slot, which is empty while no task is in one of the
//! key's scopes. A scope keeps its value beside its future, and swaps it with the slot's content
//! for the length of each poll, and of the future's drop. So scopes nest, tasks do not see each
//! other's values, and a panic swaps back as a return does.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::marker::PhantomPinned;
use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use pin_project::{pin_project, pinned_drop};

/// Declares task-locals: a [`LocalKey`](crate::LocalKey) each, with the syntax of `thread_local!`,
/// but without a first value. See there for what they do.
///
/// ```
/// roundel_executor::task_local! {
///     /// Which request the task serves.
///     pub static REQUEST: u64;
///     static USER: String;
/// }
/// # REQUEST.sync_scope(1, || USER.sync_scope(String::new(), || ()));
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);* $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::LocalKey<$type> = {
            ::std::thread_local! {
                static SLOT: $crate::__TaskLocalSlot<$type> =
                    const { $crate::__TaskLocalSlot::new() };
            }
            $crate::LocalKey::__new(SLOT)
        };
    )*};
}

/// A value that belongs to a task, or a part of it, and that whatever runs there can find without
/// being passed it. Declared by [`task_local!`](crate::task_local).
///
/// It has a value inside of its scopes only: while [`scope`](Self::scope)'s future is polled or
/// dropped, and in [`sync_scope`](Self::sync_scope)'s closure. The innermost scope counts. A task
/// that is spawned in a scope is not in it.
///
/// # Examples
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use roundel_executor::{spawn, yield_now};
///
/// roundel_executor::task_local! {
///     static REQUEST: u64;
/// }
///
/// async fn serve() -> u64 {
///     yield_now().await;
///     REQUEST.get()
/// }
///
/// let first = spawn(REQUEST.scope(1, serve()));
/// let second = spawn(REQUEST.scope(2, serve()));
/// assert_eq!((first.await?, second.await?), (1, 2));
/// assert!(REQUEST.try_with(|_| ()).is_err(), "this task is in no scope");
/// # Ok::<(), roundel_executor::JoinError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LocalKey<T: 'static> {
    slot: thread::LocalKey<Slot<T>>,
}

impl<T: 'static> LocalKey<T> {
    /// For [`task_local!`](crate::task_local).
    #[doc(hidden)]
    pub const fn __new(slot: thread::LocalKey<Slot<T>>) -> Self {
        LocalKey { slot }
    }

    /// Makes `value` this key's value for a future, wherever it is polled and while it is dropped.
    ///
    /// # Panics
    ///
    /// The returned future panics if it is polled in the closure of [`with`](Self::with) of the same
    /// key, or after it was ready.
    ///
    /// # Cancellation
    ///
    /// Dropping the returned future drops `future`, and then the value.
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> TaskLocalFuture<T, F> {
        TaskLocalFuture {
            key: self,
            value: Some(value),
            future: Some(future),
            pinned: PhantomPinned,
        }
    }

    /// Makes `value` this key's value while `f` runs.
    ///
    /// # Panics
    ///
    /// In the closure of [`with`](Self::with) of the same key.
    #[track_caller]
    pub fn sync_scope<R>(&'static self, value: T, f: impl FnOnce() -> R) -> R {
        match self.enter(&mut Some(value), f) {
            Ok(output) => output,
            Err(InUse) => panic!("{IN_USE}"),
        }
    }

    /// Calls `f` with the value. `f` may read the key again, but not enter a scope of it.
    ///
    /// # Panics
    ///
    /// Outside of the key's scopes.
    #[track_caller]
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        match self.try_with(f) {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`with`](Self::with), without its panic.
    ///
    /// # Errors
    ///
    /// Outside of the key's scopes.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        self.slot.with(|slot| match &*slot.0.borrow() {
            Some(value) => Ok(f(value)),
            None => Err(AccessError(())),
        })
    }

    /// A copy of the value.
    ///
    /// # Panics
    ///
    /// Outside of the key's scopes.
    #[track_caller]
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }

    /// As [`get`](Self::get), without its panic.
    ///
    /// # Errors
    ///
    /// Outside of the key's scopes.
    pub fn try_get(&'static self) -> Result<T, AccessError>
    where
        T: Clone,
    {
        self.try_with(T::clone)
    }

    /// Calls `f` with `value` in the slot, and what was there in `value`.
    fn enter<R>(&'static self, value: &mut Option<T>, f: impl FnOnce() -> R) -> Result<R, InUse> {
        self.swap(value)?;
        let _entered = Entered { key: self, value };
        Ok(f())
    }

    fn swap(&'static self, value: &mut Option<T>) -> Result<(), InUse> {
        self.slot.with(|slot| {
            let mut content = slot.0.try_borrow_mut().map_err(|_| InUse)?;
            mem::swap(&mut *content, value);
            Ok(())
        })
    }
}

impl<T: 'static> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// The future of [`LocalKey::scope`].
#[pin_project(PinnedDrop)]
#[must_use = "futures do nothing unless they are polled"]
pub struct TaskLocalFuture<T: 'static, F> {
    key: &'static LocalKey<T>,
    /// The scope's value; while it is polled, what it hides.
    value: Option<T>,
    /// `None` once it was ready.
    #[pin]
    future: Option<F>,
    /// Nobody is to rely on `Unpin` of a future that keeps a value for another one.
    #[pin]
    pinned: PhantomPinned,
}

impl<T: 'static, F> TaskLocalFuture<T, F> {
    /// Takes the value out. Without it the future, if it is not ready yet, goes on as if it were
    /// outside of the key's scopes.
    pub fn take_value(self: Pin<&mut Self>) -> Option<T> {
        self.project().value.take()
    }
}

impl<T: 'static, F: Future> Future for TaskLocalFuture<T, F> {
    type Output = F::Output;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut future = this.future;
        let polled = this.key.enter(this.value, || {
            let polled = future.as_mut().as_pin_mut()?.poll(cx);
            if polled.is_ready() {
                // Here, so that its drop sees the value.
                future.set(None);
            }
            Some(polled)
        });
        match polled {
            Ok(Some(polled)) => polled,
            Ok(None) => panic!("a task-local scope was polled after it was ready"),
            Err(InUse) => panic!("{IN_USE}"),
        }
    }
}

#[pinned_drop]
impl<T: 'static, F> PinnedDrop for TaskLocalFuture<T, F> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        let mut future = this.future;
        if mem::needs_drop::<F>() && future.is_some() {
            // In use, it is dropped with the other fields, and does not see the value: a drop is no
            // place to panic.
            let _ = this.key.enter(this.value, || future.set(None));
        }
    }
}

impl<T: 'static, F> fmt::Debug for TaskLocalFuture<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskLocalFuture").finish_non_exhaustive()
    }
}

/// The key has no value: this is outside of its scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError(());

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task-local has no value here: use it inside its `scope`")
    }
}

impl Error for AccessError {}

/// Where a key's value is while its scope runs; one a thread. For [`task_local!`](crate::task_local).
// `ManuallyDrop` keeps the thread-local free of a destructor, so that it can be used at any time in
// a thread's life; no scope outlives its call, so what is in it at the end is `None`.
#[doc(hidden)]
#[derive(Debug)]
pub struct Slot<T>(ManuallyDrop<RefCell<Option<T>>>);

impl<T> Slot<T> {
    /// An empty one.
    #[expect(
        clippy::new_without_default,
        reason = "for the macro alone, in a constant"
    )]
    pub const fn new() -> Self {
        Slot(ManuallyDrop::new(RefCell::new(None)))
    }
}

/// Somebody reads the slot, so its content stays.
struct InUse;

/// What a misplaced scope is told.
const IN_USE: &str = "a task-local's scope cannot be entered inside `with` of the same key";

/// The scope's value is in the slot until this is dropped, by a panic, too.
struct Entered<'a, T: 'static> {
    key: &'static LocalKey<T>,
    value: &'a mut Option<T>,
}

impl<T: 'static> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        let left = self.key.swap(self.value);
        debug_assert!(left.is_ok(), "who began to read inside has ended inside");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;

    crate::task_local! {
        /// A number.
        pub static NUMBER: u32;
        static TEXT: Rc<str>;
    }
    crate::task_local!(static COUNTED: Rc<()>);

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn number() -> Option<u32> {
        NUMBER.try_get().ok()
    }

    /// Ready at the second poll, with what the polls saw.
    fn two_polls() -> impl Future<Output = [Option<u32>; 2]> {
        let mut first = None;
        poll_fn(move |_| match first {
            None => {
                first = Some(number());
                Poll::Pending
            }
            Some(first) => Poll::Ready([first, number()]),
        })
    }

    /// Futures that are polled in turns see their own value each, and who polls them sees none.
    #[test]
    fn each_sees_its_own() {
        let mut one = pin!(NUMBER.scope(1, two_polls()));
        let mut two = pin!(NUMBER.scope(2, two_polls()));
        assert!(poll(one.as_mut()).is_pending());
        assert!(poll(two.as_mut()).is_pending());
        assert_eq!(number(), None);
        assert_eq!(poll(two), Poll::Ready([Some(2); 2]));
        assert_eq!(poll(one), Poll::Ready([Some(1); 2]));
    }

    /// The innermost scope counts, and the outer value is back after it; keys do not mix.
    #[test]
    fn scopes_nest() {
        let seen = NUMBER.sync_scope(1, || {
            let mut inner = pin!(NUMBER.scope(2, two_polls()));
            assert!(poll(inner.as_mut()).is_pending());
            assert_eq!(number(), Some(1));
            let text = TEXT.sync_scope("text".into(), || (TEXT.get(), number()));
            assert_eq!(text, ("text".into(), Some(1)));
            NUMBER.sync_scope(3, || {
                assert_eq!(poll(inner.as_mut()), Poll::Ready([Some(2); 2]));
                number()
            })
        });
        assert_eq!(seen, Some(3));
        assert_eq!(number(), None);
    }

    /// After a panic in a poll and in a closure, the slot holds what it held before, and the scope
    /// its own value.
    #[test]
    fn a_panic_swaps_back() {
        NUMBER.sync_scope(1, || {
            let panics = poll_fn(|_| -> Poll<()> { panic!("{:?}", number()) });
            let mut scope = pin!(NUMBER.scope(2, panics));
            let caught = catch_unwind(AssertUnwindSafe(|| poll(scope.as_mut())));
            let message = caught.unwrap_err().downcast::<String>().expect("a text");
            assert_eq!(*message, "Some(2)");
            assert_eq!(number(), Some(1));
            assert_eq!(scope.as_mut().take_value(), Some(2));
            let caught = catch_unwind(|| NUMBER.sync_scope(3, || panic!("a closure panics")));
            assert!(caught.is_err());
            assert_eq!(number(), Some(1));
            let caught = catch_unwind(|| NUMBER.with(|_| panic!("a closure panics")));
            assert!(caught.is_err());
            NUMBER.sync_scope(4, || ());
        });
        assert_eq!(number(), None);
    }

    /// Says on its drop which number it sees there.
    struct Tell<'a>(&'a Cell<Option<u32>>);

    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            self.0.set(number());
        }
    }

    /// The future's drop sees the value: dropped early, and when it is ready.
    #[test]
    fn the_drop_is_in_the_scope() {
        let seen = Cell::new(None);
        let tell = Tell(&seen);
        drop(NUMBER.scope(1, async move {
            let _tell = tell;
            pending::<()>().await;
        }));
        assert_eq!(seen.take(), Some(1));
        let mut tell = Some(Tell(&seen));
        let kept = poll_fn(move |_| {
            let _kept = &mut tell;
            Poll::Ready(())
        });
        let mut scope = pin!(NUMBER.scope(2, kept));
        assert!(poll(scope.as_mut()).is_ready());
        assert_eq!(seen.take(), Some(2));
        assert_eq!(
            scope.as_mut().take_value(),
            Some(2),
            "the value outlives it"
        );
        assert_eq!(scope.as_mut().take_value(), None);
        let again = catch_unwind(AssertUnwindSafe(|| poll(scope.as_mut())));
        assert!(again.is_err());
        assert_eq!(number(), None);
    }

    /// The value is dropped with its scope, once; taken out early, the future finds none.
    #[test]
    fn the_value_is_dropped() {
        let value = Rc::new(());
        let copy = COUNTED.sync_scope(value.clone(), || COUNTED.get());
        assert_eq!(Rc::strong_count(&value), 2);
        drop(copy);
        let mut scope = Box::pin(COUNTED.scope(value.clone(), pending::<()>()));
        assert!(poll(scope.as_mut()).is_pending());
        assert_eq!(Rc::strong_count(&value), 2);
        drop(scope);
        assert_eq!(Rc::strong_count(&value), 1);
        let mut scope = pin!(NUMBER.scope(1, async { number() }));
        assert_eq!(scope.as_mut().take_value(), Some(1));
        assert_eq!(NUMBER.sync_scope(2, || poll(scope)), Poll::Ready(None));
    }

    /// Inside `with` the key can be read, its scopes cannot be entered, and one that is dropped there
    /// is dropped without its value.
    #[test]
    fn reading_keeps_the_value() {
        let seen = Cell::new(Some(0));
        let tell = Tell(&seen);
        let scope = NUMBER.scope(2, async move { drop(tell) });
        NUMBER.sync_scope(1, || {
            NUMBER.with(|one| {
                assert_eq!(NUMBER.get(), *one);
                assert!(catch_unwind(|| NUMBER.sync_scope(2, || ())).is_err());
                drop(scope);
            });
            assert_eq!(seen.take(), Some(1), "the outer one");
            assert_eq!(number(), Some(1));
        });
    }

    /// Outside of a scope there is an error, or a panic that says so.
    #[test]
    fn outside() {
        assert_eq!(NUMBER.try_with(|_| ()), Err(AccessError(())));
        let caught = catch_unwind(|| NUMBER.get()).unwrap_err();
        let message = caught.downcast::<String>().expect("a text");
        assert!(message.contains("inside its `scope`"), "{message}");
    }
}
