//! A runtime ends within its deadline, drops everything where it belongs, and names what it could not
//! end (P4, H42, H46, H47).

#![allow(
    clippy::async_yields_async,
    reason = "handles leave their `block_on` on purpose"
)]

mod common;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use roundel::sync::{Notify, mpsc as local, oneshot};
use roundel::time::{interval, sleep, timeout};
use roundel::{Cores, JoinHandle, on_each_shard, spawn, spawn_blocking, spawn_on, yield_now};
use roundel_testing::{PATIENCE, in_defer, scaled};

use common::use_the_ring;

/// Counts its drops.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Dropping a runtime whose tasks wait for everything there is to wait for returns at once and drops
/// all of them; provoked on two shards.
#[test]
fn h42_dropping_a_runtime_with_waiting_tasks_returns() {
    in_defer(|case| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        let count = dropped.clone();
        runtime.block_on(async move {
            let waiting = on_each_shard(move || async move {
                fn wait(count: &Arc<AtomicUsize>, future: impl Future + 'static) {
                    let guard = Guard(count.clone());
                    drop(spawn(async move {
                        let _guard = guard;
                        future.await;
                        unreachable!("nobody ends this");
                    }));
                }
                wait(&count, sleep(Duration::from_secs(3600)));
                wait(&count, sleep(Duration::MAX));
                wait(&count, timeout(Duration::from_secs(3600), pending::<()>()));
                wait(&count, spawn(pending::<()>()));
                wait(&count, spawn_on(0, pending::<()>));
                wait(&count, spawn_on(1, pending::<()>));
                let (sender, receiver) = local::channel::<()>(1);
                let (idle, mut starved) = local::channel::<()>(1);
                wait(&count, async move {
                    let _receiver = receiver;
                    starved.recv().await
                });
                wait(&count, async move {
                    let _idle = idle;
                    sender.send(()).await.unwrap();
                    sender.send(()).await.unwrap();
                });
                let notify = Rc::new(Notify::new());
                wait(&count, async move { notify.notified().await });
                let (sender, receiver) = oneshot::channel::<()>();
                wait(&count, receiver);
                wait(&count, async move {
                    let _sender = sender;
                    let mut beats = interval(Duration::from_secs(3600));
                    beats.tick().await;
                    beats.tick().await;
                });
                for _ in 0..3 {
                    yield_now().await;
                }
            });
            for task in waiting {
                task.await.unwrap();
            }
            let expired = timeout(Duration::from_millis(1), pending::<()>());
            assert!(expired.await.is_err());
        });
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        let before = Instant::now();
        drop(runtime);
        assert!(
            before.elapsed() < Duration::from_secs(1),
            "{:?}",
            before.elapsed()
        );
        assert_eq!(dropped.load(Ordering::Relaxed), 22);
    });
}

/// A waker that is called in a loop while its runtime is dropped, and afterwards, does no harm: the
/// future is dropped once, and late wakes do nothing; provoked round after round, a task a shard.
#[test]
fn h46_a_waker_is_called_while_the_runtime_is_dropped() {
    in_defer(|case| {
        let mut late = Vec::new();
        let rounds = scaled(10_000);
        let dropped = Arc::new(AtomicUsize::new(0));
        for round in 0..rounds {
            let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
            let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
            runtime.block_on(async {
                for shard in [0, 1] {
                    let (wakers, guard) = (wakers.clone(), Guard(dropped.clone()));
                    let (started, start) = futures::channel::oneshot::channel();
                    drop(spawn_on(shard, move || {
                        let _guard = guard;
                        let mut started = Some(started);
                        poll_fn(move |cx| {
                            let _guard = &_guard;
                            if let Some(started) = started.take() {
                                wakers.lock().unwrap().push(cx.waker().clone());
                                started.send(()).unwrap();
                            }
                            Poll::<()>::Pending
                        })
                    }));
                    start.await.unwrap();
                }
            });
            let wakers = std::mem::take(&mut *wakers.lock().unwrap());
            let stop = Arc::new(AtomicBool::new(false));
            let (begun, begin) = mpsc::channel();
            let (stopped, wake) = (stop.clone(), wakers.clone());
            let waking = thread::spawn(move || {
                begun.send(()).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    wake.iter().for_each(Waker::wake_by_ref);
                    wake.clone().into_iter().for_each(Waker::wake);
                }
            });
            begin.recv().unwrap();
            drop(runtime);
            stop.store(true, Ordering::Relaxed);
            waking.join().unwrap();
            assert_eq!(dropped.load(Ordering::Relaxed), 2 * (round + 1));
            if round % 16 == 0 {
                late.extend(wakers);
            }
        }
        // The wakers of runtimes long gone.
        let woken = thread::spawn(move || {
            late.iter().for_each(Waker::wake_by_ref);
            late.into_iter().for_each(Waker::wake);
        });
        woken.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 2 * rounds);
    });
}

/// The root future's waker, too, may be called while and after its runtime ends.
#[test]
fn h46_the_waker_of_the_root_future_outlives_it() {
    in_defer(|case| {
        for _ in 0..scaled(5_000) {
            let runtime = case.builder().build().unwrap();
            let waker = runtime.block_on(poll_fn(|cx| Poll::Ready(cx.waker().clone())));
            let stop = Arc::new(AtomicBool::new(false));
            let (stopped, wake) = (stop.clone(), waker.clone());
            let waking = thread::spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    wake.wake_by_ref();
                }
            });
            runtime.block_on(yield_now());
            drop(runtime);
            stop.store(true, Ordering::Relaxed);
            waking.join().unwrap();
            waker.wake();
        }
    });
}

/// A wake of a root future that is over holds no end up; provoked by a wake between `block_on` and the
/// end.
#[test]
fn a_stale_wake_of_the_root_future_holds_no_end_up() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        let waker = runtime.block_on(async {
            use_the_ring().await;
            poll_fn(|cx| Poll::Ready(cx.waker().clone())).await
        });
        waker.wake();
        let before = Instant::now();
        let report = runtime.shutdown(2 * PATIENCE);
        assert!(report.is_clean(), "{report}");
        assert!(before.elapsed() < PATIENCE, "{:?}", before.elapsed());
    });
}

/// A guard whose drop spawns and makes a timer during the end panics nowhere and hangs nowhere: its
/// task's handle says cancelled, and its future is dropped.
#[test]
fn h47_spawning_in_a_drop_during_the_end() {
    struct Spawns {
        left: Rc<RefCell<Vec<JoinHandle<()>>>>,
        captured: Rc<()>,
        depth: u32,
    }
    impl Drop for Spawns {
        fn drop(&mut self) {
            let mut sleeping = pin!(sleep(Duration::from_millis(1)));
            let polled = sleeping
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            let captured = self.captured.clone();
            let again = (self.depth > 0).then(|| Spawns {
                left: self.left.clone(),
                captured: captured.clone(),
                depth: self.depth - 1,
            });
            let task = spawn(async move {
                let _captured = (captured, again);
                sleep(Duration::from_secs(3600)).await;
                unreachable!("its runtime ends");
            });
            self.left.borrow_mut().push(task);
        }
    }
    in_defer(|case| {
        let (left, captured) = (Rc::default(), Rc::new(()));
        let guard = Spawns {
            left: Rc::clone(&left),
            captured: captured.clone(),
            depth: 5,
        };
        case.run(async {
            drop(spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            }));
            use_the_ring().await;
        });
        let left = left.take();
        assert_eq!(left.len(), 6);
        for task in left {
            assert!(task.is_finished());
            assert!(task.now_or_never().unwrap().unwrap_err().is_cancelled());
        }
        assert_eq!(Rc::strong_count(&captured), 1, "nothing is left");
    });
}

/// Spawning from a drop to other shards and to the pool during the end resolves as cancelled or runs,
/// and never hangs; provoked by guards that spawn onto each other's shard.
#[test]
fn h47_spawning_elsewhere_during_the_end() {
    struct SpawnsThere(usize, futures::channel::mpsc::UnboundedSender<&'static str>);
    impl Drop for SpawnsThere {
        fn drop(&mut self) {
            let (task, job) = (self.1.clone(), self.1.clone());
            drop(spawn_on(self.0, move || async move { drop(task) }));
            drop(spawn_blocking(move || drop(job)));
            self.1.unbounded_send("dropped").unwrap();
        }
    }
    in_defer(|case| {
        for _ in 0..scaled(2_500) {
            let (sender, receiver) = futures::channel::mpsc::unbounded();
            let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
            runtime.block_on(async {
                for shard in [0, 1] {
                    let sender = sender.clone();
                    let (started, start) = futures::channel::oneshot::channel();
                    drop(spawn_on(shard, move || async move {
                        let _guard = SpawnsThere(1 - shard, sender);
                        started.send(()).unwrap();
                        pending::<()>().await;
                    }));
                    start.await.unwrap();
                }
            });
            drop(sender);
            case.end(runtime);
            // Ends, because whatever held a sender is gone.
            let all: Vec<_> = futures::executor::block_on_stream(receiver).collect();
            assert_eq!(all, ["dropped", "dropped"]);
        }
    });
}

/// The end takes no longer than its deadline with 0, 1, 10 and 10,000 tasks that wait, and leaves none.
#[test]
fn p04_the_end_is_quick_with_any_number_of_tasks() {
    in_defer(|case| {
        for tasks in [0, 1, 10, 10_000] {
            let dropped = Arc::new(AtomicUsize::new(0));
            let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
            let count = dropped.clone();
            runtime.block_on(async {
                for task in on_each_shard(move || async move {
                    for number in 0..tasks {
                        let guard = Guard(count.clone());
                        drop(spawn(async move {
                            let _guard = guard;
                            sleep(Duration::from_secs(3600 + number)).await;
                        }));
                    }
                    sleep(Duration::from_millis(1)).await;
                }) {
                    task.await.unwrap();
                }
            });
            let before = Instant::now();
            case.end(runtime);
            assert!(before.elapsed() < PATIENCE, "{:?}", before.elapsed());
            assert_eq!(dropped.load(Ordering::Relaxed) as u64, 2 * tasks);
        }
    });
}

/// A blocking job that does not return is abandoned at the deadline, and named; queued ones are dropped.
#[test]
fn p04_a_stuck_job_is_abandoned_and_named() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        let (release, released) = mpsc::channel::<()>();
        let (started, start) = futures::channel::oneshot::channel();
        let job = runtime.block_on(async {
            let job = spawn_blocking(move || {
                started.send(()).unwrap();
                let _ = released.recv();
                9
            });
            start.await.unwrap();
            job
        });
        let before = Instant::now();
        let report = runtime.shutdown(Duration::from_millis(100));
        let took = before.elapsed();
        assert!(
            took >= Duration::from_millis(100),
            "it was given its time: {took:?}"
        );
        assert!(took < PATIENCE, "{took:?}");
        assert_eq!(report.jobs.len(), 1, "{report}");
        assert!(
            report.jobs[0].contains("p04_a_stuck_job_is_abandoned_and_named"),
            "{report}"
        );
        assert!(
            report.operations.is_empty() && report.shards.is_empty(),
            "{report}"
        );
        assert!(!report.is_clean());
        assert!(report.to_string().starts_with("abandoned: "), "{report}");
        // It still ends when it can, and tells who waits.
        drop(release);
        assert_eq!(futures::executor::block_on(job).unwrap(), 9);
    });
}

/// A shard that does not come out of a task is abandoned at the deadline, and named, and the others end;
/// it ends by itself when the task lets it.
#[test]
fn p04_a_stuck_shard_is_abandoned_and_named() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(3)).build().unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let (release, released) = mpsc::channel::<()>();
        let (started, start) = futures::channel::oneshot::channel();
        let (stuck, behind, other) = runtime.block_on(async {
            let stuck = spawn_on(1, move || async move {
                started.send(()).unwrap();
                let _ = released.recv();
                10
            });
            start.await.unwrap();
            let (mine, others) = (Guard(dropped.clone()), Guard(dropped.clone()));
            let wait = |guard| async move {
                let _guard = guard;
                pending::<()>().await;
            };
            (
                stuck,
                spawn_on(1, move || wait(mine)),
                spawn_on(2, move || wait(others)),
            )
        });
        let before = Instant::now();
        let report = runtime.shutdown(Duration::from_millis(100));
        let took = before.elapsed();
        assert!(
            took >= Duration::from_millis(100),
            "it was given its time: {took:?}"
        );
        assert!(took < PATIENCE, "{took:?}");
        assert_eq!(report.shards, ["shard 1 did not come out of a task"]);
        assert!(
            report.jobs.is_empty() && report.operations.is_empty(),
            "{report}"
        );
        assert!(other.now_or_never().unwrap().unwrap_err().is_cancelled());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        drop(release);
        assert_eq!(
            futures::executor::block_on(stuck).unwrap(),
            10,
            "it had finished its poll"
        );
        let late = futures::executor::block_on(behind);
        assert!(late.unwrap_err().is_cancelled());
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}

/// Dropping the runtime gives a stuck job and a stuck shard half a second, and then goes on.
#[test]
fn p04_a_drop_does_not_wait_for_ever() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        let (release, released) = (Vec::new(), Arc::new(Mutex::new(Vec::new())));
        let mut release: Vec<mpsc::Sender<()>> = release;
        runtime.block_on(async {
            for job in [false, true] {
                let (end, ended) = mpsc::channel::<()>();
                release.push(end);
                let (started, start) = futures::channel::oneshot::channel();
                let stuck = move || {
                    started.send(()).unwrap();
                    let _ = ended.recv();
                };
                match job {
                    true => drop(spawn_blocking(stuck)),
                    false => drop(spawn_on(1, move || async move { stuck() })),
                }
                start.await.unwrap();
                released.lock().unwrap().push(job);
            }
        });
        assert_eq!(*released.lock().unwrap(), [false, true]);
        let before = Instant::now();
        drop(runtime);
        let took = before.elapsed();
        assert!(
            took >= Duration::from_millis(500) && took < PATIENCE,
            "{took:?}"
        );
        drop(release);
    });
}

/// Tasks whose drop spawns their like for ever are no reason not to end: at the deadline they are over.
#[test]
fn p04_a_drop_that_spawns_for_ever_is_cut_off() {
    struct Hydra(Rc<Cell<u64>>);
    impl Drop for Hydra {
        fn drop(&mut self) {
            // Ends outside of a shard: there is no spawning there.
            self.0.set(self.0.get() + 1);
            if roundel::Handle::try_current().is_some() {
                let head = Hydra(self.0.clone());
                drop(spawn(async move {
                    let _head = head;
                    pending::<()>().await;
                }));
            }
        }
    }
    in_defer(|case| {
        let cut = Rc::new(Cell::new(0));
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            let head = Hydra(cut.clone());
            drop(spawn(async move {
                let _head = head;
                pending::<()>().await;
            }));
            yield_now().await;
        });
        let before = Instant::now();
        let _report = runtime.shutdown(Duration::from_millis(50));
        let took = before.elapsed();
        assert!(
            took >= Duration::from_millis(50) && took < PATIENCE,
            "{took:?}"
        );
        assert!(cut.get() > 1);
        assert_eq!(Rc::strong_count(&cut), 1, "the last head is gone, too");
    });
}

/// A timeout longer than the clock can tell is no panic; provoked with the longest there is.
#[test]
fn a_shutdown_may_have_all_the_time_in_the_world() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        runtime.block_on(async {
            drop(spawn_on(1, pending::<()>));
            use_the_ring().await;
        });
        let report = runtime.shutdown(Duration::MAX);
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.to_string(), "nothing was abandoned");
    });
}

/// Wakers that tasks keep of each other, and handles that they keep of themselves, are no leak at the
/// end: provoked with a ring of tasks, each with the next one's waker and its own handle.
#[test]
fn tasks_that_hold_one_another_are_dropped() {
    struct Holds {
        _drop: Guard,
        next: Rc<RefCell<Vec<Waker>>>,
        own: Rc<RefCell<Option<JoinHandle<()>>>>,
    }
    impl Future for Holds {
        type Output = ();
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.next.borrow_mut().push(cx.waker().clone());
            let mut own = self.own.borrow_mut();
            if let Some(own) = own.as_mut() {
                // A task that waits for itself waits for ever.
                assert!(own.poll_unpin(cx).is_pending());
            }
            Poll::Pending
        }
    }
    in_defer(|case| {
        let dropped = Arc::new(AtomicUsize::new(0));
        case.run(async {
            let ring = Rc::new(RefCell::new(Vec::new()));
            for _ in 0..10 {
                let own = Rc::new(RefCell::new(None));
                let task = spawn(Holds {
                    _drop: Guard(dropped.clone()),
                    next: ring.clone(),
                    own: own.clone(),
                });
                *own.borrow_mut() = Some(task);
            }
            use_the_ring().await;
        });
        assert_eq!(dropped.load(Ordering::Relaxed), 10);
    });
}

/// A task that is woken by another's drop during the end, and a waker that drops a runtime's handle,
/// come back to nothing borrowed; provoked by drops that wake, send and abort.
#[test]
fn drops_may_come_back_during_the_end() {
    struct ComesBack {
        wake: Rc<RefCell<Vec<Waker>>>,
        abort: Rc<RefCell<Vec<roundel::AbortHandle>>>,
        send: local::UnboundedSender<u32>,
    }
    impl Drop for ComesBack {
        fn drop(&mut self) {
            let wakers = self.wake.borrow().clone();
            wakers.into_iter().for_each(Waker::wake);
            self.abort
                .borrow()
                .iter()
                .for_each(roundel::AbortHandle::abort);
            let _ = self.send.send(1);
        }
    }
    struct Wakes(Waker);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.wake_by_ref();
        }
    }
    in_defer(|case| {
        case.run(async {
            let (wake, abort) = (Rc::new(RefCell::new(Vec::new())), Rc::default());
            let (send, mut receive) = local::unbounded_channel();
            let receiving = spawn(async move { while receive.recv().await.is_some() {} });
            drop(receiving);
            for _ in 0..10 {
                let back = ComesBack {
                    wake: wake.clone(),
                    abort: Rc::clone(&abort),
                    send: send.clone(),
                };
                let wake = wake.clone();
                let task = spawn(async move {
                    let _back = back;
                    poll_fn(|cx| {
                        wake.borrow_mut()
                            .push(Waker::from(Arc::new(Wakes(cx.waker().clone()))));
                        Poll::<()>::Pending
                    })
                    .await;
                });
                abort.borrow_mut().push(task.abort_handle());
                drop(task);
            }
            use_the_ring().await;
        });
    });
}

/// A runtime that a panic drops ends as any other, though its tasks panic in their drops as well.
#[test]
fn a_runtime_that_a_panic_drops_ends() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("a bomb"));
        }
    }
    in_defer(|case| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
            runtime.block_on(async {
                for shard in [0, 1] {
                    let guard = Guard(dropped.clone());
                    drop(spawn_on(shard, move || async move {
                        let _dropped = (Bomb, guard);
                        pending::<()>().await;
                    }));
                }
                use_the_ring().await;
                std::panic::resume_unwind(Box::new("the root"));
            })
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"the root"));
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    });
}

/// A runtime kept in a thread-local ends with its thread, tasks and all; provoked with one that is
/// dropped among the other thread-locals.
#[test]
fn a_runtime_in_a_thread_local_ends_with_its_thread() {
    thread_local! {
        static KEPT: RefCell<Option<roundel::Runtime>> = const { RefCell::new(None) };
    }
    in_defer(|case| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (builder, guard) = (case.builder(), Guard(dropped.clone()));
        let lives = thread::spawn(move || {
            let runtime = builder.cores(Cores::Count(2)).build().unwrap();
            runtime.block_on(async {
                drop(spawn(async move {
                    let _guard = guard;
                    pending::<()>().await;
                }));
                use_the_ring().await;
            });
            KEPT.set(Some(runtime));
        });
        lives.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

/// A blocking job that waits for a task is told when the runtime ends, and so does not hold it up.
#[test]
fn a_job_that_waits_for_a_task_ends_with_it() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        let handle = runtime.handle().clone();
        let (started, start) = futures::channel::oneshot::channel();
        let job = runtime.block_on(async {
            let job = spawn_blocking(move || {
                handle.block_on(|| async move {
                    started.send(()).unwrap();
                    pending::<()>().await;
                })
            });
            start.await.unwrap();
            job
        });
        case.end(runtime);
        let waited = job.now_or_never().expect("it is over").unwrap();
        assert!(waited.unwrap_err().is_cancelled());
    });
}
