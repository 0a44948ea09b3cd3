//! The same work as `raw.rs`, written with roundel as its users would write it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::{Builder, Cores, RingMode, Runtime};

use crate::cpu;
use crate::read::{BLOCK, Offsets};

/// One shard on this CPU, without a poller: what the baseline has.
fn runtime(cpu: usize) -> io::Result<Runtime> {
    Builder::new()
        .cores(Cores::List(vec![cpu]))
        .ring(RingMode::Defer)
        .build()
}

/// As `raw::read`, with one task for each read that is under way.
///
/// # Errors
///
/// What the kernel says; `UnexpectedEof` for a short read.
pub fn read(path: &Path, cpu: usize, depth: usize, operations: usize) -> io::Result<u64> {
    runtime(cpu)?.block_on(async {
        let file = Rc::new(File::open(path).await?);
        read_all(&file, depth, operations / 10).await?;
        let begin = cpu::thread_time()?;
        read_all(&file, depth, operations).await?;
        Ok(cpu::thread_time()? - begin)
    })
}

async fn read_all(file: &Rc<File>, depth: usize, operations: usize) -> io::Result<()> {
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            // The first tasks take what does not divide.
            let share = operations / depth + usize::from(task < operations % depth);
            roundel::spawn(read_share(file.clone(), Offsets::new(task as u64), share))
        })
        .collect();
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    Ok(())
}

async fn read_share(file: Rc<File>, mut offsets: Offsets, operations: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BLOCK);
    for _ in 0..operations {
        let (count, back) = file.read_at(buffer, offsets.next()).await;
        if count? != BLOCK {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = back;
    }
    Ok(())
}

/// As `raw::serve`, with one task for each connection; `tell` hears the address.
///
/// # Errors
///
/// What the kernel says; a connection that is reset is closed.
pub fn serve(
    cpu: usize,
    connections: usize,
    buffer_len: usize,
    tell: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    runtime(cpu)?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        tell(listener.local_addr()?);
        let mut tasks = Vec::with_capacity(connections);
        for _ in 0..connections {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tasks.push(roundel::spawn(echo(stream, buffer_len)));
        }
        for task in tasks {
            task.await.map_err(io::Error::other)?;
        }
        Ok(())
    })
}

async fn echo(stream: TcpStream, buffer_len: usize) {
    let mut buffer = Vec::with_capacity(buffer_len);
    // Ends: the client closes.
    loop {
        let (received, message) = stream.read(buffer).await;
        if !matches!(received, Ok(1..)) {
            return;
        }
        let (sent, back) = stream.write_all(message).await;
        if sent.is_err() {
            return;
        }
        buffer = back;
    }
}
