//! How much CPU time does roundel take for a cached read, against a bare loop?
//!
//! Random 4 KiB reads of a file in the page cache, 1, 32 and 128 at a time, on one thread on one CPU. The
//! unit is reads per second of that thread's CPU time; a cached read is all CPU, so nothing else counts.
//! This measures what the executor adds to the kernel's work: a slot, a wake, a poll, a task switch.
//!
//! What would change the answer: a cheaper task switch or slot; registered files and buffers (the
//! baseline has none, so a trick of roundel's belongs into a second baseline first); a device instead of
//! the page cache, where the wait hides all of this; a larger file, whose pages leave the CPU's caches (at
//! 1 GiB the baseline needs 1.3 times as long, and what we add weighs less); more than one thread.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::compare::{Backend, Row, Verdict, compare};
use crate::{cpu, ours, raw};

/// Bytes of a read.
pub const BLOCK: usize = 4096;

/// Blocks of the file: 256 MiB, more than any cache of the CPU.
const BLOCKS: u64 = 256 * 1024;

/// Reads in one measurement: some 50 to 100 ms.
const OPERATIONS: usize = 60_000;

/// The CPU of the measured thread.
const CPU: usize = 0;

/// Asks the question.
///
/// # Errors
///
/// What the kernel says.
pub fn run(repeats: usize) -> io::Result<Verdict> {
    let path = TestFile::create()?;
    let file = File::open(&path.0)?;
    cpu::pin(CPU)?;
    let rows = [(1, Some(0.92)), (32, Some(0.93)), (128, None)].map(|(depth, bar)| Row {
        name: format!("read, depth {depth}"),
        parameter: depth,
        bar,
    });
    compare(
        &rows,
        repeats,
        "reads per CPU-second",
        |depth: &usize, backend| {
            let nanoseconds = match backend {
                Backend::RawPlain => raw::read(&file, *depth, OPERATIONS)?,
                Backend::Roundel => ours::read(&path.0, CPU, *depth, OPERATIONS)?,
            };
            Ok(OPERATIONS as f64 * 1e9 / nanoseconds as f64)
        },
    )
}

/// Random offsets of blocks in the file, the same for everybody who begins with the same seed.
pub struct Offsets(u64);

impl Offsets {
    /// The sequence with this seed.
    pub fn new(seed: u64) -> Offsets {
        // Any odd number will do: the state of a xorshift must not be zero.
        Offsets((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next offset.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper bits are the better ones.
        (self.0 >> 32) % BLOCKS * BLOCK as u64
    }
}

/// A file beside this program (not in a temporary directory, which may be memory), removed when dropped.
struct TestFile(PathBuf);

impl TestFile {
    /// Makes it, and reads it once so that it is cached.
    fn create() -> io::Result<TestFile> {
        let path = std::env::current_exe()?
            .with_file_name(format!("roundel-bench-read-{}", std::process::id()));
        let mut file = File::create_new(&path)?;
        let path = TestFile(path);
        let mut chunk = vec![0x5a; 256 * BLOCK];
        for _ in 0..BLOCKS / 256 {
            file.write_all(&chunk)?;
        }
        // Or it would be written back while we measure.
        file.sync_all()?;
        let mut file = File::open(&path.0)?;
        while file.read(&mut chunk)? > 0 {}
        Ok(path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets are blocks of the file, reach all of it, and repeat for the same seed alone.
    #[test]
    fn offsets_are_blocks_of_the_file() {
        let take = |seed| {
            let mut offsets = Offsets::new(seed);
            (0..10_000).map(|_| offsets.next()).collect::<Vec<_>>()
        };
        let first = take(0);
        assert_eq!(first, take(0));
        assert_ne!(first, take(1));
        let len = BLOCKS * BLOCK as u64;
        assert!(
            first
                .iter()
                .all(|offset| offset % BLOCK as u64 == 0 && *offset < len)
        );
        assert!(first.iter().any(|offset| *offset < len / 100));
        assert!(first.iter().any(|offset| *offset > len / 100 * 99));
    }
}
