//! No operation allocates in the steady state, on the whole runtime.

use std::future::Future;
use std::io;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::join;
use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::time::timeout;
use roundel::yield_now;
use roundel_testing::{CountingAllocator, TempDir, allocations, each_mode, scaled, traced};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

/// How often each operation runs when its allocations are counted.
fn rounds() -> usize {
    scaled(10_000).max(1_000)
}

/// The counter counts, or the tests below would say nothing.
#[test]
fn the_counter_sees_allocations() {
    let before = allocations();
    let grown = {
        let mut list = std::hint::black_box(vec![1_u8]);
        list.extend_from_slice(&[2; 1_000]);
        list
    };
    assert_eq!(allocations() - before, 2);
    drop(grown);
}

/// Reads, writes, opens and metadata of files allocate nothing once they are warm.
#[test]
fn operations_of_files_allocate_nothing() {
    each_mode(|case| {
        let dir = TempDir::new();
        let path = dir.file("data", &[1; 8_192]);
        case.run(async move {
            let file = File::options().read(true).write(true).open(&path).await;
            let file = file.unwrap();
            let mut buf = Some(Vec::with_capacity(4_096));
            steady("read_at", async || {
                let (result, read) = file.read_at(buf.take().unwrap(), 0).await;
                assert_eq!(result.unwrap(), 4_096);
                buf = Some(read);
            })
            .await;
            steady("write_at", async || {
                let (result, written) = file.write_at(buf.take().unwrap(), 4_096).await;
                assert_eq!(result.unwrap(), 4_096);
                buf = Some(written);
            })
            .await;
            let reader = file.reader();
            steady("reader's read", async || {
                let (result, read) = reader.read(buf.take().unwrap()).await;
                result.unwrap();
                buf = Some(read);
            })
            .await;
            steady("open", async || {
                drop(File::open(&path).await.unwrap());
            })
            .await;
            steady("open and close", async || {
                File::open(&path).await.unwrap().close().await.unwrap();
            })
            .await;
            steady("metadata", async || {
                assert_eq!(file.metadata().await.unwrap().len(), 8_192);
            })
            .await;
            steady("metadata of a path", async || {
                assert_eq!(roundel::fs::metadata(&path).await.unwrap().len(), 8_192);
            })
            .await;
            steady("sync_data", async || file.sync_data().await.unwrap()).await;
        });
    });
}

/// So do those of connections: connect, accept in both ways, send, receive.
#[test]
fn operations_of_sockets_allocate_nothing() {
    each_mode(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            steady("connect and accept", async || {
                let (client, server) = join!(TcpStream::connect(address), listener.accept());
                end(client.unwrap(), server.unwrap().0);
            })
            .await;
            let mut incoming = listener.incoming();
            steady("incoming", async || {
                let (client, server) = join!(TcpStream::connect(address), incoming.next());
                end(client.unwrap(), server.unwrap().unwrap());
            })
            .await;
            drop(incoming);
            let (client, server) = join!(TcpStream::connect(address), listener.accept());
            let (client, (server, _)) = (client.unwrap(), server.unwrap());
            let mut buf = Some(Vec::with_capacity(64));
            steady("send and recv", async || {
                client.write("0123456789").await.0.unwrap();
                let (result, read) = server.read(buf.take().unwrap()).await;
                assert_eq!(result.unwrap(), 10);
                let (result, written) = server.write_all(read).await;
                result.unwrap();
                let (result, read) = client.read(written).await;
                assert_eq!(result.unwrap(), 10);
                buf = Some(read);
            })
            .await;
        });
    });
}

/// So do timeouts, those that come and those that do not, and operations that are dropped:
/// only the buffer of a dropped read is gone.
#[test]
fn timeouts_and_dropped_operations_allocate_nothing() {
    each_mode(|case| {
        case.run(async {
            let (reader, writer) = io::pipe().unwrap();
            let pipe = File::from(OwnedFd::from(reader));
            steady("a timeout that comes", async || {
                let never = std::future::pending::<()>();
                assert!(timeout(Duration::from_micros(1), never).await.is_err());
            })
            .await;
            steady("a timeout that does not", async || {
                let at_once = yield_now();
                assert!(timeout(Duration::from_secs(60), at_once).await.is_ok());
            })
            .await;
            // What is lent and lost is made before.
            let mut lost = stock();
            steady("a read dropped before it was submitted", async || {
                let read = pipe.read_at(lost.pop().unwrap(), 0);
                assert!(poll_once(pin!(read)).is_pending());
            })
            .await;
            let mut lost = stock();
            steady("a read dropped in flight", async || {
                {
                    let mut read = pin!(pipe.read_at(lost.pop().unwrap(), 0));
                    assert!(poll_once(read.as_mut()).is_pending());
                    yield_now().await;
                }
                kernel_has_caught_up().await;
            })
            .await;
            let mut lost = stock();
            steady("a read that times out", async || {
                let read = pipe.read_at(lost.pop().unwrap(), 0);
                let read = timeout(Duration::from_micros(10), read).await;
                assert!(read.is_err());
                kernel_has_caught_up().await;
            })
            .await;
            drop(writer);

            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = TcpStream::from_std(listener.accept().unwrap().0).unwrap();
            let (mut lost, mut buf) = (stock(), Some(Vec::with_capacity(8)));
            steady("a receive whose read is dropped", async || {
                let read = stream.read(lost.pop().unwrap());
                assert!(poll_once(pin!(read)).is_pending());
                yield_now().await;
                io::Write::write_all(&mut &peer, b"x").unwrap();
                let (result, read) = stream.read(buf.take().unwrap()).await;
                assert_eq!(result.unwrap(), 1);
                buf = Some(read);
            })
            .await;
            let accepting = TcpListener::from_std(listener).unwrap();
            steady("an accept that is dropped", async || {
                assert!(poll_once(pin!(accepting.accept())).is_pending());
                yield_now().await;
            })
            .await;
        });
    });
}

/// A poller of the kernel's may be turns behind, and what waits for it is in memory. An
/// operation behind all others says that it is not.
async fn kernel_has_caught_up() {
    for _ in 0..2 {
        roundel_reactor::current::submit(roundel_reactor::ops::Nop)
            .await
            .unwrap();
    }
}

/// Buffers for as many rounds as there are.
fn stock() -> Vec<Vec<u8>> {
    (0..WARM + rounds())
        .map(|_| Vec::with_capacity(8))
        .collect()
}

/// Rounds until caches have what they keep. Enough for what is only freed a turn later.
const WARM: usize = 200;

/// Runs something again and again, and demands that it allocates nothing once it is warm.
/// The whole loop of the shard runs in between.
async fn steady(what: &str, mut round: impl AsyncFnMut()) {
    for _ in 0..WARM {
        round().await;
    }
    // Asked for before, since looking at the environment allocates.
    let count = rounds();
    let before = allocations();
    {
        let mut rounds = pin!(async {
            for _ in 0..count {
                round().await;
            }
        });
        // Where a poll allocates first is printed; what the loop does in between is only
        // counted.
        std::future::poll_fn(|cx| match allocations() == before {
            true => traced(|| rounds.as_mut().poll(cx)),
            false => rounds.as_mut().poll(cx),
        })
        .await;
    }
    let counted = allocations() - before;
    assert_eq!(counted, 0, "{what} allocates: {counted} in {count}");
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Ends a connection without leaving a port that waits.
fn end(client: TcpStream, server: TcpStream) {
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop((client, server));
}
