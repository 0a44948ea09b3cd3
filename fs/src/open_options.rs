//! How a file is opened.

use std::io;
use std::path::Path;

use roundel_reactor::{current, ops};
use rustix::fs::OFlags;

use crate::file::File;
use crate::path_error::PathError;
use crate::transfer::invalid_input;

/// Options of an open, with std's names, meanings and rules.
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
/// # let path = std::env::temp_dir().join(format!("roundel-options-{}", std::process::id()));
/// # let reactor = Reactor::new(&RingConfig::default())?;
/// # block_on(&reactor, async {
/// use roundel_fs::OpenOptions;
///
/// let log = OpenOptions::new().append(true).create(true).open(&path).await?;
/// log.writer().write_all("a line\n").await.0?;
/// # std::io::Result::Ok(())
/// # })?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
    custom_flags: i32,
}

impl OpenOptions {
    /// Nothing is asked for yet; a new file would be readable and writable for all, less
    /// the process's umask.
    pub fn new() -> Self {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            custom_flags: 0,
        }
    }

    /// To read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// To write.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// To write at the end only, wherever that is at the time of the write. Such a file
    /// has no `write_at`: see [`File::writer`].
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// To empty the file, which takes [`write`](Self::write).
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// To make the file if it is missing, which takes [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// To make the file, and to fail with `AlreadyExists` if it is there;
    /// [`create`](Self::create) and [`truncate`](Self::truncate) have no meaning then.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// The permissions of a new file, less the process's umask; 0o666 unless set.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// More flags for `open(2)`; the access mode among them is ignored.
    ///
    /// With `O_NONBLOCK`, reads and writes of a FIFO or device that would have to wait
    /// fail with `WouldBlock`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Opens the file at `path`, relative to the working directory. The descriptor is
    /// close-on-exec. Ring operation `OPENAT`, Linux 5.6+.
    ///
    /// # Errors
    ///
    /// The kernel's, naming the path (see [`PathError`]); `InvalidInput` for options that
    /// contradict each other and for a path with a zero byte.
    ///
    /// # Panics
    ///
    /// If no shard runs on this thread.
    ///
    /// Dropping this future cancels the open; a file that was opened all the same is
    /// closed, but stays created or emptied.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        self.open_path(path)
            .await
            .map_err(|error| PathError::wrap("open", path, error))
    }

    async fn open_path(&self, path: &Path) -> io::Result<File> {
        let flags = self.flags()?;
        let path = ops::PathArg::new(path)?;
        // The bits of `open(2)` in the type it takes them in.
        let bits = flags.bits().cast_signed();
        let fd = current::submit(ops::OpenAt::new(path, bits, self.mode)).await?;
        Ok(File::new(fd, flags.contains(OFlags::APPEND)))
    }

    fn flags(&self) -> io::Result<OFlags> {
        let custom = OFlags::from_bits_retain(self.custom_flags.cast_unsigned());
        Ok(self.access()? | self.creation()? | custom.difference(OFlags::ACCMODE))
    }

    fn access(&self) -> io::Result<OFlags> {
        match (self.read, self.write, self.append) {
            (true, false, false) => Ok(OFlags::RDONLY),
            (false, true, false) => Ok(OFlags::WRONLY),
            (true, true, false) => Ok(OFlags::RDWR),
            (false, _, true) => Ok(OFlags::WRONLY | OFlags::APPEND),
            (true, _, true) => Ok(OFlags::RDWR | OFlags::APPEND),
            (false, false, false) => Err(contradiction("ask for `read`, `write` or `append`")),
        }
    }

    fn creation(&self) -> io::Result<OFlags> {
        let writes = self.write || self.append;
        if !writes && (self.truncate || self.create || self.create_new) {
            return Err(contradiction(
                "`truncate`, `create` and `create_new` take `write` or `append`",
            ));
        }
        if self.append && self.truncate && !self.create_new {
            return Err(contradiction("`append` and `truncate` exclude each other"));
        }
        Ok(match (self.create, self.truncate, self.create_new) {
            (_, _, true) => OFlags::CREATE | OFlags::EXCL,
            (true, true, false) => OFlags::CREATE | OFlags::TRUNC,
            (true, false, false) => OFlags::CREATE,
            (false, true, false) => OFlags::TRUNC,
            (false, false, false) => OFlags::empty(),
        })
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

fn contradiction(remedy: &str) -> io::Error {
    invalid_input(format!("these options cannot open a file: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the switches is valid here exactly where it is in std.
    #[test]
    fn validity_is_stds() {
        let path = std::env::temp_dir().join(format!("roundel-validity-{}", std::process::id()));
        for bits in 0..64_u32 {
            let on = |bit: u32| bits & (1 << bit) != 0;
            let mut ours = OpenOptions::new();
            ours.read(on(0)).write(on(1)).append(on(2));
            ours.truncate(on(3)).create(on(4)).create_new(on(5));
            let mut theirs = std::fs::OpenOptions::new();
            theirs.read(on(0)).write(on(1)).append(on(2));
            theirs.truncate(on(3)).create(on(4)).create_new(on(5));
            let opened = theirs.open(&path);
            let refused = opened
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
            if opened.is_ok() {
                let _ = std::fs::remove_file(&path);
            }
            assert_eq!(ours.flags().is_err(), refused, "{ours:?}");
        }
    }

    /// Custom flags cannot change the access mode.
    #[test]
    fn custom_flags_leave_the_access_mode() {
        let custom = (OFlags::RDWR | OFlags::DIRECTORY).bits().cast_signed();
        let flags = OpenOptions::new().read(true).custom_flags(custom).flags();
        assert_eq!(flags.unwrap(), OFlags::RDONLY | OFlags::DIRECTORY);
    }
}
