#![allow(unsafe_code)]
//! Operations on files.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use io_uring::{opcode, squeue, types};

use crate::backend::Completion;
use crate::block::Block;
use crate::buf::{BufResult, IoBuf, IoBufMut, Lent, filled, transfer_len};
use crate::entry::Entry;
use crate::fd::FdHold;
use crate::op::Operation;
use crate::ops::PathArg;

/// Reads at an offset. Linux 5.6+.
pub struct ReadAt<B> {
    fd: FdHold,
    buf: Lent<B>,
    offset: u64,
}

impl<B: IoBufMut> ReadAt<B> {
    /// Fills `buf` from its start. Where there are no offsets (a pipe) it has no meaning.
    pub fn new(fd: FdHold, buf: B, offset: u64) -> Self {
        ReadAt {
            fd,
            buf: Lent::new(buf),
            offset,
        }
    }
}

// SAFETY: the only pointer is the buffer's, which `IoBufMut` keeps where it is while the
// buffer is alive; `Lent` hides it from everybody until `complete`.
unsafe impl<B: IoBufMut> Operation for ReadAt<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let buf = self.buf.get_mut();
        let len = transfer_len(buf.bytes_total());
        Entry(
            opcode::Read::new(fd, buf.stable_mut_ptr(), len)
                .offset(self.offset)
                .build(),
        )
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let result = completion.into_result().map(|count| count as usize);
        filled(result, self.buf.take())
    }
}

/// Writes at an offset. Linux 5.6+.
pub struct WriteAt<B> {
    fd: FdHold,
    buf: Lent<B>,
    offset: u64,
}

impl<B: IoBuf> WriteAt<B> {
    /// Writes the initialised bytes of `buf`.
    pub fn new(fd: FdHold, buf: B, offset: u64) -> Self {
        WriteAt {
            fd,
            buf: Lent::new(buf),
            offset,
        }
    }
}

// SAFETY: the only pointer is the buffer's, which `IoBuf` keeps where it is while the
// buffer is alive; `Lent` hides it from everybody until `complete`.
unsafe impl<B: IoBuf> Operation for WriteAt<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        let buf = self.buf.get_mut();
        let len = transfer_len(buf.bytes_init());
        Entry(
            opcode::Write::new(fd, buf.stable_ptr(), len)
                .offset(self.offset)
                .build(),
        )
    }

    fn complete(self, completion: Completion) -> Self::Output {
        let result = completion.into_result().map(|count| count as usize);
        (result, self.buf.take())
    }
}

/// Reads at a position that moves on by what was read, also if nobody waits any more.
pub struct ReadNext<B> {
    read: ReadAt<B>,
    position: Rc<Cell<u64>>,
}

impl<B: IoBufMut> ReadNext<B> {
    /// Reads at `position`.
    pub fn new(fd: FdHold, buf: B, position: Rc<Cell<u64>>) -> Self {
        ReadNext {
            read: ReadAt::new(fd, buf, position.get()),
            position,
        }
    }
}

// SAFETY: the entry is the read's, which is alive while this is.
unsafe impl<B: IoBufMut> Operation for ReadNext<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        self.read.entry()
    }

    fn complete(self, completion: Completion) -> Self::Output {
        advance(&self.position, completion);
        self.read.complete(completion)
    }
}

/// Writes at a position that moves on by what was written, also if nobody waits any more.
pub struct WriteNext<B> {
    write: WriteAt<B>,
    position: Rc<Cell<u64>>,
}

impl<B: IoBuf> WriteNext<B> {
    /// Writes at `position`.
    pub fn new(fd: FdHold, buf: B, position: Rc<Cell<u64>>) -> Self {
        WriteNext {
            write: WriteAt::new(fd, buf, position.get()),
            position,
        }
    }
}

// SAFETY: the entry is the write's, which is alive while this is.
unsafe impl<B: IoBuf> Operation for WriteNext<B> {
    type Output = BufResult<usize, B>;

    fn entry(&mut self) -> Entry {
        self.write.entry()
    }

    fn complete(self, completion: Completion) -> Self::Output {
        advance(&self.position, completion);
        self.write.complete(completion)
    }
}

fn advance(position: &Cell<u64>, completion: Completion) {
    let moved = u64::try_from(completion.result).unwrap_or(0);
    position.set(position.get().saturating_add(moved));
}

/// Makes what was written durable. Linux 5.1+.
pub struct Sync {
    fd: FdHold,
    data_only: bool,
}

impl Sync {
    /// `data_only`: without metadata that is not needed to read the data back.
    pub fn new(fd: FdHold, data_only: bool) -> Self {
        Sync { fd, data_only }
    }
}

// SAFETY: the entry has no pointers.
unsafe impl Operation for Sync {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        let flags = if self.data_only {
            types::FsyncFlags::DATASYNC
        } else {
            types::FsyncFlags::empty()
        };
        Entry(
            opcode::Fsync::new(types::Fd(self.fd.as_raw_fd()))
                .flags(flags)
                .build(),
        )
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        completion.into_result().map(drop)
    }
}

/// Sets a file's length. Linux 6.9+; older kernels answer `EINVAL`.
pub struct Truncate {
    fd: FdHold,
    len: u64,
}

impl Truncate {
    /// `len` in bytes.
    pub fn new(fd: FdHold, len: u64) -> Self {
        Truncate { fd, len }
    }
}

// SAFETY: the entry has no pointers.
unsafe impl Operation for Truncate {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        let fd = types::Fd(self.fd.as_raw_fd());
        Entry(opcode::Ftruncate::new(fd, self.len).build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        completion.into_result().map(drop)
    }
}

/// Opens a file. Linux 5.6+. The descriptor is close-on-exec.
///
/// It runs on a worker of the kernel's. Tried at once, the kernel would open with
/// `O_NONBLOCK`: a FIFO would then open to be read before it has a writer, and read as if
/// it had ended, and fail to be opened to be written (`ENXIO`) before it has a reader.
pub struct OpenAt {
    path: PathArg,
    flags: i32,
    mode: u32,
}

impl OpenAt {
    /// `flags` and `mode` as in `open(2)`, relative to the working directory.
    pub fn new(path: PathArg, flags: i32, mode: u32) -> Self {
        OpenAt { path, flags, mode }
    }
}

// SAFETY: the only pointer is the path's, in memory that stays while `self` is alive and
// is only read.
unsafe impl Operation for OpenAt {
    type Output = io::Result<OwnedFd>;

    fn entry(&mut self) -> Entry {
        Entry(
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), self.path.as_ptr())
                .flags(self.flags | libc::O_CLOEXEC)
                .mode(self.mode)
                .build()
                .flags(squeue::Flags::ASYNC),
        )
    }

    fn complete(self, completion: Completion) -> io::Result<OwnedFd> {
        completion.into_result().map(|fd| {
            // SAFETY: the kernel just made the descriptor for this operation alone.
            unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
        })
    }
}

/// Closes a number that is ours. Linux 5.6+.
pub struct Close {
    fd: RawFd,
}

impl Close {
    /// The number is no longer the caller's.
    pub(crate) fn new(fd: RawFd) -> Self {
        Close { fd }
    }
}

// SAFETY: the entry has no pointers.
unsafe impl Operation for Close {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        Entry(opcode::Close::new(types::Fd(self.fd)).build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        if completion.result == -libc::ECANCELED {
            // It never came to it: nobody but us will.
            crate::fd::close_now(self.fd);
            return Ok(());
        }
        completion.into_result().map(drop)
    }
}

/// What a file is: size, kind, times. Linux 5.6+.
pub struct Statx {
    /// Held, not named, if the path names the file.
    fd: Option<FdHold>,
    path: PathArg,
    flags: i32,
    result: Block<MaybeUninit<libc::statx>>,
}

impl Statx {
    /// Of an open file.
    pub fn of_file(fd: FdHold) -> Self {
        Statx {
            fd: Some(fd),
            path: PathArg::empty(),
            flags: libc::AT_EMPTY_PATH,
            result: Block::new(MaybeUninit::zeroed()),
        }
    }

    /// Of the file at a path; of a symbolic link itself unless it is to be followed.
    pub fn of_path(path: PathArg, follow: bool) -> Self {
        Statx {
            fd: None,
            path,
            flags: if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW },
            result: Block::new(MaybeUninit::zeroed()),
        }
    }
}

// SAFETY: the path and the result lie in blocks or on the heap, where they stay while
// `self` is alive; the result is not looked at before `complete`.
unsafe impl Operation for Statx {
    type Output = io::Result<Stat>;

    fn entry(&mut self) -> Entry {
        let dir = self.fd.as_ref().map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
        Entry(
            opcode::Statx::new(
                types::Fd(dir),
                self.path.as_ptr(),
                self.result.as_ptr().cast(),
            )
            .flags(self.flags)
            .mask(libc::STATX_BASIC_STATS | libc::STATX_BTIME)
            .build(),
        )
    }

    fn complete(self, completion: Completion) -> io::Result<Stat> {
        completion.into_result().map(|_| {
            // SAFETY: it was zeroed when made, which is a valid `statx`, and then filled.
            Stat(unsafe { self.result.into_inner().assume_init() })
        })
    }
}

/// The kernel's answer to [`Statx`].
#[derive(Clone)]
pub struct Stat(libc::statx);

impl Stat {
    /// Kind and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.stx_mode.into()
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    /// Number of the file in its file system.
    pub fn ino(&self) -> u64 {
        self.0.stx_ino
    }

    /// How many names it has.
    pub fn nlink(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Its owner.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Its group.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// 512-byte blocks it takes.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }

    /// Bytes that suit one transfer.
    pub fn blksize(&self) -> u32 {
        self.0.stx_blksize
    }

    /// The device it is on: major and minor number.
    pub fn dev(&self) -> (u32, u32) {
        (self.0.stx_dev_major, self.0.stx_dev_minor)
    }

    /// When it was last read.
    pub fn accessed(&self) -> SystemTime {
        system_time(&self.0.stx_atime)
    }

    /// When it was last written.
    pub fn modified(&self) -> SystemTime {
        system_time(&self.0.stx_mtime)
    }

    /// When it was made, if the file system remembers.
    pub fn created(&self) -> Option<SystemTime> {
        (self.0.stx_mask & libc::STATX_BTIME != 0).then(|| system_time(&self.0.stx_btime))
    }
}

fn system_time(at: &libc::statx_timestamp) -> SystemTime {
    let whole = Duration::from_secs(at.tv_sec.unsigned_abs());
    let base = if at.tv_sec < 0 {
        SystemTime::UNIX_EPOCH - whole
    } else {
        SystemTime::UNIX_EPOCH + whole
    };
    base + Duration::from_nanos(at.tv_nsec.into())
}
