//! A path as the kernel takes it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::block::Block;

/// Bytes that a recycled block holds, the terminating zero among them: nearly all paths.
const SHORT: usize = 256;

/// A path with its terminating zero, at an address that stays.
pub struct PathArg(Place);

enum Place {
    Short(Block<[u8; SHORT]>),
    Long(CString),
}

impl PathArg {
    /// Copies the path.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it has a zero byte within.
    pub fn new(path: &Path) -> io::Result<Self> {
        let bytes = OsStr::as_bytes(path.as_os_str());
        if bytes.contains(&0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the path {path:?} has a zero byte in it"),
            ));
        }
        if bytes.len() < SHORT {
            let mut block = Block::new([0; SHORT]);
            block[..bytes.len()].copy_from_slice(bytes);
            return Ok(PathArg(Place::Short(block)));
        }
        let long = CString::new(bytes).expect("zero bytes were just looked for");
        Ok(PathArg(Place::Long(long)))
    }

    /// The path to "this very descriptor".
    pub(crate) fn empty() -> Self {
        PathArg(Place::Short(Block::new([0; SHORT])))
    }

    pub(crate) fn as_ptr(&self) -> *const libc::c_char {
        match &self.0 {
            Place::Short(block) => block.as_ptr().cast(),
            Place::Long(string) => string.as_ptr(),
        }
    }
}
