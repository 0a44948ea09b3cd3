//! Starts, holds and joins the shards.
//!
//! Shard 0 is the thread that builds the runtime: it runs inside [`Runtime::block_on`],
//! and its tasks rest in between. Every other shard has a thread of its own, which makes
//! its ring itself, since a ring belongs to the thread that made it, reports that it
//! stands, and begins when all of them do.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle as ThreadHandle;
use std::time::{Duration, Instant};

use roundel_blocking_pool::Pool;
use roundel_reactor::{Reactor, RingConfig, RingMode};

use crate::affinity::{Pinned, allowed, quota};
use crate::builder::{Builder, Hook};
use crate::current;
use crate::handle::{Handle, ShardMetrics};
use crate::join::SendJoinHandle;
use crate::run_queue::CompletionShare;
use crate::shard::{Home, Shard, ShardEnd};
use crate::task::{contain, log_panic, say};

/// A time that no shutdown takes.
const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long the drop of a runtime may take.
const DROP_DEADLINE: Duration = Duration::from_millis(500);
/// What of the time for a shutdown is kept for other shards' reports, at most a fifth of it; and
/// what they get for a last pass over their tasks if there is less time than that.
const REPORT_TIME: Duration = Duration::from_millis(100);

/// The shards of a program, and its blocking pool.
///
/// It belongs to the thread that built it, which is shard 0. For other threads there is
/// [`handle`](Self::handle).
///
/// Dropping it ends it as [`shutdown`](Self::shutdown) does within half a second, and says
/// on standard error what it had to abandon.
pub struct Runtime {
    shard: Rc<Shard>,
    others: Vec<Other>,
    handle: Handle,
    mode: RingMode,
    /// The CPU that this thread is pinned to while it runs shard 0.
    cpu: Option<usize>,
    cpus: Vec<Option<usize>>,
    on_thread_stop: Option<Hook>,
    ended: Cell<bool>,
    /// Shard 0 is this thread.
    stays: PhantomData<*const ()>,
}

/// A shard on a thread of its own.
struct Other {
    thread: ThreadHandle<()>,
    end: Receiver<ShardEnd>,
    deadline: Sender<Instant>,
}

/// What a shutdown could not end in time. Empty lists mean that nothing was left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Operations the kernel did not give back; their memory is leaked.
    pub operations: Vec<String>,
    /// Blocking jobs that still ran.
    pub jobs: Vec<String>,
    /// Shards that did not come out of a task, and what tasks of ended shards remained.
    pub shards: Vec<String>,
}

impl ShutdownReport {
    /// Whether everything ended in time.
    pub fn is_clean(&self) -> bool {
        self.operations.is_empty() && self.jobs.is_empty() && self.shards.is_empty()
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("nothing was abandoned");
        }
        let all = [&self.operations, &self.jobs, &self.shards];
        let named: Vec<&str> = all.into_iter().flatten().map(String::as_str).collect();
        write!(f, "abandoned: {}", named.join("; "))
    }
}

/// What a runtime runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Which ring serves the shards: for `Auto` what was chosen.
    pub mode: RingMode,
    /// The CPU of each shard, if it is pinned.
    pub cpus: Vec<Option<usize>>,
}

impl Runtime {
    /// A runtime with the default settings: a shard for each CPU.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new() -> io::Result<Runtime> {
        Builder::new().build()
    }

    pub(crate) fn start(builder: Builder) -> io::Result<Runtime> {
        let ring = builder.ring_config()?;
        if builder.name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a thread's name cannot hold a zero byte",
            ));
        }
        let allowed = allowed()?;
        let cpus = builder.cores.resolve(&allowed, quota())?;
        let pool = builder.pool.clone().unwrap_or_else(|| {
            roundel_blocking_pool::Config::new()
                .name(format!("{}-b", builder.name))
                .cpus(allowed.iter().copied())
        });
        let pool = Pool::new(pool)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;

        let reactor = Reactor::new(&ring)?;
        let (home, tenancy) = Home::new(0, &reactor, builder.share);
        let mut homes = vec![home];
        // An error from here on, or a panic of the hook, drops `starting`, which ends the
        // other threads.
        let starting = start_others(&builder, &ring, &cpus)?;
        for start in &starting {
            homes.push(start.standing()?);
        }
        if let Some(hook) = &builder.on_thread_start {
            hook();
        }
        let handle = Handle::new(homes, pool);
        let others = starting
            .into_iter()
            .map(|start| start.begin(&handle))
            .collect();
        let shard = Shard::new(handle.home(0).clone(), tenancy, reactor, handle.clone());
        Ok(Runtime {
            shard,
            others,
            handle,
            mode: ring.mode.chosen(),
            cpu: cpus[0],
            cpus,
            on_thread_stop: builder.on_thread_stop,
            ended: Cell::new(false),
            stays: PhantomData,
        })
    }

    /// Runs a future to its end on this thread, and the tasks of shard 0 beside it. The
    /// thread is pinned meanwhile, if the runtime pins.
    ///
    /// Tasks that are not over when the future is rest until the next `block_on`.
    ///
    /// # Panics
    ///
    /// If called on a shard's thread, that is from inside a task or another `block_on`; if
    /// the ring has become unusable; and if the future panics, with its panic.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            Handle::try_current().is_none(),
            "a shard runs on this thread already: `block_on` cannot be nested. Await the future \
             instead, or call `block_on` from a thread of its own"
        );
        // A pin that fails costs speed only; the builder has checked the CPU.
        let _pinned = self.cpu.and_then(|cpu| Pinned::to(cpu).ok());
        let _entered = self.shard.enter(self.handle.pool());
        let home = self.shard.home();
        let waker = Waker::from(home.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        let mut output = None;
        home.inbox().wake();
        let ran = self.shard.run(|| {
            if !home.inbox().take_wake() {
                return false;
            }
            let _share = roundel_reactor::current::refill_budget();
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
            match polled {
                Ok(Poll::Pending) => false,
                Ok(Poll::Ready(value)) => {
                    output = Some(Ok(value));
                    true
                }
                Err(payload) => {
                    output = Some(Err(payload));
                    true
                }
            }
        });
        if let Err(error) = ran {
            panic!("the ring of shard 0 has become unusable: {error}");
        }
        match output.expect("the loop ends when the future does") {
            Ok(value) => value,
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Spawns a task on some shard; see [`Handle::spawn`]. Tasks on shard 0 run while
    /// somebody is in [`block_on`](Self::block_on).
    pub fn spawn<C, F>(&self, make: C) -> SendJoinHandle<F::Output>
    where
        C: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send,
    {
        self.handle.spawn(make)
    }

    /// The face of this runtime for other threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What each shard has counted so far.
    pub fn metrics(&self) -> Vec<ShardMetrics> {
        self.handle.metrics()
    }

    /// What this runtime runs on.
    pub fn report(&self) -> Report {
        Report {
            mode: self.mode,
            cpus: self.cpus.clone(),
        }
    }

    /// Ends the runtime within `timeout`: every task's future is dropped on its shard,
    /// every operation is cancelled, queued blocking jobs are dropped. What does not end in
    /// time is abandoned and named in the report.
    ///
    /// Every shard passes over its tasks once more however little time there is, and is given
    /// a tenth of a second for that.
    pub fn shutdown(self, timeout: Duration) -> ShutdownReport {
        self.end(timeout)
    }

    fn end(&self, timeout: Duration) -> ShutdownReport {
        if self.ended.replace(true) {
            return ShutdownReport::default();
        }
        // A timeout too long for the clock is a long one.
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or(now + LONG);
        let others_deadline = deadline - (timeout / 5).min(REPORT_TIME);
        self.shard.home().stop();
        for (index, other) in self.others.iter().enumerate() {
            // A shard that is gone already cannot be told, and need not.
            let _ = other.deadline.send(others_deadline);
            self.handle.home(index + 1).stop();
        }
        let mut report = ShutdownReport::default();
        {
            // Dropping a runtime inside another's `block_on` is odd, but no reason to fail:
            // its own tasks still see their own shard.
            let suspended = current::suspend();
            let _entered = self.shard.enter(self.handle.pool());
            note_end(&mut report, 0, self.shard.shut_down(deadline));
            drop(_entered);
            drop(suspended);
        }
        for (index, other) in self.others.iter().enumerate() {
            let until = deadline.max(now + REPORT_TIME);
            let left = until.saturating_duration_since(Instant::now());
            match other.end.recv_timeout(left) {
                Ok(end) => note_end(&mut report, index + 1, end),
                Err(RecvTimeoutError::Timeout) => report
                    .shards
                    .push(format!("shard {} did not come out of a task", index + 1)),
                Err(RecvTimeoutError::Disconnected) => report
                    .shards
                    .push(format!("the thread of shard {} has panicked", index + 1)),
            }
        }
        let pool = self.handle.pool().shutdown(deadline);
        report.jobs = pool
            .abandoned
            .iter()
            .map(|job| format!("{} on {}", job.job, job.thread))
            .collect();
        call_hook("on_thread_stop", &self.on_thread_stop);
        report
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let report = self.end(DROP_DEADLINE);
        if !report.is_clean() {
            say(format_args!("the runtime ended, and {report}"));
        }
        for other in self.others.drain(..) {
            // One that is stuck in a task is abandoned, as just said.
            if other.thread.is_finished() {
                let _ = other.thread.join();
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

fn note_end(report: &mut ShutdownReport, shard: usize, end: ShardEnd) {
    report.operations.extend(end.operations);
    if end.tasks > 0 {
        let tasks = end.tasks;
        report.shards.push(format!(
            "{tasks} tasks of shard {shard} were left at the deadline"
        ));
    }
}

/// Calls a hook whose panic must not end a shard, nor stop its end.
fn call_hook(name: &str, hook: &Option<Hook>) {
    if let Some(hook) = hook
        && let Err(payload) = contain(|| hook())
    {
        log_panic(name, payload);
    }
}

/// A shard's thread between its start and its beginning.
struct Starting {
    waiting: Waiting,
    standing: Receiver<io::Result<Arc<Home>>>,
    deadline: Sender<Instant>,
    end: Receiver<ShardEnd>,
}

impl Starting {
    /// Waits for the thread's ring.
    fn standing(&self) -> io::Result<Arc<Home>> {
        self.standing
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("a shard's thread ended before it began")))
    }

    fn begin(self, handle: &Handle) -> Other {
        let Starting {
            mut waiting,
            end,
            deadline,
            ..
        } = self;
        let (begin, thread) = waiting.0.take().expect("a thread begins once");
        // The thread waits for this and for nothing else.
        let _ = begin.send(handle.clone());
        Other {
            thread,
            end,
            deadline,
        }
    }
}

/// A thread that waits for its beginning. Dropping it ends the thread instead: a build
/// that fails leaves none behind.
struct Waiting(Option<(Sender<Handle>, ThreadHandle<()>)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((begin, thread)) = self.0.take() {
            drop(begin);
            let _ = thread.join();
        }
    }
}

fn start_others(
    builder: &Builder,
    ring: &RingConfig,
    cpus: &[Option<usize>],
) -> io::Result<Vec<Starting>> {
    let others = cpus.iter().copied().enumerate().skip(1);
    others
        .map(|(index, cpu)| {
            let (standing_in, standing) = channel();
            let (begin, begin_out) = channel();
            let (deadline, deadline_out) = channel();
            let (end_in, end) = channel();
            let life = Life {
                index,
                cpu,
                ring: ring.clone(),
                share: builder.share,
                on_thread_start: builder.on_thread_start.clone(),
                on_thread_stop: builder.on_thread_stop.clone(),
                standing: standing_in,
                begin: begin_out,
                deadline: deadline_out,
                end: end_in,
            };
            let thread = std::thread::Builder::new()
                .name(format!("{}-{index}", builder.name))
                .spawn(move || life.run())?;
            Ok(Starting {
                waiting: Waiting(Some((begin, thread))),
                standing,
                deadline,
                end,
            })
        })
        .collect()
}

/// What a shard's thread does.
struct Life {
    index: usize,
    cpu: Option<usize>,
    ring: RingConfig,
    share: CompletionShare,
    on_thread_start: Option<Hook>,
    on_thread_stop: Option<Hook>,
    standing: Sender<io::Result<Arc<Home>>>,
    begin: Receiver<Handle>,
    deadline: Receiver<Instant>,
    end: Sender<ShardEnd>,
}

impl Life {
    fn run(self) {
        let _pinned = self.cpu.and_then(|cpu| Pinned::to(cpu).ok());
        let reactor = match Reactor::new(&self.ring) {
            Ok(reactor) => reactor,
            Err(error) => {
                // The builder waits for it, unless it has failed already.
                let _ = self.standing.send(Err(error));
                return;
            }
        };
        let (home, tenancy) = Home::new(self.index, &reactor, self.share);
        if self.standing.send(Ok(home.clone())).is_err() {
            return;
        }
        let Ok(handle) = self.begin.recv() else {
            return;
        };
        call_hook("on_thread_start", &self.on_thread_start);
        let pool = handle.pool().clone();
        let shard = Shard::new(home.clone(), tenancy, reactor, handle);
        let entered = shard.enter(&pool);
        if let Err(error) = shard.run(|| home.inbox().take_wake() && home.is_stopped()) {
            let index = self.index;
            say(format_args!(
                "the ring of shard {index} has become unusable: {error}"
            ));
        }
        let deadline = self
            .deadline
            .try_recv()
            .unwrap_or_else(|_| Instant::now() + DROP_DEADLINE);
        let end = shard.shut_down(deadline);
        drop(entered);
        drop(shard);
        call_hook("on_thread_stop", &self.on_thread_stop);
        // The runtime may have given up on us.
        let _ = self.end.send(end);
    }
}

/// For the attributes `main` and `test`: builds, or says in plain words why not, and exits
/// with code 1.
#[doc(hidden)]
pub fn start_or_exit(builder: Builder) -> Runtime {
    builder.build().unwrap_or_else(|error| {
        say(format_args!("the runtime could not be started: {error}"));
        std::process::exit(1)
    })
}
