//! One shard's rings: operations in, completions out.
//!
//! This crate knows nothing of tasks. It submits [`Operation`]s to io_uring, keeps what the
//! kernel may touch until the kernel is finished with it, and wakes the waker of whoever
//! waits. An executor calls [`Reactor::enter`] when it has nothing better to do and
//! [`Reactor::reap`] when there is something to take; a loop of fifteen lines is enough:
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//!
//! use roundel_reactor::{Reactor, RingConfig, Wait, current, ops};
//!
//! fn block_on<F: Future>(reactor: &std::rc::Rc<Reactor>, future: F) -> F::Output {
//!     let _entered = current::enter(reactor.clone());
//!     let mut future = pin!(future);
//!     let mut cx = Context::from_waker(Waker::noop());
//!     loop {
//!         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
//!             return output;
//!         }
//!         reactor.enter(Wait::Forever).expect("the ring works");
//!         reactor.reap();
//!     }
//! }
//!
//! let reactor = Reactor::new(&RingConfig::default())?;
//! block_on(&reactor, async { current::submit(ops::Nop).await })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Most programs use the crate `roundel`, which has typed files and sockets on top of this.

mod address;
mod backend;
mod block;
mod buf;
mod counters;
pub mod current;
mod entry;
mod fd;
mod flow;
mod lifecycle;
mod limits;
mod multishot;
mod notify;
mod op;
pub mod ops;
mod reactor;
#[cfg(any(test, feature = "script"))]
mod request;
mod ring;
#[cfg(any(test, feature = "script"))]
pub mod script;
mod slice;
mod turnstile;
pub mod waiters;

pub use backend::{BATCH, Backend, Completion, Crossings, Register, Wait};
pub use block::Shared;
pub use buf::{BufResult, IoBuf, IoBufMut};
pub use counters::{Counters, CountersSnapshot};
pub use entry::Entry;
pub use fd::{FdHold, SharedFd};
pub use flow::{Guarded, Inflow};
pub use multishot::{Multishot, MultishotOperation};
pub use notify::Notifier;
pub use op::{Op, Operation};
pub use reactor::{Abandonment, Reactor};
#[cfg(any(test, feature = "script"))]
pub use request::{Buffer, Request};
pub use ring::{Features, RingConfig, RingMode};
pub use slice::Slice;
pub use turnstile::{Pass, Turn, Turnstile};
