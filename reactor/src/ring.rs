#![allow(unsafe_code)]
//! The only file that sets up, registers with and enters io_uring.
//!
//! Two kinds of ring, whose flags the kernel refuses to mix:
//!
//! - **Defer**: `SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG | SUBMIT_ALL | CLAMP`. The
//!   kernel finishes operations only when the owner enters it asking for events, so its
//!   completion queue does not move by itself: `TASKRUN` in the ring's flags says that
//!   there is something to enter for, and [`Backend::ready`] looks at it, too (H10).
//! - **SqPoll**: a kernel thread takes entries off the submission queue. Order: publish
//!   the tail, full fence, read `NEED_WAKEUP`, and enter if it is set; without the fence
//!   the poller may go to sleep over an entry (H09).
//!
//! The `io-uring` crate maps the ring and writes its queues. The enter call is our own,
//! because it names the ring by its registered number, which saves the kernel a look-up
//! (a quarter of a no-op at depth 1). A thread has 16 such numbers, and closing a ring
//! does not free its number: it is given back before.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe};

use crate::backend::{BATCH, Backend, Completion, Crossings, Register, Wait};
use crate::entry::Entry;
use crate::limits;

/// Which kind of ring serves a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingMode {
    /// What suits the machine. In this version the same as [`Defer`](Self::Defer).
    #[default]
    Auto,
    /// A kernel thread polls the submission queue: no system call per submission, at the
    /// price of a CPU while there is work. Linux 6.1+.
    SqPoll,
    /// The shard enters the kernel once a turn. Linux 6.1+.
    Defer,
}

impl RingMode {
    /// The mode that serves: [`Auto`](Self::Auto) is [`Defer`](Self::Defer) in this version.
    pub fn chosen(self) -> Self {
        match self {
            RingMode::Auto => RingMode::Defer,
            mode => mode,
        }
    }

    /// The mode by the name that the environment variable `ROUNDEL_RING` and the
    /// attributes use.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(RingMode::Auto),
            "sqpoll" => Some(RingMode::SqPoll),
            "defer" => Some(RingMode::Defer),
            _ => None,
        }
    }
}

/// How a ring is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Which kind of ring.
    pub mode: RingMode,
    /// Places in the submission queue, rounded up to a power of two by the kernel. The
    /// completion queue has four times as many.
    pub entries: u32,
    /// How long a kernel poller stays awake without work. The kernel counts in jiffies, so
    /// a millisecond is about five where there are 250 of them a second.
    pub sq_idle: Duration,
    /// The CPU the kernel poller is pinned to, if any.
    pub sq_cpu: Option<u32>,
}

impl Default for RingConfig {
    fn default() -> Self {
        RingConfig {
            mode: RingMode::Auto,
            // Larger rings measured no faster; a full one is flushed, not an error.
            entries: 256,
            // The shortest the kernel takes: an idle poller burns a core for no one.
            sq_idle: Duration::from_millis(1),
            sq_cpu: None,
        }
    }
}

/// Completion places for each submission place: operations wait longer than entries do.
const CQ_FACTOR: u32 = 4;
/// How long memory of rings just closed may take to come back to the memlock account.
const RETRY_FOR: Duration = Duration::from_secs(2);
/// Smaller rings than this are not worth having.
const ENTRIES_MIN: u32 = 8;
/// How long to look at the completion queue before blocking behind an awake poller, whose
/// answer comes sooner than a sleeping thread wakes.
const POLLER_SPIN: Duration = Duration::from_micros(20);

/// The longest wait the kernel is asked for, 34 years: it adds the time of day without
/// looking for an overflow, and a wait that ends early is only a turn of the loop.
const WAIT_MAX_SECONDS: u64 = 1 << 30;

// `io_uring_enter(2)` and `io_uring_register(2)`.
const ENTER_GETEVENTS: u32 = 1;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const ENTER_SQ_WAIT: u32 = 1 << 2;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// `struct io_uring_getevents_arg`
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_usec: u32,
    timespec: u64,
}

/// `struct io_uring_rsrc_update`
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    fd: u64,
}

/// A ring of the kernel's, entered by the thread that made it.
pub(crate) struct Ring {
    ring: IoUring,
    sqpoll: bool,
    /// The ring's number among this thread's registered rings.
    registered: Option<u32>,
    /// Entries in the submission queue that the kernel has not been told of.
    unsubmitted: u32,
    crossings: Crossings,
    /// The value of [`FORKS`] when the ring was made.
    forks: u32,
}

impl Ring {
    /// # Errors
    ///
    /// If the kernel gives no ring, also no smaller one, for two seconds; or if it is too
    /// old.
    pub(crate) fn new(config: &RingConfig) -> io::Result<Self> {
        if config.entries == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a ring needs at least one entry: ask for a power of two such as 256",
            ));
        }
        watch_forks();
        let sqpoll = config.mode == RingMode::SqPoll;
        let ring = patiently(config.entries, |entries| build(config, entries))?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring is too old: roundel needs Linux 6.1 or newer",
            ));
        }
        let registered = register_ring(ring.as_raw_fd());
        Ok(Ring {
            ring,
            sqpoll,
            registered,
            unsubmitted: 0,
            crossings: Crossings::default(),
            forks: FORKS.load(Ordering::Relaxed),
        })
    }

    /// Moves entries into the submission queue, as many as there is room for.
    fn push(&mut self, staged: &mut VecDeque<Entry>) {
        let mut queue = self.ring.submission();
        let room = queue.capacity() - queue.len();
        for entry in staged.drain(..room.min(staged.len())) {
            // SAFETY: the operation that wrote the entry keeps what it names valid until
            // its last completion (contract of `Operation`), whether its future lives,
            // is dropped (it then moves into its slot) or is forgotten.
            let pushed = unsafe { queue.push(&entry.0) };
            debug_assert!(pushed.is_ok(), "there was room");
            self.unsubmitted += 1;
        }
    }

    /// Enters the kernel once.
    fn call(&mut self, submit: u32, flags: u32, wait: Wait) -> io::Result<u32> {
        self.crossings.enters += 1;
        if flags & ENTER_SQ_WAKEUP != 0 {
            self.crossings.poller_wakes += 1;
        }
        let mut flags = flags;
        let fd = match self.registered {
            Some(number) => {
                flags |= ENTER_REGISTERED_RING;
                number as RawFd
            }
            None => self.ring.as_raw_fd(),
        };
        let timespec = match wait {
            Wait::AtMost(duration) => Some(libc::timespec {
                tv_sec: duration.as_secs().min(WAIT_MAX_SECONDS) as libc::time_t,
                tv_nsec: duration.subsec_nanos().into(),
            }),
            Wait::No | Wait::Forever => None,
        };
        let arg = timespec.as_ref().map(|timespec| GetEventsArg {
            sigmask: 0,
            sigmask_size: 0,
            min_wait_usec: 0,
            timespec: std::ptr::from_ref(timespec) as u64,
        });
        // Without a timeout the kernel is spared the copy of an argument.
        let (arg, arg_len) = match &arg {
            Some(arg) => {
                flags |= ENTER_EXT_ARG;
                (std::ptr::from_ref(arg), size_of::<GetEventsArg>())
            }
            None => (std::ptr::null(), 0),
        };
        let wanted = u32::from(wait != Wait::No);
        // SAFETY: `arg` and the timespec it names live until the call returns; everything
        // else is numbers. What the entries name is kept by their operations (see `push`).
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
                submit,
                wanted,
                flags,
                arg,
                arg_len,
            )
        };
        u32::try_from(entered).map_err(|_| io::Error::last_os_error())
    }

    fn enter_defer(&mut self, wait: Wait) -> io::Result<()> {
        if self.unsubmitted == 0 && wait == Wait::No && !self.has_deferred() {
            return Ok(());
        }
        let submitted = self.call(self.unsubmitted, ENTER_GETEVENTS, wait)?;
        self.unsubmitted -= submitted.min(self.unsubmitted);
        Ok(())
    }

    fn enter_sqpoll(&mut self, wait: Wait, left_over: bool) -> io::Result<()> {
        self.unsubmitted = 0;
        // The tail is published (dropping the queue stored it). The poller sets its flag,
        // passes a full barrier, and looks at the tail again before it sleeps; we pass one
        // between tail and flag. So one side always sees the other.
        std::sync::atomic::fence(Ordering::SeqCst);
        let queue = self.ring.submission();
        let asleep = queue.need_wakeup() && !queue.is_empty();
        drop(queue);
        let mut flags = if asleep { ENTER_SQ_WAKEUP } else { 0 };
        if left_over {
            // Room in the submission queue comes sooner than anything else.
            return self.call(0, flags | ENTER_SQ_WAIT, Wait::No).map(drop);
        }
        let block = wait != Wait::No && (asleep || !self.look_for(POLLER_SPIN));
        if block || self.has_deferred() {
            flags |= ENTER_GETEVENTS;
        }
        if flags == 0 {
            return Ok(());
        }
        self.call(0, flags, if block { wait } else { Wait::No })
            .map(drop)
    }

    fn assert_usable(&self) {
        assert!(
            self.is_usable(),
            "a forked child cannot use its parent's rings: build a new Runtime in the child"
        );
    }

    /// Looks at the completion queue for a while; true as soon as something is there.
    fn look_for(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        loop {
            if self.ready() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Whether completions wait in the kernel for us to enter it: deferred work, or what
    /// did not fit into the completion queue.
    fn has_deferred(&self) -> bool {
        // SAFETY: this thread alone uses the ring, and the queue is only looked at.
        let queue = unsafe { self.ring.submission_shared() };
        queue.taskrun() || queue.cq_overflow()
    }
}

// SAFETY: completions are the kernel's own words, passed on unchanged.
unsafe impl Backend for Ring {
    fn enter(&mut self, staged: &mut VecDeque<Entry>, wait: Wait) -> io::Result<()> {
        self.assert_usable();
        if !staged.is_empty() {
            self.push(staged);
        }
        // What did not fit comes first: the caller reaps and enters again.
        let left_over = !staged.is_empty();
        let entered = if self.sqpoll {
            self.enter_sqpoll(wait, left_over)
        } else {
            self.enter_defer(if left_over { Wait::No } else { wait })
        };
        match entered {
            // The time is over, a signal came, completions have to be reaped first, or the
            // kernel is short of memory for the moment: the next turn goes on.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn ready(&self) -> bool {
        // SAFETY: this thread alone uses the ring, and the queue is only looked at.
        let visible = !unsafe { self.ring.completion_shared() }.is_empty();
        visible || self.has_deferred()
    }

    fn is_usable(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    fn reap(&mut self, batch: &mut Vec<Completion>) -> bool {
        // The queue's memory is shared with the parent: the child would take its completions.
        self.assert_usable();
        // Dropping the queue publishes the head: once for the batch.
        let mut queue = self.ring.completion();
        let visible = queue.len();
        batch.extend(queue.by_ref().take(BATCH).map(|entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
        visible > BATCH
    }

    fn register(&mut self, resources: Register<'_>) -> io::Result<()> {
        match resources {
            Register::Files(files) => self.ring.submitter().register_files(files),
            Register::NoFiles => self.ring.submitter().unregister_files(),
        }
    }

    fn crossings(&self) -> Crossings {
        self.crossings
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // In a forked child the number is the parent's.
        if self.is_usable()
            && let Some(number) = self.registered.take()
        {
            unregister_ring(self.ring.as_raw_fd(), number);
        }
        // The crate unmaps before it closes, so that a poller does not outlive the ring.
    }
}

fn build(config: &RingConfig, entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .setup_clamp()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_cqsize(entries.saturating_mul(CQ_FACTOR));
    match config.mode {
        RingMode::SqPoll => {
            let idle = u32::try_from(config.sq_idle.as_millis()).unwrap_or(u32::MAX);
            builder.setup_sqpoll(idle.max(1));
            if let Some(cpu) = config.sq_cpu {
                builder.setup_sqpoll_cpu(cpu);
            }
        }
        RingMode::Defer | RingMode::Auto => {
            builder.setup_defer_taskrun().setup_taskrun_flag();
        }
    }
    // Linux 6.6+; older kernels answer EINVAL, and all else is as good without.
    match builder.clone().setup_no_sqarray().build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries),
        built => built,
    }
}

/// Retries while memory is short, then halves the ring, then explains.
fn patiently(
    entries: u32,
    mut build: impl FnMut(u32) -> io::Result<IoUring>,
) -> io::Result<IoUring> {
    let until = Instant::now() + RETRY_FOR;
    let mut size = entries;
    // Ends: after `until` each round makes the ring smaller.
    loop {
        let error = match build(size) {
            Ok(ring) => return Ok(ring),
            Err(error) => error,
        };
        if error.raw_os_error() != Some(libc::ENOMEM) {
            return Err(limits::explain(&error, entries));
        }
        if Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        } else if size / 2 >= ENTRIES_MIN {
            size /= 2;
        } else {
            return Err(limits::explain(&error, entries));
        }
    }
}

/// What this kernel's io_uring can do.
#[derive(Debug)]
pub struct Features {
    probe: Probe,
}

impl Features {
    /// Asks the kernel, through a small ring of its own.
    ///
    /// # Errors
    ///
    /// If no ring is to be had.
    pub fn probe() -> io::Result<Self> {
        let mut probe = Probe::new();
        IoUring::new(ENTRIES_MIN)?
            .submitter()
            .register_probe(&mut probe)?;
        Ok(Features { probe })
    }

    /// Whether it knows the operation with this number.
    pub fn supports(&self, opcode: u8) -> bool {
        self.probe.is_supported(opcode)
    }
}

/// The ring's number among this thread's registered rings; `None` when all 16 are taken,
/// and everything works as well by descriptor.
fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = RingFdUpdate {
        offset: u32::MAX,
        reserved: 0,
        fd: fd as u64,
    };
    // SAFETY: `update` is one `io_uring_rsrc_update`, alive and writable during the call.
    let registered = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            fd,
            REGISTER_RING_FDS,
            std::ptr::from_mut(&mut update),
            1,
        )
    };
    (registered == 1).then_some(update.offset)
}

fn unregister_ring(fd: RawFd, number: u32) {
    let update = RingFdUpdate {
        offset: number,
        reserved: 0,
        fd: 0,
    };
    // A number that is not given back is only lost to this thread.
    // SAFETY: `update` is one `io_uring_rsrc_update`, alive during the call.
    let _ = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            fd,
            UNREGISTER_RING_FDS,
            std::ptr::from_ref(&update),
            1,
        )
    };
}

/// How many forks lie between this process and the one that first made a ring.
static FORKS: AtomicU32 = AtomicU32::new(0);

fn watch_forks() {
    static WATCH: Once = Once::new();
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    WATCH.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        let registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(registered, 0, "there is memory for one handler");
    });
}
