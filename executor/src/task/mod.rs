//! Tasks: the cell that holds one, and what may happen to it.
//!
//! A task lives in a *slot*: 40 bytes of its own and its future. A slot belongs to one shard at a
//! time, which alone touches the task; it is never unmapped and never becomes anything but a slot
//! (`arena.rs`), so the bare address of it is a waker that owns nothing.
//!
//! | file | responsibility |
//! |---|---|
//! | `slot.rs` | the state of a task, its waker, how it is queued and run |
//! | `stage.rs` | the future in the slot, its outcome, and who waits for it on the shard |
//! | `send.rs`, `mailbox.rs` | tasks spawned from elsewhere · joined anywhere |
//! | `remote.rs` | how other threads wake a slot |
//! | `arena.rs` | where slots come from |
//! | `seat.rs` | what a shard leaves to a later one: slots, inbox |
//!
//! # The states
//!
//! ```text
//!           1             2            6           8
//!    FREE ────► QUEUED ─────► RUNNING ────► OUTPUT ────► FREE
//!      ▲          ▲  ▲          │ │ │
//!      │          │  └────3─────┘ │ └──── 7 ───────────► FREE
//!      │          │ 4             │ 5
//!      │          └──── IDLE ◄────┘
//! ```
//!
//! 1. `stage::spawn`: a future moves in.
//! 2. `Slot::run`: the shard's loop has taken it from the queue, and polls it.
//! 3. `Slot::run`: the poll is over, and somebody woke the task meanwhile (`WOKEN`).
//! 4. `Slot::wake`: by a waker on this thread, by the drain of what other threads woke
//!    (`remote.rs`), by an abort, or by the end of the shard.
//! 5. `Slot::run`: the poll is over, and nobody did.
//! 6. `Task::end`, with a handle (`JOIN`): the future was dropped, the outcome is in its place. From
//!    `Task::poll`, when it is ready or has panicked, or `Task::cancel`, when `Slot::run` finds it
//!    `ABORTED` or its shard closing.
//! 7. `Task::end`, without a handle: the outcome is dropped, or has gone to a `Shared`.
//! 8. `Joining::poll` takes the outcome, or `Joining::drop` drops it.
//!
//! A future ends by (6) and (7) only, and so only out of the queue: an abort and the end of the shard
//! mark the task and queue it. A task is in the queue once at most, and never when it has ended.
//! `QUEUED` and `RUNNING` imply `LIVE` (a future is here); IDLE is `LIVE` alone, FREE is no flag.
//!
//! # Who may touch what, and when
//!
//! | field | who | when |
//! |---|---|---|
//! | `Link::claimed`, `Link::next` | any thread | by the protocol of `remote.rs` |
//! | `Link::generation` | the owner writes, when a task ends; any thread reads | always |
//! | `Link::flags` | the owner | always |
//! | `Header::vtable` | the owner | written in (1), read in (2) |
//! | `Header::joiner` | the owner | while `JOIN` and `LIVE`; taken in (6) |
//! | payload | the owner | LIVE: the `Stage`, referred to in (2), (6), (7) alone; OUTPUT: the outcome, (6) to (8); FREE: the arena's link |
//! | `Chunk` (before the slots) | any thread reads | always; `used` the owner alone |
//!
//! The *owner* is the thread that has the seat: it has entered the shard, or ended it and still has
//! handles. That a waker is called there is told by a thread-local (`current::owns`); everywhere
//! else, on a thread between two `block_on`s too, a wake goes through the inbox.
//!
//! # Why a stale waker is harmless
//!
//! A waker may be used after its task has ended, and after its shard and runtime have. Then:
//!
//! - *What it touches exists*: `claimed` and `next` of a slot, the head of its chunk, the inbox of its
//!   seat. None of these is ever unmapped or becomes anything else; there is no count to get wrong.
//! - *What it does is allowed*: it wakes whoever lives in the slot now, perhaps a task of another
//!   runtime, or nobody. A future must stand a poll that nobody asked for, and ours do.
//! - *It keeps nobody's wake back*: a link that it has claimed and not pushed yet holds the wakes of
//!   that slot only until it pushes (`remote.rs`), also across the change of the shard.
//! - *It cannot abort*: an abort names the slot and the generation, and the owner compares
//!   ([`abort`]). A slot whose generations are used up (2^32 tasks) is not used again.
//!
//! # Panics
//!
//! Whatever is the user's and panics here is caught: a poll and the drop of a cancelled future are the
//! task's outcome; the drop of a finished future, of an outcome that nobody takes, of a waker, and a
//! waker's call are said on standard error. State is changed before, never after, such a call.
//!
//! # Memory
//!
//! A task costs 40 bytes and the larger of its future and its outcome (two words or more), rounded up
//! to 8 bytes (to 16 from 128 on, to 32 from 256). So a future of 40 bytes takes 80. Over 512 bytes,
//! or aligned to more than 16, the future is boxed: 56 bytes and a heap block. The memory of ended
//! tasks is kept for later ones, of this shard and of those that inherit its seat: it stays at the
//! high-water mark, for each size, for the life of the process. To give a chunk back one would have to
//! know that no waker of any of its slots is left, which is what counting wakers would cost.
//! [`Snapshot`](crate::Snapshot) shows what is live and what is reserved.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::join::{JoinError, panic_message};

mod arena;
mod mailbox;
pub(crate) mod remote;
pub(crate) mod seat;
mod send;
mod slot;
mod stage;

pub(crate) use send::{RemoteTask, Shared, Travel, spawn_remote};
pub(crate) use slot::Slot;
pub(crate) use stage::{Joining, Target};

use remote::LinkRef;
use seat::Owner;

/// What a shard is to do for other threads.
pub(crate) enum Errand {
    Spawn(Box<dyn Travel>),
    Abort(Target),
}

impl Errand {
    /// Does it, on the shard's thread.
    pub(crate) fn run(self, owner: Owner) {
        match self {
            Errand::Spawn(journey) => journey.arrive(owner),
            // An errand is run by its own shard only.
            Errand::Abort(target) => {
                let _ = target.abort_here();
            }
        }
    }
}

/// Spawns a task that stays on this thread.
pub(crate) fn spawn_local<F>(owner: Owner, future: F) -> Joining<F::Output>
where
    F: Future + 'static,
{
    Joining::spawn(owner, future)
}

/// Aborts a task from any thread: exactly this one, if it has not ended. `epoch` is its shard's.
pub(crate) fn abort(target: Target, epoch: u64) {
    if target.is_finished() || target.abort_here() {
        return;
    }
    // Refused if the shard has ended, and then the task has, too.
    let inbox = target.seat().inbox();
    let _ = inbox.push(epoch, Errand::Abort(target));
}

/// Wakes a task that another thread had woken. On the shard's thread.
pub(crate) fn wake_drained(link: LinkRef) {
    if let Some(slot) = Slot::of(link) {
        slot.wake_now();
    }
}

/// Drops an outcome that nobody takes. A panic in it is said aloud; a panic in its drop
/// reaches nobody either (H44).
fn discard<T>(outcome: Result<T, JoinError>) {
    if let Err(error) = &outcome
        && error.is_panic()
    {
        say(format_args!("nobody joins a task that panicked: {error}"));
    }
    if let Err(payload) = contain(|| drop(outcome)) {
        log_panic("the drop of an output that nobody took", payload);
    }
}

/// Runs foreign code whose panic must not pass.
pub(crate) fn contain<R>(f: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Says on standard error that something panicked which nobody joins.
#[cold]
pub(crate) fn log_panic(what: &str, payload: Box<dyn Any + Send>) {
    let message = panic_message(&*payload);
    say(format_args!("{what} panicked: {message}"));
    // A payload may panic in its drop: that second one is leaked.
    if let Err(second) = contain(|| drop(payload)) {
        std::mem::forget(second);
    }
}

/// Says something on standard error. That nobody listens there any more (a pipe whose
/// reader has gone) must not bring a shard down, as the panic of `eprintln!` would.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "roundel: {text}");
}
