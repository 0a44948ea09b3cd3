//! A number of permits that tasks of one shard take and give back, first come first served.
//!
//! **How it works.** Who cannot be served at once gets a ticket and stands in line. Permits that
//! come back are handed to the head of the line until it has all it asked for; then it leaves the
//! line, and the next one becomes the head. So while anybody waits, no permit is available, and
//! whoever asks for few cannot overtake who asks for many. Only when all are handed out are the
//! served ones woken: a waker that comes back here finds the line in order. Tickets are served in
//! their order, which is why a task needs no flag to learn that it was served: its ticket has left
//! the line.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use roundel_reactor::current::spend_budget;

/// A semaphore that had room for more wakers than this gives the memory back once it has called them
/// all (4 KiB).
const WAKERS_KEPT: usize = 256;

/// Permits, of which a task takes one or more to do something, and gives them back by dropping
/// them.
///
/// It is fair: permits go to the tasks in the order in which their futures were first polled, even
/// if a later one asks for fewer.
///
/// # Examples
///
/// At most two of these tasks work at the same time:
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use std::rc::Rc;
/// use roundel_executor::sync::Semaphore;
/// use roundel_executor::{spawn, yield_now};
///
/// let semaphore = Rc::new(Semaphore::new(2));
/// let mut tasks = Vec::new();
/// for _ in 0..10 {
///     let permit = semaphore.clone().acquire_owned().await.expect("nobody closes it");
///     tasks.push(spawn(async move {
///         yield_now().await;
///         drop(permit);
///     }));
/// }
/// for task in tasks {
///     task.await?;
/// }
/// assert_eq!(semaphore.available_permits(), 2);
/// # Ok::<(), roundel_executor::JoinError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Semaphore {
    state: RefCell<State>,
}

impl Semaphore {
    /// The most permits a semaphore holds.
    pub const MAX_PERMITS: usize = usize::MAX >> 3;

    /// A semaphore with so many permits. Allocates nothing.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub const fn new(permits: usize) -> Semaphore {
        assert!(
            permits <= Self::MAX_PERMITS,
            "a semaphore holds at most `Semaphore::MAX_PERMITS`"
        );
        Semaphore {
            state: RefCell::new(State {
                available: permits,
                closed: None,
                next_ticket: 0,
                line: BTreeMap::new(),
                leaving: VecDeque::new(),
            }),
        }
    }

    /// How many permits can be had at once. While a task waits there are none.
    pub fn available_permits(&self) -> usize {
        self.state.borrow().available
    }

    /// Adds permits, which go to the tasks that wait.
    ///
    /// # Panics
    ///
    /// If more than [`MAX_PERMITS`](Self::MAX_PERMITS) would be available.
    pub fn add_permits(&self, permits: usize) {
        let room = Self::MAX_PERMITS.saturating_sub(self.available_permits());
        assert!(
            permits <= room,
            "a semaphore holds at most `Semaphore::MAX_PERMITS`"
        );
        self.release(permits);
    }

    /// Takes permits away for ever, at most as many as are available; says how many.
    pub fn forget_permits(&self, permits: usize) -> usize {
        let mut state = self.state.borrow_mut();
        let forgotten = permits.min(state.available);
        state.available -= forgotten;
        forgotten
    }

    /// Waits for one permit.
    ///
    /// # Errors
    ///
    /// If the semaphore is closed, or is while this waits.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses the place in line. Permits that it had been given go to the next
    /// in line.
    pub async fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.acquire_many(1).await
    }

    /// Waits for so many permits, and takes them together.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancellation
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, AcquireError> {
        let permits = count(permits);
        Acquire::new(self, permits).await?;
        Ok(SemaphorePermit {
            semaphore: self,
            permits,
        })
    }

    /// Takes one permit if it can be had at once.
    ///
    /// # Errors
    ///
    /// If it cannot, or the semaphore is closed.
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes so many permits if all can be had at once.
    ///
    /// # Errors
    ///
    /// If they cannot, or the semaphore is closed.
    pub fn try_acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        let permits = count(permits);
        self.state.borrow_mut().try_take(permits)?;
        Ok(SemaphorePermit {
            semaphore: self,
            permits,
        })
    }

    /// As [`acquire`](Self::acquire), with a permit that can be moved into another task.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancellation
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_owned(self: Rc<Self>) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.acquire_many_owned(1).await
    }

    /// As [`acquire_many`](Self::acquire_many), with a permit that can be moved into another task.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancellation
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many_owned(
        self: Rc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        let permits = count(permits);
        Acquire::new(&self, permits).await?;
        Ok(OwnedSemaphorePermit {
            semaphore: self,
            permits,
        })
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that can be moved into another task.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_owned(self: Rc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// As [`try_acquire_many`](Self::try_acquire_many), with a permit that can be moved into
    /// another task.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many`](Self::try_acquire_many).
    pub fn try_acquire_many_owned(
        self: Rc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        let permits = count(permits);
        self.state.borrow_mut().try_take(permits)?;
        Ok(OwnedSemaphorePermit {
            semaphore: self,
            permits,
        })
    }

    /// Refuses every permit from now on, also to the tasks that wait. Permits that tasks hold stay
    /// theirs.
    pub fn close(&self) {
        self.state.borrow_mut().close();
        self.wake_leaving();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.state.borrow().closed.is_some()
    }

    /// Takes permits back.
    fn release(&self, permits: usize) {
        self.state.borrow_mut().put(permits);
        self.wake_leaving();
    }

    /// Wakes who has left the line. Ends because each that joined leaves once.
    fn wake_leaving(&self) {
        loop {
            let waker = self.state.borrow_mut().next_to_wake();
            let Some(waker) = waker else { return };
            let rest = WakeRest(self);
            waker.wake();
            mem::forget(rest);
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("available_permits", &self.available_permits())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// Wakes the rest if a waker panics: one task's panic must not cost the others their
/// permits.
struct WakeRest<'a>(&'a Semaphore);

impl Drop for WakeRest<'_> {
    fn drop(&mut self) {
        self.0.wake_leaving();
    }
}

/// The counts are `u32` in tokio's signatures.
fn count(permits: u32) -> usize {
    usize::try_from(permits).expect("Linux runs on 32 bits at least")
}

/// Permits of a [`Semaphore`], which has them back when this is dropped.
#[must_use = "the permits go back when this is dropped"]
#[derive(Debug)]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

impl SemaphorePermit<'_> {
    /// Drops this without giving the permits back: the semaphore has fewer for ever.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Adds the permits of `other` to this.
    ///
    /// # Panics
    ///
    /// If they are of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            std::ptr::eq(self.semaphore, other.semaphore),
            "only permits of one semaphore can be merged"
        );
        self.permits += mem::take(&mut other.permits);
    }

    /// Takes so many permits out of this; `None` if there are not so many.
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(SemaphorePermit {
            semaphore: self.semaphore,
            permits,
        })
    }

    /// How many permits this is.
    pub fn num_permits(&self) -> usize {
        self.permits
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

/// Permits of a [`Semaphore`] in an [`Rc`], which has them back when this is dropped.
#[must_use = "the permits go back when this is dropped"]
#[derive(Debug)]
pub struct OwnedSemaphorePermit {
    semaphore: Rc<Semaphore>,
    permits: usize,
}

impl OwnedSemaphorePermit {
    /// Drops this without giving the permits back: the semaphore has fewer for ever.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Adds the permits of `other` to this.
    ///
    /// # Panics
    ///
    /// If they are of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            Rc::ptr_eq(&self.semaphore, &other.semaphore),
            "only permits of one semaphore can be merged"
        );
        self.permits += mem::take(&mut other.permits);
    }

    /// Takes so many permits out of this; `None` if there are not so many.
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(OwnedSemaphorePermit {
            semaphore: self.semaphore.clone(),
            permits,
        })
    }

    /// How many permits this is.
    pub fn num_permits(&self) -> usize {
        self.permits
    }

    /// The semaphore they are of.
    pub fn semaphore(&self) -> &Rc<Semaphore> {
        &self.semaphore
    }
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

/// The semaphore is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(());

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the semaphore is closed")
    }
}

impl Error for AcquireError {}

/// Why [`Semaphore::try_acquire`] has no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// The semaphore is closed.
    Closed,
    /// There are not so many permits, or others wait.
    NoPermits,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryAcquireError::Closed => "the semaphore is closed",
            TryAcquireError::NoPermits => "no permits are available",
        })
    }
}

impl Error for TryAcquireError {}

/// Takes permits out of a semaphore, which whoever awaits it has then.
struct Acquire<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
    place: Place,
}

//            wait 1                        poll 2, leave 3
//   Outside ─────────► InLine(ticket) ─────────────────────► Gone
//      │ poll 4: served or refused at once                     ▲
//      └───────────────────────────────────────────────────────┘
enum Place {
    Outside,
    InLine(u64),
    Gone,
}

impl<'a> Acquire<'a> {
    fn new(semaphore: &'a Semaphore, permits: usize) -> Self {
        Acquire {
            semaphore,
            permits,
            place: Place::Outside,
        }
    }

    /// Leaves the line, and gives back what it had been given.
    fn leave(&mut self) {
        let Place::InLine(ticket) = mem::replace(&mut self.place, Place::Gone) else {
            return;
        };
        let mut state = self.semaphore.state.borrow_mut();
        let (given, waiting) = state.remove(ticket, self.permits);
        drop(state);
        self.semaphore.release(given);
        drop(waiting);
    }

    /// Waits with the waker of `cx`. The waker's clone runs the task's own code, which may use the
    /// semaphore: if there is news afterwards, the task polls again.
    fn wait(&mut self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let mut state = self.semaphore.state.borrow_mut();
        let unused = match self.place {
            Place::Outside => state.join(self.permits, waker).map(|ticket| {
                self.place = Place::InLine(ticket);
                None
            }),
            Place::InLine(ticket) => state.replace(ticket, waker).map(Some),
            Place::Gone => Err(waker),
        };
        drop(state);
        if unused.is_err() {
            cx.waker().wake_by_ref();
        }
    }
}

impl Future for Acquire<'_> {
    type Output = Result<(), AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore;
        let standing = semaphore.state.borrow().standing(&self, cx.waker());
        match standing {
            Standing::Refused => {
                ready!(spend_budget(cx));
                self.leave();
                Poll::Ready(Err(AcquireError(())))
            }
            Standing::Served => {
                ready!(spend_budget(cx));
                if matches!(self.place, Place::Outside) {
                    semaphore.state.borrow_mut().available -= self.permits;
                }
                self.place = Place::Gone;
                Poll::Ready(Ok(()))
            }
            Standing::Registered => Poll::Pending,
            Standing::Waits => {
                self.wait(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How one who asks for permits stands with the semaphore.
enum Standing {
    Refused,
    /// It has its permits, or they are available.
    Served,
    /// It is in line, with this very waker.
    Registered,
    /// It is to wait, with this waker.
    Waits,
}

/// The borrowed part: pure, calls nobody.
struct State {
    /// None while somebody waits.
    available: usize,
    /// Once closed: the first ticket that was not served by then; nor was any after it.
    closed: Option<u64>,
    next_ticket: u64,
    /// Who waits, by ticket. Empty once it is closed.
    line: BTreeMap<u64, Waiting>,
    /// Who has left the line, served or refused, and is to be woken.
    leaving: VecDeque<Waker>,
}

/// One in the line.
struct Waiting {
    needed: usize,
    /// What the head of the line has been given already; the others have nothing.
    given: usize,
    waker: Waker,
}

impl State {
    fn try_take(&mut self, permits: usize) -> Result<(), TryAcquireError> {
        if self.closed.is_some() {
            return Err(TryAcquireError::Closed);
        }
        let left = self.available.checked_sub(permits);
        self.available = left.ok_or(TryAcquireError::NoPermits)?;
        Ok(())
    }

    fn standing(&self, acquire: &Acquire<'_>, waker: &Waker) -> Standing {
        if self.closed.is_some() {
            return Standing::Refused;
        }
        match acquire.place {
            Place::Outside if acquire.permits <= self.available => Standing::Served,
            Place::Outside => Standing::Waits,
            Place::InLine(ticket) => match self.line.get(&ticket) {
                None => Standing::Served,
                Some(waiting) if waiting.waker.will_wake(waker) => Standing::Registered,
                Some(_) => Standing::Waits,
            },
            Place::Gone => unreachable!("an async function is not polled after it returned"),
        }
    }

    /// Takes the last place in line, with what is available. The waker comes back if there is no
    /// need to wait.
    fn join(&mut self, needed: usize, waker: Waker) -> Result<u64, Waker> {
        if self.closed.is_some() || needed <= self.available {
            return Err(waker);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let waiting = Waiting {
            needed,
            given: mem::take(&mut self.available),
            waker,
        };
        self.line.insert(ticket, waiting);
        Ok(ticket)
    }

    /// Gives one in the line another waker, and gives the former one back; or the new one, if it
    /// stands in the line no more.
    fn replace(&mut self, ticket: u64, waker: Waker) -> Result<Waker, Waker> {
        match self.line.get_mut(&ticket) {
            Some(waiting) => Ok(mem::replace(&mut waiting.waker, waker)),
            None => Err(waker),
        }
    }

    /// Takes a ticket back. Gives the permits it was given, and what is to be dropped.
    fn remove(&mut self, ticket: u64, permits: usize) -> (usize, Option<Waiting>) {
        match self.line.remove(&ticket) {
            Some(waiting) => (waiting.given, Some(waiting)),
            None if self.closed.is_none_or(|first| ticket < first) => (permits, None),
            None => (0, None),
        }
    }

    /// Hands permits out to the line, from its head on; what is left is available.
    fn put(&mut self, permits: usize) {
        self.available += permits;
        // Ends when the permits or the line do.
        while let Some(mut head) = self.line.first_entry() {
            let waiting = head.get_mut();
            let more = self.available.min(waiting.needed - waiting.given);
            self.available -= more;
            waiting.given += more;
            if waiting.given < waiting.needed {
                return;
            }
            self.leaving.push_back(head.remove().waker);
        }
    }

    fn close(&mut self) {
        if self.closed.is_some() {
            return;
        }
        let line = mem::take(&mut self.line);
        self.closed = Some(line.keys().next().copied().unwrap_or(self.next_ticket));
        for waiting in line.into_values() {
            self.available += waiting.given;
            self.leaving.push_back(waiting.waker);
        }
    }

    fn next_to_wake(&mut self) -> Option<Waker> {
        let waker = self.leaving.pop_front();
        if waker.is_none() && self.leaving.capacity() > WAKERS_KEPT {
            self.leaving = VecDeque::new();
        }
        waker
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::task::Wake;

    use super::super::testing::Tester;
    use super::*;

    type Acquiring<'a> =
        Pin<Box<dyn Future<Output = Result<SemaphorePermit<'a>, AcquireError>> + 'a>>;

    fn acquire(semaphore: &Semaphore, permits: u32) -> Acquiring<'_> {
        Box::pin(semaphore.acquire_many(permits))
    }

    fn ready<T: fmt::Debug>(poll: Poll<Result<T, AcquireError>>) -> T {
        match poll {
            Poll::Ready(Ok(permit)) => permit,
            other => panic!("{other:?} is no permit"),
        }
    }

    fn is_refused<T>(poll: Poll<Result<T, AcquireError>>) -> bool {
        matches!(poll, Poll::Ready(Err(AcquireError(()))))
    }

    /// Permits are taken until there are none, and come back when they are dropped.
    #[test]
    fn takes_and_gives_back() {
        let semaphore = Semaphore::new(3);
        let mut tester = Tester::new();
        let two = ready(tester.poll(&mut acquire(&semaphore, 2)));
        let one = semaphore.try_acquire().expect("there is one");
        assert_eq!((two.num_permits(), one.num_permits()), (2, 1));
        assert_eq!(
            semaphore.try_acquire().unwrap_err(),
            TryAcquireError::NoPermits
        );
        drop(two);
        assert_eq!(semaphore.available_permits(), 2);
        assert!(semaphore.try_acquire_many(3).is_err());
        drop(one);
        assert_eq!(semaphore.available_permits(), 3);
    }

    /// Who asked first is served first, also if it asks for more; nobody overtakes the line.
    #[test]
    fn first_come_first_served() {
        let semaphore = Semaphore::new(0);
        let mut testers: [Tester; 3] = Default::default();
        let mut waits = [3, 1, 1].map(|permits| acquire(&semaphore, permits));
        for (tester, wait) in testers.iter_mut().zip(&mut waits) {
            assert!(tester.poll(wait).is_pending());
        }
        semaphore.add_permits(2);
        assert_eq!(semaphore.available_permits(), 0, "the head has them");
        assert!(semaphore.try_acquire().is_err());
        assert!(testers.iter().all(|tester| tester.wakes() == 0));
        semaphore.add_permits(2);
        assert_eq!(testers.each_ref().map(Tester::wakes), [1, 1, 0]);
        let many = ready(testers[0].poll(&mut waits[0]));
        let one = ready(testers[1].poll(&mut waits[1]));
        assert!(testers[2].poll(&mut waits[2]).is_pending());
        drop(many);
        assert_eq!(testers[2].wakes(), 1);
        assert_eq!(semaphore.available_permits(), 2);
        let last = ready(testers[2].poll(&mut waits[2]));
        drop((one, last));
        assert_eq!(semaphore.available_permits(), 4);
    }

    /// One that is dropped in line passes on what it had been given: in part, whole, or nothing.
    #[test]
    fn a_dropped_acquire_passes_its_permits_on() {
        let semaphore = Semaphore::new(1);
        let mut testers: [Tester; 4] = Default::default();
        let [mut part, mut idle, mut whole, mut next] =
            [3, 5, 2, 1].map(|permits| acquire(&semaphore, permits));
        assert!(testers[0].poll(&mut part).is_pending());
        assert!(testers[1].poll(&mut idle).is_pending());
        assert!(testers[2].poll(&mut whole).is_pending());
        assert!(testers[3].poll(&mut next).is_pending());
        drop(idle);
        semaphore.add_permits(1);
        assert_eq!(testers[2].wakes(), 0);
        drop(part);
        assert_eq!(testers[2].wakes(), 1, "it has both");
        assert_eq!(testers[3].wakes(), 0);
        drop(whole);
        assert_eq!(testers[3].wakes(), 1);
        assert_eq!(semaphore.available_permits(), 1);
        drop(next);
        assert_eq!(semaphore.available_permits(), 2);
        assert!(semaphore.state.borrow().line.is_empty());
    }

    /// A future that was never polled, and one that is done, give nothing back.
    #[test]
    fn nothing_is_given_back_twice() {
        let semaphore = Semaphore::new(1);
        drop(acquire(&semaphore, 1));
        assert_eq!(semaphore.available_permits(), 1);
        let mut wait = acquire(&semaphore, 1);
        let permit = ready(Tester::new().poll(&mut wait));
        drop(wait);
        assert_eq!(semaphore.available_permits(), 0);
        drop(permit);
        assert_eq!(semaphore.available_permits(), 1);
    }

    /// No permits are had at once, in whatever state the line is.
    #[test]
    fn none_are_always_there() {
        let semaphore = Semaphore::new(0);
        let mut tester = Tester::new();
        let mut wait = acquire(&semaphore, 1);
        assert!(tester.poll(&mut wait).is_pending());
        let none = ready(tester.poll(&mut acquire(&semaphore, 0)));
        assert_eq!(none.num_permits(), 0);
        assert!(semaphore.try_acquire_many(0).is_ok());
    }

    /// The waker of the last poll is called, and the place in line stays.
    #[test]
    fn last_waker_wins() {
        let semaphore = Semaphore::new(0);
        let (mut old, mut new, mut later) = (Tester::new(), Tester::new(), Tester::new());
        let [mut first, mut second] = [1, 1].map(|permits| acquire(&semaphore, permits));
        assert!(old.poll(&mut first).is_pending());
        assert!(later.poll(&mut second).is_pending());
        assert!(new.poll(&mut first).is_pending());
        semaphore.add_permits(1);
        assert_eq!((old.wakes(), new.wakes(), later.wakes()), (0, 1, 0));
        drop(ready(new.poll(&mut first)));
        assert_eq!(later.wakes(), 1);
    }

    /// Closing refuses who waits, who was served and did not see it, and who comes; what was given
    /// comes back once.
    #[test]
    fn close() {
        let semaphore = Semaphore::new(0);
        let mut testers: [Tester; 4] = Default::default();
        let mut waits = [1, 5, 1, 1].map(|permits| acquire(&semaphore, permits));
        for (tester, wait) in testers.iter_mut().zip(&mut waits) {
            assert!(tester.poll(wait).is_pending());
        }
        semaphore.add_permits(3);
        assert_eq!(testers.each_ref().map(Tester::wakes), [1, 0, 0, 0]);
        semaphore.close();
        assert!(semaphore.is_closed());
        assert_eq!(testers.each_ref().map(Tester::wakes), [1, 1, 1, 1]);
        assert_eq!(semaphore.available_permits(), 2, "the head's part");
        let [served, part, waiting, dropped] = &mut waits;
        for (tester, wait) in testers.iter_mut().zip([served, part, waiting]) {
            assert!(is_refused(tester.poll(wait)));
        }
        *dropped = acquire(&semaphore, 1);
        assert_eq!(semaphore.available_permits(), 3);
        assert!(is_refused(testers[3].poll(dropped)));
        assert_eq!(
            semaphore.try_acquire().unwrap_err(),
            TryAcquireError::Closed
        );
        semaphore.close();
        semaphore.add_permits(1);
        assert_eq!(semaphore.available_permits(), 4);
    }

    /// Forgotten permits are gone; at most the available ones can be forgotten.
    #[test]
    fn forget() {
        let semaphore = Semaphore::new(5);
        semaphore.try_acquire_many(2).expect("there are").forget();
        assert_eq!(semaphore.available_permits(), 3);
        assert_eq!(semaphore.forget_permits(2), 2);
        assert_eq!(semaphore.forget_permits(2), 1);
        assert_eq!(semaphore.available_permits(), 0);
    }

    /// Permits are merged and split without being made or lost, borrowed and owned.
    #[test]
    fn merge_and_split() {
        let semaphore = Rc::new(Semaphore::new(5));
        let mut some = semaphore.try_acquire_many(2).expect("there are");
        some.merge(semaphore.try_acquire().expect("there is"));
        assert_eq!((some.num_permits(), semaphore.available_permits()), (3, 2));
        assert!(some.split(4).is_none());
        let part = some.split(2).expect("it has three");
        assert_eq!((some.num_permits(), part.num_permits()), (1, 2));
        drop(part);
        assert_eq!(semaphore.available_permits(), 4);
        drop(some);

        let mut owned = semaphore
            .clone()
            .try_acquire_many_owned(4)
            .expect("there are");
        owned.merge(semaphore.clone().try_acquire_owned().expect("there is"));
        let part = owned.split(2).expect("it has five");
        assert!(Rc::ptr_eq(part.semaphore(), &semaphore));
        drop(owned);
        assert_eq!(semaphore.available_permits(), 3);
        part.forget();
        assert_eq!(semaphore.available_permits(), 3);
    }

    /// Permits of another semaphore are refused, and both semaphores have theirs back.
    #[test]
    fn merges_its_own_only() {
        let one = Rc::new(Semaphore::new(1));
        let other = Rc::new(Semaphore::new(1));
        let mut owned = one.clone().try_acquire_owned().expect("there is");
        let foreign = other.clone().try_acquire_owned().expect("there is");
        let merged = catch_unwind(AssertUnwindSafe(|| owned.merge(foreign)));
        assert!(merged.is_err());
        assert_eq!((one.available_permits(), other.available_permits()), (0, 1));
    }

    /// An owned permit keeps the semaphore alive while it waits and after.
    #[test]
    fn owned() {
        let semaphore = Rc::new(Semaphore::new(0));
        let mut wait = Box::pin(semaphore.clone().acquire_owned());
        let mut tester = Tester::new();
        assert!(tester.poll(&mut wait).is_pending());
        semaphore.add_permits(1);
        assert_eq!(tester.wakes(), 1);
        drop(semaphore);
        let permit = ready(tester.poll(&mut wait));
        drop(wait);
        assert_eq!(permit.semaphore().available_permits(), 0);
    }

    /// A task that has used its share up is not served yet, and loses nothing.
    #[test]
    fn budget() {
        let semaphore = Semaphore::new(0);
        let mut tester = Tester::new();
        let mut waiting = acquire(&semaphore, 1);
        assert!(tester.poll(&mut waiting).is_pending());
        semaphore.add_permits(2);
        let mut fresh = acquire(&semaphore, 1);
        tester.without_budget(|tester| {
            assert!(tester.poll(&mut waiting).is_pending());
            assert!(tester.poll(&mut fresh).is_pending());
        });
        assert_eq!(tester.wakes(), 3, "one permit, two out of budget");
        let waited = ready(tester.poll(&mut waiting));
        let taken = ready(tester.poll(&mut fresh));
        assert_eq!(semaphore.available_permits(), 0);
        drop((waited, taken));
        assert_eq!(semaphore.available_permits(), 2);
    }

    /// More permits than a semaphore can hold are refused, and change nothing.
    #[test]
    fn too_many() {
        let semaphore = Semaphore::new(Semaphore::MAX_PERMITS);
        let added = catch_unwind(AssertUnwindSafe(|| semaphore.add_permits(1)));
        assert!(added.is_err());
        assert_eq!(semaphore.available_permits(), Semaphore::MAX_PERMITS);
    }

    type Reaction = Box<dyn FnOnce(&Semaphore)>;

    thread_local! {
        static SEMAPHORE: Semaphore = const { Semaphore::new(0) };
        static REACTION: Cell<Option<Reaction>> = const { Cell::new(None) };
    }

    /// A waker that comes back to the semaphore of this thread.
    struct Reenter;

    impl Wake for Reenter {
        fn wake(self: Arc<Self>) {
            if let Some(reaction) = REACTION.take() {
                SEMAPHORE.with(reaction);
            }
        }
    }

    /// A waker that is called may ask for permits and add some: the line stays in order, and
    /// nobody's wake is lost.
    #[test]
    fn wakers_may_come_back() {
        SEMAPHORE.with(|semaphore| {
            let waker = Waker::from(Arc::new(Reenter));
            let mut cx = Context::from_waker(&waker);
            let [mut first, mut second, mut third] =
                [1, 2, 1].map(|permits| acquire(semaphore, permits));
            let mut testers: [Tester; 2] = Default::default();
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert!(testers[0].poll(&mut second).is_pending());
            assert!(testers[1].poll(&mut third).is_pending());
            REACTION.set(Some(Box::new(|semaphore| {
                assert!(semaphore.try_acquire().is_err(), "the line goes first");
                semaphore.add_permits(1);
            })));
            semaphore.add_permits(2);
            assert_eq!(testers.each_ref().map(Tester::wakes), [1, 0]);
            assert_eq!(semaphore.available_permits(), 0);
            assert!(semaphore.state.borrow().leaving.is_empty());
            drop(ready(first.as_mut().poll(&mut cx)));
            assert_eq!(testers[1].wakes(), 1);
        });
    }

    /// A waker that panics costs nobody else its permit, nor the news that it is closed.
    #[test]
    fn a_panicking_waker_stops_nobody() {
        SEMAPHORE.with(|semaphore| {
            let waker = Waker::from(Arc::new(Reenter));
            let mut cx = Context::from_waker(&waker);
            for closes in [false, true] {
                let mut tester = Tester::new();
                let [mut first, mut second] = [1, 1].map(|permits| acquire(semaphore, permits));
                assert!(first.as_mut().poll(&mut cx).is_pending());
                assert!(tester.poll(&mut second).is_pending());
                REACTION.set(Some(Box::new(|_| panic!("a waker panics"))));
                let woken = catch_unwind(AssertUnwindSafe(|| match closes {
                    true => semaphore.close(),
                    false => semaphore.add_permits(2),
                }));
                assert!(woken.is_err());
                assert_eq!(tester.wakes(), 1);
                drop((first, second));
                assert_eq!(semaphore.forget_permits(2), if closes { 0 } else { 2 });
            }
        });
    }
}
