#![allow(unsafe_code)]
//! Signals that disturb a thread, and actions of signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the handler ran.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Sends `SIGALRM` to the thread that made it, again and again, until it is dropped. The
/// handler does nothing and does not let interrupted calls restart.
#[derive(Debug)]
pub struct Alarms {
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Alarms {
    /// One alarm in each `period`.
    ///
    /// # Panics
    ///
    /// If the handler cannot be installed.
    pub fn every(period: Duration) -> Self {
        install();
        // SAFETY: asks for the number of this thread.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sender = std::thread::spawn(move || {
            // Ends when the alarms are dropped.
            while !stopped.load(Ordering::Relaxed) {
                // SAFETY: by number: at worst the thread is gone and the call fails.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGALRM) };
                std::thread::sleep(period);
            }
        });
        Alarms {
            stop,
            sender: Some(sender),
        }
    }

    /// How many have arrived in this process so far.
    pub fn arrived() -> u64 {
        ARRIVED.load(Ordering::Relaxed)
    }
}

impl Drop for Alarms {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            // It does nothing that could panic.
            let _ = sender.join();
        }
    }
}

fn install() {
    extern "C" fn count(_signal: libc::c_int) {
        ARRIVED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: all zeros is an action without flags, `SA_RESTART` among them, and with an
    // empty mask; the handler only counts.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut())
    };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

/// Gives `SIGPIPE` its default action back, which ends the process. Rust programs ignore
/// it unless told otherwise.
pub fn die_of_sigpipe() {
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
