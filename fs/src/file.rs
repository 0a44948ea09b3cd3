//! An open file: transfers at offsets, length, durability, metadata.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use roundel_blocking_pool::{Account, current as pool};
use roundel_reactor::{BufResult, IoBuf, IoBufMut, SharedFd, current, ops};
use rustix::fs::OFlags;

use crate::metadata::Metadata;
use crate::open_options::OpenOptions;
use crate::stream::{Reader, Writer};
use crate::transfer::{self, Source, check_len, check_range, invalid_input};

/// An open file.
///
/// It has no position: every transfer names its offset, so any number of them may be in
/// flight at once. [`reader`](Self::reader) and [`writer`](Self::writer) have positions.
///
/// A clone is a handle to the same open file, without a system call. The file belongs to
/// this thread's shard. With its last handle it is closed in the background once its
/// operations are over; [`close`](Self::close) says how that went.
///
/// **Buffers** are owned by an operation while it runs and come back with its result. A
/// read fills the buffer from its start up to its capacity; lend a
/// [slice](IoBufMut::slice_mut) to fill a part.
///
/// **Errors**, besides those named at each method: the kernel's, and `NotConnected` after
/// a `close` through any handle. **Panics**: every method that returns a future panics, when
/// that is polled, if no shard runs on this thread.
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
/// # let path = std::env::temp_dir().join(format!("roundel-file-{}", std::process::id()));
/// # let reactor = Reactor::new(&RingConfig::default())?;
/// # block_on(&reactor, async {
/// use roundel_fs::File;
///
/// let file = File::options().read(true).write(true).create(true).open(&path).await?;
/// let (result, _text) = file.write_all_at("hello, world", 0).await;
/// result?;
/// let (count, buf) = file.read_at(Vec::with_capacity(64), 7).await;
/// assert_eq!(count?, 5);
/// assert_eq!(buf, b"world");
/// file.close().await?;
/// # std::io::Result::Ok(())
/// # })?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct File {
    fd: SharedFd,
    /// Opened with `O_APPEND`: the kernel ignores the offset of a write.
    appends: bool,
}

impl File {
    /// Opens a file to read. Ring operation `OPENAT`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`]. Dropping this future: as there.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file to write: makes it if it is missing and empties it if it is there.
    /// Ring operation `OPENAT`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`]. Dropping this future: as there.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        options.open(path).await
    }

    /// Makes a file to read and write. Ring operation `OPENAT`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if it is there; else as [`OpenOptions::open`]. Dropping this
    /// future: as there.
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options.open(path).await
    }

    /// Options to open a file with.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes over a file that std opened; the same as `From`.
    pub fn from_std(file: std::fs::File) -> File {
        File::from(OwnedFd::from(file))
    }

    pub(crate) fn new(fd: OwnedFd, appends: bool) -> File {
        File {
            fd: SharedFd::new(fd),
            appends,
        }
    }

    /// Reads at an offset into `buf`, from its start, and returns how many bytes that
    /// were: fewer than fit at the end of the file, and 0 behind it. Where there are no
    /// offsets (FIFOs, terminals) it reads what comes next. Ring operation `READ`, Linux
    /// 5.6+.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for the offset `u64::MAX` and for an offset and capacity that
    /// together exceed `i64::MAX`, before anything is read.
    ///
    /// Dropping this future cancels the read; the buffer does not come back, and what a
    /// FIFO gave up meanwhile is lost (a [`reader`](Self::reader) loses nothing).
    pub async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let checked = check_range(offset, buf.bytes_total());
        match checked.and_then(|()| self.fd.hold()) {
            Ok(hold) => current::submit(ops::ReadAt::new(hold, buf, offset)).await,
            Err(error) => (Err(error), buf),
        }
    }

    /// Fills the whole capacity of `buf` from an offset on, with as many reads as that
    /// takes. Ring operation `READ`, Linux 5.6+.
    ///
    /// A vector may have a larger capacity than was asked for; lend `buf.slice_mut(..n)`
    /// where the length has to be exact.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` at once where the file ends. After any error the buffer has what
    /// arrived until then, and its length says how much (a buffer of fixed size has no
    /// length of its own; the text of `UnexpectedEof` says it, too). Else as
    /// [`read_at`](Self::read_at), and so is dropping this future.
    pub async fn read_exact_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<(), B> {
        if let Err(error) = check_range(offset, buf.bytes_total()) {
            return (Err(error), buf);
        }
        transfer::fill(&Tail { file: self, offset }, buf).await
    }

    /// Writes the initialised bytes of `buf`, or the first of them, at an offset, and
    /// returns how many were written. A gap before the offset reads as zeros. Ring
    /// operation `WRITE`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for the offset `u64::MAX`, for an offset and length that together
    /// exceed `i64::MAX`, and for a file that was opened to append (there the kernel
    /// ignores the offset: use a [`writer`](Self::writer)), before anything is written.
    ///
    /// Dropping this future cancels the write: all, a part or nothing of it was done.
    pub async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let checked = self.check_write(offset, buf.bytes_init());
        match checked.and_then(|()| self.fd.hold()) {
            Ok(hold) => current::submit(ops::WriteAt::new(hold, buf, offset)).await,
            Err(error) => (Err(error), buf),
        }
    }

    /// Writes all initialised bytes of `buf` from an offset on, with as many writes as
    /// that takes; each goes on where the one before ended. Ring operation `WRITE`, Linux
    /// 5.6+.
    ///
    /// # Errors
    ///
    /// The one that ended it, after which the first bytes may have been written;
    /// `WriteZero` if the kernel takes no more without saying why. Else as
    /// [`write_at`](Self::write_at), and so is dropping this future.
    pub async fn write_all_at<B: IoBuf>(&self, mut buf: B, offset: u64) -> BufResult<(), B> {
        let total = buf.bytes_init();
        if let Err(error) = self.check_write(offset, total) {
            return (Err(error), buf);
        }
        let mut done = 0;
        // Ends: each round writes a byte or more.
        while done < total {
            let (result, part) = self.write_at(buf.slice(done..), offset + done as u64).await;
            buf = part.into_inner();
            match result {
                Ok(0) => return (Err(transfer::write_zero(done, total)), buf),
                Ok(count) => done += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    fn check_write(&self, offset: u64, len: usize) -> io::Result<()> {
        if self.appends {
            return Err(invalid_input(
                "this file was opened to append, where the kernel ignores offsets: \
                 use its writer, which writes at the end"
                    .to_owned(),
            ));
        }
        check_range(offset, len)
    }

    /// Makes what was written durable, contents and metadata. Ring operation `FSYNC`,
    /// Linux 5.1+.
    ///
    /// # Errors
    ///
    /// The kernel's. It reports a failed write-back once: after an error, do not count on
    /// what was written since the last success.
    ///
    /// Dropping this future leaves open whether it was done.
    pub async fn sync_all(&self) -> io::Result<()> {
        current::submit(ops::Sync::new(self.fd.hold()?, false)).await
    }

    /// Makes what was written durable, without metadata that is not needed to read it
    /// back, as times. Ring operation `FSYNC`, Linux 5.1+.
    ///
    /// # Errors
    ///
    /// As [`sync_all`](Self::sync_all), and so is dropping this future.
    pub async fn sync_data(&self) -> io::Result<()> {
        current::submit(ops::Sync::new(self.fd.hold()?, true)).await
    }

    /// The file's metadata. Ring operation `STATX`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// The kernel's. Dropping this future changes nothing.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let stat = current::submit(ops::Statx::of_file(self.fd.hold()?)).await?;
        Ok(Metadata::new(stat))
    }

    /// Cuts the file to `len` bytes, or lets it grow with zeros. Ring operation
    /// `FTRUNCATE`, Linux 6.9+; on older kernels a call on the thread's blocking pool.
    ///
    /// # Errors
    ///
    /// `InvalidInput` beyond `i64::MAX`, and for a file that was not opened to write (or
    /// on an older kernel where the thread has no blocking pool).
    ///
    /// Dropping this future leaves open whether it was done.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        check_len(len)?;
        let hold = self.fd.hold()?;
        match current::submit(ops::Truncate::new(hold, len)).await {
            // The kernel does not know the operation, or refuses it for this file: a call
            // tells which.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.set_len_on_pool(len, error).await
            }
            result => result,
        }
    }

    async fn set_len_on_pool(&self, len: u64, error: io::Error) -> io::Result<()> {
        if pool::pool().is_none() {
            return Err(error);
        }
        // A descriptor of its own, since the job may outlive this file.
        let file = std::fs::File::from(self.fd.get()?.try_clone_to_owned()?);
        let job = pool::submit(Account::Bound, move || file.set_len(len));
        job.await.map_err(io::Error::other)?
    }

    /// Reads in order, with a position of its own that begins at 0.
    pub fn reader(&self) -> Reader {
        self.reader_at(0)
    }

    /// Reads in order from an offset on.
    pub fn reader_at(&self, offset: u64) -> Reader {
        Reader::new(self.fd.clone(), offset)
    }

    /// Writes in order, with a position of its own that begins at 0. Opened to append,
    /// each write goes to the end of the file at that time.
    pub fn writer(&self) -> Writer {
        self.writer_at(0)
    }

    /// Writes in order from an offset on, which has no meaning for a file that was opened
    /// to append.
    pub fn writer_at(&self, offset: u64) -> Writer {
        Writer::new(self.fd.clone(), offset)
    }

    /// Closes the file for every handle, reader and writer: cancels the operations in
    /// flight, waits for them, and reports what the kernel says. Ring operation `CLOSE`,
    /// Linux 5.6+.
    ///
    /// It does not make anything durable: [`sync_all`](Self::sync_all) does.
    ///
    /// # Errors
    ///
    /// The kernel's; `NotConnected` if somebody closed it before.
    ///
    /// Dropping this future leaves the file unusable; it is closed with its last handle.
    pub async fn close(&self) -> io::Result<()> {
        self.fd.close().await
    }
}

/// A file from an offset on.
struct Tail<'a> {
    file: &'a File,
    offset: u64,
}

impl Source for Tail<'_> {
    async fn read_some<B: IoBufMut>(&self, buf: B, done: usize) -> BufResult<usize, B> {
        self.file.read_at(buf, self.offset + done as u64).await
    }
}

impl From<OwnedFd> for File {
    /// Takes a descriptor over.
    fn from(fd: OwnedFd) -> File {
        // It fails for descriptors that are not open, which an owned one is.
        let appends =
            rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        File::new(fd, appends)
    }
}

impl From<std::fs::File> for File {
    /// Takes over a file that std opened. Its position is left alone and not used.
    fn from(file: std::fs::File) -> File {
        File::from_std(file)
    }
}

impl AsFd for File {
    /// For calls that this crate does not have. Not to be used after
    /// [`close`](File::close).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("fd", &self.fd.as_raw_fd())
            .field("appends", &self.appends)
            .finish()
    }
}
