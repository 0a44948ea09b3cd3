//! Signals: each test raises them in a process of its own.

use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Command, ExitStatus};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use roundel_process::signal;
use roundel_reactor::{Reactor, RingConfig, RingMode, Wait, current};

const SIGTERM: i32 = 15;

fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
    let _entered = current::enter(reactor.clone());
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        assert!(Instant::now() < until, "it hangs");
        reactor
            .enter(Wait::AtMost(Duration::from_millis(5)))
            .expect("the ring works");
        reactor.reap();
    }
}

fn reactor(mode: RingMode) -> Rc<Reactor> {
    let config = RingConfig {
        mode,
        ..RingConfig::default()
    };
    Reactor::new(&config).expect("a ring is to be had")
}

/// Sends this process a signal; when it returns, the signal was delivered to the process.
fn raise(name: &str) {
    let sent = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(std::process::id().to_string())
        .status()
        .expect("kill is there");
    assert!(sent.success());
}

/// Runs a test alone in a process of its own, in each mode; `None` is the parent, which is
/// done.
fn alone(test: &str) -> Option<RingMode> {
    if let Ok(mode) = std::env::var("ROUNDEL_CHILD") {
        return Some(RingMode::from_name(&mode).expect("the parent names a mode"));
    }
    for mode in ["defer", "sqpoll"] {
        let status = rerun(test, mode);
        assert!(status.success(), "{test} with {mode}: {status}");
    }
    None
}

fn rerun(test: &str, child: &str) -> ExitStatus {
    Command::new(std::env::current_exe().expect("this binary has a name"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("ROUNDEL_CHILD", child)
        .status()
        .expect("this binary runs")
}

/// A signal that comes after the call and before the first poll is not lost.
#[test]
fn it_listens_from_the_call_on() {
    let Some(mode) = alone("it_listens_from_the_call_on") else {
        return;
    };
    let reactor = reactor(mode);
    block_on(&reactor, async {
        let terminated = signal::terminate();
        raise("TERM");
        terminated.await.unwrap();
        let pressed = signal::ctrl_c();
        raise("INT");
        pressed.await.unwrap();
    });
    assert!(reactor.counters().snapshot().submitted > 0);
}

/// A waiter that already waits in the kernel is woken, by its own signal only.
#[test]
fn it_wakes_who_waits_for_this_signal() {
    let Some(mode) = alone("it_wakes_who_waits_for_this_signal") else {
        return;
    };
    let reactor = reactor(mode);
    block_on(&reactor, async {
        let mut terminated = pin!(signal::terminate());
        let mut pressed = pin!(signal::ctrl_c());
        assert!(futures::poll!(&mut terminated).is_pending());
        assert!(futures::poll!(&mut pressed).is_pending());
        futures::pending!();
        raise("TERM");
        terminated.await.unwrap();
        assert!(futures::poll!(&mut pressed).is_pending());
        raise("INT");
        pressed.await.unwrap();
    });
}

/// Every waiter on every shard gets the signal.
#[test]
fn every_waiter_on_every_shard_gets_it() {
    let Some(mode) = alone("every_waiter_on_every_shard_gets_it") else {
        return;
    };
    let (ready, are_ready) = mpsc::channel();
    let shards: Vec<_> = (0..3)
        .map(|_| {
            let ready = ready.clone();
            std::thread::spawn(move || {
                block_on(&reactor(mode), async {
                    let (one, two) = (signal::terminate(), signal::terminate());
                    ready.send(()).unwrap();
                    let (one, two) = futures::join!(one, two);
                    one.and(two)
                })
            })
        })
        .collect();
    for _ in 0..3 {
        are_ready.recv().unwrap();
    }
    raise("TERM");
    for shard in shards {
        shard.join().unwrap().unwrap();
    }
}

/// Several signals before the poll are one; the next call waits for the next signal.
#[test]
fn signals_before_a_poll_are_one() {
    let Some(mode) = alone("signals_before_a_poll_are_one") else {
        return;
    };
    block_on(&reactor(mode), async {
        let first = signal::terminate();
        raise("TERM");
        raise("TERM");
        first.await.unwrap();
        let mut second = pin!(signal::terminate());
        assert!(futures::poll!(&mut second).is_pending());
        futures::pending!();
        assert!(futures::poll!(&mut second).is_pending());
        raise("TERM");
        second.await.unwrap();
    });
}

/// Dropping a waiter frees its descriptors and lets nobody else down; the default action
/// stays off.
#[test]
fn a_dropped_waiter_unregisters() {
    let Some(mode) = alone("a_dropped_waiter_unregisters") else {
        return;
    };
    let reactor = reactor(mode);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    block_on(&reactor, async {
        drop(signal::terminate());
        while reactor.staged() + reactor.in_flight() > 0 {
            futures::pending!();
        }
        let before = descriptors();
        for round in 0..100 {
            let mut waiter = Box::pin(signal::terminate());
            if round % 2 == 0 {
                assert!(futures::poll!(&mut waiter).is_pending());
            }
            if round % 4 == 0 {
                futures::pending!();
            }
        }
        let kept = signal::terminate();
        raise("TERM");
        kept.await.unwrap();
        while reactor.staged() + reactor.in_flight() > 0 {
            futures::pending!();
        }
        assert_eq!(descriptors(), before);
        raise("TERM");
    });
}

/// Without a call the signal does what it always did.
#[test]
fn without_a_call_the_signal_ends_the_process() {
    if std::env::var_os("ROUNDEL_CHILD").is_some() {
        raise("TERM");
        // Ends with the signal, or with the parent's failure.
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let status = rerun("without_a_call_the_signal_ends_the_process", "none");
    assert_eq!(status.signal(), Some(SIGTERM));
}
