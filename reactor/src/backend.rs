#![allow(unsafe_code)]
//! The seam between the reactor and whatever executes its operations.
//!
//! A backend takes 64-byte entries in order, executes them, and gives one completion for
//! each (a multishot one: several, all but the last with [`Completion::more`]). The
//! kernel's rings are one implementation ([`ring`](crate::ring)), the scripted backend of
//! the tests another. The reactor above knows the difference in nothing but speed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::entry::Entry;

/// How many completions are taken off a ring in one go (M5).
pub const BATCH: usize = 32;

/// How long [`Backend::enter`] may block for a first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most so long.
    AtMost(Duration),
    /// As long as it takes.
    Forever,
}

/// What the kernel says of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The entry's number.
    pub(crate) user_data: u64,
    /// The result: not negative, or a negated errno.
    pub(crate) result: i32,
    /// `IORING_CQE_F_*`
    pub(crate) flags: u32,
}

/// `IORING_CQE_F_MORE`
pub(crate) const MORE: u32 = 1 << 1;

// Nobody else can make one: operations take a completion's word for what the kernel wrote
// into their memory, and for which descriptors are theirs.
impl Completion {
    /// The result: not negative, or a negated errno.
    #[inline]
    pub fn result(&self) -> i32 {
        self.result
    }

    /// `IORING_CQE_F_*`
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Whether the same entry will complete again.
    #[inline]
    pub fn more(&self) -> bool {
        self.flags & MORE != 0
    }

    /// The result as std has it.
    ///
    /// # Errors
    ///
    /// The errno the kernel returned.
    #[inline]
    pub fn into_result(self) -> io::Result<u32> {
        u32::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

/// Resources registered with a backend, so that entries can name them by number.
#[derive(Debug)]
#[non_exhaustive]
pub enum Register<'a> {
    /// A table of descriptors; -1 leaves a place empty.
    Files(&'a [RawFd]),
    /// Gives the table up.
    NoFiles,
}

/// Executes entries. Owned by one reactor, used on one thread (M7).
///
/// # Safety
///
/// A completion says what is so: as many bytes were written into an operation's memory, and
/// a descriptor is the operation's own; after an entry's last completion nothing it names is
/// touched.
pub unsafe trait Backend {
    /// Takes entries off the front of `staged`, as many as there is room for, and starts
    /// them; then waits for a first completion as `wait` says. With entries left over it
    /// does not wait for completions, since the caller has to reap and come back.
    ///
    /// An interrupted or timed-out wait is no error.
    ///
    /// # Errors
    ///
    /// Only what leaves the backend unusable.
    fn enter(&mut self, staged: &mut VecDeque<Entry>, wait: Wait) -> io::Result<()>;

    /// Whether completions wait, perhaps for an [`enter`](Self::enter); a look at memory.
    fn ready(&self) -> bool;

    /// Whether this process may use it: a forked child has a copy of what is its parent's.
    fn is_usable(&self) -> bool {
        true
    }

    /// Appends visible completions to `batch`, at most [`BATCH`] of them, and frees their
    /// places. Returns whether there may be more.
    fn reap(&mut self, batch: &mut Vec<Completion>) -> bool;

    /// Registers resources, or gives them up.
    ///
    /// # Errors
    ///
    /// The kernel's, or `Unsupported`.
    fn register(&mut self, resources: Register<'_>) -> io::Result<()>;

    /// How often the kernel has been entered, and how often a sleeping poller was woken.
    fn crossings(&self) -> Crossings;
}

/// How often a backend crossed into the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// Calls of `io_uring_enter(2)`.
    pub enters: u64,
    /// Those of them that woke a kernel poller which had gone to sleep.
    pub poller_wakes: u64,
}
