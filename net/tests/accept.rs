//! What listeners promise: no client lost, no core burnt.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{self, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{in_each_mode, pause, poll_once, turn};
use futures::future::{Either, join_all, select};
use futures::{StreamExt, join};
use roundel_net::{TcpListener, TcpStream};
use roundel_reactor::{current, ops};

/// So many clients that connect, one after the other, and then wait for a byte each.
fn clients(addr: SocketAddr, count: usize) -> JoinHandle<usize> {
    thread::spawn(move || {
        let clients: Vec<_> = (0..count)
            .map(|_| net::TcpStream::connect(addr).unwrap())
            .collect();
        let served = clients.into_iter().filter(|mut client| {
            client.set_read_timeout(Some(common::LONG)).unwrap();
            client.read_exact(&mut [0]).is_ok()
        });
        served.count()
    })
}

async fn serve(stream: TcpStream) {
    stream.write_all("x").await.0.unwrap();
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// P3: accepts that are dropped again and again, most of them when they had brought a
/// client already, lose none.
#[test]
fn dropped_accepts_lose_no_client() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let clients = clients(addr, 400);
        let (mut served, mut dropped) = (0, 0);
        while served < 400 {
            let mut accept = Box::pin(listener.accept());
            let Poll::Ready(accepted) = futures::poll!(accept.as_mut()) else {
                turn().await;
                dropped += 1;
                continue;
            };
            let (stream, peer) = accepted.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer);
            serve(stream).await;
            served += 1;
        }
        assert!(
            dropped >= 400,
            "each client was brought by an accept that was dropped"
        );
        assert_eq!(clients.join().unwrap(), 400);
    });
}

/// The same for the stream's `next`, changing with accepts.
#[test]
fn dropped_nexts_lose_no_client() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let clients = clients(addr, 400);
        let mut served = 0;
        let mut incoming = listener.incoming();
        for round in 0.. {
            if served == 400 {
                break;
            }
            let stream = if round % 5 == 0 {
                let accept = pin!(listener.accept());
                match select(accept, current::submit(ops::Nop)).await {
                    Either::Left((accepted, _)) => accepted.unwrap().0,
                    Either::Right(_) => continue,
                }
            } else {
                if round % 17 == 0 {
                    incoming = listener.incoming();
                }
                let next = pin!(incoming.next());
                match select(next, current::submit(ops::Nop)).await {
                    Either::Left((next, _)) => next.unwrap().unwrap(),
                    Either::Right(_) => continue,
                }
            };
            serve(stream).await;
            served += 1;
        }
        assert_eq!(clients.join().unwrap(), 400);
    });
}

/// Tasks that accept on one listener are all served, in the order in which they asked, also
/// if the first in line goes away.
#[test]
fn several_tasks_accept() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let mut gone = Box::pin(listener.accept());
        poll_once(gone.as_mut());
        let waiting = join_all((0..8).map(|_| async {
            let (stream, peer) = listener.accept().await.unwrap();
            serve(stream).await;
            peer
        }));
        let clients = clients(addr, 8);
        let leave = async {
            turn().await;
            drop(gone);
        };
        let (peers, ()) = join!(waiting, leave);
        assert_eq!(peers.len(), 8);
        assert_eq!(clients.join().unwrap(), 8);
    });
}

/// Far more clients than may be unclaimed, all there before the first is claimed, are all
/// served; likewise through the `Stream` trait.
#[test]
fn incoming_serves_a_crowd() {
    in_each_mode(async || {
        for by_trait in [false, true] {
            let (listener, addr) = listen().await;
            let mut incoming = listener.incoming();
            poll_once(pin!(incoming.next()));
            let clients = clients(addr, 500);
            pause(Duration::from_millis(50)).await;
            for _ in 0..500 {
                let next = if by_trait {
                    StreamExt::next(&mut incoming).await
                } else {
                    incoming.next().await
                };
                serve(next.unwrap().unwrap()).await;
            }
            assert_eq!(clients.join().unwrap(), 500);
        }
    });
}

/// What an abandoned stream had accepted ahead goes to the next call.
#[test]
fn an_abandoned_stream_leaves_its_clients() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let mut incoming = listener.incoming();
        poll_once(pin!(incoming.next()));
        let clients = clients(addr, 20);
        serve(incoming.next().await.unwrap().unwrap()).await;
        pause(Duration::from_millis(20)).await;
        drop(incoming);
        for _ in 0..10 {
            let (stream, peer) = listener.accept().await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer);
            serve(stream).await;
        }
        let mut incoming = listener.incoming();
        for _ in 0..9 {
            serve(incoming.next().await.unwrap().unwrap()).await;
        }
        assert_eq!(clients.join().unwrap(), 20);
    });
}

/// A `next` that is dropped gives its place in front of others away; the stream's own
/// `poll_next` keeps it until the stream is dropped.
#[test]
fn a_dropped_next_gives_way() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let mut incoming = listener.incoming();
        poll_once(pin!(incoming.next()));
        let client = clients(addr, 1);
        serve(listener.accept().await.unwrap().0).await;
        assert_eq!(client.join().unwrap(), 1);

        let mut poll_next = || poll_once(pin!(StreamExt::next(&mut incoming)));
        poll_next();
        poll_next();
        let mut accept = pin!(listener.accept());
        poll_once(accept.as_mut());
        let client = clients(addr, 1);
        serve(incoming.next().await.unwrap().unwrap()).await;
        assert_eq!(client.join().unwrap(), 1);

        let client = clients(addr, 1);
        serve(accept.await.unwrap().0).await;
        assert_eq!(client.join().unwrap(), 1);

        poll_once(pin!(StreamExt::next(&mut incoming)));
        let mut accept = pin!(listener.accept());
        poll_once(accept.as_mut());
        drop(incoming);
        let client = clients(addr, 1);
        serve(accept.await.unwrap().0).await;
        assert_eq!(client.join().unwrap(), 1);
    });
}

/// Closing wakes those who wait, ends the streams, and frees the address.
#[test]
fn closing_ends_everybodys_waiting() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let mut incoming = listener.incoming();
        let close = async {
            turn().await;
            listener.close().await.unwrap();
        };
        let (first, second, next, ()) =
            join!(listener.accept(), listener.accept(), incoming.next(), close);
        assert_eq!(first.unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::NotConnected);
        assert!(next.is_none());
        assert!(StreamExt::next(&mut incoming).await.is_none());
        assert_eq!(
            listener.close().await.unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        let error = TcpStream::connect(addr).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Closing does not wait for those who hold an accept without polling it.
#[test]
fn closing_gives_abandoned_accepts_up() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let mut accept = pin!(listener.accept());
        poll_once(accept.as_mut());
        turn().await;
        let client = net::TcpStream::connect(addr).unwrap();
        pause(Duration::from_millis(5)).await;
        listener.close().await.unwrap();
        assert!(accept.await.is_err());
        drop(client);
    });
}

/// With `SO_REUSEPORT` several listeners share one address, without it they do not, and the
/// error names it.
#[test]
fn listeners_share_a_port() {
    in_each_mode(async || {
        let first = TcpListener::bind_reuseport("127.0.0.1:0").await.unwrap();
        let addr = first.local_addr().unwrap();
        let second = TcpListener::bind_reuseport(addr).await.unwrap();
        assert_eq!(second.local_addr().unwrap(), addr);
        let error = TcpListener::bind(addr).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
        let clients = clients(addr, 20);
        let mut streams = (first.incoming(), second.incoming());
        for _ in 0..20 {
            let (a, b) = (pin!(streams.0.next()), pin!(streams.1.next()));
            let (next, _) = select(a, b).await.factor_first();
            serve(next.unwrap().unwrap()).await;
        }
        assert_eq!(clients.join().unwrap(), 20);
    });
}

/// H25: every descriptor is close-on-exec.
#[test]
fn h25_close_on_exec() {
    fn assert_close_on_exec(fd: &impl AsRawFd, what: &str) {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        let info = info.unwrap();
        let flags = info
            .lines()
            .find_map(|line| line.strip_prefix("flags:"))
            .unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        assert_ne!(flags & 0o2_000_000, 0, "{what} is inherited");
    }
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        let (client, accepted) = join!(TcpStream::connect(addr), listener.accept());
        assert_close_on_exec(&listener, "the listener");
        assert_close_on_exec(&client.unwrap(), "the client");
        assert_close_on_exec(&accepted.unwrap().0, "the accepted");
        let mut incoming = listener.incoming();
        let (client, next) = join!(TcpStream::connect(addr), incoming.next());
        drop(client);
        assert_close_on_exec(&next.unwrap().unwrap(), "the incoming");
    });
}

/// Clients that reset the connection before it is taken are passed over or served an end,
/// and the listener goes on.
#[test]
fn reset_clients_do_no_harm() {
    in_each_mode(async || {
        let (listener, addr) = listen().await;
        for multishot in [false, true] {
            for _ in 0..10 {
                let client = TcpStream::connect(addr).await.unwrap();
                client.set_linger(Some(Duration::ZERO)).unwrap();
                client.close().await.unwrap();
            }
            let good = thread::spawn(move || {
                let mut good = net::TcpStream::connect(addr).unwrap();
                good.write_all(b"good").unwrap();
                good.read_exact(&mut [0]).unwrap();
            });
            let mut incoming = listener.incoming();
            loop {
                let stream = if multishot {
                    incoming.next().await.unwrap().unwrap()
                } else {
                    listener.accept().await.unwrap().0
                };
                let (result, bytes) = stream.read(Vec::with_capacity(8)).await;
                if result.is_ok() && bytes == b"good" {
                    serve(stream).await;
                    break;
                }
            }
            good.join().unwrap();
        }
    });
}
