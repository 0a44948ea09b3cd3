#![allow(unsafe_code)]
//! Operations on time, and the one that does nothing.

use std::io;
use std::time::Duration;

use io_uring::{opcode, types};

use crate::backend::Completion;
use crate::block::Block;
use crate::entry::Entry;
use crate::op::Operation;

/// Does nothing, through the ring: what a turn of the loop costs.
#[derive(Debug, Default)]
pub struct Nop;

// SAFETY: the entry has no pointers.
unsafe impl Operation for Nop {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        Entry(opcode::Nop::new().build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        completion.into_result().map(drop)
    }
}

/// Completes after a while. Linux 5.4+. For crates that see no executor and so no timers;
/// programs sleep with the executor's, which cost no ring operation.
pub struct Timeout {
    after: Block<types::Timespec>,
}

impl Timeout {
    /// After `duration`, at most some 500 years.
    pub fn new(duration: Duration) -> Self {
        let after = types::Timespec::new()
            .sec(duration.as_secs().min(1 << 34))
            .nsec(duration.subsec_nanos());
        Timeout {
            after: Block::new(after),
        }
    }
}

// SAFETY: the only pointer leads into the block, which stays while `self` is alive and
// which the kernel only reads.
unsafe impl Operation for Timeout {
    type Output = io::Result<()>;

    fn entry(&mut self) -> Entry {
        Entry(opcode::Timeout::new(self.after.as_ptr()).build())
    }

    fn complete(self, completion: Completion) -> io::Result<()> {
        if completion.result == -libc::ETIME {
            return Ok(());
        }
        completion.into_result().map(drop)
    }
}
