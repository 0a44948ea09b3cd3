//! Files read and written in order, each way with a position of its own.
//!
//! Reading may consume: what a FIFO gave up exists only in our buffer. So the read in
//! flight belongs to the [`Reader`] and not to the future that asked for it ([`Inflow`]).
//! Writing goes one at a time; the turn travels with the operation, so that the next write
//! starts after the kernel's last word on an abandoned one ([`Turnstile`]).
//!
//! Both positions move with the kernel's answers, also when nobody waits for them. Where
//! there are no offsets (FIFOs, terminals, `/dev/null`) the kernel ignores them.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use roundel_reactor::{
    BufResult, Guarded, Inflow, IoBuf, IoBufMut, SharedFd, Turn, Turnstile, current, ops,
};

use crate::transfer::{self, Source, check_range};

/// The least room that [`Reader::read_to_end`] reads into.
const ROOM_MIN: usize = 8 * 1024;
/// The most that one read of [`Reader::read_to_end`] asks for. The kernel copies what it
/// has cached in one go, and the shard would stand still as long; a mebibyte takes it some
/// 100 microseconds, and larger reads are no faster.
const PART_MAX: usize = 1024 * 1024;

/// Reads a file in order, from its own position on. Made by [`File::reader`](crate::File::reader).
///
/// It works on everything that can be read: regular files, FIFOs, devices, the files in
/// `/proc`. It keeps the file open. Reads that wait at the same time are served in the
/// order of their first polls.
///
/// ```
/// # use std::{future::Future, pin::pin, rc::Rc, task::{Context, Poll, Waker}};
/// # use roundel_reactor::{Reactor, RingConfig, Wait, current};
/// # fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
/// #     let _entered = current::enter(reactor.clone());
/// #     let mut future = pin!(future);
/// #     let mut cx = Context::from_waker(Waker::noop());
/// #     loop {
/// #         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) { return output; }
/// #         reactor.enter(Wait::Forever).expect("the ring works");
/// #         reactor.reap();
/// #     }
/// # }
/// # let reactor = Reactor::new(&RingConfig::default())?;
/// # block_on(&reactor, async {
/// use roundel_fs::File;
///
/// let reader = File::open("/proc/self/status").await?.reader();
/// let mut buf = Vec::with_capacity(512);
/// let mut total = 0;
/// loop {
///     let result;
///     (result, buf) = reader.read(buf).await;
///     match result? {
///         0 => break,
///         count => total += count,
///     }
/// }
/// assert_eq!(reader.position(), total as u64);
/// # std::io::Result::Ok(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Reader {
    inflow: Inflow,
    fd: SharedFd,
    position: Rc<Cell<u64>>,
}

impl Reader {
    pub(crate) fn new(fd: SharedFd, offset: u64) -> Self {
        Reader {
            inflow: Inflow::new(),
            fd,
            position: Rc::new(Cell::new(offset)),
        }
    }

    /// Reads what comes next into `buf`, from its start, and returns how many bytes that
    /// were; 0 is the end. Ring operation `READ`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidInput` if the position and the capacity together exceed
    /// `i64::MAX`; `NotConnected` after the file was closed.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future loses no byte: the read goes on, and the next call gets what
    /// it brings, or its error. The buffer stays with it and does not come back.
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        if let Err(error) = check_range(self.position.get(), buf.bytes_total()) {
            return (Err(error), buf);
        }
        let position = self.position.clone();
        self.inflow
            .receive(&self.fd, buf, |hold, buf| {
                ops::ReadNext::new(hold, buf, position)
            })
            .await
    }

    /// Fills the whole capacity of `buf`, with as many reads as that takes. Ring operation
    /// `READ`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` where the file ends; the bytes before it are in the buffer, and its
    /// length says how many. Else as [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future loses what had arrived before the read in flight.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        transfer::fill(self, buf).await
    }

    /// Reads all that is left, appends it to `buf`, and returns how many bytes that were.
    /// Ring operation `READ`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and `OutOfMemory`; what was read before is in the buffer.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future loses what had arrived before the read in flight.
    pub async fn read_to_end(&self, mut buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
        let start = buf.len();
        // Ends where the file does.
        loop {
            if buf.len() == buf.capacity()
                && let Err(error) = buf.try_reserve(ROOM_MIN)
            {
                return (Err(io::Error::new(io::ErrorKind::OutOfMemory, error)), buf);
            }
            let begin = buf.len();
            let end = buf.capacity().min(begin.saturating_add(PART_MAX));
            let (result, part) = self.read(buf.slice_mut(begin..end)).await;
            buf = part.into_inner();
            match result {
                Ok(0) => return (Ok(buf.len() - start), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Where the next read begins, in bytes from the start; without offsets, how many
    /// bytes were read. Bytes that an abandoned read left behind are counted.
    pub fn position(&self) -> u64 {
        self.position.get()
    }
}

impl Source for Reader {
    async fn read_some<B: IoBufMut>(&self, buf: B, _done: usize) -> BufResult<usize, B> {
        self.read(buf).await
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("fd", &self.fd.as_raw_fd())
            .field("position", &self.position())
            .finish()
    }
}

/// Writes a file in order, from its own position on. Made by [`File::writer`](crate::File::writer).
///
/// It buffers nothing and keeps the file open. One write is in flight at a time, the next
/// ones wait in the order of their first polls, so bytes never overtake.
pub struct Writer {
    turnstile: Turnstile,
    fd: SharedFd,
    position: Rc<Cell<u64>>,
}

impl Writer {
    pub(crate) fn new(fd: SharedFd, offset: u64) -> Self {
        Writer {
            turnstile: Turnstile::new(),
            fd,
            position: Rc::new(Cell::new(offset)),
        }
    }

    /// Writes the initialised bytes of `buf`, or the first of them, and returns how many
    /// were written. Ring operation `WRITE`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// The kernel's; `InvalidInput` if the position and the length together exceed
    /// `i64::MAX`; `NotConnected` after the file was closed.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future cancels the write: all, a part or nothing of it was done. The
    /// next write begins behind what was.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let turn = self.turnstile.turn().await;
        self.write_some(buf, turn).await.0
    }

    /// Writes all initialised bytes of `buf`, with as many writes as that takes; no other
    /// write gets between them. Ring operation `WRITE`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// The one that ended it, after which the first bytes may have been written;
    /// `WriteZero` if the kernel takes no more without saying why. Else as
    /// [`write`](Self::write).
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future: as for [`write`](Self::write).
    pub async fn write_all<B: IoBuf>(&self, mut buf: B) -> BufResult<(), B> {
        let total = buf.bytes_init();
        let mut done = 0;
        let mut turn = self.turnstile.turn().await;
        // Ends: each round writes a byte or more.
        while done < total {
            let (result, part);
            ((result, part), turn) = self.write_some(buf.slice(done..), turn).await;
            buf = part.into_inner();
            match result {
                Ok(0) => return (Err(transfer::write_zero(done, total)), buf),
                Ok(count) => done += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes once; the turn ends with the operation if nobody waits for it any more.
    async fn write_some<B: IoBuf>(&self, buf: B, turn: Turn) -> (BufResult<usize, B>, Turn) {
        // The position is nobody else's to move while we have the turn.
        let checked = check_range(self.position.get(), buf.bytes_init());
        match checked.and_then(|()| self.fd.hold()) {
            Ok(hold) => {
                let write = ops::WriteNext::new(hold, buf, self.position.clone());
                current::submit(Guarded::new(write, turn)).await
            }
            Err(error) => ((Err(error), buf), turn),
        }
    }

    /// Where the next write begins, in bytes from the start; opened to append or without
    /// offsets, how far behind its first position the writer has come.
    pub fn position(&self) -> u64 {
        self.position.get()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("fd", &self.fd.as_raw_fd())
            .field("position", &self.position())
            .finish()
    }
}
