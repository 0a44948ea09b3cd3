#![allow(unsafe_code)]
//! Processes of their own for tests, and what they count.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// How long what ends by itself (a thread, a poller) may take to be gone. A liveness
/// bound, not a measure.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs one test of this binary alone in a process of its own.
///
/// # Errors
///
/// What it printed, if it failed.
pub(crate) fn rerun(test: &str, told: &[(&str, String)]) -> Result<(), String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(binary);
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .envs(told.iter().map(|(name, value)| (name, value)));
    let output = command.output().map_err(|error| error.to_string())?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // A name that matches no test would pass otherwise.
    if output.status.success() && text.contains("1 passed") {
        Ok(())
    } else {
        Err(format!("{text}\n{}", output.status))
    }
}

/// After how long a test is taken to be stuck: its process ends by `SIGALRM`, so that the
/// run goes on. A count as others, so three minutes in the small tier.
const STUCK_SECONDS: usize = 9_000;

/// Runs a body, and demands as many descriptors and threads after it as before.
pub(crate) fn accounted(body: impl FnOnce()) {
    raise_descriptor_limit();
    // SAFETY: sets a clock of this process, whose signal ends it.
    unsafe { libc::alarm(crate::scaled(STUCK_SECONDS) as u32) };
    let before = (descriptors(), threads());
    body();
    let until = Instant::now() + SETTLE;
    // Ends by the assertion, at the latest when the time is over.
    loop {
        let after = (descriptors(), threads());
        if after == before {
            return;
        }
        if Instant::now() > until {
            let open: Vec<String> = fs::read_dir("/proc/self/fd")
                .expect("proc is mounted")
                .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
                .map(|target| target.display().to_string())
                .collect();
            panic!("(descriptors, threads) were {before:?} and are {after:?}: {open:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How many descriptors this process has open.
///
/// # Panics
///
/// If proc is not mounted.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("proc is mounted")
        .count()
}

/// The numbers of the descriptors this process has open.
///
/// # Panics
///
/// If proc is not mounted.
pub fn open_descriptors() -> Vec<RawFd> {
    // Listed first and looked at then: the listing has a descriptor itself.
    let listed: Vec<RawFd> = fs::read_dir("/proc/self/fd")
        .expect("proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    listed
        .into_iter()
        .filter(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).is_ok())
        .collect()
}

/// How many threads this process has.
///
/// # Panics
///
/// If proc is not mounted.
pub fn threads() -> usize {
    fs::read_dir("/proc/self/task")
        .expect("proc is mounted")
        .count()
}

/// Raises the soft limit of open descriptors to the hard one.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes one `rlimit`, which is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the call reads one `rlimit`, which is ours.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Waits for the lock that tests with a kernel poller hold, and holds it until dropped.
pub(crate) fn lock_poller() -> File {
    let path = std::env::temp_dir().join("roundel-test-poller.lock");
    let file = File::create(path).expect("the directory for temporary files can be written");
    loop {
        // SAFETY: the descriptor is the file's, which is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return file;
        }
        // Ends: only a signal comes between, and the holder's death frees the lock.
        let error = io::Error::last_os_error();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
    }
}

/// A seed that is another each time.
pub(crate) fn random_seed() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64)
}
