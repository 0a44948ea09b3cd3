//! How the project tests itself: ring modes, accounting, guard pages, sizes.
//!
//! A test hands its body to [`each_mode`] (what does I/O) or [`in_defer`] (tasks, timers,
//! the pool). The test binary then runs itself once more for each mode, that one test
//! alone, with the mode in the environment. So a test has a process to itself: it can count
//! its descriptors and threads exactly, lower limits, and catch signals.
//!
//! ```no_run
//! # /*
//! #[test]
//! # */
//! fn h03_a_cancelled_open_leaks_no_descriptor() {
//!     roundel_testing::each_mode(|case| case.run(async { /* ... */ }));
//! }
//! ```
//!
//! Around the body the helper compares descriptors and threads, and [`Case::run`] compares
//! tasks, timers and slots, demands a clean shutdown, that the ring was used, and that no
//! operation met memory that was gone (`EFAULT`). Tests with a kernel poller hold a lock:
//! each poller takes a CPU.

mod counting;
mod files;
mod guard;
mod limits;
mod process;
mod random;
mod signals;

use std::future::Future;
use std::time::{Duration, Instant};

use roundel_executor::{Builder, Cores, RingMode, Runtime};

pub use counting::{CountingAllocator, allocations, traced};
pub use files::{TempDir, close_forgotten, evict};
pub use guard::GuardBuf;
pub use limits::{Lowered, cpu_time};
pub use process::{descriptors, open_descriptors, raise_descriptor_limit, threads};
pub use random::Random;
pub use signals::{Alarms, die_of_sigpipe};

/// Far more than anything here takes, far less than somebody's patience: a liveness bound.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the child process is told.
const MODE: &str = "ROUNDEL_TEST_MODE";
const SEED: &str = "ROUNDEL_SEED";

/// One test in one mode.
#[derive(Debug)]
pub struct Case {
    mode: RingMode,
    seed: u64,
    /// The test is about a mode, so the mode's ring has to have served it.
    needs_ring: bool,
}

/// Runs a test that does I/O, in each mode that has a ring.
///
/// # Panics
///
/// If the test fails in one of them.
pub fn each_mode<F: FnOnce(&Case)>(body: F) {
    run_in(&["defer", "sqpoll"], body);
}

/// Runs a test in every mode a program can choose, the automatic one included.
///
/// # Panics
///
/// If the test fails in one of them.
pub fn every_mode<F: FnOnce(&Case)>(body: F) {
    run_in(&["defer", "sqpoll", "auto"], body);
}

/// Runs a test of what only a ring with a kernel poller does.
///
/// # Panics
///
/// If the test fails.
pub fn in_sqpoll<F: FnOnce(&Case)>(body: F) {
    run_in(&["sqpoll"], body);
}

/// Runs a test for which the ring does not matter.
///
/// # Panics
///
/// If the test fails.
///
/// # Panics
///
/// If the test fails.
pub fn in_defer<F: FnOnce(&Case)>(body: F) {
    run_in(&["defer"], body);
}

/// A count of PROMISES: whole in the tier `large`, a fiftieth in the tier `small`, the
/// usual one.
pub fn scaled(large: usize) -> usize {
    match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => large,
        _ => (large / 50).max(1),
    }
}

/// Waits until something is so, looking again every millisecond.
///
/// # Panics
///
/// If it does not become so.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never came: {what}");
        roundel_executor::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until no operation has a slot and as many descriptors are open as were before.
///
/// # Panics
///
/// If it does not come to that, and if no shard runs on this thread.
pub async fn settled(open_before: usize) {
    let until = Instant::now() + PATIENCE;
    let handle = roundel_executor::Handle::current();
    // Ends: when it is settled, or by the assertion.
    loop {
        let slots: u64 = handle.metrics().iter().map(|shard| shard.ring.slots).sum();
        let open = descriptors();
        if slots == 0 && open == open_before {
            return;
        }
        assert!(
            Instant::now() < until,
            "{slots} slots are taken, and {open_before} descriptors became {open}"
        );
        roundel_executor::time::sleep(Duration::from_millis(1)).await;
    }
}

fn run_in<F: FnOnce(&Case)>(modes: &[&str], body: F) {
    if let Ok(mode) = std::env::var(MODE) {
        let case = Case {
            mode: RingMode::from_name(&mode).expect("the parent names a mode"),
            seed: std::env::var(SEED)
                .ok()
                .and_then(|seed| seed.parse().ok())
                .expect("the parent names a seed"),
            needs_ring: modes != ["defer"],
        };
        return process::accounted(|| body(&case));
    }
    let seed = std::env::var(SEED)
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(process::random_seed);
    let test = test_name::<F>();
    for mode in modes {
        let _alone = (*mode == "sqpoll").then(process::lock_poller);
        let told = [(MODE, (*mode).to_owned()), (SEED, seed.to_string())];
        process::rerun(&test, &told)
            .unwrap_or_else(|output| panic!("{test} in mode {mode}, seed {seed}:\n{output}"));
    }
}

/// The name libtest has for the test whose body this closure is.
fn test_name<F>() -> String {
    let path = std::any::type_name::<F>();
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    let (_crate, name) = path
        .split_once("::")
        .expect("a closure stands in a function");
    name.to_owned()
}

impl Case {
    /// The mode this run is for.
    pub fn mode(&self) -> RingMode {
        self.mode
    }

    /// A number that is another in each run, and printed when the test fails; a run with
    /// `ROUNDEL_SEED` set to it does the same again.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Settings for a runtime of one shard in this mode.
    pub fn builder(&self) -> Builder {
        Builder::new().cores(Cores::Count(1)).ring(self.mode)
    }

    /// Runs a future on a runtime of one shard, shuts that down, and demands that nothing
    /// is left: no task, timer, slot or abandoned operation.
    ///
    /// # Panics
    ///
    /// If something is left, or the ring served nothing.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.run_on(self.builder(), future)
    }

    /// As [`run`](Self::run), with these settings.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn run_on<F: Future>(&self, builder: Builder, future: F) -> F::Output {
        let runtime = builder.build().expect("a runtime can be had");
        let output = runtime.block_on(future);
        self.end(runtime);
        output
    }

    /// Shuts a runtime down and demands that nothing is left.
    ///
    /// # Panics
    ///
    /// If something is left, or the ring served nothing.
    pub fn end(&self, runtime: Runtime) {
        let handle = runtime.handle().clone();
        self.end_with_forgotten(runtime);
        for (shard, metrics) in handle.metrics().into_iter().enumerate() {
            assert_eq!(metrics.tasks.tasks_live, 0, "tasks left on shard {shard}");
            assert_eq!(metrics.tasks.timers_live, 0, "timers left on shard {shard}");
            assert_eq!(metrics.ring.slots, 0, "slots left on shard {shard}");
        }
    }

    /// As [`end`](Self::end) for a test that forgot futures: what those had taken may be
    /// left, but the kernel must have given everything back.
    ///
    /// # Panics
    ///
    /// If the kernel still has something, or the ring served nothing.
    pub fn end_with_forgotten(&self, runtime: Runtime) {
        assert_eq!(
            runtime.report().mode,
            self.mode.chosen(),
            "the mode that was asked for"
        );
        let handle = runtime.handle().clone();
        let report = runtime.shutdown(Duration::from_secs(5));
        assert!(report.is_clean(), "{report}");
        let mut submitted = 0;
        for (shard, metrics) in handle.metrics().into_iter().enumerate() {
            assert_eq!(
                metrics.ring.faults, 0,
                "EFAULT completions on shard {shard}"
            );
            submitted += metrics.ring.submitted;
        }
        assert!(
            submitted > 0 || !self.needs_ring,
            "the ring of {:?} served nothing",
            self.mode
        );
    }
}
