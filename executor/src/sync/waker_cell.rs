//! The waker of the one task that waits for something.

use std::cell::Cell;
use std::task::{Context, Waker};

/// Holds the waker of the last poll.
#[derive(Default)]
pub(super) struct WakerCell(Cell<Option<Waker>>);

impl WakerCell {
    /// Makes the task of `cx` the one that is woken.
    pub(super) fn register(&self, cx: &Context<'_>) {
        let former = self.0.take();
        match former {
            Some(same) if same.will_wake(cx.waker()) => self.0.set(Some(same)),
            former => {
                self.0.set(Some(cx.waker().clone()));
                drop(former);
            }
        }
    }

    /// Lets go of a task that will not wait any more.
    pub(super) fn clear(&self) {
        drop(self.0.take());
    }

    /// Wakes the task that waits, if there is one.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}
