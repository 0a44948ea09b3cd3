#![allow(unsafe_code)]
//! Bytes in one direction: what a stream keeps so that dropped futures lose nothing (P3).
//!
//! Receiving **consumes**: what the kernel has taken out of a socket's buffer exists only
//! in ours. So the receive in flight belongs to the stream and not to the future that asked
//! for it. Dropping that future leaves the receive running and its buffer with the stream;
//! the next read waits for the same receive, takes what fits, and leaves the rest for the
//! one after it. Dropping the stream cancels it.
//!
//! Sending goes one at a time. Dropping a send's future cancels the send; its turn travels
//! with the operation, so the next one starts after the kernel's last word on it.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::backend::Completion;
use crate::block::Block;
use crate::buf::{BufResult, IoBuf, IoBufMut};
use crate::current;
use crate::entry::Entry;
use crate::fd::{FdHold, SharedFd};
use crate::op::{Op, Operation};
use crate::turnstile::Turnstile;

/// The receiving direction of a stream.
#[derive(Default)]
pub struct Inflow {
    turnstile: Turnstile,
    kept: RefCell<Kept>,
}

/// What an abandoned read left behind.
#[derive(Default)]
enum Kept {
    #[default]
    Nothing,
    /// The receive is still running.
    InFlight(Op<KeptReceive>),
    /// It came, and so many of its bytes have been handed out.
    Bytes(Block<dyn Received>, usize),
}

impl Inflow {
    /// Nothing is kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// Receives into `buf` what an abandoned read left, or else with the operation that
    /// `make` makes of a hold on `fd` and the buffer.
    ///
    /// # Errors
    ///
    /// The kernel's; also those of an abandoned receive, once.
    ///
    /// Dropping this future loses no byte: the receive goes on and the next call gets what
    /// it brings. The buffer stays with the receive and does not come back.
    pub async fn receive<T, B>(
        &self,
        fd: &SharedFd,
        mut buf: B,
        make: impl FnOnce(FdHold, B) -> T,
    ) -> BufResult<usize, B>
    where
        T: Operation<Output = BufResult<usize, B>>,
        B: IoBufMut,
    {
        if buf.bytes_total() == 0 {
            return (Ok(0), buf);
        }
        let _turn = self.turnstile.turn().await;
        if let Some(result) = self.receive_kept(&mut buf).await {
            return (result, buf);
        }
        let hold = match fd.hold() {
            Ok(hold) => hold,
            Err(error) => return (Err(error), buf),
        };
        Receiving {
            inflow: self,
            op: Some(current::submit(make(hold, buf))),
        }
        .await
    }

    /// What an abandoned read left; `None` if there is nothing.
    async fn receive_kept<B: IoBufMut>(&self, buf: &mut B) -> Option<io::Result<usize>> {
        if matches!(*self.kept.borrow(), Kept::InFlight(_)) {
            // Polled where it lies, so that dropping this future leaves it there.
            let arrived = std::future::poll_fn(|cx| match &mut *self.kept.borrow_mut() {
                Kept::InFlight(op) => Pin::new(op).poll(cx),
                _ => unreachable!("only who has the turn changes what is kept"),
            })
            .await;
            let (kept, result) = match arrived {
                (Ok(0), _) => (Kept::Nothing, Some(Ok(buf.fill_from(&[])))),
                (Ok(_), bytes) => (Kept::Bytes(bytes, 0), None),
                (Err(error), _) => (Kept::Nothing, Some(Err(error))),
            };
            // The old one is dropped after the borrow: it holds a buffer of the user's type.
            let finished = self.kept.replace(kept);
            drop(finished);
            if result.is_some() {
                return result;
            }
        } else if matches!(*self.kept.borrow(), Kept::Bytes(..)) {
            // Nothing is waited for here, so it has to be paid for.
            std::future::poll_fn(current::spend_budget).await;
        }
        let mut kept = self.kept.borrow_mut();
        let Kept::Bytes(bytes, taken) = &mut *kept else {
            return None;
        };
        let count = buf.fill_from(&bytes.bytes()[*taken..]);
        *taken += count;
        if *taken == bytes.bytes().len() {
            let finished = std::mem::take(&mut *kept);
            drop(kept);
            drop(finished);
        }
        Some(Ok(count))
    }
}

/// A receive that somebody waits for. Dropped, it stays with its stream.
struct Receiving<'a, T, B>
where
    T: Operation<Output = BufResult<usize, B>>,
    B: IoBufMut,
{
    inflow: &'a Inflow,
    op: Option<Op<T>>,
}

impl<T, B> Future for Receiving<'_, T, B>
where
    T: Operation<Output = BufResult<usize, B>>,
    B: IoBufMut,
{
    type Output = BufResult<usize, B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let op = self.op.as_mut().expect("polled after it resolved");
        let polled = Pin::new(op).poll(cx);
        if polled.is_ready() {
            self.op = None;
        }
        polled
    }
}

impl<T, B> Drop for Receiving<'_, T, B>
where
    T: Operation<Output = BufResult<usize, B>>,
    B: IoBufMut,
{
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            let kept = op.map_operation(|operation| KeptReceive(erase(Unnamed(Some(operation)))));
            self.inflow.kept.replace(Kept::InFlight(kept));
        }
    }
}

/// Bytes that arrived in a buffer of some type.
trait Received {
    fn bytes(&self) -> &[u8];
}

impl<B: IoBuf> Received for B {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// A receive whose type nobody needs to know any more.
struct KeptReceive(Block<dyn ErasedReceive>);

trait ErasedReceive {
    fn entry(&mut self) -> Entry;
    fn complete(&mut self, completion: Completion) -> BufResult<usize, Block<dyn Received>>;
}

struct Unnamed<T>(Option<T>);

impl<T, B> ErasedReceive for Unnamed<T>
where
    T: Operation<Output = BufResult<usize, B>>,
    B: IoBufMut,
{
    fn entry(&mut self) -> Entry {
        self.0.as_mut().expect("not complete yet").entry()
    }

    fn complete(&mut self, completion: Completion) -> BufResult<usize, Block<dyn Received>> {
        let operation = self.0.take().expect("completes once");
        let (result, buf) = operation.complete(completion);
        // A fixed-size buffer has no length of its own: the count says what arrived.
        let count = *result.as_ref().unwrap_or(&0);
        let raw: *mut dyn Received = Block::new(buf.slice(..count)).into_raw();
        // SAFETY: the pointer comes from `into_raw` in the line above and is used once.
        (result, unsafe { Block::from_raw(raw) })
    }
}

fn erase<T: ErasedReceive + 'static>(receive: T) -> Block<dyn ErasedReceive> {
    let raw: *mut dyn ErasedReceive = Block::new(receive).into_raw();
    // SAFETY: the pointer comes from `into_raw` in the line above and is used once.
    unsafe { Block::from_raw(raw) }
}

// SAFETY: the operation inside keeps its pointers valid while it is alive, wherever it is
// moved to, and it lives in a block that lives as long as this.
unsafe impl Operation for KeptReceive {
    type Output = BufResult<usize, Block<dyn Received>>;

    fn entry(&mut self) -> Entry {
        self.0.entry()
    }

    fn complete(mut self, completion: Completion) -> Self::Output {
        self.0.complete(completion)
    }
}

/// An operation that carries a value with it, which ends when the operation does: a turn,
/// most of all. Its output has both.
pub struct Guarded<T, G> {
    operation: T,
    guard: G,
}

impl<T: Operation, G: 'static> Guarded<T, G> {
    /// `guard` goes where the operation goes.
    pub fn new(operation: T, guard: G) -> Self {
        Guarded { operation, guard }
    }
}

// SAFETY: the entry is the inner operation's, which is alive while this is.
unsafe impl<T: Operation, G: 'static> Operation for Guarded<T, G> {
    type Output = (T::Output, G);

    fn entry(&mut self) -> Entry {
        self.operation.entry()
    }

    fn complete(self, completion: Completion) -> Self::Output {
        (self.operation.complete(completion), self.guard)
    }
}
