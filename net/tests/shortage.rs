//! H24: a listener without descriptors waits instead of burning a core, and recovers.
//!
//! The server is this binary, run again with few descriptors; the clients are here.

mod common;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{self, SocketAddr};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, in_each_mode};
use futures::future::{Either, select};
use roundel_net::{TcpListener, TcpStream};
use roundel_reactor::{current, ops};
use rustix::process::{Resource, getrlimit, setrlimit};

const CHILD: &str = "ROUNDEL_NET_SHORTAGE";
const CLIENTS: usize = 200;
const FEW: u64 = 64;

fn limit_descriptors(count: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(count);
    setrlimit(Resource::Nofile, limit).unwrap();
}

async fn next(listener: &TcpListener, multishot: bool) -> io::Result<TcpStream> {
    if multishot {
        listener.incoming().next().await.expect("it is not closed")
    } else {
        listener.accept().await.map(|(stream, _)| stream)
    }
}

/// The usual loop, until it has seen five errors. The four waits between them last 10, 20,
/// 40 and 80 ms, and another task runs meanwhile.
async fn serve_few(listener: &TcpListener, multishot: bool, streams: &mut Vec<TcpStream>) {
    let mut first: Option<Instant> = None;
    let mut errors = 0;
    let accept = async {
        while errors < 5 {
            match next(listener, multishot).await {
                Ok(stream) => streams.push(stream),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(24), "EMFILE, not {error}");
                    first.get_or_insert_with(Instant::now);
                    errors += 1;
                }
            }
        }
        first.expect("there were errors").elapsed()
    };
    let mut ticks = 0;
    let tick = async {
        loop {
            current::submit(ops::Timeout::new(Duration::from_millis(5)))
                .await
                .unwrap();
            ticks += 1;
        }
    };
    let Either::Left((waited, _)) = select(pin!(accept), pin!(tick)).await;
    assert!(
        waited >= Duration::from_millis(150),
        "it waited {waited:?} only"
    );
    assert!(ticks > 0, "nothing else ran");
}

fn serve() {
    in_each_mode(async || {
        for multishot in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            println!("listening on {}", listener.local_addr().unwrap());
            let mut streams = Vec::new();
            limit_descriptors(FEW);
            serve_few(&listener, multishot, &mut streams).await;
            limit_descriptors(1024);
            while streams.len() < CLIENTS {
                if let Ok(stream) = next(&listener, multishot).await {
                    streams.push(stream);
                }
            }
            for stream in streams {
                stream.write_all("x").await.0.unwrap();
            }
        }
    });
    println!("done");
}

/// A server with 64 descriptors and 200 clients reports `EMFILE`, waits longer each time,
/// and serves all of them once it may.
#[test]
fn h24_a_listener_without_descriptors_waits() {
    if std::env::var_os(CHILD).is_some() {
        return serve();
    }
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "h24_a_listener_without_descriptors_waits",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut rounds = 0;
    for line in lines.map_while(Result::ok) {
        let Some((_, addr)) = line.split_once("listening on ") else {
            continue;
        };
        let addr: SocketAddr = addr.parse().unwrap();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| net::TcpStream::connect(addr).unwrap())
            .collect();
        for mut client in clients {
            client.set_read_timeout(Some(LONG)).unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        rounds += 1;
    }
    assert!(server.wait().unwrap().success());
    assert_eq!(rounds, 4, "two modes, two ways to accept");
}
