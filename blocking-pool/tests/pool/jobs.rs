//! What a pool promises about single jobs: values, panics, aborts, detaching, room, registration, shutdown.

use super::common::*;
use roundel_blocking_pool::{Account, Config, Deliver, JobError, Pool, Registration, current};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const BOTH: [Account; 2] = [Account::Bound, Account::Unbound];

/// A value comes back from either account, through fixed and through ordinary workers.
#[test]
fn values_come_back() {
    for shape in [pool(2, 1, 4, 16), single(16)] {
        for account in BOTH {
            let jobs: Vec<_> = (0..200)
                .map(|n| shape.submit(account, None, move || n * 2))
                .collect();
            let values: Vec<i32> = jobs.into_iter().map(|job| block_on(job).unwrap()).collect();
            assert_eq!(values, (0..200).map(|n| n * 2).collect::<Vec<_>>());
        }
        let counters = shape.counters();
        assert_eq!((counters.bound.run, counters.unbound.run), (200, 200));
        assert_eq!((counters.bound.depth, counters.bound.accepted), (0, 200));
    }
}

/// A pool that has had no work has no threads.
#[test]
fn an_unused_pool_has_no_threads() {
    let pool = Pool::new(Config::new()).unwrap();
    assert!(pool.counters().bound.workers.is_empty() && pool.counters().unbound.workers.is_empty());
    block_on(pool.submit(Account::Bound, None, || ())).unwrap();
    let counters = pool.counters();
    assert_eq!(counters.bound.workers.len(), 1);
    assert_eq!(counters.bound.workers[0].name, "roundel-b0");
    assert!(counters.unbound.workers.is_empty());
}

/// Work of one account that never ends does not hold up the other.
#[test]
fn accounts_do_not_hold_each_other_up() {
    let pool = pool(1, 1, 4, 4);
    let _held = [hold(&pool, Account::Unbound), hold(&pool, Account::Unbound)];
    assert_eq!(
        block_on(pool.submit(Account::Bound, None, || 1)).unwrap(),
        1
    );
}

/// A job does not wait behind one that blocks, as long as ordinary workers may be started: the two jobs here
/// wait for each other, and the second is inserted when every fixed worker is busy.
#[test]
fn jobs_do_not_wait_behind_one_that_blocks() {
    let pool = pool(2, 4, 16, 16);
    for _ in 0..20 {
        let (send, receive) = channel();
        let (reply, replied) = channel();
        let consumers: Vec<_> = [receive, replied]
            .map(|receiver| pool.submit(Account::Bound, None, move || receiver.recv().unwrap()))
            .into();
        let producers: Vec<_> = [send, reply]
            .map(|sender| pool.submit(Account::Bound, None, move || sender.send(3).unwrap()))
            .into();
        for job in consumers {
            assert_eq!(block_on(job).unwrap(), 3);
        }
        for job in producers {
            block_on(job).unwrap();
        }
    }
}

/// Dropping the handle detaches: the job still runs.
#[test]
fn a_dropped_handle_detaches() {
    let pool = single(4);
    let gate = hold(&pool, Account::Bound);
    let (ran, has_run) = channel();
    drop(pool.submit(Account::Bound, None, move || ran.send(()).unwrap()));
    drop(gate);
    has_run.recv_timeout(LIVENESS).unwrap();
}

struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// `abort` drops a queued closure at once and says so; a running job is left alone.
#[test]
fn abort_takes_a_queued_job_and_leaves_a_running_one() {
    for shape in [single(4), pool(1, 1, 4, 4)] {
        let gate = hold(&shape, Account::Bound);
        let (go, may_go) = channel::<()>();
        let (started, has_started) = channel();
        let drops = Arc::new(AtomicUsize::new(0));
        let witness = CountDrop(drops.clone());
        let serial = shape.submit_serial(Account::Bound, 7, None, || ());
        let job = shape.submit_serial(Account::Bound, 7, None, move || drop(witness));
        assert!(!job.is_finished());
        assert!(job.abort_handle().abort());
        assert_eq!(
            drops.load(Ordering::SeqCst),
            1,
            "the closure is dropped before `abort` returns"
        );
        assert!(!job.abort() && job.is_finished());
        assert!(block_on(job).unwrap_err().is_cancelled());
        drop(gate);
        block_on(serial).unwrap();
        let running = shape.submit(Account::Bound, None, move || {
            started.send(()).unwrap();
            may_go.recv().unwrap();
            5
        });
        has_started.recv_timeout(LIVENESS).unwrap();
        assert!(!running.abort() && !running.is_finished());
        go.send(()).unwrap();
        assert_eq!(block_on(running).unwrap(), 5);
        assert_eq!(shape.counters().bound.cancelled, 1);
    }
}

/// A full account refuses with the closure, and takes jobs again once there is room.
#[test]
fn try_submit_gives_the_closure_back() {
    let pool = single(2);
    let gate = hold(&pool, Account::Bound);
    let accepted: Vec<_> = (0..2)
        .map(|n| pool.try_submit(Account::Bound, None, move || n).unwrap())
        .collect();
    let full = pool.try_submit(Account::Bound, None, || 9).unwrap_err();
    assert!(!full.is_shut_down());
    assert_eq!(full.to_string(), "the blocking pool is full");
    assert_eq!(full.into_inner()(), 9);
    assert_eq!(pool.counters().bound.rejected, 1);
    assert!(
        accepted[0].abort(),
        "an aborted job frees its place at once"
    );
    let third = pool.try_submit(Account::Bound, None, || 3).unwrap();
    drop(gate);
    assert_eq!(block_on(third).unwrap(), 3);
}

/// A job that finds no room waits for it, in order; the bound holds meanwhile.
#[test]
fn submit_waits_for_room() {
    let pool = single(2);
    let gate = hold(&pool, Account::Bound);
    let order = Arc::new(Mutex::new(Vec::new()));
    let jobs: Vec<_> = (0..10)
        .map(|n| {
            let order = order.clone();
            pool.submit(Account::Bound, None, move || order.lock().unwrap().push(n))
        })
        .collect();
    let counters = pool.counters().bound;
    assert_eq!((counters.depth, counters.waiting), (10, 8));
    assert!(pool.try_submit(Account::Bound, None, || ()).is_err());
    assert!(jobs[5].abort());
    drop(gate);
    for (n, job) in jobs.into_iter().enumerate() {
        assert_eq!(block_on(job).is_ok(), n != 5);
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 6, 7, 8, 9]);
}

/// Aborted jobs behind a worker that is held do not pile up: memory stays bounded.
#[test]
fn shells_are_swept() {
    for shape in [single(4), pool(1, 1, 4, 4)] {
        let gate = hold(&shape, Account::Bound);
        let token = Arc::new(());
        for _ in 0..1000 {
            let (inner, token) = (token.clone(), token.clone());
            // The deliver handle lives as long as the job's allocation.
            struct Hold(#[expect(dead_code, reason = "held for its life")] Arc<()>);
            impl Deliver for Hold {
                fn deliver(&self, waker: Waker) {
                    waker.wake();
                }
            }
            let job = shape
                .try_submit(Account::Bound, Some(Arc::new(Hold(token))), move || {
                    drop(inner)
                })
                .unwrap();
            assert!(job.abort());
        }
        assert!(
            Arc::strong_count(&token) < 50,
            "{} jobs are still held",
            Arc::strong_count(&token)
        );
        drop(gate);
    }
}

/// Wakers go through the submitter's `Deliver`, and only if someone waits.
#[test]
fn results_are_delivered() {
    struct Lane(Mutex<usize>);
    impl Deliver for Lane {
        fn deliver(&self, waker: Waker) {
            *self.0.lock().unwrap() += 1;
            waker.wake();
        }
    }
    let lane = Arc::new(Lane(Mutex::new(0)));
    let pool = single(4);
    let gate = hold(&pool, Account::Bound);
    let unwatched = pool.submit(Account::Bound, Some(lane.clone()), || 0);
    let mut watched = pool.submit(Account::Bound, Some(lane.clone()), || 1);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut watched).poll(&mut cx).is_pending());
    drop(gate);
    wait_for("the waker is delivered", || *lane.0.lock().unwrap() == 1);
    assert!(unwatched.is_finished());
    assert_eq!(
        Pin::new(&mut watched).poll(&mut cx).map(Result::unwrap),
        Poll::Ready(1)
    );
    assert_eq!(*lane.0.lock().unwrap(), 1);
}

/// A panic while dropping a closure or an output that nobody wants reaches nobody.
#[test]
fn panics_in_drop_are_contained() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb was dropped");
        }
    }
    let pool = single(8);
    let gate = hold(&pool, Account::Bound);
    let bomb = Bomb;
    let aborted = pool.submit(Account::Bound, None, move || std::mem::forget(bomb));
    assert!(aborted.abort());
    let before = pool.submit(Account::Bound, None, || Bomb);
    drop(before);
    let after = pool.submit(Account::Bound, None, || Bomb);
    drop(gate);
    wait_for("the job ends", || after.is_finished());
    drop(after);
    assert_eq!(
        block_on(pool.submit(Account::Bound, None, || 2)).unwrap(),
        2
    );
    assert_eq!(pool.counters().bound.workers.len(), 1);
}

/// Registration gives the previous values; what cannot be changes nothing; shrinking to zero and back under
/// load loses nothing.
#[test]
fn registration_loses_nothing() {
    let pool = pool(2, 2, 8, 1000);
    let registration = |nr_workers, max_works| Registration {
        nr_workers,
        max_works,
    };
    for invalid in [
        registration(Some(1 << 20), Some(9)),
        registration(Some(1), Some(0)),
    ] {
        assert!(pool.register(Account::Bound, invalid).is_err());
    }
    let unchanged = pool
        .register(Account::Bound, Registration::default())
        .unwrap();
    assert_eq!((unchanged.nr_workers, unchanged.max_works), (2, 8));
    let resizing = pool.clone();
    let stop = Arc::new(AtomicUsize::new(0));
    let stopped = stop.clone();
    let resizer = std::thread::spawn(move || {
        let mut round = 0;
        while stopped.load(Ordering::SeqCst) == 0 {
            let nr_workers = [0, 3, 1, 2][round % 4];
            resizing
                .register(
                    Account::Bound,
                    registration(Some(nr_workers), Some(1 + round % 9)),
                )
                .unwrap();
            round += 1;
            std::thread::yield_now();
        }
    });
    let sum: usize = (0..20_000)
        .map(|n| pool.submit(Account::Bound, None, move || n))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|job| block_on(job).unwrap())
        .sum();
    stop.store(1, Ordering::SeqCst);
    resizer.join().unwrap();
    assert_eq!(sum, 20_000 * 19_999 / 2);
    let counters = pool.counters().bound;
    assert_eq!(
        (counters.accepted, counters.run, counters.depth),
        (20_000, 20_000, 0)
    );
}

/// Workers beyond a smaller registration leave, and sleeping ones too.
#[test]
fn surplus_workers_leave() {
    let pool = pool(3, 1, 8, 16);
    let gates: Vec<_> = (0..3).map(|_| hold(&pool, Account::Bound)).collect();
    drop(gates);
    wait_for("three fixed workers", || {
        pool.counters().bound.workers.len() == 3
    });
    pool.register(
        Account::Bound,
        Registration {
            nr_workers: Some(0),
            max_works: None,
        },
    )
    .unwrap();
    wait_for("no fixed worker", || {
        pool.counters().bound.workers.iter().all(|w| !w.fixed)
    });
    assert_eq!(
        block_on(pool.submit(Account::Bound, None, || 3)).unwrap(),
        3
    );
}

/// Ordinary workers grow while jobs block, retire when idle, and the last one stays.
#[test]
fn ordinary_workers_grow_and_retire() {
    let account = account(0, 8, 1, 64).idle_timeout(Duration::from_millis(5));
    let pool = Pool::new(Config::new().bound(account)).unwrap();
    let gates: Vec<_> = (0..8).map(|_| hold(&pool, Account::Bound)).collect();
    assert_eq!(pool.counters().bound.workers.len(), 8);
    let ninth = pool.submit(Account::Bound, None, || ());
    drop(gates);
    block_on(ninth).unwrap();
    wait_for("all but one retire", || {
        pool.counters().bound.workers.len() == 1
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pool.counters().bound.workers.len(), 1);
    assert_eq!(
        block_on(pool.submit(Account::Bound, None, || 4)).unwrap(),
        4
    );
}

/// Workers have the name, the CPUs and the nice value that were asked for, and run the hook first.
#[test]
fn threads_are_set_up() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap();
    let hooked = Arc::new(Mutex::new(Vec::new()));
    let names = hooked.clone();
    let config = Config::new()
        .name("mine")
        .cpus([cpu])
        .nice(7)
        .on_worker_start(move |name| names.lock().unwrap().push(name.to_string()));
    let pool = Pool::new(config).unwrap();
    let (name, nice, cpus) = block_on(pool.submit(Account::Unbound, None, || {
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let nice = rustix::process::getpriority_process(None).unwrap();
        (std::thread::current().name().map(String::from), nice, cpus)
    }))
    .unwrap();
    assert_eq!((name.as_deref(), nice), (Some("mine-u0"), 7));
    assert!(cpus.count() == 1 && cpus.is_set(cpu));
    assert_eq!(*hooked.lock().unwrap(), ["mine-u0"]);
}

/// Settings that cannot be are refused when the pool is built.
#[test]
fn settings_are_checked() {
    let shapes = [
        account(0, 0, 1, 1),
        account(1, 1, 0, 1),
        account(1, 1, 1, 0),
    ];
    for shape in shapes
        .into_iter()
        .chain([account(1, 1, 1, 1).workers_max(0)])
    {
        assert!(Pool::new(Config::new().unbound(shape)).is_err());
    }
    assert!(Pool::new(Config::new().name("a\0b")).is_err());
}

/// A pinned thread that happens to start a worker does not pin it: workers run where the pool's builder might.
#[test]
fn pinning_does_not_leak() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap();
    let pool = Pool::new(Config::new()).unwrap();
    let pinned = std::thread::spawn(move || {
        let mut one = rustix::thread::CpuSet::new();
        one.set(cpu);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        block_on(pool.submit(Account::Bound, None, || {
            rustix::thread::sched_getaffinity(None).unwrap()
        }))
    });
    assert_eq!(pinned.join().unwrap().unwrap(), allowed);
}

/// Shutdown cancels what is queued, waits for what returns, names what does not, and keeps its deadline.
#[test]
fn shutdown_keeps_its_deadline() {
    let pool = pool(1, 1, 4, 4);
    let _stuck = hold(&pool, Account::Unbound);
    let queued = pool.submit_serial(Account::Unbound, 1, None, || {
        std::thread::sleep(Duration::from_millis(300))
    });
    let behind = pool.submit_serial(Account::Unbound, 1, None, || ());
    let begin = Instant::now();
    wait_for("the serial job runs", || pool.counters().unbound.depth == 1);
    let report = pool.shutdown(Instant::now() + Duration::from_secs(1));
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(report.cancelled, 1);
    assert_eq!(report.abandoned.len(), 1);
    assert!(
        report.abandoned[0].job.contains("hold"),
        "{}",
        report.abandoned[0]
    );
    assert!(block_on(queued).is_ok());
    assert!(block_on(behind).unwrap_err().is_cancelled());
    let late = pool.submit(Account::Unbound, None, || ());
    assert!(block_on(late).unwrap_err().is_cancelled());
    assert!(
        pool.try_submit(Account::Unbound, None, || ())
            .unwrap_err()
            .is_shut_down()
    );
}

/// Draining runs what is queued, lanes and those who wait for room included.
#[test]
fn drain_runs_what_is_queued() {
    for shape in [single(2), pool(2, 1, 2, 2)] {
        let gate = hold(&shape, Account::Bound);
        let jobs: Vec<_> = (0..50)
            .map(|n| match n % 2 {
                0 => shape.submit(Account::Bound, None, || ()),
                _ => shape.submit_serial(Account::Bound, n % 6, None, || ()),
            })
            .collect();
        let draining = shape.clone();
        let drain = std::thread::spawn(move || draining.drain(Instant::now() + LIVENESS));
        std::thread::sleep(Duration::from_millis(5));
        drop(gate);
        let report = drain.join().unwrap();
        assert_eq!((report.cancelled, report.abandoned.len()), (0, 0));
        assert!(jobs.into_iter().all(|job| block_on(job).is_ok()));
    }
}

/// Dropping the last clone cancels what is queued and does not wait for what runs.
#[test]
fn dropping_the_last_clone_does_not_block() {
    let pool = single(4);
    let gate = hold(&pool, Account::Bound);
    let queued = pool.submit(Account::Bound, None, || ());
    drop(pool.clone());
    assert!(!queued.is_finished());
    drop(pool);
    assert!(block_on(queued).unwrap_err().is_cancelled());
    drop(gate);
}

/// A job finds its own pool through `current`; other threads find none.
#[test]
fn workers_and_shards_have_a_current_pool() {
    let pool = pool(1, 1, 4, 4);
    let inner = block_on(pool.submit(Account::Bound, None, || {
        block_on(current::submit(Account::Unbound, || 8))
    }));
    assert_eq!(inner.unwrap().unwrap(), 8);
    assert!(current::pool().is_none());
    let guard = current::enter(&pool, None);
    assert_eq!(block_on(current::submit(Account::Bound, || 9)).unwrap(), 9);
    drop(guard);
    assert!(std::panic::catch_unwind(|| drop(current::submit(Account::Bound, || ()))).is_err());
}

/// Many rounds of a short-lived pool under load from two producers: nothing hangs, nothing is lost.
#[test]
fn rounds_under_load() {
    let rounds = match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => 1000,
        _ => 20,
    };
    for round in 0..rounds {
        let pool = pool(round % 3, 1 + round % 2, 1 + round % 7, 1 + round % 31);
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let pool = pool.clone();
                std::thread::spawn(move || {
                    let jobs: Vec<_> = (0..300)
                        .map(|n| match n % 3 {
                            0 => pool.submit_serial(Account::Bound, n % 5, None, move || n),
                            _ => pool.submit(Account::Bound, None, move || n),
                        })
                        .collect();
                    jobs.into_iter()
                        .map(|job| block_on(job).unwrap())
                        .sum::<usize>()
                        + producer
                })
            })
            .collect();
        let sums: Vec<_> = producers.into_iter().map(|p| p.join().unwrap()).collect();
        assert_eq!(sums, [44_850, 44_851]);
        let report = pool.shutdown(Instant::now() + LIVENESS);
        assert_eq!((report.cancelled, report.abandoned.len()), (0, 0));
    }
}

/// What a job's error says.
#[test]
fn errors_reach_whoever_awaits() {
    let pool = single(4);
    let error: JobError = block_on(pool.submit(Account::Bound, None, || {
        panic!("boom {}", std::hint::black_box(1))
    }))
    .unwrap_err();
    assert!(error.is_panic());
    assert_eq!(error.to_string(), "the job panicked: boom 1");
    assert_eq!(*error.into_panic().downcast::<String>().unwrap(), "boom 1");
}
