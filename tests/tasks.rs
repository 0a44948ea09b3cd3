//! Tasks: where they run, how they end, and that nothing of them is touched by a foreign thread (P7).

#![allow(
    clippy::async_yields_async,
    reason = "handles leave their `block_on` on purpose"
)]

mod common;

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures::FutureExt;
use roundel::time::{sleep, timeout};
use roundel::{
    Cores, Handle, SendJoinHandle, on_each_shard, shard, spawn, spawn_any, spawn_blocking,
    spawn_on, yield_now,
};
use roundel_testing::{PATIENCE, in_defer, scaled};

use common::use_the_ring;

/// Waits until something holds that another thread brings about.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            sleep(Duration::from_micros(100)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// Counts its drops, and whether all were on the thread it was made on. Not `Send`.
struct Tracked {
    log: Arc<Drops>,
    born: ThreadId,
    _stays: Rc<()>,
}

#[derive(Default)]
struct Drops {
    made: AtomicUsize,
    at_home: AtomicUsize,
    abroad: AtomicUsize,
}

impl Drops {
    fn track(self: &Arc<Self>) -> Tracked {
        self.made.fetch_add(1, Ordering::Relaxed);
        Tracked {
            log: self.clone(),
            born: thread::current().id(),
            _stays: Rc::new(()),
        }
    }

    /// How many were made and not dropped; none may have been dropped on a foreign thread.
    fn left(&self) -> usize {
        assert_eq!(self.abroad.load(Ordering::Relaxed), 0, "dropped abroad");
        self.made.load(Ordering::Relaxed) - self.at_home.load(Ordering::Relaxed)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let place = match thread::current().id() == self.born {
            true => &self.log.at_home,
            false => &self.log.abroad,
        };
        place.fetch_add(1, Ordering::Relaxed);
    }
}

/// A spawned task gives its output, under a number of its own, and is finished then.
#[test]
fn a_task_gives_its_output() {
    in_defer(|case| {
        case.run(async {
            let captured = Rc::new(Cell::new(1));
            let shared = captured.clone();
            let task = spawn(async move {
                shared.set(shared.get() + 1);
                Rc::new("an output that is not Send")
            });
            let other = spawn(async {});
            assert_ne!(task.id(), other.id());
            assert_eq!(task.id(), task.abort_handle().id());
            assert!(!task.is_finished());
            assert_eq!(captured.get(), 1, "spawning polls nothing");
            let asked = task.abort_handle();
            assert_eq!(*task.await.unwrap(), "an output that is not Send");
            assert!(asked.is_finished());
            assert_eq!(captured.get(), 2);
            assert_eq!(
                Rc::strong_count(&captured),
                1,
                "the future is gone before its output is seen"
            );
            other.await.unwrap();
            use_the_ring().await;
        });
    });
}

/// `spawn_on` runs its closure and all polls on that shard, `on_each_shard` on each once, in order, and
/// `spawn_any` on all by turns.
#[test]
fn tasks_run_where_they_are_spawned() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(3)).name("where"), async {
            for number in 0..3 {
                let task = spawn_on(number, move || {
                    let (made_on, thread) = (shard(), thread::current().id());
                    async move {
                        for _ in 0..10 {
                            yield_now().await;
                            use_the_ring().await;
                            assert_eq!(thread::current().id(), thread);
                        }
                        (
                            made_on,
                            shard(),
                            thread::current().name().map(str::to_owned),
                        )
                    }
                });
                let (made_on, ran_on, name) = task.await.unwrap();
                assert_eq!((made_on, ran_on), (number, number));
                if number > 0 {
                    assert_eq!(name, Some(format!("where-{number}")));
                }
            }
            let mut numbers = Vec::new();
            for task in on_each_shard(|| async { shard() }) {
                numbers.push(task.await.unwrap());
            }
            assert_eq!(numbers, [0, 1, 2]);
            let mut counts = [0; 3];
            for task in (0..30)
                .map(|_| spawn_any(|| async { shard() }))
                .collect::<Vec<_>>()
            {
                counts[task.await.unwrap()] += 1;
            }
            assert_eq!(counts, [10, 10, 10]);
            assert_eq!(Handle::current().shards(), 3);
        });
    });
}

/// An abort ends a task in each of its states: before its first poll, while it waits, while it is
/// queued, while it runs, and does nothing to a finished one; provoked on its own shard and on another.
#[test]
fn abort_in_every_state() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            // Before its first poll.
            let polled = Rc::new(Cell::new(false));
            let flag = polled.clone();
            let task = spawn(async move { flag.set(true) });
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(!polled.get());
            assert_eq!(Rc::strong_count(&polled), 1);

            // The same on another shard, which is held up meanwhile.
            let (hold, held) = mpsc::channel::<()>();
            let holding = spawn_on(1, move || async move { held.recv() });
            let ran = Arc::new(AtomicBool::new(false));
            let flag = ran.clone();
            let task = spawn_on(1, move || {
                flag.store(true, Ordering::Relaxed);
                async {}
            });
            task.abort();
            assert!(!task.is_finished(), "it ends on its own shard only");
            drop(hold);
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(!ran.load(Ordering::Relaxed), "its closure was not called");
            assert_eq!(Arc::strong_count(&ran), 1);
            assert!(holding.await.unwrap().is_err());

            // Waiting, aborted by its own shard, by another task there, and from a plain thread.
            let drops = Arc::new(Drops::default());
            for on in [0, 1] {
                let log = drops.clone();
                let (started, start) = futures::channel::oneshot::channel();
                let task = spawn_on(on, move || async move {
                    let _tracked = log.track();
                    started.send(()).unwrap();
                    pending::<()>().await;
                });
                start.await.unwrap();
                let abort = task.abort_handle();
                thread::spawn(move || abort.abort()).join().unwrap();
                assert!(
                    timeout(PATIENCE, task)
                        .await
                        .unwrap()
                        .unwrap_err()
                        .is_cancelled()
                );
                assert_eq!(drops.left(), 0);
            }
            let task = spawn(pending::<()>());
            yield_now().await;
            let abort = task.abort_handle();
            drop(spawn(async move { abort.abort() }));
            assert!(
                timeout(PATIENCE, task)
                    .await
                    .unwrap()
                    .unwrap_err()
                    .is_cancelled()
            );

            // Queued: it has been woken and not been polled yet.
            let polls = Rc::new(Cell::new(0));
            let counted = polls.clone();
            let waker = Rc::new(Cell::new(None));
            let leave = waker.clone();
            let task = spawn(poll_fn(move |cx| {
                counted.set(counted.get() + 1);
                leave.set(Some(cx.waker().clone()));
                Poll::<()>::Pending
            }));
            yield_now().await;
            waker.take().unwrap().wake();
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(polls.get(), 1);

            // Running: it aborts itself, and goes on to where it waits next.
            let (give, given) = futures::channel::oneshot::channel();
            let reached = Rc::new(Cell::new(0));
            let steps = reached.clone();
            let task = spawn(async move {
                let abort: roundel::AbortHandle = given.await.unwrap();
                abort.abort();
                steps.set(1);
                yield_now().await;
                steps.set(2);
            });
            give.send(task.abort_handle()).unwrap();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(reached.get(), 1);

            // Running, and it does not wait any more: the output counts.
            let (give, given) = futures::channel::oneshot::channel();
            let task = spawn(async move {
                let abort: roundel::AbortHandle = given.await.unwrap();
                abort.abort();
                5
            });
            give.send(task.abort_handle()).unwrap();
            assert_eq!(task.await.unwrap(), 5);

            // Finished, and a second time.
            let task = spawn(async { 6 });
            until("it ends", || task.is_finished()).await;
            task.abort();
            task.abort();
            assert_eq!(task.await.unwrap(), 6);
        });
    });
}

/// Aborting what a runtime left behind does nothing, and nothing is left to wait for; provoked after
/// its end with handles of every kind.
#[test]
fn abort_after_the_runtime_ended() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        let (local, there, job, finished) = runtime.block_on(async {
            let handles = (
                spawn(pending::<()>()),
                spawn_on(1, pending::<()>),
                spawn_blocking(|| 1),
                spawn(async { 2 }),
            );
            until("the job ends", || handles.2.is_finished()).await;
            use_the_ring().await;
            handles
        });
        let aborts = [
            local.abort_handle(),
            there.abort_handle(),
            job.abort_handle(),
        ];
        case.end(runtime);
        for abort in aborts {
            assert!(abort.is_finished());
            thread::spawn(move || abort.abort()).join().unwrap();
        }
        local.abort();
        finished.abort();
        assert!(local.is_finished() && there.is_finished() && finished.is_finished());
        assert!(local.now_or_never().unwrap().unwrap_err().is_cancelled());
        assert!(there.now_or_never().unwrap().unwrap_err().is_cancelled());
        assert_eq!(job.now_or_never().unwrap().unwrap(), 1);
        assert_eq!(finished.now_or_never().unwrap().unwrap(), 2);
    });
}

/// A detached task goes on, and its output is dropped on its shard; provoked by dropping the handle
/// before and after the task is over.
#[test]
fn a_detached_task_goes_on() {
    in_defer(|case| {
        case.run(async {
            let drops = Arc::new(Drops::default());
            let ran = Rc::new(Cell::new(0));
            let (steps, log) = (ran.clone(), drops.clone());
            drop(spawn(async move {
                for _ in 0..3 {
                    yield_now().await;
                    steps.set(steps.get() + 1);
                }
                log.track()
            }));
            until("it goes on", || ran.get() == 3).await;
            until("its output is dropped", || drops.left() == 0).await;

            let log = drops.clone();
            let task = spawn(async move { log.track() });
            until("it ends", || task.is_finished()).await;
            assert_eq!(drops.left(), 1);
            drop(task);
            assert_eq!(drops.left(), 0);
        });
    });
}

/// `is_finished` means that awaiting answers at once, on any thread; provoked by asking in a loop
/// while the task ends on its shard.
#[test]
fn finished_means_that_the_answer_is_there() {
    in_defer(|case| {
        let rounds = scaled(50_000);
        let runtime = case.builder().build().unwrap();
        let handle = runtime.handle().clone();
        let asking = thread::spawn(move || {
            for round in 0..rounds {
                let task = handle.spawn(move || async move { round });
                let until = Instant::now() + PATIENCE;
                while !task.is_finished() {
                    assert!(Instant::now() < until);
                    std::hint::spin_loop();
                }
                let answer = task.now_or_never().expect("it is there");
                assert_eq!(answer.unwrap(), round);
            }
        });
        runtime.block_on(async {
            until("the thread is through", || asking.is_finished()).await;
        });
        asking.join().unwrap();
        case.end(runtime);
    });
}

/// A handle that was sent away resolves there; provoked on a plain thread and on another shard.
#[test]
fn a_send_join_handle_resolves_anywhere() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let task = spawn_on(0, || async {
                use_the_ring().await;
                7
            });
            let (answer, answered) = futures::channel::oneshot::channel();
            let waiting = thread::spawn(move || {
                answer
                    .send(futures::executor::block_on(task).unwrap())
                    .unwrap();
            });
            assert_eq!(answered.await.unwrap(), 7);
            waiting.join().unwrap();
            let job = spawn_blocking(|| 8);
            let there = spawn_on(1, move || job);
            assert_eq!(there.await.unwrap().unwrap(), 8);
        });
    });
}

/// A blocking job's outcome reaches whoever waits, even while the shard that asked for it rests;
/// provoked by waiting on a plain thread after `block_on` has returned, before and after the job ends.
#[test]
fn a_job_of_a_resting_shard_wakes_who_waits_elsewhere() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        for round in 0..scaled(5_000) {
            let (release, released) = mpsc::channel::<()>();
            let job: SendJoinHandle<usize> = runtime.block_on(async move {
                spawn_blocking(move || {
                    let _ = released.recv();
                    round
                })
            });
            let (answer, answered) = mpsc::channel();
            let waiting = thread::spawn(move || {
                answer
                    .send(futures::executor::block_on(job).unwrap())
                    .unwrap();
            });
            drop(release);
            // Every other round the shard comes and goes meanwhile.
            if round % 2 == 1 {
                runtime.block_on(yield_now());
            }
            assert_eq!(
                answered.recv_timeout(PATIENCE),
                Ok(round),
                "it is never told"
            );
            waiting.join().unwrap();
        }
        runtime.block_on(use_the_ring());
        case.end(runtime);
    });
}

/// The same for a job that ends while the shard still runs and does not look any more; provoked by a
/// root future that is over in the very poll in which the job ends.
#[test]
fn a_job_that_ends_as_its_shard_goes_to_rest_wakes_who_waits_elsewhere() {
    in_defer(|case| {
        let runtime = case.builder().build().unwrap();
        for round in 0..10 {
            let (release, released) = mpsc::channel::<()>();
            let (polled, was_polled) = mpsc::channel();
            let (answer, answered) = mpsc::channel();
            let waiting = runtime.block_on(async {
                let mut job = spawn_blocking(move || {
                    let _ = released.recv();
                    round
                });
                let ended = job.abort_handle();
                let waiting = thread::spawn(move || {
                    let output = futures::executor::block_on(poll_fn(|cx| {
                        let polled_now = job.poll_unpin(cx);
                        let _ = polled.send(());
                        polled_now
                    }));
                    answer.send(output.unwrap()).unwrap();
                });
                was_polled.recv_timeout(PATIENCE).unwrap();
                drop(release);
                let until = Instant::now() + PATIENCE;
                while !ended.is_finished() {
                    assert!(Instant::now() < until);
                    thread::yield_now();
                }
                // Its worker delivers right after that, most likely before this is over.
                thread::sleep(Duration::from_millis(2));
                waiting
            });
            assert_eq!(
                answered.recv_timeout(PATIENCE),
                Ok(round),
                "it is never told"
            );
            waiting.join().unwrap();
        }
        runtime.block_on(use_the_ring());
        case.end(runtime);
    });
}

/// After the runtime has ended a spawn resolves as cancelled at once and drops its closure there and
/// then, on every shard and in the pool; provoked from a plain thread.
#[test]
fn a_spawn_after_the_end_is_cancelled() {
    in_defer(|case| {
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        runtime.block_on(use_the_ring());
        let handle = runtime.handle().clone();
        case.end(runtime);
        thread::spawn(move || {
            let captured = Arc::new(());
            for shard in [0, 1, 0, 1] {
                let inside = captured.clone();
                let task = handle.spawn_on(shard, move || async move { drop(inside) });
                assert!(task.is_finished());
                assert_eq!(Arc::strong_count(&captured), 1);
                assert!(task.now_or_never().unwrap().unwrap_err().is_cancelled());
            }
            let inside = captured.clone();
            let job = handle.spawn_blocking(move || drop(inside));
            assert!(job.now_or_never().unwrap().unwrap_err().is_cancelled());
            let inside = captured.clone();
            let run = handle.block_on(move || async move { drop(inside) });
            assert!(run.unwrap_err().is_cancelled());
            assert_eq!(Arc::strong_count(&captured), 1);
        })
        .join()
        .unwrap();
    });
}

/// What threads do with wakers until they are told to stop: clone, wake, wake by reference, drop.
fn torment(wakers: &Mutex<Vec<Waker>>, stop: &AtomicBool, mut turn: usize) {
    while !stop.load(Ordering::Acquire) {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let waker = {
            let mut wakers = wakers.lock().unwrap();
            match wakers.len() {
                0 => None,
                count if count > 64 && turn >> 60 == 0 => {
                    Some(wakers.swap_remove((turn >> 33) % count))
                }
                count => Some(wakers[(turn >> 33) % count].clone()),
            }
        };
        match (waker, (turn >> 40) % 3) {
            (None, _) => thread::yield_now(),
            (Some(waker), 0) => waker.wake(),
            (Some(waker), 1) => waker.wake_by_ref(),
            (Some(waker), _) => drop(waker),
        }
    }
}

/// Counts polls on the wrong thread as well as drops there.
struct Homebound(Tracked);

impl Future for Homebound {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if thread::current().id() != self.0.born {
            self.0.log.abroad.fetch_add(1, Ordering::Relaxed);
        }
        if cx.waker().will_wake(Waker::noop()) {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// Futures and outputs are polled and dropped on their own shard's thread, each exactly once, while
/// other threads clone, wake and drop the wakers, abort the tasks, and go on after the runtime's end.
#[test]
fn p07_tasks_stay_at_home() {
    in_defer(|case| {
        let tasks = scaled(10_000).max(500);
        let drops = Arc::new(Drops::default());
        let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let tormentors: Vec<_> = (1..3)
            .map(|turn| {
                let (wakers, stop) = (wakers.clone(), stop.clone());
                thread::spawn(move || torment(&wakers, &stop, turn))
            })
            .collect();
        let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
        let (mut left, mut aborted) = (Vec::new(), Vec::new());
        runtime.block_on(async {
            for number in 0..tasks {
                let (log, wakers) = (drops.clone(), wakers.clone());
                let task = spawn_on(number % 2, move || async move {
                    let (tracked, output) = (log.track(), log.track());
                    poll_fn(|cx| {
                        wakers.lock().unwrap().push(cx.waker().clone());
                        Poll::Ready(())
                    })
                    .await;
                    match number % 5 {
                        // Ends by itself; its handle's output is dropped in the task.
                        0 => drop(spawn(async move { output })),
                        1 => std::panic::resume_unwind(Box::new("on purpose")),
                        // Ends by an abort, or with the runtime.
                        _ => Homebound(tracked).await,
                    }
                });
                match number % 5 {
                    0 => task.await.unwrap(),
                    1 => assert!(task.await.unwrap_err().is_panic()),
                    2 => aborted.push(task),
                    _ => left.push(task),
                }
            }
            let aborts: Vec<_> = aborted.iter().map(SendJoinHandle::abort_handle).collect();
            thread::spawn(move || aborts.iter().for_each(roundel::AbortHandle::abort))
                .join()
                .unwrap();
            for task in aborted {
                let ended = timeout(PATIENCE, task).await.expect("an abort was lost");
                assert!(ended.unwrap_err().is_cancelled());
            }
        });
        let still = drops.left();
        assert!(still >= tasks / 5, "the rest waits for the end: {still}");
        case.end(runtime);
        assert_eq!(drops.left(), 0, "each was dropped once");
        for task in left {
            assert!(task.now_or_never().unwrap().unwrap_err().is_cancelled());
        }
        // The threads go on for a while with wakers of tasks that are no more.
        let woken = Arc::new(AtomicUsize::new(0));
        for waker in wakers.lock().unwrap().iter() {
            waker.wake_by_ref();
            woken.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Release);
        for tormentor in tormentors {
            tormentor.join().unwrap();
        }
        assert!(
            woken.load(Ordering::Relaxed) > 0,
            "wakers outlived the runtime"
        );
        wakers.lock().unwrap().clear();
        assert_eq!(drops.left(), 0);
    });
}

/// A shutdown without any time still drops every future, on its own shard; provoked with tasks on two
/// shards whose wakers other threads wake all along.
#[test]
fn p07_a_shutdown_without_time_drops_futures_at_home() {
    in_defer(|case| {
        for _ in 0..scaled(1_000) {
            let drops = Arc::new(Drops::default());
            let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
            let stop = Arc::new(AtomicBool::new(false));
            let runtime = case.builder().cores(Cores::Count(2)).build().unwrap();
            runtime.block_on(async {
                for number in 0..20 {
                    let (log, wakers) = (drops.clone(), wakers.clone());
                    let (started, start) = futures::channel::oneshot::channel();
                    drop(spawn_on(number % 2, move || async move {
                        let _tracked = log.track();
                        started.send(()).unwrap();
                        poll_fn(|cx| {
                            wakers.lock().unwrap().push(cx.waker().clone());
                            Poll::<()>::Pending
                        })
                        .await;
                    }));
                    start.await.unwrap();
                }
            });
            let waking = {
                let (wakers, stop) = (wakers.clone(), stop.clone());
                thread::spawn(move || torment(&wakers, &stop, 3))
            };
            let report = runtime.shutdown(Duration::ZERO);
            stop.store(true, Ordering::Release);
            waking.join().unwrap();
            let kept = wakers.lock().unwrap().drain(..).collect::<Vec<_>>();
            kept.into_iter().for_each(Waker::wake);
            assert!(report.is_clean(), "{report}");
            assert_eq!(drops.left(), 0);
        }
    });
}

/// Nothing that was spawned from elsewhere is forgotten at a shutdown without time; provoked with more
/// spawns than a shard takes in one batch, none of which was ever polled.
#[test]
fn remote_spawns_are_all_cancelled_at_the_end() {
    in_defer(|case| {
        let captured = Arc::new(());
        let runtime = case.builder().build().unwrap();
        let tasks: Vec<_> = (0..2_000)
            .map(|_| {
                let inside = captured.clone();
                runtime.spawn(move || async move { drop(inside) })
            })
            .collect();
        let handle = runtime.handle().clone();
        let report = runtime.shutdown(Duration::ZERO);
        assert!(report.is_clean(), "{report}");
        for (number, task) in tasks.into_iter().enumerate() {
            let ended = task
                .now_or_never()
                .unwrap_or_else(|| panic!("{number} was forgotten"));
            assert!(ended.unwrap_err().is_cancelled());
        }
        assert_eq!(Arc::strong_count(&captured), 1);
        assert_eq!(handle.metrics()[0].tasks.tasks_live, 0);
    });
}

/// `JoinError` says what happened, carries the payload, and becomes an `io::Error`.
#[test]
fn a_join_error_tells_why() {
    in_defer(|case| {
        case.run(async {
            let task = spawn(async { std::panic::panic_any(17_u8) });
            let id = task.id();
            let error = task.await.unwrap_err();
            assert!(error.is_panic() && !error.is_cancelled());
            assert_eq!(error.id(), id);
            assert_eq!(*error.into_panic().downcast::<u8>().unwrap(), 17);

            let task = spawn(async { panic!("with {}", "text") });
            let error = task.await.unwrap_err();
            assert!(
                error.to_string().ends_with("panicked: with text"),
                "{error}"
            );
            let error = std::io::Error::from(error);
            assert!(
                error.to_string().ends_with("panicked: with text"),
                "{error}"
            );

            let task = spawn(pending::<()>());
            task.abort();
            let error = task.await.unwrap_err();
            assert!(error.to_string().ends_with("was cancelled"), "{error}");
            let error = error.try_into_panic().unwrap_err();
            let caught = AssertUnwindSafe(async { error.into_panic() })
                .catch_unwind()
                .await;
            assert!(caught.is_err(), "there is no panic in it");
            use_the_ring().await;
        });
    });
}

/// What goes to other threads is `Send`, and what must not is not: a compile-time matter.
#[test]
fn send_where_it_says_so() {
    fn everywhere<T: Send + Sync>() {}
    fn send<T: Send>() {}
    everywhere::<Handle>();
    everywhere::<roundel::AbortHandle>();
    everywhere::<roundel::JoinError>();
    send::<SendJoinHandle<Cell<u8>>>();
    send::<roundel::Builder>();

    /// Two impls fit a type that is `Send`, so that the `_` below is ambiguous then.
    trait NotSend<A> {
        fn checked() {}
    }
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<u8> for T {}
    <roundel::JoinHandle<()> as NotSend<_>>::checked();
    <roundel::Runtime as NotSend<_>>::checked();
    <SendJoinHandle<Rc<()>> as NotSend<_>>::checked();
}
