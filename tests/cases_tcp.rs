//! TCP: half-closing, refusals, and peers that are gone (H29 to H31).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::time::Duration;

use roundel::net::{TcpListener, TcpStream};
use roundel::time::timeout;
use roundel_testing::{PATIENCE, die_of_sigpipe, each_mode};

const ANSWER: usize = 1 << 20;

/// What is still to come from the other side is not lost when one side has closed its own:
/// requests that end by half-closing get a whole MiB, from std's client and from ours, by
/// `shutdown` and by dropping the half that writes.
#[test]
fn h29_a_half_closed_connection_carries_the_answer() {
    each_mode(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = roundel::spawn(async move {
                for _ in 0..4 {
                    let (stream, _) = listener.accept().await.unwrap();
                    drop(roundel::spawn(answer(stream)));
                }
            });
            let std_client = roundel::spawn_blocking(move || {
                let mut client = StdStream::connect(address).unwrap();
                client.write_all(b"std").unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let mut received = Vec::new();
                client.read_to_end(&mut received).unwrap();
                received
            });
            check(&std_client.await.unwrap(), b"std");

            let client = TcpStream::connect(address).await.unwrap();
            client.write_all("whole").await.0.unwrap();
            client.shutdown(Shutdown::Write).await.unwrap();
            let received = read_to_end(async |buf| client.read(buf).await).await;
            check(&received, b"whole");

            let client = TcpStream::connect(address).await.unwrap();
            let (reader, writer) = client.into_split();
            writer.write_all("dropped").await.0.unwrap();
            drop(writer);
            let received = read_to_end(async |buf| reader.read(buf).await).await;
            check(&received, b"dropped");

            // The reader waits already when the writing half says that it is finished.
            let client = TcpStream::connect(address).await.unwrap();
            let (reader, writer) = client.into_split();
            let reading =
                roundel::spawn(
                    async move { read_to_end(async |buf| reader.read(buf).await).await },
                );
            writer.write_all("half").await.0.unwrap();
            writer.shutdown().await.unwrap();
            check(&reading.await.unwrap(), b"half");
            drop(writer);
            server.await.unwrap();
        });
    });
}

/// Reads the request to its end, and answers with a MiB that begins with it.
async fn answer(stream: TcpStream) {
    let mut bytes = read_to_end(async |buf| stream.read(buf).await).await;
    bytes.resize(ANSWER, b'.');
    stream.write_all(bytes).await.0.unwrap();
}

async fn read_to_end(
    mut read: impl AsyncFnMut(Vec<u8>) -> (std::io::Result<usize>, Vec<u8>),
) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buf = Vec::with_capacity(5_000);
    // Ends: the other side ends.
    loop {
        let result;
        (result, buf) = timeout(PATIENCE, read(buf)).await.expect("the end comes");
        if result.unwrap() == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

fn check(received: &[u8], request: &[u8]) {
    assert_eq!(received.len(), ANSWER);
    assert!(received.starts_with(request));
}

/// What has no other side any more, or no side at all, reports a success or a clear error.
#[test]
fn h29_shutting_down_what_is_closed_is_a_clear_error() {
    each_mode(|case| {
        case.run(async {
            let (stream, peer) = pair().await;
            stream.shutdown(Shutdown::Write).await.unwrap();
            let again = stream.shutdown(Shutdown::Write).await;
            assert!(again.is_ok(), "{again:?}");
            stream.shutdown(Shutdown::Read).await.unwrap();
            assert_eq!(stream.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
            drop(peer);
            stream.close().await.unwrap();
            for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
                let error = stream.shutdown(how).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
            }
        });
    });
}

/// A refusal is a refusal each time: connects to a port that is bound and does not listen,
/// one after the other and many at once.
#[test]
fn h30_refused_connections_say_so_each_time() {
    each_mode(|case| {
        case.run(async {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let bound =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            bound.bind(&any.into()).unwrap();
            let address = bound.local_addr().unwrap().as_socket().unwrap();
            for _ in 0..10 {
                let error = TcpStream::connect(address).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
                assert!(error.to_string().contains(&address.to_string()), "{error}");
            }
            let at_once = (0..50).map(|_| TcpStream::connect(address));
            for refused in futures::future::join_all(at_once).await {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            }
        });
    });
}

/// Writing to a peer that is gone is an error and no death: with the default action of
/// `SIGPIPE`, writes go on until they fail, and then fail with `BrokenPipe`; also one
/// that had been waiting, and those of the pool.
#[test]
fn h31_a_write_to_nobody_is_an_error() {
    each_mode(|case| {
        die_of_sigpipe();
        case.run(async {
            let (stream, peer) = pair().await;
            drop(peer);
            until_broken(&stream, || vec![1; 10]).await;

            // A send that was waiting when the peer went.
            let (stream, peer) = pair().await;
            let waiting = roundel::spawn(async move {
                let result = stream.write_all(vec![1; 32 << 20]).await.0;
                (result, stream)
            });
            roundel::yield_now().await;
            drop(peer);
            let (result, stream) = waiting.await.unwrap();
            let kind = result.unwrap_err().kind();
            let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(gone.contains(&kind), "{kind:?}");
            until_broken(&stream, || vec![1; 10]).await;

            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let mut client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
            drop(listener.accept().unwrap());
            let on_pool = roundel::spawn_blocking(move || {
                // Ends: the first write is answered by a reset.
                loop {
                    if let Err(error) = client.write_all(b"to nobody") {
                        return error.kind();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let kind = on_pool.await.unwrap();
            assert!(gone.contains(&kind), "{kind:?}");
        });
    });
}

async fn until_broken(stream: &TcpStream, bytes: impl Fn() -> Vec<u8>) {
    // Ends: the peer answers the first bytes with a reset.
    loop {
        match stream.write(bytes()).await.0 {
            Ok(_) => {}
            // What the reset says once, before the pipe is broken.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
                break;
            }
        }
    }
    let error = stream.write_all(bytes()).await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

async fn pair() -> (TcpStream, StdStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().await.unwrap().0, peer)
}
