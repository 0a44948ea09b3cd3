//! `#[roundel::main]` and `#[roundel::test]` as a user meets them.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Set for the child that `a_failed_start_is_told_in_plain_words` starts.
const CHILD: &str = "ROUNDEL_TEST_MACROS_CHILD";

// What the attributes refuse, they refuse with the text and at the place that stands beside each
// case in `tests/ui`.
#[test]
fn wrong_uses_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

static RUNS: AtomicUsize = AtomicUsize::new(0);

#[roundel::main]
async fn count_run() -> thread::ThreadId {
    RUNS.fetch_add(1, Ordering::Relaxed);
    thread::current().id()
}

// With all cores, the body runs once, on the thread that called: shard 0.
#[test]
fn main_runs_once_on_the_calling_thread() {
    let ran_on = count_run();
    assert_eq!(ran_on, thread::current().id());
    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
}

#[roundel::main(cores = 1)]
async fn fail_in_the_middle() -> io::Result<u8> {
    Err(io::Error::other("on purpose"))?;
    Ok(7)
}

// The function keeps its return type, and `?` works in its body.
#[test]
fn main_returns_what_the_body_returns() {
    let error = fail_in_the_middle().expect_err("the body returns an error");
    assert_eq!(error.to_string(), "on purpose");
}

#[roundel::main(
    crate = "::roundel",
    cores = 1,
    ring = "auto",
    entries = 64,
    name = "keys"
)]
async fn with_every_key() -> &'static str {
    roundel::spawn(async { "ran" })
        .await
        .expect("the task neither panics nor is aborted")
}

// A runtime built from every key runs tasks.
#[test]
fn main_takes_every_key() {
    assert_eq!(with_every_key(), "ran");
}

// A test runs on a runtime: spawning needs one.
#[roundel::test]
async fn test_runs_on_a_runtime() {
    let sum = roundel::spawn(async { 40 + 2 }).await;
    assert_eq!(sum.expect("the task neither panics nor is aborted"), 42);
}

// A test may return a `Result`.
#[roundel::test]
async fn test_returns_a_result() -> io::Result<()> {
    Ok(())
}

// Attributes of the harness stay: this test passes only if its panic arrives as a test's panic.
#[roundel::test(cores = 1)]
#[should_panic(expected = "on purpose")]
async fn test_keeps_should_panic() {
    panic!("on purpose");
}

#[roundel::main(cores = [1000000])]
async fn never_starts() {
    unreachable!("no machine has this CPU");
}

// If the runtime cannot be built, the reason stands on standard error and the exit code is 1; it
// is no panic. Provoked in a child, as it ends the process.
#[test]
fn a_failed_start_is_told_in_plain_words() {
    if std::env::var_os(CHILD).is_some() {
        never_starts();
        unreachable!("a failed start ends the process");
    }
    let output = Command::new(std::env::current_exe().expect("this binary has a path"))
        .args([
            "--exact",
            "--nocapture",
            "a_failed_start_is_told_in_plain_words",
        ])
        .env(CHILD, "1")
        .output()
        .expect("this binary can be started once more");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1000000"), "the CPU is not named: {text}");
    assert!(!text.contains("panicked"), "{text}");
}
