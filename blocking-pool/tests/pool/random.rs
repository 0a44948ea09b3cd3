//! Random sequences of calls against a reference: nothing is lost, nothing runs twice, keys keep their order, bounds
//! hold (promise P9).
//!
//! `ROUNDEL_TIER=large` runs 100,000 sequences, otherwise 2,000. The sequence runs on one thread against the real
//! pool with its real workers, so each case is also a different race between them.

use super::common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRunner};
use roundel_blocking_pool::{Account, Job, Pool, Registration};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
enum Call {
    Submit {
        account: bool,
        what: What,
        awaited: bool,
    },
    TrySubmit {
        what: What,
    },
    Serial {
        key: u8,
        what: What,
        awaited: bool,
    },
    /// Aborts one of the handles that are kept.
    Abort {
        which: usize,
    },
    /// Drops one of them.
    Detach {
        which: usize,
    },
    Await {
        which: usize,
    },
    Register {
        nr_workers: Option<usize>,
        max_works: Option<usize>,
    },
    /// Lets the workers go to sleep.
    Pause,
    /// Holds a worker until the next `Release`.
    Hold,
    Release,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Nothing,
    Panic,
    /// Submits another job from the worker.
    Nested,
    Sleep,
}

#[derive(Clone, Debug)]
struct Case {
    shape: (usize, usize, usize, usize),
    calls: Vec<Call>,
    end: End,
}

#[derive(Clone, Copy, Debug)]
enum End {
    AwaitAll,
    Drain,
    Shutdown,
    Drop,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        8 => Just(What::Nothing),
        1 => Just(What::Panic),
        1 => Just(What::Nested),
        1 => Just(What::Sleep),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (any::<bool>(), what(), any::<bool>())
            .prop_map(|(account, what, awaited)| Call::Submit { account, what, awaited }),
        2 => what().prop_map(|what| Call::TrySubmit { what }),
        5 => (0..3u8, what(), any::<bool>())
            .prop_map(|(key, what, awaited)| Call::Serial { key, what, awaited }),
        3 => (0..8usize).prop_map(|which| Call::Abort { which }),
        1 => (0..8usize).prop_map(|which| Call::Detach { which }),
        1 => (0..8usize).prop_map(|which| Call::Await { which }),
        1 => (prop::option::of(0..4usize), prop::option::of(0..5usize))
            .prop_map(|(nr_workers, max_works)| Call::Register { nr_workers, max_works }),
        1 => Just(Call::Pause),
        1 => Just(Call::Hold),
        2 => Just(Call::Release),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (0..3usize, 1..3usize, 1..4usize, 1..5usize);
    let end = prop_oneof![
        3 => Just(End::AwaitAll),
        1 => Just(End::Drain),
        1 => Just(End::Shutdown),
        1 => Just(End::Drop),
    ];
    (shape, prop::collection::vec(call(), 1..40), end).prop_map(|(shape, calls, end)| Case {
        shape,
        calls,
        end,
    })
}

/// What the reference knows of one job.
struct Known {
    ran: Arc<AtomicU32>,
    dropped: Arc<AtomicU32>,
    panics: bool,
    aborted: bool,
}

/// Counts the end of a closure, however it ends.
struct Witness(Arc<AtomicU32>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// The jobs of one key.
#[derive(Default)]
struct Lane {
    /// In the order in which they ran.
    ran: Arc<Mutex<Vec<usize>>>,
    /// In the order in which they were submitted.
    submitted: Vec<usize>,
}

struct Reference {
    known: Vec<Known>,
    /// The jobs whose handle is kept, by their number.
    kept: Vec<(usize, Job<usize>)>,
    lanes: HashMap<u8, Lane>,
    /// Jobs that jobs submitted.
    nested: Arc<AtomicU32>,
    nested_ran: Arc<AtomicU32>,
}

impl Reference {
    /// A closure to submit, and what is known of it.
    fn closure(&mut self, what: What, lane: Option<u8>) -> impl FnOnce() -> usize + Send + 'static {
        let number = self.known.len();
        let known = Known {
            ran: Arc::default(),
            dropped: Arc::default(),
            panics: matches!(what, What::Panic),
            aborted: false,
        };
        let (ran, witness) = (known.ran.clone(), Witness(known.dropped.clone()));
        let (nested, nested_ran) = (self.nested.clone(), self.nested_ran.clone());
        self.known.push(known);
        let order = lane.map(|key| {
            let lane = self.lanes.entry(key).or_default();
            lane.submitted.push(number);
            lane.ran.clone()
        });
        move || {
            let _witness = witness;
            ran.fetch_add(1, SeqCst);
            if let Some(order) = order {
                order.lock().unwrap().push(number);
            }
            match what {
                What::Nothing => {}
                What::Panic => std::panic::panic_any(number),
                What::Nested => {
                    if let Some(pool) = roundel_blocking_pool::current::pool() {
                        nested.fetch_add(1, SeqCst);
                        drop(pool.submit(Account::Bound, None, move || {
                            nested_ran.fetch_add(1, SeqCst);
                        }));
                    }
                }
                What::Sleep => std::thread::sleep(Duration::from_micros(100)),
            }
            number
        }
    }

    fn keep(&mut self, job: Job<usize>, awaited: bool) {
        if awaited {
            self.kept.push((self.known.len() - 1, job));
        }
    }

    fn take(&mut self, which: usize) -> Option<(usize, Job<usize>)> {
        let len = self.kept.len();
        (len > 0).then(|| self.kept.swap_remove(which % len))
    }

    /// Awaits a job and compares how it ended with what is known.
    fn settle(
        &self,
        number: usize,
        job: Job<usize>,
        may_be_cancelled: bool,
    ) -> Result<(), TestCaseError> {
        let known = &self.known[number];
        match block_on(job) {
            Ok(value) => {
                prop_assert_eq!(value, number);
                prop_assert!(!known.panics && !known.aborted);
                prop_assert_eq!(known.ran.load(SeqCst), 1);
            }
            Err(error) if error.is_panic() => {
                prop_assert!(known.panics && !known.aborted);
                prop_assert_eq!(*error.into_panic().downcast::<usize>().unwrap(), number);
                prop_assert_eq!(known.ran.load(SeqCst), 1);
            }
            Err(_) => {
                prop_assert!(known.aborted || may_be_cancelled);
                prop_assert_eq!(known.ran.load(SeqCst), 0);
            }
        }
        prop_assert_eq!(
            known.dropped.load(SeqCst),
            1,
            "the closure is gone when the job has ended"
        );
        Ok(())
    }
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let (fixed, ordinary, max_works, public) = case.shape;
    let pool = pool(fixed, ordinary, max_works, public);
    let mut reference = Reference {
        known: Vec::new(),
        kept: Vec::new(),
        lanes: HashMap::new(),
        nested: Arc::default(),
        nested_ran: Arc::default(),
    };
    let mut gates = Vec::new();
    let mut works_max = max_works;
    for call in &case.calls {
        match *call {
            Call::Submit {
                account,
                what,
                awaited,
            } => {
                let account = if account {
                    Account::Bound
                } else {
                    Account::Unbound
                };
                let closure = reference.closure(what, None);
                let job = pool.submit(account, None, closure);
                reference.keep(job, awaited);
            }
            Call::TrySubmit { what } => {
                let closure = reference.closure(what, None);
                match pool.try_submit(Account::Bound, None, closure) {
                    Ok(job) => reference.keep(job, true),
                    Err(full) => {
                        drop(full.into_inner());
                        let refused = reference.known.pop().unwrap();
                        prop_assert_eq!(
                            (refused.ran.load(SeqCst), refused.dropped.load(SeqCst)),
                            (0, 1)
                        );
                    }
                }
            }
            Call::Serial { key, what, awaited } => {
                let closure = reference.closure(what, Some(key));
                let job = pool.submit_serial(Account::Bound, key, None, closure);
                reference.keep(job, awaited);
            }
            Call::Abort { which } => {
                if let Some((number, job)) = reference.take(which) {
                    let won = job.abort();
                    prop_assert!(!won || reference.known[number].dropped.load(SeqCst) == 1);
                    reference.known[number].aborted = won;
                    if gates.is_empty() || won {
                        reference.settle(number, job, false)?;
                    }
                }
            }
            Call::Detach { which } => drop(reference.take(which)),
            Call::Await { which } => {
                if gates.is_empty()
                    && let Some((number, job)) = reference.take(which)
                {
                    reference.settle(number, job, false)?;
                }
            }
            Call::Register {
                nr_workers,
                max_works,
            } => {
                let change = Registration {
                    nr_workers,
                    max_works,
                };
                let done = pool.register(Account::Bound, change);
                prop_assert_eq!(done.is_err(), max_works == Some(0));
                if done.is_ok() {
                    works_max = works_max.max(max_works.unwrap_or(0));
                }
            }
            Call::Pause => std::thread::sleep(Duration::from_micros(50)),
            Call::Hold if gates.is_empty() => {
                let (open, closed) = std::sync::mpsc::channel::<()>();
                drop(pool.submit(Account::Bound, None, move || {
                    let _ = closed.recv();
                }));
                gates.push(open);
            }
            Call::Hold => {}
            Call::Release => gates.clear(),
        }
        check_bounds(&pool, works_max, public)?;
    }
    let may_be_cancelled = end(pool, case.end, &mut gates, &mut reference)?;
    // A pool that drains takes no new jobs, also not from its own.
    let nested_refused = may_be_cancelled || matches!(case.end, End::Drain);
    check_ends(&reference, may_be_cancelled, nested_refused)
}

fn check_bounds(pool: &Pool, works_max: usize, public: usize) -> Result<(), TestCaseError> {
    let counters = pool.counters().bound;
    for worker in &counters.workers {
        prop_assert!(
            worker.depth <= works_max,
            "{} of {}",
            worker.depth,
            works_max
        );
    }
    prop_assert!(
        counters.public_depth <= public,
        "{} of {}",
        counters.public_depth,
        public
    );
    Ok(())
}

/// Ends the pool. Returns whether queued jobs may have been cancelled.
fn end(
    pool: Pool,
    end: End,
    gates: &mut Vec<std::sync::mpsc::Sender<()>>,
    reference: &mut Reference,
) -> Result<bool, TestCaseError> {
    let deadline = Instant::now() + LIVENESS;
    let cancels = match end {
        End::AwaitAll | End::Drain => false,
        End::Shutdown | End::Drop => true,
    };
    if !cancels {
        gates.clear();
    }
    if matches!(end, End::Drop) {
        drop(pool);
        gates.clear();
        while let Some((number, job)) = reference.take(0) {
            reference.settle(number, job, true)?;
        }
        // Jobs that had started when the pool was dropped end by themselves.
        wait_for("every closure ends", || {
            reference
                .known
                .iter()
                .all(|known| known.dropped.load(SeqCst) == 1)
        });
        return Ok(true);
    }
    if matches!(end, End::AwaitAll) {
        while let Some((number, job)) = reference.take(0) {
            reference.settle(number, job, false)?;
        }
        // Detached jobs, and those that they submitted.
        wait_for("every job ends", || {
            let ended = |known: &Known| known.dropped.load(SeqCst) == 1;
            reference.known.iter().all(ended)
                && reference.nested_ran.load(SeqCst) == reference.nested.load(SeqCst)
        });
    }
    let report = if cancels {
        let ending = pool.clone();
        let shutdown = std::thread::spawn(move || ending.shutdown(deadline));
        gates.clear();
        shutdown.join().unwrap()
    } else {
        pool.drain(deadline)
    };
    prop_assert!(report.abandoned.is_empty(), "{:?}", report);
    prop_assert!(cancels || report.cancelled == 0, "{:?}", report);
    while let Some((number, job)) = reference.take(0) {
        prop_assert!(job.is_finished());
        reference.settle(number, job, cancels)?;
    }
    for counters in [pool.counters().bound, pool.counters().unbound] {
        prop_assert_eq!(counters.depth, 0, "{:?}", counters);
        prop_assert_eq!(
            counters.accepted,
            counters.run + counters.cancelled,
            "{:?}",
            counters
        );
        prop_assert!(counters.workers.is_empty());
    }
    Ok(cancels)
}

/// Every job ended exactly once, and every key's jobs ran in order.
fn check_ends(
    reference: &Reference,
    may_be_cancelled: bool,
    nested_refused: bool,
) -> Result<(), TestCaseError> {
    for known in &reference.known {
        let (ran, dropped) = (known.ran.load(SeqCst), known.dropped.load(SeqCst));
        prop_assert_eq!(dropped, 1, "each closure ends once");
        prop_assert!(ran <= 1, "no job runs twice");
        prop_assert!(
            ran == 1 || known.aborted || may_be_cancelled,
            "no job is lost"
        );
        prop_assert!(ran == 0 || !known.aborted, "an aborted job does not run");
    }
    for Lane { ran, submitted } in reference.lanes.values() {
        let ran = ran.lock().unwrap();
        let expected: Vec<_> = submitted
            .iter()
            .copied()
            .filter(|n| ran.contains(n))
            .collect();
        prop_assert_eq!(&*ran, &expected, "a key's jobs run in order");
    }
    let (nested, nested_ran) = (
        reference.nested.load(SeqCst),
        reference.nested_ran.load(SeqCst),
    );
    prop_assert!(nested_ran == nested || nested_refused && nested_ran < nested);
    Ok(())
}

/// Random sequences against the reference.
#[test]
fn random_sequences() {
    let cases = match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => 100_000,
        _ => 2_000,
    };
    std::panic::set_hook(Box::new(|panic| {
        // The jobs' own panics carry a number; all others are faults.
        if !panic.payload().is::<usize>() {
            eprintln!("{panic}");
        }
    }));
    let mut runner = TestRunner::new(Runs {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Runs::default()
    });
    if let Err(error) = runner.run(&case(), |case| run(&case)) {
        panic!("{error}");
    }
}
