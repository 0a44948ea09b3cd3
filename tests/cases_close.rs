//! Closing, numbers used again, and accepting at the limit (H22 to H25).

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel::yield_now;
use roundel_testing::{
    Lowered, PATIENCE, TempDir, cpu_time, descriptors, each_mode, eventually, open_descriptors,
    settled,
};

/// A close waits for the operations on its descriptor: a read of a pipe has ended before
/// the number can mean another file, and what is written to the pipe then never shows up
/// there.
#[test]
fn h22_a_close_does_not_overtake_a_read() {
    each_mode(|case| {
        let dir = TempDir::new();
        case.run(async move {
            for turns in 0..20 {
                let (reader, mut writer) = io::pipe().unwrap();
                let pipe = File::from(OwnedFd::from(reader));
                let number = pipe.as_raw_fd();
                let ended = Rc::new(Cell::new(false));
                let read = roundel::spawn({
                    let (pipe, ended) = (pipe.clone(), ended.clone());
                    async move {
                        let (result, _) = pipe.read_at(Vec::with_capacity(100), 0).await;
                        ended.set(true);
                        result
                    }
                });
                for _ in 0..turns % 4 {
                    yield_now().await;
                }
                let closed = timeout(PATIENCE, pipe.close()).await;
                closed.expect("the close ends").unwrap();
                // New files, until the number comes back.
                let mut files = Vec::new();
                // Ends: the lowest free number is given out first.
                loop {
                    let path = dir.join(&files.len().to_string());
                    let file = std::fs::File::create_new(path).unwrap();
                    files.push(file);
                    if files.last().unwrap().as_raw_fd() == number {
                        break;
                    }
                    assert!(files.len() < 1_000, "{number} never came back");
                }
                assert!(ended.get(), "the number was free before the read had ended");
                assert!(writer.write_all(b"for the pipe").is_err());
                assert!(
                    read.await.unwrap().is_err(),
                    "a cancelled read has no bytes"
                );
                yield_now().await;
                for (place, file) in files.iter().enumerate() {
                    assert_eq!(file.metadata().unwrap().len(), 0);
                    std::fs::remove_file(dir.join(&place.to_string())).unwrap();
                }
            }
        });
    });
}

/// A handle that is dropped while others read keeps the descriptor, and the last one
/// closes it when the read is over.
#[test]
fn h22_a_drop_leaves_the_reads_of_others_alone() {
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            let (reader, mut writer) = io::pipe().unwrap();
            let pipe = File::from(OwnedFd::from(reader));
            let other = pipe.clone();
            let read = roundel::spawn(async move {
                let (result, bytes) = other.read_at(Vec::with_capacity(100), 0).await;
                result.map(|_| bytes)
            });
            yield_now().await;
            drop(pipe);
            sleep(Duration::from_millis(5)).await;
            writer.write_all(b"still here").unwrap();
            assert_eq!(read.await.unwrap().unwrap(), b"still here");
            drop(writer);
            settled(outside).await;
        });
    });
}

/// A socket is closed although a receive waits on it: the peer reads the end, and so does
/// whoever waits.
#[test]
fn h23_a_close_under_a_pending_receive_is_seen_by_the_peer() {
    each_mode(|case| {
        case.run(async {
            let (stream, mut peer) = pair().await;
            let stream = Rc::new(stream);
            let read = roundel::spawn({
                let stream = stream.clone();
                async move { stream.read(Vec::with_capacity(10)).await.0 }
            });
            yield_now().await;
            yield_now().await;
            let closed = timeout(PATIENCE, stream.close()).await;
            closed.expect("the close ends").unwrap();
            expect_end(&mut peer);
            let read = timeout(PATIENCE, read).await.expect("the read ends");
            assert!(read.unwrap().is_err());
            let error = stream.read(Vec::with_capacity(10)).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        });
    });
}

/// A socket is dropped although a receive waits on it, in each way there is: the task that
/// reads is aborted; an abandoned read had stayed with the stream; the writing half goes
/// while the reading half waits.
#[test]
fn h23_a_drop_with_a_pending_receive_is_seen_by_the_peer() {
    each_mode(|case| {
        case.run(async {
            let outside = descriptors();
            let (stream, mut peer) = pair().await;
            let read = roundel::spawn(async move { stream.read(Vec::with_capacity(10)).await.0 });
            sleep(Duration::from_millis(1)).await;
            read.abort();
            assert!(read.await.unwrap_err().is_cancelled());
            until_end(&peer).await;
            expect_end(&mut peer);
            drop(peer);

            let (stream, mut peer) = pair().await;
            let abandoned = timeout(
                Duration::from_millis(1),
                stream.read(Vec::with_capacity(10)),
            );
            assert!(abandoned.await.is_err());
            drop(stream);
            until_end(&peer).await;
            expect_end(&mut peer);
            drop(peer);

            let (stream, mut peer) = pair().await;
            let (reader, writer) = stream.into_split();
            let read = roundel::spawn(async move {
                let (result, bytes) = reader.read(Vec::with_capacity(10)).await;
                result.map(|_| bytes)
            });
            sleep(Duration::from_millis(1)).await;
            drop(writer);
            expect_end(&mut peer);
            peer.write_all(b"and yet").unwrap();
            assert_eq!(read.await.unwrap().unwrap(), b"and yet");
            drop(peer);
            settled(outside).await;
        });
    });
}

/// Turns the loop until the peer has something to read: its end, or bytes.
async fn until_end(peer: &StdStream) {
    peer.set_nonblocking(true).unwrap();
    eventually(
        "the end",
        || !matches!(peer.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock),
    )
    .await;
    peer.set_nonblocking(false).unwrap();
}

fn expect_end(peer: &mut StdStream) {
    peer.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    match peer.read(&mut [0; 10]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("instead of the end came {other:?}"),
    }
}

async fn pair() -> (TcpStream, StdStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().await.unwrap().0, peer)
}

// ---- H24 -----------------------------------------------------------------------------------------

const CLIENTS: usize = 200;

/// At the limit of descriptors accept says so and then waits: the usual loop around it
/// burns no core, other tasks go on, and when descriptors are back every client is served.
#[test]
fn h24_accept_at_the_descriptor_limit_backs_off() {
    each_mode(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let served = Served::default();
            let serving = {
                let (served, listener) = (served.clone(), listener_of(&listener));
                async move {
                    loop {
                        match listener.accept().await {
                            Ok((stream, _)) => served.take(stream).await,
                            Err(error) => served.fail(&error),
                        }
                    }
                }
            };
            at_the_limit(listener, served, serving).await;
        });
    });
}

/// The same with a multishot accept.
#[test]
fn h24_incoming_at_the_descriptor_limit_backs_off() {
    each_mode(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let served = Served::default();
            let serving = {
                let (served, listener) = (served.clone(), listener_of(&listener));
                async move {
                    let mut incoming = listener.incoming();
                    loop {
                        match incoming.next().await.unwrap() {
                            Ok(stream) => served.take(stream).await,
                            Err(error) => served.fail(&error),
                        }
                    }
                }
            };
            at_the_limit(listener, served, serving).await;
        });
    });
}

/// The same socket again, with arrivals of its own.
fn listener_of(listener: &TcpListener) -> TcpListener {
    use std::os::fd::AsFd;
    let socket = listener.as_fd().try_clone_to_owned().unwrap();
    TcpListener::from_std(StdListener::from(socket)).unwrap()
}

async fn at_the_limit(
    listener: TcpListener,
    served: Served,
    serving: impl Future<Output = ()> + 'static,
) {
    let address = listener.local_addr().unwrap();
    drop(listener);
    let clients: Vec<StdStream> = (0..CLIENTS)
        .map(|_| StdStream::connect(address).unwrap())
        .collect();
    let limit = Lowered::descriptors(descriptors() + 64);
    let ticks = Rc::new(Cell::new(0));
    let ticking = roundel::spawn({
        let ticks = ticks.clone();
        async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                ticks.set(ticks.get() + 1);
            }
        }
    });
    let serving = roundel::spawn(serving);
    eventually("an error of accept", || served.errors.get() > 0).await;
    assert!(served.streams.borrow().len() < CLIENTS);

    let (errors, before, ticked) = (served.errors.get(), cpu_time(), ticks.get());
    let window = Duration::from_secs(1);
    sleep(window).await;
    let (burnt, errors) = (cpu_time() - before, served.errors.get() - errors);
    assert!(burnt < window / 4, "{burnt:?} of CPU in {window:?}");
    assert!(errors < 50, "{errors} errors in a second");
    assert!(ticks.get() - ticked > 10, "other tasks do not go on");

    drop(limit);
    eventually("every client", || served.streams.borrow().len() == CLIENTS).await;
    for mut client in clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    for task in [serving, ticking] {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}

#[derive(Clone, Default)]
struct Served {
    streams: Rc<RefCell<Vec<TcpStream>>>,
    errors: Rc<Cell<usize>>,
}

impl Served {
    async fn take(&self, stream: TcpStream) {
        stream.write_all("!").await.0.unwrap();
        self.streams.borrow_mut().push(stream);
    }

    fn fail(&self, error: &io::Error) {
        // EMFILE, which has no kind.
        assert_eq!(error.raw_os_error(), Some(24), "{error}");
        self.errors.set(self.errors.get() + 1);
    }
}

// ---- H25 -----------------------------------------------------------------------------------------

/// No descriptor that the runtime makes is inherited: each has close-on-exec, and the peer
/// of a closed connection reads the end although a child lives.
#[test]
fn h25_children_inherit_nothing() {
    each_mode(|case| {
        let dir = TempDir::new();
        let before = open_descriptors();
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let shared = TcpListener::bind_reuseport("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let client = TcpStream::connect(address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let second = TcpStream::connect(address).await.unwrap();
            let incoming = listener.incoming().next().await.unwrap().unwrap();
            let created = File::create(dir.join("new")).await.unwrap();
            let opened = File::open(dir.join("new")).await.unwrap();
            let signal = roundel::signal::terminate();
            let ours: Vec<i32> = open_descriptors()
                .into_iter()
                .filter(|fd| !before.contains(fd))
                .collect();
            // The ring, the doorbell, the signal's pair, and what was made above.
            assert!(ours.len() >= 12, "{ours:?}");
            for fd in ours {
                assert!(is_close_on_exec(fd), "{fd}: {:?}", target_of(fd));
            }

            // It ends when its input does, at the latest with this process.
            let mut child = Command::new("cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            server.close().await.unwrap();
            let read = timeout(PATIENCE, client.read(Vec::with_capacity(1))).await;
            assert_eq!(read.expect("the end is seen").0.unwrap(), 0);
            assert!(child.try_wait().unwrap().is_none(), "the child lives");
            drop(child.stdin.take());
            child.wait().unwrap();
            drop((shared, second, incoming, created, opened, signal));
        });
    });
}

fn is_close_on_exec(fd: i32) -> bool {
    const O_CLOEXEC: u32 = 0o2_000_000;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let flags = info
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .expect("every descriptor has flags");
    u32::from_str_radix(flags.trim(), 8).unwrap() & O_CLOEXEC != 0
}

fn target_of(fd: i32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()
}
