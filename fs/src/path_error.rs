//! The error of a call that names a path: it says which call and which path.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What stands inside the [`io::Error`] of a call that was given a path.
///
/// The outer error keeps the [`io::ErrorKind`]. Its text names the call and the path, and
/// its source is the kernel's error. An `io::Error` that carries something of its own has
/// no `raw_os_error` any more; this has it:
///
/// ```
/// use roundel_fs::PathError;
///
/// fn errno(error: &std::io::Error) -> Option<i32> {
///     match error.get_ref().and_then(|inner| inner.downcast_ref::<PathError>()) {
///         Some(error) => error.raw_os_error(),
///         None => error.raw_os_error(),
///     }
/// }
/// # assert_eq!(errno(&std::io::Error::from_raw_os_error(5)), Some(5));
/// ```
#[derive(Debug)]
pub struct PathError {
    operation: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl PathError {
    /// An error of the same kind that names the call and the path.
    pub(crate) fn wrap(operation: &'static str, path: &Path, error: io::Error) -> io::Error {
        io::Error::new(
            error.kind(),
            PathError {
                operation,
                path: path.to_owned(),
                error,
            },
        )
    }

    /// What was tried: `open`, `read`, `write`, `stat`.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's errno; `None` if the call was refused before the kernel had it.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.error.raw_os_error()
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.operation, self.path, self.error)
    }
}

impl Error for PathError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind, text, errno and source chain of the kernel's error survive.
    #[test]
    fn names_call_and_path_and_keeps_the_rest() {
        let error = PathError::wrap("open", Path::new("/x"), io::Error::from_raw_os_error(2));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            "open \"/x\": No such file or directory (os error 2)"
        );
        let inner = error
            .get_ref()
            .unwrap()
            .downcast_ref::<PathError>()
            .unwrap();
        assert_eq!(inner.raw_os_error(), Some(2));
        assert_eq!((inner.operation(), inner.path()), ("open", Path::new("/x")));
        let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
        assert_eq!(source.raw_os_error(), Some(2));
    }
}
