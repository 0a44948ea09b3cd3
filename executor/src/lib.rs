//! One shard, and the set of shards: tasks, timers, run queues.
//!
//! A runtime has a *shard* for each CPU it uses: one pinned thread with its own ring, run
//! queues and timers. A task lives and dies on the shard it was spawned on, so its future
//! need not be `Send`, and nothing it touches is locked. Tasks that a completion has woken
//! run before all others (M1).
//!
//! Most programs use the crate `roundel`, which has files and sockets besides.

mod abort_on_drop;
mod affinity;
mod atomics;
mod builder;
mod current;
mod handle;
mod inbox;
mod join;
mod join_set;
mod local_key;
mod metrics;
mod run_queue;
mod runtime;
mod shard;
mod spawn;
pub mod sync;
mod task;
pub mod time;
mod timers;

pub use abort_on_drop::AbortOnDropHandle;
pub use affinity::Cores;
pub use builder::Builder;
pub use handle::{Handle, ShardMetrics};
pub use join::{AbortHandle, Id, JoinError, JoinHandle, SendJoinHandle};
pub use join_set::JoinSet;
#[doc(hidden)]
pub use local_key::Slot as __TaskLocalSlot;
pub use local_key::{AccessError, LocalKey, TaskLocalFuture};
pub use metrics::Snapshot;
pub use roundel_reactor::RingMode;
pub use run_queue::CompletionShare;
#[doc(hidden)]
pub use runtime::start_or_exit;
pub use runtime::{Report, Runtime, ShutdownReport};
pub use spawn::{
    on_each_shard, pool, shard, spawn, spawn_any, spawn_blocking, spawn_on, spawn_serial,
    try_spawn_blocking, yield_now,
};
