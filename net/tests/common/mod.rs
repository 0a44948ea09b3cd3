//! Runs a test on a bare reactor, in each ring mode, and checks that nothing is left over.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use roundel_reactor::{Reactor, RingConfig, RingMode, Wait, current, ops};

/// Far more than anything here takes, far less than somebody's patience.
pub const LONG: Duration = Duration::from_secs(30);

/// One test at a time, so that descriptors can be counted.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the test in the modes Defer and SqPoll. Afterwards no operation has a slot, and the
/// process has as many descriptors as before.
#[allow(dead_code, reason = "not every test file uses it")]
pub fn in_each_mode(test: impl AsyncFn()) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for mode in [RingMode::Defer, RingMode::SqPoll] {
        in_mode(mode, &test);
    }
}

fn in_mode(mode: RingMode, test: &impl AsyncFn()) {
    let config = RingConfig {
        mode,
        ..RingConfig::default()
    };
    let reactor = Reactor::new(&config).unwrap();
    let before = descriptors();
    {
        let _entered = current::enter(reactor.clone());
        block_on(&reactor, test());
        let until = Instant::now() + LONG;
        while reactor.in_flight() + reactor.staged() > 0 {
            assert!(
                Instant::now() < until,
                "{mode:?}: an operation does not end"
            );
            reactor
                .enter(Wait::AtMost(Duration::from_millis(10)))
                .unwrap();
            reactor.reap();
        }
        assert_eq!(reactor.slots(), 0, "{mode:?}: completions that nobody took");
    }
    assert!(
        reactor.counters().snapshot().completed > 0,
        "{mode:?} was used"
    );
    // A client's thread may be about to close its socket.
    let until = Instant::now() + LONG;
    while descriptors() != before {
        assert!(
            Instant::now() < until,
            "{mode:?}: {before} descriptors became {}",
            descriptors()
        );
        std::thread::yield_now();
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Whether the future was woken since it was polled last.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the future when it was woken, and turns the ring when it was not. A test that
/// takes too long fails.
pub fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    let until = Instant::now() + LONG;
    loop {
        if woken.0.swap(false, Ordering::Relaxed)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return output;
        }
        assert!(Instant::now() < until, "the test is stuck");
        let wait = if woken.0.load(Ordering::Relaxed) {
            Wait::No
        } else {
            Wait::AtMost(Duration::from_secs(1))
        };
        reactor.enter(wait).unwrap();
        reactor.reap();
    }
}

/// Polls a future once, which must not be ready.
#[allow(dead_code, reason = "not every test file uses it")]
pub fn poll_once(future: std::pin::Pin<&mut impl Future>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "nothing was there to be taken");
}

/// One turn of the ring: what was staged is with the kernel afterwards.
#[allow(dead_code, reason = "not every test file uses it")]
pub async fn turn() {
    current::submit(ops::Nop).await.unwrap();
}

/// Waits a little, for what has no event to wait for.
#[allow(dead_code, reason = "not every test file uses it")]
pub async fn pause(duration: Duration) {
    current::submit(ops::Timeout::new(duration)).await.unwrap();
}
