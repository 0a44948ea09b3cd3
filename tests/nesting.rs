//! Runtimes inside one another, and calls at the wrong place: an answer with the remedy, at once (H48).

#![allow(
    clippy::async_yields_async,
    reason = "handles leave their `block_on` on purpose"
)]

mod common;

use std::cell::RefCell;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use roundel::time::sleep;
use roundel::{Cores, Handle, Runtime, spawn, spawn_blocking};
use roundel_testing::{Case, in_defer};

use common::use_the_ring;

fn runtime(case: &Case) -> Runtime {
    case.builder().build().unwrap()
}

/// The text that a call panics with.
fn panic_text<R>(f: impl FnOnce() -> R) -> String {
    let payload = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(_) => panic!("this has to panic"),
        Err(payload) => payload,
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast_ref::<&str>().unwrap()).to_owned(),
    }
}

/// `block_on` inside a task or another `block_on` panics at once and says what to do instead, and
/// the outer one goes on; provoked with the same and with a second runtime.
#[test]
fn h48_a_nested_block_on_panics_with_the_remedy() {
    in_defer(|case| {
        let outer = runtime(case);
        outer.block_on(async {
            let expected = "a shard runs on this thread already: `block_on` cannot be nested. Await \
                            the future instead, or call `block_on` from a thread of its own";
            assert_eq!(panic_text(|| outer.block_on(async {})), expected);
            let inner = runtime(case);
            assert_eq!(panic_text(|| inner.block_on(async {})), expected);
            let task = spawn(async move {
                assert_eq!(panic_text(|| inner.block_on(async {})), expected);
                inner
            });
            case_end_is_clean(task.await.unwrap());
            assert_eq!(spawn(async { 1 }).await.unwrap(), 1, "the outer one lives");
        });
        case_end_is_clean(outer);
    });
}

fn case_end_is_clean(runtime: Runtime) {
    let report = runtime.shutdown(Duration::from_secs(5));
    assert!(report.is_clean(), "{report}");
}

/// From a thread of the pool, and from any other, `Handle::block_on` works; provoked from both while
/// the shard runs.
#[test]
fn h48_block_on_works_from_a_pool_thread() {
    in_defer(|case| {
        case.run(async {
            let handle = Handle::current();
            let inside = handle.clone();
            let nested = spawn_blocking(move || {
                inside.block_on(|| async { spawn(async { 20 }).await.unwrap() + 1 })
            });
            assert_eq!(nested.await.unwrap().unwrap(), 21);

            let (answer, answered) = futures::channel::oneshot::channel();
            let plain = thread::spawn(move || {
                answer.send(handle.block_on(|| async { 22 })).unwrap();
            });
            assert_eq!(answered.await.unwrap().unwrap(), 22);
            plain.join().unwrap();
        });
    });
}

/// `Handle::block_on` never waits for its own thread; provoked on a shard, and on the thread of
/// shard 0 while no `block_on` runs there.
#[test]
fn h48_handle_block_on_on_a_shard_panics_with_the_remedy() {
    in_defer(|case| {
        let runtime = runtime(case);
        let handle = runtime.handle().clone();
        assert_eq!(
            panic_text(|| handle.block_on(|| async {})),
            "this thread is shard 0 and would wait for itself: call `Runtime::block_on` instead of \
             `Handle::block_on`"
        );
        runtime.block_on(async {
            assert_eq!(
                panic_text(|| handle.block_on(|| async {})),
                "a shard runs on this thread, and blocking it would stop its tasks: await \
                 `Handle::spawn` instead of calling `Handle::block_on`"
            );
        });
        case_end_is_clean(runtime);
        // After the end there is nothing to wait for.
        assert!(handle.block_on(|| async {}).unwrap_err().is_cancelled());
    });
}

/// What needs a shard says so where there is none, and names the remedy; provoked on a plain thread.
#[test]
fn misuse_is_told_with_the_remedy() {
    let remedy = "no shard runs on this thread: call this inside `Runtime::block_on` or a task";
    assert!(panic_text(|| drop(spawn(async {}))).contains(remedy));
    assert!(panic_text(|| drop(roundel::spawn_on(0, || async {}))).contains(remedy));
    assert!(panic_text(|| drop(roundel::spawn_any(|| async {}))).contains(remedy));
    assert!(panic_text(|| roundel::on_each_shard(|| async {})).contains(remedy));
    assert!(panic_text(|| drop(spawn_blocking(|| ()))).contains(remedy));
    assert!(panic_text(roundel::shard).contains(remedy));
    assert!(panic_text(Handle::current).contains(remedy));
    assert!(Handle::try_current().is_none());
    let polled = panic_text(|| {
        let sleep = pin!(sleep(Duration::from_secs(1)));
        sleep.poll(&mut Context::from_waker(Waker::noop()))
    });
    assert!(polled.contains(remedy), "{polled}");
}

/// A shard that does not exist, and a handle that was used up, are named; provoked with one shard.
#[test]
fn wrong_numbers_and_spent_handles_are_named() {
    in_defer(|case| {
        case.run(async {
            let text = panic_text(|| drop(roundel::spawn_on(1, || async {})));
            assert_eq!(
                text,
                "there is no shard 1: this runtime has the shards 0 to 0"
            );
            let mut task = pin!(spawn(async {}));
            task.as_mut().await.unwrap();
            let text = panic_text(|| task.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            assert_eq!(text, "a join handle was polled after it resolved");
            use_the_ring().await;
        });
    });
}

/// Two runtimes on one thread keep apart; provoked by running them in turn, each with a task that
/// rests while the other runs.
#[test]
fn two_runtimes_take_turns_on_one_thread() {
    in_defer(|case| {
        let (first, second) = (runtime(case), runtime(case));
        let (to_first, mut in_first) = roundel::sync::mpsc::unbounded_channel();
        let (to_second, mut in_second) = roundel::sync::mpsc::unbounded_channel();
        let one = first.block_on(async { spawn(async move { in_first.recv().await }) });
        let two = second.block_on(async { spawn(async move { in_second.recv().await }) });
        // A local channel wakes across runtimes of its thread, too.
        second.block_on(async {
            to_first.send(1).unwrap();
            use_the_ring().await;
        });
        first.block_on(async {
            to_second.send(2).unwrap();
            use_the_ring().await;
        });
        assert_eq!(second.block_on(two).unwrap(), Some(2));
        assert_eq!(first.block_on(one).unwrap(), Some(1));
        case.end(first);
        case.end(second);
    });
}

/// Tasks of a runtime that is dropped inside another's task die among their own; provoked by a
/// guard whose drop spawns and asks where it is.
#[test]
fn a_runtime_dropped_inside_another_drops_its_tasks_among_their_own() {
    struct Guard(Rc<RefCell<Vec<&'static str>>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.borrow_mut().push("dropped");
            let trace = self.0.clone();
            // On the inner runtime, which closes: this never runs.
            drop(spawn(async move { trace.borrow_mut().push("ran") }));
        }
    }
    in_defer(|case| {
        case.run(async {
            let trace = Rc::new(RefCell::new(Vec::new()));
            let inner = runtime(case);
            let inside = inner.handle().clone();
            // Never polled before the end, then polled by nobody but the end.
            let guard = Guard(trace.clone());
            let (made, remote) = mpsc::channel::<&'static str>();
            let waiting = inside.spawn(move || async move {
                made.send("ran").unwrap();
            });
            thread::spawn(move || drop(inside)).join().unwrap();
            let keep = spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            roundel::yield_now().await;
            drop(inner);
            assert!(waiting.await.unwrap_err().is_cancelled());
            assert!(remote.recv().is_err(), "its closure was dropped unrun");
            assert!(trace.borrow().is_empty(), "the outer one's task lives");
            keep.abort();
            assert!(keep.await.unwrap_err().is_cancelled());
            roundel::yield_now().await;
            assert_eq!(
                *trace.borrow(),
                ["dropped", "ran"],
                "spawned on the outer one"
            );
            assert_eq!(Rc::strong_count(&trace), 1);
            use_the_ring().await;
        });

        let trace = Rc::new(RefCell::new(Vec::new()));
        let inner = runtime(case);
        let guard = Guard(trace.clone());
        inner.block_on(async {
            drop(spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            }));
            roundel::yield_now().await;
        });
        case.run(async move {
            drop(inner);
            roundel::yield_now().await;
            assert_eq!(*trace.borrow(), ["dropped"], "not spawned on the outer one");
            assert_eq!(Rc::strong_count(&trace), 1, "nothing of it is left");
            use_the_ring().await;
        });
    });
}

fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    line.unwrap().to_owned()
}

/// The thread of `block_on` has its affinity back when that returns; provoked with a return, a panic
/// and a pool thread started from a pinned shard.
#[test]
fn affinity_is_restored() {
    in_defer(|case| {
        let before = allowed_cpus();
        let runtime = case
            .builder()
            .cores(Cores::List(vec![0, 0]))
            .build()
            .unwrap();
        assert_eq!(allowed_cpus(), before, "building pins nobody");
        let (inside, in_the_pool) = runtime
            .block_on(async { (allowed_cpus(), spawn_blocking(allowed_cpus).await.unwrap()) });
        assert_eq!(inside, "Cpus_allowed_list:\t0");
        assert_eq!(in_the_pool, before, "pinning does not leak into the pool");
        assert_eq!(allowed_cpus(), before);
        panic_text(|| runtime.block_on(async { panic!("on purpose") }));
        assert_eq!(allowed_cpus(), before);
        case.end(runtime);
        assert_eq!(allowed_cpus(), before);
    });
}

/// A future that is ready needs no shard's help to be polled elsewhere; provoked by polling another
/// runtime's handles inside a `block_on` of this one.
#[test]
fn handles_of_one_runtime_resolve_in_another() {
    in_defer(|case| {
        let first = runtime(case);
        let local = first.block_on(async { spawn(async { 1 }) });
        let job = first.block_on(async { spawn_blocking(|| 2) });
        let pending_task = first.block_on(async { spawn(pending::<()>()) });
        case.run(async {
            assert_eq!(job.await.unwrap(), 2, "the first one's shard rests");
            let mut local = pin!(local);
            let waker = Waker::noop();
            let polled = local.as_mut().poll(&mut Context::from_waker(waker));
            assert!(matches!(polled, Poll::Pending), "its shard rests");
            drop(first);
            assert!(local.await.unwrap_err().is_cancelled());
            assert!(pending_task.await.unwrap_err().is_cancelled());
            use_the_ring().await;
        });
    });
}
