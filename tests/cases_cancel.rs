//! Operations that nobody waits for any more (H03 to H06; P1, P2, P3).

use std::cell::Cell;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{OwnedFd, RawFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use futures::future::{Either, LocalBoxFuture, join_all, select};
use futures::poll;
use roundel::fs::{File, Reader};
use roundel::net::{Incoming, TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel::yield_now;
use roundel_testing::{
    GuardBuf, PATIENCE, Random, TempDir, close_forgotten, descriptors, each_mode, eventually,
    open_descriptors, scaled, settled,
};

/// A dropped open leaves no descriptor, wherever it was dropped.
#[test]
fn h03_a_cancelled_open_leaks_no_descriptor() {
    each_mode(|case| {
        let mut random = Random::new(case.seed());
        case.run(async move {
            let before = descriptors();
            for _ in 0..scaled(1_000).max(300) {
                let mut open = Box::pin(File::open("/etc/hostname"));
                assert!(poll!(open.as_mut()).is_pending());
                for _ in 0..random.below(4) {
                    yield_now().await;
                }
                drop(open);
            }
            settled(before).await;
        });
    });
}

/// An open that was forgotten has a descriptor that nobody can know of: the end of the
/// runtime closes it, whether or not the open was over by then.
#[test]
fn h03_a_forgotten_open_is_closed_at_the_end() {
    each_mode(|case| {
        let before = open_descriptors();
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            for round in 0..50 {
                let mut open = Box::pin(File::open("/etc/hostname"));
                assert!(poll!(open.as_mut()).is_pending());
                std::mem::forget(open);
                if round % 2 == 0 {
                    yield_now().await;
                }
            }
            eventually("an open that is over", || descriptors() > before.len() + 10).await;
        });
        case.end_with_forgotten(runtime);
        let left: Vec<RawFd> = open_descriptors()
            .into_iter()
            .filter(|fd| !before.contains(fd))
            .collect();
        // The futures hold the reactor, and with it what other threads would wake it by.
        assert!(left.len() <= 1, "{left:?}");
        close_forgotten(&left);
    });
}

/// The bytes a receive had taken when its read was dropped come with the next read: a
/// counted stream is read through timeouts that are shorter than its pauses.
#[test]
fn h04_reads_that_time_out_lose_no_byte() {
    each_mode(|case| {
        let total = scaled(20 << 20);
        let (client, writer) = connected();
        let (read_was_dropped, waits) = channel();
        let feeding = feed(writer, total, waits, case.seed());
        let mut random = Random::new(case.seed());
        case.run(async move {
            let stream = TcpStream::from_std(client).unwrap();
            let (mut count, mut timeouts) = (0, 0);
            // Ends: with the stream, which the other thread closes.
            loop {
                let buf = GuardBuf::with_capacity(1 + random.below(3000));
                match timeout(Duration::from_micros(50), stream.read(buf)).await {
                    Err(_) => {
                        timeouts += 1;
                        let _ = read_was_dropped.send(());
                    }
                    Ok((result, bytes)) => {
                        if result.unwrap() == 0 {
                            break;
                        }
                        count = check_counted(count, &bytes);
                    }
                }
            }
            assert_eq!(count, total);
            assert!(timeouts > 20, "only {timeouts} reads were dropped");
        });
        feeding.join().unwrap();
    });
}

/// The same for a file's reader on a pipe, which consumes, too.
#[test]
fn h04_a_readers_dropped_reads_lose_no_byte() {
    each_mode(|case| {
        let total = scaled(10 << 20);
        let (reader, writer) = io::pipe().unwrap();
        let (read_was_dropped, waits) = channel();
        let feeding = feed(writer, total, waits, case.seed());
        let mut random = Random::new(case.seed());
        case.run(async move {
            let reader = File::from(OwnedFd::from(reader)).reader();
            let (mut count, mut dropped) = (0, 0);
            // Ends: with the pipe, which the other thread closes.
            loop {
                let buf = GuardBuf::with_capacity(1 + random.below(3000));
                match select(pin!(reader.read(buf)), pin!(yield_now())).await {
                    Either::Right(_) => {
                        dropped += 1;
                        let _ = read_was_dropped.send(());
                    }
                    Either::Left(((result, bytes), _)) => {
                        if result.unwrap() == 0 {
                            break;
                        }
                        count = check_counted(count, &bytes);
                    }
                }
            }
            assert_eq!(count, total);
            assert_eq!(reader.position(), total as u64);
            assert!(dropped > 20, "only {dropped} reads were dropped");
        });
        feeding.join().unwrap();
    });
}

/// A cancel may wait for room in the queue and is never lost: 3,000 silent sockets on one
/// shard all time out.
#[test]
fn h05_three_thousand_reads_time_out_at_once() {
    each_mode(|case| {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let pairs: Vec<(StdStream, StdStream)> =
            (0..3_000).map(|_| connected_through(&listener)).collect();
        case.run(async move {
            let (silent, streams): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let limit = Duration::from_millis(500);
            let reads = streams.into_iter().map(|stream| {
                roundel::spawn(async move {
                    let stream = TcpStream::from_std(stream).unwrap();
                    timeout(limit, stream.read(Vec::with_capacity(64)))
                        .await
                        .is_err()
                })
            });
            let begun = Instant::now();
            let reads: Vec<_> = reads.collect();
            for read in reads {
                assert!(read.await.unwrap(), "a silent socket was read");
            }
            assert!(begun.elapsed() >= limit);
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
            drop(silent);
        });
    });
}

/// Each result goes to its own operation: many pipes complete in an order of their own, and
/// are awaited or aborted in another.
#[test]
fn h06_results_find_their_operations_in_any_order() {
    each_mode(|case| {
        let mut random = Random::new(case.seed());
        case.run(async move {
            for pipes in [2, 64] {
                for round in 0..8 {
                    await_in_any_order(pipes, round % 2 == 1, &mut random).await;
                }
            }
        });
    });
}

async fn await_in_any_order(pipes: usize, abort_some: bool, random: &mut Random) {
    let mut writers = Vec::new();
    let mut reads = Vec::new();
    for number in 0..pipes {
        let (reader, writer) = io::pipe().unwrap();
        writers.push((number, writer));
        let file = File::from(OwnedFd::from(reader));
        let read = roundel::spawn(async move {
            let (result, bytes) = file.read_at(Vec::with_capacity(8), 0).await;
            result.map(|_| bytes)
        });
        reads.push((number, read));
    }
    yield_now().await;
    random.shuffle(&mut writers);
    random.shuffle(&mut reads);
    if pipes == 2 {
        // As the case has it: the second completes first, and the first is awaited first.
        writers.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        reads.sort_by_key(|(number, _)| *number);
    }
    let aborted: Vec<bool> = reads
        .iter()
        .map(|_| abort_some && random.below(2) == 0)
        .collect();
    for (number, mut writer) in writers {
        writer.write_all(&[number as u8; 3]).unwrap();
        if random.below(3) == 0 {
            yield_now().await;
        }
    }
    for ((number, read), aborted) in reads.into_iter().zip(aborted) {
        if aborted {
            read.abort();
        }
        match timeout(PATIENCE, read).await.expect("every await returns") {
            Ok(bytes) => assert_eq!(bytes.unwrap(), [number as u8; 3]),
            Err(error) => assert!(aborted && error.is_cancelled(), "{error}"),
        }
    }
}

// ---- P1, P2: every kind of operation, dropped or forgotten at every stage ----------------------

/// What a kind of operation needs to be started, again and again.
struct Fixture {
    dir: TempDir,
    file: File,
    /// Nobody writes to its other end.
    pipe: File,
    piped: Reader,
    /// Nobody reads from its other end, and it is full.
    full_pipe: File,
    listener: TcpListener,
    incoming_of: Rc<TcpListener>,
    quiet: TcpStream,
    full: TcpStream,
    /// Takes connections in its backlog.
    open_address: SocketAddr,
    /// Lets them wait for ever.
    stuck_address: SocketAddr,
    _peers: (
        OwnedFd,
        OwnedFd,
        StdStream,
        StdStream,
        StdListener,
        Rc<Stuck>,
    ),
}

impl Fixture {
    fn new(stuck: &Rc<Stuck>) -> Self {
        let dir = TempDir::new();
        let path = dir.file("data", &[7; 100_000]);
        dir.fifo("fifo");
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path);
        let (reader, silent) = io::pipe().unwrap();
        let (deaf, writer) = io::pipe().unwrap();
        let (quiet, quiet_peer) = connected();
        let (full, full_peer) = connected();
        fill(&full);
        let backlog = StdListener::bind("127.0.0.1:0").unwrap();
        let local = || StdListener::bind("127.0.0.1:0").unwrap();
        let pipe = File::from(OwnedFd::from(reader));
        Fixture {
            file: File::from(file.unwrap()),
            piped: pipe.reader(),
            pipe,
            full_pipe: full_pipe(writer),
            listener: TcpListener::from_std(local()).unwrap(),
            incoming_of: Rc::new(TcpListener::from_std(local()).unwrap()),
            quiet: TcpStream::from_std(quiet).unwrap(),
            full: TcpStream::from_std(full).unwrap(),
            open_address: backlog.local_addr().unwrap(),
            stuck_address: stuck.address,
            _peers: (
                silent.into(),
                deaf.into(),
                quiet_peer,
                full_peer,
                backlog,
                stuck.clone(),
            ),
            dir,
        }
    }

    /// Every kind of operation that has a future, and whether it ends by itself.
    fn kinds(&self) -> Vec<(&'static str, bool, Start<'_>)> {
        let buf = || GuardBuf::with_capacity(5_000);
        let text = || GuardBuf::from_slice(&[3; 5_000]);
        vec![
            start("read_at", true, move || self.file.read_at(buf(), 10)),
            start("read_exact_at", true, move || {
                self.file.read_exact_at(buf(), 10)
            }),
            start("write_at", true, move || self.file.write_at(text(), 10)),
            start("write_all_at", true, move || {
                self.file.write_all_at(text(), 10)
            }),
            start("sync_all", true, || self.file.sync_all()),
            start("sync_data", true, || self.file.sync_data()),
            start("metadata", true, || self.file.metadata()),
            start("metadata of a path", true, || {
                roundel::fs::metadata(self.dir.join("data"))
            }),
            start("set_len", true, || self.file.set_len(100_000)),
            start("open", true, || File::open(self.dir.join("data"))),
            start("create", true, || File::create(self.dir.join("new"))),
            start("open of a FIFO", false, || {
                File::open(self.dir.join("fifo"))
            }),
            start("whole read", true, || {
                roundel::fs::read(self.dir.join("data"))
            }),
            start("whole write", true, move || {
                roundel::fs::write(self.dir.join("whole"), text())
            }),
            start("read of a pipe", false, move || self.pipe.read_at(buf(), 0)),
            start("write of a pipe", false, move || {
                self.full_pipe.write_at(text(), 0)
            }),
            start("reader's read", false, move || self.piped.read(buf())),
            start("writer's write", true, move || {
                let writer = self.file.writer();
                async move { writer.write(text()).await }
            }),
            start("file's close", true, || {
                let file = File::from_std(std::fs::File::open("/dev/null").unwrap());
                async move { file.close().await }
            }),
            start("accept", false, || self.listener.accept()),
            start("incoming", false, || {
                let mut incoming: Incoming<'_> = self.incoming_of.incoming();
                async move { incoming.next().await }
            }),
            start("connect", true, || TcpStream::connect(self.open_address)),
            start("connect that waits", false, || {
                TcpStream::connect(self.stuck_address)
            }),
            start("recv", false, move || self.quiet.read(buf())),
            start("send", true, move || self.quiet.write(text())),
            start("send that waits", false, move || self.full.write(text())),
            start("shutdown and close", true, || {
                let stream = StdStream::connect(self.open_address).unwrap();
                let stream = TcpStream::from_std(stream).unwrap();
                async move {
                    stream.shutdown(std::net::Shutdown::Write).await?;
                    stream.close().await
                }
            }),
            start("signal", false, roundel::signal::ctrl_c),
            start("sleep", false, || sleep(Duration::from_secs(3600))),
            start("timeout of a read", false, move || {
                timeout(Duration::from_secs(3600), self.pipe.read_at(buf(), 0))
            }),
        ]
    }
}

type Start<'a> = Box<dyn Fn() -> LocalBoxFuture<'a, ()> + 'a>;

fn start<'a, F: Future + 'a>(
    name: &'static str,
    ends: bool,
    make: impl Fn() -> F + 'a,
) -> (&'static str, bool, Start<'a>) {
    let make = move || -> LocalBoxFuture<'a, ()> {
        let future = make();
        Box::pin(async move {
            drop(future.await);
        })
    };
    (name, ends, Box::new(make))
}

/// Where a future is given up.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Unpolled,
    BeforeSubmit,
    AfterSubmit,
    AfterUnreadCompletion,
}

/// Brings a future to a stage; false if it has no such stage.
async fn bring(future: &mut LocalBoxFuture<'_, ()>, stage: Stage, ends: bool) -> bool {
    if matches!(stage, Stage::Unpolled) {
        return true;
    }
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
    if polled.is_ready() {
        return false;
    }
    match stage {
        Stage::AfterSubmit => yield_now().await,
        Stage::AfterUnreadCompletion if ends => {
            eventually("a completion", || woken.0.load(Ordering::Acquire)).await;
        }
        Stage::AfterUnreadCompletion => return false,
        Stage::Unpolled | Stage::BeforeSubmit => {}
    }
    true
}

/// Says whether it was called.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

const STAGES: [Stage; 4] = [
    Stage::Unpolled,
    Stage::BeforeSubmit,
    Stage::AfterSubmit,
    Stage::AfterUnreadCompletion,
];

/// Every kind of operation is dropped at every stage of its life: the kernel meets no freed
/// buffer, and no slot and no descriptor is left.
#[test]
fn operations_of_every_kind_may_be_dropped_at_every_stage() {
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            let fixture = Fixture::new(&Rc::new(Stuck::new()));
            for (name, ends, make) in fixture.kinds() {
                for stage in STAGES {
                    for _ in 0..4 {
                        let mut future = make();
                        let reached = bring(&mut future, stage, ends).await;
                        assert!(
                            reached || !ends || name == "file's close",
                            "{name} has no stage {stage:?}"
                        );
                    }
                    yield_now().await;
                }
            }
            drop(fixture);
            settled(outside).await;
        });
    });
}

/// The same with futures that are forgotten: their buffers are never freed, so the kernel
/// may do with them what it likes, and the end of the runtime still gets everything back.
#[test]
fn operations_of_every_kind_may_be_forgotten_at_every_stage() {
    each_mode(|case| {
        let before = open_descriptors();
        let runtime = case.builder().build().unwrap();
        runtime.block_on(async {
            let stuck = Rc::new(Stuck::new());
            let kinds = Fixture::new(&stuck).kinds().len();
            // A forgotten future may have had its turn, so each has a fixture of its own.
            for (kind, stage) in (0..kinds).flat_map(|kind| STAGES.map(|stage| (kind, stage))) {
                let fixture = Fixture::new(&stuck);
                let (_name, ends, make) = &fixture.kinds()[kind];
                let mut future = make();
                let _ = bring(&mut future, stage, *ends).await;
                std::mem::forget(future);
            }
        });
        case.end_with_forgotten(runtime);
        // A forgotten operation holds its descriptor for ever, so nobody else can close it.
        let left: Vec<RawFd> = open_descriptors()
            .into_iter()
            .filter(|fd| !before.contains(fd))
            .collect();
        assert!(left.len() < 400, "{left:?}");
        close_forgotten(&left);
    });
}

/// A future that is dropped between the cancel of its operation and the cancel's
/// completion: the descriptor is closed through another handle, which cancels, and the
/// future goes before it sees that.
#[test]
fn operations_may_be_dropped_after_their_cancel_was_sent() {
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            for turns in 0..3 {
                let buf = || GuardBuf::with_capacity(100);
                let (reader, writer) = io::pipe().unwrap();
                let pipe = File::from(OwnedFd::from(reader));
                close_under(pipe.read_at(buf(), 0), pipe.close(), turns).await;
                drop(writer);

                let (one, peer) = connected();
                let stream = TcpStream::from_std(one).unwrap();
                close_under(stream.read(buf()), stream.close(), turns).await;
                drop(peer);

                let (one, peer) = connected();
                fill(&one);
                let stream = TcpStream::from_std(one).unwrap();
                let send = stream.write(GuardBuf::from_slice(&[1; 100]));
                close_under(send, stream.close(), turns).await;
                drop(peer);

                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                close_under(listener.accept(), listener.close(), turns).await;

                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let mut incoming = listener.incoming();
                close_under(incoming.next(), listener.close(), turns).await;
            }
            settled(outside).await;
        });
    });
}

async fn close_under<T>(
    waiting: impl Future<Output = T>,
    close: impl Future<Output = io::Result<()>>,
    turns: usize,
) {
    let mut waiting = Box::pin(waiting);
    let mut close = pin!(close);
    assert!(poll!(waiting.as_mut()).is_pending());
    yield_now().await;
    let closed = poll!(close.as_mut());
    for _ in 0..turns {
        yield_now().await;
    }
    drop(waiting);
    match closed {
        std::task::Poll::Ready(result) => result.unwrap(),
        std::task::Poll::Pending => {
            let closed = timeout(PATIENCE, close).await;
            closed.expect("a close ends").unwrap();
        }
    }
}

/// A million cancels that reach operations in flight, of six kinds, cost nothing in the
/// end: as many slots and descriptors as before.
#[test]
fn a_storm_of_cancels_leaves_nothing_behind() {
    const BATCH: usize = 50;
    const KINDS: usize = 6;
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            let fixture = Fixture::new(&Rc::new(Stuck::new()));
            let (quiet, _quiet_peer) = connected();
            let accepting = StdListener::bind("127.0.0.1:0").unwrap();
            let inside = descriptors();
            for _ in 0..scaled(1_000_000) / (BATCH * KINDS) {
                let buf = || GuardBuf::with_capacity(64);
                cancel_all((0..BATCH).map(|_| fixture.pipe.read_at(buf(), 0))).await;
                cancel_all((0..BATCH).map(|_| fixture.full_pipe.write_at(vec![1; 64], 0))).await;
                cancel_all((0..BATCH).map(|_| TcpStream::connect(fixture.stuck_address))).await;
                cancel_all((0..BATCH).map(|_| {
                    let stream = TcpStream::from_std(quiet.try_clone().unwrap()).unwrap();
                    async move { stream.read(buf()).await.0 }
                }))
                .await;
                cancel_all((0..BATCH).map(|_| {
                    let listener = TcpListener::from_std(accepting.try_clone().unwrap());
                    async move { listener?.accept().await }
                }))
                .await;
                cancel_all((0..BATCH).map(|_| {
                    let listener = TcpListener::from_std(accepting.try_clone().unwrap());
                    async move { listener.ok()?.incoming().next().await }
                }))
                .await;
            }
            settled(inside).await;
            drop((fixture, quiet, _quiet_peer, accepting));
            settled(outside).await;
        });
    });
}

async fn cancel_all<F: Future>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    for future in &mut futures {
        assert!(
            poll!(future.as_mut()).is_pending(),
            "it can only be cancelled"
        );
    }
    yield_now().await;
    drop(futures);
    yield_now().await;
}

// ---- P3: accepted connections --------------------------------------------------------------------

/// Connections through accepts that are dropped again and again, for another that is ready
/// sooner: every client is served.
#[test]
fn accepts_that_are_dropped_lose_no_client() {
    const THREADS: usize = 16;
    each_mode(|case| {
        let each = scaled(1_000_000) / THREADS;
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..THREADS)
            .map(|_| std::thread::spawn(move || (0..each).for_each(|_| be_served(address))))
            .collect();
        case.run(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let dropped = Rc::new(Cell::new(0));
            let mut served = 0;
            while served < each * THREADS {
                let accepted = match select(pin!(listener.accept()), pin!(yield_now())).await {
                    Either::Left((accepted, _)) => accepted.unwrap().0,
                    Either::Right(_) => {
                        dropped.set(dropped.get() + 1);
                        continue;
                    }
                };
                accepted.write_all("!").await.0.unwrap();
                served += 1;
            }
            assert!(dropped.get() > 20, "only {dropped:?} accepts were dropped");
        });
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
    });
}

/// The same with a multishot accept and with timeouts that cut off `next`.
#[test]
fn connections_that_come_between_dropped_nexts_are_kept() {
    const BURST: usize = 100;
    each_mode(|case| {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = std::thread::spawn(move || {
            for _ in 0..scaled(5_000) / BURST + 1 {
                let mut burst: Vec<StdStream> = (0..BURST)
                    .map(|_| StdStream::connect(address).unwrap())
                    .collect();
                burst.iter_mut().for_each(read_mark);
            }
        });
        case.run(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut incoming = listener.incoming();
            for _ in 0..(scaled(5_000) / BURST + 1) * BURST {
                // Ends: with a client, and the clients are counted.
                let stream = loop {
                    let limit = Duration::from_micros(20);
                    match timeout(limit, incoming.next()).await {
                        Ok(stream) => break stream.unwrap().unwrap(),
                        Err(_) => continue,
                    }
                };
                stream.write_all("!").await.0.unwrap();
            }
        });
        clients.join().unwrap();
    });
}

fn be_served(address: SocketAddr) {
    let mut stream = StdStream::connect(address).unwrap();
    read_mark(&mut stream);
}

/// Reads the server's mark, and leaves no port behind that waits.
fn read_mark(stream: &mut StdStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut mark = [0];
    stream
        .read_exact(&mut mark)
        .expect("every client is served");
    socket2::SockRef::from(&*stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

// ---- Peers -----------------------------------------------------------------------------------------

fn connected() -> (StdStream, StdStream) {
    connected_through(&StdListener::bind("127.0.0.1:0").unwrap())
}

fn connected_through(listener: &StdListener) -> (StdStream, StdStream) {
    let client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

/// Sends until nothing more fits.
fn fill(stream: &StdStream) {
    stream.set_nonblocking(true).unwrap();
    // Ends: nobody reads from the other side.
    while (&*stream).write(&[0; 65_536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
}

/// A pipe's writing end, of which nothing is read, without room.
fn full_pipe(mut writer: io::PipeWriter) -> File {
    writer.write_all(&[0; 65_536]).unwrap();
    File::from(OwnedFd::from(writer))
}

/// A listener whose backlog is full, so that connects to it wait.
struct Stuck {
    address: SocketAddr,
    _listener: socket2::Socket,
    _backlog: Vec<StdStream>,
}

impl Stuck {
    fn new() -> Self {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let listener = listener.unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut backlog = Vec::new();
        // Ends: a backlog of 0 takes a connection or two.
        while let Ok(stream) = StdStream::connect_timeout(&address, Duration::from_millis(100)) {
            backlog.push(stream);
        }
        Stuck {
            address,
            _listener: listener,
            _backlog: backlog,
        }
    }
}

/// Writes a counted stream of so many bytes on a thread, in pieces. Before every other
/// piece it waits until a read was dropped, so that there is one to be lost.
fn feed(
    mut writer: impl Write + Send + 'static,
    total: usize,
    read_was_dropped: Receiver<()>,
    seed: u64,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut random = Random::new(seed + 1);
        let mut count = 0;
        for piece in 0.. {
            if count == total {
                break;
            }
            if piece % 2 == 1 {
                while read_was_dropped.try_recv().is_ok() {}
                // It fails when the reader has failed; then so will the next write.
                let _ = read_was_dropped.recv();
                std::thread::sleep(Duration::from_micros(random.below(100) as u64));
            }
            let end = total.min(count + 1 + random.below(5_000));
            let bytes: Vec<u8> = (count..end).map(counted).collect();
            writer.write_all(&bytes).unwrap();
            count = end;
        }
    })
}

/// The byte at this place of a counted stream; the period is no power of two.
fn counted(place: usize) -> u8 {
    (place % 251) as u8
}

/// The place behind these bytes, which begin at `count`.
fn check_counted(count: usize, bytes: &impl roundel::IoBuf) -> usize {
    let expected: Vec<u8> = (count..count + bytes.bytes_init()).map(counted).collect();
    assert!(
        bytes.as_bytes() == expected,
        "the stream is torn at {count}"
    );
    count + expected.len()
}

/// Many operations at once, of which none ends: dropping them all together is no special
/// case of dropping one.
#[test]
fn a_thousand_operations_are_dropped_at_once() {
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            let fixture = Fixture::new(&Rc::new(Stuck::new()));
            let reads: Vec<_> = (0..1_000)
                .map(|_| fixture.pipe.read_at(GuardBuf::with_capacity(8), 0))
                .collect();
            let all = timeout(Duration::from_millis(50), join_all(reads)).await;
            assert!(all.is_err(), "nobody wrote to the pipe");
            drop(fixture);
            settled(outside).await;
        });
    });
}
