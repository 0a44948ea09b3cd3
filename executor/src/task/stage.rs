#![allow(unsafe_code)]
//! What stands in a slot: a future and the place for its outcome, then the output.
//!
//! The payload of a slot is first a [`Stage`], the future with its sink, and when the task has
//! ended, if a [`Joining`] waits for it, the outcome. Both are too large for some slots: a future
//! or outcome over 512 bytes, or aligned to more than 16, is boxed. All user code that runs here
//! (poll, the drop of future and output, wakers) is contained, and runs when the slot's state is
//! what others may see.

use std::alloc::Layout;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::task::{Context, Poll, Waker};

use roundel_reactor::current::spend_budget;

use super::arena::{ALIGN_MAX, ChunkRef, class_of};
use super::remote::LinkRef;
use super::seat::{Owner, Seat};
use super::slot::{JOIN, LIVE, OUTPUT, Slot, Vtable, id_of, payload_offset};
use super::{contain, discard, log_panic};
use crate::current;
use crate::join::{Id, JoinError};
use crate::run_queue::Class;

/// The largest future that stands in its slot. Copying more costs more than the allocation it saves.
const INLINE_MAX: usize = 512;

/// How a task ended.
pub(crate) type Outcome<T> = Result<T, JoinError>;

/// Where a task's outcome goes.
pub(super) trait Sink<T> {
    /// Whether the outcome stays in the slot, for a [`Joining`].
    const KEEPS: bool;

    /// The task's number.
    fn id(&self, slot: Slot) -> Id;

    /// Takes the outcome of an ended task. Must end with the slot free, or kept for its handle; to be
    /// called last, since it runs user code.
    fn finish(self, slot: Slot, outcome: Outcome<T>);
}

/// A task that has not ended.
struct Stage<F, S> {
    future: F,
    sink: S,
}

/// Spawns a task: the future moves into a slot, which is queued.
pub(super) fn spawn<F, S>(owner: Owner, future: F, sink: S) -> Slot
where
    F: Future + 'static,
    S: Sink<F::Output> + 'static,
{
    if const { fits::<F>() } {
        place(owner, future, sink)
    } else {
        place(owner, Box::pin(future), sink)
    }
}

/// Whether a value may stand in a slot.
const fn fits<T>() -> bool {
    size_of::<T>() <= INLINE_MAX && align_of::<T>() <= ALIGN_MAX
}

fn place<F, S>(owner: Owner, future: F, sink: S) -> Slot
where
    F: Future + 'static,
    S: Sink<F::Output> + 'static,
{
    assert!(const { fits::<F>() }, "what does not fit is boxed");
    let slot = owner.take(Task::<F, S>::CLASS);
    let stage = Task::<F, S>::stage(slot);
    // SAFETY: the slot is free and of the class that `CLASS` computed for this type, at this offset.
    unsafe { stage.write(Stage { future, sink }) };
    let join = if S::KEEPS {
        owner.handle_made();
        JOIN
    } else {
        0
    };
    let owned = owner.owned();
    slot.begin(&Task::<F, S>::VTABLE, join);
    owned.task_begins();
    owned.push(Class::Ordinary, slot);
    slot
}

/// What is known of a task by its type.
struct Task<F, S>(PhantomData<(F, S)>);

impl<F, S> Task<F, S>
where
    F: Future + 'static,
    S: Sink<F::Output> + 'static,
{
    const CLASS: usize = {
        let stage = Layout::new::<Stage<F, S>>();
        let mut bytes = payload_offset(stage.align()) + stage.size();
        let mut align = stage.align();
        if S::KEEPS {
            let output = Stored::<F::Output>::LAYOUT;
            let end = payload_offset(output.align()) + output.size();
            bytes = if end > bytes { end } else { bytes };
            align = if output.align() > align {
                output.align()
            } else {
                align
            };
        }
        if fits::<F>() {
            // A payload aligned to 16 needs slots that are.
            class_of(bytes.next_multiple_of(align))
        } else {
            // Not used: `spawn` has boxed it.
            0
        }
    };

    const VTABLE: Vtable = Vtable {
        poll: Self::poll,
        cancel: Self::cancel,
    };

    fn stage(slot: Slot) -> NonNull<Stage<F, S>> {
        slot.payload(align_of::<Stage<F, S>>()).cast()
    }

    /// `Vtable::poll`.
    ///
    /// # Safety
    ///
    /// As stated there.
    unsafe fn poll(slot: Slot) -> bool {
        let stage = Self::stage(slot).as_ptr();
        let polled = slot.with_waker(|waker| {
            let mut cx = Context::from_waker(waker);
            catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the slot is `LIVE` with this type's vtable (contract), so a future is here;
                // calls on one slot do not nest (contract), so this is the only reference to it.
                // Nothing forms one to the whole stage.
                let future = unsafe { &mut (*stage).future };
                // SAFETY: the future is not moved from here until `end` drops it in place, and the
                // slot's memory is not used otherwise before.
                unsafe { Pin::new_unchecked(future) }.poll(&mut cx)
            }))
        });
        let outcome = match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => Ok(output),
            // SAFETY: the slot is still `LIVE`, so the sink is here; nobody else refers to it.
            Err(payload) => Err(JoinError::panic(unsafe { (*stage).sink.id(slot) }, payload)),
        };
        // SAFETY: the future is here (as above) and is not polled again: `end` makes the slot not `LIVE`.
        unsafe { Self::end(slot, outcome) };
        true
    }

    /// `Vtable::cancel`.
    ///
    /// # Safety
    ///
    /// As stated there.
    #[cold]
    unsafe fn cancel(slot: Slot) {
        let stage = Self::stage(slot).as_ptr();
        // SAFETY: the slot is `LIVE` with this type's vtable (contract), so the sink is here.
        let id = unsafe { (*stage).sink.id(slot) };
        // SAFETY: by the contract, as for `poll`.
        unsafe { Self::end(slot, Err(JoinError::cancelled(id))) };
    }

    /// Drops the future, then hands the outcome over: who joins sees nothing of it alive.
    ///
    /// # Safety
    ///
    /// The slot is `LIVE | RUNNING` with this type's vtable, and nobody refers to what is in it.
    #[inline]
    unsafe fn end(slot: Slot, outcome: Outcome<F::Output>) {
        let stage = Self::stage(slot).as_ptr();
        let dropped = contain(|| {
            // SAFETY: the future is here (contract) and is dropped this once: the slot does not stay
            // `LIVE`. It was pinned, and is dropped where it stood. What its drop does to this slot
            // by wakers and handles changes flags only, as the slot is `RUNNING`.
            unsafe { ptr::drop_in_place(&raw mut (*stage).future) };
        });
        // SAFETY: the sink is here (contract), and is moved out this once, as above.
        let sink = unsafe { ptr::read(&raw const (*stage).sink) };
        let outcome = match dropped {
            Ok(()) => outcome,
            // A cancelled task's destructor that panics is the task's panic.
            Err(payload) if outcome.as_ref().is_err_and(JoinError::is_cancelled) => {
                Err(JoinError::panic(sink.id(slot), payload))
            }
            Err(payload) => {
                log_panic("the drop of a task's future", payload);
                outcome
            }
        };
        if outcome.as_ref().is_err_and(JoinError::is_panic) {
            count_panic();
        }
        slot.owner().owned().task_ends();
        slot.set_flags(slot.flags() & JOIN);
        slot.link().next_generation();
        sink.finish(slot, outcome);
    }
}

#[cold]
fn count_panic() {
    let _ = current::with(|shard| shard.home().metrics.panic_caught());
}

/// Makes a slot free that holds nothing.
pub(super) fn free(slot: Slot) {
    debug_assert!(!slot.is(LIVE | OUTPUT));
    slot.set_flags(0);
    slot.owner().owned().arena.give_back(slot);
}

/// The sink of tasks that are joined on their shard: the outcome stays in the slot.
pub(super) struct Kept;

impl<T> Sink<T> for Kept {
    const KEEPS: bool = true;

    fn id(&self, slot: Slot) -> Id {
        slot.id()
    }

    #[inline]
    fn finish(self, slot: Slot, outcome: Outcome<T>) {
        if !slot.is(JOIN) {
            free(slot);
            discard(outcome);
            return;
        }
        // SAFETY: the task has ended, so the payload is unused, and the class has room for this.
        unsafe { Stored::write(slot, outcome) };
        slot.set_flags(JOIN | OUTPUT);
        if let Some(waker) = slot.joiner().take() {
            wake_joiner(waker);
        }
    }
}

pub(super) fn wake_joiner(waker: Waker) {
    if let Err(payload) = contain(|| waker.wake()) {
        log_panic("the waker of who joins a task", payload);
    }
}

/// An outcome in a slot.
struct Stored<T>(PhantomData<T>);

impl<T> Stored<T> {
    const BOXED: bool = !fits::<Outcome<T>>();

    const LAYOUT: Layout = if Self::BOXED {
        Layout::new::<Box<Outcome<T>>>()
    } else {
        Layout::new::<Outcome<T>>()
    };

    fn place<O>(slot: Slot) -> NonNull<O> {
        slot.payload(align_of::<O>()).cast()
    }

    /// # Safety
    ///
    /// The payload is unused, and large enough and aligned for `LAYOUT`.
    unsafe fn write(slot: Slot, outcome: Outcome<T>) {
        if Self::BOXED {
            // SAFETY: this is what `LAYOUT` is of, and the payload is unused (contract).
            unsafe { Self::place(slot).write(Box::new(outcome)) };
        } else {
            // SAFETY: as above.
            unsafe { Self::place(slot).write(outcome) };
        }
    }

    /// # Safety
    ///
    /// `write` of the same type was called for the slot, and this was not since.
    unsafe fn take(slot: Slot) -> Outcome<T> {
        if Self::BOXED {
            // SAFETY: `write` has left exactly this here (contract).
            *unsafe { Self::place::<Box<Outcome<T>>>(slot).read() }
        } else {
            // SAFETY: as above.
            unsafe { Self::place::<Outcome<T>>(slot).read() }
        }
    }
}

/// Which task is meant: a slot and a generation. It may be sent anywhere and kept for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(super) link: LinkRef,
    pub(super) generation: u32,
}

impl Target {
    pub(super) fn of(slot: Slot) -> Target {
        let link = slot.link();
        Target {
            link,
            generation: link.generation(),
        }
    }

    pub(super) fn seat(self) -> &'static Seat {
        ChunkRef::of(self.link).seat()
    }

    pub(crate) fn id(self) -> Id {
        id_of(self.link, self.generation)
    }

    /// Whether the task's future is gone. From any thread.
    pub(crate) fn is_finished(self) -> bool {
        self.link.generation() != self.generation
    }

    /// Aborts the task, exactly this one, if this thread runs its shard. `false`: it does not.
    pub(crate) fn abort_here(self) -> bool {
        match Slot::of(self.link) {
            Some(slot) => {
                // The owner compares, so between this and the abort no other task comes in.
                if !self.is_finished() {
                    slot.abort();
                }
                true
            }
            None => false,
        }
    }
}

/// The claim on the outcome of a task of this thread: what a join handle is.
///
/// Its drop detaches the task. It may outlive the shard: then the seat waits for it.
pub(crate) struct Joining<T> {
    /// Of the present task until the handle has resolved; only its address after.
    slot: Slot,
    ticket: Ticket,
    /// It may drop a `T`.
    output: PhantomData<T>,
}

/// The generation that is waited for, and whether the outcome was taken. One word, so that a handle
/// travels in two registers.
struct Ticket(u64);

impl Ticket {
    const RESOLVED: u64 = 1 << 32;

    fn generation(&self) -> u32 {
        self.0 as u32
    }

    fn is_resolved(&self) -> bool {
        self.0 & Self::RESOLVED != 0
    }

    fn resolve(&mut self) {
        self.0 |= Self::RESOLVED;
    }
}

impl<T> Joining<T> {
    /// Spawns a task whose outcome is waited for here.
    pub(super) fn spawn<F>(owner: Owner, future: F) -> Self
    where
        F: Future<Output = T> + 'static,
    {
        let slot = spawn(owner, future, Kept);
        Joining {
            slot,
            ticket: Ticket(u64::from(slot.link().generation())),
            output: PhantomData,
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            link: self.slot.link(),
            generation: self.ticket.generation(),
        }
    }

    /// What aborts of the task are marked with on their way; 0 when there is nothing to abort.
    pub(crate) fn epoch(&self) -> u64 {
        // After it has resolved this handle keeps the seat no more, so it is not to be touched.
        if self.ticket.is_resolved() {
            0
        } else {
            self.slot.owner().owned().epoch()
        }
    }

    /// As [`AbortHandle`](crate::AbortHandle) does, on the task's own thread.
    pub(crate) fn abort(&self) {
        if !self.target().is_finished() {
            self.slot.abort();
        }
    }

    /// Takes the outcome, or leaves the waker.
    ///
    /// # Panics
    ///
    /// If called after it gave the outcome.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        assert!(
            !self.ticket.is_resolved(),
            "a join handle was polled after it resolved"
        );
        if self.slot.is(LIVE) {
            self.wait(cx.waker());
            return Poll::Pending;
        }
        if spend_budget(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.take())
    }

    fn wait(&self, waker: &Waker) {
        let joiner = self.slot.joiner();
        let former = joiner.take();
        match former {
            Some(same) if same.will_wake(waker) => joiner.set(Some(same)),
            former => {
                // Both the clone and the drop are the user's code; the cell is whole between them.
                joiner.set(Some(waker.clone()));
                drop(former);
            }
        }
    }

    /// Takes the outcome of the ended task; the slot is free after that.
    fn take(&mut self) -> Outcome<T> {
        self.ticket.resolve();
        let slot = self.slot;
        debug_assert!(slot.is(OUTPUT), "a task that has ended leaves its outcome");
        // SAFETY: the slot is kept for this handle (`JOIN`) and its task, whose output is a `T`, has
        // ended, so `finish` has written; the ticket makes this the only time.
        let outcome = unsafe { Stored::<T>::take(slot) };
        let owner = slot.owner();
        slot.set_flags(0);
        free(slot);
        owner.handle_gone();
        outcome
    }
}

impl<T> Drop for Joining<T> {
    fn drop(&mut self) {
        if self.ticket.is_resolved() {
            return;
        }
        let slot = self.slot;
        if slot.is(LIVE) {
            slot.set_flags(slot.flags() & !JOIN);
            let waker = slot.joiner().take();
            slot.owner().handle_gone();
            if let Err(payload) = contain(|| drop(waker)) {
                log_panic("the drop of a waker", payload);
            }
            return;
        }
        discard(self.take());
    }
}

/// A join handle is only moved: what is pinned is in the slot.
impl<T> Unpin for Joining<T> {}
