//! Channels, signals, permits and cancellation between tasks of one shard.
//!
//! Names and meanings are those of `tokio::sync` ([`CancellationToken`]: of `tokio_util::sync`), but
//! everything here stays on one thread: no atomics, no locks, and nothing is `Send`. The types need
//! no running shard, only something that polls them.
//!
//! ```compile_fail
//! fn send<T: Send>(value: T) {}
//! send(roundel_executor::sync::Notify::new());
//! ```
//!
//! **Between shards** use any channel that depends on no runtime, for instance `async-channel` or
//! `futures::channel`: a roundel waker may be called from every thread.
//!
//! # Cancel safety
//!
//! What it means to drop one of these futures before it is ready, as `select!` and
//! [`timeout`](crate::time::timeout) do:
//!
//! | future | what dropping it does |
//! |---|---|
//! | [`mpsc::Receiver::recv`] | Nothing: no message is lost. |
//! | [`mpsc::Sender::send`] | Drops its own message, which was not sent, and loses the place in line. |
//! | [`mpsc::Sender::reserve`] | Loses the place in line. Capacity that was already granted goes to the next sender. |
//! | [`mpsc::Sender::closed`], [`oneshot::Sender::closed`] | Nothing. |
//! | [`oneshot::Receiver`] | Closes the channel, as the future is the receiver itself. Wait on `&mut receiver` to keep it. |
//! | [`notify::Notified`] | Loses the place in line. A notification by `notify_one` that it had been given goes to the next in line, or is kept. |
//! | [`Semaphore::acquire`] and its like | Loses the place in line. Permits that were already given go to the next in line. |
//! | [`CancellationToken::cancelled`] | Nothing. |
//! | [`CancellationToken::run_until_cancelled`] | Drops the future that it runs. |
//!
//! To send by `select!` without losing the message, `reserve` first and then send through the
//! [`Permit`](mpsc::Permit), which is a plain call.
//!
//! Each of these futures spends the task's budget before it is ready, so a task that always finds
//! its channel ready still lets the others of its shard run.

mod cancellation;
pub mod mpsc;
pub mod notify;
pub mod oneshot;
mod semaphore;

#[cfg(test)]
mod testing;
mod waker_cell;

pub use cancellation::{
    CancellationToken, DropGuard, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};
pub use notify::Notify;
pub use semaphore::{
    AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError,
};
