//! The end of a runtime while operations are in flight (H42; P4).

use std::future::Future;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel::{Runtime, yield_now};
use roundel_testing::{
    Case, GuardBuf, TempDir, close_forgotten, descriptors, each_mode, open_descriptors, scaled,
};

/// What an end may take. A liveness bound: it takes some milliseconds.
const BOUND: Duration = Duration::from_secs(1);

/// A pending accept holds up no end: with an accept loop, and after an accept that timed
/// out, the runtime is dropped at once and has no descriptor any more.
#[test]
fn h42_a_pending_accept_does_not_hold_up_the_end() {
    each_mode(|case| {
        let before = descriptors();
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            let accepting = TcpListener::bind("127.0.0.1:0").await.unwrap();
            drop(roundel::spawn(async move {
                loop {
                    drop(accepting.accept().await);
                }
            }));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let accepted = timeout(Duration::from_millis(50), listener.accept()).await;
            assert!(accepted.is_err());
        });
        drop_quickly(runtime);
        assert_eq!(descriptors(), before);
    });
}

/// What is accepted after nobody asks any more is closed with the runtime: clients of a
/// multishot accept that nobody claims read the end.
#[test]
fn h42_unclaimed_connections_are_closed_at_the_end() {
    each_mode(|case| {
        let before = descriptors();
        let runtime = case.builder().build().unwrap();
        let clients: Vec<StdStream> = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            drop(roundel::spawn(async move {
                let mut incoming = listener.incoming();
                let first = incoming.next().await.unwrap().unwrap();
                // It keeps what it has and asks for no more.
                std::future::pending::<()>().await;
                drop((first, incoming));
            }));
            let clients = (0..20)
                .map(|_| StdStream::connect(address).unwrap())
                .collect();
            sleep(Duration::from_millis(20)).await;
            clients
        });
        drop_quickly(runtime);
        for mut client in clients {
            client.set_read_timeout(Some(BOUND * 10)).unwrap();
            let read = io::Read::read(&mut client, &mut [0]);
            assert!(
                matches!(read, Ok(0))
                    || read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
            );
        }
        assert_eq!(descriptors(), before);
    });
}

/// The end cancels whatever is in flight, in time, and collects all of it: no, one, ten and
/// ten thousand operations of every kind, each in a task of its own.
#[test]
fn operations_in_flight_do_not_hold_up_the_end() {
    each_mode(|case| {
        for count in [0, 1, 10, scaled(10_000).max(2_000)] {
            let before = descriptors();
            let peers = Peers::new();
            let runtime = case.builder().build().unwrap();
            let pending = Arc::new(AtomicUsize::new(0));
            runtime.block_on(async {
                peers.start(count, &pending);
                yield_now().await;
                sleep(Duration::from_millis(10)).await;
            });
            let begun = Instant::now();
            if count == 0 {
                // Nothing was in flight, so nothing need have been submitted.
                assert!(runtime.shutdown(Duration::from_secs(5)).is_clean());
            } else {
                case.end(runtime);
            }
            assert!(begun.elapsed() < BOUND, "{count}: {:?}", begun.elapsed());
            assert_eq!(pending.load(Ordering::Relaxed), 0, "futures that live on");
            drop(peers);
            assert_eq!(descriptors(), before, "after {count} operations");
        }
    });
}

/// The same when the runtime is only dropped, which waits half a second at most.
#[test]
fn dropping_the_runtime_ends_operations_in_flight() {
    each_mode(|case| {
        let before = descriptors();
        let peers = Peers::new();
        let pending = Arc::new(AtomicUsize::new(0));
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            peers.start(500, &pending);
            sleep(Duration::from_millis(10)).await;
        });
        drop_quickly(runtime);
        assert_eq!(pending.load(Ordering::Relaxed), 0, "futures that live on");
        drop(peers);
        assert_eq!(descriptors(), before);
    });
}

/// Operations that nobody has submitted yet are no trouble either: the runtime ends in the
/// turn in which they were started.
#[test]
fn operations_that_were_just_staged_do_not_hold_up_the_end() {
    each_mode(|case| {
        let before = descriptors();
        let peers = Peers::new();
        let pending = Arc::new(AtomicUsize::new(0));
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            peers.start(200, &pending);
        });
        drop_quickly(runtime);
        assert_eq!(pending.load(Ordering::Relaxed), 0, "futures that live on");
        drop(peers);
        assert_eq!(descriptors(), before);
    });
}

/// Futures that were forgotten cannot be dropped, but the kernel gives them back: the end
/// comes in time and leaves nothing to the kernel.
#[test]
fn forgotten_operations_do_not_hold_up_the_end() {
    each_mode(|case| {
        let before = open_descriptors();
        let peers = Peers::new();
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            for number in 0..200 {
                let mut future = peers.operation(number);
                assert!(futures::poll!(future.as_mut()).is_pending());
                std::mem::forget(future);
            }
            yield_now().await;
        });
        let begun = Instant::now();
        case.end_with_forgotten(runtime);
        assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
        drop(peers);
        let left: Vec<RawFd> = open_descriptors()
            .into_iter()
            .filter(|fd| !before.contains(fd))
            .collect();
        close_forgotten(&left);
    });
}

/// A runtime ends in time on every shard that has operations in flight.
#[test]
fn every_shard_ends_its_operations() {
    each_mode(|case| {
        let before = descriptors();
        let runtime = two_shards(case);
        runtime.block_on(async {
            for shard in 0..2 {
                let started = roundel::spawn_on(shard, || async {
                    let peers = Peers::new();
                    let pending = Arc::new(AtomicUsize::new(0));
                    peers.start(100, &pending);
                    std::mem::forget(pending);
                    // The peers live as long as a task of this shard.
                    drop(roundel::spawn(async move {
                        std::future::pending::<()>().await;
                        drop(peers);
                    }));
                });
                started.await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        });
        let begun = Instant::now();
        case.end(runtime);
        assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
        assert_eq!(descriptors(), before);
    });
}

fn two_shards(case: &Case) -> Runtime {
    let cores = roundel::Cores::Count(2);
    case.builder().cores(cores).build().unwrap()
}

fn drop_quickly(runtime: Runtime) {
    let begun = Instant::now();
    drop(runtime);
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
}

type Operation = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// The other sides of operations that never end by themselves.
struct Peers {
    dir: TempDir,
    silent: OwnedFd,
    _silent_writer: OwnedFd,
    full: OwnedFd,
    _full_reader: OwnedFd,
    quiet: StdStream,
    _quiet_peer: StdStream,
    stuffed: StdStream,
    _stuffed_peer: StdStream,
    listener: StdListener,
    stuck: (SocketAddr, socket2::Socket, Vec<StdStream>),
}

impl Peers {
    fn new() -> Rc<Self> {
        let dir = TempDir::new();
        dir.fifo("fifo");
        dir.file("data", &[1; 100_000]);
        let (silent, silent_writer) = io::pipe().unwrap();
        let (full_reader, mut full) = io::pipe().unwrap();
        full.write_all(&[0; 65_536]).unwrap();
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let connected = || {
            let client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let (quiet, quiet_peer) = connected();
        let (stuffed, stuffed_peer) = connected();
        stuffed.set_nonblocking(true).unwrap();
        // Ends: nobody reads from the other side.
        while (&stuffed).write(&[0; 65_536]).is_ok() {}
        Rc::new(Peers {
            dir,
            silent: silent.into(),
            _silent_writer: silent_writer.into(),
            full: full.into(),
            _full_reader: full_reader.into(),
            quiet,
            _quiet_peer: quiet_peer,
            stuffed,
            _stuffed_peer: stuffed_peer,
            listener,
            stuck: stuck(),
        })
    }

    /// Spawns so many tasks that each wait for an operation, and counts those that live.
    fn start(self: &Rc<Self>, count: usize, pending: &Arc<AtomicUsize>) {
        struct Pending(Arc<AtomicUsize>);
        impl Drop for Pending {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        for number in 0..count {
            let operation = self.operation(number);
            pending.fetch_add(1, Ordering::Relaxed);
            let pending = Pending(pending.clone());
            drop(roundel::spawn(async move {
                operation.await;
                std::future::pending::<()>().await;
                drop(pending);
            }));
        }
    }

    /// An operation of the kind with this number, which repeat.
    fn operation(&self, number: usize) -> Operation {
        let buf = GuardBuf::with_capacity(100);
        let text = GuardBuf::from_slice(&[1; 100]);
        let pipe = || File::from(self.silent.try_clone().unwrap());
        let local = || TcpListener::from_std(self.listener.try_clone().unwrap()).unwrap();
        match number % 12 {
            0 => waiting(pipe(), async move |file| drop(file.read_at(buf, 0).await)),
            1 => waiting(pipe(), async move |file| {
                drop(file.reader().read(buf).await)
            }),
            2 => waiting(
                File::from(self.full.try_clone().unwrap()),
                async move |file| drop(file.write_at(text, 0).await),
            ),
            3 => waiting(stream(&self.quiet), async move |stream| {
                drop(stream.read(buf).await)
            }),
            4 => waiting(stream(&self.stuffed), async move |stream| {
                drop(stream.write_all(text).await)
            }),
            5 => waiting(local(), async |listener| drop(listener.accept().await)),
            6 => waiting(local(), async |listener| {
                drop(listener.incoming().next().await)
            }),
            7 => waiting(self.stuck.0, async |address| {
                drop(TcpStream::connect(address).await)
            }),
            // Only a few: each takes a thread of the kernel's.
            8 if number < 24 => waiting(self.dir.join("fifo"), async |path| {
                drop(File::open(path).await)
            }),
            8 | 9 => waiting(self.dir.join("data"), async |path| {
                let file = File::open(path).await.unwrap();
                let (result, _) = file.read_at(GuardBuf::with_capacity(50_000), 0).await;
                result.unwrap();
                drop(roundel::fs::metadata("/").await);
                drop(file.sync_all().await);
            }),
            10 => waiting((), async |()| drop(roundel::signal::ctrl_c().await)),
            _ => waiting((), async |()| sleep(Duration::from_secs(3_600)).await),
        }
    }
}

fn waiting<T: 'static, F>(on: T, run: F) -> Operation
where
    F: AsyncFnOnce(T) + 'static,
{
    Box::pin(async move { run(on).await })
}

fn stream(std: &StdStream) -> TcpStream {
    TcpStream::from_std(std.try_clone().unwrap()).unwrap()
}

/// A listener whose backlog is full, so that connects to it wait.
fn stuck() -> (SocketAddr, socket2::Socket, Vec<StdStream>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut backlog = Vec::new();
    // Ends: a backlog of 0 takes a connection or two.
    while let Ok(stream) = StdStream::connect_timeout(&address, Duration::from_millis(100)) {
        backlog.push(stream);
    }
    (address, listener, backlog)
}
