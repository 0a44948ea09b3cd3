//! Timers: never early, as long as you like, and nothing left of them (P10, H32, H33, H34, H53).

mod common;

use std::fs;
use std::future::{Future, pending, ready};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use roundel::time::{
    MissedTickBehavior, interval, interval_at, sleep, sleep_until, timeout, timeout_at,
};
use roundel::{Handle, spawn, spawn_on, yield_now};
use roundel_testing::{PATIENCE, Random, each_mode, in_defer, scaled};

use common::use_the_ring;

fn is_pending(future: impl Future) -> bool {
    let mut future = pin!(future);
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

fn micros(random: &mut Random, from: usize, to: usize) -> Duration {
    Duration::from_micros((from + random.below(to - from)) as u64)
}

/// Durations beyond what the clock can tell neither fire nor panic, and what waits beside them goes on.
#[test]
fn h32_huge_durations() {
    in_defer(|case| {
        case.run(async {
            drop(spawn(sleep(Duration::MAX)));
            let far = Instant::now().checked_add(Duration::MAX / 2);
            drop(spawn(sleep_until(
                far.unwrap_or_else(|| sleep(Duration::MAX).deadline()),
            )));
            assert_eq!(
                timeout(Duration::MAX, async { yield_now().await }).await,
                Ok(())
            );
            let slow = timeout(Duration::MAX, sleep(Duration::from_millis(1)));
            slow.await.unwrap();
            let mut never = pin!(sleep(Duration::MAX));
            futures::select_biased! {
                () = futures::FutureExt::fuse(never.as_mut()) => unreachable!("it never fires"),
                () = futures::FutureExt::fuse(sleep(Duration::from_millis(1))) => {}
            }
            assert!(is_pending(never.as_mut()));
            never.as_mut().reset(Instant::now());
            never.await;

            let mut beats = interval(Duration::MAX);
            beats.tick().await;
            assert!(is_pending(beats.tick()));
            beats.reset();
            assert!(is_pending(beats.tick()));
            beats.reset_after(Duration::MAX);
            assert!(is_pending(beats.tick()));
            beats.reset_immediately();
            beats.tick().await;
            for behavior in [
                MissedTickBehavior::Burst,
                MissedTickBehavior::Delay,
                MissedTickBehavior::Skip,
            ] {
                let long_ago = Instant::now() - Duration::from_millis(50);
                let mut beats = interval_at(long_ago, Duration::MAX);
                beats.set_missed_tick_behavior(behavior);
                assert_eq!(beats.tick().await, long_ago);
                assert!(is_pending(beats.tick()));
            }
            sleep(Duration::from_millis(1)).await;
            use_the_ring().await;
        });
    });
}

/// No timer fires early; provoked with random durations, many at once and some begun late in a turn.
#[test]
fn h33_no_timer_fires_early() {
    each_mode(|case| {
        case.run(async {
            let each = scaled(10_000).max(1_000) / 20;
            let seed = case.seed();
            let tasks: Vec<_> = (1..=20)
                .map(|number| {
                    spawn(async move {
                        let mut random = Random::new(seed.wrapping_add(number));
                        for round in 0..each {
                            if round % 7 == 0 {
                                // Late in the turn: what the turn takes for now is old.
                                let until = Instant::now() + micros(&mut random, 50, 300);
                                while Instant::now() < until {}
                            }
                            let duration = micros(&mut random, 100, 5_000);
                            let begun = Instant::now();
                            sleep(duration).await;
                            let elapsed = begun.elapsed();
                            assert!(elapsed >= duration, "{elapsed:?} instead of {duration:?}");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            use_the_ring().await;
        });
    });
}

/// Deadlines that are past are ready at once, whatever else waits.
#[test]
fn p10_the_past_is_ready() {
    in_defer(|case| {
        case.run(async {
            let now = Instant::now();
            sleep(Duration::ZERO).await;
            sleep_until(now).await;
            sleep_until(now - Duration::from_secs(1)).await;
            let over = timeout_at(now - Duration::from_secs(1), pending::<()>());
            assert!(over.await.is_err());
            use_the_ring().await;
        });
    });
}

/// A new timer that is earlier than the one a parked shard waits for shortens the wait; provoked by
/// spawning short sleeps from another thread beside a long one.
#[test]
fn h34_an_earlier_timer_shortens_the_wait() {
    each_mode(|case| {
        let rounds = scaled(10_000);
        let runtime = case.builder().build().unwrap();
        let handle = runtime.handle().clone();
        let (through, done) = futures::channel::oneshot::channel();
        let spawning = thread::spawn(move || {
            let mut parks = 0;
            for round in 0..rounds {
                // Parked, with the long timer's deadline.
                let until = Instant::now() + PATIENCE;
                while handle.metrics()[0].tasks.parks == parks
                    || handle.metrics()[0].tasks.timers_live == 0
                {
                    assert!(Instant::now() < until, "it never parked");
                    thread::yield_now();
                }
                parks = handle.metrics()[0].tasks.parks;
                let (ended, end) = mpsc::channel();
                drop(handle.spawn_on(0, move || async move {
                    sleep(Duration::from_millis(1)).await;
                    ended.send(()).unwrap();
                }));
                let ended = end.recv_timeout(Duration::from_secs(5));
                assert!(ended.is_ok(), "in round {round}");
            }
            through.send(()).unwrap();
        });
        runtime.block_on(async {
            let long = spawn(sleep(Duration::from_secs(3600)));
            done.await.unwrap();
            assert!(!long.is_finished());
        });
        spawning.join().unwrap();
        case.end(runtime);
    });
}

/// The same on the shard itself: short timers that are armed again and again beside a long one.
#[test]
fn h34_short_timers_beside_a_long_one() {
    in_defer(|case| {
        case.run(async {
            let long = spawn(sleep(Duration::from_secs(3600)));
            let rounds = timeout(Duration::from_secs(60), async {
                for _ in 0..scaled(10_000) {
                    sleep(Duration::from_millis(1)).await;
                }
            });
            rounds.await.expect("each takes about a millisecond");
            assert!(!long.is_finished());
            use_the_ring().await;
        });
    });
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Timeouts that ended in time leave no memory behind; provoked with a million, some of which were
/// armed, beside a few that stay.
#[test]
fn h53_finished_timeouts_leave_no_memory() {
    in_defer(|case| {
        case.run(async {
            let before = resident_bytes();
            for _ in 0..scaled(1_000_000).max(100_000) {
                timeout(Duration::from_secs(60), ready(())).await.unwrap();
                // Armed, since it has to wait.
                let armed = timeout(Duration::from_secs(60), yield_now());
                armed.await.unwrap();
            }
            let kept: Vec<_> = (0..100)
                .map(|_| spawn(sleep(Duration::from_secs(60))))
                .collect();
            sleep(Duration::from_millis(1)).await;
            assert_eq!(
                Handle::current().metrics()[0].tasks.timers_live,
                101,
                "and no more"
            );
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown < 10 << 20, "{grown} bytes");
            drop(kept);
            use_the_ring().await;
        });
    });
}

/// A burst of sleeping tasks gives its memory back when they are aborted.
#[test]
fn h53_a_burst_of_timers_gives_its_memory_back() {
    in_defer(|case| {
        case.run(async {
            let burst = || async {
                let tasks: Vec<_> = (0..100_000)
                    .map(|_| spawn(sleep(Duration::from_secs(60))))
                    .collect();
                sleep(Duration::from_millis(1)).await;
                tasks.iter().for_each(|task| task.abort());
                for task in tasks {
                    assert!(task.await.unwrap_err().is_cancelled());
                }
            };
            burst().await;
            let before = resident_bytes();
            for _ in 0..5 {
                burst().await;
            }
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown < 10 << 20, "{grown} bytes");
            assert_eq!(Handle::current().metrics()[0].tasks.tasks_live, 0);
            use_the_ring().await;
        });
    });
}

/// A timeout gives the inner future's value if it is ready in the same poll, drops it when the time is
/// up, and fires for one that is never idle; provoked with futures of each kind.
#[test]
fn timeouts_end_what_they_should() {
    in_defer(|case| {
        case.run(async {
            assert_eq!(timeout(Duration::ZERO, ready(1)).await, Ok(1));
            let error = timeout(Duration::from_millis(1), pending::<()>())
                .await
                .unwrap_err();
            assert_eq!(
                std::io::Error::from(error).kind(),
                std::io::ErrorKind::TimedOut
            );

            let held = std::rc::Rc::new(());
            let inside = held.clone();
            let over = timeout(Duration::from_millis(1), async move {
                let _inside = inside;
                pending::<()>().await;
            });
            assert!(over.await.is_err());
            assert_eq!(
                std::rc::Rc::strong_count(&held),
                1,
                "the inner future is gone"
            );

            // One that yields for ever, and one that spends its whole share in every poll.
            let storm = timeout(Duration::from_millis(1), async {
                loop {
                    yield_now().await;
                }
            });
            assert!(storm.await.is_err());
            let (sender, mut receiver) = roundel::sync::mpsc::unbounded_channel();
            let greedy = timeout(Duration::from_millis(1), async {
                loop {
                    sender.send(()).unwrap();
                    receiver.recv().await.unwrap();
                }
            });
            assert!(greedy.await.is_err());
            use_the_ring().await;
        });
    });
}

/// An interval ticks first at once, then a period apart, and treats missed ticks as it is told;
/// provoked by holding the shard up across several of them.
#[test]
fn intervals_tick_as_told() {
    in_defer(|case| {
        case.run(async {
            let period = Duration::from_millis(20);
            let mut beats = interval(period);
            let start = beats.tick().await;
            for beat in 1..5 {
                let due = beats.tick().await;
                assert_eq!(due, start + period * beat, "ticks do not drift");
                assert!(Instant::now() >= due, "never early");
            }
            for behavior in [
                MissedTickBehavior::Burst,
                MissedTickBehavior::Delay,
                MissedTickBehavior::Skip,
            ] {
                let mut beats = interval(period);
                beats.set_missed_tick_behavior(behavior);
                let start = beats.tick().await;
                let held_until = start + period * 3 + Duration::from_millis(10);
                while Instant::now() < held_until {}
                let before = Instant::now();
                assert_eq!(beats.tick().await, start + period, "the first missed one");
                let after = Instant::now();
                let next = beats.tick().await;
                match behavior {
                    MissedTickBehavior::Burst => assert_eq!(next, start + period * 2),
                    MissedTickBehavior::Delay => {
                        assert!(next >= before + period && next <= after + period);
                    }
                    MissedTickBehavior::Skip => {
                        let late = next.duration_since(start).as_nanos();
                        assert_eq!(late % period.as_nanos(), 0, "a multiple of the period");
                        assert!(next > before && next <= after + period);
                    }
                }
            }
            use_the_ring().await;
        });
    });
}

/// Timers of a runtime that ends unfired are gone with it; provoked on both shards.
#[test]
fn h53_unfired_timers_end_with_the_runtime() {
    in_defer(|case| {
        // `run_on` demands that no timer is left.
        case.run_on(case.builder().cores(roundel::Cores::Count(2)), async {
            for shard in [0, 1] {
                for _ in 0..1_000 {
                    drop(spawn_on(shard, || sleep(Duration::from_secs(3600))));
                }
                let counted = spawn_on(shard, || async { sleep(Duration::from_millis(1)).await });
                counted.await.unwrap();
            }
            use_the_ring().await;
        });
    });
}

/// A sleep that was armed may go to another task and be dropped there, or be moved to a new deadline
/// while its task waits; provoked within one shard.
#[test]
fn sleeps_may_move() {
    in_defer(|case| {
        case.run(async {
            let mut moved = Box::pin(sleep(Duration::from_secs(3600)));
            let polled = moved.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Pending);
            moved
                .as_mut()
                .reset(Instant::now() + Duration::from_millis(2));
            let waited = spawn(async move {
                moved.as_mut().await;
                assert!(moved.is_elapsed());
            });
            timeout(PATIENCE, waited)
                .await
                .expect("it was moved")
                .unwrap();
            use_the_ring().await;
        });
    });
}
