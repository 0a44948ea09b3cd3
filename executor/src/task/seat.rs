#![allow(unsafe_code)]
//! A seat: what a shard takes over from an earlier shard and leaves to a later one.
//!
//! Wakers may be used after the end of their shard, so what they reach must stay: the slots, and
//! the inbox with its flag. These make up a [`Seat`], which is never freed. A shard that starts
//! takes a seat that is free, on whatever thread, or makes one; when it ends and nobody can have
//! anything more of it on its thread, the seat is free again. What wakers of the former shard
//! push meanwhile is harmless (`inbox.rs`).
//!
//! A seat has two faces. `inbox` is for everybody. The rest, [`Owned`], is for one thread at a
//! time: the one that holds the [`Tenancy`], or where join handles of it are left. [`Owner`] is
//! the proof of being that thread. The seat changes hands under the lock of the list of free
//! seats, so that the next owner sees all that the last one did.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::PoisonError;

use super::Errand;
use super::arena::Arena;
use super::slot::Slot;
use crate::inbox::Inbox;
use crate::run_queue::{Class, CompletionShare, RunQueues};

/// Ends a shard's wait.
pub(crate) type Notify = Box<dyn Fn() + Send + Sync>;

/// See the module.
pub(crate) struct Seat {
    inbox: Inbox<Errand, Notify>,
    owned: Owned,
}

// SAFETY: `inbox` is `Sync`. `owned` is reached through an `Owner` only, which exists on
// one thread at a time (see the module).
unsafe impl Sync for Seat {}

/// The owner's side of a seat.
pub(crate) struct Owned {
    pub(super) arena: Arena,
    queues: RefCell<RunQueues<Slot>>,
    /// What a task that is woken now is woken by.
    class: Cell<Class>,
    /// Tasks that have not ended.
    live: Cell<u64>,
    /// Tasks spawned in this tenancy.
    spawned: Cell<u64>,
    /// Which tenancy this is.
    epoch: Cell<u64>,
    /// Join handles that have neither resolved nor gone.
    handles: Cell<u64>,
    /// The shard has ended; the last handle frees the seat.
    vacated: Cell<bool>,
}

/// All seats that nobody has.
struct Free {
    seats: Vec<&'static Seat>,
    /// The last tenancy's number.
    epoch: u64,
}

// A lock of std's also in a model: models have no seats, and loom's cannot be in a static.
static FREE: std::sync::Mutex<Free> = std::sync::Mutex::new(Free {
    seats: Vec::new(),
    epoch: 0,
});
/// Every seat there is: what is never freed is also never lost sight of, by a leak checker either.
static ALL: std::sync::Mutex<Vec<&'static Seat>> = std::sync::Mutex::new(Vec::new());

impl Seat {
    pub(crate) fn inbox(&self) -> &Inbox<Errand, Notify> {
        &self.inbox
    }

    fn make() -> &'static Seat {
        let seat: &'static Seat = Box::leak(Box::new(Seat {
            inbox: Inbox::new(),
            owned: Owned {
                arena: Arena::new(),
                queues: RefCell::new(RunQueues::new(CompletionShare::default())),
                class: Cell::new(Class::Ordinary),
                live: Cell::new(0),
                spawned: Cell::new(0),
                epoch: Cell::new(0),
                handles: Cell::new(0),
                vacated: Cell::new(false),
            },
        }));
        ALL.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seat);
        seat
    }

    /// Frees the seat.
    fn give_back(&'static self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.seats.push(self);
    }
}

/// A seat, on the thread that owns it.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    seat: &'static Seat,
    /// It stays on its thread.
    stays: PhantomData<*const ()>,
}

impl Owner {
    /// # Safety
    ///
    /// This thread owns the seat, and does so as long as the `Owner` is used.
    pub(super) unsafe fn new(seat: &'static Seat) -> Owner {
        Owner {
            seat,
            stays: PhantomData,
        }
    }

    pub(crate) fn seat(self) -> &'static Seat {
        self.seat
    }

    pub(crate) fn owned(self) -> &'static Owned {
        &self.seat.owned
    }

    /// A free slot of this class.
    pub(super) fn take(self, class: usize) -> Slot {
        self.owned().arena.take(self.seat, class)
    }

    /// A handle came to be.
    pub(super) fn handle_made(self) {
        let handles = &self.owned().handles;
        handles.set(handles.get() + 1);
    }

    /// A handle has resolved or gone. If it was the last that an ended shard had, the seat is free
    /// after this, and the caller does not touch it any more.
    pub(super) fn handle_gone(self) {
        let owned = self.owned();
        let handles = owned.handles.get() - 1;
        owned.handles.set(handles);
        if handles == 0 && owned.vacated.get() {
            self.seat.give_back();
        }
    }
}

impl Owned {
    pub(crate) fn push(&self, class: Class, slot: Slot) {
        self.queues.borrow_mut().push(class, slot);
    }

    pub(crate) fn queues(&self) -> &RefCell<RunQueues<Slot>> {
        &self.queues
    }

    pub(crate) fn class(&self) -> Class {
        self.class.get()
    }

    pub(crate) fn set_class(&self, class: Class) {
        self.class.set(class);
    }

    pub(super) fn task_begins(&self) {
        self.live.set(self.live.get() + 1);
        self.spawned.set(self.spawned.get() + 1);
    }

    pub(super) fn task_ends(&self) {
        self.live.set(self.live.get() - 1);
    }

    pub(crate) fn live(&self) -> u64 {
        self.live.get()
    }

    /// What errands for the present tenancy are marked with.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    pub(crate) fn spawned(&self) -> u64 {
        self.spawned.get()
    }

    /// Slots, and bytes in them, that are reserved for ever.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        self.arena.reserved()
    }

    /// Ends the tasks that are left when their shard runs no more: those that the ends of others went
    /// on to spawn until the deadline. These cannot spawn any for this seat.
    fn end_all(&self) {
        self.wake_all();
        // Ends: nothing pushes while this drains but a future's end, and each has one.
        loop {
            let popped = self.queues.borrow_mut().pop();
            let Some((_, slot)) = popped else { return };
            slot.run(true);
        }
    }

    /// Queues every task that waits for something.
    pub(crate) fn wake_all(&self) {
        self.arena.for_each(Slot::wake_if_idle);
    }
}

/// A shard has this seat. Dropping it gives the seat up, on the same thread.
pub(crate) struct Tenancy {
    owner: Owner,
}

impl Tenancy {
    /// Takes a seat for a shard of this thread.
    pub(crate) fn begin(share: CompletionShare, notify: Notify) -> Tenancy {
        let (seat, epoch) = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            free.epoch += 1;
            (free.seats.pop(), free.epoch)
        };
        let seat = seat.unwrap_or_else(Seat::make);
        // SAFETY: the seat was free, or nobody has seen it yet: from now on it is this thread's.
        let owner = unsafe { Owner::new(seat) };
        let owned = owner.owned();
        debug_assert_eq!((owned.live.get(), owned.handles.get()), (0, 0));
        owned.queues.replace(RunQueues::new(share));
        owned.class.set(Class::Ordinary);
        owned.spawned.set(0);
        owned.epoch.set(epoch);
        owned.vacated.set(false);
        seat.inbox.open(epoch, notify);
        Tenancy { owner }
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let seat = self.owner.seat();
        // Nothing is left if the shard has shut down; if it never started, spawns may be.
        drop(seat.inbox.close());
        let owned = self.owner.owned();
        owned.end_all();
        debug_assert_eq!(owned.live.get(), 0, "whatever has begun has ended");
        owned.vacated.set(true);
        if owned.handles.get() == 0 {
            seat.give_back();
        }
    }
}
