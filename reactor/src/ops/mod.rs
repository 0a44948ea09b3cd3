//! The operations: one struct, one implementation each.

mod file;
mod path;
mod socket;
mod time;

pub use file::{Close, OpenAt, ReadAt, ReadNext, Stat, Statx, Sync, Truncate, WriteAt, WriteNext};
pub use path::PathArg;
pub use socket::{Accept, AcceptMulti, Connect, Recv, Send, Shutdown};
pub use time::{Nop, Timeout};
