//! Calls that name a file by its path and are done with it when they return.

use std::io;
use std::path::Path;

use roundel_reactor::{BufResult, IoBuf, current, ops};

use crate::file::File;
use crate::metadata::Metadata;
use crate::path_error::PathError;

/// Reads a whole file. Its size is a hint only, so files that grow and those in `/proc`,
/// which have none, are read to their end, too. Ring operations `OPENAT`, `STATX`, `READ`,
/// Linux 5.6+.
///
/// # Errors
///
/// The kernel's, naming the path (see [`PathError`]); `OutOfMemory`.
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// Dropping this future ends it; what a FIFO gave up until then is lost.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    let file = File::open(path).await?;
    read_file(&file)
        .await
        .map_err(|error| PathError::wrap("read", path, error))
}

async fn read_file(file: &File) -> io::Result<Vec<u8>> {
    let size = file.metadata().await?.len();
    let mut buf = Vec::new();
    if size > 0 {
        // A byte more, so that the end shows without a larger buffer.
        let room = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        buf.try_reserve_exact(room)
            .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    }
    let (result, buf) = file.reader().read_to_end(buf).await;
    result.map(|_| buf)
}

/// Reads a whole file that is text. Ring operations as [`read()`].
///
/// # Errors
///
/// `InvalidData`, naming the path, if it is not UTF-8; else as [`read()`].
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// Dropping this future: as for [`read()`].
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    String::from_utf8(read(path).await?).map_err(|error| {
        let error = io::Error::new(io::ErrorKind::InvalidData, error.utf8_error());
        PathError::wrap("read", path, error)
    })
}

/// Writes a whole file: makes it if it is missing, empties it if it is there, writes the
/// initialised bytes of `contents`, and gives them back. Ring operations `OPENAT`, `WRITE`,
/// Linux 5.6+.
///
/// # Errors
///
/// The kernel's, naming the path (see [`PathError`]). After an error the file may be
/// missing, empty or written in part.
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// Dropping this future ends it and leaves the file as after an error.
pub async fn write<B: IoBuf>(path: impl AsRef<Path>, contents: B) -> BufResult<(), B> {
    let path = path.as_ref();
    let file = match File::create(path).await {
        Ok(file) => file,
        Err(error) => return (Err(error), contents),
    };
    let (result, contents) = file.write_all_at(contents, 0).await;
    let result = result.map_err(|error| PathError::wrap("write", path, error));
    (result, contents)
}

/// The metadata of the file at a path; of a symbolic link's target. Ring operation
/// `STATX`, Linux 5.6+.
///
/// # Errors
///
/// The kernel's, naming the path (see [`PathError`]).
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// Dropping this future changes nothing.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    stat(path.as_ref(), true).await
}

/// The metadata of the file at a path; of a symbolic link itself. Ring operation `STATX`,
/// Linux 5.6+.
///
/// # Errors
///
/// The kernel's, naming the path (see [`PathError`]).
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// Dropping this future changes nothing.
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    stat(path.as_ref(), false).await
}

async fn stat(path: &Path, follow: bool) -> io::Result<Metadata> {
    let stat = async {
        let path = ops::PathArg::new(path)?;
        current::submit(ops::Statx::of_path(path, follow)).await
    };
    match stat.await {
        Ok(stat) => Ok(Metadata::new(stat)),
        Err(error) => Err(PathError::wrap("stat", path, error)),
    }
}
