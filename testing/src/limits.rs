#![allow(unsafe_code)]
//! Limits of the process that a test lowers for a while, and what it has used.

use std::time::Duration;

/// A lowered soft limit, which is put back when this is dropped.
#[derive(Debug)]
pub struct Lowered {
    resource: libc::__rlimit_resource_t,
    before: libc::rlimit,
}

impl Lowered {
    /// Descriptors get numbers below this only.
    ///
    /// # Panics
    ///
    /// If the limit cannot be set.
    pub fn descriptors(below: usize) -> Self {
        Self::set(libc::RLIMIT_NOFILE, below)
    }

    /// Files do not grow beyond this many bytes. A write that begins there gets `EFBIG`,
    /// since `SIGXFSZ` is ignored from now on.
    ///
    /// # Panics
    ///
    /// If the limit cannot be set.
    pub fn file_size(bytes: usize) -> Self {
        // SAFETY: ignoring a signal needs no handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Self::set(libc::RLIMIT_FSIZE, bytes)
    }

    fn set(resource: libc::__rlimit_resource_t, soft: usize) -> Self {
        let mut before = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the call writes one `rlimit`, which is ours.
        let got = unsafe { libc::getrlimit(resource, &mut before) };
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        let limit = libc::rlimit {
            rlim_cur: soft as libc::rlim_t,
            ..before
        };
        // SAFETY: the call reads one `rlimit`, which is ours.
        let set = unsafe { libc::setrlimit(resource, &limit) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        Lowered { resource, before }
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        // SAFETY: the call reads one `rlimit`, which is ours.
        let set = unsafe { libc::setrlimit(self.resource, &self.before) };
        debug_assert_eq!(set, 0, "a soft limit can be raised to the hard one");
    }
}

/// The CPU time of all threads of this process, a kernel poller's among them.
///
/// # Panics
///
/// If the clock cannot be read.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which is ours.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(read, 0, "{}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
