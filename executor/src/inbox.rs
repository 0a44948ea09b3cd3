//! How other threads reach a shard: three lanes, a flag that says whether it sleeps, and a notifier.
//!
//! An [`Inbox`] belongs to one shard, its *owner*, and is shared with everybody who may wake, spawn or
//! finish something for it. The *slot lane* carries tasks that were woken elsewhere; the *errand lane*
//! carries what is spawned or aborted from elsewhere; the *completion lane* carries the wakers of
//! finished pool jobs, which the owner calls ahead of ordinary tasks; `wake` carries nothing and is for
//! the root future. The inbox is not the way a shard wakes its own tasks, and it runs nothing: how many
//! items the owner takes at once is the owner's matter.
//!
//! The slot lane is an intrusive [`Stack`]: a wake allocates nothing, and a task is there at most once.
//! The errand lane is a queue behind a mutex, since a spawn allocates in any case.
//!
//! # How a wake is never lost
//!
//! Waking a sleeping thread costs a system call and some microseconds, so a pusher does it only for an
//! owner that sleeps or is about to. `asleep` says so, and **every change of it is a swap (`AcqRel`)**:
//!
//! ```text
//!   pusher                                      owner
//!   P1  put the item into its lane              O1  asleep.swap(true)
//!   P2  was = asleep.swap(false)                O2  is something there?  then asleep.swap(false), no sleep
//!   P3  if was: notify                          O3  wait (until a notify, among others)
//!                                               O4  asleep.swap(false)
//!                                               O5  take items
//! ```
//!
//! All swaps of one flag have one order, and each of them reads what the one before it wrote and sees
//! everything that was done before that one (a swap continues the release sequence it interrupts; a
//! plain store would end it). So for a push and the owner's next O1 there are two cases:
//!
//! 1. P2 comes before O1: the push happened before O2, which finds the item. The owner does not sleep.
//! 2. P2 comes after O1: between the two the flag was lowered either by P2 itself, which then notifies;
//!    by another pusher's P2, which then notifies; or by the owner's own O2 or O4, that is, the owner
//!    does not sleep, and before it sleeps again case 1 or 2 holds for its next O1.
//!
//! An owner that is awake has the flag down, so it is never notified. At most one pusher notifies per
//! O1. A notify may come after O4, for a sleep that is over: the next wait then ends early, which costs
//! one turn and nothing else.
//!
//! Why no change may be a plain store: at O1 or O4 it would hide the earlier P2 from the owner, whose
//! next look could miss the item while the pusher has seen a flag that was down. Why no pusher may look
//! first and swap only if the flag is up: its look could be older than O1.
//!
//! # One inbox, one owner after the other
//!
//! A shard that ends leaves its inbox to a later shard: a waker that is still about may push to it at
//! any time. What arrives late must do no harm, to nobody or to the next owner:
//!
//! - A *slot* stays in its lane until the next owner drains it, and is a needless wake then.
//! - An *errand* belongs to one runtime. The owner opens the lane for its *epoch*, a number of its own,
//!   and a push names the epoch it means: another one, or a lane that is closed, gives the errand back,
//!   and who brought it ends it. Both happen under the lane's lock, so there is nothing in between.
//! - A *completion* is only a waker, and is called by whoever finds it: by the next owner, or, if there
//!   is none, by who brought it. The flag of the sleep protocol is the hinge:
//!
//! ```text
//!   pusher                                      owner that ends
//!   P1, P2, P3 as above                         C1  closed = true
//!   P4  if closed: empty the completion lane    C2  asleep.swap(false)
//!                                               C3  empty the completion lane
//! ```
//!
//! If P2 comes before C2, C3 finds the waker. If it comes after, P4 sees `closed`, or else a later owner
//! has opened the inbox, and finds the waker as case 1 or 2 says. Several may empty the lane at once:
//! each waker comes out of a queue once.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::Waker;

use crate::atomics::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Queue};
use crate::task::remote::{LinkRef, Stack};

/// What other threads have for a shard; see the module for the protocol.
///
/// `E` is what the errand lane carries. `N` is called, on the thread of a pusher, to end the owner's
/// wait; it must make the owner's next wait return at once if none is going on.
pub(crate) struct Inbox<E, N> {
    /// Wakers of finished pool jobs.
    completions: Queue<Waker>,
    /// What is to be spawned or aborted.
    errands: Lane<E>,
    /// Tasks that were woken.
    slots: Stack,
    /// Somebody called `wake` since the owner last looked. Set by anybody, cleared by the owner, both
    /// by swaps: the owner must see what was done before *each* of several wakes.
    woken: AtomicBool,
    /// The owner waits or is about to. Raised by the owner, lowered by anybody, only by swaps.
    asleep: AtomicBool,
    /// There is no owner. Changed by the owner that comes or goes.
    closed: AtomicBool,
    /// How to end the wait of the present owner. Changed by the owner that comes or goes, called by
    /// who has lowered `asleep`; a call that is late rings for the next owner, or for nobody. The lock
    /// is for this: there is no call after the change.
    notify: Mutex<Option<N>>,
}

impl<E, N> Inbox<E, N>
where
    E: Send,
    N: Fn(),
{
    /// An empty inbox without an owner.
    pub(crate) fn new() -> Self {
        Inbox {
            completions: Queue::new(),
            errands: Lane::new(),
            slots: Stack::new(),
            woken: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            closed: AtomicBool::new(true),
            notify: Mutex::new(None),
        }
    }

    /// The caller becomes the owner, and takes errands of this epoch from now on. An epoch is not 0 and
    /// not one that was used before.
    pub(crate) fn open(&self, epoch: u64, notify: N) {
        *self.notifier() = Some(notify);
        self.errands.open(epoch);
        self.closed.store(false, Ordering::Release);
    }

    /// Hands the owner the waker of a finished pool job. From any thread.
    ///
    /// When the inbox is closed the waker is called here: for a task of the owner that does nothing any
    /// more, and whoever else it belongs to must not lose it.
    pub(crate) fn push_completion(&self, waker: Waker) {
        self.completions.push(waker);
        self.announce();
        // Acquire is not what orders this load after C1, the swap is; it costs nothing here.
        if self.closed.load(Ordering::Acquire) {
            self.empty();
        }
    }

    /// Hands the owner an errand. From any thread.
    ///
    /// # Errors
    ///
    /// The errand itself if the owner of that epoch has ended.
    pub(crate) fn push(&self, epoch: u64, errand: E) -> Result<(), E> {
        self.errands.push(epoch, errand)?;
        self.announce();
        Ok(())
    }

    /// Hands the owner a task that was woken. From any thread; after the owner's end it does nothing
    /// that anybody notices.
    pub(crate) fn push_slot(&self, link: LinkRef) {
        if self.slots.push(link) {
            self.announce();
        }
    }

    /// Makes the owner look, and [`take_wake`](Self::take_wake) answer `true` once. From any thread.
    pub(crate) fn wake(&self) {
        self.woken.swap(true, Ordering::AcqRel);
        self.announce();
    }

    /// Takes the oldest completion. For the owner.
    pub(crate) fn pop_completion(&self) -> Option<Waker> {
        self.completions.pop()
    }

    /// Takes the oldest errand. For the owner.
    pub(crate) fn pop(&self) -> Option<E> {
        self.errands.pop()
    }

    /// Takes all tasks that were woken, the oldest wake first. For the owner. `wake` must not panic.
    pub(crate) fn drain_slots(&self, wake: impl FnMut(LinkRef)) {
        self.slots.drain(wake);
    }

    /// Whether [`wake`](Self::wake) was called since the last time this said so. For the owner.
    pub(crate) fn take_wake(&self) -> bool {
        // The load spares the owner a swap in every turn in which nobody called.
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// Whether nothing is there to take: no item in any lane, and no wake.
    ///
    /// A hint: only [`prepare_sleep`](Self::prepare_sleep) knows of every push that did not notify.
    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty()
            && self.errands.is_empty()
            && self.slots.is_empty()
            && !self.woken.load(Ordering::Relaxed)
    }

    /// Announces that the owner is going to wait (O1, O2). For the owner, when it has nothing to do.
    ///
    /// `Some`: nothing is there, and whatever comes while the guard lives ends the wait by a notify.
    /// `None`: something is there; the owner must not wait.
    #[must_use = "dropping the guard at once says that the owner is awake again"]
    pub(crate) fn prepare_sleep(&self) -> Option<Asleep<'_, E, N>> {
        self.asleep.swap(true, Ordering::AcqRel);
        // Dropping the guard lowers the flag again; so does a panic while the owner waits.
        let asleep = Asleep { inbox: self };
        self.is_empty().then_some(asleep)
    }

    /// The owner ends (C1, C2), and gets the errands that are left. It then empties the completion lane.
    pub(crate) fn close(&self) -> VecDeque<E> {
        self.closed.store(true, Ordering::Release);
        self.asleep.swap(false, Ordering::AcqRel);
        let notify = self.notifier().take();
        drop(notify);
        self.errands.close()
    }

    /// Makes the owner see what this thread has just put in (P2, P3).
    fn announce(&self) {
        if self.asleep.swap(false, Ordering::AcqRel)
            && let Some(notify) = &*self.notifier()
        {
            notify();
        }
    }

    fn notifier(&self) -> MutexGuard<'_, Option<N>> {
        // A notifier that panicked is as good as before.
        self.notify.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the wakers in place of an owner that is gone.
    #[cold]
    fn empty(&self) {
        // Ends: after the owner has gone only late jobs push, each once.
        while let Some(waker) = self.completions.pop() {
            waker.wake();
        }
    }
}

/// The owner waits, or may. Dropping it says that the owner is awake (O4).
pub(crate) struct Asleep<'a, E, N> {
    inbox: &'a Inbox<E, N>,
}

impl<E, N> Drop for Asleep<'_, E, N> {
    fn drop(&mut self) {
        // The former value is of no use: whoever lowered the flag has notified, and a notify that
        // comes late ends the next wait early.
        self.inbox.asleep.swap(false, Ordering::AcqRel);
    }
}

/// A queue that is open for one epoch at a time.
struct Lane<E> {
    items: Mutex<Items<E>>,
    /// How many there are. Changed with `items` locked, read without: the owner looks every turn.
    len: AtomicUsize,
}

struct Items<E> {
    /// Whose errands are taken; 0: nobody's.
    epoch: u64,
    queue: VecDeque<E>,
}

impl<E> Lane<E> {
    fn new() -> Self {
        Lane {
            items: Mutex::new(Items {
                epoch: 0,
                queue: VecDeque::new(),
            }),
            len: AtomicUsize::new(0),
        }
    }

    fn open(&self, epoch: u64) {
        self.with(|items| items.epoch = epoch);
    }

    fn push(&self, epoch: u64, item: E) -> Result<(), E> {
        self.with(|items| {
            if items.epoch != epoch {
                return Err(item);
            }
            items.queue.push_back(item);
            Ok(())
        })
    }

    fn pop(&self) -> Option<E> {
        if self.is_empty() {
            return None;
        }
        self.with(|items| items.queue.pop_front())
    }

    fn close(&self) -> VecDeque<E> {
        self.with(|items| {
            items.epoch = 0;
            std::mem::take(&mut items.queue)
        })
    }

    /// A push that this thread does not know of may be missed.
    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    fn with<R>(&self, f: impl FnOnce(&mut Items<E>) -> R) -> R {
        // Nothing in `f` panics but an allocation, and a queue is whole after that.
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut items);
        self.len.store(items.queue.len(), Ordering::Relaxed);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use super::Inbox;

    /// An inbox that is open for epoch 1.
    fn opened<E: Send, N: Fn()>(notify: N) -> Inbox<E, N> {
        let inbox = Inbox::new();
        inbox.open(1, notify);
        inbox
    }

    fn put<E: Send, N: Fn()>(inbox: &Inbox<E, N>, errand: E) {
        assert!(inbox.push(1, errand).is_ok(), "the inbox is open");
    }

    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counting_waker() -> (Arc<CountingWaker>, Waker) {
        let count = Arc::new(CountingWaker(AtomicUsize::new(0)));
        (count.clone(), Waker::from(count))
    }

    /// An awake owner is never notified, whichever way it is reached.
    #[test]
    fn an_awake_owner_is_not_notified() {
        let notified = AtomicUsize::new(0);
        let inbox = opened(|| {
            notified.fetch_add(1, Ordering::Relaxed);
        });
        put(&inbox, 1);
        inbox.push_completion(Waker::noop().clone());
        inbox.wake();
        assert_eq!(notified.load(Ordering::Relaxed), 0);
        assert!(!inbox.is_empty());

        // Nor after a sleep that ended, nor after one that was refused.
        assert!(inbox.prepare_sleep().is_none());
        put(&inbox, 2);
        assert_eq!((inbox.pop(), inbox.pop()), (Some(1), Some(2)));
        assert!(inbox.pop_completion().is_some());
        assert!(inbox.take_wake());
        drop(inbox.prepare_sleep().expect("the inbox is empty"));
        put(&inbox, 3);
        assert_eq!(notified.load(Ordering::Relaxed), 0);
    }

    /// A sleeping owner is notified once, whatever number of pushes follows.
    #[test]
    fn a_sleeping_owner_is_notified_once() {
        type Push = fn(&Inbox<u32, &dyn Fn()>);
        let pushes: [Push; 3] = [
            |inbox| put(inbox, 1),
            |inbox| inbox.push_completion(Waker::noop().clone()),
            |inbox| inbox.wake(),
        ];
        for first in pushes {
            let notified = AtomicUsize::new(0);
            let notify = || {
                notified.fetch_add(1, Ordering::Relaxed);
            };
            let inbox = opened::<u32, &dyn Fn()>(&notify);
            let asleep = inbox.prepare_sleep().expect("the inbox is empty");
            first(&inbox);
            pushes.iter().for_each(|push| push(&inbox));
            assert_eq!(notified.load(Ordering::Relaxed), 1);
            drop(asleep);
        }
    }

    /// Each of the three ways in keeps the owner from sleeping.
    #[test]
    fn nobody_sleeps_on_something() {
        let inbox = opened(|| {});
        put(&inbox, ());
        assert!(inbox.prepare_sleep().is_none());
        assert!(inbox.pop().is_some());
        inbox.push_completion(Waker::noop().clone());
        assert!(inbox.prepare_sleep().is_none());
        assert!(inbox.pop_completion().is_some());
        inbox.wake();
        assert!(inbox.prepare_sleep().is_none());
        assert!(inbox.take_wake());
        assert!(!inbox.take_wake());
        assert!(inbox.prepare_sleep().is_some());
    }

    /// What arrives after the close is ended by who brings it: errands given back, wakers called; what
    /// arrived before is still there for the owner.
    #[test]
    fn a_closed_inbox_keeps_nothing() {
        let inbox = opened(|| panic!("an owner that has ended is not notified"));
        put(&inbox, 1);
        assert_eq!(inbox.close(), [1]);

        assert_eq!(inbox.push(1, 2), Err(2));
        let (woken, waker) = counting_waker();
        inbox.push_completion(waker);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        inbox.wake();
        assert!(inbox.take_wake());
        assert!(inbox.is_empty());
    }

    /// The next owner takes its own errands, and gives back those that are meant for the one before.
    #[test]
    fn an_errand_reaches_its_own_epoch_only() {
        let inbox = Inbox::<_, fn()>::new();
        assert_eq!(inbox.push(1, 1), Err(1));
        inbox.open(1, || {});
        assert_eq!(inbox.push(1, 2), Ok(()));
        assert_eq!(inbox.close(), [2]);
        inbox.open(2, || {});
        assert_eq!(inbox.push(1, 3), Err(3));
        assert_eq!(inbox.push(2, 4), Ok(()));
        assert_eq!(inbox.pop(), Some(4));
        assert_eq!(inbox.pop(), None);
    }

    /// The owner sleeps for real while two threads push at their own pace: everything arrives, and a
    /// wait that nobody ends would be a lost wake.
    #[test]
    fn everything_arrives() {
        const EACH: usize = 5_000;
        let (notify, notified) = mpsc::channel();
        let inbox = opened(move || {
            // The receiver goes first when the assertion below has failed.
            let _ = notify.send(());
        });
        std::thread::scope(|scope| {
            for pusher in 0..2 {
                let inbox = &inbox;
                scope.spawn(move || {
                    for item in 0..EACH {
                        match (item + pusher) % 2 {
                            0 => put(inbox, item),
                            _ => inbox.push_completion(Waker::noop().clone()),
                        }
                        if item % 16 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut taken = 0;
            // Ends: the threads push exactly this many.
            while taken < 2 * EACH {
                taken += std::iter::from_fn(|| inbox.pop()).count();
                taken += std::iter::from_fn(|| inbox.pop_completion()).count();
                if taken == 2 * EACH {
                    break;
                }
                if let Some(asleep) = inbox.prepare_sleep() {
                    notified
                        .recv_timeout(Duration::from_secs(30))
                        .expect("a wake was lost");
                    drop(asleep);
                }
            }
        });
        assert!(inbox.is_empty());
    }
}

// The models of the protocol, all to be run with `LOOM_MAX_PREEMPTIONS=2` or more. A lost wake shows as
// a deadlock, which ends the test process. Each of these changes was tried alone, and makes the named
// models fail (without their `loom_`; "sleepers" are the first five, in which the owner waits):
//
//   O1 a plain store (SeqCst, too), or a swap without Acquire     all sleepers
//   O2 left out                                                   all sleepers
//   O4 a plain store                                              all sleepers but writes_before_a_push_are_seen
//   P2 before P1 (in `push`)                                      all sleepers but wake_against_sleep; close_against_push
//   P2 a look, then a swap or store if the flag is up             all
//   P2 a swap without Release                                     all
//   P2 a swap without Acquire; C2 a plain store, left out, or
//     before C1; P4 left out                                      close_against_push, _completion
//   P4 for the runnable lane alone                                close_against_completion
//   O2 without a look at the completion lane                      both_lanes_wake_the_owner
//   `woken` set by a store; taken by a load and a store, or by a
//     swap without Acquire; O2 without a look at it               wake_against_sleep
//
// These are stronger than the models need, for there is one rule for all: Release at O1, both at O4
// (there a relaxed swap would do: it keeps the release sequence for the next O1), Acquire in `wake`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicUsize as StdAtomicUsize, Ordering as StdOrdering};
    use std::task::{Wake, Waker};

    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::Inbox;

    /// The notifier: one bit that a wait takes. A wait that nobody ends is a deadlock, which loom finds.
    #[derive(Default)]
    struct Signal {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        fn raise(&self) {
            *self.raised.lock().unwrap() = true;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.changed.wait(raised).unwrap();
            }
            *raised = false;
        }
    }

    type Notify = Box<dyn Fn() + Send + Sync>;

    /// An inbox and the signal that its notifier raises.
    struct Shared<R> {
        inbox: Inbox<R, Notify>,
        signal: Arc<Signal>,
    }

    impl<R: Send + 'static> Shared<R> {
        fn new() -> Arc<Self> {
            let signal = Arc::new(Signal::default());
            let notifier = signal.clone();
            Arc::new(Shared {
                inbox: {
                    let inbox: Inbox<R, Notify> = Inbox::new();
                    inbox.open(1, Box::new(move || notifier.raise()));
                    inbox
                },
                signal,
            })
        }

        /// Pushes for the owner that is there from the beginning.
        fn put(&self, errand: R) {
            assert!(self.inbox.push(1, errand).is_ok(), "the inbox is open");
        }

        /// The owner: sleeps whenever it may, until `enough` says that all has come.
        fn run_owner(&self, mut enough: impl FnMut(&Inbox<R, Notify>) -> bool) {
            while !enough(&self.inbox) {
                if let Some(asleep) = self.inbox.prepare_sleep() {
                    self.signal.wait();
                    drop(asleep);
                }
            }
        }
    }

    /// Counts its calls. Not one of loom's atomics: it is not part of what is modelled.
    #[derive(Default)]
    struct Count(StdAtomicUsize);

    impl Count {
        fn get(&self) -> usize {
            self.0.load(StdOrdering::Relaxed)
        }

        fn add_one(&self) {
            self.0.fetch_add(1, StdOrdering::Relaxed);
        }
    }

    impl Wake for Count {
        fn wake(self: StdArc<Self>) {
            self.add_one();
        }
    }

    /// A runnable that counts how often it was dropped.
    struct Counted(StdArc<Count>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.add_one();
        }
    }

    /// Two producers and an owner that sleeps whenever it may: both items arrive.
    #[test]
    fn loom_two_producers_wake_the_owner() {
        loom::model(|| {
            let shared = Shared::new();
            let producers: Vec<_> = (0..2)
                .map(|item| {
                    let shared = shared.clone();
                    thread::spawn(move || shared.put(item))
                })
                .collect();
            let mut taken = Vec::new();
            shared.run_owner(|inbox| {
                taken.extend(std::iter::from_fn(|| inbox.pop()));
                taken.len() == 2
            });
            taken.sort_unstable();
            assert_eq!(taken, [0, 1]);
            for producer in producers {
                producer.join().unwrap();
            }
        });
    }

    /// One producer pushes twice, so that its second push may meet an owner that is just waking up.
    #[test]
    fn loom_two_pushes_of_one_producer() {
        loom::model(|| {
            let shared = Shared::new();
            let producer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.put(0);
                    shared.put(1);
                })
            };
            let mut taken = Vec::new();
            shared.run_owner(|inbox| {
                taken.extend(std::iter::from_fn(|| inbox.pop()));
                taken.len() == 2
            });
            assert_eq!(taken, [0, 1]);
            producer.join().unwrap();
        });
    }

    /// A finished job and a runnable, by different threads: both lanes end the same sleep.
    #[test]
    fn loom_both_lanes_wake_the_owner() {
        loom::model(|| {
            let shared = Shared::new();
            let woken = StdArc::new(Count::default());
            let worker = {
                let shared = shared.clone();
                let waker = Waker::from(woken.clone());
                thread::spawn(move || shared.inbox.push_completion(waker))
            };
            let spawner = {
                let shared = shared.clone();
                thread::spawn(move || shared.put(()))
            };
            let mut runnables = 0;
            shared.run_owner(|inbox| {
                std::iter::from_fn(|| inbox.pop_completion()).for_each(Waker::wake);
                runnables += std::iter::from_fn(|| inbox.pop()).count();
                (woken.get(), runnables) == (1, 1)
            });
            worker.join().unwrap();
            spawner.join().unwrap();
        });
    }

    /// A wake without a payload ends a sleep, and the owner sees what was written before every wake.
    #[test]
    fn loom_wake_against_sleep() {
        loom::model(|| {
            let shared = Shared::<()>::new();
            let ready = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let wakers: Vec<_> = (0..2)
                .map(|index| {
                    let shared = shared.clone();
                    let ready = ready.clone();
                    thread::spawn(move || {
                        ready[index].store(true, Ordering::Relaxed);
                        shared.inbox.wake();
                    })
                })
                .collect();
            // As a root future would: it looks only when it was woken.
            shared.run_owner(|inbox| {
                inbox.take_wake() && ready.iter().all(|bit| bit.load(Ordering::Relaxed))
            });
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// What a producer wrote before its push, the owner reads after its pop.
    #[test]
    fn loom_writes_before_a_push_are_seen() {
        loom::model(|| {
            let shared = Shared::new();
            let value = Arc::new(AtomicUsize::new(0));
            let producer = {
                let shared = shared.clone();
                let value = value.clone();
                thread::spawn(move || {
                    value.store(7, Ordering::Relaxed);
                    shared.put(());
                })
            };
            shared.run_owner(|inbox| inbox.pop().is_some());
            assert_eq!(value.load(Ordering::Relaxed), 7);
            producer.join().unwrap();
        });
    }

    /// Two late spawns against the close: nothing stays in the inbox, and each is dropped once, by its
    /// bringer or by the owner.
    #[test]
    fn loom_close_against_push() {
        loom::model(|| {
            let shared = Shared::new();
            let dropped = StdArc::new(Count::default());
            let producers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    let item = Counted(dropped.clone());
                    thread::spawn(move || drop(shared.inbox.push(1, item)))
                })
                .collect();
            drop(shared.inbox.close());
            for producer in producers {
                producer.join().unwrap();
            }
            assert_eq!(dropped.get(), 2);
            assert!(shared.inbox.is_empty());
        });
    }

    /// A job that finishes against the close, of an owner that was asleep before: its waker is called
    /// once, by the one side or the other.
    #[test]
    fn loom_close_against_completion() {
        loom::model(|| {
            let shared = Shared::<()>::new();
            let woken = StdArc::new(Count::default());
            let worker = {
                let shared = shared.clone();
                let waker = Waker::from(woken.clone());
                thread::spawn(move || shared.inbox.push_completion(waker))
            };
            drop(shared.inbox.prepare_sleep());
            drop(shared.inbox.close());
            while let Some(waker) = shared.inbox.pop_completion() {
                waker.wake();
            }
            worker.join().unwrap();
            assert_eq!(woken.get(), 1);
            assert!(shared.inbox.is_empty());
        });
    }
}
