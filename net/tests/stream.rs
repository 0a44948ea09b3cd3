//! What streams promise: no byte lost, none overtaken, clear ends.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{self, Shutdown};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{in_each_mode, pause, poll_once, turn};
use futures::future::{Either, select};
use futures::join;
use roundel_net::{TcpListener, TcpSocket, TcpStream};
use roundel_reactor::{IoBuf, IoBufMut, current, ops};

/// A stream, and what `peer` does with the other end on a thread of its own.
async fn with_peer<T: Send + 'static>(
    peer: impl FnOnce(net::TcpStream) -> T + Send + 'static,
) -> (TcpStream, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let peer = thread::spawn(move || peer(net::TcpStream::connect(addr).unwrap()));
    let (stream, _) = listener.accept().await.unwrap();
    (stream, peer)
}

/// A stream that is connected to another of ours.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (ours, theirs) = join!(TcpStream::connect(addr), listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

async fn read_to_end(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buf = Vec::with_capacity(16 * 1024);
    loop {
        let result;
        (result, buf) = stream.read(buf).await;
        if result.unwrap() == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

/// What a client of std's sends comes back unchanged, through one buffer.
#[test]
fn echo() {
    in_each_mode(async || {
        let (stream, peer) = with_peer(|mut peer| {
            for len in [1, 64, 1000, 16 * 1024] {
                let sent = pattern(len);
                peer.write_all(&sent).unwrap();
                let mut got = vec![0; len];
                peer.read_exact(&mut got).unwrap();
                assert!(sent == got);
            }
        })
        .await;
        let mut buf = Vec::with_capacity(4096);
        loop {
            let result;
            (result, buf) = stream.read(buf).await;
            if result.unwrap() == 0 {
                break;
            }
            let result;
            (result, buf) = stream.write_all(buf).await;
            result.unwrap();
        }
        peer.join().unwrap();
    });
}

/// Both sides know their addresses, and each other's.
#[test]
fn addresses_and_options() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        assert!(!client.nodelay().unwrap());
        client.set_nodelay(true).unwrap();
        assert!(client.nodelay().unwrap());
        client.set_ttl(17).unwrap();
        assert_eq!(client.ttl().unwrap(), 17);
        assert!(client.take_error().unwrap().is_none());
    });
}

/// H04: the bytes that reads return are the exact stream, although every second one is
/// dropped, often after its bytes came, and the others are under tiny timeouts.
#[test]
fn h04_dropped_reads_lose_no_byte() {
    in_each_mode(async || {
        let sent = pattern(200_000);
        let to_send = sent.clone();
        let (stream, peer) = with_peer(move |mut peer| {
            for part in to_send.chunks(997) {
                peer.write_all(part).unwrap();
                thread::sleep(Duration::from_micros(100));
            }
        })
        .await;
        let mut got = Vec::new();
        let mut dropped = 0;
        let mut len = 1;
        loop {
            // Buffers of all sizes: what an abandoned one took is handed out in parts.
            len = len % 1500 + 7;
            let mut read = Box::pin(stream.read(Vec::with_capacity(len)));
            let finished = if len % 2 == 0 {
                let polled = futures::poll!(read.as_mut());
                turn().await;
                polled
            } else {
                let timeout = current::submit(ops::Timeout::new(Duration::from_micros(50)));
                match select(read, timeout).await {
                    Either::Left((finished, _)) => Poll::Ready(finished),
                    Either::Right(_) => Poll::Pending,
                }
            };
            let Poll::Ready((result, buf)) = finished else {
                dropped += 1;
                continue;
            };
            if result.unwrap() == 0 {
                break;
            }
            got.extend_from_slice(&buf);
        }
        assert!(got == sent);
        assert!(dropped > 0, "no read was dropped");
        peer.join().unwrap();
    });
}

/// A read that was dropped before its bytes came leaves them to the next, which may be
/// smaller.
#[test]
fn a_dropped_read_leaves_its_bytes_to_the_next() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        poll_once(pin!(server.read(Vec::with_capacity(100))));
        turn().await;
        client.write_all("0123456789").await.0.unwrap();
        let (result, part) = server.read(Vec::with_capacity(4)).await;
        assert_eq!(result.unwrap(), 4);
        assert_eq!(part, b"0123");
        let (result, part) = server.read_exact(Box::new([0; 6])).await;
        result.unwrap();
        assert_eq!(*part, *b"456789");
    });
}

/// Dropped writes may have sent a part, but nothing of them comes after what was written
/// later, and what was not dropped arrives whole.
#[test]
fn a_dropped_write_is_not_overtaken() {
    in_each_mode(async || {
        let (go, ready) = mpsc::channel();
        let (stream, peer) = with_peer(move |mut peer| {
            ready.recv().unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        })
        .await;
        // More than any socket buffer holds, so that it is surely on its way when dropped.
        let mut stuck = Box::pin(stream.write_all(vec![0; 64 << 20]));
        poll_once(stuck.as_mut());
        pause(Duration::from_millis(5)).await;
        drop(stuck);
        go.send(()).unwrap();
        const LEN: usize = 300_000;
        for round in 1..=60 {
            let buf = vec![round; LEN];
            if round % 3 == 0 {
                stream.write_all(buf).await.0.unwrap();
                continue;
            }
            let write = pin!(stream.write_all(buf));
            let timeout = current::submit(ops::Timeout::new(Duration::from_micros(30)));
            select(write, timeout).await;
        }
        stream.shutdown(Shutdown::Write).await.unwrap();
        let all = peer.join().unwrap();
        assert!(all.is_sorted(), "bytes were overtaken");
        let mut counts = [0; 61];
        for byte in all {
            counts[usize::from(byte)] += 1;
        }
        assert!(
            counts[0] > 0,
            "the first was dropped while it was being sent"
        );
        for round in (3..=60).step_by(3) {
            assert_eq!(counts[round], LEN);
        }
    });
}

/// Two tasks that write at once do not get between each other's bytes.
#[test]
fn concurrent_writes_do_not_mix() {
    in_each_mode(async || {
        let (stream, peer) = with_peer(|mut peer| {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        })
        .await;
        const LEN: usize = 4 << 20;
        let (first, second, end) = join!(
            stream.write_all(vec![1; LEN]),
            stream.write_all(vec![2; LEN]),
            stream.shutdown(Shutdown::Write),
        );
        first.0.unwrap();
        second.0.unwrap();
        end.unwrap();
        let all = peer.join().unwrap();
        assert_eq!(all.len(), 2 * LEN, "the shutdown waited for its turn");
        assert!(all.is_sorted());
    });
}

/// Whether `O_NONBLOCK` is set.
fn is_nonblocking(socket: &impl AsRawFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", socket.as_raw_fd());
    let info = std::fs::read_to_string(path).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    u32::from_str_radix(flags.unwrap().trim(), 8).unwrap() & 0o4000 != 0
}

/// H14: a slow reader and a socket that came non-blocking cost no `WouldBlock`, in either
/// direction.
#[test]
fn h14_would_block_reaches_nobody() {
    in_each_mode(async || {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        assert!(!is_nonblocking(&listener));
        let mut accept = pin!(listener.accept());
        poll_once(accept.as_mut());
        turn().await;
        let peer = thread::spawn(move || {
            let mut peer = net::TcpStream::connect(addr).unwrap();
            thread::sleep(Duration::from_millis(100));
            let mut all = vec![0; 10 << 20];
            peer.read_exact(&mut all).unwrap();
            assert!(all == pattern(10 << 20));
            thread::sleep(Duration::from_millis(20));
            peer.write_all(b"done").unwrap();
        });
        let (stream, _) = accept.await.unwrap();
        assert!(!is_nonblocking(&stream));
        stream.write_all(pattern(10 << 20)).await.0.unwrap();
        let (result, answer) = stream.read_exact(Vec::with_capacity(4)).await;
        result.unwrap();
        assert_eq!(answer, b"done");
        peer.join().unwrap();

        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let client = TcpStream::from_std(client).unwrap();
        assert!(!is_nonblocking(&client));
        let (mut server, _) = listener.accept().unwrap();
        let mut read = pin!(client.read(Vec::with_capacity(8)));
        poll_once(read.as_mut());
        turn().await;
        server.write_all(b"late").unwrap();
        let (result, bytes) = read.await;
        assert_eq!(result.unwrap(), 4);
        assert_eq!(bytes, b"late");
    });
}

/// H29: a client that shuts down its writing gets all of the answer.
#[test]
fn h29_half_close() {
    in_each_mode(async || {
        for drop_half in [false, true] {
            let (client, server) = pair().await;
            let serve = async {
                assert_eq!(read_to_end(&server).await, b"question");
                server.write_all(pattern(1 << 20)).await.0.unwrap();
                drop(server);
            };
            let ask = async {
                let client = if drop_half {
                    let (reader, writer) = client.into_split();
                    writer.write_all("question").await.0.unwrap();
                    drop(writer);
                    let (result, all) = reader.read_exact(Vec::with_capacity(1 << 20)).await;
                    result.unwrap();
                    assert!(all == pattern(1 << 20));
                    return assert_eq!(reader.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
                } else {
                    client
                };
                client.write_all("question").await.0.unwrap();
                client.shutdown(Shutdown::Write).await.unwrap();
                assert!(read_to_end(&client).await == pattern(1 << 20));
                let (result, _) = client.write("more").await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
            };
            join!(serve, ask);
        }
    });
}

/// Halves of one stream make a stream again, which still writes; others do not.
#[test]
fn halves_reunite() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        let (reader, writer) = client.into_split();
        let (server_reader, server_writer) = server.into_split();
        let error = reader.reunite(server_writer).unwrap_err();
        let (reader, server_writer) = (error.0, error.1);
        let client = writer.reunite(reader).unwrap();
        let server = server_reader.reunite(server_writer).unwrap();
        client.write_all("x").await.0.unwrap();
        assert_eq!(server.read(Vec::with_capacity(8)).await.1, b"x");

        // A forgotten half says nothing: the peer reads the end when the other half goes.
        let (reader, writer) = client.into_split();
        writer.forget();
        let mut read = pin!(server.read(Vec::with_capacity(8)));
        poll_once(read.as_mut());
        for _ in 0..10 {
            turn().await;
        }
        poll_once(read.as_mut());
        drop(reader);
        assert_eq!(read.await.0.unwrap(), 0);
    });
}

/// H30: connecting to a port where nobody listens is refused, each time, and the error
/// names the address.
#[test]
fn h30_refused() {
    in_each_mode(async || {
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = bound.local_addr().unwrap();
        for _ in 0..2 {
            let error = TcpStream::connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
        }
        // The next address is tried.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addrs = [addr, listener.local_addr().unwrap()];
        let stream = TcpStream::connect(&addrs[..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addrs[1]);
        let error = TcpStream::connect(&[][..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

/// H02: addresses of both families reach the kernel whole, also when the stack was used for
/// something else in between.
#[test]
fn h02_both_families_connect() {
    #[inline(never)]
    fn scribble(depth: usize) -> usize {
        let bytes = std::hint::black_box([0xa5_u8; 512]);
        if depth == 0 {
            bytes.len()
        } else {
            scribble(depth - 1) + usize::from(bytes[depth])
        }
    }
    in_each_mode(async || {
        let four = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let six = TcpListener::bind("[::1]:0").await.unwrap();
        for round in 0..100 {
            let listener = if round % 2 == 0 { &four } else { &six };
            let addr = listener.local_addr().unwrap();
            let mut connect = pin!(TcpStream::connect(addr));
            poll_once(connect.as_mut());
            scribble(20);
            let (stream, accepted) = join!(connect, listener.accept());
            let (stream, (_, peer)) = (stream.unwrap(), accepted.unwrap());
            assert_eq!(peer, stream.local_addr().unwrap());
            assert_eq!(stream.peer_addr().unwrap(), addr);
        }
    });
}

/// A connect that is dropped leaves nothing behind.
#[test]
fn a_dropped_connect_closes_its_socket() {
    in_each_mode(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        for submitted in [false, true] {
            let mut connect = Box::pin(TcpStream::connect(addr));
            poll_once(connect.as_mut());
            if submitted {
                turn().await;
            }
            drop(connect);
        }
    });
}

/// H22, H23: closing ends the read of another task, the peer reads the end, and later calls
/// fail clearly.
#[test]
fn closing_ends_everybodys_calls() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        let mut read = pin!(server.read(Vec::with_capacity(8)));
        poll_once(read.as_mut());
        turn().await;
        let (read, closed, at_peer) =
            join!(read, server.close(), client.read(Vec::with_capacity(8)));
        assert!(read.0.is_err());
        closed.unwrap();
        assert_eq!(at_peer.0.unwrap(), 0);
        for error in [
            server.read(Vec::with_capacity(8)).await.0.unwrap_err(),
            server.write("x").await.0.unwrap_err(),
            server.shutdown(Shutdown::Both).await.unwrap_err(),
            server.close().await.unwrap_err(),
            server.local_addr().unwrap_err(),
            server.set_nodelay(true).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        }
    });
}

/// Closing waits for the kernel alone, not for a task that holds a read and does not poll.
#[test]
fn closing_does_not_wait_for_a_read_that_is_held() {
    in_each_mode(async || {
        let (_client, server) = pair().await;
        let mut read = pin!(server.read(Vec::with_capacity(8)));
        poll_once(read.as_mut());
        turn().await;
        server.close().await.unwrap();
        assert!(read.await.0.is_err());
    });
}

/// Closing does not wait for a read that was dropped, whether its bytes came or not.
#[test]
fn closing_gives_abandoned_reads_up() {
    in_each_mode(async || {
        for arrives in [false, true] {
            let (client, server) = pair().await;
            poll_once(pin!(server.read(Vec::with_capacity(8))));
            turn().await;
            if arrives {
                client.write_all("x").await.0.unwrap();
                pause(Duration::from_millis(5)).await;
            }
            server.close().await.unwrap();
        }
    });
}

/// Closing by dropping a stream with an abandoned read tells the peer.
#[test]
fn h23_dropping_with_an_abandoned_read_tells_the_peer() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        poll_once(pin!(server.read(Vec::with_capacity(8))));
        turn().await;
        drop(server);
        assert_eq!(client.read(Vec::with_capacity(8)).await.0.unwrap(), 0);
    });
}

/// An end before the buffer is full is an error, and what had arrived comes back.
#[test]
fn read_exact_ends_early() {
    in_each_mode(async || {
        let (stream, peer) = with_peer(|mut peer| peer.write_all(b"abc").unwrap()).await;
        let mut buf = b"what stood here before".to_vec();
        buf.reserve(100);
        let (result, buf) = stream.read_exact(buf).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf, b"abc");
        peer.join().unwrap();
    });
}

/// A part behind what a buffer holds is filled in several receives, and the rest stays.
#[test]
fn read_exact_fills_a_part() {
    in_each_mode(async || {
        let (stream, peer) = with_peer(|mut peer| {
            for part in [&b"ab"[..], b"cd", b"ef", b"gh"] {
                peer.write_all(part).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        })
        .await;
        let mut buf = Vec::with_capacity(10);
        buf.extend_from_slice(b"head");
        let (result, part) = stream.read_exact(buf.slice_mut(4..10)).await;
        result.unwrap();
        assert_eq!(part.as_bytes(), b"abcdef");
        let buf = part.into_inner();
        assert_eq!(buf, b"headabcdef");
        let (result, part) = stream.read_exact(buf.slice_mut(1..3)).await;
        result.unwrap();
        assert_eq!(part.into_inner(), b"hghdabcdef");
        peer.join().unwrap();
    });
}

/// H52: a buffer used again holds what the last read brought, and a write sends no more.
#[test]
fn h52_no_stale_bytes() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        client.write_all(pattern(2000)).await.0.unwrap();
        let (result, buf) = server.read_exact(Vec::with_capacity(2000)).await;
        result.unwrap();
        client.write_all("0123456789").await.0.unwrap();
        let (result, buf) = server.read(buf).await;
        assert_eq!(result.unwrap(), 10);
        server.write_all(buf).await.0.unwrap();
        drop(server);
        assert_eq!(read_to_end(&client).await, b"0123456789");
    });
}

/// H31: writing to a peer that is gone is an error.
#[test]
fn h31_broken_pipe() {
    in_each_mode(async || {
        let (client, server) = pair().await;
        drop(client);
        // The first finds out, at the latest the second is told.
        let mut last = Ok(0);
        for _ in 0..100 {
            last = server.write("x").await.0;
            if last.is_err() {
                break;
            }
        }
        let kind = last.unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
            "{kind}"
        );
    });
}

/// Nothing to send and no room to receive are no errors, and wait for nothing.
#[test]
fn empty_buffers() {
    in_each_mode(async || {
        let (client, _server) = pair().await;
        assert_eq!(client.write("").await.0.unwrap(), 0);
        client.write_all(Vec::new()).await.0.unwrap();
        assert_eq!(client.read(Vec::new()).await.0.unwrap(), 0);
        client.read_exact(Vec::new()).await.0.unwrap();
        turn().await;
    });
}
