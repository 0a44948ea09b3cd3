//! Many tasks, joined in the order in which they end.
//!
//! **How it works.** Each member has a slot, and each slot a waker of its own, with which the
//! member's join handle is polled once when it is spawned. A member that ends calls that waker,
//! which puts the slot's number into the ready list and wakes the task that joins. So that task
//! finds who has ended without asking the others. Slots, their wakers and the room in the list are
//! kept for the members to come: waking allocates nothing, and spawning only what the task costs.
//!
//! The ready list has a lock because a member may end on another shard. It is held for a few
//! instructions, with nothing foreign called under it.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use roundel_reactor::current::refill_budget;
use slab::Slab;

use crate::join::{AbortHandle, Id, JoinError, JoinHandle, SendJoinHandle};

/// A set that had more members than this at once gives the memory back when it is empty (about
/// 30 KiB).
const SLOTS_KEPT: usize = 256;

/// A set of tasks with one type of output. Dropping it aborts those that have not ended.
///
/// Members may run on this shard, on others, or as blocking jobs. The set itself stays on its shard.
///
/// # Examples
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use roundel_executor::JoinSet;
///
/// let mut set = JoinSet::new();
/// for number in 0..10 {
///     set.spawn(async move { number * number });
/// }
/// let mut sum = 0;
/// while let Some(square) = set.join_next().await {
///     sum += square?;
/// }
/// assert_eq!(sum, 285);
/// # Ok::<(), roundel_executor::JoinError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JoinSet<T> {
    members: Slab<Member<T>>,
    /// The waker of each slot of `members` that was ever used.
    wakers: Vec<Waker>,
    ready: Arc<ReadyList>,
}

/// Nothing in a set is pinned to its place.
impl<T> Unpin for JoinSet<T> {}

impl<T> JoinSet<T> {
    /// A set without members.
    pub fn new() -> Self {
        JoinSet {
            members: Slab::new(),
            wakers: Vec::new(),
            ready: Arc::default(),
        }
    }

    /// How many members there are: tasks that were not joined yet, ended or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Spawns a task on this shard as a member, as [`spawn`](crate::spawn) does.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        let task = crate::spawn(future);
        let abort = task.abort_handle();
        self.insert(Member::Local(task));
        abort
    }

    /// Spawns a task on the shard with this number as a member, as [`spawn_on`](crate::spawn_on)
    /// does: `make` runs there and makes the future.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread, or there is no shard of that number.
    pub fn spawn_on<C, F>(&mut self, shard: usize, make: C) -> AbortHandle
    where
        C: FnOnce() -> F + Send + 'static,
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.insert_remote(crate::spawn_on(shard, make))
    }

    /// Runs a closure that may block as a member, as [`spawn_blocking`](crate::spawn_blocking) does.
    ///
    /// While the pool's account is full, the job waits for room whenever the set is being joined.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    pub fn spawn_blocking<F>(&mut self, f: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.insert_remote(crate::spawn_blocking(f))
    }

    /// Waits until a member ends, and removes it. `None`: there are no members.
    ///
    /// # Errors
    ///
    /// The inner `Err` says that the member panicked or was aborted.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses nothing: a member is removed only when its outcome is given.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// As [`join_next`](Self::join_next), with the member's number, which its [`AbortHandle`] has,
    /// too. An error has it already.
    ///
    /// # Errors
    ///
    /// As [`join_next`](Self::join_next).
    ///
    /// # Cancellation
    ///
    /// As [`join_next`](Self::join_next).
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        let (id, outcome) = poll_fn(|cx| self.poll_next(cx)).await?;
        Some(outcome.map(|output| (id, output)))
    }

    /// Removes a member that has ended. `None`: there is none now.
    ///
    /// # Errors
    ///
    /// As [`join_next`](Self::join_next).
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        // Ends because a member that goes on, or a slot without one, leaves the list.
        loop {
            let slot = self.ready.pop()?;
            let mut found = self.ask(slot);
            if matches!(found, Found::NoBudget) {
                found = beyond_budget(|| self.ask(slot));
            }
            if let Found::Ended(_, outcome) = found {
                return Some(outcome);
            }
        }
    }

    /// Removes a member that has ended. `Ready(None)`: there are no members. `Pending`: the task is
    /// woken when one ends; of several tasks the one that asked last.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        let next = ready!(self.poll_next(cx));
        Poll::Ready(next.map(|(_, outcome)| outcome))
    }

    /// Waits until all members have ended, and gives their outputs in the order in which they ended.
    ///
    /// # Panics
    ///
    /// If a member panicked, with its panic; if one was aborted. The others are aborted then.
    ///
    /// # Cancellation
    ///
    /// Dropping this future aborts all members, and loses the outputs of those that have ended.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(outcome) = self.join_next().await {
            match outcome.map_err(JoinError::try_into_panic) {
                Ok(output) => outputs.push(output),
                Err(Ok(payload)) => resume_unwind(payload),
                Err(Err(error)) => panic!("{error}"),
            }
        }
        outputs
    }

    /// Aborts all members that have not ended. They stay members, to be joined as cancelled. A
    /// blocking job that has begun goes on.
    pub fn abort_all(&self) {
        for (_, member) in &self.members {
            member.abort();
        }
    }

    /// Aborts all members and waits until they are gone, which blocking jobs that have begun are
    /// when they return. Outcomes, panics too, are dropped.
    ///
    /// # Cancellation
    ///
    /// Dropping this future stops the waiting. The members that are left are aborted and stay.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes all members without aborting them: they go on, and nobody joins them.
    pub fn detach_all(&mut self) {
        // Out of the set first: what is dropped with them may be anybody's.
        let members = mem::take(&mut self.members);
        self.give_back();
        drop(members);
    }

    fn insert_remote(&mut self, handle: SendJoinHandle<T>) -> AbortHandle
    where
        T: Send + 'static,
    {
        let abort = handle.abort_handle();
        self.insert(Member::Remote(handle));
        abort
    }

    /// Takes a member in, and polls it once, so that it calls its slot's waker when it ends.
    fn insert(&mut self, mut member: Member<T>) {
        let slot = self.members.vacant_key();
        if slot == self.wakers.len() {
            self.wakers.push(ReadyList::add_slot(&self.ready));
        }
        let waker = &self.wakers[slot];
        if let Poll::Ready(outcome) = member.poll(&mut Context::from_waker(waker)) {
            member = Member::Ended(member.id(), Some(Box::new(outcome)));
            waker.wake_by_ref();
        }
        self.members.insert(member);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Id, Result<T, JoinError>)>> {
        // Ends because a member that goes on, or a slot without one, leaves the list.
        while !self.is_empty() {
            let slot = ready!(self.ready.poll_pop(cx));
            match self.ask(slot) {
                Found::Ended(id, outcome) => return Poll::Ready(Some((id, outcome))),
                Found::Nothing => {}
                Found::NoBudget => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(None)
    }

    /// Removes the member of a slot from the ready list if it has ended.
    fn ask(&mut self, slot: usize) -> Found<T> {
        let Some(member) = self.members.get_mut(slot) else {
            return Found::Nothing;
        };
        let id = member.id();
        match member.poll(&mut Context::from_waker(&self.wakers[slot])) {
            Poll::Ready(outcome) => {
                drop(self.members.remove(slot));
                self.give_back();
                Found::Ended(id, outcome)
            }
            // It has called its waker, so it is in the list again.
            Poll::Pending if member.is_finished() => Found::NoBudget,
            Poll::Pending => Found::Nothing,
        }
    }

    /// Gives the memory of many members back when there are none. Wakers that somebody still has
    /// reach the old list, which is nobody's then.
    fn give_back(&mut self) {
        if self.is_empty() && self.wakers.len() > SLOTS_KEPT {
            self.members = Slab::new();
            self.wakers = Vec::new();
            self.ready = Arc::default();
        }
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        JoinSet::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish()
    }
}

impl<F> FromIterator<F> for JoinSet<F::Output>
where
    F: Future + 'static,
{
    /// Spawns each future on this shard.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = JoinSet::new();
        for future in futures {
            set.spawn(future);
        }
        set
    }
}

/// A task that was not joined yet.
enum Member<T> {
    Local(JoinHandle<T>),
    Remote(SendJoinHandle<T>),
    /// It had ended when it came in. `None` once its outcome was given.
    Ended(Id, Option<Box<Result<T, JoinError>>>),
}

impl<T> Member<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        match self {
            Member::Local(handle) => Pin::new(handle).poll(cx),
            Member::Remote(handle) => Pin::new(handle).poll(cx),
            Member::Ended(_, outcome) => {
                let outcome = outcome.take();
                Poll::Ready(*outcome.expect("a member leaves with its outcome"))
            }
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Member::Local(handle) => handle.is_finished(),
            Member::Remote(handle) => handle.is_finished(),
            Member::Ended(..) => true,
        }
    }

    fn id(&self) -> Id {
        match self {
            Member::Local(handle) => handle.id(),
            Member::Remote(handle) => handle.id(),
            Member::Ended(id, _) => *id,
        }
    }

    fn abort(&self) {
        match self {
            Member::Local(handle) => handle.abort(),
            Member::Remote(handle) => handle.abort(),
            Member::Ended(..) => {}
        }
    }
}

/// What was found in a slot of the ready list.
enum Found<T> {
    Ended(Id, Result<T, JoinError>),
    /// A member that goes on, or none.
    Nothing,
    /// A member that has ended, but the task's share is used up.
    NoBudget,
}

/// Calls `f` as if the running task had its whole share left: a plain call cannot let others run,
/// so it must not be refused either. The task has left afterwards what it had before.
fn beyond_budget<R>(f: impl FnOnce() -> R) -> R {
    let _share = refill_budget();
    f()
}

/// The slots whose wakers were called, and the task that joins.
#[derive(Default)]
struct ReadyList(Mutex<List>);

#[derive(Default)]
struct List {
    /// Each slot once at most. It has room for all slots.
    ready: VecDeque<usize>,
    /// Of each slot, whether it is in `ready`.
    listed: Vec<bool>,
    /// Set only while `ready` is empty.
    joiner: Option<Waker>,
}

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, List> {
        // Nothing of the user's runs under the lock, so a poisoned one is as good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more slot, and its waker.
    fn add_slot(list: &Arc<Self>) -> Waker {
        let mut locked = list.lock();
        let slot = locked.listed.len();
        locked.listed.push(false);
        let room = locked.listed.len() - locked.ready.len();
        locked.ready.reserve(room);
        drop(locked);
        Waker::from(Arc::new(Slot {
            list: list.clone(),
            slot,
        }))
    }

    fn push(&self, slot: usize) {
        let mut list = self.lock();
        if !mem::replace(&mut list.listed[slot], true) {
            list.ready.push_back(slot);
        }
        let joiner = list.joiner.take();
        drop(list);
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }

    fn pop(&self) -> Option<usize> {
        self.lock().pop()
    }

    /// Takes a slot out, or has the task of `cx` woken when there is one.
    fn poll_pop(&self, cx: &Context<'_>) -> Poll<usize> {
        let mut list = self.lock();
        if let Some(slot) = list.pop() {
            return Poll::Ready(slot);
        }
        let joiner = list.joiner.as_ref();
        if joiner.is_some_and(|joiner| joiner.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        drop(list);
        // The clone is the task's own code, and the old waker's drop is, too. A slot may come in
        // meanwhile.
        let joiner = Some(cx.waker().clone());
        let mut list = self.lock();
        let (slot, unused) = match list.pop() {
            Some(slot) => (Poll::Ready(slot), joiner),
            None => (Poll::Pending, mem::replace(&mut list.joiner, joiner)),
        };
        drop(list);
        drop(unused);
        slot
    }
}

impl List {
    fn pop(&mut self) -> Option<usize> {
        let slot = self.ready.pop_front()?;
        self.listed[slot] = false;
        Some(slot)
    }
}

/// The waker of a slot.
struct Slot {
    list: Arc<ReadyList>,
    slot: usize,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list.push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::pending;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use roundel_reactor::current::BUDGET;

    use super::*;
    use crate::sync::oneshot;
    use crate::time::timeout;
    use crate::{Builder, Cores, yield_now};

    fn run<F: Future>(future: F) -> F::Output {
        let builder = Builder::new().cores(Cores::Count(1));
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(in_time(future))
    }

    /// Fails rather than wait for ever.
    async fn in_time<F: Future>(future: F) -> F::Output {
        let waited = timeout(Duration::from_secs(20), future).await;
        waited.expect("it ends in time")
    }

    /// A task that joins a set by hand, and counts its wakes.
    #[derive(Default)]
    struct Joiner(Arc<Count>);

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Joiner {
        fn poll<T>(&self, set: &mut JoinSet<T>) -> Poll<Option<Result<T, JoinError>>> {
            let waker = Waker::from(self.0.clone());
            set.poll_join_next(&mut Context::from_waker(&waker))
        }

        fn wakes(&self) -> usize {
            self.0.0.load(Ordering::Relaxed)
        }
    }

    /// Spawns a member that ends when the sender sends or is dropped.
    fn spawn_waiting(set: &mut JoinSet<usize>, number: usize) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        set.spawn(async move {
            let _ = receiver.await;
            number
        });
        sender
    }

    /// Lets the other tasks run until nothing of them is left to do.
    async fn settle() {
        for _ in 0..5 {
            yield_now().await;
        }
    }

    fn output<T>(joined: Option<Result<T, JoinError>>) -> T {
        joined
            .expect("a member has ended")
            .expect("it has an output")
    }

    /// Members are joined in the order in which they end, waited for or not.
    #[test]
    fn joins_in_the_order_of_ends() {
        run(async {
            let mut set = JoinSet::new();
            let mut senders: Vec<_> = (0..3)
                .map(|number| Some(spawn_waiting(&mut set, number)))
                .collect();
            assert_eq!((set.len(), set.is_empty()), (3, false));
            for number in [1, 2] {
                assert!(set.try_join_next().is_none());
                drop(senders[number].take());
                assert_eq!(output(set.join_next().await), number);
            }
            drop(senders[0].take());
            settle().await;
            assert_eq!(set.len(), 1, "ended, and not joined");
            assert_eq!(output(set.try_join_next()), 0);
            assert!(set.join_next().await.is_none());
            assert!(set.try_join_next().is_none());
            assert!(set.is_empty());
        });
    }

    /// Panics and aborts are told with the member's number, and an abort after the end is none.
    #[test]
    fn tells_what_happened() {
        run(async {
            let mut set = JoinSet::new();
            let panics = set.spawn(async { panic!("it panics") });
            let aborted = set.spawn(pending());
            let ends = set.spawn(async { 1 });
            aborted.abort();
            settle().await;
            ends.abort();
            let mut seen = 0;
            while let Some(joined) = set.join_next_with_id().await {
                seen += 1;
                match joined {
                    Ok((id, output)) => assert_eq!((id, output), (ends.id(), 1)),
                    Err(error) if error.is_panic() => assert_eq!(error.id(), panics.id()),
                    Err(error) => assert_eq!(error.id(), aborted.id()),
                }
            }
            assert_eq!(seen, 3);
        });
    }

    /// Who has ended is found in the list, and nobody else is in it.
    #[test]
    fn asks_nobody_else() {
        run(async {
            let mut set = JoinSet::new();
            let mut senders: Vec<_> = (0..100)
                .map(|number| spawn_waiting(&mut set, number))
                .collect();
            settle().await;
            assert!(set.ready.lock().ready.is_empty());
            drop(senders.remove(70));
            settle().await;
            assert_eq!(set.ready.lock().ready, [70]);
            assert_eq!(output(set.join_next().await), 70);
        });
    }

    /// Slots are used again, and the list never has to grow for a wake; a burst's memory is given
    /// back.
    #[test]
    fn memory() {
        run(async {
            let mut set = JoinSet::new();
            for round in 0..100 {
                set.spawn(async move { round });
                set.spawn(async move { round });
                assert_eq!(output(set.join_next().await), round);
                assert_eq!(output(set.join_next().await), round);
            }
            assert_eq!(set.wakers.len(), 2);
            let many = SLOTS_KEPT + 1;
            let mut burst: JoinSet<_> = (0..many).map(|number| async move { number }).collect();
            let room = burst.ready.lock().ready.capacity();
            assert!(room >= many);
            settle().await;
            assert_eq!(burst.ready.lock().ready.capacity(), room);
            while burst.join_next().await.is_some() {}
            assert!(burst.wakers.is_empty());
            assert_eq!(burst.ready.lock().listed.len(), 0);
            burst.spawn(async { 7 });
            assert_eq!(output(burst.join_next().await), 7);
        });
    }

    /// The task that asked last is woken, once, by the first member that ends.
    #[test]
    fn wakes_who_joins() {
        run(async {
            let mut set = JoinSet::new();
            let senders = [0, 1].map(|number| spawn_waiting(&mut set, number));
            let (old, new) = (Joiner::default(), Joiner::default());
            assert!(old.poll(&mut set).is_pending());
            assert!(new.poll(&mut set).is_pending());
            assert!(new.poll(&mut set).is_pending());
            drop(senders);
            settle().await;
            assert_eq!((old.wakes(), new.wakes()), (0, 1));
            assert!(new.poll(&mut set).is_ready());
            assert!(new.poll(&mut set).is_ready());
            assert!(matches!(new.poll(&mut set), Poll::Ready(None)));
        });
    }

    /// A `join_next` that is dropped loses no member: not one that ends later, nor one that has ended
    /// while the future waited.
    #[test]
    fn join_next_is_cancel_safe() {
        run(async {
            let mut set = JoinSet::new();
            let mut cx = Context::from_waker(Waker::noop());
            for number in 0..2 {
                let sender = spawn_waiting(&mut set, number);
                let mut sender = Some(sender);
                let mut next = Box::pin(set.join_next());
                assert!(next.as_mut().poll(&mut cx).is_pending());
                if number == 0 {
                    drop(sender.take());
                    settle().await;
                }
                drop(next);
                drop(sender);
                assert_eq!(output(set.join_next().await), number);
            }
        });
    }

    /// A wake for nothing, of a member that goes on and of a slot without one, costs nobody its own.
    #[test]
    fn spurious_wakes() {
        run(async {
            let mut set = JoinSet::new();
            let joiner = Joiner::default();
            let sender = spawn_waiting(&mut set, 0);
            assert!(joiner.poll(&mut set).is_pending());
            set.wakers[0].wake_by_ref();
            set.wakers[0].wake_by_ref();
            assert_eq!(joiner.wakes(), 1);
            assert_eq!(set.ready.lock().ready, [0]);
            assert!(joiner.poll(&mut set).is_pending());
            drop(sender);
            settle().await;
            assert_eq!(joiner.wakes(), 2);
            assert!(joiner.poll(&mut set).is_ready());
            set.wakers[0].wake_by_ref();
            let sender = spawn_waiting(&mut set, 1);
            assert!(joiner.poll(&mut set).is_pending());
            drop(sender);
            settle().await;
            assert!(matches!(joiner.poll(&mut set), Poll::Ready(Some(Ok(1)))));
        });
    }

    /// Dropping the set, or waiting for its shutdown, has every future dropped, begun or not.
    #[test]
    fn drop_and_shutdown() {
        run(async {
            let held = Rc::new(());
            let hold = |set: &mut JoinSet<()>| {
                let inner = held.clone();
                set.spawn(async move {
                    pending::<()>().await;
                    drop(inner);
                });
            };
            let mut set = JoinSet::new();
            hold(&mut set);
            yield_now().await;
            hold(&mut set);
            drop(set);
            settle().await;
            assert_eq!(Rc::strong_count(&held), 1);
            let mut set = JoinSet::new();
            hold(&mut set);
            yield_now().await;
            hold(&mut set);
            set.spawn(async { panic!("nobody hears it") });
            set.shutdown().await;
            assert!(set.is_empty());
            assert_eq!(Rc::strong_count(&held), 1);
            hold(&mut set);
            set.abort_all();
            assert!(set.join_next().await.expect("it is a member").is_err());
        });
    }

    /// Detached members are not aborted, and the set is as new.
    #[test]
    fn detach_all() {
        run(async {
            let mut set = JoinSet::new();
            let (sender, receiver) = oneshot::channel::<()>();
            let (done, heard) = oneshot::channel();
            set.spawn(async move {
                let _ = receiver.await;
                let _ = done.send(1);
            });
            set.detach_all();
            assert!(set.is_empty());
            set.spawn(async {});
            drop(sender);
            assert_eq!(heard.await, Ok(1));
            assert!(set.join_next().await.is_some());
            assert!(set.join_next().await.is_none());
        });
    }

    /// All outputs come in the order of the ends; a member's panic is the caller's, and the others
    /// are aborted.
    #[test]
    fn join_all() {
        run(async {
            let set: JoinSet<_> = (0..3).map(|number| async move { number }).collect();
            assert_eq!(set.join_all().await, [0, 1, 2]);
            let held = Rc::new(());
            let inner = held.clone();
            let mut set = JoinSet::new();
            set.spawn(async move {
                pending::<()>().await;
                drop(inner);
            });
            set.spawn(async { panic!("a member panics") });
            let mut all = Box::pin(set.join_all());
            settle().await;
            let mut cx = Context::from_waker(Waker::noop());
            let caught = catch_unwind(AssertUnwindSafe(|| all.as_mut().poll(&mut cx)));
            let payload = caught.expect_err("it panics");
            assert_eq!(payload.downcast_ref(), Some(&"a member panics"));
            settle().await;
            assert_eq!(Rc::strong_count(&held), 1);
        });
    }

    /// Tasks of another shard and blocking jobs are members like others, and are aborted like them;
    /// one that has ended when it comes in is found, too.
    #[test]
    fn remote_members() {
        let builder = Builder::new().cores(Cores::Count(2));
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(in_time(async {
            let mut set = JoinSet::new();
            set.spawn_on(1, || async { crate::shard() });
            assert_eq!(output(set.join_next().await), 1);
            set.spawn_blocking(|| 2);
            assert_eq!(output(set.join_next().await), 2);
            let handle = crate::spawn_on(1, || async { 3 });
            while !handle.is_finished() {
                yield_now().await;
            }
            set.insert_remote(handle);
            assert_eq!(output(set.join_next().await), 3);
            set.spawn_on(1, pending::<usize>);
            set.shutdown().await;
            assert!(set.is_empty());
        }));
    }

    /// Joining spends the task's share; a plain call gives what has ended even without one, and
    /// leaves the task without.
    #[test]
    fn budget() {
        run(async {
            let each = usize::try_from(BUDGET).expect("it is small");
            let mut set: JoinSet<_> = (0..4 * each).map(|_| async {}).collect();
            settle().await;
            assert_eq!(set.ready.lock().ready.len(), 4 * each);
            let joiner = Joiner::default();
            let mut joined = 0;
            while joiner.poll(&mut set).is_ready() {
                joined += 1;
            }
            assert!(joined <= each, "{joined}");
            assert_eq!(joiner.wakes(), 1, "it is to go on later");
            for _ in 0..=each {
                output(set.try_join_next());
            }
            assert!(joiner.poll(&mut set).is_pending());
            joined += each + 1;
            while set.join_next().await.is_some() {
                joined += 1;
            }
            assert_eq!(joined, 4 * each);
        });
    }

    thread_local! {
        static SET: RefCell<JoinSet<usize>> = RefCell::new(JoinSet::new());
        static TAKEN: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// A waker that joins on the spot.
    struct TakeAtOnce;

    impl Wake for TakeAtOnce {
        fn wake(self: Arc<Self>) {
            SET.with_borrow_mut(|set| TAKEN.set(Some(output(set.try_join_next()))));
        }
    }

    /// A waker that is called when a member ends may use the set at once, and finds that member.
    #[test]
    fn wakers_may_come_back() {
        run(async {
            let sender = SET.with_borrow_mut(|set| spawn_waiting(set, 5));
            let waker = Waker::from(Arc::new(TakeAtOnce));
            let poll =
                SET.with_borrow_mut(|set| set.poll_join_next(&mut Context::from_waker(&waker)));
            assert!(poll.is_pending());
            drop(sender);
            settle().await;
            assert_eq!(TAKEN.get(), Some(5));
            SET.with_borrow(|set| assert!(set.is_empty()));
        });
    }
}
