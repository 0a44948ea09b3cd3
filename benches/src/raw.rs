//! The baseline `raw-plain`: the loops that a program without a runtime would write around one ring.
//!
//! Ordinary descriptors, one buffer an operation, no registered buffers, no links, no hints. Take all
//! completions, stage one entry for each, then enter once: submit everything, wait for one. Measured,
//! this is the cheapest of the simple loops.

use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use crate::cpu;
use crate::read::{BLOCK, Offsets};
use crate::ring::Ring;

/// Reads random blocks of the file, `depth` at a time: CPU nanoseconds of this thread for `operations`
/// reads, after a tenth as many that do not count.
///
/// # Errors
///
/// What the kernel says; `UnexpectedEof` for a short read.
pub fn read(file: &File, depth: usize, operations: usize) -> io::Result<u64> {
    let mut ring = Ring::new(depth, BLOCK)?;
    let mut offsets = Offsets::new(0);
    read_loop(&mut ring, file, &mut offsets, depth, operations / 10)?;
    let begin = cpu::thread_time()?;
    read_loop(&mut ring, file, &mut offsets, depth, operations)?;
    Ok(cpu::thread_time()? - begin)
}

fn read_loop(
    ring: &mut Ring,
    file: &File,
    offsets: &mut Offsets,
    depth: usize,
    operations: usize,
) -> io::Result<()> {
    let file = file.as_raw_fd();
    let mut started = depth.min(operations);
    for slot in 0..started {
        ring.read(slot, file, offsets.next());
    }
    let mut ended = 0;
    let mut done = Vec::with_capacity(depth);
    while ended < operations {
        ring.turn(&mut done)?;
        for done in &done {
            if done.count()? != BLOCK {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            ended += 1;
            if started < operations {
                started += 1;
                ring.read(done.slot, file, offsets.next());
            }
        }
    }
    Ok(())
}

/// What a connection of the server waits for.
enum Waits {
    /// A receive, with the whole buffer.
    Receive,
    /// A send that ends at this place of the buffer and has come to that one.
    Send { sent: usize, len: usize },
}

/// Accepts this many connections, then echoes on them until all of them are closed.
///
/// # Errors
///
/// What the kernel says; a connection that is reset is closed.
pub fn serve(listener: &TcpListener, connections: usize, buffer_len: usize) -> io::Result<()> {
    // Accepting is not what is measured.
    let streams: Vec<TcpStream> = (0..connections)
        .map(|_| {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .collect::<io::Result<_>>()?;
    let mut ring = Ring::new(connections, buffer_len)?;
    let mut states: Vec<Waits> = streams.iter().map(|_| Waits::Receive).collect();
    for (slot, stream) in streams.iter().enumerate() {
        ring.receive(slot, stream.as_raw_fd(), 0..buffer_len);
    }
    let mut open = connections;
    let mut done = Vec::with_capacity(connections);
    while open > 0 {
        ring.turn(&mut done)?;
        for done in &done {
            let socket = streams[done.slot].as_raw_fd();
            let state = &mut states[done.slot];
            let (sent, len) = match (&*state, done.count()) {
                (_, Ok(0) | Err(_)) => {
                    open -= 1;
                    continue;
                }
                (Waits::Receive, Ok(received)) => (0, received),
                (Waits::Send { sent, len }, Ok(more)) => (sent + more, *len),
            };
            if sent < len {
                *state = Waits::Send { sent, len };
                ring.send(done.slot, socket, sent..len);
            } else {
                *state = Waits::Receive;
                ring.receive(done.slot, socket, 0..buffer_len);
            }
        }
    }
    Ok(())
}
