#![allow(unsafe_code)]
//! Files and folders of a test, and descriptors that it leaked on purpose.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// An empty folder that nobody else has.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes something")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("roundel-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        TempDir(path)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it, which may not be there.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a new file in it, with these contents.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, contents).expect("the test's folder can be written");
        path
    }

    /// The path of a new FIFO in it.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
            .expect("a path of ours has no zero byte");
        // SAFETY: the path ends with a zero byte and lives as long as the call.
        let made = unsafe { libc::mkfifo(text.as_ptr(), 0o600) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A test that failed may have left anything there.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Drops what the kernel's cache has of a file, so that reads go to the device.
///
/// # Panics
///
/// If the file cannot be written out.
pub fn evict(file: &File) {
    file.sync_all().expect("the test's file can be written out");
    // SAFETY: the descriptor is the file's, which is open.
    let advised = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(advised, 0, "the file's cache can be dropped");
}

/// Closes descriptors that nothing owns any more, as those of operations that were
/// forgotten.
///
/// # Panics
///
/// If one is not open: then something did own it.
pub fn close_forgotten(descriptors: &[RawFd]) {
    for &fd in descriptors {
        // SAFETY: a look at flags, whatever the number means.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        assert!(flags >= 0, "descriptor {fd} is closed already");
        // SAFETY: it is open, and the caller says that nothing owns it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
