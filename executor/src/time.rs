//! Futures over the shard's timers.
//!
//! Names and meanings are those of `tokio::time`, but [`Instant`] is the standard library's. A
//! timer is exact: it fires at or after its deadline, never before, and nothing is rounded to
//! milliseconds. Durations may be as long as they like: a deadline that the clock cannot represent
//! is never reached.
//!
//! | future | dropping it before it is ready |
//! |---|---|
//! | [`Sleep`] | cancels the timer, which leaves no memory behind |
//! | [`Timeout`] | drops the inner future, and cancels the timer |
//! | [`Interval::tick`] | loses no tick: the next call waits for the same one |
//!
//! These futures may be created anywhere and moved between threads before they are first polled;
//! they are polled inside [`Runtime::block_on`](crate::Runtime::block_on) or a task.
//!
//! **How it works.** The first poll that finds the deadline still ahead puts it and the task's waker
//! into the `Timers` of the shard that polls, and remembers which ones
//! those were. The shard takes it out when the deadline has come and wakes the task, so a later
//! poll needs no clock: a timer that is no longer there has fired. A future that comes to another
//! shard, whose timers have another id, registers there anew; its old entry, out of reach, wakes
//! the task once for nothing.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use pin_project::pin_project;
use roundel_reactor::current::spend_budget;

use crate::current::NO_SHARD;
use crate::timers::{Key, Timers};

#[cfg(not(test))]
use crate::current::timers;
#[cfg(test)]
use tests::timers;

/// A tick that is later than this was missed, as in tokio: less is the ordinary lateness of a busy
/// shard, and no reason to move the ticks that follow.
const TICK_MISSED_AFTER: Duration = Duration::from_millis(5);

/// Waits until `duration` has passed. [`Duration::MAX`] waits for ever.
///
/// # Panics
///
/// The future panics when it is polled where no shard runs.
///
/// # Cancellation
///
/// Dropping this future cancels the timer.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use roundel_executor::time::sleep;
///
/// async fn rest() {
///     let before = Instant::now();
///     sleep(Duration::from_micros(100)).await;
///     assert!(before.elapsed() >= Duration::from_micros(100));
/// }
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(later(Instant::now(), duration))
}

/// Waits until `deadline`. One that has passed is ready at once.
///
/// # Panics
///
/// The future panics when it is polled where no shard runs.
///
/// # Cancellation
///
/// Dropping this future cancels the timer.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        registration: None,
    }
}

/// The future of [`sleep`] and [`sleep_until`].
///
/// It may be polled again after it was ready, and then is ready again, until it is
/// [`reset`](Sleep::reset).
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Sleep {
    deadline: Instant,
    registration: Option<Registration>,
}

/// Where a sleep's timer is.
#[derive(Clone, Copy, Debug)]
struct Registration {
    /// The [`Timers::id`] of the shard it is in.
    timers: u64,
    key: Key,
}

/// How a sleep stands with the timers of this shard.
enum Standing {
    /// It has no timer here, or never had one.
    Absent,
    Fired,
    /// It waits, with this very waker.
    Waiting,
    /// It waits, with another waker.
    OtherWaker(Key),
}

impl Sleep {
    /// When it will be ready. For a duration too long to represent, the end of time as the clock
    /// knows it.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Moves the deadline, forward or back, whether or not the old one has passed. A task that waits
    /// here is woken at the new one without polling again, if this is called on its own shard.
    pub fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().move_to(deadline);
    }

    fn move_to(&mut self, deadline: Instant) {
        self.deadline = deadline;
        let Some(Registration { timers: id, key }) = self.registration.take() else {
            return;
        };
        self.registration = timers(|timers| {
            let mut timers = timers.borrow_mut();
            if timers.id() != id {
                return None;
            }
            let waker = timers.cancel(key)?;
            let key = timers.insert(deadline, waker);
            Some(Registration { timers: id, key })
        })
        .flatten();
    }

    /// Like `poll`, without spending the task's budget.
    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let standing = timers(|timers| self.standing(&timers.borrow(), cx.waker()));
        match standing.expect(NO_SHARD) {
            Standing::Waiting => Poll::Pending,
            Standing::Fired => {
                self.registration = None;
                Poll::Ready(())
            }
            Standing::OtherWaker(key) => {
                // Clones and drops run the wakers' own code, so they happen outside of the borrow.
                let waker = cx.waker().clone();
                let unused = timers(|timers| timers.borrow_mut().replace_waker(key, waker));
                drop(unused);
                Poll::Pending
            }
            Standing::Absent if self.is_elapsed() => {
                self.registration = None;
                Poll::Ready(())
            }
            Standing::Absent => {
                let waker = cx.waker().clone();
                self.registration = timers(|timers| {
                    let mut timers = timers.borrow_mut();
                    let key = timers.insert(self.deadline, waker);
                    Registration {
                        timers: timers.id(),
                        key,
                    }
                });
                Poll::Pending
            }
        }
    }

    fn standing(&self, timers: &Timers, waker: &Waker) -> Standing {
        match self.registration {
            Some(Registration { timers: id, key }) if id == timers.id() => {
                match timers.waker(key) {
                    None => Standing::Fired,
                    Some(old) if old.will_wake(waker) => Standing::Waiting,
                    Some(_) => Standing::OtherWaker(key),
                }
            }
            _ => Standing::Absent,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.get_mut().poll_elapsed(cx));
        spend_budget(cx)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(Registration { timers: id, key }) = self.registration else {
            return;
        };
        let waker = timers(|timers| {
            let mut timers = timers.borrow_mut();
            (timers.id() == id).then(|| timers.cancel(key))
        });
        // Dropping a waker may drop a task: nothing is borrowed any more.
        drop(waker);
    }
}

/// `start + duration`, or the last instant the clock can represent, which never comes.
fn later(start: Instant, duration: Duration) -> Instant {
    if let Some(deadline) = start.checked_add(duration) {
        return deadline;
    }
    (0..u64::BITS).rev().fold(start, |latest, bit| {
        let step = Duration::from_secs(1 << bit);
        latest.checked_add(step).unwrap_or(latest)
    })
}

/// Gives `future` at most `duration` to finish.
///
/// The future is polled before the clock is looked at: one that is ready at once succeeds even with
/// [`Duration::ZERO`].
///
/// # Errors
///
/// [`Elapsed`](error::Elapsed) if the time was up first. The inner future is then dropped together
/// with the [`Timeout`], not earlier.
///
/// # Panics
///
/// If it has to wait where no shard runs.
///
/// # Cancellation
///
/// Dropping this future drops the inner one. What that means is the inner future's matter; the
/// table in [`sync`](crate::sync) says so for channels.
///
/// # Examples
///
/// ```
/// use std::future::{pending, ready};
/// use std::time::Duration;
/// use roundel_executor::time::timeout;
///
/// async fn hurry() {
///     assert_eq!(timeout(Duration::ZERO, ready(7)).await, Ok(7));
///     assert!(timeout(Duration::from_millis(1), pending::<()>()).await.is_err());
/// }
/// ```
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    timeout_at(later(Instant::now(), duration), future)
}

/// Gives `future` until `deadline` to finish. Otherwise like [`timeout`].
///
/// # Errors
///
/// [`Elapsed`](error::Elapsed) if the deadline came first.
///
/// # Panics
///
/// If it has to wait where no shard runs.
///
/// # Cancellation
///
/// Dropping this future drops the inner one.
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout {
        future: future.into_future(),
        sleep: sleep_until(deadline),
    }
}

/// The future of [`timeout`] and [`timeout_at`].
#[pin_project]
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Timeout<F> {
    #[pin]
    future: F,
    sleep: Sleep,
}

impl<F> Timeout<F> {
    /// The inner future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The inner future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The inner future, without its deadline.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, error::Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        // No budget is spent: an inner future that uses the task's share up in every poll must not
        // keep its deadline away.
        ready!(this.sleep.poll_elapsed(cx));
        Poll::Ready(Err(error::Elapsed(())))
    }
}

/// The error of this module.
pub mod error {
    use std::error::Error;
    use std::fmt;
    use std::io;

    /// The time was up before the future was ready.
    ///
    /// Converts into an [`io::Error`] of the kind [`TimedOut`](io::ErrorKind::TimedOut), for `?`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Elapsed(pub(super) ());

    impl fmt::Display for Elapsed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the deadline has passed")
        }
    }

    impl Error for Elapsed {}

    impl From<Elapsed> for io::Error {
        fn from(elapsed: Elapsed) -> io::Error {
            io::Error::new(io::ErrorKind::TimedOut, elapsed)
        }
    }
}

/// Ticks every `period`, for the first time at once.
///
/// # Panics
///
/// If `period` is zero.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use roundel_executor::time::interval;
///
/// async fn three_beats() {
///     let mut beat = interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         beat.tick().await;
///     }
/// }
/// ```
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Ticks every `period`, for the first time at `start`.
///
/// # Panics
///
/// If `period` is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval's period must not be zero");
    Interval {
        sleep: sleep_until(start),
        period,
        missed_tick_behavior: MissedTickBehavior::default(),
    }
}

/// What an [`Interval`] does when it is asked for a tick more than 5 ms late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MissedTickBehavior {
    /// Ticks as fast as it is asked until it has caught up. The default.
    #[default]
    Burst,
    /// Ticks one period after the late tick, and every period from there.
    Delay,
    /// Leaves out what was missed, and ticks next at a multiple of the period from the start.
    Skip,
}

impl MissedTickBehavior {
    /// The tick after the one of `due`, which was served late, at `now`.
    fn next(self, due: Instant, now: Instant, period: Duration) -> Instant {
        match self {
            MissedTickBehavior::Burst => later(due, period),
            MissedTickBehavior::Delay => later(now, period),
            MissedTickBehavior::Skip => {
                let late = now.duration_since(due).as_nanos() % period.as_nanos();
                // What is left is below the period, or below 2^64 s of a longer one.
                let seconds = u64::try_from(late / 1_000_000_000).unwrap_or(u64::MAX);
                let nanos = u32::try_from(late % 1_000_000_000).unwrap_or(0);
                later(now, period - Duration::new(seconds, nanos))
            }
        }
    }
}

/// Ticks at a steady pace; made by [`interval`] and [`interval_at`].
#[derive(Debug)]
pub struct Interval {
    /// Until the next tick.
    sleep: Sleep,
    period: Duration,
    missed_tick_behavior: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick. Returns the instant at which it was due.
    ///
    /// # Panics
    ///
    /// If it is polled where no shard runs.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses no tick.
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Asks for the next tick. If there is none yet, the task is woken when it is due.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let due = self.sleep.deadline();
        let now = Instant::now();
        let next = if now > later(due, TICK_MISSED_AFTER) {
            self.missed_tick_behavior.next(due, now, self.period)
        } else {
            later(due, self.period)
        };
        self.sleep.move_to(next);
        Poll::Ready(due)
    }

    /// The next tick is one period from now, the others follow from there.
    pub fn reset(&mut self) {
        self.reset_at(later(Instant::now(), self.period));
    }

    /// The next tick is now, the others follow from there.
    pub fn reset_immediately(&mut self) {
        self.reset_at(Instant::now());
    }

    /// The next tick is `duration` from now, the others follow from there.
    pub fn reset_after(&mut self, duration: Duration) {
        self.reset_at(later(Instant::now(), duration));
    }

    /// The next tick is at `deadline`, the others follow from there.
    pub fn reset_at(&mut self, deadline: Instant) {
        self.sleep.move_to(deadline);
    }

    /// What happens when a tick is missed.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed_tick_behavior
    }

    /// Sets what happens when a tick is missed.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed_tick_behavior = behavior;
    }

    /// The time from one tick to the next.
    pub fn period(&self) -> Duration {
        self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    thread_local! {
        /// The timers of the shard that seems to run on this thread.
        static SHARD: RefCell<Option<&'static RefCell<Timers>>> = const { RefCell::new(None) };
    }

    /// The timers that `run` set up, else the ones of the shard that really runs.
    pub(super) fn timers<R>(f: impl FnOnce(&RefCell<Timers>) -> R) -> Option<R> {
        match SHARD.with(|shard| *shard.borrow()) {
            Some(timers) => Some(f(timers)),
            None => crate::current::timers(f),
        }
    }

    /// A shard that has timers only.
    struct Shard(&'static RefCell<Timers>);

    impl Shard {
        fn new() -> Shard {
            Shard(Box::leak(Box::new(RefCell::new(Timers::new()))))
        }

        /// Runs `f` on this shard.
        fn run<R>(&self, f: impl FnOnce() -> R) -> R {
            let former = SHARD.with(|shard| shard.replace(Some(self.0)));
            let result = f();
            SHARD.with(|shard| shard.replace(former));
            result
        }

        fn len(&self) -> usize {
            self.0.borrow().len()
        }

        /// Wakes what is due at `now`.
        fn expire(&self, now: Instant) {
            let mut wakers = Vec::new();
            self.0.borrow_mut().expire(now, usize::MAX, &mut wakers);
            self.run(|| wakers.into_iter().for_each(Waker::wake));
        }

        fn next_deadline(&self) -> Option<Instant> {
            self.0.borrow().next_deadline()
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counting() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), Waker::from(count))
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A sleep registers when it is polled, at its exact deadline, and is ready when its timer has
    /// fired; it stays ready.
    #[test]
    fn sleeps_until_its_timer_fires() {
        let shard = Shard::new();
        shard.run(|| {
            let mut long = sleep(HOUR);
            assert_eq!(shard.len(), 0);
            assert!(poll(&mut long).is_pending());
            assert!(poll(&mut long).is_pending());
            assert_eq!(shard.len(), 1, "polling twice registers once");
            assert_eq!(shard.next_deadline(), Some(long.deadline()));
            assert!(!long.is_elapsed());
            shard.expire(long.deadline() - Duration::from_nanos(1));
            assert!(poll(&mut long).is_pending());
            shard.expire(long.deadline());
            assert!(poll(&mut long).is_ready());
            assert!(poll(&mut sleep_until(Instant::now())).is_ready());
            assert!(poll(&mut sleep(Duration::ZERO)).is_ready());
        });
    }

    /// H08: the waker of the last poll is woken, the older one is not.
    #[test]
    fn last_waker_wins() {
        let shard = Shard::new();
        shard.run(|| {
            let ((old, old_waker), (new, new_waker)) = (counting(), counting());
            let mut sleep = sleep(HOUR);
            for waker in [old_waker, new_waker] {
                let poll = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker));
                assert!(poll.is_pending());
            }
            shard.expire(sleep.deadline());
            assert_eq!(old.0.load(Ordering::Relaxed), 0);
            assert_eq!(new.0.load(Ordering::Relaxed), 1);
        });
    }

    /// H53: whatever ends a sleep, its timer is gone; a timeout that is met registers none.
    #[test]
    fn leaves_no_timer_behind() {
        let shard = Shard::new();
        shard.run(|| {
            let mut dropped = sleep(HOUR);
            assert!(poll(&mut dropped).is_pending());
            drop(dropped);
            let mut met = Box::pin(timeout(HOUR, ready(1)));
            assert_eq!(poll(&mut met), Poll::Ready(Ok(1)));
            assert_eq!(shard.len(), 0);
            let mut unmet = Box::pin(timeout(HOUR, pending::<()>()));
            assert!(poll(&mut unmet).is_pending());
            assert_eq!(shard.len(), 1);
            drop(unmet);
            assert_eq!(shard.len(), 0);
        });
    }

    /// A reset moves the timer of a task that waits: it is woken at the new deadline alone.
    #[test]
    fn reset_moves_the_timer() {
        let shard = Shard::new();
        shard.run(|| {
            let (count, waker) = counting();
            let mut sleep = sleep(HOUR);
            let start = sleep.deadline();
            let poll = |sleep: &mut Sleep| Pin::new(sleep).poll(&mut Context::from_waker(&waker));
            assert!(poll(&mut sleep).is_pending());
            Pin::new(&mut sleep).reset(start + HOUR);
            assert_eq!(shard.len(), 1);
            shard.expire(start);
            assert_eq!(count.0.load(Ordering::Relaxed), 0);
            shard.expire(start + HOUR);
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
            assert!(poll(&mut sleep).is_ready());
            Pin::new(&mut sleep).reset(start);
            assert!(poll(&mut sleep).is_pending(), "it can be used again");
            assert_eq!(shard.next_deadline(), Some(start));
        });
    }

    /// A sleep that is polled, reset or dropped on another shard, or on none, touches no timer but
    /// its own, though slots and keys look alike.
    #[test]
    fn on_another_shard() {
        let (home, abroad) = (Shard::new(), Shard::new());
        let register = || {
            let mut sleep = sleep(HOUR);
            assert!(poll(&mut sleep).is_pending());
            sleep
        };
        // Each traveller's key equals the one of a resident.
        let residents: [_; 4] = abroad.run(|| std::array::from_fn(|_| register()));
        let [mut polled, mut reset, dropped, orphan] =
            home.run(|| std::array::from_fn(|_| register()));
        abroad.run(|| {
            drop(dropped);
            assert_eq!(abroad.len(), 4);
            Pin::new(&mut reset).reset(Instant::now());
            assert_eq!(abroad.next_deadline(), Some(residents[0].deadline()));
            Pin::new(&mut reset).reset(Instant::now() + HOUR);
            assert!(poll(&mut polled).is_pending());
            assert!(poll(&mut reset).is_pending());
            assert_eq!(abroad.len(), 6);
            drop((polled, reset));
            assert_eq!(abroad.len(), 4);
        });
        assert_eq!(home.len(), 4, "these fire for nothing");
        drop(orphan);
        home.expire(Instant::now() + 2 * HOUR);
        assert_eq!(home.len(), 0);
        abroad.run(|| drop(residents));
        assert_eq!(abroad.len(), 0);
    }

    /// Where no shard runs, polling panics with the remedy; creating and dropping do not.
    #[test]
    fn without_a_shard() {
        let mut homeless = sleep(HOUR);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut homeless)));
        let message = *result.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("inside `Runtime::block_on` or a task"));
        drop(homeless);
        drop((timeout(HOUR, pending::<()>()), interval(HOUR)));
    }

    /// What waits for time may be spawned on another shard.
    #[test]
    fn is_send() {
        fn send<T: Send>(_: &T) {}
        send(&sleep(HOUR));
        send(&timeout(HOUR, ready(())));
        send(&interval(HOUR));
        send(&async { interval(HOUR).tick().await });
    }

    /// H32: durations and deadlines beyond the clock never fire and never panic.
    #[test]
    fn huge_durations() {
        let shard = Shard::new();
        shard.run(|| {
            let mut sleep = sleep(Duration::MAX);
            let end = sleep.deadline();
            assert_eq!(end.checked_add(Duration::from_secs(1)), None);
            assert!(poll(&mut sleep).is_pending());
            let mut timeout = pin!(timeout(Duration::MAX, pending::<()>()));
            assert!(poll(&mut timeout).is_pending());
            let mut ticks = interval(Duration::MAX);
            assert!(poll(&mut pin!(ticks.tick())).is_ready());
            assert!(poll(&mut pin!(ticks.tick())).is_pending());
            assert_eq!(shard.len(), 3);
            shard.expire(Instant::now() + 1_000_000 * HOUR);
            assert_eq!(shard.len(), 3);
            ticks.reset();
            ticks.reset_after(Duration::MAX);
            assert!(poll(&mut pin!(ticks.tick())).is_pending());
            Pin::new(&mut sleep).reset(later(Instant::now(), Duration::MAX / 2));
            assert!(poll(&mut sleep).is_pending());
            let missed = Instant::now();
            for behavior in [MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
                let next = behavior.next(missed, missed + HOUR, Duration::MAX);
                assert!(next > missed + 1_000_000 * HOUR);
            }
        });
    }

    /// A timeout asks its future first, then the clock; it errs once its timer has fired and drops
    /// the inner future no earlier than itself.
    #[test]
    fn timeout_elapses() {
        let shard = Shard::new();
        shard.run(|| {
            assert_eq!(
                poll(&mut timeout(Duration::ZERO, ready(3))),
                Poll::Ready(Ok(3))
            );
            let held = Arc::new(());
            let inner = held.clone();
            let mut late = Box::pin(timeout(HOUR, async move {
                pending::<()>().await;
                drop(inner);
            }));
            assert!(poll(&mut late).is_pending());
            shard.expire(shard.next_deadline().unwrap());
            let Poll::Ready(Err(elapsed)) = poll(&mut late) else {
                panic!("its timer has fired");
            };
            assert_eq!(Arc::strong_count(&held), 2);
            drop(late);
            assert_eq!(Arc::strong_count(&held), 1);
            assert_eq!(elapsed.to_string(), "the deadline has passed");
            let error = std::io::Error::from(elapsed);
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        });
    }

    /// A task whose share is used up gets no more timers in this poll, and loses none; a deadline
    /// holds even for a future that uses the share up in every poll.
    #[test]
    fn budget() {
        let shard = Shard::new();
        shard.run(|| {
            let (count, waker) = counting();
            let mut cx = Context::from_waker(&waker);
            let mut due = sleep(Duration::ZERO);
            let share = roundel_reactor::current::refill_budget();
            for _ in 0..roundel_reactor::current::BUDGET {
                assert!(Pin::new(&mut due).poll(&mut cx).is_ready());
            }
            assert_eq!(count.0.load(Ordering::Relaxed), 0);
            assert!(Pin::new(&mut due).poll(&mut cx).is_pending());
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
            let mut greedy = pin!(timeout(Duration::ZERO, due));
            assert!(matches!(greedy.as_mut().poll(&mut cx), Poll::Ready(Err(_))));
            drop(share);
        });
    }

    /// Ticks are due at multiples of the period from the start.
    #[test]
    fn interval_ticks() {
        let shard = Shard::new();
        shard.run(|| {
            let start = Instant::now() - Duration::from_millis(1);
            let mut ticks = interval_at(start, HOUR);
            assert_eq!(poll(&mut pin!(ticks.tick())), Poll::Ready(start));
            assert!(poll(&mut pin!(ticks.tick())).is_pending());
            assert_eq!(shard.next_deadline(), Some(start + HOUR));
            assert_eq!(shard.len(), 1, "a dropped tick is still awaited");
            shard.expire(start + HOUR);
            // The hour has not really passed, so it is not late.
            assert_eq!(poll(&mut pin!(ticks.tick())), Poll::Ready(start + HOUR));
            assert!(poll(&mut pin!(ticks.tick())).is_pending());
            assert_eq!(shard.next_deadline(), Some(start + 2 * HOUR));
            ticks.reset_immediately();
            assert_eq!(shard.len(), 1);
            shard.expire(Instant::now());
            assert!(poll(&mut pin!(ticks.tick())).is_ready());
        });
        assert!(std::panic::catch_unwind(|| interval(Duration::ZERO)).is_err());
    }

    /// After a tick that was 25 periods and a half late: `Burst` goes on where it was, `Delay` counts
    /// from now, `Skip` keeps the beat.
    #[test]
    fn missed_ticks() {
        let period = Duration::from_millis(10);
        let due = Instant::now();
        let now = due + 25 * period + period / 2;
        let next = |behavior: MissedTickBehavior| behavior.next(due, now, period);
        assert_eq!(next(MissedTickBehavior::Burst), due + period);
        assert_eq!(next(MissedTickBehavior::Delay), now + period);
        assert_eq!(next(MissedTickBehavior::Skip), due + 26 * period);

        let shard = Shard::new();
        shard.run(|| {
            let start = Instant::now() - Duration::from_millis(255);
            let mut ticks = interval_at(start, HOUR);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            assert_eq!(ticks.missed_tick_behavior(), MissedTickBehavior::Delay);
            let before = Instant::now();
            assert_eq!(poll(&mut pin!(ticks.tick())), Poll::Ready(start));
            assert!(poll(&mut pin!(ticks.tick())).is_pending());
            assert!(shard.next_deadline().unwrap() >= before + ticks.period());
        });
    }
}
