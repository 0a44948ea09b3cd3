//! Wakers in foreign hands before, during and after the life of many runtimes.
//!
//! Three threads clone, wake and drop wakers at random, all the time. Meanwhile one runtime after
//! the other starts, each on a thread of its own, spawns tasks that hand out their wakers, panic,
//! abort and detach each other, and ends with tasks and handles left over. Meant for
//! AddressSanitizer with its leak check; what it asserts itself is that every future and every
//! output is dropped exactly once, on the thread of its shard (P7, H46).
//!
//! `ROUNDEL_TIER=large` runs 10,000 rounds, otherwise 200; `ROUNDEL_SEED` sets the seed.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use roundel_executor::{Builder, Cores, JoinHandle, RingMode, SendJoinHandle, spawn, yield_now};

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Counted from its making to its drop, which must be on the same thread.
struct Bound {
    balance: Arc<AtomicUsize>,
    thread: ThreadId,
    /// Something to leak or to free twice.
    _memory: Box<u64>,
}

impl Bound {
    fn new(balance: &Arc<AtomicUsize>) -> Self {
        balance.fetch_add(1, Ordering::Relaxed);
        Bound {
            balance: balance.clone(),
            thread: thread::current().id(),
            _memory: Box::new(7),
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        assert_eq!(self.thread, thread::current().id(), "dropped elsewhere");
        let before = self.balance.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "dropped twice");
    }
}

/// The wakers that the foreign threads have.
struct Bag {
    wakers: Mutex<Vec<Waker>>,
    over: AtomicBool,
}

impl Bag {
    const ROOM: usize = 512;

    fn put(&self, random: &mut Random, waker: Waker) {
        let mut wakers = self.wakers.lock().unwrap();
        if wakers.len() < Self::ROOM {
            wakers.push(waker);
        } else {
            let place = random.below(Self::ROOM as u64) as usize;
            wakers[place] = waker;
        }
    }

    fn pick(&self, random: &mut Random) -> Option<Waker> {
        let mut wakers = self.wakers.lock().unwrap();
        if wakers.is_empty() {
            return None;
        }
        let place = random.below(wakers.len() as u64) as usize;
        // Most stay for others, and for long after their task.
        if random.one_in(64) {
            Some(wakers.swap_remove(place))
        } else {
            Some(wakers[place].clone())
        }
    }

    fn meddle(&self, mut random: Random) {
        while !self.over.load(Ordering::Relaxed) {
            let Some(waker) = self.pick(&mut random) else {
                thread::yield_now();
                continue;
            };
            match random.below(5) {
                0 => waker.wake(),
                1 => waker.wake_by_ref(),
                2 => {
                    let copy = waker.clone();
                    waker.wake();
                    copy.wake_by_ref();
                }
                3 => self.put(&mut random, waker.clone()),
                _ => {}
            }
            if random.one_in(16) {
                thread::yield_now();
            }
        }
    }
}

/// A task: hands out its waker, lives for some polls, and ends in some way.
struct Life {
    bound: Bound,
    bag: Arc<Bag>,
    random: Random,
    polls_left: u64,
    /// More memory to lose.
    _memory: Option<Box<u64>>,
}

impl Future for Life {
    type Output = Bound;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Bound> {
        assert_eq!(
            self.bound.thread,
            thread::current().id(),
            "polled elsewhere"
        );
        let this = &mut *self;
        this.bag.put(&mut this.random, cx.waker().clone());
        if this.random.one_in(40) {
            panic!("planned");
        }
        if this.polls_left == 0 {
            return Poll::Ready(Bound::new(&this.bound.balance));
        }
        this.polls_left -= 1;
        match this.random.below(3) {
            0 => cx.waker().wake_by_ref(),
            1 => {
                let copy = cx.waker().clone();
                cx.waker().wake_by_ref();
                copy.wake();
            }
            // The foreign threads wake it, or nobody.
            _ => {}
        }
        if this.random.one_in(8) {
            let child = this.child();
            drop(spawn(child));
        }
        Poll::Pending
    }
}

impl Life {
    fn new(balance: &Arc<AtomicUsize>, bag: &Arc<Bag>, random: &mut Random) -> Self {
        Life {
            bound: Bound::new(balance),
            bag: bag.clone(),
            polls_left: match random.below(4) {
                0 => u64::MAX,
                _ => random.below(6),
            },
            _memory: random.one_in(2).then(|| Box::new(1)),
            random: Random(random.next() | 1),
        }
    }

    fn child(&mut self) -> Life {
        let mut life = Life::new(&self.bound.balance, &self.bag, &mut self.random);
        life.polls_left = self.random.below(3);
        life
    }
}

/// Some tasks' futures are larger, and with 600 bytes more they are boxed.
async fn padded<const N: usize>(life: Life) -> Bound {
    let padding = [1_u8; N];
    let bound = life.await;
    assert_eq!(padding[N - 1], 1);
    bound
}

fn start(balance: &Arc<AtomicUsize>, bag: &Arc<Bag>, random: &mut Random) -> JoinHandle<Bound> {
    let life = Life::new(balance, bag, random);
    match random.below(4) {
        0 => spawn(padded::<64>(life)),
        1 => spawn(padded::<600>(life)),
        _ => spawn(life),
    }
}

/// One runtime's life.
fn round(bag: &Arc<Bag>, mut random: Random) {
    let balance = Arc::new(AtomicUsize::new(0));
    let mut left: Vec<JoinHandle<Bound>> = Vec::new();
    let mut sent: Vec<SendJoinHandle<u64>> = Vec::new();
    let runtime = Builder::new()
        .cores(Cores::Count(1))
        .ring(RingMode::Defer)
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    let late = {
        let (handle, mut random, bag) = (handle.clone(), random.clone(), bag.clone());
        let balance = balance.clone();
        // Spawns and aborts from elsewhere, while the runtime runs and ends.
        thread::spawn(move || {
            let mut kept = Vec::new();
            for _ in 0..random.below(20) {
                let (balance, bag) = (balance.clone(), bag.clone());
                let mut random = Random(random.next() | 1);
                let seed = random.clone();
                let task = handle.spawn(move || async move {
                    let mut random = seed;
                    let life = Life::new(&balance, &bag, &mut random);
                    drop(life.await);
                });
                match random.below(3) {
                    0 => task.abort(),
                    1 => kept.push(task.abort_handle()),
                    _ => drop(task),
                }
            }
            kept.iter().for_each(|handle| handle.abort());
        })
    };
    for step in 0..1 + random.below(3) {
        let (balance, bag) = (&balance, bag);
        let (left, sent, random, handle) = (&mut left, &mut sent, &mut random, &handle);
        runtime.block_on(async {
            for _ in 0..random.below(60) {
                let task = start(balance, bag, random);
                match random.below(7) {
                    0 => drop(task),
                    1 => task.abort(),
                    2 => {
                        let abort = task.abort_handle();
                        thread::spawn(move || abort.abort()).join().unwrap();
                        left.push(task);
                    }
                    3 => {
                        yield_now().await;
                        drop(task);
                    }
                    4 => {
                        task.abort();
                        assert!(task.await.is_err());
                    }
                    _ => left.push(task),
                }
                if random.one_in(4) {
                    sent.push(handle.spawn(move || async move {
                        yield_now().await;
                        step
                    }));
                }
                if random.one_in(8) && !left.is_empty() {
                    let place = random.below(left.len() as u64) as usize;
                    drop(left.swap_remove(place));
                }
            }
            for _ in 0..random.below(20) {
                yield_now().await;
            }
        });
    }
    if random.one_in(4) {
        left.clear();
    }
    let report = runtime.shutdown(Duration::from_secs(60));
    assert!(report.is_clean(), "{report}");
    late.join().unwrap();
    // Handles outlive their runtime: every task is over by now.
    let mut cx = Context::from_waker(Waker::noop());
    for mut task in left {
        assert!(task.is_finished());
        if random.one_in(2) {
            assert!(Pin::new(&mut task).poll(&mut cx).is_ready());
        }
    }
    for mut task in sent {
        assert!(Pin::new(&mut task).poll(&mut cx).is_ready());
    }
    assert_eq!(balance.load(Ordering::Relaxed), 0, "not dropped");
}

#[test]
fn wakers_in_foreign_hands() {
    let rounds = match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => 10_000,
        _ => 200,
    };
    let seed = std::env::var("ROUNDEL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x9e37_79b9_7f4a_7c15_u64);
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("planned") {
            told(panic);
        }
    }));
    let bag = Arc::new(Bag {
        wakers: Mutex::new(Vec::new()),
        over: AtomicBool::new(false),
    });
    let mut random = Random(seed | 1);
    thread::scope(|scope| {
        for _ in 0..3 {
            let (bag, random) = (&bag, Random(random.next() | 1));
            scope.spawn(move || bag.meddle(random));
        }
        for number in 0..rounds {
            let ended = {
                let (bag, random) = (bag.clone(), Random(random.next() | 1));
                thread::spawn(move || round(&bag, random)).join()
            };
            if ended.is_err() {
                // The threads that meddle end, too, so that the failure is seen.
                bag.over.store(true, Ordering::Relaxed);
                panic!("round {number} of seed {seed} failed");
            }
        }
        bag.over.store(true, Ordering::Relaxed);
    });
    // The last wakers go long after their runtimes.
    let wakers = std::mem::take(&mut *bag.wakers.lock().unwrap());
    wakers.into_iter().for_each(Waker::wake);
}
