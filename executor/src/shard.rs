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
use std::time::Instant;

use roundel_blocking_pool::{Deliver, Pool};
use roundel_reactor::{Abandonment, Counters, Reactor, Wait};

use crate::current;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::metrics::ShardMetrics;
use crate::run_queue::{Class, CompletionShare};
use crate::task::seat::{Notify, Owned, Owner, Seat, Tenancy};
use crate::task::{Errand, Slot, contain, log_panic, wake_drained};
use crate::timers::Timers;

/// Polls of ordinary tasks between two looks at the ring: every 8 is too coarse to keep a
/// completion from waiting behind heavy tasks, and a look is a few loads.
const PEEK_EVERY: u32 = 4;
/// Polls in one turn, if no more tasks were ready when it began: a task that yields for
/// ever then pays for a thirty-second of a turn only.
const POLLS_MIN: usize = 32;
/// Errands of other threads done in one turn. (What they woke is taken whole: each task is there once.)
const INBOX_MAX: usize = 256;
/// Timers fired in one turn.
const TIMERS_MAX: usize = 256;

/// The face of a shard that other threads see.
pub(crate) struct Home {
    pub(crate) index: usize,
    seat: &'static Seat,
    /// Which of the shards that have the seat, one after the other, this one is.
    epoch: u64,
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
    /// The face of a shard that will run on this thread, and its seat.
    pub(crate) fn new(
        index: usize,
        reactor: &Reactor,
        share: CompletionShare,
    ) -> (Arc<Self>, Tenancy) {
        let notifier = reactor.notifier();
        let tenancy = Tenancy::begin(share, Box::new(move || notifier.notify()));
        let home = Arc::new(Home {
            index,
            seat: tenancy.owner().seat(),
            epoch: tenancy.owner().owned().epoch(),
            metrics: ShardMetrics::new(),
            counters: reactor.counters(),
            stop: AtomicBool::new(false),
            resting: AtomicBool::new(true),
            thread: std::thread::current().id(),
        });
        (home, tenancy)
    }

    /// How other threads reach the shard, and after its end a later one.
    pub(crate) fn inbox(&self) -> &'static Inbox<Errand, Notify> {
        self.seat.inbox()
    }

    /// What errands for this shard are marked with.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Asks the shard to end, from any thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.inbox().wake();
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

    /// Wakes in place of a shard that rests, or of a later one that has its inbox: a waker is as
    /// good there. Ends: a job is delivered once.
    fn wake_delivered(&self) {
        while let Some(waker) = self.inbox().pop_completion() {
            wake_contained(waker);
        }
    }
}

/// The waker of a shard's root future.
impl Wake for Home {
    fn wake(self: Arc<Self>) {
        self.inbox().wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.inbox().wake();
    }
}

/// A finished blocking job is a completion of the shard that asked for it.
impl Deliver for Home {
    fn deliver(&self, waker: Waker) {
        self.inbox().push_completion(waker);
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
    /// Its tasks, and its queues.
    tenancy: Tenancy,
    timers: RefCell<Timers>,
    expired: RefCell<Vec<Waker>>,
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
        tenancy: Tenancy,
        reactor: Rc<Reactor>,
        handle: Handle,
    ) -> Rc<Self> {
        Rc::new(Shard {
            home,
            reactor,
            tenancy,
            timers: RefCell::new(Timers::new()),
            expired: RefCell::new(Vec::new()),
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
            self.publish();
            self.take_completions();
            if root() {
                self.publish();
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
        self.tasks().set_class(Class::Completion);
        self.reactor.reap();
        // Ends: a job is delivered once, and jobs are started by tasks.
        while let Some(waker) = self.home.inbox().pop_completion() {
            wake_contained(waker);
            self.home.metrics.foreign_wakes(1);
        }
        self.tasks().set_class(Class::Ordinary);
    }

    /// Polls the tasks that were ready when the turn began, completions first. Between
    /// ordinary ones it looks at the ring, and ends the turn if something has come.
    fn run_ready(&self) -> io::Result<()> {
        let ready = {
            let queues = self.tasks().queues().borrow();
            queues.completions() + queues.ordinary()
        };
        let mut until_peek = PEEK_EVERY;
        let mut flushed = false;
        for _ in 0..ready.max(POLLS_MIN) {
            if !flushed && self.only_ordinary_are_left() {
                // What completions have staged waits for nobody's heavy task.
                flushed = true;
                if self.reactor.staged() > 0 {
                    self.reactor.enter(Wait::No)?;
                }
            }
            let popped = self.tasks().queues().borrow_mut().pop();
            let Some((class, slot)) = popped else {
                return Ok(());
            };
            self.poll(class, slot);
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

    fn only_ordinary_are_left(&self) -> bool {
        let queues = self.tasks().queues().borrow();
        queues.completions() == 0 && queues.ordinary() > 0
    }

    #[inline]
    fn poll(&self, class: Class, slot: Slot) {
        match class {
            Class::Completion => self.home.metrics.poll_completion(),
            Class::Ordinary => self.home.metrics.poll_ordinary(),
        }
        let _share = roundel_reactor::current::refill_budget();
        slot.run(self.closing.get());
    }

    /// Queues what other threads woke, and does a bounded batch of their errands.
    fn take_inbox(&self) {
        let inbox = self.home.inbox();
        let mut taken = 0;
        inbox.drain_slots(|link| {
            wake_drained(link);
            taken += 1;
        });
        for _ in 0..INBOX_MAX {
            let Some(errand) = inbox.pop() else {
                break;
            };
            errand.run(self.owner());
            taken += 1;
        }
        if taken > 0 {
            self.home.metrics.foreign_wakes(taken);
        }
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
        self.tasks().set_class(Class::Completion);
        for waker in expired.drain(..) {
            wake_contained(waker);
        }
        self.tasks().set_class(Class::Ordinary);
        self.expired.replace(expired);
        Some(now)
    }

    /// One enter: submits what was staged and, with nothing to do, waits for a completion,
    /// another thread or the next deadline.
    fn enter_kernel(&self, now: Option<Instant>) -> io::Result<()> {
        if !self.tasks().queues().borrow().is_empty() {
            return self.reactor.enter(Wait::No);
        }
        let Some(_asleep) = self.home.inbox().prepare_sleep() else {
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
    /// Each task is ended even if there is no time at all; what that does not end, the ends of
    /// others have spawned.
    pub(crate) fn shut_down(&self, deadline: Instant) -> ShardEnd {
        self.closing.set(true);
        self.drop_tasks(deadline);
        // Spawns that nobody has taken end as cancelled, and may spawn in that.
        drop(self.home.inbox().close());
        self.home.wake_delivered();
        let Abandonment { operations, .. } = self.reactor.shutdown(deadline);
        // What the operations gave back was the user's, and its drop may have spawned, too.
        self.drop_tasks(deadline);
        self.publish();
        let timers = self.timers.borrow().len();
        self.home.metrics.timers_live(timers as u64);
        ShardEnd {
            tasks: self.tasks().live() as usize,
            operations,
        }
    }

    /// Ends every task, those too that the ending ones spawn, until the deadline.
    fn drop_tasks(&self, deadline: Instant) {
        // Ends: with nothing live, or at the deadline.
        loop {
            self.take_inbox();
            self.tasks().wake_all();
            self.drop_ready();
            if self.tasks().live() == 0 || Instant::now() >= deadline {
                return;
            }
        }
    }

    /// Polls what is queued: a closing shard's tasks drop their futures in that.
    fn drop_ready(&self) {
        let ready = {
            let queues = self.tasks().queues().borrow();
            queues.completions() + queues.ordinary()
        };
        for _ in 0..ready {
            let popped = self.tasks().queues().borrow_mut().pop();
            let Some((class, slot)) = popped else { return };
            self.poll(class, slot);
        }
    }

    /// Makes the numbers that are counted elsewhere readable from any thread.
    pub(crate) fn publish(&self) {
        let tasks = self.tasks();
        let (slots, bytes) = tasks.reserved();
        self.home.metrics.tasks(tasks.spawned(), tasks.live());
        self.home.metrics.slots(slots, bytes);
    }

    pub(crate) fn owner(&self) -> Owner {
        self.tenancy.owner()
    }

    fn tasks(&self) -> &'static Owned {
        self.owner().owned()
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
}

/// What a shard had to leave behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardEnd {
    /// Tasks that others spawned in their end, up to the deadline: they end when the shard is left.
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
    use std::sync::mpsc;
    use std::task::Poll;

    use roundel_reactor::RingConfig;

    use super::*;
    use crate::join::JoinHandle;
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
    /// shard had no time for, touches no future: provoked by a close with such a task alive. The task
    /// ends when its shard is left, on its thread.
    #[test]
    fn a_wake_that_comes_too_late_drops_nothing_abroad() {
        let pool = Pool::new(roundel_blocking_pool::Config::new()).expect("the default settings");
        let reactor = Reactor::new(&RingConfig::default()).expect("a ring can be had");
        let (home, tenancy) = Home::new(0, &reactor, CompletionShare::default());
        let handle = Handle::new(vec![home.clone()], pool.clone());
        let shard = Shard::new(home.clone(), tenancy, reactor, handle);
        let entered = shard.enter(&pool);
        let (tell, told) = mpsc::channel();
        let (give, given) = mpsc::channel();
        let tells = Tells {
            tell,
            _stays: Rc::new(()),
        };
        let task = JoinHandle::new(spawn_local(shard.owner(), async move {
            let _tells = tells;
            poll_fn(|cx| {
                give.send(cx.waker().clone()).expect("the test waits");
                Poll::<()>::Pending
            })
            .await;
        }));
        shard.run_ready().expect("the ring works");
        let waker = given.recv().expect("the task was polled");
        drop(home.inbox().close());
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
        assert!(task.is_finished());
        drop(task);
        assert_eq!(told.try_recv(), Ok(std::thread::current().id()));
    }
}
