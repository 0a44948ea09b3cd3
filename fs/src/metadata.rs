//! What is known of a file without reading it.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use roundel_reactor::ops::Stat;
use rustix::fs::FileType as Kind;

/// A file's metadata, as of the moment it was asked for.
///
/// Besides std's methods it has those of std's `MetadataExt`, with the same names.
#[derive(Clone)]
pub struct Metadata(Stat);

impl Metadata {
    pub(crate) fn new(stat: Stat) -> Self {
        Metadata(stat)
    }

    /// Length in bytes; 0 where it is not known, as of the files in `/proc`.
    #[allow(
        clippy::len_without_is_empty,
        reason = "std's name; a file is no collection"
    )]
    pub fn len(&self) -> u64 {
        self.0.size()
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        FileType(Kind::from_raw_mode(self.0.mode()))
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a symbolic link, which only
    /// [`symlink_metadata`](crate::symlink_metadata) can say.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Who may do what with it.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode())
    }

    /// When it was last written.
    ///
    /// # Errors
    ///
    /// None here; the signature is std's.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.0.modified())
    }

    /// When it was last read, as far as the file system keeps account of that.
    ///
    /// # Errors
    ///
    /// None here; the signature is std's.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        Ok(self.0.accessed())
    }

    /// When it was made.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the file system does not remember.
    pub fn created(&self) -> io::Result<SystemTime> {
        self.0.created().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "this file system does not keep the time of creation",
            )
        })
    }

    /// The device it is on.
    pub fn dev(&self) -> u64 {
        let (major, minor) = self.0.dev();
        rustix::fs::makedev(major, minor)
    }

    /// Its number in its file system.
    pub fn ino(&self) -> u64 {
        self.0.ino()
    }

    /// Kind and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }

    /// How many names it has.
    pub fn nlink(&self) -> u64 {
        self.0.nlink().into()
    }

    /// The user it belongs to.
    pub fn uid(&self) -> u32 {
        self.0.uid()
    }

    /// The group it belongs to.
    pub fn gid(&self) -> u32 {
        self.0.gid()
    }

    /// Length in bytes, as [`len`](Self::len).
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Bytes that suit one transfer.
    pub fn blksize(&self) -> u64 {
        self.0.blksize().into()
    }

    /// 512-byte blocks it takes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("file_type", &self.file_type())
            .field("permissions", &self.permissions())
            .field("len", &self.len())
            .field("modified", &self.0.modified())
            .field("accessed", &self.0.accessed())
            .field("created", &self.0.created())
            .finish_non_exhaustive()
    }
}

/// A kind of file. With std's methods, those of its `FileTypeExt` among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType(Kind);

impl FileType {
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0 == Kind::RegularFile
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0 == Kind::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0 == Kind::Symlink
    }

    /// Whether it is a FIFO, a pipe with or without a name.
    pub fn is_fifo(&self) -> bool {
        self.0 == Kind::Fifo
    }

    /// Whether it is a socket.
    pub fn is_socket(&self) -> bool {
        self.0 == Kind::Socket
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.0 == Kind::BlockDevice
    }

    /// Whether it is a character device, as `/dev/null`.
    pub fn is_char_device(&self) -> bool {
        self.0 == Kind::CharacterDevice
    }
}
