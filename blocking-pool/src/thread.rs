//! Starting a worker thread: its name, its CPUs, its nice value, the user's hook.
//!
//! The only file that calls rustix. What the kernel refuses of the settings is left as it is: a worker
//! with the wrong nice value serves better than none.

use crate::atomics::thread;
use crate::config::{Config, StartHook};
use crate::error::contain;
use rustix::process::{Resource, getrlimit, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// What all workers of a pool have in common.
pub(crate) struct ThreadSettings {
    pub(crate) prefix: String,
    nice: Option<i32>,
    cpus: Option<CpuSet>,
    on_start: Option<StartHook>,
}

impl ThreadSettings {
    /// Reads where the calling thread may run, so that workers started later from a pinned one are not pinned.
    pub(crate) fn new(config: &Config) -> Self {
        let cpus = match &config.cpus {
            Some(cpus) => {
                let mut set = CpuSet::new();
                for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
                    set.set(cpu);
                }
                Some(set)
            }
            None => sched_getaffinity(None).ok(),
        };
        ThreadSettings {
            prefix: config.name.clone(),
            nice: config.nice,
            cpus,
            on_start: config.on_start.clone(),
        }
    }

    /// Makes the calling thread a worker of this pool.
    pub(crate) fn apply(&self, name: &str) {
        // Refusals are ignored: the docs of `Config` say so.
        if let Some(cpus) = &self.cpus {
            let _ = sched_setaffinity(None, cpus);
        }
        if let Some(nice) = self.nice {
            // Linux: nice values belong to threads, and "process" without an id is the calling thread
            // (setpriority(2), C library/kernel differences).
            let _ = setpriority_process(None, nice);
        }
        if let Some(hook) = &self.on_start {
            contain(|| hook(name));
        }
    }
}

/// Starts a detached thread.
pub(crate) fn start(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name).spawn(body).map(drop)
}

/// The most threads the process's limit allows (RLIMIT_NPROC), if there is a limit.
pub(crate) fn threads_max() -> Option<usize> {
    getrlimit(Resource::Nproc)
        .current
        .and_then(|limit| usize::try_from(limit).ok())
}
