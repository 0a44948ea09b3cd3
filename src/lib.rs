#![doc = include_str!("../README.md")]

pub use roundel_blocking_pool as blocking_pool;
pub use roundel_executor::{
    AbortHandle, AbortOnDropHandle, AccessError, Builder, CompletionShare, Cores, Handle, Id,
    JoinError, JoinHandle, JoinSet, LocalKey, Report, RingMode, Runtime, SendJoinHandle,
    ShardMetrics, ShutdownReport, Snapshot, TaskLocalFuture, on_each_shard, pool, shard, spawn,
    spawn_any, spawn_blocking, spawn_on, spawn_serial, sync, task_local, time, try_spawn_blocking,
    yield_now,
};
pub use roundel_fs as fs;
pub use roundel_macros::{main, test};
pub use roundel_net as net;
pub use roundel_process::signal;
pub use roundel_reactor::{BufResult, CountersSnapshot, IoBuf, IoBufMut, Slice};

/// What the attributes expand to; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use roundel_executor::start_or_exit as start;
}
