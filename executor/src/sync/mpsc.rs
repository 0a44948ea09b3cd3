//! A channel of many senders and one receiver.
//!
//! [`channel`] holds a bounded number of messages, and senders wait for room in the order in which
//! they came; [`unbounded_channel`] never makes anybody wait, so its senders can outrun the receiver
//! without limit.
//!
//! **How it works.** Room is counted in permits: `free` ones, and those that belong to a message in
//! the queue, to a [`Permit`], or to a waiting sender that was woken. A message that is received
//! hands its permit straight to the sender that has waited longest, so that nobody who comes later
//! gets between. A sender that is dropped after that hands it on. An unbounded channel has more
//! permits than memory can hold messages, and nobody ever waits.
//!
//! The channel ends for the receiver when it is empty and nothing can come any more: the last sender
//! is gone, or the receiver closed it and every permit that was out has been used or returned.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use roundel_reactor::current::spend_budget;
use roundel_reactor::waiters::{Key, Waiters, Wake};

use super::waker_cell::WakerCell;

/// An empty queue with room for more messages than this gives its memory back.
const KEPT: usize = 1_024;

/// A channel that holds up to `capacity` messages.
///
/// # Panics
///
/// If `capacity` is 0.
///
/// # Examples
///
/// ```
/// use futures::executor::block_on;
/// use futures::join;
/// use roundel_executor::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::channel(2);
/// let produce = async move {
///     for number in 0..5 {
///         sender.send(number).await.expect("the receiver lives");
///     }
/// };
/// let consume = async {
///     let mut sum = 0;
///     while let Some(number) = receiver.recv().await {
///         sum += number;
///     }
///     sum
/// };
/// assert_eq!(block_on(async { join!(produce, consume) }).1, 10);
/// ```
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel needs room for one message or more");
    let (sender, receiver) = halves(capacity);
    (Sender(sender), Receiver(receiver))
}

/// A channel without a bound: sending never waits, and memory is the limit.
///
/// # Examples
///
/// ```
/// use futures::executor::block_on;
/// use roundel_executor::sync::mpsc;
///
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// sender.send("hello")?;
/// drop(sender);
/// assert_eq!(block_on(receiver.recv()), Some("hello"));
/// assert_eq!(block_on(receiver.recv()), None);
/// # Ok::<(), mpsc::error::SendError<&str>>(())
/// ```
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let (sender, receiver) = halves(usize::MAX);
    (UnboundedSender(sender), UnboundedReceiver(receiver))
}

/// Sends into a bounded channel; made by [`channel`]. Clones send into the same one.
pub struct Sender<T>(SendHalf<T>);

impl<T> Sender<T> {
    /// Sends a message, as soon as there is room.
    ///
    /// # Errors
    ///
    /// [`SendError`](error::SendError) with the message if the channel is closed.
    ///
    /// # Cancellation
    ///
    /// Dropping this future drops the message, which was not sent, and the place in line. To keep
    /// the message use [`reserve`](Sender::reserve).
    pub async fn send(&self, message: T) -> Result<(), error::SendError<T>> {
        match self.reserve().await {
            Ok(permit) => {
                permit.send(message);
                Ok(())
            }
            Err(error::SendError(())) => Err(error::SendError(message)),
        }
    }

    /// Sends a message if there is room now.
    ///
    /// # Errors
    ///
    /// [`TrySendError`](error::TrySendError) with the message if the channel is full or closed.
    pub fn try_send(&self, message: T) -> Result<(), error::TrySendError<T>> {
        match self.try_reserve() {
            Ok(permit) => {
                permit.send(message);
                Ok(())
            }
            Err(error::TrySendError::Full(())) => Err(error::TrySendError::Full(message)),
            Err(error::TrySendError::Closed(())) => Err(error::TrySendError::Closed(message)),
        }
    }

    /// Waits for room for one message, and keeps it until the [`Permit`] is used or dropped.
    ///
    /// # Errors
    ///
    /// [`SendError`](error::SendError) if the channel is closed.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses the place in line. Room that it had already been given goes to the
    /// next sender.
    pub async fn reserve(&self) -> Result<Permit<'_, T>, error::SendError<()>> {
        let channel = &*self.0.0;
        Acquire { channel, key: None }.await?;
        Ok(Permit { channel })
    }

    /// Takes room for one message if there is some now.
    ///
    /// # Errors
    ///
    /// [`TrySendError`](error::TrySendError) if the channel is full or closed.
    pub fn try_reserve(&self) -> Result<Permit<'_, T>, error::TrySendError<()>> {
        let channel = &*self.0.0;
        if channel.is_closed() {
            return Err(error::TrySendError::Closed(()));
        }
        if !channel.take_free() {
            return Err(error::TrySendError::Full(()));
        }
        Ok(Permit { channel })
    }

    /// Waits until the receiver is closed or dropped.
    ///
    /// # Cancellation
    ///
    /// Dropping this future does nothing.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the receiver is closed or dropped.
    pub fn is_closed(&self) -> bool {
        self.0.0.is_closed()
    }

    /// How many messages could be sent now without waiting.
    pub fn capacity(&self) -> usize {
        self.0.0.free.get()
    }

    /// How many messages the channel holds at most.
    pub fn max_capacity(&self) -> usize {
        self.0.0.capacity
    }

    /// Whether both send into the same channel.
    pub fn same_channel(&self, other: &Sender<T>) -> bool {
        Rc::ptr_eq(&self.0.0, &other.0.0)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.debug("Sender", f)
    }
}

/// Room for one message; made by [`Sender::reserve`]. Dropped unused, the room is free again.
pub struct Permit<'a, T> {
    channel: &'a Channel<T>,
}

impl<T> Permit<'_, T> {
    /// Sends the message. It arrives even if the receiver was closed meanwhile; if the receiver was
    /// dropped, so is the message.
    pub fn send(self, message: T) {
        let channel = self.channel;
        mem::forget(self);
        channel.push(message);
    }
}

impl<T> Drop for Permit<'_, T> {
    fn drop(&mut self) {
        self.channel.give_back();
    }
}

impl<T> fmt::Debug for Permit<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.channel.debug("Permit", f)
    }
}

/// Receives from a bounded channel; made by [`channel`]. Dropping it closes the channel and drops
/// the messages that were not received.
pub struct Receiver<T>(ReceiveHalf<T>);

impl<T> Receiver<T> {
    /// Waits for the next message. `None`: there are no more, and never will be.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses no message.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Asks for the next message. If there is none yet, the task is woken when one comes; of several
    /// tasks the one that asked last.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.0.poll_recv(cx)
    }

    /// Takes the next message if there is one now.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`](error::TryRecvError): there is none now, or never again.
    pub fn try_recv(&mut self) -> Result<T, error::TryRecvError> {
        self.0.0.try_recv()
    }

    /// Lets no more messages in. Those that are there, and those for which a [`Permit`] is out, can
    /// still be received.
    pub fn close(&mut self) {
        self.0.0.close(End::Closed);
    }

    /// Whether the channel is closed, or all senders are gone.
    pub fn is_closed(&self) -> bool {
        self.0.0.is_closed() || self.0.0.senders.get() == 0
    }

    /// Whether no message is there now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages are there now.
    pub fn len(&self) -> usize {
        self.0.0.messages.borrow().len()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.debug("Receiver", f)
    }
}

/// Sends into an unbounded channel; made by [`unbounded_channel`]. Clones send into the same one.
pub struct UnboundedSender<T>(SendHalf<T>);

impl<T> UnboundedSender<T> {
    /// Sends a message, without waiting.
    ///
    /// # Errors
    ///
    /// [`SendError`](error::SendError) with the message if the channel is closed.
    pub fn send(&self, message: T) -> Result<(), error::SendError<T>> {
        let channel = &self.0.0;
        if channel.is_closed() || !channel.take_free() {
            return Err(error::SendError(message));
        }
        channel.push(message);
        Ok(())
    }

    /// Waits until the receiver is closed or dropped.
    ///
    /// # Cancellation
    ///
    /// Dropping this future does nothing.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Whether the receiver is closed or dropped.
    pub fn is_closed(&self) -> bool {
        self.0.0.is_closed()
    }

    /// Whether both send into the same channel.
    pub fn same_channel(&self, other: &UnboundedSender<T>) -> bool {
        Rc::ptr_eq(&self.0.0, &other.0.0)
    }
}

impl<T> Clone for UnboundedSender<T> {
    fn clone(&self) -> Self {
        UnboundedSender(self.0.clone())
    }
}

impl<T> fmt::Debug for UnboundedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.debug("UnboundedSender", f)
    }
}

/// Receives from an unbounded channel; made by [`unbounded_channel`]. Dropping it closes the channel
/// and drops the messages that were not received.
pub struct UnboundedReceiver<T>(ReceiveHalf<T>);

impl<T> UnboundedReceiver<T> {
    /// Waits for the next message. `None`: there are no more, and never will be.
    ///
    /// # Cancellation
    ///
    /// Dropping this future loses no message.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Asks for the next message. If there is none yet, the task is woken when one comes; of several
    /// tasks the one that asked last.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.0.poll_recv(cx)
    }

    /// Takes the next message if there is one now.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`](error::TryRecvError): there is none now, or never again.
    pub fn try_recv(&mut self) -> Result<T, error::TryRecvError> {
        self.0.0.try_recv()
    }

    /// Lets no more messages in. Those that are there can still be received.
    pub fn close(&mut self) {
        self.0.0.close(End::Closed);
    }

    /// Whether the channel is closed, or all senders are gone.
    pub fn is_closed(&self) -> bool {
        self.0.0.is_closed() || self.0.0.senders.get() == 0
    }

    /// Whether no message is there now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages are there now.
    pub fn len(&self) -> usize {
        self.0.0.messages.borrow().len()
    }
}

impl<T> fmt::Debug for UnboundedReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.debug("UnboundedReceiver", f)
    }
}

/// What can go wrong at a channel.
pub mod error {
    use super::{Error, fmt};

    /// The channel is closed; here is the message.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct SendError<T>(pub T);

    impl<T> fmt::Debug for SendError<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("SendError").finish_non_exhaustive()
        }
    }

    impl<T> fmt::Display for SendError<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the channel is closed")
        }
    }

    impl<T> Error for SendError<T> {}

    /// Why [`try_send`](super::Sender::try_send) did not send; here is the message.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum TrySendError<T> {
        /// There is no room now.
        Full(T),
        /// The channel is closed.
        Closed(T),
    }

    impl<T> TrySendError<T> {
        /// The message.
        pub fn into_inner(self) -> T {
            match self {
                TrySendError::Full(message) | TrySendError::Closed(message) => message,
            }
        }
    }

    impl<T> fmt::Debug for TrySendError<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(match self {
                TrySendError::Full(_) => "Full(..)",
                TrySendError::Closed(_) => "Closed(..)",
            })
        }
    }

    impl<T> fmt::Display for TrySendError<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(match self {
                TrySendError::Full(_) => "the channel is full",
                TrySendError::Closed(_) => "the channel is closed",
            })
        }
    }

    impl<T> Error for TrySendError<T> {}

    /// Why [`try_recv`](super::Receiver::try_recv) received nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TryRecvError {
        /// There is no message now.
        Empty,
        /// There is no message, and never will be.
        Disconnected,
    }

    impl fmt::Display for TryRecvError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(match self {
                TryRecvError::Empty => "the channel is empty",
                TryRecvError::Disconnected => "the channel is empty and has no senders",
            })
        }
    }

    impl Error for TryRecvError {}
}

fn halves<T>(capacity: usize) -> (SendHalf<T>, ReceiveHalf<T>) {
    let channel = Rc::new(Channel {
        messages: RefCell::new(VecDeque::new()),
        capacity,
        free: Cell::new(capacity),
        senders: Cell::new(1),
        end: Cell::new(End::Open),
        receiver: WakerCell::default(),
        room: Waiters::new(),
        closing: Waiters::new(),
    });
    (SendHalf(channel.clone()), ReceiveHalf(channel))
}

/// One sender in the channel's count of them.
struct SendHalf<T>(Rc<Channel<T>>);

impl<T> SendHalf<T> {
    async fn closed(&self) {
        let channel = &*self.0;
        if !channel.is_closed() {
            channel.closing.wait().await;
        }
        poll_fn(spend_budget).await;
    }
}

impl<T> Clone for SendHalf<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        SendHalf(self.0.clone())
    }
}

impl<T> Drop for SendHalf<T> {
    fn drop(&mut self) {
        let left = self.0.senders.get() - 1;
        self.0.senders.set(left);
        if left == 0 {
            self.0.receiver.wake();
        }
    }
}

/// The one receiver.
struct ReceiveHalf<T>(Rc<Channel<T>>);

impl<T> Drop for ReceiveHalf<T> {
    fn drop(&mut self) {
        self.0.close(End::Dropped);
        self.0.receiver.clear();
        // The messages may come back here in their `drop`: they are out of the channel by then.
        let messages = mem::take(&mut *self.0.messages.borrow_mut());
        drop(messages);
    }
}

/// What the receiver did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// It takes what is under way, and nothing more.
    Closed,
    Dropped,
}

struct Channel<T> {
    messages: RefCell<VecDeque<T>>,
    capacity: usize,
    /// Permits that nobody has. While there are some, no sender waits, except one whose task is out
    /// of budget.
    free: Cell<usize>,
    senders: Cell<usize>,
    end: Cell<End>,
    receiver: WakerCell,
    /// Senders that wait for a permit. Who is woken by `wake_one` has one.
    room: Waiters,
    /// Senders that wait for the channel to be closed.
    closing: Waiters,
}

impl<T> Channel<T> {
    fn is_closed(&self) -> bool {
        self.end.get() != End::Open
    }

    fn take_free(&self) -> bool {
        let free = self.free.get();
        self.free.set(free.saturating_sub(1));
        free > 0
    }

    /// Puts a message in, for which the caller has a permit.
    fn push(&self, message: T) {
        if self.end.get() == End::Dropped {
            drop(message);
            return self.give_back();
        }
        self.messages.borrow_mut().push_back(message);
        self.receiver.wake();
    }

    /// Hands a permit to the sender that has waited longest, else frees it.
    fn give_back(&self) {
        if !self.room.wake_one() {
            self.put_free();
        }
    }

    fn put_free(&self) {
        self.free.set(self.free.get() + 1);
        if self.is_finished() {
            // The receiver waited for this permit alone.
            self.receiver.wake();
        }
    }

    /// Whether no message is there and none can come.
    fn is_finished(&self) -> bool {
        let all_free = self.free.get() == self.capacity;
        self.messages.borrow().is_empty()
            && (self.senders.get() == 0 || self.is_closed() && all_free)
    }

    fn pop(&self) -> Option<T> {
        let mut messages = self.messages.borrow_mut();
        let message = messages.pop_front()?;
        if messages.is_empty() && messages.capacity() > KEPT {
            messages.shrink_to(KEPT);
        }
        drop(messages);
        self.give_back();
        Some(message)
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.messages.borrow().is_empty() && !self.is_finished() {
            self.receiver.register(cx);
            return Poll::Pending;
        }
        ready!(spend_budget(cx));
        Poll::Ready(self.pop())
    }

    fn try_recv(&self) -> Result<T, error::TryRecvError> {
        match self.pop() {
            Some(message) => Ok(message),
            None if self.is_finished() => Err(error::TryRecvError::Disconnected),
            None => Err(error::TryRecvError::Empty),
        }
    }

    fn close(&self, end: End) {
        self.end.set(end);
        self.room.wake_all();
        self.closing.wake_all();
    }

    fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("messages", &self.messages.borrow().len())
            .field("senders", &self.senders.get())
            .field("end", &self.end.get())
            .finish_non_exhaustive()
    }
}

/// Waits for a permit.
struct Acquire<'a, T> {
    channel: &'a Channel<T>,
    key: Option<Key>,
}

impl<T> Future for Acquire<'_, T> {
    type Output = Result<(), error::SendError<()>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let channel = self.channel;
        let at_once = self.key.is_none() && (channel.is_closed() || channel.free.get() > 0);
        if at_once || channel.room.is_woken(&self.key) {
            ready!(spend_budget(cx));
        }
        let has_permit = if at_once {
            !channel.is_closed() && channel.take_free()
        } else {
            ready!(channel.room.poll_wait(&mut self.key, cx)) == Wake::One
        };
        if has_permit && channel.is_closed() {
            // It was closed after the permit was handed over: then this message is not under way.
            channel.give_back();
            return Poll::Ready(Err(error::SendError(())));
        }
        Poll::Ready(if has_permit {
            Ok(())
        } else {
            Err(error::SendError(()))
        })
    }
}

impl<T> Drop for Acquire<'_, T> {
    fn drop(&mut self) {
        // Nobody else waits for the permit that this one had been handed.
        if self.channel.room.remove(&mut self.key) {
            self.channel.put_free();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tester;
    use super::error::{SendError, TryRecvError, TrySendError};
    use super::*;
    use std::array;

    /// Messages arrive in order; the end comes after the last of them.
    #[test]
    fn in_order_to_the_end() {
        let (sender, mut receiver) = channel(3);
        for number in 0..3 {
            assert_eq!(sender.try_send(number), Ok(()));
        }
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        let mut tester = Tester::new();
        assert_eq!(
            tester.poll(&mut Box::pin(receiver.recv())),
            Poll::Ready(Some(0))
        );
        assert_eq!((sender.capacity(), sender.max_capacity()), (1, 3));
        let clone = sender.clone();
        assert!(clone.same_channel(&sender));
        drop(sender);
        assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert!(!receiver.is_closed());
        drop(clone);
        assert!(receiver.is_closed());
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(
            tester.poll(&mut Box::pin(receiver.recv())),
            Poll::Ready(None)
        );
    }

    /// The receiver is woken by a message and by the end; the waker of its last poll is the one.
    #[test]
    fn wakes_the_receiver() {
        let (sender, mut receiver) = channel(1);
        let (mut old, mut new) = (Tester::new(), Tester::new());
        assert!(old.with(|cx| receiver.poll_recv(cx)).is_pending());
        assert!(new.with(|cx| receiver.poll_recv(cx)).is_pending());
        assert_eq!(sender.try_send('a'), Ok(()));
        assert_eq!((old.wakes(), new.wakes()), (0, 1));
        assert_eq!(
            new.with(|cx| receiver.poll_recv(cx)),
            Poll::Ready(Some('a'))
        );
        assert!(new.with(|cx| receiver.poll_recv(cx)).is_pending());
        drop(sender);
        assert_eq!(new.wakes(), 2);
        assert_eq!(new.with(|cx| receiver.poll_recv(cx)), Poll::Ready(None));
    }

    /// Senders get room in the order in which they came, and nobody gets between.
    #[test]
    fn senders_wait_in_line() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(sender.try_send(0), Ok(()));
        let mut testers: [Tester; 3] = Default::default();
        let mut sends: [_; 3] = array::from_fn(|index| Box::pin(sender.send(index + 1)));
        for (tester, send) in testers.iter_mut().zip(&mut sends) {
            assert!(tester.poll(send).is_pending());
        }
        for turn in 0..3 {
            assert_eq!(receiver.try_recv(), Ok(turn));
            assert_eq!(testers[turn].wakes(), 1);
            assert_eq!(
                sender.try_send(9),
                Err(TrySendError::Full(9)),
                "it is promised"
            );
            assert_eq!(testers[turn].poll(&mut sends[turn]), Poll::Ready(Ok(())));
        }
        assert_eq!(receiver.try_recv(), Ok(3));
        assert_eq!(sender.capacity(), 1);
    }

    /// Room promised to a send that is dropped goes to the next one, and to the channel if there is
    /// none; only the dropped send's own message is lost.
    #[test]
    fn a_dropped_send_passes_its_room_on() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(sender.try_send(0), Ok(()));
        let (mut first, mut second) = (Tester::new(), Tester::new());
        let mut dropped = Box::pin(sender.send(1));
        let mut kept = Box::pin(sender.send(2));
        assert!(first.poll(&mut dropped).is_pending());
        assert!(second.poll(&mut kept).is_pending());
        assert_eq!(receiver.try_recv(), Ok(0));
        drop(dropped);
        assert_eq!(second.wakes(), 1);
        assert_eq!(second.poll(&mut kept), Poll::Ready(Ok(())));
        let mut last = Box::pin(sender.send(3));
        assert!(first.poll(&mut last).is_pending());
        assert_eq!(receiver.try_recv(), Ok(2));
        drop(last);
        assert_eq!(sender.capacity(), 1);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    }

    /// Dropping `recv` loses nothing, before a message came and after.
    #[test]
    fn a_dropped_recv_loses_nothing() {
        let (sender, mut receiver) = channel(1);
        let mut tester = Tester::new();
        let mut recv = Box::pin(receiver.recv());
        assert!(tester.poll(&mut recv).is_pending());
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(tester.wakes(), 1);
        drop(recv);
        assert_eq!(receiver.try_recv(), Ok(1));
    }

    /// A closed channel refuses and wakes every sender that waits; what was sent and what a permit
    /// is out for still arrives, and then comes the end.
    #[test]
    fn close_lets_out_what_is_under_way() {
        let (sender, mut receiver) = channel(2);
        let permit = sender.try_reserve().unwrap();
        assert_eq!(sender.try_send('a'), Ok(()));
        let (mut waiting, mut closed) = (Tester::new(), Tester::new());
        let mut send = Box::pin(sender.send('x'));
        let mut end = Box::pin(sender.closed());
        assert!(waiting.poll(&mut send).is_pending());
        assert!(closed.poll(&mut end).is_pending());
        receiver.close();
        assert_eq!((waiting.wakes(), closed.wakes()), (1, 1));
        assert_eq!(waiting.poll(&mut send), Poll::Ready(Err(SendError('x'))));
        assert!(closed.poll(&mut end).is_ready());
        assert!(sender.is_closed());
        assert_eq!(sender.try_send('y'), Err(TrySendError::Closed('y')));
        let mut tester = Tester::new();
        assert_eq!(
            tester.with(|cx| receiver.poll_recv(cx)),
            Poll::Ready(Some('a'))
        );
        assert!(
            tester.with(|cx| receiver.poll_recv(cx)).is_pending(),
            "a permit is out"
        );
        permit.send('b');
        assert_eq!(tester.wakes(), 1);
        assert_eq!(
            tester.with(|cx| receiver.poll_recv(cx)),
            Poll::Ready(Some('b'))
        );
        assert_eq!(tester.with(|cx| receiver.poll_recv(cx)), Poll::Ready(None));
    }

    /// A receiver that waits for the last permit of a closed channel hears of its return, from a
    /// dropped permit, a dropped send and a refused one.
    #[test]
    fn a_returned_permit_ends_a_closed_channel() {
        for way in 0..3 {
            let (sender, mut receiver) = channel(1);
            let mut tester = Tester::new();
            assert_eq!(sender.try_send(0), Ok(()));
            let mut send = Box::pin(sender.send(1));
            assert!(Tester::new().poll(&mut send).is_pending());
            assert_eq!(receiver.try_recv(), Ok(0));
            let mut permit = None;
            if way == 0 {
                drop(send);
                permit = Some(sender.try_reserve().unwrap());
                send = Box::pin(sender.send(1));
            }
            receiver.close();
            assert!(tester.with(|cx| receiver.poll_recv(cx)).is_pending());
            match way {
                0 => drop(permit),
                1 => drop(send),
                _ => assert!(Tester::new().poll(&mut send).is_ready()),
            }
            assert_eq!(tester.wakes(), 1, "way {way}");
            assert_eq!(tester.with(|cx| receiver.poll_recv(cx)), Poll::Ready(None));
        }
    }

    /// A dropped receiver drops the messages, wakes and refuses the senders, and takes no late ones.
    #[test]
    fn dropped_receiver() {
        let (sender, receiver) = channel(2);
        let message = Rc::new(());
        let permit = sender.try_reserve().unwrap();
        assert!(sender.try_send(message.clone()).is_ok());
        let mut tester = Tester::new();
        let mut send = Box::pin(sender.send(message.clone()));
        assert!(tester.poll(&mut send).is_pending());
        drop(receiver);
        assert_eq!(tester.wakes(), 1);
        assert!(matches!(
            tester.poll(&mut send),
            Poll::Ready(Err(SendError(_)))
        ));
        permit.send(message.clone());
        drop(send);
        assert_eq!(Rc::strong_count(&message), 1);
        assert!(tester.poll(&mut Box::pin(sender.closed())).is_ready());
    }

    /// A message may hold its own channel's halves: dropping it while it is taken out of the channel
    /// finds nothing borrowed.
    #[test]
    fn messages_that_come_back() {
        struct Reentrant(Option<Sender<Reentrant>>);
        impl Drop for Reentrant {
            fn drop(&mut self) {
                if let Some(sender) = self.0.take() {
                    assert!(format!("{sender:?}").contains("messages: 0"));
                    assert!(matches!(
                        sender.try_send(Reentrant(None)),
                        Err(TrySendError::Closed(_))
                    ));
                }
            }
        }
        let (sender, receiver) = channel(4);
        for _ in 0..3 {
            assert!(sender.try_send(Reentrant(Some(sender.clone()))).is_ok());
        }
        drop(receiver);
        assert_eq!(Rc::strong_count(&sender.0.0), 1);
    }

    /// An unbounded channel takes everything at once, and gives a burst's memory back.
    #[test]
    fn unbounded() {
        let (sender, mut receiver) = unbounded_channel();
        for number in 0..10 * KEPT {
            assert_eq!(sender.send(number), Ok(()));
        }
        assert_eq!(receiver.len(), 10 * KEPT);
        for number in 0..10 * KEPT {
            assert_eq!(receiver.try_recv(), Ok(number));
        }
        assert!(receiver.is_empty());
        assert!(receiver.0.0.messages.borrow().capacity() <= KEPT);
        let mut tester = Tester::new();
        assert!(tester.poll(&mut Box::pin(receiver.recv())).is_pending());
        let clone = sender.clone();
        assert!(clone.same_channel(&sender));
        assert_eq!(clone.send(7), Ok(()));
        assert_eq!(tester.wakes(), 1);
        receiver.close();
        assert!(sender.is_closed() && receiver.is_closed());
        assert_eq!(sender.send(8), Err(SendError(8)));
        assert_eq!(receiver.try_recv(), Ok(7));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert!(tester.poll(&mut Box::pin(sender.closed())).is_ready());
    }

    /// A task that has used its share up neither receives nor sends, is woken for it, and loses
    /// neither message nor room.
    #[test]
    fn budget() {
        let (sender, mut receiver) = channel(1);
        let mut tester = Tester::new();
        let mut fresh = Box::pin(sender.send(1));
        tester.without_budget(|tester| assert!(tester.poll(&mut fresh).is_pending()));
        assert_eq!((tester.wakes(), sender.capacity()), (1, 1));
        assert_eq!(tester.poll(&mut fresh), Poll::Ready(Ok(())));
        let mut waiting = Box::pin(sender.send(2));
        assert!(tester.poll(&mut waiting).is_pending());
        tester.without_budget(|tester| {
            assert!(tester.with(|cx| receiver.poll_recv(cx)).is_pending());
        });
        assert_eq!(tester.wakes(), 2);
        assert_eq!(receiver.try_recv(), Ok(1));
        tester.without_budget(|tester| assert!(tester.poll(&mut waiting).is_pending()));
        assert_eq!(tester.wakes(), 4, "the room, and out of budget");
        assert_eq!(tester.poll(&mut waiting), Poll::Ready(Ok(())));
        assert_eq!(receiver.try_recv(), Ok(2));
    }
}
