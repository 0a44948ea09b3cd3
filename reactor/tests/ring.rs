#![allow(unsafe_code)]
//! Operations on the real kernel, in both kinds of ring (P1-P4, P13; H01-H06, H09-H12, H22).
//!
//! `ROUNDEL_TIER=large` runs the full counts; without it one fiftieth of them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use roundel_reactor::{
    Guarded, Inflow, Reactor, RingConfig, RingMode, SharedFd, Turnstile, Wait, current, ops,
};
use socket2::{Domain, SockAddr, Socket, Type};

const MODES: [RingMode; 2] = [RingMode::Defer, RingMode::SqPoll];

/// `large` of something in the large tier, a fiftieth of it else.
fn tier(large: usize) -> usize {
    match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => large,
        _ => large / 50,
    }
}

/// Numbers without an order; the seed is printed when a test fails.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // The generator `splitmix64`.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// Tests of this file run one after the other: they count the process's descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the calls read and write one `rlimit`, which is ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs a future as an executor would: polls it only when it was woken.
fn block_on<F: Future>(reactor: &Reactor, future: F) -> F::Output {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut woken_at = Instant::now();
    loop {
        if flag.0.swap(false, Ordering::AcqRel) {
            woken_at = Instant::now();
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
        assert!(
            woken_at.elapsed() < Duration::from_secs(20),
            "a wake was lost"
        );
        let wait = if flag.0.load(Ordering::Acquire) {
            Wait::No
        } else {
            Wait::AtMost(Duration::from_secs(5))
        };
        reactor.enter(wait).unwrap();
        reactor.reap();
    }
}

/// Turns the ring until all is back.
fn settle(reactor: &Reactor) {
    let began = Instant::now();
    while reactor.in_flight() + reactor.staged() > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "operations stay in flight"
        );
        reactor
            .enter(Wait::AtMost(Duration::from_millis(5)))
            .unwrap();
        reactor.reap();
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn config(mode: RingMode) -> RingConfig {
    RingConfig {
        mode,
        ..RingConfig::default()
    }
}

/// Runs `test` on a ring of each kind, with this many entries, and checks what must hold behind
/// every test: the ring served it, no operation, no slot and no descriptor is left, and the
/// kernel met no memory that was not there.
fn in_each_mode(entries: u32, test: impl Fn(&Rc<Reactor>)) {
    let _alone = alone();
    for mode in MODES {
        let before = descriptors();
        let reactor = Reactor::new(&RingConfig {
            entries,
            ..config(mode)
        });
        let reactor = reactor.unwrap();
        {
            let _entered = current::enter(reactor.clone());
            test(&reactor);
            settle(&reactor);
        }
        assert_eq!((reactor.slots(), reactor.in_flight()), (0, 0), "{mode:?}");
        let counters = reactor.counters();
        drop(reactor);
        let counted = counters.snapshot();
        assert!(counted.submitted > 0, "{mode:?}: {counted:?}");
        // A poller that never sleeps needs no call at all.
        let called = counted.enters > 0 || mode == RingMode::SqPoll;
        assert!(called, "{mode:?}: {counted:?}");
        assert_eq!(
            (counted.slots, counted.faults),
            (0, 0),
            "{mode:?}: {counted:?}"
        );
        assert_eq!(descriptors(), before, "{mode:?}");
    }
}

fn pipe() -> (SharedFd, SharedFd) {
    let (reader, writer) = io::pipe().unwrap();
    (SharedFd::new(reader.into()), SharedFd::new(writer.into()))
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    (one.into(), other.into())
}

/// A file without a name.
fn file() -> std::fs::File {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir());
    file.unwrap()
}

async fn read(fd: &SharedFd, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    current::submit(ops::ReadAt::new(fd.hold().unwrap(), buf, 0)).await
}

async fn write(fd: &SharedFd, buf: Vec<u8>, offset: u64) -> io::Result<usize> {
    current::submit(ops::WriteAt::new(fd.hold().unwrap(), buf, offset))
        .await
        .0
}

/// Bytes come through pipes, and stand in files where they were put.
#[test]
fn reads_and_writes() {
    in_each_mode(64, |reactor| {
        let (reader, writer) = pipe();
        let file = SharedFd::new(file().into());
        block_on(reactor, async {
            for round in 0..100_u8 {
                assert_eq!(write(&writer, vec![round; 300], 0).await.unwrap(), 300);
                let (count, bytes) = read(&reader, Vec::with_capacity(1000)).await;
                assert_eq!((count.unwrap(), bytes), (300, vec![round; 300]));
                let at = u64::from(round) * 300;
                assert_eq!(write(&file, vec![round; 300], at).await.unwrap(), 300);
            }
            current::submit(ops::Sync::new(file.hold().unwrap(), true))
                .await
                .unwrap();
            let stat = current::submit(ops::Statx::of_file(file.hold().unwrap())).await;
            assert_eq!(stat.unwrap().size(), 30_000);
            let (count, bytes) = read(&file, Vec::with_capacity(40_000)).await;
            assert_eq!(count.unwrap(), 30_000);
            assert!(
                bytes
                    .chunks(300)
                    .enumerate()
                    .all(|(at, part)| part == vec![at as u8; 300])
            );
        });
    });
}

/// Memory lent to a dropped read stays the kernel's until it is finished with it: what is
/// allocated and filled meanwhile never changes (H01).
#[test]
fn h01_a_dropped_read_writes_nowhere_else() {
    const SIZE: usize = 64 << 10;
    in_each_mode(64, |reactor| {
        let fd = SharedFd::new(file().into());
        block_on(reactor, async {
            for part in 0..64 {
                write(&fd, vec![0xee; SIZE], part * SIZE as u64)
                    .await
                    .unwrap();
            }
        });
        let seed = 1;
        let mut random = Random(seed);
        let mut others: Vec<Vec<u8>> = Vec::new();
        for round in 0..tier(10_000) {
            let offset = (random.below(63) * SIZE + random.below(4096)) as u64;
            let buf = vec![0; SIZE];
            let mut read = current::submit(ops::ReadAt::new(fd.hold().unwrap(), buf, offset));
            assert!(poll_once(&mut read).is_pending());
            // In the staging queue, in the kernel, or finished and unread.
            match random.below(3) {
                0 => {}
                1 => reactor.enter(Wait::No).unwrap(),
                _ => {
                    reactor
                        .enter(Wait::AtMost(Duration::from_millis(1)))
                        .unwrap();
                    reactor.reap();
                }
            }
            drop(read);
            others.push(vec![round as u8 | 1; SIZE]);
            if others.len() == 32 {
                reactor
                    .enter(Wait::AtMost(Duration::from_millis(1)))
                    .unwrap();
                reactor.reap();
                for other in others.drain(..) {
                    assert!(other.iter().all(|&byte| byte == other[0]), "seed {seed}");
                }
            }
        }
    });
}

/// A buffer in the middle of guard bytes: the kernel writes into its part and nowhere else.
#[test]
fn h01_a_read_stays_inside_its_part() {
    use roundel_reactor::{IoBuf, IoBufMut};
    in_each_mode(8, |reactor| {
        let (reader, writer) = pipe();
        block_on(reactor, async {
            write(&writer, vec![1; 4096], 0).await.unwrap();
            let part = vec![7; 300].slice_mut(100..200);
            let read = ops::ReadAt::new(reader.hold().unwrap(), part, 0);
            let (count, part) = current::submit(read).await;
            assert_eq!((count.unwrap(), part.as_bytes()), (100, &[1; 100][..]));
            let whole = part.into_inner();
            assert!(
                whole[..100]
                    .iter()
                    .chain(&whole[200..])
                    .all(|&byte| byte == 7)
            );
        });
    });
}

/// Something deep on the stack that overwrites what an address would have left there.
#[inline(never)]
fn deep_call(depth: u32) -> u64 {
    let noise = std::hint::black_box([depth as u64; 256]);
    match depth {
        0 => noise[0],
        depth => noise[1] + deep_call(depth - 1),
    }
}

/// The address of a connect stays valid until the kernel has read it (H02).
#[test]
fn h02_addresses_stay_until_they_are_read() {
    in_each_mode(16, |reactor| {
        let listeners = ["127.0.0.1:0", "[::1]:0"].map(|address| {
            let listener = std::net::TcpListener::bind(address).unwrap();
            let address = listener.local_addr().unwrap();
            (listener, address)
        });
        for round in 0..tier(1000).max(100) {
            let (listener, address) = &listeners[round % 2];
            let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None).unwrap();
            // A reset ends it, so that no port waits.
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            let fd = SharedFd::new(socket.into());
            let connect = current::submit(ops::Connect::new(fd.hold().unwrap(), *address));
            std::hint::black_box(deep_call(20));
            block_on(reactor, connect).unwrap();
            let (_, peer) = listener.accept().unwrap();
            let local = socket2::SockRef::from(&fd).local_addr().unwrap();
            assert_eq!(local, SockAddr::from(peer));
        }
    });
}

/// A dropped open leaves no descriptor (H03).
#[test]
fn h03_dropped_opens_leave_no_descriptor() {
    in_each_mode(64, |reactor| {
        let before = descriptors();
        for round in 0..tier(50_000) {
            let path = ops::PathArg::new("/proc/self/status".as_ref()).unwrap();
            let mut open = current::submit(ops::OpenAt::new(path, libc::O_RDONLY, 0));
            assert!(poll_once(&mut open).is_pending());
            match round % 4 {
                0 => {}
                1 => reactor.enter(Wait::No).unwrap(),
                2 => {
                    reactor
                        .enter(Wait::AtMost(Duration::from_millis(1)))
                        .unwrap();
                    reactor.reap();
                }
                _ => {
                    let fd = block_on(reactor, open).unwrap();
                    assert!(fd.as_raw_fd() >= 0);
                    continue;
                }
            }
        }
        settle(reactor);
        assert_eq!(descriptors(), before);
    });
}

/// Dropping the receives of very many sockets through a ring of eight entries cancels all of
/// them (H05).
#[test]
fn h05_no_cancel_is_lost_in_a_full_ring() {
    raise_descriptor_limit();
    in_each_mode(8, |reactor| {
        let pairs: Vec<(SharedFd, OwnedFd)> = (0..tier(3000))
            .map(|_| socket_pair())
            .map(|(one, other)| (SharedFd::new(one), other))
            .collect();
        let receive = |(fd, _): &(SharedFd, OwnedFd)| {
            current::submit(ops::Recv::new(fd.hold().unwrap(), vec![0; 64]))
        };
        let receives: Vec<_> = pairs.iter().map(receive).collect();
        while reactor.staged() > 0 {
            reactor.enter(Wait::No).unwrap();
            reactor.reap();
        }
        assert_eq!(reactor.in_flight(), pairs.len());
        drop(receives);
        settle(reactor);
        // And closing them while they receive ends all receives.
        let receives: FuturesUnordered<_> = pairs.iter().map(receive).collect();
        let closes: FuturesUnordered<_> = pairs.iter().map(|(fd, _)| fd.close()).collect();
        block_on(reactor, async {
            let closed: Vec<_> = closes.collect().await;
            assert!(closed.iter().all(Result::is_ok));
            let results: Vec<_> = receives.collect().await;
            for (result, _) in results {
                assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            }
        });
    });
}

/// Sixty-four reads whose writers come in random order each get their own bytes, whatever the
/// order they are awaited in; some are dropped instead (H06).
#[test]
fn h06_completions_find_their_own_operation() {
    in_each_mode(32, |reactor| {
        let mut random = Random(6);
        for _ in 0..tier(500) {
            let mut order: Vec<usize> = (0..64).collect();
            for place in (1..order.len()).rev() {
                order.swap(place, random.below(place + 1));
            }
            let pipes: Vec<_> = (0..64).map(|_| pipe()).collect();
            let mut reads: Vec<_> = pipes
                .iter()
                .map(|(reader, _)| Some(Box::pin(read(reader, Vec::with_capacity(8)))))
                .collect();
            for read in reads.iter_mut().flatten() {
                assert!(poll_once(read).is_pending());
            }
            reactor.enter(Wait::No).unwrap();
            for &which in &order {
                rustix_write(&pipes[which].1, &[which as u8; 5]);
                if random.below(4) == 0 {
                    reads[random.below(64)] = None;
                }
                reactor.enter(Wait::No).unwrap();
                reactor.reap();
            }
            for (which, read) in reads.into_iter().enumerate() {
                let Some(read) = read else { continue };
                let (count, bytes) = block_on(reactor, read);
                assert_eq!((count.unwrap(), bytes), (5, vec![which as u8; 5]));
            }
        }
    });
}

/// A synchronous write, by the test and not by the ring.
fn rustix_write(fd: &impl AsFd, bytes: &[u8]) {
    let mut file = std::fs::File::from(fd.as_fd().try_clone_to_owned().unwrap());
    file.write_all(bytes).unwrap();
}

/// A poller that has gone to sleep, or is about to, is woken for every entry (H09).
#[test]
fn h09_a_sleeping_poller_is_woken() {
    let _alone = alone();
    let reactor = Reactor::new(&config(RingMode::SqPoll)).unwrap();
    let _entered = current::enter(reactor.clone());
    let fd = SharedFd::new(file().into());
    let mut random = Random(9);
    for round in 0..tier(5000) {
        let began = Instant::now();
        let count = block_on(&reactor, write(&fd, vec![1; 20 << 10], 0)).unwrap();
        assert_eq!(count, 20 << 10);
        assert!(began.elapsed() < Duration::from_secs(1), "round {round}");
        // It sleeps after one to some five milliseconds.
        if round % 4 > 0 {
            std::thread::sleep(Duration::from_micros(random.below(10_000) as u64));
        }
    }
    let counted = reactor.counters().snapshot();
    assert!(
        counted.poller_wakes > 0,
        "it was never seen asleep: {counted:?}"
    );
    assert!(
        counted.poller_wakes < counted.submitted,
        "it was never seen awake: {counted:?}"
    );
}

/// A loop that never waits sees what has finished: the deferred ring says so, although its
/// completion queue does not move by itself (H10).
#[test]
fn h10_finished_work_is_seen_without_waiting() {
    in_each_mode(8, |reactor| {
        let (reader, writer) = pipe();
        for _ in 0..tier(1000) {
            let mut read = Box::pin(read(&reader, Vec::with_capacity(8)));
            assert!(poll_once(&mut read).is_pending());
            reactor.enter(Wait::No).unwrap();
            assert_eq!(reactor.reap(), 0);
            assert!(poll_once(&mut read).is_pending());
            rustix_write(&writer, b"now");
            let began = Instant::now();
            let enters = reactor.counters().snapshot().enters;
            while !reactor.is_ready_to_reap() {
                assert!(began.elapsed() < Duration::from_secs(5), "nothing was seen");
                std::thread::yield_now();
            }
            assert_eq!(
                reactor.counters().snapshot().enters,
                enters,
                "a look is no call"
            );
            reactor.enter(Wait::No).unwrap();
            assert_eq!(reactor.reap(), 1);
            let Poll::Ready((count, bytes)) = poll_once(&mut read) else {
                panic!("the one that completed is this")
            };
            assert_eq!((count.unwrap(), &bytes[..]), (3, &b"now"[..]));
        }
    });
}

/// Ten thousand writes at once through eight places (H11).
#[test]
fn h11_a_full_submission_queue_is_flushed() {
    in_each_mode(8, |reactor| {
        let fd = SharedFd::new(file().into());
        let writes: FuturesUnordered<_> = (0..tier(10_000) as u64)
            .map(|place| write(&fd, place.to_le_bytes().to_vec(), place * 8))
            .collect();
        let total = writes.len();
        let results: Vec<_> = block_on(reactor, writes.collect());
        assert!(results.into_iter().all(|result| matches!(result, Ok(8))));
        let (count, bytes) = block_on(reactor, read(&fd, Vec::with_capacity(total * 8 + 8)));
        assert_eq!(count.unwrap(), total * 8);
        for (place, number) in bytes.chunks(8).enumerate() {
            assert_eq!(number, (place as u64).to_le_bytes());
        }
    });
}

/// More completions than the queue has places, unreaped: all of them come (H12).
#[test]
fn h12_an_overflowing_completion_queue_loses_nothing() {
    in_each_mode(8, |reactor| {
        for _ in 0..4 {
            let mut nops: Vec<_> = (0..tier(100_000) / 4)
                .map(|_| current::submit(ops::Nop))
                .collect();
            // Handed over without taking a single completion: 32 have a place.
            while reactor.staged() > 0 {
                reactor.enter(Wait::No).unwrap();
            }
            let began = Instant::now();
            let mut reaped = 0;
            while reaped < nops.len() {
                assert!(began.elapsed() < Duration::from_secs(10), "{reaped} came");
                reactor
                    .enter(Wait::AtMost(Duration::from_millis(100)))
                    .unwrap();
                reaped += reactor.reap();
            }
            assert!(
                nops.iter_mut()
                    .all(|nop| matches!(poll_once(nop), Poll::Ready(Ok(()))))
            );
        }
    });
}

/// A close waits for the read in flight, and only then is the number free (H22).
#[test]
fn h22_a_close_does_not_overtake_a_read() {
    in_each_mode(16, |reactor| {
        for _ in 0..tier(1000) {
            let (reader, writer) = pipe();
            let number = reader.as_raw_fd();
            let mut pending = Box::pin(read(&reader, vec![0; 64]));
            assert!(poll_once(&mut pending).is_pending());
            reactor.enter(Wait::No).unwrap();
            reactor.reap();
            let mut close = Box::pin(reader.close());
            assert!(poll_once(&mut close).is_pending());
            // The number is not free while the kernel has the read.
            let other = file();
            assert_ne!(other.as_raw_fd(), number);
            // The task that reads does not run meanwhile.
            block_on(reactor, close).unwrap();
            let mut files = vec![file()];
            while files.last().unwrap().as_raw_fd() < number {
                files.push(file());
            }
            let mut again = files.pop().unwrap();
            assert_eq!(again.as_raw_fd(), number, "the number is free now");
            let (result, _) = block_on(reactor, pending);
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            drop(reader);
            block_on(reactor, writer.close()).unwrap();
            settle(reactor);
            again.write_all(b"mine").unwrap();
            assert_eq!(
                again.metadata().unwrap().len(),
                4,
                "it was closed twice, or read"
            );
        }
    });
}

/// A read whose future was dropped keeps running for its stream; closing ends it (H04, H22).
#[test]
fn h22_a_kept_receive_does_not_hold_the_close_up() {
    in_each_mode(16, |reactor| {
        let (one, _other) = socket_pair();
        let (fd, inflow) = (SharedFd::new(one), Inflow::new());
        {
            let mut read = pin!(inflow.receive(&fd, vec![0; 8], ops::Recv::new));
            assert!(poll_once(&mut read).is_pending());
            reactor.enter(Wait::No).unwrap();
        }
        assert_eq!(reactor.in_flight(), 1, "it stays with its stream");
        block_on(reactor, fd.close()).unwrap();
        drop(inflow);
    });
}

/// Clones are handles to one descriptor: it closes with the last of them, and `close` closes for
/// all.
#[test]
fn a_descriptor_closes_with_its_last_handle() {
    fn is_closed(peer: &mut std::fs::File) -> bool {
        matches!(peer.read(&mut [0; 1]), Ok(0))
    }
    in_each_mode(16, |reactor| {
        let peer = |reader: OwnedFd| {
            // SAFETY: the call takes no pointers, and the descriptor is open.
            let set = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            assert_eq!(set, 0);
            std::fs::File::from(reader)
        };
        let (reader, writer) = io::pipe().unwrap();
        let (mut reader, writer) = (peer(reader.into()), SharedFd::new(writer.into()));
        let clone = writer.clone();
        drop(writer);
        settle(reactor);
        assert!(!is_closed(&mut reader), "a clone is alive");
        let hold = clone.hold().unwrap();
        drop(clone);
        settle(reactor);
        assert!(!is_closed(&mut reader), "an operation has it");
        drop(hold);
        settle(reactor);
        assert!(is_closed(&mut reader));

        let (reader, writer) = io::pipe().unwrap();
        let (mut reader, writer) = (peer(reader.into()), SharedFd::new(writer.into()));
        let clone = writer.clone();
        block_on(reactor, writer.close()).unwrap();
        assert!(is_closed(&mut reader));
        let refused = [
            clone.hold().map(drop),
            clone.get().map(drop),
            block_on(reactor, clone.close()),
            block_on(reactor, writer.close()),
        ];
        for result in refused {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotConnected);
        }
        // A close that is given up leaves the closing to the last handle.
        let (reader, writer) = io::pipe().unwrap();
        let (mut reader, writer) = (peer(reader.into()), SharedFd::new(writer.into()));
        let hold = writer.hold().unwrap();
        assert!(poll_once(&mut Box::pin(writer.close())).is_pending());
        drop(hold);
        assert!(writer.hold().is_err());
        settle(reactor);
        assert!(!is_closed(&mut reader));
        drop(writer);
        settle(reactor);
        assert!(is_closed(&mut reader));
    });
    // Without a reactor it closes at once.
    let (mut reader, writer) = io::pipe().unwrap();
    drop(SharedFd::new(writer.into()));
    assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
}

/// Reads that are dropped at random lose no byte of the stream (P3, H04).
#[test]
fn h04_dropped_reads_lose_no_byte() {
    in_each_mode(16, |reactor| {
        let (one, other) = socket_pair();
        let (fd, inflow) = (SharedFd::new(one), Inflow::new());
        let length = tier(5_000_000);
        let mut peer = std::os::unix::net::UnixStream::from(other);
        let writer = std::thread::spawn(move || {
            let mut random = Random(4);
            let mut sent = 0_usize;
            while sent < length {
                let end = (sent + 1 + random.below(700)).min(length);
                let part: Vec<u8> = (sent..end).map(|place| (place % 251) as u8).collect();
                peer.write_all(&part).unwrap();
                sent = end;
                if random.below(8) == 0 {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let mut random = Random(40);
        let (mut received, mut dropped) = (0_usize, 0);
        loop {
            let buf = Vec::with_capacity(1 + random.below(500));
            let mut read = Box::pin(inflow.receive(&fd, buf, ops::Recv::new));
            let mut turns = random.below(4);
            let result = loop {
                if let Poll::Ready(result) = poll_once(&mut read) {
                    break Some(result);
                }
                if turns == 0 {
                    break None;
                }
                turns -= 1;
                let wait = Duration::from_micros(random.below(100) as u64);
                reactor.enter(Wait::AtMost(wait)).unwrap();
                reactor.reap();
            };
            drop(read);
            let Some((count, bytes)) = result else {
                dropped += 1;
                continue;
            };
            assert_eq!(count.unwrap(), bytes.len());
            if bytes.is_empty() {
                break;
            }
            for byte in bytes {
                assert_eq!(byte, (received % 251) as u8, "at {received}");
                received += 1;
            }
        }
        writer.join().unwrap();
        assert_eq!(received, length);
        assert!(dropped > 0, "nothing was provoked");
    });
}

/// A send starts after the last word on the one before it, dropped or not: bytes never overtake.
#[test]
fn sends_never_overtake() {
    in_each_mode(16, |reactor| {
        let (one, other) = socket_pair();
        let fd = SharedFd::new(one);
        socket2::SockRef::from(&fd)
            .set_send_buffer_size(4096)
            .unwrap();
        let turnstile = Turnstile::new();
        let (turnstile, fd) = (&turnstile, &fd);
        let send = |which: u8| async move {
            let turn = turnstile.turn().await;
            let send = ops::Send::new(fd.hold().unwrap(), vec![which; 6000]);
            let ((result, _), _turn) = current::submit(Guarded::new(send, turn)).await;
            result
        };
        let mut peer = std::os::unix::net::UnixStream::from(other);
        peer.set_nonblocking(true).unwrap();
        let mut random = Random(5);
        let mut sends: Vec<_> = (0..tier(10_000).min(250) as u8)
            .map(|which| Some(Box::pin(send(which))))
            .collect();
        let mut bytes = Vec::new();
        let began = Instant::now();
        while sends.iter().any(Option::is_some) {
            assert!(began.elapsed() < Duration::from_secs(20), "a turn was lost");
            for slot in &mut sends {
                let Some(send) = slot else { continue };
                if poll_once(send).is_ready() || random.below(50) == 0 {
                    *slot = None;
                }
            }
            reactor
                .enter(Wait::AtMost(Duration::from_millis(1)))
                .unwrap();
            reactor.reap();
            let mut part = vec![0; random.below(8000)];
            if let Ok(count) = peer.read(&mut part) {
                bytes.extend_from_slice(&part[..count]);
            }
        }
        settle(reactor);
        while let Ok(count @ 1..) = peer.read(&mut vec![0; 8000]) {
            // What was left comes behind all that was checked.
            let _ = count;
        }
        assert!(bytes.is_sorted(), "a send overtook another");
        assert!(!turnstile.is_taken());
    });
}

/// Shutting down with operations of every kind in flight ends at once, and leaves no descriptor
/// and nothing with the kernel (P4).
#[test]
fn shutdown_ends_everything() {
    raise_descriptor_limit();
    let _alone = alone();
    for mode in MODES {
        for count in [0, 1, 10, 10_000] {
            let before = descriptors();
            let mut memory = Vec::new();
            let reactor = Reactor::new(&config(mode)).unwrap();
            {
                let _entered = current::enter(reactor.clone());
                let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                listener
                    .bind(&SockAddr::from(([127, 0, 0, 1], 0).into_addr()))
                    .unwrap();
                listener.listen(8).unwrap();
                let listener = SharedFd::new(listener.into());
                let (one, _other) = socket_pair();
                let socket = SharedFd::new(one);
                let (reader, _writer) = pipe();
                let file = SharedFd::new(file().into());
                let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
                for which in 0..count {
                    let kept: Box<dyn std::any::Any> = match which % 8 {
                        0 => Box::new(current::submit(ops::Recv::new(
                            socket.hold().unwrap(),
                            vec![0; 64],
                        ))),
                        1 => Box::new(current::submit(ops::Timeout::new(Duration::MAX))),
                        2 => Box::new(current::submit(ops::Accept::new(listener.hold().unwrap()))),
                        3 => Box::new(current::submit_multishot(ops::AcceptMulti::new(
                            listener.hold().unwrap(),
                        ))),
                        4 => Box::new(current::submit(ops::ReadAt::new(
                            reader.hold().unwrap(),
                            vec![0; 64],
                            0,
                        ))),
                        5 => Box::new(current::submit(ops::WriteAt::new(
                            file.hold().unwrap(),
                            vec![0; 64],
                            0,
                        ))),
                        6 => {
                            let path = ops::PathArg::new("/proc/self/status".as_ref()).unwrap();
                            Box::new(current::submit(ops::OpenAt::new(path, 0, 0)))
                        }
                        _ => Box::new(current::submit(ops::Statx::of_file(file.hold().unwrap()))),
                    };
                    // A third is dropped, a third stays until after the end, a third is forgotten.
                    match which / 8 % 3 {
                        0 => drop(kept),
                        1 => held.push(kept),
                        _ => memory.push(Box::leak(kept)),
                    }
                    if which % 700 == 0 {
                        reactor.enter(Wait::No).unwrap();
                        reactor.reap();
                    }
                }
                let began = Instant::now();
                let abandonment = reactor.shutdown(began + Duration::from_secs(5));
                assert!(
                    began.elapsed() < Duration::from_secs(1),
                    "{mode:?} {count}: {:?}",
                    began.elapsed()
                );
                assert_eq!(
                    abandonment.operations,
                    Vec::<String>::new(),
                    "{mode:?} {count}"
                );
                assert_eq!(reactor.in_flight(), 0);
                drop(held);
            }
            // Forgotten operations keep their holds, so their descriptors stay: take them back.
            for kept in memory {
                // SAFETY: it was leaked above, and nobody else has it.
                drop(unsafe { Box::from_raw(kept) });
            }
            assert_eq!(reactor.slots(), 0, "{mode:?} {count}");
            drop(reactor);
            assert_eq!(descriptors(), before, "{mode:?} {count}");
        }
    }
}

trait IntoAddr {
    fn into_addr(self) -> std::net::SocketAddr;
}

impl IntoAddr for ([u8; 4], u16) {
    fn into_addr(self) -> std::net::SocketAddr {
        self.into()
    }
}

/// A notifier rung on another thread ends the reactor's wait, whether it comes before, while or
/// after the wait begins; rings add up to one; it outlives its reactor (P5, H07).
#[test]
fn a_notifier_ends_a_wait() {
    let _alone = alone();
    for mode in MODES {
        let reactor = Reactor::new(&config(mode)).unwrap();
        let notifier = reactor.notifier();
        let rounds = tier(1000).max(50);
        let (said, heard) = std::sync::mpsc::channel::<()>();
        let ringer = std::thread::spawn(move || {
            let mut random = Random(7);
            for _ in 0..rounds {
                std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                notifier.notify();
                heard.recv().unwrap();
            }
            notifier
        });
        let mut random = Random(70);
        for round in 0..rounds {
            std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
            let began = Instant::now();
            // One wait may end early for the rest of an older ring.
            let mut reaped = 0;
            while reaped == 0 {
                reactor.enter(Wait::AtMost(Duration::from_secs(5))).unwrap();
                reaped += reactor.reap();
                assert!(
                    began.elapsed() < Duration::from_secs(2),
                    "{mode:?}: ring {round} is lost"
                );
            }
            said.send(()).unwrap();
        }
        let notifier = ringer.join().unwrap();
        drop(reactor);
        notifier.notify();
    }
}

/// One thread makes and drops many reactors: the kernel's 16 places for registered rings a
/// thread are given back.
#[test]
fn reactors_come_and_go_on_one_thread() {
    in_each_mode(8, |reactor| {
        block_on(reactor, current::submit(ops::Nop)).unwrap()
    });
    let _alone = alone();
    let before = descriptors();
    for round in 0..40 {
        let reactor = Reactor::new(&RingConfig {
            entries: 8,
            ..config(MODES[round % 2])
        });
        let reactor = reactor.unwrap();
        let _entered = current::enter(reactor.clone());
        block_on(&reactor, current::submit(ops::Nop)).unwrap();
    }
    assert_eq!(descriptors(), before);
    // Twenty at once: those beyond the 16 places work by their descriptors.
    let many: Vec<_> = (0..20)
        .map(|_| {
            Reactor::new(&RingConfig {
                entries: 8,
                ..config(RingMode::Defer)
            })
        })
        .map(Result::unwrap)
        .collect();
    for reactor in &many {
        let _entered = current::enter(reactor.clone());
        block_on(reactor, current::submit(ops::Nop)).unwrap();
    }
    drop(many);
    assert_eq!(descriptors(), before);
}

/// A forked child is told clearly that the ring is not its own, takes nothing of what its parent
/// waits for, and may drop what it inherited.
#[test]
fn a_forked_child_is_told() {
    let _alone = alone();
    for mode in MODES {
        let reactor = Reactor::new(&config(mode)).unwrap();
        let _entered = current::enter(reactor.clone());
        let mut nop = current::submit(ops::Nop);
        reactor.enter(Wait::No).unwrap();
        // Its completion is visible and not taken when the child begins.
        while !reactor.is_ready_to_reap() {
            std::thread::yield_now();
        }
        let (mut told, mut tell) = io::pipe().unwrap();
        // SAFETY: the child touches nothing but its own copy of this thread's values, the
        // allocator (which glibc keeps usable in a child) and one pipe, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            std::panic::set_hook(Box::new(|_| {}));
            let attempts: [&dyn Fn(); 2] = [
                &|| {
                    reactor.reap();
                },
                &|| reactor.enter(Wait::No).unwrap(),
            ];
            for attempt in attempts {
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
                let message = match panic {
                    Ok(()) => "nothing".to_owned(),
                    Err(panic) => match panic.downcast_ref::<&str>() {
                        Some(text) => (*text).to_owned(),
                        None => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
                    },
                };
                let _ = writeln!(tell, "{message}");
            }
            let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                drop(reactor.shutdown(Instant::now() + Duration::from_millis(100)));
            }));
            let _ = writeln!(tell, "dropped: {}", dropped.is_ok());
            // SAFETY: the call takes no pointers.
            unsafe { libc::_exit(0) }
        }
        drop(tell);
        let mut text = String::new();
        told.read_to_string(&mut text).unwrap();
        let mut status = 0;
        // SAFETY: the call writes one status, which is ours; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for line in &lines[..2] {
            assert!(line.contains("forked child"), "{mode:?}: {text}");
        }
        assert_eq!(lines[2], "dropped: true");
        // And the parent goes on.
        reactor.enter(Wait::No).unwrap();
        assert_eq!(reactor.reap(), 1, "{mode:?}: the child took it");
        assert!(poll_once(&mut nop).is_ready());
        block_on(&reactor, current::submit(ops::Nop)).unwrap();
    }
}

/// A task that is dropped in the middle of everything: a mixed load of reads, opens, receives,
/// accepts and timeouts, cancelled at random points, ends each operation once (P2).
#[test]
fn random_cancels_leave_nothing() {
    in_each_mode(32, |reactor| {
        let mut random = Random(2);
        let (one, other) = socket_pair();
        let (socket, mut peer) = (SharedFd::new(one), std::fs::File::from(other));
        let file = SharedFd::new(file().into());
        let (reader, writer) = pipe();
        let outputs = Rc::new(Cell::new(0));
        let live = RefCell::new(Vec::<Pin<Box<dyn Future<Output = ()>>>>::new());
        let total = tier(50_000);
        for round in 0..total {
            let (socket, file, reader) = (socket.clone(), file.clone(), reader.clone());
            let outputs = outputs.clone();
            let kind = random.below(5);
            let future = async move {
                match kind {
                    0 => drop(read(&file, vec![0; 4096]).await),
                    1 => drop(read(&reader, vec![0; 16]).await),
                    2 => {
                        let receive = ops::Recv::new(socket.hold().unwrap(), vec![0; 16]);
                        drop(current::submit(receive).await);
                    }
                    3 => {
                        let path = ops::PathArg::new("/proc/self/status".as_ref()).unwrap();
                        drop(current::submit(ops::OpenAt::new(path, 0, 0)).await);
                    }
                    _ => drop(current::submit(ops::Timeout::new(Duration::from_millis(1))).await),
                }
                outputs.set(outputs.get() + 1);
            };
            live.borrow_mut().push(Box::pin(future));
            let mut live = live.borrow_mut();
            let place = random.below(live.len());
            if poll_once(&mut live[place]).is_ready() || (live.len() > 64 && random.below(2) == 0) {
                drop(live.swap_remove(place));
            }
            if round % 7 == 0 {
                reactor.enter(Wait::No).unwrap();
                reactor.reap();
            }
            if round % 50 == 0 {
                peer.write_all(&[0; 8]).unwrap();
                rustix_write(&writer, &[0; 8]);
            }
        }
        live.borrow_mut().clear();
        settle(reactor);
        assert!(outputs.get() > 0 && outputs.get() < total);
    });
}
