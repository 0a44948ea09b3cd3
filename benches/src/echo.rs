//! How many requests does a TCP echo server on roundel answer per CPU-second, against a bare loop?
//!
//! 50 connections over loopback, each with one request of 64 B, 1 KiB or 16 KiB under way; the server in
//! a process of its own on one CPU, the client on another. The unit is requests per second of the server
//! process's CPU time (all its threads) over a window in which it is saturated.
//!
//! What would change the answer: enters in smaller pieces (the same TCP code costs a fifth more when it
//! is entered request by request); receives that are submitted before the data is there, or right behind
//! their send; a real network card, think time or pipelined requests, which change what a receive finds.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::client::Client;
use crate::compare::{Backend, Row, Verdict, compare};
use crate::{cpu, ours, raw};

const CONNECTIONS: usize = 50;

/// Bytes of a server's buffer for one connection; the largest message.
const BUFFER_LEN: usize = 16 * 1024;

/// Roundel's share of the baseline's requests per CPU-second.
const BAR: f64 = 0.93;

const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;

/// Played before the window, not counted.
const WARM_UP: Duration = Duration::from_millis(50);
const WINDOW: Duration = Duration::from_millis(200);

/// Asks the question.
///
/// # Errors
///
/// What the kernel says; a server that does not start or does not echo.
pub fn run(repeats: usize) -> io::Result<Verdict> {
    cpu::pin(CLIENT_CPU)?;
    let rows = [64, 1024, 16 * 1024].map(|message_len| Row {
        name: format!("echo {CONNECTIONS} x {message_len} B"),
        parameter: message_len,
        bar: Some(BAR),
    });
    compare(
        &rows,
        repeats,
        "requests per server CPU-second",
        |message_len, backend| measure(backend, *message_len),
    )
}

fn measure(backend: Backend, message_len: usize) -> io::Result<f64> {
    let server = Server::start(backend)?;
    let mut client = Client::connect(server.address, CONNECTIONS, message_len)?;
    client.play(WARM_UP)?;
    let begin = cpu::process_time(server.process.id())?;
    let echoes = client.play(WINDOW)?;
    let nanoseconds = cpu::process_time(server.process.id())? - begin;
    Ok(echoes as f64 * 1e9 / nanoseconds as f64)
}

/// A server process; dropping it ends it.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(backend: Backend) -> io::Result<Server> {
        let mut server = Server {
            process: Command::new(std::env::current_exe()?)
                .args(["serve", backend.name(), &CONNECTIONS.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        };
        let output = server.process.stdout.take().expect("it was asked for");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        server.address.set_port(line.trim().parse().map_err(|_| {
            io::Error::other(format!("the {} server did not start", backend.name()))
        })?);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.process.stdin.take());
        if let Err(error) = self.process.wait() {
            eprintln!("a server stays behind: {error}");
        }
    }
}

/// The server process: tells its port on standard output, then echoes until its input ends.
///
/// # Errors
///
/// What the kernel says.
pub fn serve(backend: Backend, connections: usize) -> io::Result<()> {
    // Also when the client's process dies. The thread sleeps until then and costs no CPU time.
    std::thread::spawn(|| {
        // Whether it ends or fails, nobody is there any more.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    cpu::pin(SERVER_CPU)?;
    match backend {
        Backend::RawPlain => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            tell(listener.local_addr()?);
            raw::serve(&listener, connections, BUFFER_LEN)
        }
        Backend::Roundel => ours::serve(SERVER_CPU, connections, BUFFER_LEN, tell),
    }
}

/// Tells the client where the server is.
fn tell(address: SocketAddr) {
    println!("{}", address.port());
}
