//! Checksums of many files on the blocking pool, and a list that is written in order.
//!
//! Reading and adding up are calls that block, so each file is a job of its own, as many at
//! a time as the pool has workers. The lists share files with each other's jobs: the serial
//! lane of a list's path keeps its lines whole and in order.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: blocking LIST FILE...

Adds a line with the checksum (64-bit FNV-1a) and the name of each file to LIST, in the
order given, and prints how many files there were.";

#[roundel::main(cores = 1)]
async fn main() -> ExitCode {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let list = match paths.next() {
        Some(path) if path.as_os_str() == "--help" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(path) => path,
        None => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match add_up(list, paths.collect()).await {
        Ok(files) => {
            println!("{files} files");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("blocking: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn add_up(list: PathBuf, files: Vec<PathBuf>) -> io::Result<usize> {
    let count = files.len();
    let sums: Vec<_> = files
        .into_iter()
        .map(|path| {
            roundel::spawn_blocking(move || {
                let sum = checksum(&path).map_err(|error| named(&path, error))?;
                io::Result::Ok((sum, path))
            })
        })
        .collect();
    let mut lines = Vec::new();
    for sum in sums {
        let (sum, path) = sum.await??;
        let list = list.clone();
        lines.push(roundel::spawn_serial(list.clone(), move || {
            append(&list, sum, &path).map_err(|error| named(&list, error))
        }));
    }
    for line in lines {
        line.await??;
    }
    Ok(count)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn checksum(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut block = vec![0; 64 * 1024];
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    // Ends at the end of the file, or with an error.
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            return Ok(sum);
        }
        for &byte in &block[..count] {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn append(list: &Path, sum: u64, path: &Path) -> io::Result<()> {
    let mut list = OpenOptions::new().append(true).create(true).open(list)?;
    writeln!(list, "{sum:016x}  {}", path.display())
}
