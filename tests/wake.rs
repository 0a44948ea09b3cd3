//! A wake is never lost, wherever it comes from and whatever the shard does (P5, H07, H08).

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use roundel::sync::{Notify, mpsc as local, oneshot};
use roundel::time::{sleep, timeout};
use roundel::{Cores, Handle, spawn, spawn_blocking, spawn_on};
use roundel_testing::{Case, PATIENCE, Random, each_mode, in_defer, scaled};

/// A flag that a future waits for and any thread raises.
#[derive(Default)]
struct Signal {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        let waker = self.waker.lock().unwrap().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            *self.waker.lock().unwrap() = Some(cx.waker().clone());
            match self.raised.swap(false, Ordering::AcqRel) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Waits until a shard has gone to sleep once more.
fn await_park(handle: &Handle, shard: usize, before: u64) -> u64 {
    let until = Instant::now() + PATIENCE;
    loop {
        let parks = handle.metrics()[shard].tasks.parks;
        if parks > before {
            return parks;
        }
        assert!(Instant::now() < until, "shard {shard} never went to sleep");
        thread::yield_now();
    }
}

/// Wakes a sleeping shard over and over from a plain thread, in three ways by turns, and
/// demands an answer to each.
fn wake_a_parked_shard(case: &Case, shard: usize, shards: usize, beside: fn()) {
    let rounds = scaled(1_000).max(100);
    let mut random = Random::new(case.seed());
    let runtime = case.builder().cores(Cores::Count(shards)).build().unwrap();
    let handle = runtime.handle().clone();
    let (answer, answers) = mpsc::channel();
    let signal = Arc::new(Signal::default());
    let (sender, receiver) = async_channel::unbounded::<()>();

    let waking = {
        let (signal, answer) = (signal.clone(), answer.clone());
        thread::spawn(move || {
            // The two tasks that are woken have answered that they stand.
            for _ in 0..2 {
                answers.recv_timeout(PATIENCE).expect("a task that stands");
            }
            let mut parks = 0;
            for round in 0..rounds {
                parks = await_park(&handle, shard, parks);
                // The gap is where in its sleep, or on its way to it, the shard is met.
                thread::sleep(Duration::from_micros(random.below(5_000) as u64));
                let answer = answer.clone();
                let before = Instant::now();
                match round % 3 {
                    0 => signal.raise(),
                    1 => sender.send_blocking(()).unwrap(),
                    _ => drop(handle.spawn_on(shard, move || async move {
                        answer.send("a remote spawn").unwrap();
                    })),
                }
                let answered = answers.recv_timeout(PATIENCE);
                let expected = ["a waker", "a channel", "a remote spawn"][round % 3];
                assert_eq!(answered, Ok(expected), "in round {round}");
                assert!(before.elapsed() < Duration::from_secs(1), "round {round}");
            }
            sender.close();
            assert!(handle.metrics()[shard].tasks.parks >= rounds as u64);
        })
    };

    runtime.block_on(async {
        let answers = answer.clone();
        let woken = spawn_on(shard, move || async move {
            beside();
            answers.send("a waker").unwrap();
            loop {
                signal.wait().await;
                answers.send("a waker").unwrap();
            }
        });
        let fed = spawn_on(shard, move || async move {
            answer.send("a channel").unwrap();
            while receiver.recv().await.is_ok() {
                answer.send("a channel").unwrap();
            }
        });
        // Ends when the thread has closed the channel, or has died of its assertion.
        fed.await.unwrap();
        woken.abort();
    });
    waking.join().unwrap();
    case.end(runtime);
}

/// Every wake from a plain thread is seen by a shard that sleeps with nothing pending; provoked by
/// three kinds of wakes at random moments after it went to sleep.
#[test]
fn h07_a_foreign_wake_reaches_a_parked_shard() {
    each_mode(|case| wake_a_parked_shard(case, 0, 1, || {}));
}

/// The same on a shard with a thread of its own, which has no root future.
#[test]
fn h07_a_foreign_wake_reaches_another_parked_shard() {
    each_mode(|case| wake_a_parked_shard(case, 1, 2, || {}));
}

/// The same while the shard waits with a deadline, and an operation that never ends.
#[test]
fn h07_a_foreign_wake_reaches_a_shard_that_waits_for_other_things() {
    each_mode(|case| {
        wake_a_parked_shard(case, 0, 1, || {
            drop(spawn(sleep(Duration::from_secs(3600))));
            drop(spawn(async {
                let listener = roundel::net::TcpListener::bind("127.0.0.1:0")
                    .await
                    .unwrap();
                let _ = listener.accept().await;
                unreachable!("nobody connects");
            }));
        });
    });
}

/// No wake of the root future is lost; provoked by a ping-pong with a thread without any gaps, so
/// that wakes meet the shard in every state: polling, looking once more, on its way to sleep.
#[test]
fn p05_no_wake_of_the_root_future_is_lost() {
    in_defer(|case| {
        let rounds = scaled(500_000);
        let (ping, pong) = (Arc::new(Signal::default()), Arc::new(AtomicUsize::new(0)));
        let pinging = {
            let (ping, pong) = (ping.clone(), pong.clone());
            thread::spawn(move || {
                for round in 0..rounds {
                    ping.raise();
                    let until = Instant::now() + PATIENCE;
                    while pong.load(Ordering::Acquire) <= round {
                        if Instant::now() > until {
                            eprintln!("a wake was lost in round {round}");
                            std::process::abort();
                        }
                        std::hint::spin_loop();
                    }
                }
            })
        };
        case.run(async {
            for _ in 0..rounds {
                ping.wait().await;
                pong.fetch_add(1, Ordering::Release);
            }
        });
        pinging.join().unwrap();
    });
}

/// No wake of a task is lost between shards; provoked by two tasks on two shards that wake each
/// other, through a task's own waker, as fast as they can.
#[test]
fn p05_no_wake_between_shards_is_lost() {
    in_defer(|case| {
        let rounds = scaled(100_000);
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let there = Arc::new(Signal::default());
            let back = Arc::new(Signal::default());
            let (ping, pong) = (there.clone(), back.clone());
            let other = spawn_on(1, move || async move {
                for _ in 0..rounds {
                    ping.wait().await;
                    pong.raise();
                }
            });
            let here = spawn(async move {
                for round in 0..rounds {
                    there.raise();
                    let answered = timeout(PATIENCE, back.wait()).await;
                    assert!(answered.is_ok(), "a wake was lost in round {round}");
                }
            });
            here.await.unwrap();
            other.await.unwrap();
        });
    });
}

/// Counts its wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// Polls a future with one waker, then with another, makes it ready, and demands that the second
/// waker is woken, the first is not, and that the future is ready.
async fn the_last_waker_wins<F: Future>(what: &str, future: F, make_ready: impl FnOnce()) {
    let mut future = pin!(future);
    let (stale, fresh) = (Arc::new(Count::default()), Arc::new(Count::default()));
    for count in [&stale, &fresh] {
        let waker = Waker::from(count.clone());
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "{what} has to wait");
    }
    make_ready();
    let woken = timeout(PATIENCE, async {
        while fresh.get() == 0 {
            sleep(Duration::from_micros(100)).await;
        }
    });
    assert!(
        woken.await.is_ok(),
        "the last waker of {what} was not woken"
    );
    assert_eq!(stale.get(), 0, "a stale waker of {what} was woken");
    let waker = Waker::noop();
    let polled = future.as_mut().poll(&mut Context::from_waker(waker));
    assert!(polled.is_ready(), "{what} was woken and is not ready");
}

/// The last polled waker wins, for every leaf future; provoked by polling each with two wakers.
#[test]
fn h08_a_stale_waker_is_forgotten() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            the_last_waker_wins("sleep", sleep(Duration::from_millis(20)), || {}).await;

            let waits = timeout(Duration::from_millis(20), pending::<()>());
            the_last_waker_wins("timeout", waits, || {}).await;

            let mut interval = roundel::time::interval(Duration::from_millis(20));
            interval.tick().await;
            the_last_waker_wins("interval", interval.tick(), || {}).await;

            let (end, ended) = oneshot::channel();
            let task = spawn(ended);
            the_last_waker_wins("a join handle", task, || end.send(()).unwrap()).await;

            let (end, ended) = futures::channel::oneshot::channel::<()>();
            let task = spawn_on(1, move || ended);
            the_last_waker_wins("a join handle of another shard", task, || {
                end.send(()).unwrap();
            })
            .await;

            let (end, ended) = mpsc::channel::<()>();
            let job = spawn_blocking(move || ended.recv());
            the_last_waker_wins("a blocking job", job, || end.send(()).unwrap()).await;

            let notify = Notify::new();
            let notified = notify.notified();
            the_last_waker_wins("notify", notified, || notify.notify_one()).await;

            let (sender, receiver) = oneshot::channel();
            the_last_waker_wins("oneshot", receiver, || sender.send(()).unwrap()).await;

            let (sender, mut receiver) = local::channel(1);
            let received = receiver.recv();
            the_last_waker_wins("recv", received, || sender.try_send(()).unwrap()).await;

            let (sender, mut receiver) = local::channel(1);
            sender.send(()).await.unwrap();
            the_last_waker_wins("send", sender.send(()), || {
                receiver.try_recv().unwrap();
            })
            .await;
        });
    });
}

/// A future that moves from one task to another is woken in the new one; provoked by handing a
/// sleep and a join handle over after their first poll.
#[test]
fn h08_a_future_that_moves_wakes_its_new_task() {
    in_defer(|case| {
        case.run(async {
            let (end, ended) = oneshot::channel::<()>();
            let mut waits: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
            waits.push(Box::pin(sleep(Duration::from_millis(20))));
            let task = spawn(ended);
            waits.push(Box::pin(async { task.await.unwrap().unwrap() }));
            let mut tasks = Vec::new();
            for mut future in waits {
                // Polled here first, in the root future's name.
                let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
                assert!(polled.is_pending());
                tasks.push(spawn(future));
            }
            roundel::yield_now().await;
            end.send(()).unwrap();
            for task in tasks {
                timeout(PATIENCE, task)
                    .await
                    .expect("a wake was lost")
                    .unwrap();
            }
        });
    });
}
