//! Cases that broke elsewhere: H38 to H41.

use super::common::*;
use roundel_blocking_pool::{Account, Config, Pool, Registration, current};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

/// H38: ten panics for each worker reach those who await them, cost no worker, and stop no serial lane.
#[test]
fn h38_panics_reach_the_awaiter_and_cost_no_worker() {
    const WORKERS: usize = 2;
    for (fixed, ordinary) in [(WORKERS, 1), (0, WORKERS)] {
        let pool = pool(fixed, ordinary, 8, 64);
        let warm_up: Vec<_> = (0..3)
            .map(|_| hold(&pool, Account::Unbound))
            .take(WORKERS)
            .collect();
        drop(warm_up);
        let before = pool.counters().unbound.workers.len();
        let jobs: Vec<_> = (0..10 * WORKERS)
            .map(|n| match n % 2 {
                0 => pool.submit(Account::Unbound, None, move || panic!("job {n}")),
                _ => pool.submit_serial(Account::Unbound, "lane", None, move || panic!("job {n}")),
            })
            .collect();
        let next_in_lane = pool.submit_serial(Account::Unbound, "lane", None, || 41);
        for (n, job) in jobs.into_iter().enumerate() {
            let error = block_on(job).unwrap_err();
            assert_eq!(
                *error.into_panic().downcast::<String>().unwrap(),
                format!("job {n}")
            );
        }
        assert_eq!(block_on(next_in_lane).unwrap(), 41);
        assert_eq!(
            block_on(pool.submit(Account::Unbound, None, || 42)).unwrap(),
            42
        );
        let counters = pool.counters().unbound;
        assert_eq!(counters.panicked, 10 * WORKERS as u64);
        assert!(
            counters.workers.len() >= before.min(WORKERS),
            "a worker is gone"
        );
    }
}

/// H39: handing a result back needs no place in the pool: a result is taken while the only worker is held, by a
/// job that itself waits for what the taker does.
#[test]
fn h39_results_come_back_while_the_only_worker_is_held() {
    let pool = single(1);
    let finished = pool.submit(Account::Unbound, None, || 1);
    wait_for("the first job ends", || finished.is_finished());
    let (send, receive) = channel();
    let (started, has_started) = channel();
    // The job blocks on something that this thread, the "core", must do first.
    let blocking = pool.submit(Account::Unbound, None, move || {
        started.send(()).unwrap();
        receive.recv_timeout(LIVENESS).unwrap()
    });
    has_started.recv_timeout(LIVENESS).unwrap();
    let filler = pool.try_submit(Account::Unbound, None, || 3).unwrap();
    assert!(
        pool.try_submit(Account::Unbound, None, || ()).is_err(),
        "the pool is full"
    );
    send.send(block_on(finished).unwrap()).unwrap();
    assert_eq!(block_on(blocking).unwrap(), 1);
    assert_eq!(block_on(filler).unwrap(), 3);
}

/// H39: a job that submits to a full queue and waits for the result does not wait for itself: it runs inline. A long
/// chain of such jobs does not eat up the stack either.
#[test]
fn h39_a_job_submits_to_a_full_queue() {
    let pool = single(1);
    let (submitted, may_go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (at_start, at_end) = (submitted.clone(), may_go.clone());
    let parent = pool.submit(Account::Unbound, None, move || {
        at_start.wait();
        at_end.wait();
        block_on(current::submit(Account::Unbound, || 7)).unwrap()
    });
    submitted.wait();
    let filler = pool.submit(Account::Unbound, None, || 8);
    may_go.wait();
    assert_eq!(block_on(parent).unwrap(), 7);
    assert_eq!(block_on(filler).unwrap(), 8);
    assert_eq!(pool.counters().unbound.inline, 1);

    fn chain(left: usize, done: std::sync::mpsc::Sender<()>) {
        match left {
            0 => done.send(()).unwrap(),
            _ => drop(current::submit(Account::Unbound, move || {
                chain(left - 1, done)
            })),
        }
    }
    let (done, is_done) = channel();
    let gate = hold(&pool, Account::Unbound);
    drop(pool.submit(Account::Unbound, None, move || {
        // Keeps the queue full, so that each link of the chain meets a full queue.
        drop(current::submit(Account::Unbound, || ()));
        chain(20_000, done);
    }));
    drop(gate);
    is_done.recv_timeout(LIVENESS).unwrap();
}

/// H40: jobs of one key run in order and never overlap, though handles are dropped and some are aborted; other keys
/// run beside them, also while this key is stuck.
#[test]
fn h40_the_serial_lane_keeps_order() {
    let pool = pool(2, 2, 4, 8);
    let order = Arc::new(Mutex::new(Vec::new()));
    let running = Arc::new(AtomicBool::new(false));
    let (open, closed) = channel::<()>();
    drop(pool.submit_serial(Account::Bound, "key", None, move || {
        let _ = closed.recv();
    }));
    let mut jobs = Vec::new();
    for n in 0..200 {
        let (order, running) = (order.clone(), running.clone());
        let job = pool.submit_serial(Account::Bound, "key", None, move || {
            assert!(
                !running.swap(true, Ordering::SeqCst),
                "two jobs of one key overlap"
            );
            order.lock().unwrap().push(n);
            running.store(false, Ordering::SeqCst);
        });
        match n % 3 {
            0 => drop(job),
            1 => assert!(job.abort()),
            _ => jobs.push(job),
        }
    }
    // The key is stuck, and more jobs stand behind it than the public queue holds: others still run.
    let others: Vec<_> = (0..100)
        .map(|n| match n % 2 {
            0 => pool.submit_serial(Account::Bound, n, None, || ()),
            _ => pool.submit(Account::Bound, None, || ()),
        })
        .collect();
    others.into_iter().for_each(|job| block_on(job).unwrap());
    assert!(order.lock().unwrap().is_empty());
    drop(open);
    jobs.into_iter().for_each(|job| block_on(job).unwrap());
    let expected: Vec<_> = (0..200).filter(|n| n % 3 != 1).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

/// H40: different keys do run in parallel: each of two jobs waits for the other.
#[test]
fn h40_different_keys_run_in_parallel() {
    let pool = pool(1, 2, 4, 8);
    let meet = Arc::new(Barrier::new(2));
    let jobs: Vec<_> = (0..2)
        .map(|key| {
            let meet = meet.clone();
            pool.submit_serial(Account::Bound, key, None, move || meet.wait().is_leader())
        })
        .collect();
    let leaders = jobs
        .into_iter()
        .filter(|_| true)
        .map(|job| block_on(job).unwrap());
    assert_eq!(leaders.filter(|&leader| leader).count(), 1);
}

/// H41: a process that may not start threads (a normal user at its limit; the child drops root for that): building
/// the pool works, no job is orphaned, each ends with an error or runs, and the counters say why.
#[test]
fn h41_threads_cannot_be_started() {
    run_in_child("cases::h41_threads_cannot_be_started", || {
        let pool = Pool::new(Config::new()).unwrap();
        limit_threads(1);
        assert!(
            std::thread::Builder::new().spawn(|| ()).is_err(),
            "the limit holds"
        );
        let ten = Registration {
            nr_workers: Some(10),
            max_works: None,
        };
        assert_eq!(
            pool.register(Account::Unbound, ten).unwrap().clamped,
            Some(1)
        );
        assert_eq!(pool.counters().unbound.nr_workers, 1);
        let refused = pool.try_submit(Account::Unbound, None, || 5).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("no worker thread could be started")
        );
        assert_eq!(refused.into_inner()(), 5);
        let error = block_on(pool.submit(Account::Unbound, None, || 6)).unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        let error = block_on(pool.submit_serial(Account::Bound, 1, None, || 6)).unwrap_err();
        assert!(error.to_string().starts_with("no worker thread"), "{error}");
        let counters = pool.counters();
        assert!(counters.unbound.threads_refused > 0);
        assert_eq!(
            (counters.unbound.rejected, counters.unbound.accepted),
            (2, 0)
        );
        assert!(
            pool.shutdown(Instant::now() + LIVENESS)
                .abandoned
                .is_empty()
        );
    });
}

/// H41: with one worker alive and no more to be had, the pool runs with fewer workers and loses nothing.
#[test]
fn h41_fewer_threads_than_asked_for() {
    run_in_child("cases::h41_fewer_threads_than_asked_for", || {
        let shape = account(4, 4, 2, 4);
        let pool = Pool::new(Config::new().bound(shape)).unwrap();
        block_on(pool.submit(Account::Bound, None, || ())).unwrap();
        limit_threads(1);
        let ran = Arc::new(AtomicUsize::new(0));
        let jobs: Vec<_> = (0..200)
            .map(|n| {
                let ran = ran.clone();
                let f = move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                };
                match n % 2 {
                    0 => pool.submit(Account::Bound, None, f),
                    _ => pool.submit_serial(Account::Bound, n % 8, None, f),
                }
            })
            .collect();
        jobs.into_iter().for_each(|job| block_on(job).unwrap());
        assert_eq!(ran.load(Ordering::SeqCst), 200);
        let counters = pool.counters().bound;
        assert_eq!(counters.workers.len(), 1);
        assert_eq!(counters.depth, 0);
    });
}

/// Lowers the limit on this user's threads; it does not bind root, so the child is run as another user.
fn limit_threads(threads: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(threads),
        maximum: Some(threads),
    };
    setrlimit(Resource::Nproc, limit).unwrap();
}

/// Runs `body` in a child process of this test: limits of a process do not come back. Root, whom the limit does not
/// bind, runs the child as a user that owns nothing else; it must be able to execute the test binary, so it
/// runs a copy that everyone may read.
fn run_in_child(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "ROUNDEL_POOL_TEST_CHILD";
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let this = std::env::current_exe().unwrap();
    let copy = std::env::temp_dir().join(format!(
        "{}-{}",
        test.replace("::", "-"),
        std::process::id()
    ));
    std::fs::copy(&this, &copy).unwrap();
    let mut child = Command::new(&copy);
    child
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test);
    if rustix::process::getuid().is_root() {
        // Any id will do that no other process has; the two tests differ.
        child.uid(700_000 + std::process::id() * 2 % 100_000 + test.len() as u32 % 2);
    }
    let output = child.current_dir("/").output();
    std::fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
