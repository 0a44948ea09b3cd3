//! A loop to run futures in, on a ring of each kind, and folders that go away.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use roundel_reactor::{Reactor, RingConfig, RingMode, Wait, current};

/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test on a ring of each kind, with a new folder each, and sees to it that the ring
/// served it.
pub fn in_each_mode(test: impl AsyncFn(&Path, &Rc<Reactor>)) {
    for mode in [RingMode::Defer, RingMode::SqPoll] {
        let config = RingConfig {
            mode,
            ..RingConfig::default()
        };
        let reactor = Reactor::new(&config).expect("a ring is to be had");
        let folder = Folder::new();
        block_on(&reactor, test(&folder.0, &reactor));
        settle(&reactor);
        assert!(
            reactor.counters().snapshot().submitted > 0,
            "{mode:?} was used"
        );
    }
}

pub fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
    let _entered = current::enter(reactor.clone());
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let until = Instant::now() + LIMIT;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        assert!(Instant::now() < until, "it hangs");
        turn(reactor);
    }
}

/// Lets what was abandoned come to its end.
pub fn settle(reactor: &Rc<Reactor>) {
    let _entered = current::enter(reactor.clone());
    let until = Instant::now() + LIMIT;
    while reactor.staged() + reactor.in_flight() > 0 {
        assert!(
            Instant::now() < until,
            "an abandoned operation does not end"
        );
        turn(reactor);
    }
}

/// As `settle`, from within a test.
pub async fn settled(reactor: &Rc<Reactor>) {
    while reactor.staged() + reactor.in_flight() > 0 {
        tick().await;
    }
}

/// Lets the loop turn once.
pub async fn tick() {
    futures::pending!();
}

fn turn(reactor: &Rc<Reactor>) {
    // A future that waits for another thread alone is looked at again after a while.
    reactor
        .enter(Wait::AtMost(Duration::from_millis(5)))
        .expect("the ring works");
    reactor.reap();
}

/// A folder that is removed with all that is in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("roundel-fs-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the name is new");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a FIFO.
pub fn fifo(path: &Path) {
    let made = Command::new("mkfifo")
        .arg(path)
        .status()
        .expect("mkfifo is there");
    assert!(made.success());
}

/// The descriptors that this process has open.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("it is there")
        .count()
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Runs one test of this binary alone in a process of its own, where `ROUNDEL_CHILD` is
/// set, behind a shell's `prelude`.
pub fn alone(test: &str, prelude: &str) {
    let binary = std::env::current_exe().expect("this binary has a name");
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "{prelude}\nexec \"$0\" --exact \"$1\" --nocapture --test-threads=1"
        ))
        .arg(binary)
        .arg(test)
        .env("ROUNDEL_CHILD", "1")
        .status()
        .expect("the shell is there");
    assert!(status.success(), "{test} in a process of its own: {status}");
}

pub fn is_child() -> bool {
    std::env::var_os("ROUNDEL_CHILD").is_some()
}
