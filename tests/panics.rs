//! A panic reaches whoever joins the task and nobody else (P8): one test for each place where foreign
//! code is called.

#![allow(
    clippy::async_yields_async,
    reason = "handles leave their `block_on` on purpose"
)]

mod common;

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::pin::{Pin, pin};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use roundel::time::{sleep, timeout};
use roundel::{Cores, Handle, Runtime, on_each_shard, spawn, spawn_blocking, spawn_on, yield_now};
use roundel_testing::{PATIENCE, in_defer};

use common::use_the_ring;

/// Unwinds without the panic hook's report.
fn unwind(text: &'static str) -> ! {
    resume_unwind(Box::new(text))
}

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        unwind("a bomb");
    }
}

/// A waker that counts its wakes and panics in each.
#[derive(Default)]
struct BadWaker(AtomicUsize);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
        // Without bytes: whoever contains it may leak it.
        resume_unwind(Box::new(()));
    }
}

fn bad_waker() -> (Arc<BadWaker>, Waker) {
    let bad = Arc::new(BadWaker::default());
    (bad.clone(), Waker::from(bad))
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Waits until a waker has been called and has panicked.
async fn until_called(bad: &BadWaker) {
    let called = timeout(PATIENCE, async {
        while bad.0.load(Ordering::Acquire) == 0 {
            sleep(Duration::from_micros(100)).await;
        }
    });
    assert!(called.await.is_ok(), "the waker was never called");
}

/// The shard still serves everything: a task, a timer, a job, a foreign spawn.
async fn still_serves() {
    assert_eq!(spawn(async { 1 }).await.unwrap(), 1);
    sleep(Duration::from_micros(100)).await;
    assert_eq!(spawn_blocking(|| 2).await.unwrap(), 2);
    assert_eq!(spawn_on(0, || async { 3 }).await.unwrap(), 3);
}

/// Of 1,000 tasks over all shards every tenth panics: 100 joins give the payload, 900 the output, and
/// the shards go on.
#[test]
fn h45_every_tenth_task_panics() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let (mut panicked, mut returned) = (0, 0);
            let tasks: Vec<_> = (0..1_000_usize)
                .map(|number| {
                    spawn_on(number % 2, move || async move {
                        yield_now().await;
                        if number % 10 < 1 {
                            resume_unwind(Box::new(number));
                        }
                        number
                    })
                })
                .collect();
            for (number, task) in tasks.into_iter().enumerate() {
                match task.await {
                    Ok(output) => {
                        assert_eq!(output, number);
                        returned += 1;
                    }
                    Err(error) => {
                        assert!(error.is_panic());
                        assert_eq!(error.into_panic().downcast_ref::<usize>(), Some(&number));
                        panicked += 1;
                    }
                }
            }
            assert_eq!((panicked, returned), (100, 900));
            for task in on_each_shard(|| async { still_serves().await }) {
                task.await.unwrap();
            }
            let counted: u64 = Handle::current()
                .metrics()
                .iter()
                .map(|shard| shard.tasks.panics)
                .sum();
            assert_eq!(counted, 100);
        });
    });
}

/// A panic in the closure that makes the future is the task's panic; provoked on both shards.
#[test]
fn a_panic_in_the_making_reaches_the_joiner() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            for shard in [0, 1] {
                let task = spawn_on(shard, move || {
                    if shard < 2 {
                        unwind("made badly");
                    }
                    async {}
                });
                let payload = task.await.unwrap_err().into_panic();
                assert_eq!(payload.downcast_ref(), Some(&"made badly"));
            }
            still_serves().await;
        });
    });
}

/// A future that panics in its drop after it gave its output costs nobody the output.
#[test]
fn a_panic_in_the_drop_of_a_finished_future_stays() {
    in_defer(|case| {
        struct Finishes {
            _bomb: Bomb,
        }
        impl Future for Finishes {
            type Output = u32;
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
                Poll::Ready(4)
            }
        }
        case.run(async {
            assert_eq!(spawn(Finishes { _bomb: Bomb }).await.unwrap(), 4);
            still_serves().await;
        });
    });
}

/// A future that panics, and again in its drop, gives the first panic to who joins.
#[test]
fn a_panic_in_the_drop_of_a_panicked_future_stays() {
    in_defer(|case| {
        struct Panics {
            _bomb: Bomb,
        }
        impl Future for Panics {
            type Output = ();
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                unwind("the first")
            }
        }
        case.run(async {
            let payload = spawn(Panics { _bomb: Bomb })
                .await
                .unwrap_err()
                .into_panic();
            assert_eq!(payload.downcast_ref(), Some(&"the first"));
            still_serves().await;
        });
    });
}

/// An aborted future that panics in its drop: who joins is told of the panic, and the shard goes on;
/// provoked before the first poll and while it waits.
#[test]
fn a_panic_in_the_drop_of_an_aborted_future_reaches_the_joiner() {
    in_defer(|case| {
        case.run(async {
            for polls in [0, 1] {
                let bomb = Bomb;
                let task = spawn(async move {
                    let _bomb = bomb;
                    pending::<()>().await;
                });
                for _ in 0..polls {
                    yield_now().await;
                }
                task.abort();
                let payload = task.await.unwrap_err().into_panic();
                assert_eq!(payload.downcast_ref(), Some(&"a bomb"));
            }
            still_serves().await;
        });
    });
}

/// Futures that panic in their drop when the runtime ends cost no other task its drop.
#[test]
fn a_panic_in_the_drop_of_a_future_at_the_end_stays() {
    in_defer(|case| {
        let dropped = Rc::new(Cell::new(0));
        struct Counts(Rc<Cell<u32>>);
        impl Drop for Counts {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        case.run(async {
            for _ in 0..10 {
                let (bomb, counts) = (Bomb, Counts(dropped.clone()));
                drop(spawn(async move {
                    let (_bomb, _counts) = (bomb, counts);
                    pending::<()>().await;
                }));
            }
            use_the_ring().await;
        });
        assert_eq!(dropped.get(), 10);
    });
}

/// An output that panics in its drop reaches neither the shard nor who drops the handle; provoked by
/// dropping the handle before the task ends and after, on this shard and on another.
#[test]
fn h44_a_panic_in_the_drop_of_an_unwanted_output_stays() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            drop(spawn(async { Bomb }));
            let after = spawn(async { Bomb });
            drop(spawn_on(1, || async { Bomb }));
            let far = spawn_on(1, || async { Bomb });
            let job = spawn_blocking(|| Bomb);
            drop(spawn_blocking(|| Bomb));
            while !(after.is_finished() && far.is_finished() && job.is_finished()) {
                sleep(Duration::from_micros(100)).await;
            }
            drop(after);
            drop(far);
            drop(job);
            for task in on_each_shard(|| async { still_serves().await }) {
                task.await.unwrap();
            }
        });
    });
}

/// A panic whose payload panics in its drop stays where it is; provoked with nobody joining, before and
/// after the end, and a payload whose drop panics with such a payload again.
#[test]
fn a_panic_in_the_drop_of_a_payload_stays() {
    /// How many more payloads panic in their drops.
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    /// No bytes, so that nothing is leaked with the payload that is given up in the end.
    struct Russian;
    impl Drop for Russian {
        fn drop(&mut self) {
            let left = LEFT.load(Ordering::Relaxed);
            if left > 0 {
                LEFT.store(left - 1, Ordering::Relaxed);
                resume_unwind(Box::new(Russian));
            }
        }
    }
    in_defer(|case| {
        case.run(async {
            for depth in 0..5 {
                LEFT.store(depth, Ordering::Relaxed);
                let panics = async || resume_unwind(Box::new(Russian));
                drop(spawn(panics()));
                yield_now().await;
                LEFT.store(depth, Ordering::Relaxed);
                let task = spawn(panics());
                while !task.is_finished() {
                    yield_now().await;
                }
                drop(task);
            }
            still_serves().await;
        });
    });
}

/// A waker that panics when a task ends costs nobody anything; provoked on both kinds of handles.
#[test]
fn a_panic_in_the_waker_of_who_joins_stays() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let (bad, waker) = bad_waker();
            let mut task = spawn(async { 5 });
            assert!(poll_with(&mut task, &waker).is_pending());
            until_called(&bad).await;
            assert_eq!(task.await.unwrap(), 5);

            let (bad, waker) = bad_waker();
            let (end, ended) = futures::channel::oneshot::channel::<()>();
            let mut task = spawn_on(1, move || ended);
            assert!(poll_with(&mut task, &waker).is_pending());
            end.send(()).unwrap();
            until_called(&bad).await;
            task.await.unwrap().unwrap();
            for task in on_each_shard(|| async { still_serves().await }) {
                task.await.unwrap();
            }
        });
    });
}

/// A waker that panics when a timer fires costs the timers after it nothing.
#[test]
fn a_panic_in_the_waker_of_a_timer_stays() {
    in_defer(|case| {
        case.run(async {
            let (bad, waker) = bad_waker();
            let mut sleeping = sleep(Duration::from_millis(1));
            assert!(poll_with(&mut sleeping, &waker).is_pending());
            let others: Vec<_> = (0..10)
                .map(|_| spawn(sleep(Duration::from_millis(1))))
                .collect();
            until_called(&bad).await;
            for other in others {
                timeout(PATIENCE, other).await.expect("it fires").unwrap();
            }
            sleeping.await;
            still_serves().await;
        });
    });
}

/// A waker that panics when a blocking job ends, in the shard's inbox, costs the others nothing.
#[test]
fn a_panic_in_the_waker_of_a_job_stays() {
    in_defer(|case| {
        case.run(async {
            let (bad, waker) = bad_waker();
            let (end, ended) = mpsc::channel::<()>();
            let mut job = spawn_blocking(move || ended.recv().is_err());
            assert!(poll_with(&mut job, &waker).is_pending());
            drop(end);
            until_called(&bad).await;
            assert!(job.await.unwrap());
            still_serves().await;
        });
    });
}

/// A waker that panics when an operation completes, in the reactor, costs the others nothing.
#[test]
fn a_panic_in_the_waker_of_an_operation_stays() {
    in_defer(|case| {
        case.run(async {
            let (bad, waker) = bad_waker();
            let file = roundel::fs::File::open("/proc/self/status").await.unwrap();
            {
                let mut read = pin!(file.read_at(Vec::with_capacity(16), 0));
                let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
                let (beside, _) = file.read_at(Vec::with_capacity(16), 0).await;
                assert_eq!(beside.unwrap(), 16);
                until_called(&bad).await;
                let (result, bytes) = read.await;
                assert_eq!((result.unwrap(), bytes.len()), (16, 16));
            }
            still_serves().await;
        });
    });
}

/// A closure that was never called and panics in its drop stays where it is; provoked by spawning on a
/// runtime that has ended, and by its end.
#[test]
fn a_panic_in_the_drop_of_a_closure_stays() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        runtime.block_on(use_the_ring());
        let handle = runtime.handle().clone();
        let spawn_bomb = |handle: &Handle| {
            let bomb = Bomb;
            handle.spawn(move || async move {
                let _bomb = bomb;
            })
        };
        let early = spawn_bomb(&handle);
        case.end(runtime);
        let late = spawn_bomb(&handle);
        for task in [early, late] {
            let error = futures::executor::block_on(task).unwrap_err();
            assert_eq!(error.into_panic().downcast_ref(), Some(&"a bomb"));
        }
    });
}

/// A panic of the root future reaches who called `block_on`, with its payload; the runtime goes on.
#[test]
fn a_panic_of_the_root_future_reaches_the_caller() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        let task = runtime.block_on(async { spawn(async { 6 }) });
        let caught = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                yield_now().await;
                panic_any(7_u16)
            })
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<u16>(), Some(&7));
        assert!(Handle::try_current().is_none(), "the shard was left");
        assert_eq!(runtime.block_on(task).unwrap(), 6);
        runtime.block_on(still_serves());
        case.end(runtime);
    });
}

/// A panic of the root future in its drop reaches the caller, too, and the shard is left.
#[test]
fn a_panic_in_the_drop_of_the_root_future_reaches_the_caller() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        let mut bomb = Some(Bomb);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(poll_fn(move |_| {
                let _ = &mut bomb;
                Poll::Ready(())
            }));
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"a bomb"));
        assert!(Handle::try_current().is_none());
        runtime.block_on(still_serves());
        case.end(runtime);
    });
}

/// A hook that panics takes no shard down and stops no end; provoked on the shards with threads of
/// their own, and at the end on all.
#[test]
fn a_panic_in_a_hook_stays() {
    in_defer(|case| {
        let here = std::thread::current().id();
        let stopped = Arc::new(AtomicUsize::new(0));
        let count = stopped.clone();
        let builder = case
            .builder()
            .cores(Cores::Count(3))
            .on_thread_start(move || {
                if std::thread::current().id() != here {
                    unwind("at the start");
                }
            })
            .on_thread_stop(move || {
                count.fetch_add(1, Ordering::Relaxed);
                unwind("at the end");
            });
        case.run_on(builder, async {
            for task in on_each_shard(|| async { roundel::shard() }) {
                timeout(PATIENCE, task)
                    .await
                    .expect("its shard lives")
                    .unwrap();
            }
            still_serves().await;
        });
        assert_eq!(stopped.load(Ordering::Relaxed), 3);
    });
}

/// A hook that panics on the thread that builds is that thread's panic, and no shard is left behind.
#[test]
fn a_panic_in_a_hook_while_building_leaves_nothing() {
    in_defer(|case| {
        let here = std::thread::current().id();
        let built = catch_unwind(AssertUnwindSafe(|| {
            case.builder()
                .cores(Cores::Count(3))
                .on_thread_start(move || {
                    if std::thread::current().id() == here {
                        unwind("while building");
                    }
                })
                .build()
        }));
        let payload = built.map(drop).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"while building"));
        // That no thread and no descriptor is left, the helper sees.
    });
}

/// What is said on standard error, when nobody reads it any more, brings no shard down; provoked in a
/// process whose standard error is a pipe without a reader.
#[test]
fn a_closed_standard_error_is_no_panic() {
    const CHILD: &str = "ROUNDEL_TEST_PANICS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        // Standard input ends when the reader of standard error has gone.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            drop(spawn(async { unwind("nobody joins") }));
            drop(spawn(async { Bomb }));
            let (bad, waker) = bad_waker();
            let mut task = spawn(async {});
            assert!(poll_with(&mut task, &waker).is_pending());
            until_called(&bad).await;
            still_serves().await;
        });
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "a_closed_standard_error_is_no_panic",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
