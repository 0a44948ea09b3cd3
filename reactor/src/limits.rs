#![allow(unsafe_code)]
//! Why a ring could not be made: the errno in words, with the limits in force.

use std::io;

/// An error that says what usually causes it, and the limits that bear on it.
pub(crate) fn explain(error: &io::Error, entries: u32) -> io::Error {
    let cause = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "io_uring is refused: by the sysctl kernel.io_uring_disabled, or by a seccomp \
             filter such as a container's default profile. Allow io_uring there"
        }
        Some(libc::ENOSYS) => {
            "this kernel has no io_uring, or a seccomp filter hides it. Linux 6.1 or newer \
             with io_uring is needed"
        }
        Some(libc::EACCES) => {
            "io_uring is refused by a security module or a seccomp filter. Allow io_uring there"
        }
        Some(libc::EINVAL) => {
            "the kernel knows none of the ring's set-up flags: Linux 6.1 or newer is needed; or \
             the poller's CPU does not exist"
        }
        Some(libc::ENOMEM) => {
            "the memory this user may lock is used up. Raise the memlock limit, or ask for \
             fewer entries or cores"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "there is no descriptor left. Raise the limit of open files"
        }
        _ => "the kernel refused",
    };
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .map_or_else(|_| "not known".into(), |value| value.trim().to_owned());
    let text = format!(
        "no io_uring of {entries} entries is to be had: {error}. Usual cause: {cause}. In force: \
         memlock {}, open files {}, kernel.io_uring_disabled {disabled}",
        limit(libc::RLIMIT_MEMLOCK),
        limit(libc::RLIMIT_NOFILE),
    );
    io::Error::new(error.kind(), text)
}

/// Soft and hard limit of a resource, in words.
fn limit(resource: libc::__rlimit_resource_t) -> String {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes one `rlimit`, which is ours.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return "not known".into();
    }
    let word = |value| match value {
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        value => value.to_string(),
    };
    format!(
        "{} (at most {})",
        word(limit.rlim_cur),
        word(limit.rlim_max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text names the errno, a cause with a remedy, and the limits.
    #[test]
    fn an_explanation_names_cause_remedy_and_limits() {
        let error = io::Error::from_raw_os_error(libc::ENOMEM);
        let text = explain(&error, 256).to_string();
        for part in [
            "256 entries",
            "os error 12",
            "Raise the memlock limit",
            "open files",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
