//! A token that tells tasks of one shard to stop, and the tokens below it.
//!
//! **How it works.** Tokens are handles of a node; the nodes form a tree. Nobody but its tokens
//! keeps a node alive: parents and children know each other by weak references. A node whose last
//! token is gone hands its children to its own parent and leaves the tree, so a chain of children of
//! children is as long as its living tokens are, and a parent remembers no child that is gone.
//! [`cancel`](CancellationToken::cancel) first marks the whole subtree and takes it apart, and only
//! then wakes anybody: whoever is woken sees all of it cancelled.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use roundel_reactor::current::spend_budget;
use roundel_reactor::waiters::{Key, Waiters};
use slab::Slab;

/// A node that had room for more children than this gives the memory back once it has none (2 KiB).
const CHILDREN_KEPT: usize = 128;

/// Tells tasks to stop. Clones are one token; a [child](Self::child_token) is cancelled with its
/// parent, and not the other way round.
///
/// Dropping tokens cancels nothing; see [`drop_guard`](Self::drop_guard).
///
/// # Examples
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use std::time::Duration;
/// use roundel_executor::spawn;
/// use roundel_executor::sync::CancellationToken;
/// use roundel_executor::time::sleep;
///
/// let token = CancellationToken::new();
/// let connection = token.child_token();
/// let task = spawn(async move {
///     connection.run_until_cancelled(sleep(Duration::MAX)).await
/// });
/// token.cancel();
/// assert_eq!(task.await?, None);
/// # Ok::<(), roundel_executor::JoinError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CancellationToken {
    node: Rc<Node>,
}

impl CancellationToken {
    /// A token that is not cancelled and has no parent.
    pub fn new() -> CancellationToken {
        CancellationToken { node: Node::new() }
    }

    /// A token that is cancelled when this one is, now or later. Cancelling it does not cancel this
    /// one.
    pub fn child_token(&self) -> CancellationToken {
        let child = CancellationToken::new();
        if self.is_cancelled() {
            child.node.cancelled.set(true);
        } else {
            Node::link(&child.node, &self.node);
        }
        child
    }

    /// Cancels this token with its children and theirs, and wakes who waits for it. Does nothing the
    /// second time.
    pub fn cancel(&self) {
        Wave(Node::cancel(&self.node).into_iter()).wake();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.node.cancelled.get()
    }

    /// Waits until it is cancelled.
    ///
    /// # Cancellation
    ///
    /// Dropping this future does nothing.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        WaitForCancellationFuture {
            token: self,
            key: None,
        }
    }

    /// As [`cancelled`](Self::cancelled), with a future that owns the token.
    ///
    /// # Cancellation
    ///
    /// Dropping this future drops the token.
    pub fn cancelled_owned(self) -> WaitForCancellationFutureOwned {
        WaitForCancellationFutureOwned {
            token: self,
            key: None,
        }
    }

    /// A guard that cancels the token when it is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }

    /// Runs a future to its end, or until the token is cancelled: then there is no output, and the
    /// future is dropped. If it is cancelled already, the future is not polled at all; if both
    /// happen in one poll, the output wins.
    ///
    /// # Cancellation
    ///
    /// Dropping this future drops the one it runs.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.is_cancelled() {
            return None;
        }
        let mut future = pin!(future);
        let mut cancelled = pin!(self.cancelled());
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => cancelled.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// As [`run_until_cancelled`](Self::run_until_cancelled), with a future that owns the token.
    ///
    /// # Cancellation
    ///
    /// Dropping this future drops the one it runs, and the token.
    pub async fn run_until_cancelled_owned<F: Future>(self, future: F) -> Option<F::Output> {
        self.run_until_cancelled(future).await
    }
}

impl Default for CancellationToken {
    fn default() -> Self {
        CancellationToken::new()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationToken")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// The future of [`CancellationToken::cancelled`]. Polled after it was ready, it is ready again.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct WaitForCancellationFuture<'a> {
    token: &'a CancellationToken,
    key: Option<Key>,
}

impl Future for WaitForCancellationFuture<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let token = self.token;
        token.node.poll_cancelled(&mut self.key, cx)
    }
}

impl Drop for WaitForCancellationFuture<'_> {
    fn drop(&mut self) {
        self.token.node.stop_waiting(&mut self.key);
    }
}

/// The future of [`CancellationToken::cancelled_owned`]. Polled after it was ready, it is ready
/// again.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct WaitForCancellationFutureOwned {
    token: CancellationToken,
    key: Option<Key>,
}

impl Future for WaitForCancellationFutureOwned {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let WaitForCancellationFutureOwned { token, key } = &mut *self;
        token.node.poll_cancelled(key, cx)
    }
}

impl Drop for WaitForCancellationFutureOwned {
    fn drop(&mut self) {
        self.token.node.stop_waiting(&mut self.key);
    }
}

/// Cancels a token when it is dropped. Made by [`CancellationToken::drop_guard`].
#[derive(Debug)]
#[must_use = "the token is cancelled when this is dropped"]
pub struct DropGuard {
    /// `None` once it was taken back.
    token: Option<CancellationToken>,
}

impl DropGuard {
    /// Gives the token back, not cancelled.
    pub fn disarm(mut self) -> CancellationToken {
        self.token
            .take()
            .expect("a guard has its token until it is disarmed")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}

/// What the clones of one token share.
struct Node {
    cancelled: Cell<bool>,
    /// The node above and this one's place among its children. That node lives: it would have
    /// handed this one on before it went.
    parent: RefCell<Option<(Weak<Node>, usize)>>,
    /// The nodes below. They live, too: each takes itself out before it goes.
    children: RefCell<Slab<Weak<Node>>>,
    waiters: Waiters,
}

impl Node {
    fn new() -> Rc<Node> {
        Rc::new(Node {
            cancelled: Cell::new(false),
            parent: RefCell::new(None),
            children: RefCell::new(Slab::new()),
            waiters: Waiters::new(),
        })
    }

    fn link(child: &Rc<Node>, parent: &Rc<Node>) {
        let place = parent.children.borrow_mut().insert(Rc::downgrade(child));
        *child.parent.borrow_mut() = Some((Rc::downgrade(parent), place));
    }

    /// Leaves the parent, and gives it.
    fn unlink(&self) -> Option<Rc<Node>> {
        let (parent, place) = self.parent.take()?;
        let parent = parent.upgrade().expect("a parent hands its children on");
        let mut children = parent.children.borrow_mut();
        children.remove(place);
        if children.is_empty() && children.capacity() > CHILDREN_KEPT {
            *children = Slab::new();
        }
        drop(children);
        Some(parent)
    }

    /// Marks `node` and all below it as cancelled, and takes them out of the tree. Gives them,
    /// parents before children, for their waiters to be woken.
    fn cancel(node: &Rc<Node>) -> Vec<Rc<Node>> {
        if node.cancelled.get() {
            return Vec::new();
        }
        drop(node.unlink());
        let mut marked = vec![node.clone()];
        let mut next = 0;
        // Ends because the tree is finite, and each node of it is seen once.
        while let Some(node) = marked.get(next).cloned() {
            next += 1;
            node.cancelled.set(true);
            for (_, child) in node.children.take() {
                let child = child.upgrade().expect("a child takes itself out");
                drop(child.parent.take());
                marked.push(child);
            }
        }
        marked
    }

    fn poll_cancelled(&self, key: &mut Option<Key>, cx: &mut Context<'_>) -> Poll<()> {
        // Asked twice: to wait clones the waker, which is the task's own code and may cancel.
        let pending = !self.cancelled.get() && self.waiters.poll_wait(key, cx).is_pending();
        if pending && !self.cancelled.get() {
            return Poll::Pending;
        }
        spend_budget(cx)
    }

    fn stop_waiting(&self, key: &mut Option<Key>) {
        let unclaimed = self.waiters.remove(key);
        debug_assert!(
            !unclaimed,
            "all are woken together, so no wake is one's own"
        );
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let parent = self.unlink();
        for (_, child) in mem::take(self.children.get_mut()) {
            let child = child.upgrade().expect("a child takes itself out");
            match &parent {
                Some(parent) => Node::link(&child, parent),
                None => drop(child.parent.take()),
            }
        }
    }
}

/// Cancelled nodes whose waiters are to be woken. One waiter's panic must not cost the others their
/// wake: the drop wakes who is left.
struct Wave(std::vec::IntoIter<Rc<Node>>);

impl Wave {
    fn wake(&mut self) {
        for node in self.0.by_ref() {
            node.waiters.wake_all();
        }
    }
}

impl Drop for Wave {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use super::super::testing::Tester;
    use super::*;

    fn children(token: &CancellationToken) -> usize {
        token.node.children.borrow().len()
    }

    /// Cancelling reaches clones, children and theirs, but neither parents nor siblings.
    #[test]
    fn cancels_what_is_below() {
        let root = CancellationToken::new();
        let (middle, sibling) = (root.child_token(), root.child_token());
        let (clone, leaf) = (middle.clone(), middle.child_token());
        middle.cancel();
        let cancelled = [&root, &sibling, &middle, &clone, &leaf].map(|token| token.is_cancelled());
        assert_eq!(cancelled, [false, false, true, true, true]);
        assert_eq!(children(&root), 1);
        root.cancel();
        assert!(sibling.is_cancelled());
        assert!(root.child_token().is_cancelled(), "born cancelled");
    }

    /// Waiting futures are woken once and are ready; later ones are ready at once, and stay so.
    #[test]
    fn wakes_who_waits() {
        let token = CancellationToken::new();
        let child = token.child_token();
        let mut testers: [Tester; 3] = Default::default();
        let mut borrowed = token.cancelled();
        let mut below = child.cancelled();
        let mut owned = token.clone().cancelled_owned();
        assert!(testers[0].poll(&mut borrowed).is_pending());
        assert!(testers[1].poll(&mut below).is_pending());
        assert!(testers[2].poll(&mut owned).is_pending());
        token.cancel();
        token.cancel();
        assert_eq!(testers.each_ref().map(Tester::wakes), [1, 1, 1]);
        assert!(testers[0].poll(&mut borrowed).is_ready());
        assert!(testers[1].poll(&mut below).is_ready());
        assert!(testers[2].poll(&mut owned).is_ready());
        assert!(testers[2].poll(&mut owned).is_ready());
        assert!(testers[0].poll(&mut token.cancelled()).is_ready());
    }

    /// A future that is dropped waits no more: its waker is let go and not called.
    #[test]
    fn dropping_stops_waiting() {
        let token = CancellationToken::new();
        let mut tester = Tester::new();
        let mut wait = token.cancelled();
        assert!(tester.poll(&mut wait).is_pending());
        drop(wait);
        assert!(token.node.waiters.is_empty());
        token.cancel();
        assert_eq!(tester.wakes(), 0);
    }

    /// A parent forgets a child that is gone, and gives the memory of many back.
    #[test]
    fn a_gone_child_is_forgotten() {
        let root = CancellationToken::new();
        drop(root.child_token());
        assert_eq!(children(&root), 0);
        let many: Vec<_> = (0..1000).map(|_| root.child_token()).collect();
        assert_eq!(children(&root), 1000);
        drop(many);
        assert_eq!(children(&root), 0);
        assert!(root.node.children.borrow().capacity() <= CHILDREN_KEPT);
        assert_eq!(Rc::weak_count(&root.node), 0);
    }

    /// A token between two others may go: the one above still cancels the one below. However long
    /// the chain was, nothing of it is kept.
    #[test]
    fn a_gone_parent_is_bridged() {
        let root = CancellationToken::new();
        let mut token = root.child_token();
        for _ in 0..1000 {
            let gone = Rc::downgrade(&token.node);
            token = token.child_token();
            assert_eq!(children(&root), 1);
            assert!(gone.upgrade().is_none());
        }
        assert_eq!(Rc::weak_count(&root.node), 1, "the last one's parent");
        root.cancel();
        assert!(token.is_cancelled());
    }

    /// Children whose root is gone are roots, and still cancel what is below them.
    #[test]
    fn a_gone_root_leaves_roots() {
        let root = CancellationToken::new();
        let orphan = root.child_token();
        let below = orphan.child_token();
        drop(root);
        assert!(!orphan.is_cancelled());
        assert!(orphan.node.parent.borrow().is_none());
        orphan.cancel();
        assert!(below.is_cancelled());
    }

    /// A deep tree is cancelled and dropped without using the stack up.
    #[test]
    fn deep_trees() {
        let depth = 100_000;
        let chain = || {
            let mut tokens = vec![CancellationToken::new()];
            for index in 0..depth {
                tokens.push(tokens[index].child_token());
            }
            tokens
        };
        let tokens = chain();
        tokens[0].cancel();
        assert!(tokens[depth].is_cancelled());
        let mut tokens = chain();
        let last = tokens.pop().expect("it has many");
        drop(tokens);
        assert!(last.node.parent.borrow().is_none());
    }

    /// A guard cancels when it is dropped, unless it was disarmed.
    #[test]
    fn drop_guard() {
        let token = CancellationToken::new();
        let guard = token.clone().drop_guard();
        assert!(!guard.disarm().is_cancelled());
        assert!(!token.is_cancelled());
        drop(token.clone().drop_guard());
        assert!(token.is_cancelled());
    }

    /// Gives the output, or drops the future when the token is cancelled; the output wins if both
    /// are there, unless it was cancelled before the first poll.
    #[test]
    fn run_until_cancelled() {
        let token = CancellationToken::new();
        let mut tester = Tester::new();
        let mut output = Box::pin(token.run_until_cancelled(async { 1 }));
        assert_eq!(tester.poll(&mut output), Poll::Ready(Some(1)));

        let held = Rc::new(());
        let inner = held.clone();
        let mut endless = Box::pin(token.run_until_cancelled(async move {
            std::future::pending::<()>().await;
            drop(inner);
        }));
        let done = Cell::new(false);
        let ready_when_done = poll_fn(|_| match done.get() {
            true => Poll::Ready(2),
            false => Poll::Pending,
        });
        let mut both = Box::pin(token.clone().run_until_cancelled_owned(ready_when_done));
        assert!(tester.poll(&mut endless).is_pending());
        assert!(tester.poll(&mut both).is_pending());
        token.cancel();
        done.set(true);
        assert_eq!(tester.wakes(), 2);
        assert_eq!(tester.poll(&mut endless), Poll::Ready(None));
        assert_eq!(Rc::strong_count(&held), 1, "the future is gone");
        assert_eq!(tester.poll(&mut both), Poll::Ready(Some(2)));
        let mut late = Box::pin(token.run_until_cancelled(poll_fn(|_| -> Poll<()> {
            unreachable!("it is not polled")
        })));
        assert_eq!(tester.poll(&mut late), Poll::Ready(None));
    }

    /// A task that has used its share up does not see it yet, and does later.
    #[test]
    fn budget() {
        let token = CancellationToken::new();
        let mut tester = Tester::new();
        let mut wait = token.cancelled();
        assert!(tester.poll(&mut wait).is_pending());
        token.cancel();
        tester.without_budget(|tester| assert!(tester.poll(&mut wait).is_pending()));
        assert_eq!(tester.wakes(), 2);
        assert!(tester.poll(&mut wait).is_ready());
    }

    type Reaction = Box<dyn FnOnce()>;

    thread_local! {
        static REACTION: Cell<Option<Reaction>> = const { Cell::new(None) };
    }

    /// A waker that does what the test says.
    struct React;

    impl Wake for React {
        fn wake(self: Arc<Self>) {
            if let Some(reaction) = REACTION.take() {
                reaction();
            }
        }
    }

    /// Cancels a token that a task with this reaction to being woken waits for.
    fn cancel_with(token: &CancellationToken, reaction: impl FnOnce() + 'static) {
        REACTION.set(Some(Box::new(reaction)));
        let waker = Waker::from(Arc::new(React));
        let mut wait = token.cancelled();
        let poll = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        token.cancel();
    }

    /// A waker may cancel, drop and make tokens of the tree that is being cancelled, and sees all of
    /// it cancelled.
    #[test]
    fn wakers_may_come_back() {
        let root = CancellationToken::new();
        let child = root.child_token();
        let mut tester = Tester::new();
        let mut wait = child.clone().cancelled_owned();
        assert!(tester.poll(&mut wait).is_pending());
        let seen = root.clone();
        cancel_with(&root, move || {
            assert!(child.is_cancelled());
            assert!(seen.child_token().is_cancelled());
            child.cancel();
            drop((seen, child));
        });
        assert_eq!(tester.wakes(), 1);
        assert!(tester.poll(&mut wait).is_ready());
        let node = Rc::downgrade(&root.node);
        drop(root);
        assert!(node.upgrade().is_none());
    }

    /// A waker that panics costs nobody below the news.
    #[test]
    fn a_panicking_waker_stops_nobody() {
        let root = CancellationToken::new();
        let child = root.child_token();
        let mut tester = Tester::new();
        let mut wait = child.cancelled();
        assert!(tester.poll(&mut wait).is_pending());
        let cancel = || cancel_with(&root, || panic!("a waker panics"));
        assert!(catch_unwind(AssertUnwindSafe(cancel)).is_err());
        assert_eq!(tester.wakes(), 1);
        assert!(tester.poll(&mut wait).is_ready());
    }
}
