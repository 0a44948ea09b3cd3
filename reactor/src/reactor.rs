//! Submits operations, turns the rings, delivers completions, shuts down.
//!
//! The reactor turns operations into completions and knows nothing of tasks: it wakes
//! wakers. Its owner calls [`enter`](Reactor::enter), which hands what was staged to the
//! kernel and may wait, and [`reap`](Reactor::reap), which takes what has completed and
//! wakes whoever waits for it. Both are bounded and neither is called from the other, so
//! the owner decides what runs when.
//!
//! Nothing is borrowed when calling out: `reap` stores all results first, ends its borrow,
//! and then wakes wakers and ends orphans, either of which may come back here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use crate::backend::{BATCH, Backend, Completion, Register, Wait};
use crate::block::{Block, Cache};
use crate::counters::Counters;
use crate::current;
use crate::entry::Entry;
use crate::lifecycle::{Abandoned, Action, Ending, Key, Polled, Slots};
use crate::multishot::{Multishot, MultishotOperation};
use crate::notify::{Doorbell, Notifier};
use crate::op::{Op, Operation, Orphan, erase};
use crate::ring::{Ring, RingConfig};

/// Numbers of the reactor's own entries; operations' numbers have the top bit clear.
const OWN: u64 = 1 << 63;
const NOTIFY: u64 = OWN;
const CANCEL: u64 = OWN | 1;
const CLOSE: u64 = OWN | 2;

/// Staging places kept after a burst.
const STAGED_KEPT: usize = 4096;

/// One shard's operations and the backend that executes them.
pub struct Reactor {
    core: RefCell<Core>,
    cache: Cache,
    notifier: Notifier,
    counters: std::sync::Arc<Counters>,
    /// A ring is touched by one thread only (M7).
    thread: ThreadId,
}

struct Core {
    /// `None` after shutdown.
    backend: Option<Box<dyn Backend>>,
    /// Written by operations, taken by the backend at the next enter.
    staged: VecDeque<Entry>,
    slots: Slots<Block<dyn Orphan>>,
    /// What other threads ring; `true` while its read is in flight.
    doorbell: Doorbell,
    listening: bool,
    /// Shutting down: the doorbell's read is not started again.
    closing: bool,
    /// Closes on their way, which nobody waits for but shutdown.
    closes: usize,
    batch: Vec<Completion>,
    actions: Vec<Action<Block<dyn Orphan>>>,
}

/// What [`Reactor::shutdown`] had to leave to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abandonment {
    /// The operations still in flight at the deadline, by name and descriptor. Their
    /// memory is leaked, since the kernel may still use it.
    pub operations: Vec<String>,
}

impl Reactor {
    /// A reactor on a ring of the kernel's.
    ///
    /// # Errors
    ///
    /// If no ring is to be had; the text says what usually causes it and the limits in
    /// force.
    pub fn new(config: &RingConfig) -> io::Result<Rc<Self>> {
        Self::with_backend(Box::new(Ring::new(config)?))
    }

    /// A reactor on any backend.
    ///
    /// # Errors
    ///
    /// If there is no descriptor left for the doorbell.
    pub fn with_backend(backend: Box<dyn Backend>) -> io::Result<Rc<Self>> {
        let doorbell = Doorbell::new()?;
        Ok(Rc::new(Reactor {
            notifier: doorbell.notifier(),
            core: RefCell::new(Core {
                backend: Some(backend),
                staged: VecDeque::new(),
                slots: Slots::new(),
                doorbell,
                listening: false,
                closing: false,
                closes: 0,
                batch: Vec::with_capacity(BATCH),
                actions: Vec::new(),
            }),
            cache: Cache::default(),
            counters: std::sync::Arc::default(),
            thread: std::thread::current().id(),
        }))
    }

    /// Stages an operation. The kernel gets it with the next [`enter`](Self::enter).
    pub fn submit<T: Operation>(self: &Rc<Self>, mut operation: T) -> Op<T> {
        let key = self.stage(operation.entry(), false);
        Op::new(self.clone(), key, operation)
    }

    /// Stages an operation that completes more than once.
    pub fn submit_multishot<T: MultishotOperation>(
        self: &Rc<Self>,
        mut operation: T,
    ) -> Multishot<T> {
        let key = self.stage(operation.entry(), true);
        Multishot::new(self.clone(), key, operation)
    }

    fn stage(&self, entry: Entry, many: bool) -> Key {
        debug_assert_eq!(self.thread, std::thread::current().id(), "one owner (M7)");
        let mut core = self.core.borrow_mut();
        let key = core.slots.insert(entry.opcode(), entry.fd(), many);
        let entry = entry.with_user_data(key.user_data());
        if core.backend.is_some() {
            core.staged.push_back(entry);
        } else {
            let action = core.slots.complete(refused(entry.user_data()));
            debug_assert!(
                matches!(action, Action::Nothing),
                "nobody has polled it yet"
            );
        }
        key
    }

    /// Hands what was staged to the kernel, and waits for a first completion as `wait`
    /// says. Returns at once if completions are visible already.
    ///
    /// # Errors
    ///
    /// Only what leaves the ring unusable.
    pub fn enter(&self, wait: Wait) -> io::Result<()> {
        debug_assert_eq!(self.thread, std::thread::current().id(), "one owner (M7)");
        let core = &mut *self.core.borrow_mut();
        let Some(backend) = &mut core.backend else {
            return Ok(());
        };
        if wait != Wait::No && !core.listening && !core.closing {
            core.listening = true;
            let entry = core.doorbell.entry().with_user_data(NOTIFY);
            core.staged.push_back(entry);
        }
        let before = core.staged.len();
        let entered = backend.enter(&mut core.staged, wait);
        let submitted = before - core.staged.len();
        if core.staged.is_empty() && core.staged.capacity() > STAGED_KEPT {
            core.staged = VecDeque::new();
        }
        self.counters
            .entered(submitted, core.slots.len(), backend.crossings());
        entered
    }

    /// Takes every visible completion, then wakes whoever waits for one. Returns how many
    /// there were.
    pub fn reap(&self) -> usize {
        let (reaped, mut actions) = self.collect();
        for action in actions.drain(..) {
            act(action);
        }
        self.counters.reaped(reaped);
        if actions.capacity() <= STAGED_KEPT {
            self.core.borrow_mut().actions = actions;
        }
        reaped
    }

    /// The part of [`reap`](Self::reap) under the borrow: results are stored, and the
    /// ring's places are free again.
    fn collect(&self) -> (usize, Vec<Action<Block<dyn Orphan>>>) {
        let core = &mut *self.core.borrow_mut();
        let Some(backend) = &mut core.backend else {
            return (0, Vec::new());
        };
        let mut reaped = 0;
        // Ends: a backend has finitely many completions, and new ones come of entries only.
        loop {
            core.batch.clear();
            let more = backend.reap(&mut core.batch);
            for &completion in &core.batch {
                if completion.result == -libc::EFAULT {
                    self.counters.fault();
                }
                match completion.user_data {
                    NOTIFY => core.listening = false,
                    CANCEL => {}
                    CLOSE => core.closes -= 1,
                    _ => match core.slots.complete(completion) {
                        Action::Nothing => {}
                        action => core.actions.push(action),
                    },
                }
            }
            reaped += core.batch.len();
            if !more {
                break;
            }
        }
        (reaped, std::mem::take(&mut core.actions))
    }

    /// Whether [`reap`](Self::reap) would find something: a look at memory, no call.
    pub fn is_ready_to_reap(&self) -> bool {
        let core = self.core.borrow();
        core.backend.as_ref().is_some_and(|backend| backend.ready())
    }

    /// How many entries wait for the next [`enter`](Self::enter).
    pub fn staged(&self) -> usize {
        self.core.borrow().staged.len()
    }

    /// How many operations the kernel has.
    pub fn in_flight(&self) -> usize {
        let core = self.core.borrow();
        core.slots.in_flight() + core.closes
    }

    /// How many operations have a slot: in flight, or finished and not yet taken.
    pub fn slots(&self) -> usize {
        self.core.borrow().slots.len()
    }

    /// What wakes this reactor from another thread.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// This reactor's counters, readable from any thread.
    pub fn counters(&self) -> std::sync::Arc<Counters> {
        self.counters.clone()
    }

    /// Registers resources with the ring, or gives them up.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` after shutdown.
    pub fn register(&self, resources: Register<'_>) -> io::Result<()> {
        match &mut self.core.borrow_mut().backend {
            Some(backend) => backend.register(resources),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Polls a single operation; `restart` writes its entry again after an interruption.
    pub(crate) fn poll(
        &self,
        key: Key,
        cx: &mut Context<'_>,
        restart: impl FnOnce() -> Entry,
    ) -> Poll<Completion> {
        let mut core = self.core.borrow_mut();
        if core.backend.is_some() && core.slots.restart(key, -libc::EINTR) {
            core.staged
                .push_back(restart().with_user_data(key.user_data()));
        }
        if core.slots.is_ready(key) && current::spend_budget(cx).is_pending() {
            return Poll::Pending;
        }
        match core.slots.poll(key, cx.waker()) {
            Polled::Ready(completion) => Poll::Ready(completion),
            Polled::Pending => {
                assert!(
                    core.backend.is_some(),
                    "this operation's runtime has ended, and the kernel may still own its buffer"
                );
                Poll::Pending
            }
            Polled::Item(_) | Polled::Ended => {
                unreachable!("a single operation has one completion")
            }
        }
    }

    /// Polls a multishot operation.
    pub(crate) fn poll_next(&self, key: Key, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let mut core = self.core.borrow_mut();
        if core.slots.is_ready(key) && current::spend_budget(cx).is_pending() {
            return Poll::Pending;
        }
        match core.slots.poll(key, cx.waker()) {
            Polled::Item(completion) => Poll::Ready(Some(completion)),
            Polled::Ended => Poll::Ready(None),
            Polled::Pending if core.backend.is_none() => Poll::Ready(None),
            Polled::Pending => Poll::Pending,
            Polled::Ready(_) => unreachable!("a multishot's slot stays until it is dropped"),
        }
    }

    pub(crate) fn is_ready(&self, key: Key) -> bool {
        self.core.borrow().slots.is_ready(key)
    }

    pub(crate) fn queued(&self, key: Key) -> usize {
        self.core.borrow().slots.queued(key)
    }

    /// Asks the kernel to end an operation that somebody still waits for.
    pub(crate) fn cancel(&self, key: Key) {
        let core = &mut *self.core.borrow_mut();
        core.slots.mark_cancelled(key);
        core.stage_cancel(key);
    }

    pub(crate) fn cancel_descriptor(&self, fd: RawFd) {
        let core = &mut *self.core.borrow_mut();
        let keys: Vec<Key> = core.slots.on_descriptor(fd).collect();
        for key in keys {
            core.slots.mark_cancelled(key);
            core.stage_cancel(key);
        }
    }

    /// Stages a close that nobody waits for; false after shutdown.
    pub(crate) fn close(&self, fd: RawFd) -> bool {
        let core = &mut *self.core.borrow_mut();
        if core.backend.is_none() {
            return false;
        }
        core.closes += 1;
        let entry = Entry(opcode::Close::new(types::Fd(fd)).build());
        core.staged.push_back(entry.with_user_data(CLOSE));
        true
    }

    /// The future of an operation is gone; see the essay in [`op`](crate::op).
    pub(crate) fn abandon<O: Orphan + 'static>(&self, key: Key, mut orphan: O) {
        let mut borrow = self.core.borrow_mut();
        let core = &mut *borrow;
        let ending = match core.slots.abandon(key) {
            Abandoned::Over(ending) => ending,
            Abandoned::InFlight if core.unstage(key) => {
                core.slots.withdraw(key);
                Ending::One(cancelled(key.user_data()))
            }
            Abandoned::InFlight if core.backend.is_none() => {
                // The kernel would not give it back in time: it may still own the memory.
                drop(borrow);
                std::mem::forget(orphan);
                return;
            }
            Abandoned::InFlight => {
                core.slots.orphan(key, erase(orphan));
                core.stage_cancel(key);
                return;
            }
        };
        drop(borrow);
        orphan.finish(ending);
    }

    /// Cancels everything, and turns the ring until the kernel has given all of it back or
    /// the deadline has passed; then closes the ring. Calling it again does nothing.
    pub fn shutdown(&self, deadline: Instant) -> Abandonment {
        // Cancels go out again now and then: an operation may have been about to start.
        let mut cancel_at = Instant::now();
        self.core.borrow_mut().closing = true;
        while self.is_busy() {
            let now = Instant::now();
            if now >= deadline || self.core.borrow().backend.is_none() {
                break;
            }
            if now >= cancel_at {
                self.core.borrow_mut().stage_cancel_all();
                cancel_at = now + Duration::from_millis(20);
            }
            let wait = Wait::AtMost((deadline - now).min(Duration::from_millis(20)));
            if self.enter(wait).is_err() {
                break;
            }
            self.reap();
        }
        self.end()
    }

    /// Whether the kernel still has, or is to get, anything of ours.
    fn is_busy(&self) -> bool {
        let core = self.core.borrow();
        core.slots.in_flight() + core.closes + core.staged.len() > 0 || core.listening
    }

    fn end(&self) -> Abandonment {
        let core = &mut *self.core.borrow_mut();
        if core.backend.is_none() {
            return Abandonment::default();
        }
        // A descriptor that a forgotten future never took would stay open for ever.
        core.slots.rewrite_unclaimed(|opcode, completion| {
            if yields_descriptor(opcode) && completion.result >= 0 {
                crate::fd::close_now(completion.result);
                *completion = cancelled(completion.user_data);
            }
        });
        let operations = core
            .slots
            .named_in_flight()
            .map(|(opcode, fd)| format!("{} on descriptor {fd}", opcode_name(opcode)))
            .collect();
        for orphan in core.slots.take_orphans() {
            std::mem::forget(orphan);
        }
        self.counters.ended(core.slots.len());
        core.backend = None;
        if core.listening {
            core.doorbell.leak();
        }
        Abandonment { operations }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.shutdown(Instant::now() + Duration::from_millis(500));
    }
}

impl Core {
    /// Cancels an operation; one that still waits to be submitted follows its entry.
    fn stage_cancel(&mut self, key: Key) {
        if self.backend.is_some() {
            let entry = Entry(opcode::AsyncCancel::new(key.user_data()).build());
            self.staged.push_back(entry.with_user_data(CANCEL));
        }
    }

    fn stage_cancel_all(&mut self) {
        let all = types::CancelBuilder::any();
        let entry = Entry(opcode::AsyncCancel2::new(all).build());
        self.staged.push_back(entry.with_user_data(CANCEL));
    }

    /// Takes an entry out that the kernel has not seen.
    fn unstage(&mut self, key: Key) -> bool {
        let user_data = key.user_data();
        // The youngest entries are the likeliest: a future dropped right after its poll.
        let found = self
            .staged
            .iter()
            .rposition(|entry| entry.user_data() == user_data);
        found.is_some_and(|place| self.staged.remove(place).is_some())
    }
}

/// Wakes and ends are calls into foreign code: a panic there is theirs and stays there.
fn act(action: Action<Block<dyn Orphan>>) {
    let acted = catch_unwind(AssertUnwindSafe(|| match action {
        Action::Nothing => {}
        Action::Wake(waker) => waker.wake(),
        Action::Finish(mut orphan, ending) => orphan.finish(ending),
    }));
    if acted.is_err() {
        eprintln!("roundel: a waker or the drop of an abandoned operation's output panicked");
    }
}

fn cancelled(user_data: u64) -> Completion {
    Completion {
        user_data,
        result: -libc::ECANCELED,
        flags: 0,
    }
}

/// The answer to what is submitted after the end.
fn refused(user_data: u64) -> Completion {
    cancelled(user_data)
}

fn yields_descriptor(number: u8) -> bool {
    matches!(
        number,
        opcode::Accept::CODE | opcode::OpenAt::CODE | opcode::Socket::CODE
    )
}

fn opcode_name(number: u8) -> String {
    let name = match number {
        opcode::Accept::CODE => "accept",
        opcode::Connect::CODE => "connect",
        opcode::Fsync::CODE => "fsync",
        opcode::Ftruncate::CODE => "ftruncate",
        opcode::OpenAt::CODE => "open",
        opcode::Read::CODE => "read",
        opcode::Recv::CODE => "recv",
        opcode::Send::CODE => "send",
        opcode::Shutdown::CODE => "shutdown",
        opcode::Statx::CODE => "statx",
        opcode::Write::CODE => "write",
        number => return format!("operation {number}"),
    };
    name.into()
}
