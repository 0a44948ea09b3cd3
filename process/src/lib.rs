//! Signals on the ring. (Child processes are to be here, too; they are not yet.)
//!
//! | call | ring operation | Linux | dropping its future |
//! |---|---|---|---|
//! | [`signal::ctrl_c`], [`signal::terminate`] | `RECV` | 5.6 | unregisters; the signal's default action stays off |

pub mod signal;
