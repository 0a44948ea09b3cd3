//! Channels and combinators of other crates work on roundel's shards, and across them.

mod common;

use std::future::pending;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, SinkExt, select, select_biased};
use roundel::time::{sleep, timeout};
use roundel::{Cores, on_each_shard, spawn, spawn_on, yield_now};
use roundel_testing::{PATIENCE, in_defer, scaled};

use common::use_the_ring;

/// Everything that is sent through a bounded `async_channel` from several shards and a thread arrives
/// on the others once; provoked with a channel that is mostly full.
#[test]
fn async_channel_across_shards() {
    in_defer(|case| {
        let each = scaled(100_000);
        case.run_on(case.builder().cores(Cores::Count(3)), async {
            let (sender, receiver) = async_channel::bounded::<usize>(4);
            let sending: Vec<_> = (0..3)
                .map(|shard| {
                    let sender = sender.clone();
                    spawn_on(shard, move || async move {
                        for number in 0..each {
                            sender.send(number).await.unwrap();
                        }
                    })
                })
                .collect();
            let plain = thread::spawn(move || {
                for number in 0..each {
                    sender.send_blocking(number).unwrap();
                }
            });
            let receiving = on_each_shard(move || async move {
                let (mut count, mut sum) = (0, 0);
                while let Ok(number) = receiver.recv().await {
                    count += 1;
                    sum += number;
                }
                (count, sum)
            });
            let (mut count, mut sum) = (0, 0);
            for task in receiving {
                let taken = timeout(2 * PATIENCE, task)
                    .await
                    .expect("a message was lost")
                    .unwrap();
                count += taken.0;
                sum += taken.1;
            }
            assert_eq!((count, sum), (4 * each, 4 * (each * (each - 1) / 2)));
            for task in sending {
                task.await.unwrap();
            }
            plain.join().unwrap();
            use_the_ring().await;
        });
    });
}

/// `futures::channel::mpsc` and `oneshot` carry requests and answers between shards, in order.
#[test]
fn futures_channels_across_shards() {
    in_defer(|case| {
        let rounds = scaled(50_000);
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            type Request = (usize, futures::channel::oneshot::Sender<usize>);
            let (mut requests, mut served) = futures::channel::mpsc::channel::<Request>(2);
            let server = spawn_on(1, move || async move {
                let mut count = 0;
                while let Some((number, answer)) = served.next().await {
                    assert_eq!(number, count);
                    count += 1;
                    answer.send(number * 2).unwrap();
                }
                count
            });
            for number in 0..rounds {
                let (answer, answered) = futures::channel::oneshot::channel();
                requests.send((number, answer)).await.unwrap();
                let answered = timeout(PATIENCE, answered)
                    .await
                    .expect("an answer was lost");
                assert_eq!(answered, Ok(number * 2));
            }
            drop(requests);
            assert_eq!(server.await.unwrap(), rounds);
            use_the_ring().await;
        });
    });
}

/// A receiver learns that its sender has gone with its task, wherever that was; provoked by an abort
/// and by a panic on another shard.
#[test]
fn a_task_that_ends_closes_its_channels() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let (sender, receiver) = async_channel::bounded::<()>(1);
            let (started, start) = futures::channel::oneshot::channel();
            let task = spawn_on(1, move || async move {
                let _sender = sender;
                started.send(()).unwrap();
                pending::<()>().await;
            });
            start.await.unwrap();
            task.abort();
            assert!(timeout(PATIENCE, receiver.recv()).await.unwrap().is_err());

            let (sender, receiver) = futures::channel::oneshot::channel::<()>();
            drop(spawn_on(1, move || async move {
                let _sender = sender;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert!(timeout(PATIENCE, receiver).await.unwrap().is_err());
            use_the_ring().await;
        });
    });
}

/// `select!` over roundel's futures takes the one that is ready, and the others may go on: a handle
/// that lost keeps its output, a channel its message, a sleep its deadline.
#[test]
fn select_over_everything() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let (sender, mut receiver) = roundel::sync::mpsc::channel::<u32>(4);
            let mut local = spawn(async {
                sleep(Duration::from_millis(20)).await;
                1
            })
            .fuse();
            let mut remote = spawn_on(1, || async {
                sleep(Duration::from_millis(10)).await;
                2
            })
            .fuse();
            let mut deadline = Box::pin(sleep(Duration::from_millis(30))).fuse();
            let feeding = spawn(async move {
                for number in 10..13 {
                    sender.send(number).await.unwrap();
                    yield_now().await;
                }
            });
            let mut seen = Vec::new();
            loop {
                let mut message = Box::pin(receiver.recv()).fuse();
                select! {
                    output = local => seen.push(output.unwrap()),
                    output = remote => seen.push(output.unwrap()),
                    received = message => match received {
                        Some(number) => seen.push(number),
                        // The channel is over; only the rest is left to wait for.
                        None => sleep(Duration::from_millis(1)).await,
                    },
                    () = deadline => break,
                }
            }
            feeding.await.unwrap();
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 10, 11, 12]);

            // Biased: what is ready first in order wins, although both are.
            let (mut one, mut two) = (spawn(async { 1 }).fuse(), spawn(async { 2 }).fuse());
            sleep(Duration::from_millis(1)).await;
            let first = select_biased! {
                output = two => output.unwrap(),
                output = one => output.unwrap(),
            };
            assert_eq!(first, 2);
            assert_eq!(one.await.unwrap(), 1, "it lost and keeps its output");
            use_the_ring().await;
        });
    });
}

/// `join!` and `FuturesUnordered`, whose own wakers stand between the task and what it waits for, lose
/// no wake; provoked with tasks of both shards that end in any order.
#[test]
fn combinators_with_wakers_of_their_own() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let (one, two) = futures::join!(spawn(async { 1 }), spawn_on(1, || async { 2 }));
            assert_eq!((one.unwrap(), two.unwrap()), (1, 2));

            let count = scaled(20_000);
            let mut all: FuturesUnordered<_> = (0..count)
                .map(|number| {
                    spawn_on(number % 2, move || async move {
                        if number % 3 == 0 {
                            sleep(Duration::from_micros((number % 100) as u64)).await;
                        }
                        number
                    })
                })
                .collect();
            let mut sum = 0;
            while let Some(output) = timeout(PATIENCE, all.next())
                .await
                .expect("a wake was lost")
            {
                sum += output.unwrap();
            }
            assert_eq!(sum, count * (count - 1) / 2);
            use_the_ring().await;
        });
    });
}

/// What is not `Send` may be held across all of these on one shard.
#[test]
fn a_task_may_hold_what_is_not_send() {
    in_defer(|case| {
        case.run_on(case.builder().cores(Cores::Count(2)), async {
            let task = spawn_on(1, || async {
                let shared = Rc::new(5);
                let (sender, receiver) = async_channel::bounded(1);
                let other = shared.clone();
                let adding = spawn(async move { *other + receiver.recv().await.unwrap() });
                sender.send(2).await.unwrap();
                adding.await.unwrap() + Rc::strong_count(&shared) as i32
            });
            assert_eq!(task.await.unwrap(), 8);
            use_the_ring().await;
        });
    });
}
