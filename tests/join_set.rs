//! Sets of tasks in a whole runtime: every member ends once, is dropped once, and is told of.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use roundel::sync::{CancellationToken, Semaphore};
use roundel::time::timeout;
use roundel::{AbortOnDropHandle, Cores, JoinSet, spawn, yield_now};
use roundel_testing::{PATIENCE, in_defer, scaled};

use common::use_the_ring;

roundel::task_local! {
    static MEMBER: usize;
}

/// Lets the other tasks run until something holds.
async fn until(holds: impl Fn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            yield_now().await;
        }
    });
    assert!(waited.await.is_ok(), "it never holds");
}

/// Members alive, and dropped, on this shard.
#[derive(Default)]
struct Count {
    made: Cell<usize>,
    dropped: Cell<usize>,
}

impl Count {
    fn live(&self) -> usize {
        self.made.get() - self.dropped.get()
    }
}

/// Stands in a future, and counts its drop.
struct Counted(Rc<Count>);

impl Counted {
    fn new(count: &Rc<Count>) -> Self {
        count.made.set(count.made.get() + 1);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dropped.set(self.0.dropped.get() + 1);
    }
}

/// Every one of many members is joined once, whether it yields, returns at once or panics, and its
/// future was dropped by then.
#[test]
fn every_member_is_joined_once() {
    in_defer(|case| {
        case.run(async {
            use_the_ring().await;
            let members = scaled(10_000);
            let count = Rc::new(Count::default());
            let mut set = JoinSet::new();
            let mut seen = vec![false; members];
            let mut ids = HashMap::new();
            for member in 0..members {
                let counted = Counted::new(&count);
                let abort = set.spawn(async move {
                    let _counted = counted;
                    for _ in 0..member % 3 {
                        yield_now().await;
                    }
                    assert!(member % 7 != 0, "member {member}");
                    member
                });
                ids.insert(abort.id(), member);
            }
            while let Some(joined) = set.join_next_with_id().await {
                let member = match joined {
                    Ok((id, member)) => {
                        assert_eq!(ids[&id], member);
                        member
                    }
                    Err(error) => {
                        let member = ids[&error.id()];
                        let payload = error.into_panic();
                        let message = payload.downcast_ref::<String>().expect("a text");
                        assert_eq!(*message, format!("member {member}"));
                        assert_eq!(member % 7, 0);
                        member
                    }
                };
                assert!(!std::mem::replace(&mut seen[member], true));
                assert!(count.dropped.get() >= members - set.len());
            }
            assert!(seen.into_iter().all(|seen| seen));
            assert_eq!(count.dropped.get(), members);
        });
    });
}

/// A set that is dropped aborts its members, those that were never polled, too, and each future is
/// dropped once.
#[test]
fn dropping_a_set_drops_its_futures() {
    in_defer(|case| {
        case.run(async {
            use_the_ring().await;
            let members = scaled(10_000);
            let count = Rc::new(Count::default());
            let mut set = JoinSet::new();
            for member in 0..members {
                if member == members / 2 {
                    yield_now().await;
                }
                let counted = Counted::new(&count);
                set.spawn(async move {
                    let _counted = counted;
                    pending::<()>().await;
                });
            }
            assert_eq!(count.live(), members);
            drop(set);
            until(|| count.live() == 0).await;
            assert_eq!(count.dropped.get(), members);
        });
    });
}

/// A set in a task goes with it, and takes the sets in its members along.
#[test]
fn sets_nest() {
    in_defer(|case| {
        case.run(async {
            use_the_ring().await;
            let count = Rc::new(Count::default());
            let counted = count.clone();
            let outer = AbortOnDropHandle::new(spawn(async move {
                let mut set = JoinSet::new();
                for _ in 0..10 {
                    let counted = counted.clone();
                    set.spawn(async move {
                        let mut inner: JoinSet<()> = (0..10)
                            .map(|_| {
                                let counted = Counted::new(&counted);
                                async move {
                                    let _counted = counted;
                                    pending().await
                                }
                            })
                            .collect();
                        inner.join_next().await
                    });
                }
                set.join_next().await
            }));
            until(|| count.made.get() == 100).await;
            assert_eq!(count.live(), 100);
            drop(outer);
            until(|| count.live() == 0).await;
            assert_eq!(count.dropped.get(), 100);
        });
    });
}

/// Members on another shard and in the pool are joined once each while they end there, and their
/// futures are dropped once, joined or aborted.
#[test]
fn members_elsewhere() {
    in_defer(|case| {
        let builder = case.builder().cores(Cores::Count(2));
        case.run_on(builder, async {
            use_the_ring().await;
            let members = scaled(10_000);
            let dropped = Arc::new(AtomicUsize::new(0));
            struct Counted(Arc<AtomicUsize>);
            impl Drop for Counted {
                fn drop(&mut self) {
                    self.0.fetch_add(1, Ordering::Relaxed);
                }
            }
            let mut set = JoinSet::new();
            for member in 0..members {
                let counted = Counted(dropped.clone());
                let job = move || {
                    drop(counted);
                    member
                };
                match member % 4 {
                    0 => set.spawn_blocking(job),
                    shard => set.spawn_on(shard % 2, move || async move {
                        yield_now().await;
                        job()
                    }),
                };
            }
            let mut seen = vec![false; members];
            while let Some(joined) = set.join_next().await {
                let member = joined.expect("no member panics");
                assert!(!std::mem::replace(&mut seen[member], true));
            }
            assert!(seen.into_iter().all(|seen| seen));
            assert_eq!(dropped.load(Ordering::Relaxed), members);
            for _ in 0..members {
                let counted = Counted(dropped.clone());
                set.spawn_on(1, move || async move {
                    let _counted = counted;
                    pending().await
                });
            }
            set.shutdown().await;
            assert_eq!(dropped.load(Ordering::Relaxed), 2 * members);
        });
    });
}

/// A set that lives when its runtime ends has its members' futures dropped once, too.
#[test]
fn a_set_outlives_its_runtime() {
    in_defer(|case| {
        let count = Rc::new(Count::default());
        let runtime = case.builder().build().expect("a runtime can be had");
        let set = runtime.block_on(async {
            let mut set = JoinSet::new();
            for _ in 0..scaled(10_000) {
                let counted = Counted::new(&count);
                set.spawn(async move {
                    let _counted = counted;
                    pending::<()>().await;
                });
            }
            yield_now().await;
            set
        });
        drop(runtime);
        assert_eq!(count.live(), 0);
        assert_eq!(count.dropped.get(), scaled(10_000));
        drop(set);
        assert_eq!(count.dropped.get(), scaled(10_000));
    });
}

/// A semaphore bounds how many members work at once and lets all of them work, in order; a token
/// ends those that wait; each member keeps its task-local over its waits.
#[test]
fn permits_tokens_and_locals() {
    in_defer(|case| {
        case.run(async {
            use_the_ring().await;
            let members = scaled(5_000);
            let semaphore = Rc::new(Semaphore::new(3));
            let token = CancellationToken::new();
            let order = Rc::new(RefCell::new(Vec::new()));
            let working = Rc::new(Cell::new(0));
            let mut set = JoinSet::new();
            for member in 0..members {
                let (semaphore, child) = (semaphore.clone(), token.child_token());
                let (order, working) = (order.clone(), working.clone());
                set.spawn(MEMBER.scope(member, async move {
                    let permit = semaphore.acquire().await.expect("it is not closed");
                    working.set(working.get() + 1);
                    assert!(working.get() <= 3);
                    order.borrow_mut().push(MEMBER.get());
                    yield_now().await;
                    working.set(working.get() - 1);
                    drop(permit);
                    child.run_until_cancelled(pending::<()>()).await;
                    MEMBER.get()
                }));
            }
            until(|| order.borrow().len() == members && working.get() == 0).await;
            assert!(order.borrow().iter().copied().eq(0..members));
            assert!(set.try_join_next().is_none());
            token.cancel();
            let mut joined = set.join_all().await;
            joined.sort_unstable();
            assert!(joined.into_iter().eq(0..members));
            assert_eq!(semaphore.available_permits(), 3);
        });
    });
}
