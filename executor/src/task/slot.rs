#![allow(unsafe_code)]
//! One slot: the state of the task in it, and how that changes.
//!
//! The diagram and the rules stand in the module above. A [`Slot`] is the owner's view; what
//! other threads have is its [`LinkRef`], and the waker, which finds out where it is.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::arena::ChunkRef;
use super::remote::{Link, LinkRef};
use super::seat::{Owned, Owner, Seat};
use crate::current;
use crate::join::Id;
use crate::run_queue::Class;

/// A future is in the slot, and has not ended.
pub(super) const LIVE: u8 = 1;
/// The slot is in the run queue, once. Implies `LIVE`.
pub(super) const QUEUED: u8 = 1 << 1;
/// The future is being polled or dropped. Implies `LIVE`.
pub(super) const RUNNING: u8 = 1 << 2;
/// Woken while running, to be queued after the poll...
pub(super) const WOKEN: u8 = 1 << 3;
/// ...in the completion class.
pub(super) const BY_COMPLETION: u8 = 1 << 4;
/// To be ended instead of polled.
pub(super) const ABORTED: u8 = 1 << 5;
/// A `JoinHandle` exists that has not resolved. The slot outlives the task.
pub(super) const JOIN: u8 = 1 << 6;
/// An output is in the slot. Implies `JOIN`.
pub(super) const OUTPUT: u8 = 1 << 7;

const LIVE_AND_RUNNING: u8 = LIVE | RUNNING;

/// What a slot has beside its payload, which follows it.
#[repr(C)]
pub(super) struct Header {
    /// First, so that the address of the slot is that of its link.
    link: Link,
    /// What the payload is; `None` in a slot that was never used.
    vtable: Cell<Option<&'static Vtable>>,
    /// Who waits for the output; only with `JOIN` and `LIVE`.
    joiner: Cell<Option<Waker>>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 40, "what a task costs is documented");

impl Header {
    pub(super) fn new() -> Self {
        Header {
            link: Link::new(),
            vtable: Cell::new(None),
            joiner: Cell::new(None),
        }
    }
}

/// What a slot needs to know of the future in it.
pub(super) struct Vtable {
    /// Polls the future. `true`: the task has ended, and the slot may be another task's already.
    ///
    /// To be called on the owner's thread, with the slot `LIVE` with this vtable, and not from within
    /// a call of either function on the same slot.
    pub(super) poll: unsafe fn(Slot) -> bool,
    /// Ends the task as cancelled. The slot may be another task's after that. As for `poll`.
    pub(super) cancel: unsafe fn(Slot),
}

/// A slot, as its owner sees it. It does not leave the owner's thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(NonNull<Header>);

impl Slot {
    /// # Safety
    ///
    /// `header` is an initialised slot of a chunk, and this is the thread that owns its seat.
    pub(super) unsafe fn new(header: NonNull<Header>) -> Slot {
        Slot(header)
    }

    /// The slot of a link, if this thread runs its shard.
    pub(super) fn of(link: LinkRef) -> Option<Slot> {
        current::owns(ChunkRef::of(link).seat()).then(|| {
            // Every link is the beginning of a slot, and this is its owner's thread.
            Slot(link.as_ptr().cast())
        })
    }

    /// The face for other threads.
    pub(super) fn link(self) -> LinkRef {
        // SAFETY: a slot begins with its link, and stays a slot for ever (`new`).
        unsafe { LinkRef::new(self.0.cast()) }
    }

    fn header(self) -> &'static Header {
        // SAFETY: an initialised slot for ever (`new`). References to headers are shared ones, made
        // on the owner's thread only; other threads refer to the link's atomics alone.
        unsafe { self.0.as_ref() }
    }

    fn seat(self) -> &'static Seat {
        ChunkRef::of(self.link()).seat()
    }

    pub(super) fn owner(self) -> Owner {
        // SAFETY: a `Slot` exists on its owner's thread only (`new`).
        unsafe { Owner::new(self.seat()) }
    }

    fn owned(self) -> &'static Owned {
        self.owner().owned()
    }

    /// Where the payload stands that has this alignment.
    pub(super) fn payload(self, align: usize) -> NonNull<u8> {
        // SAFETY: every slot has at least `payload_offset(ALIGN_MAX)` bytes.
        unsafe { self.0.byte_add(payload_offset(align)).cast() }
    }

    pub(super) fn flags(self) -> u8 {
        self.header().link.flags.get()
    }

    pub(super) fn set_flags(self, flags: u8) {
        self.header().link.flags.set(flags);
    }

    pub(super) fn is(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    pub(super) fn joiner(self) -> &'static Cell<Option<Waker>> {
        &self.header().joiner
    }

    /// The number of the task that is here now.
    pub(super) fn id(self) -> Id {
        id_of(self.link(), self.link().generation())
    }

    /// A task begins (1). Its payload was written.
    pub(super) fn begin(self, vtable: &'static Vtable, join: u8) {
        debug_assert_eq!(self.flags(), 0, "only a free slot is taken");
        self.header().vtable.set(Some(vtable));
        self.set_flags(LIVE | QUEUED | join);
    }

    /// Wakes the task that lives here (4, 5), for whatever reason. For the owner.
    pub(super) fn wake(self, class: Class) {
        let flags = self.flags();
        match flags & (LIVE | QUEUED | RUNNING | WOKEN) {
            LIVE => {
                self.set_flags(flags | QUEUED);
                self.owned().push(class, self);
            }
            // It is pushed by `run`, so that the queue has no tasks that have ended.
            LIVE_AND_RUNNING => self.set_flags(match class {
                Class::Ordinary => flags | WOKEN,
                Class::Completion => flags | WOKEN | BY_COMPLETION,
            }),
            // Queued or woken already, or nobody lives here: a wake that came late.
            _ => {}
        }
    }

    /// Wakes the task in the class of what the shard is doing.
    pub(super) fn wake_now(self) {
        self.wake(self.owned().class());
    }

    /// Has the task ended instead of polled again. An abort ends a wait, so it is a completion (M1).
    pub(super) fn abort(self) {
        let flags = self.flags();
        if flags & LIVE != 0 {
            self.set_flags(flags | ABORTED);
            self.wake(Class::Completion);
        }
    }

    /// Runs a task that came out of the queue (2): polls it, or ends it (6) if it was aborted or its
    /// shard is closing. Nothing of it panics out of here.
    pub(crate) fn run(self, closing: bool) {
        let flags = self.flags();
        debug_assert_eq!(flags & (LIVE | QUEUED | RUNNING), LIVE | QUEUED);
        self.set_flags(flags & !QUEUED | RUNNING);
        let vtable = self
            .header()
            .vtable
            .get()
            .expect("a queued slot has a task");
        if closing || flags & ABORTED != 0 {
            // SAFETY: the slot was queued, so it is `LIVE` with its vtable; a `Slot` is on its owner's
            // thread; a running task is not queued, so this is no call within another.
            unsafe { (vtable.cancel)(self) };
            return;
        }
        // SAFETY: as above.
        let ended = unsafe { (vtable.poll)(self) };
        if ended {
            return;
        }
        let flags = self.flags();
        let rest = flags & !(RUNNING | WOKEN | BY_COMPLETION);
        if flags & WOKEN == 0 {
            self.set_flags(rest);
            return;
        }
        self.set_flags(rest | QUEUED);
        let class = match flags & BY_COMPLETION {
            0 => Class::Ordinary,
            _ => Class::Completion,
        };
        self.owned().push(class, self);
    }

    /// Queues the task if it waits for something; for the end of its shard.
    pub(super) fn wake_if_idle(self) {
        if self.flags() & (LIVE | QUEUED | RUNNING) == LIVE {
            self.wake(Class::Ordinary);
        }
    }

    /// What stands in a free slot's payload: the next free one.
    pub(super) fn next_free(self) -> Option<Slot> {
        let place = self.payload(align_of::<Option<Slot>>()).cast();
        // SAFETY: the slot is free, so `set_next_free` has written this.
        unsafe { place.read() }
    }

    pub(super) fn set_next_free(self, next: Option<Slot>) {
        let place = self.payload(align_of::<Option<Slot>>()).cast();
        // SAFETY: the slot is free, so its payload is the arena's; the smallest one has 8 bytes.
        unsafe { place.write(next) };
    }

    /// Calls `f` with the waker of this slot.
    pub(super) fn with_waker<R>(self, f: impl FnOnce(&Waker) -> R) -> R {
        // SAFETY: `WAKER` states how it keeps the contract for the address of a slot's link.
        let waker = unsafe { Waker::new(self.0.as_ptr().cast(), &WAKER) };
        // Dropping a waker does nothing.
        f(&ManuallyDrop::new(waker))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({}, {:08b})", self.id(), self.flags())
    }
}

/// Where in a slot a payload of this alignment begins.
pub(super) const fn payload_offset(align: usize) -> usize {
    size_of::<Header>().next_multiple_of(align)
}

/// The number of the task that is, or was, the so manieth in this slot.
pub(super) fn id_of(link: LinkRef, generation: u32) -> Id {
    Id::of_slot(ChunkRef::of(link).number_of(link), generation)
}

/// A waker's data is the address of a slot. That stays a slot for ever, whoever lives there, so a waker
/// owns nothing: clone and drop do nothing, and any thread may do anything at any time.
static WAKER: RawWakerVTable = RawWakerVTable::new(
    |slot| RawWaker::new(slot, &WAKER),
    wake_slot,
    wake_slot,
    |_| {},
);

fn wake_slot(slot: *const ()) {
    let link = NonNull::new(slot.cast_mut().cast()).expect("a waker has the address of a slot");
    // SAFETY: `with_waker` made the waker, of the address of a slot's link.
    let link = unsafe { LinkRef::new(link) };
    wake_link(link);
}

/// Wakes who lives in the slot, from any thread.
fn wake_link(link: LinkRef) {
    match Slot::of(link) {
        Some(slot) => slot.wake_now(),
        None => ChunkRef::of(link).seat().inbox().push_slot(link),
    }
}
