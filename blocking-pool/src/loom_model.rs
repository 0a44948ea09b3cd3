//! Loom models of the protocols between threads, each over the shipped files.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p roundel-blocking-pool --release --lib loom`.
//! The first models take one protocol out of its surroundings; the last ones run whole crews: producers, workers as
//! the pool starts them, and its end. A lost wake-up is a deadlock, which loom reports. The largest
//! models are searched with one preemption, since two take hours (`ROUNDEL_TIER=large` does).

use crate::account::{Crew, Patience, Placed, Stage};
use crate::atomics::{AtomicUsize, Batch, Parking, lock, thread};
use crate::config::{Account, AccountConfig, Config, Registration};
use crate::error::JobError;
use crate::fixed::Seat;
use crate::handle::{Job, JobId};
use crate::job::{Awaited, Cell, Home, Queued, Task};
use crate::lane::Lanes;
use crate::public::Public;
use crate::thread::ThreadSettings;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Counts how often each job has run.
struct Ran(Vec<AtomicUsize>);

impl Ran {
    fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Ran((0..jobs).map(|_| AtomicUsize::new(0)).collect()))
    }

    fn job(
        self: &Arc<Self>,
        n: usize,
        lane: Option<u64>,
    ) -> Arc<Cell<impl FnOnce() + Send + use<>, ()>> {
        let ran = self.clone();
        Arc::new(Cell::new(JobId(n as u64), lane, None, move || {
            ran.0[n].fetch_add(1, SeqCst);
        }))
    }

    fn counts(&self) -> Vec<usize> {
        self.0.iter().map(|count| count.load(SeqCst)).collect()
    }
}

/// Searches all executions of a model, with the number of preemptions from the environment.
fn model(body: impl Fn() + Send + Sync + 'static) {
    builder().check(body);
}

/// As `model`, with one preemption unless all are asked for.
fn large_model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = builder();
    if std::env::var("ROUNDEL_TIER").as_deref() != Ok("large") {
        builder.preemption_bound = Some(1);
    }
    builder.check(body);
}

fn builder() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    // Whole crews take more steps than loom's default of 1,000 allows.
    builder.max_branches = 20_000;
    builder
}

/// Runs a task as a worker does, without a crew. False: it was a shell.
fn run(task: &Task) -> bool {
    let claimed = task.header().claim().is_some();
    if claimed {
        task.execute(&|_| ());
    }
    claimed
}

struct Unpark(Parking);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(job: impl Future<Output = T>) -> T {
    let parking = Parking::of_this_thread();
    let waker = Waker::from(Arc::new(Unpark(parking.clone())));
    let mut cx = Context::from_waker(&waker);
    let mut job = pin!(job);
    loop {
        if let Poll::Ready(output) = job.as_mut().poll(&mut cx) {
            return output;
        }
        parking.park(None);
    }
}

/// A start and an abort race: exactly one has the job, and whoever awaits learns which.
#[test]
fn abort_against_start() {
    model(|| {
        let ran = Ran::new(1);
        let cell = ran.job(0, None);
        let (started, aborted) = (cell.clone(), cell.clone());
        let start = thread::spawn(move || run(&(started as Task)));
        let abort = thread::spawn(move || {
            let won = aborted.header().cancel().is_some();
            if won {
                aborted.discard(JobError::cancelled());
            }
            won
        });
        struct Outcome(Arc<dyn Awaited<()>>);
        impl Future for Outcome {
            type Output = Result<(), JobError>;
            fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.0.poll(cx)
            }
        }
        let outcome = block_on(Outcome(cell));
        let (started, aborted) = (start.join().unwrap(), abort.join().unwrap());
        assert!(started != aborted, "exactly one wins");
        assert_eq!(ran.counts(), [usize::from(started)]);
        assert_eq!(outcome.is_ok(), started);
    });
}

/// Two producers insert while the worker leaves: what was accepted was taken along, the bound holds.
#[test]
fn insert_against_worker_exit() {
    model(|| {
        let seat = Arc::new(Seat::new(0));
        assert!(seat.occupy());
        let ran = Ran::new(4);
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let (seat, ran) = (seat.clone(), ran.clone());
                thread::spawn(move || {
                    (0..2)
                        .filter(|n| seat.insert(&(ran.job(2 * producer + n, None) as Task), 2))
                        .count()
                })
            })
            .collect();
        let batch = seat.sit_down();
        let mut taken: Vec<Task> = seat.next(&batch).into_iter().collect();
        taken.extend(seat.close());
        taken.extend(std::iter::from_fn(|| batch.pop()));
        seat.stand_up(batch);
        let accepted: usize = producers.into_iter().map(|p| p.join().unwrap()).sum();
        assert_eq!(taken.len(), accepted);
        assert!(accepted <= 2 && seat.queued() == accepted);
        assert!(taken.iter().all(run));
        assert_eq!(ran.counts().iter().sum::<usize>(), accepted);
    });
}

/// The owner drains while a sibling steals: each job runs once, and none is out of both's reach.
#[test]
fn steal_against_drain() {
    model(|| {
        let seat = Arc::new(Seat::new(0));
        assert!(seat.occupy());
        let ran = Ran::new(4);
        for n in 0..4 {
            assert!(seat.insert(&(ran.job(n, None) as Task), 4));
        }
        let (victim, thief_ran) = (seat.clone(), ran.clone());
        let thief = thread::spawn(move || {
            let (own, _) = Batch::new();
            let mut stolen = 0;
            while let Some(task) = own.pop().or_else(|| victim.steal(&own)) {
                assert!(run(&task));
                victim.release();
                stolen += 1;
            }
            drop(thief_ran);
            stolen
        });
        let batch = seat.sit_down();
        let mut own = 0;
        while let Some(task) = seat.next(&batch) {
            assert!(run(&task));
            seat.release();
            own += 1;
        }
        assert_eq!(own + thief.join().unwrap(), 4);
        assert_eq!(ran.counts(), [1; 4]);
        assert!(!seat.has_stealable() && seat.queued() == 0);
    });
}

/// Two submitters and whoever runs the lane: one at a time, in order for each submitter, none left behind.
#[test]
fn serial_lane_hand_over() {
    model(|| {
        let lanes = Arc::new(Lanes::new());
        let running = Arc::new(AtomicUsize::new(0));
        let order = Arc::new(loom::sync::Mutex::new(Vec::new()));
        let submitters: Vec<_> = (0..2)
            .map(|submitter| {
                let (lanes, running, order) = (lanes.clone(), running.clone(), order.clone());
                thread::spawn(move || {
                    for n in 0..2 {
                        let (running, order) = (running.clone(), order.clone());
                        let task: Task = Arc::new(Cell::new(JobId(n), Some(7), None, move || {
                            assert_eq!(running.fetch_add(1, SeqCst), 0, "two of one lane at once");
                            lock(&order).push((submitter, n));
                            running.fetch_sub(1, SeqCst);
                        }));
                        // Whoever sends a job out runs it here, and what follows it.
                        let mut out = lanes.enter(7, &task).then_some(task);
                        while let Some(task) = out {
                            assert!(run(&task));
                            out = lanes.next(7);
                        }
                    }
                })
            })
            .collect();
        submitters.into_iter().for_each(|s| s.join().unwrap());
        let order = lock(&order);
        assert_eq!(order.len(), 4);
        for submitter in 0..2 {
            let own: Vec<_> = order
                .iter()
                .filter(|job| job.0 == submitter)
                .map(|job| job.1)
                .collect();
            assert_eq!(own, [0, 1]);
        }
    });
}

/// Waiting for room while places become free: no job waits beside a free place, and the bound holds.
#[test]
fn waiting_for_room_against_release() {
    model(|| {
        let public = Arc::new(Public::new(1));
        let ran = Ran::new(3);
        let submit = |public: &Public, task: Task| {
            if public.reserve() {
                task.header().set_home(Home::Public);
                public.push(task);
            } else {
                public.add_unplaced();
                public
                    .wait(task)
                    .into_iter()
                    .for_each(|task| public.push(task));
            }
        };
        let serve = |public: &Public| {
            while let Some(task) = public.pop() {
                assert!(public.queued() <= 1);
                assert_eq!(task.header().claim(), Some(Home::Public));
                public
                    .release()
                    .into_iter()
                    .for_each(|task| public.push(task));
                task.execute(&|_| ());
            }
        };
        let (queue, jobs) = (public.clone(), ran.clone());
        let submitter = thread::spawn(move || {
            submit(&queue, jobs.job(0, None));
            submit(&queue, jobs.job(1, None));
        });
        submit(&public, ran.job(2, None));
        serve(&public);
        submitter.join().unwrap();
        serve(&public);
        assert_eq!(ran.counts(), [1; 3]);
        assert_eq!((public.queued(), public.unplaced()), (0, 0));
    });
}

fn crew(fixed: usize, seats: usize, ordinary: usize, max_works: usize, public: usize) -> Arc<Crew> {
    let config = AccountConfig::new(Account::Bound)
        .workers(fixed)
        .workers_max(seats)
        .ordinary_limit(ordinary)
        .idle_timeout(Duration::ZERO)
        .max_works(max_works)
        .public_bound(public);
    let settings = Arc::new(ThreadSettings::new(&Config::new()));
    Crew::new(Account::Bound, &config, settings, Weak::new())
}

fn submit(crew: &Arc<Crew>, ran: &Arc<Ran>, n: usize, lane: Option<u64>) -> Job<()> {
    let cell = ran.job(n, lane);
    let task: Task = cell.clone();
    match crew.place(&task, n, Patience::Wait) {
        Placed::Accepted => {}
        Placed::ShutDown => crew.refuse(&task, JobError::cancelled()),
        Placed::Full | Placed::NoWorker(_) => unreachable!("submit waits, and threads start"),
    }
    Job::new(cell, crew.clone())
}

fn close(crew: &Arc<Crew>) {
    crew.raise_stage(Stage::Closed);
    crew.cancel_all();
}

/// Insertion against going to sleep: the second job meets the worker busy, searching, announcing its sleep or
/// asleep; it always runs.
#[test]
fn crew_insert_against_sleep() {
    model(|| {
        let crew = crew(1, 1, 1, 2, 2);
        let ran = Ran::new(2);
        let first = submit(&crew, &ran, 0, None);
        let second = submit(&crew, &ran, 1, None);
        block_on(first).unwrap();
        block_on(second).unwrap();
        assert_eq!(ran.counts(), [1, 1]);
        close(&crew);
    });
}

/// The claim of an idle worker against shutdown: the job runs or is cancelled, once, and the worker ends.
#[test]
fn crew_claim_against_shutdown() {
    model(|| {
        let crew = crew(1, 1, 1, 2, 2);
        let ran = Ran::new(2);
        block_on(submit(&crew, &ran, 0, None)).unwrap();
        let closing = crew.clone();
        let closer = thread::spawn(move || close(&closing));
        let outcome = block_on(submit(&crew, &ran, 1, None));
        closer.join().unwrap();
        assert_eq!(ran.counts(), [1, usize::from(outcome.is_ok())]);
    });
}

/// A worker that is registered away while a job is inserted: the job runs, on whichever worker.
#[test]
fn crew_insert_against_registration() {
    model(|| {
        let crew = crew(1, 1, 1, 2, 2);
        let ran = Ran::new(1);
        let registering = crew.clone();
        let registrar = thread::spawn(move || {
            let none = Registration {
                nr_workers: Some(0),
                max_works: None,
            };
            registering.register(none).unwrap();
        });
        block_on(submit(&crew, &ran, 0, None)).unwrap();
        registrar.join().unwrap();
        assert_eq!(ran.counts(), [1]);
        close(&crew);
    });
}

/// Ordinary workers that retire at once against insertion into the public queue: each job runs.
#[test]
fn crew_insert_against_retirement() {
    model(|| {
        let crew = crew(0, 0, 2, 1, 2);
        let ran = Ran::new(2);
        let first = submit(&crew, &ran, 0, None);
        let second = submit(&crew, &ran, 1, None);
        block_on(first).unwrap();
        block_on(second).unwrap();
        assert_eq!(ran.counts(), [1, 1]);
        close(&crew);
    });
}

/// The only ordinary worker retires while a public job is inserted, and the fixed worker is held until that job has
/// run: either the retiring worker sees the job, or the submitter starts another worker.
#[test]
fn crew_retirement_at_the_limit() {
    large_model(|| {
        let crew = crew(1, 1, 1, 1, 2);
        let ran = Ran::new(2);
        let held = Parking::of_this_thread();
        let release = held.clone();
        let cell = Arc::new(Cell::new(JobId(9), None, None, move || held.park(None)));
        let task: Task = cell.clone();
        assert!(matches!(
            crew.place(&task, 0, Patience::Wait),
            Placed::Accepted
        ));
        let holding = Job::new(cell, crew.clone());
        block_on(submit(&crew, &ran, 0, Some(1))).unwrap();
        block_on(submit(&crew, &ran, 1, Some(2))).unwrap();
        release.unpark();
        block_on(holding).unwrap();
        assert_eq!(ran.counts(), [1, 1]);
        close(&crew);
    });
}

/// Two producers, two fixed workers, capacity two: each job runs once, wherever it is put or stolen.
#[test]
fn crew_two_producers_two_workers() {
    large_model(|| {
        let crew = crew(2, 2, 1, 2, 2);
        let ran = Ran::new(2);
        let (other, jobs) = (crew.clone(), ran.clone());
        let producer = thread::spawn(move || block_on(submit(&other, &jobs, 1, None)).unwrap());
        block_on(submit(&crew, &ran, 0, None)).unwrap();
        producer.join().unwrap();
        assert_eq!(ran.counts(), [1, 1]);
        close(&crew);
    });
}
