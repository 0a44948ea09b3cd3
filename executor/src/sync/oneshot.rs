//! A channel for one message.
//!
//! The [`Receiver`] is the future of the message. Each half learns when the other is gone.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use roundel_reactor::current::spend_budget;

use super::waker_cell::WakerCell;

/// A channel for one message.
///
/// # Examples
///
/// ```
/// use futures::executor::block_on;
/// use futures::join;
/// use roundel_executor::sync::oneshot;
///
/// let (sender, receiver) = oneshot::channel();
/// let (answer, ()) = block_on(async {
///     join!(receiver, async { sender.send(42).expect("the receiver lives") })
/// });
/// assert_eq!(answer, Ok(42));
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Rc::new(Channel {
        message: Cell::new(None),
        sender_gone: Cell::new(false),
        closed: Cell::new(false),
        receiver: WakerCell::default(),
        sender: WakerCell::default(),
    });
    (Sender(channel.clone()), Receiver(Some(channel)))
}

/// Sends the message; made by [`channel`]. Dropping it unused tells the receiver that none will come.
pub struct Sender<T>(Rc<Channel<T>>);

impl<T> Sender<T> {
    /// Sends the message, without waiting.
    ///
    /// # Errors
    ///
    /// The message, if the receiver is closed or dropped.
    pub fn send(self, message: T) -> Result<(), T> {
        if self.is_closed() {
            return Err(message);
        }
        self.0.message.set(Some(message));
        // Dropping `self` wakes the receiver.
        Ok(())
    }

    /// Waits until the receiver is closed or dropped: nobody wants the message any more.
    ///
    /// # Cancellation
    ///
    /// Dropping this future does nothing.
    pub async fn closed(&mut self) {
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Asks whether the receiver is closed or dropped. If not, the task is woken when it is; of
    /// several tasks the one that asked last.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return spend_budget(cx);
        }
        self.0.sender.register(cx);
        Poll::Pending
    }

    /// Whether the receiver is closed or dropped.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.sender_gone.set(true);
        self.0.sender.clear();
        self.0.receiver.wake();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// The future of the message; made by [`channel`].
///
/// # Errors
///
/// [`RecvError`](error::RecvError) if the sender was dropped without sending.
///
/// # Panics
///
/// If it is polled again after it was ready.
///
/// # Cancellation
///
/// Dropping it closes the channel. Wait on `&mut receiver` to keep it.
#[must_use = "futures do nothing unless they are polled"]
pub struct Receiver<T>(
    /// `None` once the message, or that there is none, was told.
    Option<Rc<Channel<T>>>,
);

impl<T> Receiver<T> {
    /// Takes the message if it is there now.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`](error::TryRecvError): it is not there yet, or will not come (any more).
    pub fn try_recv(&mut self) -> Result<T, error::TryRecvError> {
        let channel = self.0.as_ref().ok_or(error::TryRecvError::Closed)?;
        match channel.message.take() {
            Some(message) => {
                self.finish();
                Ok(message)
            }
            None if channel.is_finished() => {
                self.finish();
                Err(error::TryRecvError::Closed)
            }
            None => Err(error::TryRecvError::Empty),
        }
    }

    /// Refuses a message that was not sent yet. One that was can still be received.
    pub fn close(&mut self) {
        if let Some(channel) = &self.0 {
            channel.close();
        }
    }

    /// Lets go of the channel; to the sender it is closed.
    fn finish(&mut self) {
        if let Some(channel) = self.0.take() {
            channel.close();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let channel = self.0.as_ref();
        let channel = channel.expect("a oneshot receiver is not polled after it was ready");
        if !channel.is_finished() {
            channel.receiver.register(cx);
            return Poll::Pending;
        }
        ready!(spend_budget(cx));
        let message = channel.message.take();
        self.finish();
        Poll::Ready(message.ok_or(error::RecvError(())))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let Some(channel) = self.0.take() else { return };
        channel.close();
        channel.receiver.clear();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// What can go wrong at a channel for one message.
pub mod error {
    use super::{Error, fmt};

    /// The sender was dropped without sending.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RecvError(pub(super) ());

    impl fmt::Display for RecvError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the channel is closed")
        }
    }

    impl Error for RecvError {}

    /// Why [`try_recv`](super::Receiver::try_recv) received nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TryRecvError {
        /// The message was not sent yet.
        Empty,
        /// It will not come, or was received already.
        Closed,
    }

    impl fmt::Display for TryRecvError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(match self {
                TryRecvError::Empty => "the channel is empty",
                TryRecvError::Closed => "the channel is closed",
            })
        }
    }

    impl Error for TryRecvError {}
}

struct Channel<T> {
    message: Cell<Option<T>>,
    /// The sender was dropped, after sending or without.
    sender_gone: Cell<bool>,
    /// The receiver takes nothing that is not there yet.
    closed: Cell<bool>,
    receiver: WakerCell,
    sender: WakerCell,
}

impl<T> Channel<T> {
    /// Whether the message is there or will not come.
    fn is_finished(&self) -> bool {
        self.sender_gone.get() || self.closed.get()
    }

    fn close(&self) {
        self.closed.set(true);
        self.sender.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tester;
    use super::error::{RecvError, TryRecvError};
    use super::*;

    /// Who is gone is not woken for the other half, and its task is let go.
    #[test]
    fn who_is_gone_is_let_go() {
        let (mut sender, mut receiver) = channel();
        let (mut sending, mut receiving) = (Tester::new(), Tester::new());
        assert!(sending.with(|cx| sender.poll_closed(cx)).is_pending());
        assert_eq!(sender.send(1), Ok(()));
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!(sending.wakes(), 0);
        let (sender, mut receiver) = channel::<()>();
        assert!(receiving.poll(&mut receiver).is_pending());
        drop(receiver);
        drop(sender);
        assert_eq!(receiving.wakes(), 0);
    }

    /// The receiver waits, is woken by the message at its last waker, and gets it.
    #[test]
    fn sends() {
        let (sender, mut receiver) = channel();
        let (mut old, mut new) = (Tester::new(), Tester::new());
        assert!(old.poll(&mut receiver).is_pending());
        assert!(new.poll(&mut receiver).is_pending());
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(sender.send(1), Ok(()));
        assert_eq!((old.wakes(), new.wakes()), (0, 1));
        assert_eq!(new.poll(&mut receiver), Poll::Ready(Ok(1)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    }

    /// A sender that goes without sending is told to the receiver that waits.
    #[test]
    fn dropped_sender() {
        let (sender, mut receiver) = channel::<()>();
        let mut tester = Tester::new();
        assert!(tester.poll(&mut receiver).is_pending());
        drop(sender);
        assert_eq!(tester.wakes(), 1);
        assert_eq!(tester.poll(&mut receiver), Poll::Ready(Err(RecvError(()))));
        let (sender, mut receiver) = channel::<()>();
        drop(sender);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    }

    /// A receiver that goes is told to the sender that waits, gives the message back that was not
    /// sent, and drops the one that was.
    #[test]
    fn dropped_receiver() {
        let (mut sender, receiver) = channel();
        let mut tester = Tester::new();
        assert!(tester.poll(&mut Box::pin(sender.closed())).is_pending());
        assert!(!sender.is_closed());
        drop(receiver);
        assert_eq!(tester.wakes(), 1);
        assert!(tester.poll(&mut Box::pin(sender.closed())).is_ready());
        assert_eq!(sender.send(5), Err(5));
        let (sender, receiver) = channel();
        let message = Rc::new(());
        assert!(sender.send(message.clone()).is_ok());
        drop(receiver);
        assert_eq!(Rc::strong_count(&message), 1);
    }

    /// A closed receiver refuses a message, but gets the one that was sent before.
    #[test]
    fn close() {
        let (sender, mut receiver) = channel();
        receiver.close();
        assert_eq!(sender.send(1), Err(1));
        assert_eq!(
            Tester::new().poll(&mut receiver),
            Poll::Ready(Err(RecvError(())))
        );
        let (sender, mut receiver) = channel();
        assert_eq!(sender.send(2), Ok(()));
        receiver.close();
        assert_eq!(receiver.try_recv(), Ok(2));
        let (sender, mut receiver) = channel::<i32>();
        receiver.close();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
        drop(sender);
    }

    /// A task that has used its share up does not receive yet, and loses nothing.
    #[test]
    fn budget() {
        let (sender, mut receiver) = channel();
        assert_eq!(sender.send(1), Ok(()));
        let mut tester = Tester::new();
        tester.without_budget(|tester| assert!(tester.poll(&mut receiver).is_pending()));
        assert_eq!(tester.wakes(), 1);
        assert_eq!(tester.poll(&mut receiver), Poll::Ready(Ok(1)));
    }
}
