//! The echo server of the examples under clients good and bad, in each mode.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as StdStream};
use std::time::Duration;

use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel::{Cores, Handle, RingMode, SendJoinHandle};
use roundel_testing::{Case, PATIENCE, Random, cpu_time, descriptors, each_mode, scaled, settled};

const CLIENTS: usize = 500;
const LONGEST: usize = 64 * 1024;
/// As in the example.
const BUFFER: usize = 16 * 1024;

// ---- The server ----------------------------------------------------------------------------------

/// One listener and one accept loop on each shard.
struct Server {
    address: SocketAddr,
    loops: Vec<SendJoinHandle<()>>,
}

impl Server {
    async fn start() -> Self {
        let first = TcpListener::bind_reuseport("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        let mut loops = Vec::new();
        for shard in 0..Handle::current().shards() {
            let (bound, is_bound) = futures::channel::oneshot::channel();
            loops.push(roundel::spawn_on(shard, move || async move {
                let listener = TcpListener::bind_reuseport(address).await.unwrap();
                bound.send(()).unwrap();
                serve(listener).await;
            }));
            is_bound.await.unwrap();
        }
        // It has found the port, and shall get none of the clients.
        first.close().await.unwrap();
        Server { address, loops }
    }

    /// Accepts no more; connections go on.
    async fn stop(self) {
        for serving in self.loops {
            serving.abort();
            assert!(serving.await.unwrap_err().is_cancelled());
        }
    }
}

async fn serve(listener: TcpListener) {
    let mut incoming = listener.incoming();
    while let Some(accepted) = incoming.next().await {
        let stream = accepted.unwrap();
        drop(roundel::spawn(async move {
            // A client that vanishes is no concern of the others.
            let _ = echo(&stream).await;
        }));
    }
}

async fn echo(stream: &TcpStream) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER);
    // Ends when the client has no more to send, or with an error.
    loop {
        let (result, received) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        let (result, sent) = stream.write_all(received).await;
        result?;
        buffer = sent;
    }
}

// ---- The clients ---------------------------------------------------------------------------------

fn connect(address: SocketAddr) -> StdStream {
    let stream = StdStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends random messages, and demands each back, byte for byte.
fn converse(address: SocketAddr, messages: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut stream = connect(address);
    let mut answer = Vec::new();
    for _ in 0..messages {
        let message: Vec<u8> = {
            let key = random.next_u64();
            let len = 1 + random.below(LONGEST);
            (0..len as u64)
                .map(|place| (place.wrapping_mul(key) >> 32) as u8)
                .collect()
        };
        stream.write_all(&message).unwrap();
        answer.resize(message.len(), 0);
        stream.read_exact(&mut answer).unwrap();
        assert!(
            answer == message,
            "{} bytes came back changed",
            message.len()
        );
    }
}

/// Runs so many clients at once on threads of their own, and waits for them beside the
/// runtime.
async fn run_clients(count: usize, client: impl Fn(u64) + Send + Clone + 'static) {
    let all = roundel::spawn_blocking(move || {
        let threads: Vec<_> = (0..count as u64)
            .map(|number| {
                let client = client.clone();
                std::thread::Builder::new()
                    .stack_size(128 * 1024)
                    .spawn(move || client(number))
                    .unwrap()
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("a client is content"));
    });
    all.await.unwrap();
}

// ---- Tests ---------------------------------------------------------------------------------------

/// Five hundred clients at once get back exactly what they sent, from all shards together,
/// and no descriptor is left.
#[test]
fn five_hundred_clients_get_their_bytes_back() {
    each_mode(|case| {
        let (messages, seed) = (scaled(200), case.seed());
        let cores = Cores::Count(2);
        case.run_on(case.builder().cores(cores), async move {
            let before = descriptors();
            let server = Server::start().await;
            let address = server.address;
            run_clients(CLIENTS, move |number| {
                converse(address, messages, seed ^ (number << 20));
            })
            .await;
            server.stop().await;
            settled(before).await;
        });
    });
}

/// Clients that half-close, vanish in the middle of a message, send byte by byte, or never
/// read cost the others nothing: those are served beside them as ever, no CPU is burnt for
/// them, and no descriptor is left.
#[test]
fn misbehaving_clients_cost_the_others_nothing() {
    const BAD: usize = 20;
    each_mode(|case| {
        let seed = case.seed();
        case.run(async move {
            let before = descriptors();
            let server = Server::start().await;
            let address = server.address;
            let deaf: Vec<StdStream> = (0..BAD).map(|_| never_read(address)).collect();
            let silent: Vec<StdStream> = (0..BAD).map(|_| connect(address)).collect();
            // Those that do not read fill all buffers; then nobody works for them.
            quiet().await;
            let (window, burnt) = (Duration::from_millis(500), cpu_time());
            sleep(window).await;
            let burnt = cpu_time() - burnt;
            assert!(burnt < window / 4, "{burnt:?} of CPU in {window:?}");

            let bad = roundel::spawn_any(move || {
                run_clients(4 * BAD, move |number| match number % 4 {
                    0 => half_close(address),
                    1 => vanish(address, false),
                    2 => vanish(address, true),
                    _ => send_byte_by_byte(address),
                })
            });
            let good = run_clients(50, move |number| converse(address, 4, seed ^ number));
            let served = timeout(PATIENCE, good).await;
            served.expect("the others are served");
            bad.await.unwrap();
            drop((deaf, silent));
            server.stop().await;
            settled(before).await;
        });
    });
}

/// Waits until nothing has completed for a while.
async fn quiet() {
    let completed = || Handle::current().metrics()[0].ring.completed;
    let mut before = completed();
    // Ends: all buffers are finite.
    loop {
        sleep(Duration::from_millis(200)).await;
        let now = completed();
        if now == before {
            return;
        }
        before = now;
    }
}

/// Sends until nothing more fits, and never reads.
fn never_read(address: SocketAddr) -> StdStream {
    let stream = connect(address);
    stream
        .set_write_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    // Ends: the server stops reading when its answers are not taken.
    while (&stream).write(&[b'.'; LONGEST]).is_ok() {}
    stream
}

fn half_close(address: SocketAddr) {
    let mut stream = connect(address);
    stream.write_all(&[b'h'; LONGEST]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), LONGEST);
}

/// Goes away with answers on their way, by a reset if so wanted.
fn vanish(address: SocketAddr, reset: bool) {
    let mut stream = connect(address);
    let sent = stream.write_all(&[b'v'; LONGEST]);
    assert!(sent.is_ok(), "{sent:?}");
    if reset {
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
}

fn send_byte_by_byte(address: SocketAddr) {
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    for byte in 0..20 {
        stream.write_all(&[byte]).unwrap();
        let mut answer = [!byte];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [byte]);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Echoing costs one call of the kernel in each turn of the loop and no other, and with many
/// connections less than one call for each operation: counted while the loop is busy.
#[test]
fn a_turn_of_the_loop_enters_the_kernel_once() {
    const CONNECTIONS: usize = 128;
    each_mode(|case| {
        case.run(async move {
            let server = Server::start().await;
            let address = server.address;
            let rounds = scaled(20_000);
            let (warm, is_warm) = futures::channel::oneshot::channel();
            let (done, is_done) = futures::channel::oneshot::channel();
            let (go, goes) = std::sync::mpsc::channel::<()>();
            let clients = std::thread::spawn(move || {
                let mut streams: Vec<StdStream> =
                    (0..CONNECTIONS).map(|_| connect(address)).collect();
                (0..5).for_each(|_| ping_all(&mut streams));
                warm.send(()).unwrap();
                goes.recv().unwrap();
                (0..rounds / 4).for_each(|_| ping_all(&mut streams));
                done.send(()).unwrap();
                goes.recv().unwrap();
            });
            is_warm.await.unwrap();
            // Counted from one poll of this future to another, so in whole turns.
            let before = Handle::current().metrics()[0];
            go.send(()).unwrap();
            is_done.await.unwrap();
            let after = Handle::current().metrics()[0];
            go.send(()).unwrap();
            clients.join().unwrap();
            server.stop().await;

            let turns = after.tasks.turns - before.tasks.turns;
            let enters = after.ring.enters - before.ring.enters;
            let operations = after.ring.completed - before.ring.completed;
            assert!(turns > 50, "{turns} turns");
            match case.mode() {
                // A turn for a thread that called us, with nothing to hand over, needs none.
                RingMode::Defer => assert!(
                    enters <= turns && enters + 4 >= turns,
                    "{enters} enters in {turns} turns"
                ),
                // The poller takes what is submitted, so that most turns need no call.
                _ => assert!(enters <= turns, "{enters} enters in {turns} turns"),
            }
            // A receive and a send for each ping.
            let pings = (rounds / 4 * CONNECTIONS) as u64;
            assert!(operations >= 2 * pings, "{operations} operations");
            assert!(
                enters < operations,
                "{enters} enters, {operations} operations"
            );
        });
    });
}

fn ping_all(streams: &mut [StdStream]) {
    for stream in &mut *streams {
        stream.write_all(b"0123456789").unwrap();
    }
    for stream in &mut *streams {
        stream.read_exact(&mut [0; 10]).unwrap();
    }
}

/// A server that ends takes its connections along: clients in the middle of a conversation
/// read the end or a reset, soon, and no descriptor is left.
#[test]
fn a_server_that_ends_takes_its_connections_along() {
    each_mode(|case: &Case| {
        let before = descriptors();
        let runtime = case.builder().build().unwrap();
        let clients = runtime.block_on(async {
            let server = Server::start().await;
            let address = server.address;
            let clients = roundel::spawn_blocking(move || {
                let mut clients: Vec<StdStream> = (0..100).map(|_| connect(address)).collect();
                ping_all(&mut clients);
                clients
            });
            clients.await.unwrap()
        });
        case.end(runtime);
        for mut client in clients {
            match client.read(&mut [0]) {
                Ok(0) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                other => panic!("instead of the end came {other:?}"),
            }
        }
        assert_eq!(descriptors(), before);
    });
}
