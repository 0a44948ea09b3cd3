//! What a task costs, what becomes of its memory, and what late wakes, aborts and spawns do.

use std::future::{Future, pending, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use roundel_executor::{Builder, Cores, Handle, RingMode, Runtime, Snapshot, spawn, yield_now};

fn runtime(shards: usize) -> Runtime {
    Builder::new()
        .cores(Cores::Count(shards))
        .ring(RingMode::Defer)
        .build()
        .unwrap()
}

fn metrics() -> Snapshot {
    Handle::current().metrics()[0].tasks
}

/// A future of 40 bytes: three words and a waker.
struct Parked {
    waker: Option<Waker>,
    words: [u64; 3],
}

impl Future for Parked {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        black_box(self.words);
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A task costs 40 bytes and its future, as the documentation says.
#[test]
fn a_task_costs_its_future_and_40_bytes() {
    const TASKS: u64 = 10_000;
    assert_eq!(size_of::<Parked>(), 40);
    runtime(1).block_on(async {
        // A seat that another test has left may have free slots: these use them up.
        let mut parked = Vec::new();
        let before = loop {
            let before = metrics();
            parked.push(spawn(Parked {
                waker: None,
                words: [7; 3],
            }));
            if metrics().slots_reserved > before.slots_reserved {
                break metrics();
            }
        };
        for _ in 0..TASKS {
            drop(spawn(Parked {
                waker: None,
                words: [7; 3],
            }));
        }
        yield_now().await;
        let after = metrics();
        assert_eq!(after.slots_reserved - before.slots_reserved, TASKS);
        assert_eq!(
            after.slot_bytes_reserved - before.slot_bytes_reserved,
            TASKS * 80
        );
        assert_eq!(after.tasks_live, TASKS + parked.len() as u64);
    });
}

/// The table of docs/TASKS.md.
#[test]
fn slots_are_as_large_as_documented() {
    async fn slot_of<const N: usize>() -> u64 {
        // Free slots that other tests have left are used up first.
        let mut parked = Vec::new();
        loop {
            let bytes = [1_u8; N];
            let future = poll_fn(move |_| {
                black_box(&bytes);
                Poll::<u64>::Pending
            });
            assert_eq!(size_of_val(&future), N);
            let before = metrics().slot_bytes_reserved;
            parked.push(spawn(future));
            let after = metrics().slot_bytes_reserved;
            if after > before {
                return after - before;
            }
        }
    }
    runtime(1).block_on(async {
        assert_eq!(slot_of::<16>().await, 56);
        assert_eq!(slot_of::<40>().await, 80);
        assert_eq!(slot_of::<88>().await, 128);
        assert_eq!(slot_of::<200>().await, 240);
        assert_eq!(slot_of::<512>().await, 576);
        assert_eq!(slot_of::<513>().await, 56);
    });
}

/// Ended tasks leave their slots to later ones: memory stays at the high-water mark.
#[test]
fn slots_are_used_again() {
    runtime(1).block_on(async {
        let mut reserved = None;
        for _ in 0..20 {
            let tasks: Vec<_> = (0..500_u64)
                .map(|number| {
                    let words = [number; 20];
                    spawn(async move {
                        yield_now().await;
                        words[19]
                    })
                })
                .collect();
            for (number, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap(), number as u64);
            }
            let now = metrics().slots_reserved;
            assert_eq!(*reserved.get_or_insert(now), now);
        }
        assert_eq!(metrics().tasks_live, 0);
    });
}

/// Futures and outputs of every size and alignment come out as they went in, in the slot or boxed.
#[test]
fn sizes_and_alignments() {
    #[repr(align(16))]
    struct To16<const N: usize>([u8; N]);
    #[repr(align(64))]
    struct To64<const N: usize>([u8; N]);

    async fn check<T: 'static>(value: T, is_whole: impl Fn(&T) -> bool + 'static) {
        let task = spawn(async move {
            let at = &raw const value;
            assert!(at.is_aligned());
            yield_now().await;
            assert_eq!(at, &raw const value, "it stays where it was");
            value
        });
        assert!(is_whole(&task.await.unwrap()));
    }
    runtime(1).block_on(async {
        check((), |()| true).await;
        check([1_u8; 1], |value| *value == [1; 1]).await;
        check([2_u8; 100], |value| *value == [2; 100]).await;
        check([3_u8; 300], |value| *value == [3; 300]).await;
        check([4_u8; 511], |value| *value == [4; 511]).await;
        check([5_u8; 5000], |value| *value == [5; 5000]).await;
        check(To16([6; 16]), |value| value.0 == [6; 16]).await;
        check(To16([7; 480]), |value| value.0 == [7; 480]).await;
        check(To16([8; 4800]), |value| value.0 == [8; 4800]).await;
        check(To64([9; 64]), |value| value.0 == [9; 64]).await;
        check(To64([10; 640]), |value| value.0 == [10; 640]).await;
        // A small future with a large output.
        let large = spawn(async { [11_u8; 4000] }).await.unwrap();
        assert_eq!(large, [11; 4000]);
        drop(spawn(async { [12_u8; 4000] }));
    });
}

/// An abort handle means one task: that a later one has its slot does not make it the target.
#[test]
fn an_old_abort_handle_ends_nobody_else() {
    runtime(1).block_on(async {
        let first = spawn(async { 1 });
        let (abort, id) = (first.abort_handle(), first.id());
        assert_eq!(first.await.unwrap(), 1);
        assert!(abort.is_finished());
        // Last in, first out: the slot is this one's now.
        let second = spawn(async {
            yield_now().await;
            2
        });
        assert_ne!(second.id(), id);
        let (elsewhere, again) = (abort.clone(), abort.clone());
        thread::spawn(move || elsewhere.abort()).join().unwrap();
        again.abort();
        yield_now().await;
        assert_eq!(second.await.unwrap(), 2);
        assert_eq!(abort.id(), id);
    });
}

/// An abort that is on its way when its task ends does not reach the next task in the slot.
#[test]
fn an_abort_on_its_way_ends_nobody_else() {
    async fn task(polls: u32) -> u32 {
        for _ in 0..polls {
            yield_now().await;
        }
        polls
    }
    runtime(1).block_on(async {
        let first = spawn(task(0));
        let abort = first.abort_handle();
        let id = first.id();
        drop(first);
        // It runs after the first has ended, and takes its slot, for more than a turn.
        let second = spawn(async { (spawn(task(1000)),) });
        // The first is still queued: the abort waits in the inbox until it has run.
        thread::spawn(move || abort.abort()).join().unwrap();
        let (next,) = second.await.unwrap();
        let slot = |id: &str| id.parse::<u64>().unwrap() as u32;
        assert_eq!(slot(&next.id().to_string()), slot(&id.to_string()));
        assert_eq!(next.await.unwrap(), 1000);
    });
}

/// An abort from another thread reaches a task that waits for nothing, on a shard that sleeps.
#[test]
fn an_abort_from_elsewhere_ends_the_wait() {
    runtime(1).block_on(async {
        let task = spawn(pending::<()>());
        let abort = task.abort_handle();
        yield_now().await;
        let aborter = thread::spawn(move || {
            abort.abort();
            abort
        });
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(aborter.join().unwrap().is_finished());
    });
}

/// A handle that outlives its runtime keeps the output, whatever other runtimes do meanwhile.
#[test]
fn a_handle_outlives_its_runtime() {
    let first = runtime(1);
    let (mut done, cancelled) = first.block_on(async {
        let done = spawn(async { "kept".to_owned() });
        let cancelled = spawn(async {
            pending::<()>().await;
            String::new()
        });
        yield_now().await;
        (done, cancelled)
    });
    drop(first);
    let busy = || {
        runtime(1).block_on(async {
            let tasks: Vec<_> = (0..1000).map(|_| spawn(async { "x".to_owned() })).collect();
            for task in tasks {
                assert_eq!(task.await.unwrap(), "x");
            }
        });
    };
    busy();
    thread::spawn(busy).join().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(output) = Pin::new(&mut done).poll(&mut cx) else {
        panic!("it had finished")
    };
    assert_eq!(output.unwrap(), "kept");
    assert!(cancelled.is_finished());
    cancelled.abort();
    runtime(1).block_on(async {
        assert!(cancelled.await.unwrap_err().is_cancelled());
    });
}

/// What is spawned for a runtime that has ended is cancelled, also when another runtime has taken
/// over its memory; a late wake does not hurt that one either.
#[test]
fn late_spawns_and_wakes() {
    let first = runtime(1);
    let handle = first.handle().clone();
    let kept = Arc::new(Mutex::new(None));
    first.block_on(async {
        let kept = kept.clone();
        drop(spawn(poll_fn(move |cx| {
            *kept.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        })));
        yield_now().await;
    });
    drop(first);
    let waker = kept.lock().unwrap().take().unwrap();
    waker.wake_by_ref();

    let second = runtime(1);
    let called = Arc::new(AtomicBool::new(false));
    second.block_on(async {
        let noted = called.clone();
        let late = handle.spawn(move || async move { noted.store(true, Ordering::Relaxed) });
        let tasks: Vec<_> = (0..10)
            .map(|number| {
                spawn(async move {
                    yield_now().await;
                    number
                })
            })
            .collect();
        waker.wake_by_ref();
        let foreign = waker.clone();
        thread::spawn(move || foreign.wake()).join().unwrap();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), number);
        }
        assert!(late.await.unwrap_err().is_cancelled());
    });
    assert!(!called.load(Ordering::Relaxed));
}

/// A task that is aborted on its way to its shard never begins; one that has arrived is ended there.
#[test]
fn an_abort_meets_a_task_on_its_way() {
    let runtime = runtime(2);
    let handle = runtime.handle().clone();
    let (hold, held) = channel::<()>();
    let (holds, is_held) = channel();
    // Shard 1 is held in a task, so that nothing arrives.
    let holder = handle.spawn_on(1, move || async move {
        holds.send(()).unwrap();
        held.recv_timeout(Duration::from_secs(60)).unwrap();
    });
    is_held.recv().unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let noted = called.clone();
    let travelling = handle.spawn_on(
        1,
        move || async move { noted.store(true, Ordering::Relaxed) },
    );
    travelling.abort();
    hold.send(()).unwrap();
    runtime.block_on(async {
        holder.await.unwrap();
        assert!(travelling.await.unwrap_err().is_cancelled());
        assert!(!called.load(Ordering::Relaxed));

        let (tell, told) = channel();
        let arrived = handle.spawn_on(1, move || async move {
            tell.send(()).unwrap();
            pending::<()>().await;
        });
        told.recv().unwrap();
        assert!(!arrived.is_finished());
        arrived.abort();
        assert!(arrived.await.unwrap_err().is_cancelled());
    });
}

/// Numbers of tasks are unique, also of those that had the same slot.
#[test]
fn ids_are_unique() {
    runtime(1).block_on(async {
        let mut ids = std::collections::HashSet::new();
        for _ in 0..1000 {
            let task = spawn(async {});
            assert!(ids.insert(task.id()));
            task.await.unwrap();
        }
        let task = Handle::current().spawn(|| async {});
        assert!(ids.insert(task.id()));
        task.await.unwrap();
    });
}
