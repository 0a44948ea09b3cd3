//! Who runs before whom: completions first, and nobody starves (H35, M1, M2).

mod common;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use roundel::sync::mpsc as local;
use roundel::time::{sleep, sleep_until, timeout};
use roundel::{
    CompletionShare, Cores, Handle, JoinHandle, SendJoinHandle, spawn, spawn_blocking, spawn_on,
    yield_now,
};
use roundel_testing::{PATIENCE, each_mode, in_defer};

use common::use_the_ring;

type Trace = Rc<RefCell<Vec<&'static str>>>;

fn note(trace: &Trace, what: &'static str) -> JoinHandle<()> {
    let trace = trace.clone();
    spawn(async move { trace.borrow_mut().push(what) })
}

/// A task that yields for ever, on this shard, and how often it has.
fn storm() -> (JoinHandle<()>, Rc<Cell<u64>>) {
    let yields = Rc::new(Cell::new(0));
    let count = yields.clone();
    let task = spawn(async move {
        loop {
            count.set(count.get() + 1);
            yield_now().await;
        }
    });
    (task, yields)
}

/// A task that yields for ever starves no timer: ticks of 10 ms come while it yields.
#[test]
fn h35_a_yield_storm_does_not_starve_timers() {
    each_mode(|case| {
        case.run(async {
            let (storm, yields) = storm();
            let ticks = spawn(async {
                for _ in 0..20 {
                    sleep(Duration::from_millis(10)).await;
                }
            });
            let ticked = timeout(PATIENCE, ticks).await;
            ticked.expect("a timer starved").unwrap();
            assert!(yields.get() > 1_000, "the storm was one: {}", yields.get());
            use_the_ring().await;
            storm.abort();
        });
    });
}

/// A task that yields for ever starves no wake, spawn or finished job from other threads.
#[test]
fn h35_a_yield_storm_does_not_starve_foreign_wakes() {
    each_mode(|case| {
        case.run(async {
            let (storm, yields) = storm();
            let handle = Handle::current();
            let (ping, pinged) = async_channel::unbounded();
            let (pong, ponged) = mpsc::channel();
            let waking = thread::spawn(move || {
                for round in 0..100 {
                    ping.send_blocking(round).unwrap();
                    assert_eq!(ponged.recv_timeout(PATIENCE), Ok(round), "a wake starved");
                    let there = pong_of(&handle);
                    assert_eq!(there.recv_timeout(PATIENCE), Ok(()), "a spawn starved");
                }
            });
            while let Ok(round) = pinged.recv().await {
                pong.send(round).unwrap();
            }
            waking.join().unwrap();
            for _ in 0..10 {
                let job = timeout(PATIENCE, spawn_blocking(|| ())).await;
                job.expect("a job starved").unwrap();
            }
            assert!(yields.get() > 100);
            use_the_ring().await;
            storm.abort();
        });
    });
    fn pong_of(handle: &Handle) -> mpsc::Receiver<()> {
        let (there, receiver) = mpsc::channel();
        drop(handle.spawn_on(0, move || async move { there.send(()).unwrap() }));
        receiver
    }
}

/// A task that yields for ever starves no operation, and no other task: each runs as often as it does.
#[test]
fn h35_a_yield_storm_does_not_starve_operations_and_tasks() {
    each_mode(|case| {
        case.run(async {
            let (storm, yields) = storm();
            let (other, others) = self::storm();
            let reading = async {
                for _ in 0..100 {
                    let file = roundel::fs::File::open("/proc/self/status").await.unwrap();
                    let (read, _) = file.read_at(Vec::with_capacity(64), 0).await;
                    assert_eq!(read.unwrap(), 64);
                }
            };
            timeout(PATIENCE, reading)
                .await
                .expect("an operation starved");
            assert!(yields.get() > 0);
            assert!(
                yields.get().abs_diff(others.get()) <= 1,
                "{yields:?} {others:?}"
            );
            storm.abort();
            other.abort();
        });
    });
}

/// A root future that yields for ever starves no task, and tasks that yield do not starve it.
#[test]
fn a_yielding_root_future_starves_nobody() {
    in_defer(|case| {
        case.run(async {
            let (storm, yields) = storm();
            let ticks = spawn(sleep(Duration::from_millis(20)));
            let until = Instant::now() + PATIENCE;
            let mut turns = 0;
            while !ticks.is_finished() {
                assert!(Instant::now() < until, "a task starved");
                yield_now().await;
                turns += 1;
            }
            assert!(turns > 10 && yields.get() > 10, "{turns} and {yields:?}");
            use_the_ring().await;
            storm.abort();
        });
    });
}

/// Polls in one turn of a shard with few tasks.
const TURN: usize = 32;

/// Queues three ordinary tasks that this turn does not come to any more, since `ready` tasks and as
/// many as fill it up stand before them; `last` is called at its end.
fn queue_behind_this_turn(
    trace: &Trace,
    ready: usize,
    last: impl FnOnce() + 'static,
) -> JoinHandle<[JoinHandle<()>; 3]> {
    let trace = trace.clone();
    let queueing = spawn(async move { ["1", "2", "3"].map(|name| note(&trace, name)) });
    for _ in 0..TURN - ready - 2 {
        drop(spawn(async {}));
    }
    drop(spawn(async move { last() }));
    queueing
}

/// What a timer wakes runs before ordinary tasks that were queued before it fired.
#[test]
fn m1_a_timer_goes_before_queued_tasks() {
    in_defer(|case| {
        case.run(async {
            let trace = Trace::default();
            let deadline = Instant::now() + Duration::from_millis(20);
            let woken = trace.clone();
            let sleeping = spawn(async move {
                sleep_until(deadline).await;
                woken.borrow_mut().push("timer");
            });
            yield_now().await;
            let queueing =
                queue_behind_this_turn(&trace, 0, move || while Instant::now() < deadline {});
            for task in queueing.await.unwrap() {
                task.await.unwrap();
            }
            sleeping.await.unwrap();
            assert_eq!(*trace.borrow(), ["timer", "1", "2", "3"]);
            use_the_ring().await;
        });
    });
}

/// What an operation wakes runs before ordinary tasks that were queued before it completed.
#[test]
fn m1_a_completion_goes_before_queued_tasks() {
    in_defer(|case| {
        case.run(async {
            let listener = roundel::net::TcpListener::bind("127.0.0.1:0")
                .await
                .unwrap();
            let address = listener.local_addr().unwrap();
            let (near, far) =
                futures::join!(listener.accept(), roundel::net::TcpStream::connect(address));
            let (near, far) = (near.unwrap().0, far.unwrap());
            // The byte is there before it is asked for: the read ends in the enter that submits
            // it, at the end of the turn.
            assert_eq!(far.write(vec![1]).await.0.unwrap(), 1);
            let trace = Trace::default();
            let woken = trace.clone();
            let reading = spawn(async move {
                woken.borrow_mut().push("submitted");
                let (read, _) = near.read(Vec::with_capacity(1)).await;
                assert_eq!(read.unwrap(), 1);
                woken.borrow_mut().push("completion");
            });
            let queueing = queue_behind_this_turn(&trace, 1, || {});
            for task in queueing.await.unwrap() {
                task.await.unwrap();
            }
            reading.await.unwrap();
            assert_eq!(*trace.borrow(), ["submitted", "completion", "1", "2", "3"]);
        });
    });
}

/// A completion does not wait for a long queue to end: the shard looks at the ring between ordinary
/// tasks; provoked by a byte that the first of many tasks sends, a few times, since the kernel may
/// bring it late.
#[test]
fn m1_a_completion_does_not_wait_for_a_long_queue() {
    const QUEUED: usize = 200;
    in_defer(|case| {
        case.run(async {
            let listener = roundel::net::TcpListener::bind("127.0.0.1:0")
                .await
                .unwrap();
            let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let near = Rc::new(listener.accept().await.unwrap().0);
            let far = Rc::new(far);
            let mut places = Vec::new();
            for _ in 0..20 {
                let run = Rc::new(Cell::new(0));
                let (count, reader) = (run.clone(), near.clone());
                let reading = spawn(async move {
                    let (read, _) = reader.read(Vec::with_capacity(1)).await;
                    assert_eq!(read.unwrap(), 1);
                    count.get()
                });
                // The read is in flight.
                use_the_ring().await;
                let sender = far.clone();
                drop(spawn(async move { (&*sender).write_all(&[1]).unwrap() }));
                for _ in 0..QUEUED {
                    let count = run.clone();
                    drop(spawn(async move { count.set(count.get() + 1) }));
                }
                places.push(reading.await.unwrap());
            }
            let first = places.iter().min().unwrap();
            assert!(*first < QUEUED / 4, "it ran after {places:?} of {QUEUED}");
        });
    });
}

/// What an abort ends goes before ordinary tasks that were queued before it.
#[test]
fn m1_an_abort_goes_before_queued_tasks() {
    struct Dropped(Trace);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.borrow_mut().push("aborted");
        }
    }
    in_defer(|case| {
        case.run(async {
            let trace = Trace::default();
            let guard = Dropped(trace.clone());
            let waiting = spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            yield_now().await;
            let ordinary = ["1", "2", "3"].map(|name| note(&trace, name));
            waiting.abort();
            for task in ordinary {
                task.await.unwrap();
            }
            assert_eq!(*trace.borrow(), ["aborted", "1", "2", "3"]);
            use_the_ring().await;
        });
    });
}

/// Ordinary tasks run in the order in which they were spawned and woken; `yield_now` lets each of the
/// others run once.
#[test]
fn ordinary_tasks_run_in_order() {
    in_defer(|case| {
        case.run(async {
            let trace = Trace::default();
            let tasks = ["a", "b", "c"].map(|name| {
                let trace = trace.clone();
                spawn(async move {
                    for _ in 0..3 {
                        trace.borrow_mut().push(name);
                        yield_now().await;
                    }
                })
            });
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(trace.borrow().concat(), "abcabcabc");
            use_the_ring().await;
        });
    });
}

/// A flood of completions lets an ordinary task run after the share it was given; provoked with tasks
/// that abort and wake as completions without end.
#[test]
fn m2_a_flood_of_completions_lets_ordinary_tasks_run() {
    for share in [
        CompletionShare::Ratio(3),
        CompletionShare::Unlimited,
        CompletionShare::OneIn(4),
    ] {
        in_defer_with(share);
    }
    fn in_defer_with(share: CompletionShare) {
        let name = format!("{share:?}");
        let runtime = roundel::Builder::new()
            .cores(Cores::Count(1))
            .completion_share(share)
            .build()
            .unwrap();
        runtime.block_on(async {
            // Most of these polls are woken by a timer, and so are completions.
            let flood: Vec<_> = (0..64)
                .map(|_| {
                    spawn(async {
                        loop {
                            sleep(Duration::from_micros(1)).await;
                        }
                    })
                })
                .collect();
            let (ordinary, turns) = storm();
            let reached = timeout(PATIENCE, async {
                while turns.get() < 1_000 {
                    sleep(Duration::from_millis(1)).await;
                }
            });
            assert!(reached.await.is_ok(), "ordinary tasks starve with {name}");
            let polls = Handle::current().metrics()[0].tasks;
            assert!(polls.polls_completion > 100, "{name} {polls}");
            ordinary.abort();
            flood.iter().for_each(JoinHandle::abort);
        });
        assert!(runtime.shutdown(Duration::from_secs(5)).is_clean());
    }
}

/// Runs a task that would be ready for ever beside one that counts its turns, and demands that those
/// come in proportion: a share is 128 completions of leaf futures.
async fn a_greedy_task_lets_others_run(what: &str, steps: u64, greedy: impl Future + 'static) {
    let (other, turns) = storm();
    yield_now().await;
    let before = turns.get();
    let _ = spawn(greedy).await.unwrap();
    let turns = turns.get() - before;
    other.abort();
    assert!(
        turns >= steps / 256,
        "{what}: {turns} turns beside {steps} steps"
    );
}

/// A task that awaits only what is ready already gives way after its share, for each kind of leaf:
/// joins, messages, jobs, timers.
#[test]
fn the_budget_lets_others_run() {
    const STEPS: u64 = 20_000;
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let tasks: Vec<_> = (0..STEPS).map(|_| spawn(async {})).collect();
            while !tasks.iter().all(JoinHandle::is_finished) {
                yield_now().await;
            }
            a_greedy_task_lets_others_run("joins", STEPS, async {
                for task in tasks {
                    task.await.unwrap();
                }
            })
            .await;

            let tasks: Vec<_> = (0..STEPS).map(|_| spawn_on(1, || async {})).collect();
            while !tasks.iter().all(SendJoinHandle::is_finished) {
                sleep(Duration::from_millis(1)).await;
            }
            a_greedy_task_lets_others_run("joins across shards", STEPS, async {
                for task in tasks {
                    task.await.unwrap();
                }
            })
            .await;

            let (sender, mut receiver) = local::channel(STEPS as usize);
            for _ in 0..STEPS {
                sender.try_send(()).unwrap();
            }
            a_greedy_task_lets_others_run("a full channel", STEPS, async move {
                for _ in 0..STEPS {
                    receiver.recv().await.unwrap();
                }
            })
            .await;

            let (sender, receiver) = local::channel(STEPS as usize);
            a_greedy_task_lets_others_run("an empty channel", STEPS, async move {
                for _ in 0..STEPS {
                    sender.send(()).await.unwrap();
                }
                receiver
            })
            .await;

            let past = Instant::now();
            a_greedy_task_lets_others_run("timers of the past", STEPS, async move {
                for _ in 0..STEPS {
                    sleep_until(past).await;
                }
            })
            .await;
        });
    });
}

/// The root future has a share, too: one that is always ready lets tasks run.
#[test]
fn the_budget_of_the_root_future_lets_tasks_run() {
    in_defer(|case| {
        case.run(async {
            let (other, turns) = storm();
            let past = Instant::now();
            for _ in 0..20_000 {
                sleep_until(past).await;
            }
            assert!(turns.get() >= 20_000 / 256, "{turns:?} turns");
            other.abort();
            use_the_ring().await;
        });
    });
}

/// A share that is used up loses nothing: what was ready stays so until the next poll; provoked by
/// polling handles beyond the share in one poll, and once more.
#[test]
fn a_spent_budget_keeps_the_outcome() {
    in_defer(|case| {
        case.run(async {
            let mut tasks: Vec<_> = (0..200)
                .map(|number| spawn(async move { number }))
                .collect();
            while !tasks.iter().all(JoinHandle::is_finished) {
                yield_now().await;
            }
            let outputs = spawn(async move {
                let mut outputs = Vec::new();
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    while let Some(task) = tasks.first_mut() {
                        match task.poll_unpin(cx) {
                            Poll::Ready(output) => outputs.push(output.unwrap()),
                            Poll::Pending => return Poll::Pending,
                        }
                        drop(tasks.remove(0));
                    }
                    Poll::Ready(())
                })
                .await;
                (polls, outputs)
            });
            let (polls, outputs) = outputs.await.unwrap();
            assert_eq!(polls, 2);
            assert_eq!(outputs, (0..200).collect::<Vec<_>>());
            use_the_ring().await;
        });
    });
}

/// Outside of a task's poll there is no share to spend: a waker's code may poll what it likes.
#[test]
fn polls_outside_of_a_task_are_not_bounded() {
    in_defer(|case| {
        let count = Arc::new(AtomicUsize::new(0));
        let runtime = case.builder().build().unwrap();
        let tasks: Vec<_> = runtime.block_on(async {
            let tasks: Vec<_> = (0..500).map(|_| spawn(async {})).collect();
            use_the_ring().await;
            while !tasks.iter().all(JoinHandle::is_finished) {
                yield_now().await;
            }
            tasks
        });
        for mut task in tasks {
            let polled = task.poll_unpin(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(()))));
            count.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(count.load(Ordering::Relaxed), 500);
        case.end(runtime);
    });
}
