//! CPU clocks of a thread and of a process, and pinning.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};

/// CPU time of the calling thread, in nanoseconds.
///
/// # Errors
///
/// What the kernel says.
pub fn thread_time() -> io::Result<u64> {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of a process, in nanoseconds.
///
/// # Errors
///
/// `NotFound` if the process is gone.
pub fn process_time(process: u32) -> io::Result<u64> {
    let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
    let mut id = 0;
    // SAFETY: `id` outlives the call, which writes one clock id to it.
    let errno = unsafe { libc::clock_getcpuclockid(process, &mut id) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    clock(id)
}

fn clock(id: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call, which writes one timespec to it; any number may be asked for.
    if unsafe { libc::clock_gettime(id, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A CPU time is not negative.
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Pins the calling thread, and the threads and processes that it starts from now, to one CPU.
///
/// # Errors
///
/// `InvalidInput` if the CPU does not exist or is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    assert!(
        cpu < 8 * size_of::<libc::cpu_set_t>(),
        "a set has a bit for it"
    );
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: a set is an array of integers, for which zero is a value.
    let set = unsafe { set.assume_init_mut() };
    // SAFETY: the set has a bit for this CPU, see the assertion.
    unsafe { libc::CPU_SET(cpu, set) };
    // SAFETY: the call reads one set of the size given. Process 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
