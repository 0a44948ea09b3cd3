//! One at a time, first come first served: who may use a stream's direction now.
//!
//! A [`Turn`] is a value of its own. It can travel inside an operation to the kernel, so
//! that the turn ends only when the operation does, also if its future was dropped: the
//! next sender waits for the last completion of an abandoned send, and bytes never
//! overtake.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::block::Shared;
use crate::waiters::{Key, Waiters};

/// Lets one through at a time.
pub struct Turnstile(Shared<State>);

#[derive(Default)]
struct State {
    /// A turn is out, or on its way to a waiter that was woken for it.
    taken: Cell<bool>,
    waiters: Waiters,
}

/// The right to go on until dropped.
pub struct Turn(Shared<State>);

impl Turnstile {
    /// Nobody is in.
    pub fn new() -> Self {
        Turnstile(Shared::new(State::default()))
    }

    /// Waits for a turn.
    ///
    /// Dropping this future gives the place in the queue up; a turn that was on its way
    /// goes to the next.
    pub fn turn(&self) -> Pass<'_> {
        Pass {
            turnstile: self,
            key: None,
        }
    }

    /// Whether a turn would have to be waited for.
    pub fn is_taken(&self) -> bool {
        self.0.taken.get()
    }
}

impl Default for Turnstile {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The turn goes straight to the next: who comes now does not get between.
        if !self.0.waiters.wake_one() {
            self.0.taken.set(false);
        }
    }
}

/// The future of [`Turnstile::turn`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Pass<'a> {
    turnstile: &'a Turnstile,
    key: Option<Key>,
}

impl Future for Pass<'_> {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let state = &self.turnstile.0;
        if self.key.is_none() && !state.taken.get() {
            state.taken.set(true);
            return Poll::Ready(Turn(state.clone()));
        }
        let woken = state.waiters.poll_wait(&mut self.key, cx);
        woken.map(|_| Turn(self.turnstile.0.clone()))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.turnstile.0.waiters.remove(&mut self.key) {
            self.turnstile.0.taken.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(pass: &mut Pass<'_>) -> Poll<Turn> {
        Pin::new(pass).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Turns go in the order of asking, and nobody gets between.
    #[test]
    fn turns_go_in_order() {
        let turnstile = Turnstile::new();
        let Poll::Ready(first) = poll(&mut turnstile.turn()) else {
            panic!("nobody was in")
        };
        let (mut second, mut third) = (turnstile.turn(), turnstile.turn());
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
        drop(first);
        assert!(
            poll(&mut turnstile.turn()).is_pending(),
            "it was promised to the second"
        );
        assert!(poll(&mut third).is_pending());
        let Poll::Ready(turn) = poll(&mut second) else {
            panic!("it is the second's turn")
        };
        drop(turn);
        assert!(poll(&mut third).is_ready());
        assert!(!turnstile.is_taken());
    }

    /// A turn on its way to a future that is dropped goes to the next, or is free again.
    #[test]
    fn a_dropped_waiter_loses_no_turn() {
        let turnstile = Turnstile::new();
        let Poll::Ready(first) = poll(&mut turnstile.turn()) else {
            panic!("nobody was in")
        };
        let (mut second, mut third) = (turnstile.turn(), turnstile.turn());
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
        drop(first);
        drop(second);
        let Poll::Ready(turn) = poll(&mut third) else {
            panic!("the turn was passed on")
        };
        let mut fourth = turnstile.turn();
        assert!(poll(&mut fourth).is_pending());
        drop(turn);
        drop(fourth);
        assert!(!turnstile.is_taken());
    }
}
