//! One shard: the main loop, parking, and the end.
//!
//! A shard is one thread with its ring, run queues and timers; nothing of it is shared but
//! its [`Home`], the face that other threads see. [`Shard::run`] is the loop. Each turn
//! takes what has completed, polls ready tasks (completions first), takes what other
//! threads brought, fires timers, and enters the kernel once: to hand over what was staged
//! and, if there is nothing else to do, to wait.
//!
//! Nothing is borrowed when a task is polled or a waker called: either may come back here.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Wake, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use roundel_blocking_pool::{Deliver, Pool};
use roundel_reactor::{Abandonment, Counters, Reactor, Wait};
use slab::Slab;

use crate::current;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::metrics::ShardMetrics;
use crate::run_queue::{Class, CompletionShare, RunQueues};
use crate::task::{Ready, contain, log_panic};
use crate::timers::Timers;

/// Polls of ordinary tasks between two looks at the ring: every 8 is too coarse to keep a
/// completion from waiting behind heavy tasks, and a look is a few loads.
const PEEK_EVERY: u32 = 4;
/// Polls in one turn, if no more tasks were ready when it began: a task that yields for
/// ever then pays for a thirty-second of a turn only.
const POLLS_MIN: usize = 32;
/// Tasks taken from other threads in one turn.
const INBOX_MAX: usize = 256;
/// What a shutdown with less time gives a task that another thread has claimed to wake it,
/// and is about to push: that takes nanoseconds, unless the thread lost its CPU meanwhile.
const CLAIM_GRACE: Duration = Duration::from_millis(100);
/// Timers fired in one turn.
const TIMERS_MAX: usize = 256;

/// The face of a shard that other threads see.
pub(crate) struct Home {
    pub(crate) index: usize,
    pub(crate) inbox: Inbox<Ready, Box<dyn Fn() + Send + Sync>>,
    pub(crate) metrics: ShardMetrics,
    pub(crate) counters: Arc<Counters>,
    /// The runtime wants this shard to end.
    stop: AtomicBool,
    /// Nobody runs the shard now (shard 0 between two `block_on`s). Written by the shard's
    /// thread, read by pool workers.
    resting: AtomicBool,
    thread: ThreadId,
}

impl Home {
    /// The face of a shard that will run on this thread.
    pub(crate) fn new(index: usize, reactor: &Reactor) -> Arc<Self> {
        let notifier = reactor.notifier();
        Arc::new(Home {
            index,
            inbox: Inbox::new(Box::new(move || notifier.notify())),
            metrics: ShardMetrics::new(),
            counters: reactor.counters(),
            stop: AtomicBool::new(false),
            resting: AtomicBool::new(true),
            thread: std::thread::current().id(),
        })
    }

    /// Queues a ready task: on this thread if it is the shard's own, else through the
    /// inbox.
    #[inline]
    pub(crate) fn schedule(home: &Arc<Home>, ready: Ready) {
        let mut ready = Some(ready);
        let _ = current::with(|shard| {
            if Arc::ptr_eq(&shard.home, home)
                && let Some(ready) = ready.take()
            {
                shard.queues.borrow_mut().push(shard.class.get(), ready);
            }
        });
        if let Some(ready) = ready {
            home.inbox.push(ready);
        }
    }

    /// Asks the shard to end, from any thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.inbox.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The thread that runs the shard.
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread
    }

    /// The shard is left for now. What was delivered to it may wake somebody else.
    fn rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
        // With the one in `deliver`: it sees the flag, or this sees its waker.
        fence(Ordering::SeqCst);
        self.wake_delivered();
    }

    /// Wakes in place of a shard that rests. Ends: a job is delivered once.
    fn wake_delivered(&self) {
        while let Some(waker) = self.inbox.pop_completion() {
            wake_contained(waker);
        }
    }
}

/// The waker of a shard's root future.
impl Wake for Home {
    fn wake(self: Arc<Self>) {
        self.inbox.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.inbox.wake();
    }
}

/// A finished blocking job is a completion of the shard that asked for it.
impl Deliver for Home {
    fn deliver(&self, waker: Waker) {
        self.inbox.push_completion(waker);
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) {
            self.wake_delivered();
        }
    }
}

/// One thread's executor.
pub(crate) struct Shard {
    home: Arc<Home>,
    reactor: Rc<Reactor>,
    queues: RefCell<RunQueues<Ready>>,
    /// What a task that is woken now is woken by.
    class: Cell<Class>,
    timers: RefCell<Timers>,
    expired: RefCell<Vec<Waker>>,
    /// The wakers of all tasks that were polled and have not ended.
    live: RefCell<Slab<Waker>>,
    closing: Cell<bool>,
    handle: Handle,
}

/// Everything that makes a shard this thread's, in the order of leaving.
pub(crate) struct Entered {
    _pool: roundel_blocking_pool::current::Guard,
    _shard: current::Entered,
    _reactor: roundel_reactor::current::Entered,
    _rest: Rest,
}

/// The shard rests when this is dropped.
struct Rest(Arc<Home>);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl Shard {
    pub(crate) fn new(
        home: Arc<Home>,
        reactor: Rc<Reactor>,
        share: CompletionShare,
        handle: Handle,
    ) -> Rc<Self> {
        Rc::new(Shard {
            home,
            reactor,
            queues: RefCell::new(RunQueues::new(share)),
            class: Cell::new(Class::Ordinary),
            timers: RefCell::new(Timers::new()),
            expired: RefCell::new(Vec::new()),
            live: RefCell::new(Slab::new()),
            closing: Cell::new(false),
            handle,
        })
    }

    /// Makes the shard, its reactor and the pool this thread's.
    pub(crate) fn enter(self: &Rc<Self>, pool: &Pool) -> Entered {
        self.home.resting.store(false, Ordering::Relaxed);
        Entered {
            _pool: roundel_blocking_pool::current::enter(pool, Some(self.home.clone())),
            _shard: current::enter(self.clone()),
            _reactor: roundel_reactor::current::enter(self.reactor.clone()),
            _rest: Rest(self.home.clone()),
        }
    }

    /// **The main loop.** `root` is asked once a turn whether it is over; it polls the
    /// future of `block_on`, if that was woken.
    ///
    /// # Errors
    ///
    /// If the ring became unusable.
    pub(crate) fn run(&self, mut root: impl FnMut() -> bool) -> io::Result<()> {
        loop {
            self.home.metrics.turn();
            self.take_completions();
            if root() {
                return Ok(());
            }
            self.run_ready()?;
            self.take_inbox();
            let now = self.fire_timers();
            self.enter_kernel(now)?;
        }
    }

    /// Stores all visible results, then wakes whoever waits for them: those tasks are the
    /// completion class. Finished blocking jobs are completions, too.
    fn take_completions(&self) {
        self.class.set(Class::Completion);
        self.reactor.reap();
        // Ends: a job is delivered once, and jobs are started by tasks.
        while let Some(waker) = self.home.inbox.pop_completion() {
            wake_contained(waker);
            self.home.metrics.foreign_wakes(1);
        }
        self.class.set(Class::Ordinary);
    }

    /// Polls the tasks that were ready when the turn began, completions first. Between
    /// ordinary ones it looks at the ring, and ends the turn if something has come.
    fn run_ready(&self) -> io::Result<()> {
        let ready = {
            let queues = self.queues.borrow();
            queues.completions() + queues.ordinary()
        };
        let mut until_peek = PEEK_EVERY;
        let mut flushed = false;
        for _ in 0..ready.max(POLLS_MIN) {
            let next = self.queues.borrow().next();
            if next == Some(Class::Ordinary) && !flushed && self.completions_are_through() {
                // What completions have staged waits for nobody's heavy task.
                flushed = true;
                if self.reactor.staged() > 0 {
                    self.reactor.enter(Wait::No)?;
                }
            }
            let popped = self.queues.borrow_mut().pop();
            let Some((class, ready)) = popped else {
                return Ok(());
            };
            self.poll(class, ready);
            if class == Class::Ordinary {
                until_peek -= 1;
                if until_peek == 0 {
                    until_peek = PEEK_EVERY;
                    if self.reactor.is_ready_to_reap() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn completions_are_through(&self) -> bool {
        self.queues.borrow().completions() == 0
    }

    #[inline]
    fn poll(&self, class: Class, ready: Ready) {
        match class {
            Class::Completion => self.home.metrics.poll_completion(),
            Class::Ordinary => self.home.metrics.poll_ordinary(),
        }
        let _share = roundel_reactor::current::refill_budget();
        ready.run();
    }

    /// Queues what other threads woke or spawned, a bounded batch.
    fn take_inbox(&self) {
        let mut taken = 0;
        while taken < INBOX_MAX {
            let Some(ready) = self.home.inbox.pop() else {
                break;
            };
            self.queues.borrow_mut().push(Class::Ordinary, ready);
            taken += 1;
        }
        self.home.metrics.foreign_wakes(taken as u64);
    }

    /// Wakes the tasks whose time has come, as completions: a timeout ends a wait. Returns
    /// the time, if there are timers.
    fn fire_timers(&self) -> Option<Instant> {
        let live = self.timers.borrow().len();
        self.home.metrics.timers_live(live as u64);
        if live == 0 {
            return None;
        }
        let now = Instant::now();
        let mut expired = self.expired.take();
        self.timers
            .borrow_mut()
            .expire(now, TIMERS_MAX, &mut expired);
        self.class.set(Class::Completion);
        for waker in expired.drain(..) {
            wake_contained(waker);
        }
        self.class.set(Class::Ordinary);
        self.expired.replace(expired);
        Some(now)
    }

    /// One enter: submits what was staged and, with nothing to do, waits for a completion,
    /// another thread or the next deadline.
    fn enter_kernel(&self, now: Option<Instant>) -> io::Result<()> {
        if !self.queues.borrow().is_empty() {
            return self.reactor.enter(Wait::No);
        }
        let Some(_asleep) = self.home.inbox.prepare_sleep() else {
            return self.reactor.enter(Wait::No);
        };
        self.home.metrics.park();
        self.reactor.enter(self.wait(now))
    }

    fn wait(&self, now: Option<Instant>) -> Wait {
        match (self.timers.borrow().next_deadline(), now) {
            (None, _) => Wait::Forever,
            (Some(deadline), Some(now)) => Wait::AtMost(deadline.saturating_duration_since(now)),
            // A timer fired into another's wake, which set a first new one.
            (Some(_), None) => Wait::No,
        }
    }

    /// Ends the shard: drops every task's future here, then cancels every operation, all
    /// within the deadline. What the kernel will not give back is leaked and named.
    ///
    /// Each task is woken and polled once even if there is no time at all: what that does
    /// not end is on its way from another thread.
    pub(crate) fn shut_down(&self, deadline: Instant) -> ShardEnd {
        self.closing.set(true);
        self.wake_all();
        let begun = Instant::now();
        let mut wake_at = begun + Duration::from_millis(10);
        // Ends: with nothing live, or at the deadline. Dropping futures may spawn more.
        loop {
            // The root future is over; its wake is nobody's.
            let _ = self.home.inbox.take_wake();
            self.take_inbox();
            self.drop_ready();
            let nothing_queued = self.queues.borrow().is_empty();
            if nothing_queued && self.live.borrow().is_empty() && self.home.inbox.is_empty() {
                break;
            }
            let now = Instant::now();
            if now >= deadline.max(begun + CLAIM_GRACE) {
                break;
            }
            if now >= wake_at {
                self.wake_all();
                wake_at = now + Duration::from_millis(10);
            } else if nothing_queued {
                // A task is on its way through the inbox: another thread has claimed its
                // wake and not pushed it yet.
                self.await_inbox();
            }
        }
        self.home.inbox.close();
        // Ends: who pushes now empties the inbox as well. All of it, not a batch: nobody
        // else looks there any more.
        while let Some(ready) = self.home.inbox.pop() {
            self.queues.borrow_mut().push(Class::Ordinary, ready);
        }
        self.drop_ready();
        self.home.wake_delivered();
        let left = self.live.take();
        let tasks = left.len();
        // Their futures belong to this thread, which leaves: the wakers keep them for good.
        for (_, waker) in left {
            std::mem::forget(waker);
        }
        let timers = self.timers.borrow().len();
        self.home.metrics.timers_live(timers as u64);
        let Abandonment { operations, .. } = self.reactor.shutdown(deadline);
        ShardEnd { tasks, operations }
    }

    /// Polls what is queued: a closing shard's tasks drop their futures in that.
    fn drop_ready(&self) {
        let ready = {
            let queues = self.queues.borrow();
            queues.completions() + queues.ordinary()
        };
        for _ in 0..ready {
            let popped = self.queues.borrow_mut().pop();
            let Some((class, ready)) = popped else { return };
            self.poll(class, ready);
        }
    }

    fn wake_all(&self) {
        let wakers: Vec<Waker> = {
            let live = self.live.borrow();
            live.iter().map(|(_, waker)| waker.clone()).collect()
        };
        for waker in wakers {
            waker.wake();
        }
    }

    fn await_inbox(&self) {
        if let Some(_asleep) = self.home.inbox.prepare_sleep() {
            // An unusable ring is no reason not to go on ending.
            let _ = self.reactor.enter(Wait::AtMost(Duration::from_millis(10)));
        }
        self.reactor.reap();
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.timers
    }

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    pub(crate) fn class(&self) -> Class {
        self.class.get()
    }

    pub(crate) fn set_class(&self, class: Class) {
        self.class.set(class);
    }

    /// Notes a task as live at its first poll.
    pub(crate) fn register(&self, waker: Waker) -> usize {
        self.home.metrics.task_spawned();
        self.live.borrow_mut().insert(waker)
    }

    /// The task has ended.
    pub(crate) fn deregister(&self, place: usize) {
        self.home.metrics.task_ended();
        // A task's own waker: dropping it runs nobody's code.
        let _ = self.live.borrow_mut().try_remove(place);
    }
}

/// What a shard had to leave behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardEnd {
    /// Tasks whose future could not be dropped in time.
    pub(crate) tasks: usize,
    /// Operations the kernel did not give back, by name.
    pub(crate) operations: Vec<String>,
}

/// A waker is foreign code: its panic stays its own.
fn wake_contained(waker: Waker) {
    if let Err(payload) = contain(|| waker.wake()) {
        log_panic("a waker", payload);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::poll_fn;
    use std::sync::{OnceLock, mpsc};
    use std::task::Poll;

    use roundel_reactor::RingConfig;

    use super::*;
    use crate::task::spawn_local;

    /// Tells on which thread it is dropped. Not `Send`.
    struct Tells {
        tell: mpsc::Sender<ThreadId>,
        _stays: Rc<()>,
    }

    impl Drop for Tells {
        fn drop(&mut self) {
            // The test may have ended.
            let _ = self.tell.send(std::thread::current().id());
        }
    }

    /// A wake that another thread brings after the shard has closed its inbox, of a task that the
    /// shard had no time for, touches no future: provoked by a close with such a task alive.
    #[test]
    fn a_wake_that_comes_too_late_drops_nothing_abroad() {
        let pool = Pool::new(roundel_blocking_pool::Config::new()).expect("the default settings");
        let reactor = Reactor::new(&RingConfig::default()).expect("a ring can be had");
        let home = Home::new(0, &reactor);
        let handle = Handle::new(vec![home.clone()], pool.clone());
        let shard = Shard::new(home.clone(), reactor, CompletionShare::default(), handle);
        let entered = shard.enter(&pool);
        let (tell, told) = mpsc::channel();
        let (give, given) = mpsc::channel();
        let tells = Tells {
            tell,
            _stays: Rc::new(()),
        };
        let task = spawn_local(&home, async move {
            let _tells = tells;
            poll_fn(|cx| {
                give.send(cx.waker().clone()).expect("the test waits");
                Poll::<()>::Pending
            })
            .await;
        });
        shard.run_ready().expect("the ring works");
        let waker = given.recv().expect("the task was polled");
        // So that a tool that looks for leaks finds what is leaked on purpose.
        static KEPT: OnceLock<Waker> = OnceLock::new();
        KEPT.get_or_init(|| waker.clone());
        home.inbox.close();
        std::thread::spawn(move || waker.wake())
            .join()
            .expect("a late wake is no panic");
        let abort = task.abort_handle();
        std::thread::spawn(move || abort.abort())
            .join()
            .expect("a late abort is no panic");
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert!(!task.is_finished());
        drop(entered);
        drop(shard);
        drop(task);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
}
