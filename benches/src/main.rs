//! Runs one benchmark: `cargo run --release -p roundel-benches -- read|echo [--repeats 15]`.
//!
//! Every benchmark answers one question, which stands at the top of its file, and answers it with paired
//! ratios to a baseline (see `compare.rs`), never with an absolute time. The process fails if a bar is
//! missed.

mod client;
mod compare;
mod cpu;
mod echo;
mod ours;
mod raw;
mod read;
mod ring;

use std::io;
use std::process::ExitCode;

use compare::{Backend, Verdict};

const USAGE: &str = "usage: roundel-benches read|echo [--repeats N]";

/// Repeats below which a comparison decides nothing.
const REPEATS: usize = 15;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let verdict = match arguments.as_slice() {
        ["serve", backend, connections] => serve(backend, connections).map(|()| Verdict::Pass),
        [question] => run(question, REPEATS),
        [question, "--repeats", repeats] => match repeats.parse() {
            Ok(repeats) if repeats > 0 => run(question, repeats),
            _ => Err(usage()),
        },
        _ => Err(usage()),
    };
    match verdict {
        Ok(Verdict::Fail) => ExitCode::FAILURE,
        Ok(Verdict::Pass | Verdict::Inconclusive) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(question: &str, repeats: usize) -> io::Result<Verdict> {
    let verdict = match question {
        "read" => read::run(repeats)?,
        "echo" => echo::run(repeats)?,
        _ => return Err(usage()),
    };
    if repeats < REPEATS {
        println!("fewer than {REPEATS} repeats decide nothing");
    }
    Ok(verdict)
}

/// The server's half of `echo`, in a process of its own so that its CPU time can be told apart.
fn serve(backend: &str, connections: &str) -> io::Result<()> {
    let connections = connections.parse().map_err(|_| usage())?;
    match Backend::from_name(backend) {
        Some(backend) => echo::serve(backend, connections),
        None => Err(usage()),
    }
}

fn usage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, USAGE)
}
