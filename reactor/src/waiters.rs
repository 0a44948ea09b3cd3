//! Tasks that wait, in order, for one thing on this shard.
//!
//! [`Waiters`] is a queue of wakers. It does not know what is waited for: whoever owns it checks
//! the condition, and calls [`wake_one`](Waiters::wake_one) or [`wake_all`](Waiters::wake_all)
//! when it changed. It is made for one thread: no atomics, no locks, and it is `!Send`.
//!
//! **How it works.** A waiter is a node in a slab, linked into one of two queues by index, so
//! joining, leaving and waking cost a constant time and a list that has once grown allocates no
//! more. The waiter's future holds the only [`Key`] of its node; the node outlives the wake and is
//! given back when the future sees the wake or is dropped. That is how a wake is never lost: a
//! node that was woken by `wake_one` and is removed before its future acted hands the wake to the
//! next waiter, or tells its owner that nobody is there to take it.
//!
//! `wake_all` first moves every waiter into a second queue and only then calls their wakers one
//! by one. Who begins to wait while they are called is not woken by that call, and a `wake_one`
//! made by one of the wakers is not spent on a waiter that is about to be woken anyway. No waker is
//! called, cloned or dropped while the list is borrowed, so each of them may come back here.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// A list that held more nodes than this gives its memory back once it is empty (10 KiB).
const NODES_KEPT: usize = 256;

/// The end of a queue, where a link names no node.
const NONE: usize = usize::MAX;

/// Tasks that wait, first come first served, for one thing on this shard.
///
/// An empty list owns no memory.
///
/// # Examples
///
/// ```
/// use futures::executor::block_on;
/// use futures::join;
/// use roundel_reactor::waiters::{Wake, Waiters};
///
/// let waiters = Waiters::new();
/// block_on(async {
///     let (wake, ()) = join!(waiters.wait(), async { assert!(waiters.wake_one()) });
///     assert_eq!(wake, Wake::One);
/// });
/// assert!(!waiters.wake_one(), "nobody waits any more");
/// ```
pub struct Waiters {
    list: RefCell<List>,
    /// Keys and nodes belong to one thread.
    not_send: PhantomData<Rc<()>>,
}

/// A place in the list, given out by [`Waiters::poll_wait`].
///
/// Whoever holds one gives it back by polling until the wake arrives or by
/// [`Waiters::remove`]; a key that is merely forgotten keeps its place and swallows one wake.
#[derive(Debug)]
pub struct Key(usize);

/// Which call woke a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// [`Waiters::wake_one`]: this waiter alone was woken, so what it was woken for is its own.
    One,
    /// [`Waiters::wake_all`]: so was everybody else.
    All,
}

impl Waiters {
    /// An empty list. Allocates nothing.
    pub const fn new() -> Waiters {
        Waiters {
            list: RefCell::new(List {
                nodes: Slab::new(),
                waiting: Queue::new(),
                marked: Queue::new(),
            }),
            not_send: PhantomData,
        }
    }

    /// Waits to be woken. The returned future joins the end of the list when it is first polled.
    ///
    /// Dropping the future leaves the list. If it had been woken by
    /// [`wake_one`](Waiters::wake_one), the wake goes to the next waiter; with no other waiter it
    /// is gone. An owner that must keep it (a stored permit) uses
    /// [`poll_wait`](Waiters::poll_wait) and [`remove`](Waiters::remove) instead.
    pub fn wait(&self) -> Wait<'_> {
        Wait {
            waiters: self,
            key: None,
        }
    }

    /// Joins the end of the list if `key` is empty, else asks whether the waiter `key` was woken.
    ///
    /// `Ready` empties `key`: the wake is the caller's now. While it is `Pending`, the waker of the
    /// last call is the one that will be called.
    ///
    /// # Panics
    ///
    /// If `key` came from another list.
    pub fn poll_wait(&self, key: &mut Option<Key>, cx: &mut Context<'_>) -> Poll<Wake> {
        let known = self.list.borrow().known(key, cx.waker());
        match known {
            Known::Same => return Poll::Pending,
            Known::Woken(wake) => {
                let held = key.take().expect("a known waiter has a key");
                let unused = self.list.borrow_mut().remove(held).1;
                drop(unused);
                return Poll::Ready(wake);
            }
            Known::Stranger | Known::Other => {}
        }
        // A clone runs the waker's own code: nothing is borrowed here.
        let waker = cx.waker().clone();
        let unused = self.list.borrow_mut().register(key, waker);
        drop(unused);
        if self.is_woken(key) {
            // Woken while its new waker was being cloned, through the old one.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Whether the waiter `key` was woken, so that its next [`poll_wait`](Waiters::poll_wait) is
    /// ready. Changes nothing: a future asks this before it spends its budget.
    pub fn is_woken(&self, key: &Option<Key>) -> bool {
        let Some(Key(index)) = key else { return false };
        !matches!(self.list.borrow().node(*index).state, State::Waiting(_))
    }

    /// Stops waiting and empties `key`. Does nothing for an empty one.
    ///
    /// A wake by [`wake_one`](Waiters::wake_one) that the waiter did not see goes to the next
    /// waiter. `true` means that there was such a wake and no other waiter: whatever it stood for
    /// is the caller's again.
    pub fn remove(&self, key: &mut Option<Key>) -> bool {
        let Some(key) = key.take() else { return false };
        let (wake, unused) = self.list.borrow_mut().remove(key);
        drop(unused);
        wake == Some(Wake::One) && !self.wake_one()
    }

    /// Wakes the waiter that has waited longest; `false` if nobody waits.
    pub fn wake_one(&self) -> bool {
        let waker = self.list.borrow_mut().take_first();
        let Some(waker) = waker else { return false };
        waker.wake();
        true
    }

    /// Wakes everybody who waits now, in order.
    pub fn wake_all(&self) {
        self.list.borrow_mut().mark_all();
        self.wake_marked();
    }

    /// Whether nobody waits. Who was woken waits no more.
    pub fn is_empty(&self) -> bool {
        self.list.borrow().waiting.head == NONE
    }

    /// Calls the wakers of the marked waiters. Ends because marking is done by `wake_all` alone.
    fn wake_marked(&self) {
        loop {
            let waker = self.list.borrow_mut().take_marked();
            let Some(waker) = waker else { return };
            let rest = WakeRest(self);
            waker.wake();
            mem::forget(rest);
        }
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Waiters::new()
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters")
            .field("is_empty", &self.is_empty())
            .finish_non_exhaustive()
    }
}

/// The future of [`Waiters::wait`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Wait<'a> {
    waiters: &'a Waiters,
    key: Option<Key>,
}

impl Future for Wait<'_> {
    type Output = Wake;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Wake> {
        let waiters = self.waiters;
        waiters.poll_wait(&mut self.key, cx)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        // A wake that nobody takes is gone, as `wait` says.
        self.waiters.remove(&mut self.key);
    }
}

/// Wakes the rest of the marked waiters if a waker panics: one waiter's panic must not cost the
/// others their wake.
struct WakeRest<'a>(&'a Waiters);

impl Drop for WakeRest<'_> {
    fn drop(&mut self) {
        self.0.wake_marked();
    }
}

/// The borrowed part: pure, calls nobody.
struct List {
    nodes: Slab<Node>,
    /// Nodes in [`State::Waiting`], the longest waiting first.
    waiting: Queue,
    /// Nodes in [`State::Marked`].
    marked: Queue,
}

struct Node {
    state: State,
    previous: usize,
    next: usize,
}

//           register 1               take_first 2               remove 5
//   vacant ───────────► Waiting ──────────────────► Woken(One) ──────────► vacant
//                          │ mark_all 3
//                          ▼           take_marked 4             remove 5
//                       Marked ───────────────────► Woken(All) ──────────► vacant
//
// `remove` also takes a node out of Waiting (its future was dropped) and out of Marked (its future
// was polled or dropped before its waker was called).
enum State {
    Waiting(Waker),
    Marked(Waker),
    Woken(Wake),
}

/// What is known of a waiter that polls.
enum Known {
    /// It has no key yet.
    Stranger,
    /// It waits, with this very waker.
    Same,
    /// It waits, with another waker.
    Other,
    Woken(Wake),
}

impl List {
    fn node(&self, index: usize) -> &Node {
        self.nodes
            .get(index)
            .expect("a key is used with the list that gave it out")
    }

    fn known(&self, key: &Option<Key>, waker: &Waker) -> Known {
        let Some(Key(index)) = key else {
            return Known::Stranger;
        };
        match &self.node(*index).state {
            State::Waiting(old) if old.will_wake(waker) => Known::Same,
            State::Waiting(_) => Known::Other,
            State::Marked(_) => Known::Woken(Wake::All),
            State::Woken(wake) => Known::Woken(*wake),
        }
    }

    /// Appends a waiter, or gives one that still waits its new waker. Returns the waker that is to
    /// be dropped.
    fn register(&mut self, key: &mut Option<Key>, waker: Waker) -> Option<Waker> {
        if let Some(Key(index)) = key {
            return match &mut self.nodes[*index].state {
                State::Waiting(old) => Some(mem::replace(old, waker)),
                State::Marked(_) | State::Woken(_) => Some(waker),
            };
        }
        let index = self.nodes.insert(Node {
            state: State::Waiting(waker),
            previous: NONE,
            next: NONE,
        });
        self.waiting.push_back(&mut self.nodes, index);
        *key = Some(Key(index));
        None
    }

    /// Frees a node. Returns the wake it carried and the waker that is to be dropped.
    fn remove(&mut self, Key(index): Key) -> (Option<Wake>, Option<Waker>) {
        match self.node(index).state {
            State::Waiting(_) => self.waiting.unlink(&mut self.nodes, index),
            State::Marked(_) => self.marked.unlink(&mut self.nodes, index),
            State::Woken(_) => {}
        }
        let node = self.nodes.remove(index);
        if self.nodes.is_empty() && self.nodes.capacity() > NODES_KEPT {
            self.nodes = Slab::new();
        }
        match node.state {
            State::Waiting(waker) => (None, Some(waker)),
            State::Marked(waker) => (Some(Wake::All), Some(waker)),
            State::Woken(wake) => (Some(wake), None),
        }
    }

    fn take_first(&mut self) -> Option<Waker> {
        let index = self.waiting.pop_front(&mut self.nodes)?;
        let state = mem::replace(&mut self.nodes[index].state, State::Woken(Wake::One));
        match state {
            State::Waiting(waker) => Some(waker),
            State::Marked(_) | State::Woken(_) => unreachable!("only who waits is in `waiting`"),
        }
    }

    fn take_marked(&mut self) -> Option<Waker> {
        let index = self.marked.pop_front(&mut self.nodes)?;
        let state = mem::replace(&mut self.nodes[index].state, State::Woken(Wake::All));
        match state {
            State::Marked(waker) => Some(waker),
            State::Waiting(_) | State::Woken(_) => {
                unreachable!("only who is marked is in `marked`")
            }
        }
    }

    fn mark_all(&mut self) {
        // Ends when `waiting` is empty; nothing joins it meanwhile.
        while let Some(index) = self.waiting.pop_front(&mut self.nodes) {
            let node = &mut self.nodes[index];
            let state = mem::replace(&mut node.state, State::Woken(Wake::All));
            node.state = match state {
                State::Waiting(waker) => State::Marked(waker),
                other => other,
            };
            self.marked.push_back(&mut self.nodes, index);
        }
    }
}

/// A doubly linked queue of nodes, by index.
struct Queue {
    head: usize,
    tail: usize,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            head: NONE,
            tail: NONE,
        }
    }

    fn push_back(&mut self, nodes: &mut Slab<Node>, index: usize) {
        nodes[index].previous = self.tail;
        nodes[index].next = NONE;
        match self.tail {
            NONE => self.head = index,
            tail => nodes[tail].next = index,
        }
        self.tail = index;
    }

    fn pop_front(&mut self, nodes: &mut Slab<Node>) -> Option<usize> {
        let index = self.head;
        if index == NONE {
            return None;
        }
        self.unlink(nodes, index);
        Some(index)
    }

    fn unlink(&mut self, nodes: &mut Slab<Node>, index: usize) {
        let Node { previous, next, .. } = nodes[index];
        match previous {
            NONE => self.head = next,
            previous => nodes[previous].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => nodes[next].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake as StdWake;

    /// A waker that counts its wakes.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl StdWake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waiter with its own counting waker.
    #[derive(Default)]
    struct Waiter {
        key: Option<Key>,
        count: Arc<Count>,
    }

    impl Waiter {
        fn poll(&mut self, waiters: &Waiters) -> Poll<Wake> {
            let waker = Waker::from(self.count.clone());
            waiters.poll_wait(&mut self.key, &mut Context::from_waker(&waker))
        }
    }

    fn crowd<const N: usize>(waiters: &Waiters) -> [Waiter; N] {
        std::array::from_fn(|_| {
            let mut waiter = Waiter::default();
            assert!(waiter.poll(waiters).is_pending());
            waiter
        })
    }

    /// First come, first served, one waiter a wake.
    #[test]
    fn wakes_in_order() {
        let waiters = Waiters::new();
        let mut crowd = crowd::<3>(&waiters);
        for turn in 0..3 {
            assert!(waiters.wake_one());
            for (index, waiter) in crowd.iter().enumerate() {
                assert_eq!(waiter.count.get(), usize::from(index <= turn));
            }
        }
        assert!(waiters.is_empty());
        assert!(!waiters.wake_one());
        for waiter in &mut crowd {
            assert_eq!(waiter.poll(&waiters), Poll::Ready(Wake::One));
            assert!(waiter.key.is_none());
        }
    }

    /// The waker of the last poll is called, an older one is not, and the place in line stays.
    #[test]
    fn last_waker_wins() {
        let waiters = Waiters::new();
        let mut crowd = crowd::<2>(&waiters);
        let old = mem::take(&mut crowd[0].count);
        assert!(crowd[0].poll(&waiters).is_pending());
        assert_eq!(Arc::strong_count(&old), 1, "the old waker is let go");
        assert!(waiters.wake_one());
        assert_eq!(old.get(), 0);
        assert_eq!(crowd[0].count.get(), 1);
        assert_eq!(crowd[1].count.get(), 0);
    }

    /// A woken waiter that leaves before it acted hands its wake on, to nobody else than the next.
    #[test]
    fn dropped_wake_is_passed_on() {
        let waiters = Waiters::new();
        let mut crowd = crowd::<3>(&waiters);
        assert!(waiters.wake_one());
        assert!(!waiters.remove(&mut crowd[0].key));
        assert_eq!(crowd[1].count.get(), 1);
        assert_eq!(crowd[2].count.get(), 0);
        // One that was not woken leaves silently.
        assert!(!waiters.remove(&mut crowd[2].key));
        assert_eq!(crowd[1].count.get(), 1);
        // The last one tells its owner.
        assert!(waiters.remove(&mut crowd[1].key));
        assert!(!waiters.remove(&mut crowd[1].key), "the key is empty now");
    }

    /// Dropping the borrowed future passes the wake on, too.
    #[test]
    fn wait_passes_on_when_dropped() {
        let waiters = Waiters::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut first = Box::pin(waiters.wait());
        let mut second = Box::pin(waiters.wait());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(waiters.wake_one());
        drop(first);
        assert_eq!(count.get(), 2);
        assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Wake::One));
    }

    /// A wake for all is nobody's own, so it is not passed on.
    #[test]
    fn wake_all_wakes_everybody_once() {
        let waiters = Waiters::new();
        let mut crowd = crowd::<3>(&waiters);
        waiters.wake_all();
        assert!(waiters.is_empty());
        assert!(crowd.iter().all(|waiter| waiter.count.get() == 1));
        let mut late = Waiter::default();
        assert!(late.poll(&waiters).is_pending());
        assert!(!waiters.remove(&mut crowd[0].key));
        assert_eq!(late.count.get(), 0);
        assert_eq!(crowd[1].poll(&waiters), Poll::Ready(Wake::All));
        assert!(waiters.is_woken(&crowd[2].key));
        assert!(!waiters.is_woken(&late.key));
    }

    /// Leaving from the front, the middle and the end keeps the order of the others.
    #[test]
    fn leaving_keeps_the_order() {
        for leaver in 0..3 {
            let waiters = Waiters::new();
            let mut crowd = crowd::<3>(&waiters);
            assert!(!waiters.remove(&mut crowd[leaver].key));
            let mut last = Waiter::default();
            assert!(last.poll(&waiters).is_pending());
            let stayed: Vec<_> = (0..3).filter(|index| *index != leaver).collect();
            assert!(waiters.wake_one());
            assert_eq!(crowd[stayed[0]].count.get(), 1);
            assert_eq!(crowd[stayed[1]].count.get(), 0);
            assert!(waiters.wake_one());
            assert_eq!(crowd[stayed[1]].count.get(), 1);
            assert_eq!(last.count.get(), 0);
            assert!(waiters.wake_one());
            assert_eq!(last.count.get(), 1);
            assert!(!waiters.wake_one());
        }
    }

    type Reaction = Box<dyn Fn(&Waiters)>;

    thread_local! {
        static LIST: Waiters = const { Waiters::new() };
        static REACTION: RefCell<Option<Reaction>> = const { RefCell::new(None) };
    }

    /// A waker that comes back to the list of this thread.
    struct Reenter;

    impl StdWake for Reenter {
        fn wake(self: Arc<Self>) {
            let reaction = REACTION.with(|reaction| reaction.borrow_mut().take());
            if let Some(reaction) = reaction {
                LIST.with(reaction);
            }
        }
    }

    /// Puts one waiter that reacts in front of `crowd`, and wakes everybody.
    fn wake_all_with(reaction: impl Fn(&Waiters) + 'static) -> [Waiter; 2] {
        REACTION.with(|slot| *slot.borrow_mut() = Some(Box::new(reaction)));
        LIST.with(|waiters| {
            let waker = Waker::from(Arc::new(Reenter));
            let mut key = None;
            let first = waiters.poll_wait(&mut key, &mut Context::from_waker(&waker));
            assert!(first.is_pending());
            let crowd = crowd::<2>(waiters);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                waiters.wake_all();
            }));
            if let Err(payload) = result {
                assert_eq!(*payload.downcast_ref::<&str>().unwrap(), "a waker panics");
            }
            assert!(!waiters.remove(&mut key));
            crowd
        })
    }

    /// A waker called by `wake_all` may wait (and is not woken by the same call), wake one (which
    /// is not spent on who is being woken anyway) and wake all.
    #[test]
    fn wakers_may_come_back() {
        let late = Rc::new(RefCell::new(Waiter::default()));
        let inner = late.clone();
        let crowd = wake_all_with(move |waiters| {
            assert!(!waiters.wake_one(), "the others are being woken already");
            assert!(inner.borrow_mut().poll(waiters).is_pending());
        });
        assert!(crowd.iter().all(|waiter| waiter.count.get() == 1));
        assert_eq!(late.borrow().count.get(), 0);
        let again = wake_all_with(|waiters| waiters.wake_all());
        assert!(again.iter().all(|waiter| waiter.count.get() == 1));
        assert_eq!(late.borrow().count.get(), 1);
    }

    /// A waker that panics costs nobody else the wake.
    #[test]
    fn a_panicking_waker_stops_nobody() {
        let crowd = wake_all_with(|_| panic!("a waker panics"));
        assert!(crowd.iter().all(|waiter| waiter.count.get() == 1));
    }

    /// A waiter that is polled after it was marked, before its own waker was called, is ready.
    #[test]
    fn polled_while_marked() {
        let other = Rc::new(RefCell::new(Waiter::default()));
        let inner = other.clone();
        LIST.with(|waiters| {
            REACTION.with(|slot| {
                *slot.borrow_mut() = Some(Box::new(move |waiters| {
                    let poll = inner.borrow_mut().poll(waiters);
                    assert_eq!(poll, Poll::Ready(Wake::All));
                }));
            });
            let waker = Waker::from(Arc::new(Reenter));
            let mut key = None;
            let poll = waiters.poll_wait(&mut key, &mut Context::from_waker(&waker));
            assert!(poll.is_pending());
            assert!(other.borrow_mut().poll(waiters).is_pending());
            waiters.wake_all();
            assert!(other.borrow().key.is_none(), "it was polled");
            assert_eq!(other.borrow().count.get(), 0, "its waker was not needed");
            assert!(!waiters.remove(&mut key));
        });
    }

    /// A list owns nothing at first, allocates no more once it has grown, and gives a burst back.
    #[test]
    fn memory() {
        let waiters = Waiters::new();
        assert_eq!(waiters.list.borrow().nodes.capacity(), 0);
        let mut few = crowd::<8>(&waiters);
        let grown = waiters.list.borrow().nodes.capacity();
        for _ in 0..100 {
            assert!(waiters.wake_one());
            few.rotate_left(1);
            let last = &mut few[7];
            assert!(last.poll(&waiters).is_ready());
            assert!(last.poll(&waiters).is_pending());
        }
        assert_eq!(waiters.list.borrow().nodes.capacity(), grown);
        let mut burst = crowd::<{ NODES_KEPT + 1 }>(&waiters);
        for waiter in few.iter_mut().chain(&mut burst) {
            assert!(!waiters.remove(&mut waiter.key));
        }
        assert_eq!(waiters.list.borrow().nodes.capacity(), 0);
    }
}
