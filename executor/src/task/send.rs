//! Tasks that are spawned from elsewhere, and joined from anywhere.
//!
//! What travels to the shard is the closure that makes the future, in a box, as an [`Errand`]
//! through the inbox. It is `Send` and was never polled, so it may be dropped anywhere: it ends
//! as cancelled if its runtime has ended. On its shard it becomes a task like any other, whose
//! first poll calls the closure. The outcome goes to a
//! [`Mailbox`], where its handle waits.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use super::mailbox::Mailbox;
use super::seat::Owner;
use super::slot::Slot;
use super::stage::{Outcome, Sink, Target, free, spawn};
use super::{Errand, abort, contain};
use crate::atomics::{Mutex, MutexGuard};
use crate::current;
use crate::join::{Id, JoinError};
use crate::shard::Home;

/// Spawns a task on `home`'s shard from anywhere: `make` runs there.
pub(crate) fn spawn_remote<C, F>(home: &Arc<Home>, make: C) -> Arc<Shared<F::Output>>
where
    C: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    let shared = Arc::new(Shared {
        id: Id::next(),
        home: home.clone(),
        whereabouts: Mutex::new(Whereabouts::Travelling),
        mailbox: Mailbox::new(),
    });
    let journey = Box::new(Journey {
        make: Some(make),
        shared: shared.clone(),
    });
    let here = current::with(|shard| Arc::ptr_eq(shard.home(), home).then(|| shard.owner()));
    if let Some(owner) = here.flatten() {
        journey.arrive(owner);
    } else if let Err(errand) = home.inbox().push(home.epoch(), Errand::Spawn(journey)) {
        // The runtime has ended. The closure ends as cancelled.
        drop(errand);
    }
    shared
}

/// What makes a task of a shard on its thread. Its drop is the end of the task.
pub(crate) trait Travel: Send {
    /// Becomes a task of this thread's shard.
    fn arrive(self: Box<Self>, owner: Owner);
}

struct Journey<C, F>
where
    C: FnOnce() -> F,
    F: Future,
{
    /// `None` when it has arrived.
    make: Option<C>,
    shared: Arc<Shared<F::Output>>,
}

impl<C, F> Travel for Journey<C, F>
where
    C: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    fn arrive(mut self: Box<Self>, owner: Owner) {
        let mut whereabouts = self.shared.lock();
        if matches!(*whereabouts, Whereabouts::Aborted) {
            // The drop says that it was cancelled; the lock must not be held then.
            drop(whereabouts);
            return;
        }
        let Some(make) = self.make.take() else { return };
        // Nothing of the user's runs in this, so the lock may be held: an abort that comes now
        // waits, and finds the task.
        let slot = spawn(owner, async move { make().await }, self.shared.clone());
        *whereabouts = Whereabouts::Arrived(Target::of(slot));
    }
}

impl<C, F> Drop for Journey<C, F>
where
    C: FnOnce() -> F,
    F: Future,
{
    fn drop(&mut self) {
        let Some(make) = self.make.take() else { return };
        let id = self.shared.id;
        let outcome = match contain(|| drop(make)) {
            Ok(()) => Err(JoinError::cancelled(id)),
            Err(payload) => Err(JoinError::panic(id, payload)),
        };
        self.shared.mailbox.resolve(outcome);
    }
}

/// What a task that was spawned from elsewhere shares with its handles.
pub(crate) struct Shared<T> {
    id: Id,
    home: Arc<Home>,
    /// Nothing of the user's runs while it is locked.
    whereabouts: Mutex<Whereabouts>,
    mailbox: Mailbox<T>,
}

enum Whereabouts {
    /// In the inbox.
    Travelling,
    /// In the inbox, and not to become a task.
    Aborted,
    Arrived(Target),
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Whereabouts> {
        // Nothing of the user's runs under the lock, so a poisoned one is as good.
        self.whereabouts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Mailbox::poll`].
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        self.mailbox.poll(cx)
    }

    /// See [`Mailbox::detach`].
    pub(crate) fn detach(&self) {
        self.mailbox.detach();
    }
}

/// What an abort handle needs, whatever the output is.
pub(crate) trait RemoteTask {
    fn id(&self) -> Id;

    fn is_finished(&self) -> bool;

    /// Ends the task, from any thread.
    fn abort(&self);
}

impl<T> RemoteTask for Shared<T> {
    fn id(&self) -> Id {
        self.id
    }

    fn is_finished(&self) -> bool {
        self.mailbox.is_resolved()
    }

    fn abort(&self) {
        let target = {
            let mut whereabouts = self.lock();
            match *whereabouts {
                Whereabouts::Travelling => {
                    *whereabouts = Whereabouts::Aborted;
                    return;
                }
                Whereabouts::Aborted => return,
                Whereabouts::Arrived(target) => target,
            }
        };
        abort(target, self.home.epoch());
    }
}

impl<T> Sink<T> for Arc<Shared<T>> {
    const KEEPS: bool = false;

    fn id(&self, _slot: Slot) -> Id {
        self.id
    }

    fn finish(self, slot: Slot, outcome: Outcome<T>) {
        free(slot);
        self.mailbox.resolve(outcome);
    }
}
