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
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
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

/// Numbers of the reactor's own entries; operations' numbers have the two top bits clear.
const OWN: u64 = 1 << 63;
const NOTIFY: u64 = OWN;
/// What stands for an entry that was taken out, and whose answer nobody waits for.
const NOBODY: u64 = OWN | 1;
/// A close that nobody waits for; the descriptor stands in the lower half.
const CLOSE: u64 = OWN | 1 << 32;
/// A cancel; the other bits are its operation's number.
const CANCEL: u64 = 1 << 62;

/// When a cancel is tried again. The kernel may be at work on the operation for long, and asking
/// does not speed it up.
const CANCEL_AGAIN: Duration = Duration::from_millis(10);

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
    /// How many entries the backend has taken so far: the first staged one's place in the line
    /// of all.
    taken: u64,
    slots: Slots<Block<dyn Orphan>>,
    /// What other threads ring; `true` while its read is in flight.
    doorbell: Doorbell,
    listening: bool,
    /// Shutting down: the doorbell's read is not started again.
    closing: bool,
    /// Closes on their way, which nobody waits for but shutdown.
    closes: usize,
    /// Operations that are in flight although their cancel was answered with an error: the
    /// kernel was just moving them, from a wait to a worker, say, and they may wait on, past
    /// the cancel.
    missed: Vec<Key>,
    cancel_again_at: Instant,
    batch: Vec<Completion>,
    due: Due,
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
                taken: 0,
                slots: Slots::new(),
                doorbell,
                listening: false,
                closing: false,
                closes: 0,
                missed: Vec::new(),
                cancel_again_at: Instant::now(),
                batch: Vec::with_capacity(BATCH),
                due: Due::default(),
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

    /// As [`submit_multishot`](Self::submit_multishot), but the operation is cancelled once
    /// more than `bound` items wait to be taken.
    pub fn submit_multishot_bounded<T: MultishotOperation>(
        self: &Rc<Self>,
        operation: T,
        bound: usize,
    ) -> Multishot<T> {
        let multishot = self.submit_multishot(operation);
        self.core.borrow_mut().slots.bound(multishot.key(), bound);
        multishot
    }

    #[inline]
    fn stage(&self, entry: Entry, many: bool) -> Key {
        debug_assert_eq!(self.thread, std::thread::current().id(), "one owner (M7)");
        let mut core = self.core.borrow_mut();
        let staged_at = core.next_place();
        let key = core
            .slots
            .insert(entry.opcode(), entry.fd(), many, staged_at);
        let entry = entry.with_user_data(key.user_data());
        if core.backend.is_some() {
            core.staged.push_back(entry);
        } else {
            let (action, _) = core.slots.complete(cancelled(entry.user_data()));
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
        let wait = core.cancel_missed(wait);
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
        core.taken += submitted as u64;
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
        let (reaped, mut due) = self.collect();
        due.act();
        self.counters.reaped(reaped);
        if due.wakers.capacity() + due.orphans.capacity() <= STAGED_KEPT {
            self.core.borrow_mut().due = due;
        }
        reaped
    }

    /// The part of [`reap`](Self::reap) under the borrow: results are stored, and the
    /// ring's places are free again.
    fn collect(&self) -> (usize, Due) {
        let core = &mut *self.core.borrow_mut();
        let mut batch = std::mem::take(&mut core.batch);
        let mut reaped = 0;
        // Ends: a backend has finitely many completions, and new ones come of entries only.
        while let Some(backend) = &mut core.backend {
            batch.clear();
            let more = backend.reap(&mut batch);
            for &completion in &batch {
                if completion.result == -libc::EFAULT {
                    self.counters.fault();
                }
                core.take(completion);
            }
            reaped += batch.len();
            if !more {
                break;
            }
        }
        core.batch = batch;
        (reaped, std::mem::take(&mut core.due))
    }

    /// Whether completions wait: a look at memory, no call. The kernel may hold them back
    /// until it is entered, so [`enter`](Self::enter) comes before [`reap`](Self::reap).
    pub fn is_ready_to_reap(&self) -> bool {
        let core = self.core.borrow();
        core.backend.as_ref().is_some_and(|backend| backend.ready())
    }

    /// How many entries wait for the next [`enter`](Self::enter).
    #[inline]
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

    #[inline]
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Polls a single operation; `restart` writes its entry again after an interruption.
    #[inline]
    pub(crate) fn poll(
        &self,
        key: Key,
        cx: &mut Context<'_>,
        restart: impl FnOnce() -> Entry,
    ) -> Poll<Completion> {
        match self.poll_slot(key, cx) {
            (Polled::Ready(completion), _) => return Poll::Ready(completion),
            (Polled::Interrupted, _) => {
                // Foreign code: it comes first, so that its panic changes nothing.
                let entry = restart().with_user_data(key.user_data());
                self.restart(key, entry);
                if let (Polled::Ready(completion), _) = self.poll_slot(key, cx) {
                    return Poll::Ready(completion);
                }
            }
            (Polled::Deferred, _) => {}
            (Polled::Pending | Polled::NewWaker, ended) => assert!(
                !ended,
                "this operation's runtime has ended, and the kernel may still own its buffer"
            ),
            (Polled::Item(_) | Polled::Ended, _) => {
                unreachable!("a single operation has one completion")
            }
        }
        Poll::Pending
    }

    /// Polls a multishot operation.
    pub(crate) fn poll_next(&self, key: Key, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        match self.poll_slot(key, cx) {
            (Polled::Item(completion), _) => Poll::Ready(Some(completion)),
            (Polled::Ended, _) => Poll::Ready(None),
            (Polled::Deferred, _) => Poll::Pending,
            (Polled::Pending | Polled::NewWaker, true) => Poll::Ready(None),
            (Polled::Pending | Polled::NewWaker, false) => Poll::Pending,
            (Polled::Ready(_) | Polled::Interrupted, _) => {
                unreachable!("a multishot's slot stays until it is dropped")
            }
        }
    }

    /// Takes what is there, or keeps the waker, or calls it if the task's share is used up.
    /// Says besides whether the ring is closed.
    #[inline]
    fn poll_slot(&self, key: Key, cx: &mut Context<'_>) -> (Polled, bool) {
        let (polled, ended) = {
            let core = &mut *self.core.borrow_mut();
            let polled = core.slots.poll(key, cx.waker(), current::take_from_budget);
            (polled, core.backend.is_none())
        };
        let used_up = polled == Polled::Deferred;
        if used_up || polled == Polled::NewWaker && self.keep_waker(key, cx) {
            // Its turn comes again, or it came while the waker was cloned.
            cx.waker().wake_by_ref();
        }
        (polled, ended)
    }

    /// Leaves a waker; true if there is something to take already. The clone and the drop of a
    /// waker are foreign code: the reactor is free meanwhile.
    #[inline]
    pub(crate) fn keep_waker(&self, key: Key, cx: &mut Context<'_>) -> bool {
        let waker = cx.waker().clone();
        let (unused, ready) = {
            let core = &mut *self.core.borrow_mut();
            let unused = core.slots.keep_waker(key, waker);
            // After the end there is nothing to wait for.
            (unused, core.slots.is_ready(key) || core.backend.is_none())
        };
        drop(unused);
        ready
    }

    /// Stages an interrupted operation again, if the ring is open; else it ends as cancelled.
    fn restart(&self, key: Key, entry: Entry) {
        let core = &mut *self.core.borrow_mut();
        core.slots.restart(key, core.next_place());
        if core.backend.is_some() {
            core.staged.push_back(entry);
        } else {
            core.complete(cancelled(key.user_data()));
        }
    }

    /// Whether the ring is closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.core.borrow().backend.is_none()
    }

    pub(crate) fn is_ready(&self, key: Key) -> bool {
        self.core.borrow().slots.is_ready(key)
    }

    pub(crate) fn queued(&self, key: Key) -> usize {
        self.core.borrow().slots.queued(key)
    }

    pub(crate) fn is_cancelled(&self, key: Key) -> bool {
        self.core.borrow().slots.is_cancelled(key)
    }

    /// Asks the kernel to end an operation that somebody still waits for.
    pub(crate) fn cancel(&self, key: Key) {
        let core = &mut *self.core.borrow_mut();
        core.slots.mark_cancelled(key);
        core.stage_cancel(key);
    }

    /// Cancels the operations in flight on a descriptor. Returns all that are on it, in flight
    /// or not yet claimed.
    pub(crate) fn cancel_descriptor(&self, fd: RawFd) -> Vec<Key> {
        let core = &mut *self.core.borrow_mut();
        let keys: Vec<Key> = core.slots.on_descriptor(fd).collect();
        for &key in &keys {
            core.slots.mark_cancelled(key);
            if core.slots.is_in_flight(key) == Some(true) {
                core.stage_cancel(key);
            }
        }
        keys
    }

    /// How many of these operations are over and not yet claimed. Pending while the kernel has
    /// one of them.
    pub(crate) fn poll_unclaimed(&self, keys: &[Key], cx: &mut Context<'_>) -> Poll<usize> {
        // Ends: each round sees the last completion of another operation.
        while let Some(key) = self.first_in_flight(keys) {
            let waker = cx.waker().clone();
            let unused = self.core.borrow_mut().slots.keep_closer(key, waker);
            drop(unused);
            if self.first_in_flight(&[key]).is_some() {
                return Poll::Pending;
            }
        }
        let core = self.core.borrow();
        let unclaimed = |key: &&Key| core.slots.is_in_flight(**key).is_some();
        Poll::Ready(keys.iter().filter(unclaimed).count())
    }

    /// The descriptor of these operations, all of them over, is being closed.
    pub(crate) fn detach(&self, keys: &[Key]) {
        let mut core = self.core.borrow_mut();
        keys.iter().for_each(|&key| core.slots.detach(key));
    }

    /// The first of these that the kernel has; at the end it keeps what it has, and nobody
    /// waits for that.
    fn first_in_flight(&self, keys: &[Key]) -> Option<Key> {
        let core = self.core.borrow();
        core.backend.as_ref()?;
        let in_flight = |key: &&Key| core.slots.is_in_flight(**key) == Some(true);
        keys.iter().find(in_flight).copied()
    }

    /// Stages a close that nobody waits for; false after shutdown.
    pub(crate) fn close(&self, fd: RawFd) -> bool {
        let core = &mut *self.core.borrow_mut();
        if core.backend.is_none() {
            return false;
        }
        core.closes += 1;
        let entry = Entry(opcode::Close::new(types::Fd(fd)).build());
        core.staged
            .push_back(entry.with_user_data(CLOSE | fd as u64));
        true
    }

    /// The future of an operation is gone; see the essay in [`op`](crate::op).
    pub(crate) fn abandon<O: Orphan + 'static>(&self, key: Key, mut orphan: O) {
        let mut borrow = self.core.borrow_mut();
        let core = &mut *borrow;
        let ending = match core.slots.abandon(key) {
            Abandoned::Over(ending) => ending,
            Abandoned::InFlight if core.unstage(key) => {
                let unused = core.slots.withdraw(key);
                drop(borrow);
                orphan.finish(Ending::One(cancelled(key.user_data())));
                drop(unused);
                return;
            }
            Abandoned::InFlight if core.backend.is_none() => {
                // The kernel would not give it back in time: it may still own the memory.
                drop(borrow);
                std::mem::forget(orphan);
                return;
            }
            Abandoned::InFlight => {
                let unused = core.slots.orphan(key, erase(orphan));
                core.stage_cancel(key);
                drop(borrow);
                drop(unused);
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
            if now >= deadline || !self.is_usable() {
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

    fn is_usable(&self) -> bool {
        let core = self.core.borrow();
        core.backend
            .as_ref()
            .is_some_and(|backend| backend.is_usable())
    }

    /// Whether the kernel still has, or is to get, anything of ours.
    fn is_busy(&self) -> bool {
        let core = self.core.borrow();
        core.slots.in_flight() + core.closes + core.staged.len() > 0 || core.listening
    }

    fn end(&self) -> Abandonment {
        let mut borrow = self.core.borrow_mut();
        let core = &mut *borrow;
        let Some(backend) = core.backend.take() else {
            return Abandonment::default();
        };
        core.end_staged();
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
        if core.listening {
            core.doorbell.leak();
        }
        let mut due = std::mem::take(&mut core.due);
        // Who still waits would hear of nothing any more.
        due.wakers.extend(core.slots.take_wakers());
        drop(borrow);
        drop(backend);
        due.act();
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
            self.staged
                .push_back(entry.with_user_data(CANCEL | key.user_data()));
        }
    }

    /// Notes how a cancel went.
    fn cancel_answered(&mut self, key: Key, result: i32) {
        if result >= 0 || self.slots.is_in_flight(key) != Some(true) {
            return;
        }
        if self.missed.is_empty() {
            self.cancel_again_at = Instant::now() + CANCEL_AGAIN;
        }
        self.missed.push(key);
    }

    /// Tries cancels again that have missed their operations, once it is time; until then no
    /// wait is longer.
    fn cancel_missed(&mut self, wait: Wait) -> Wait {
        if self.missed.is_empty() {
            return wait;
        }
        let left = self
            .cancel_again_at
            .saturating_duration_since(Instant::now());
        if left.is_zero() {
            for key in std::mem::take(&mut self.missed) {
                if self.slots.is_in_flight(key) == Some(true) {
                    self.stage_cancel(key);
                }
            }
            return wait;
        }
        match wait {
            Wait::No => Wait::No,
            Wait::AtMost(duration) => Wait::AtMost(duration.min(left)),
            Wait::Forever => Wait::AtMost(left),
        }
    }

    /// Cancels each operation by its number. The kernel's "cancel any" starts its search anew
    /// for each one it finds: 10,000 receives would take it four seconds, in one call.
    fn stage_cancel_all(&mut self) {
        let keys: Vec<Key> = self.slots.in_flight_keys().collect();
        for key in keys {
            self.slots.mark_cancelled(key);
            self.stage_cancel(key);
        }
        if self.listening {
            let entry = Entry(opcode::AsyncCancel::new(NOTIFY).build());
            self.staged.push_back(entry.with_user_data(NOBODY));
        }
    }

    /// The place in the line of all entries that the next one staged will have.
    #[inline]
    fn next_place(&self) -> u64 {
        self.taken + self.staged.len() as u64
    }

    /// Takes an entry out that the kernel has not seen. A no-op takes its place, so that those
    /// behind it keep theirs: looking for an entry would cost a burst of drops its square.
    fn unstage(&mut self, key: Key) -> bool {
        let Some(place) = self.slots.staged_at(key).checked_sub(self.taken) else {
            return false;
        };
        let Some(entry) = self.staged.get_mut(place as usize) else {
            return false;
        };
        debug_assert_eq!(entry.user_data(), key.user_data(), "places do not change");
        *entry = Entry(opcode::Nop::new().build()).with_user_data(NOBODY);
        // Ends with the queue.
        while self
            .staged
            .back()
            .is_some_and(|entry| entry.user_data() == NOBODY)
        {
            self.staged.pop_back();
        }
        true
    }

    /// Takes a completion off the backend.
    fn take(&mut self, completion: Completion) {
        match completion.user_data {
            number if number & (OWN | CANCEL) == 0 => self.complete(completion),
            NOTIFY => self.listening = false,
            NOBODY => {}
            number if number & CANCEL != 0 => {
                self.cancel_answered(Key::from_user_data(number & !CANCEL), completion.result);
            }
            number if number & CLOSE == CLOSE => {
                self.closes -= 1;
                if completion.result == -libc::ECANCELED {
                    crate::fd::close_now(number as RawFd);
                }
            }
            _ => self.complete(completion),
        }
    }

    /// Stores a completion, and what is to be done for it.
    fn complete(&mut self, completion: Completion) {
        let (action, closer) = self.slots.complete(completion);
        let key = Key::from_user_data(completion.user_data);
        if completion.more() && self.slots.exceeds_bound(key) {
            self.slots.mark_cancelled(key);
            self.stage_cancel(key);
        }
        match action {
            Action::Nothing => {}
            Action::Wake(waker) => self.due.wakers.push(waker),
            Action::Finish(orphan, ending) => self.due.orphans.push((orphan, ending)),
        }
        self.due.wakers.extend(closer);
    }

    /// Answers what the kernel never saw; for the end of the reactor.
    fn end_staged(&mut self) {
        for entry in std::mem::take(&mut self.staged) {
            match entry.user_data() {
                NOTIFY => self.listening = false,
                NOBODY => {}
                number if number & CANCEL != 0 => {}
                number if number & CLOSE == CLOSE => {
                    self.closes -= 1;
                    crate::fd::close_now(number as RawFd);
                }
                number => self.complete(cancelled(number)),
            }
        }
    }
}

/// What is to be done once the reactor is not borrowed.
#[derive(Default)]
struct Due {
    wakers: Vec<Waker>,
    orphans: Vec<(Block<dyn Orphan>, Ending)>,
}

impl Due {
    fn act(&mut self) {
        for waker in self.wakers.drain(..) {
            contain(|| waker.wake());
        }
        for (mut orphan, ending) in self.orphans.drain(..) {
            contain(|| orphan.finish(ending));
        }
    }
}

/// Calls foreign code: a panic there is its own, and stays there.
fn contain(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // Its drop is foreign code, too, and `eprintln` panics where stderr is gone.
        std::mem::forget(payload);
        let _ = writeln!(
            io::stderr(),
            "roundel: a waker or the drop of an abandoned operation's output panicked"
        );
    }
}

/// The answer to what never reached the kernel.
fn cancelled(user_data: u64) -> Completion {
    Completion {
        user_data,
        result: -libc::ECANCELED,
        flags: 0,
    }
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
        opcode::Close::CODE => "close",
        opcode::Connect::CODE => "connect",
        opcode::Fsync::CODE => "fsync",
        opcode::Ftruncate::CODE => "ftruncate",
        opcode::Nop::CODE => "no-op",
        opcode::OpenAt::CODE => "open",
        opcode::Read::CODE => "read",
        opcode::Recv::CODE => "recv",
        opcode::Send::CODE => "send",
        opcode::Shutdown::CODE => "shutdown",
        opcode::Statx::CODE => "statx",
        opcode::Timeout::CODE => "timeout",
        opcode::Write::CODE => "write",
        number => return format!("operation {number}"),
    };
    name.into()
}
