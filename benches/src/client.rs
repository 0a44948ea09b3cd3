//! The load of the echo benchmark: so many connections, each with one request under way.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::ring::Ring;

/// A connection sends its message, then receives it, and begins again.
#[derive(Clone, Copy)]
enum Waits {
    /// So much of the message has been sent.
    Send(usize),
    /// So much of it has come back.
    Receive(usize),
}

/// Connections that play ping-pong with an echo server.
pub struct Client {
    ring: Ring,
    streams: Vec<TcpStream>,
    states: Vec<Waits>,
    message_len: usize,
}

impl Client {
    /// Connects, and lets every connection send one message and check that the same bytes come back.
    ///
    /// # Errors
    ///
    /// What the kernel says; `InvalidData` if the server sends anything else.
    pub fn connect(
        server: SocketAddr,
        connections: usize,
        message_len: usize,
    ) -> io::Result<Client> {
        let streams: Vec<TcpStream> = (0..connections)
            .map(|_| {
                let stream = TcpStream::connect(server)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            })
            .collect::<io::Result<_>>()?;
        let mut client = Client {
            ring: Ring::new(connections, message_len)?,
            states: vec![Waits::Send(0); connections],
            streams,
            message_len,
        };
        client.check()?;
        Ok(client)
    }

    /// Plays until `window` is over; gives the number of messages that came back in it.
    ///
    /// The client is between two requests everywhere before and after.
    ///
    /// # Errors
    ///
    /// What the kernel says; `UnexpectedEof` if the server closes.
    pub fn play(&mut self, window: Duration) -> io::Result<u64> {
        let end = Instant::now() + window;
        let mut echoes = 0;
        self.run(false, |_, _| {
            echoes += 1;
            Instant::now() < end
        })?;
        Ok(echoes)
    }

    /// One message on each connection, other bytes on each.
    fn check(&mut self) -> io::Result<()> {
        for slot in 0..self.streams.len() {
            let message = pattern(slot, self.message_len);
            self.ring.buffer(slot).copy_from_slice(&message);
        }
        let message_len = self.message_len;
        let mut wrong = 0;
        self.run(true, |ring, slot| {
            if *ring.buffer(slot) != pattern(slot, message_len)[..] {
                wrong += 1;
            }
            false
        })?;
        match wrong {
            0 => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{wrong} connections echoed other bytes than were sent"),
            )),
        }
    }

    /// Sends on every connection and goes on with each as long as `again` says so at its echo. The buffer
    /// is cleared in between if asked for, so that only an echo can fill it.
    fn run(
        &mut self,
        clear: bool,
        mut again: impl FnMut(&mut Ring, usize) -> bool,
    ) -> io::Result<()> {
        for slot in 0..self.streams.len() {
            self.advance(slot, Waits::Send(0));
        }
        let mut busy = self.streams.len();
        let mut done = Vec::with_capacity(busy);
        while busy > 0 {
            self.ring.turn(&mut done)?;
            for done in &done {
                let count = done.count()?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                match self.states[done.slot] {
                    Waits::Send(sent) if sent + count < self.message_len => {
                        self.advance(done.slot, Waits::Send(sent + count));
                    }
                    Waits::Send(_) => {
                        if clear {
                            self.ring.buffer(done.slot).fill(0);
                        }
                        self.advance(done.slot, Waits::Receive(0));
                    }
                    Waits::Receive(received) if received + count < self.message_len => {
                        self.advance(done.slot, Waits::Receive(received + count));
                    }
                    Waits::Receive(_) if again(&mut self.ring, done.slot) => {
                        self.advance(done.slot, Waits::Send(0));
                    }
                    Waits::Receive(_) => busy -= 1,
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, slot: usize, state: Waits) {
        self.states[slot] = state;
        let socket = self.streams[slot].as_raw_fd();
        match state {
            Waits::Send(sent) => self.ring.send(slot, socket, sent..self.message_len),
            Waits::Receive(received) => {
                self.ring.receive(slot, socket, received..self.message_len);
            }
        }
    }
}

/// Bytes that differ from connection to connection and from place to place.
fn pattern(slot: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|place| (slot * 31 + place * 7) as u8)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server of one connection that changes each byte by `change`.
    fn serve(change: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1000];
            // Ends: the client closes.
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                buffer[..count].iter_mut().for_each(|byte| *byte ^= change);
                if stream.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        });
        address
    }

    /// Messages come back in parts and are counted whole.
    #[test]
    fn echoes_are_counted() {
        let mut client = Client::connect(serve(0), 1, 16 * 1024).unwrap();
        assert!(client.play(Duration::from_millis(5)).unwrap() >= 1);
        assert!(client.play(Duration::ZERO).unwrap() >= 1);
    }

    /// A server that sends other bytes is found out before anything is measured.
    #[test]
    fn a_false_echo_is_an_error() {
        let error = Client::connect(serve(1), 1, 64).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
