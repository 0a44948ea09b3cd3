//! Copies a file through the ring, several blocks at a time.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use roundel::fs::File;

const USAGE: &str = "usage: copy SRC DST

Copies a regular file. DST is created, or replaced if it exists.";
const BLOCK: u64 = 256 * 1024;
/// Blocks on their way at once: enough to keep a disk busy while others are written.
const DEPTH: usize = 8;

#[roundel::main(cores = 1)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    if paths.iter().any(|path| path == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let [from, to] = paths.as_slice() else {
        return Err(USAGE.into());
    };
    let began = Instant::now();
    let copied = copy(from.as_ref(), to.as_ref()).await?;
    let seconds = began.elapsed().as_secs_f64();
    let speed = copied as f64 / seconds / 1e6;
    println!("{copied} bytes in {seconds:.3} s, {speed:.0} MB/s");
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let source = Rc::new(File::open(from).await?);
    let metadata = source.metadata().await?;
    if !metadata.is_file() {
        let text = format!("{from:?} is not a regular file");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let target = Rc::new(File::create(to).await?);
    let next = Rc::new(Cell::new(0));
    let workers: Vec<_> = (0..DEPTH)
        .map(|_| {
            let (source, target, next) = (source.clone(), target.clone(), next.clone());
            roundel::spawn(copy_blocks(source, target, next, metadata.len()))
        })
        .collect();
    let mut copied = 0;
    for worker in workers {
        copied += worker.await??;
    }
    target.sync_data().await?;
    target.close().await?;
    Ok(copied)
}

/// Takes the next block again and again, until there is none.
async fn copy_blocks(
    source: Rc<File>,
    target: Rc<File>,
    next: Rc<Cell<u64>>,
    len: u64,
) -> io::Result<u64> {
    let mut copied = 0;
    let mut block = Vec::with_capacity(BLOCK as usize);
    while next.get() < len {
        let offset = next.replace(next.get() + BLOCK);
        let (result, full) = source.read_at(block, offset).await;
        // A short read in the middle: the rest of the block follows.
        let mut have = result?;
        let (result, empty) = target.write_all_at(full, offset).await;
        result?;
        block = empty;
        while have as u64 != BLOCK.min(len - offset) {
            let at = offset + have as u64;
            let room = (BLOCK.min(len - offset) - have as u64) as usize;
            let (result, rest) = source.read_at(Vec::with_capacity(room), at).await;
            match result? {
                0 => {
                    let text = "the file became shorter while it was copied";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                count => have += count,
            }
            target.write_all_at(rest, at).await.0?;
        }
        copied += have as u64;
    }
    Ok(copied)
}
