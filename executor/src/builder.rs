//! Settings of a runtime, each default with its reason.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use roundel_reactor::{RingConfig, RingMode};

use crate::affinity::Cores;
use crate::run_queue::CompletionShare;
use crate::runtime::Runtime;

/// A hook that runs on each shard's thread.
pub(crate) type Hook = Arc<dyn Fn() + Send + Sync>;

/// Builds a [`Runtime`].
///
/// ```no_run
/// use roundel_executor::{Builder, Cores};
///
/// let runtime = Builder::new().cores(Cores::Count(2)).name("proxy").build()?;
/// runtime.block_on(async { /* serve */ });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    pub(crate) cores: Cores,
    pub(crate) ring: RingConfig,
    pub(crate) name: String,
    pub(crate) share: CompletionShare,
    pub(crate) pool: Option<roundel_blocking_pool::Config>,
    pub(crate) on_thread_start: Option<Hook>,
    pub(crate) on_thread_stop: Option<Hook>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// The defaults, as each method names them.
    pub fn new() -> Self {
        Builder {
            cores: Cores::All,
            ring: RingConfig::default(),
            name: "roundel".into(),
            share: CompletionShare::default(),
            pool: None,
            on_thread_start: None,
            on_thread_stop: None,
        }
    }

    /// How many shards, and where. Default: [`Cores::All`], one for each CPU this process
    /// may use: shards share nothing, so they use a machine best when each has a CPU.
    #[must_use]
    pub fn cores(mut self, cores: Cores) -> Self {
        self.cores = cores;
        self
    }

    /// Which ring serves a shard. Default: [`RingMode::Auto`]. A mode that is named is a
    /// requirement: if it is not to be had, [`build`](Self::build) fails. The environment
    /// variable `ROUNDEL_RING` (`auto`, `sqpoll`, `defer`) takes the place of `Auto` and of
    /// no other.
    #[must_use]
    pub fn ring(mut self, mode: RingMode) -> Self {
        self.ring.mode = mode;
        self
    }

    /// Places in a ring's submission queue, rounded up to a power of two. Default: 256;
    /// larger ones measured no faster, and a full queue is flushed, not an error.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Self {
        self.ring.entries = entries;
        self
    }

    /// How long a kernel poller stays awake without work, in [`RingMode::SqPoll`]. Default:
    /// 1 ms, the shortest the kernel takes (it counts in jiffies, so about 5 ms where there
    /// are 250 of them a second): a poller that is awake burns a CPU.
    #[must_use]
    pub fn sq_idle(mut self, idle: Duration) -> Self {
        self.ring.sq_idle = idle;
        self
    }

    /// The CPU that kernel pollers are pinned to. Default: none, the kernel chooses.
    #[must_use]
    pub fn sq_cpu(mut self, cpu: u32) -> Self {
        self.ring.sq_cpu = Some(cpu);
        self
    }

    /// What threads are called: `NAME-1` and so on for shards (shard 0 is the thread that
    /// builds the runtime and keeps its name), `NAME-b0` and so on for pool workers.
    /// Default: `roundel`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How much of a shard completions may take while ordinary tasks wait (M2). Default:
    /// `Ratio(3)`, which costs completions nothing that can be measured.
    #[must_use]
    pub fn completion_share(mut self, share: CompletionShare) -> Self {
        self.share = share;
        self
    }

    /// The blocking pool's settings. Default: those of [`roundel_blocking_pool::Config`],
    /// with workers named after the runtime and allowed on every CPU the process is,
    /// wherever the shard is pinned that starts them.
    #[must_use]
    pub fn pool(mut self, config: roundel_blocking_pool::Config) -> Self {
        self.pool = Some(config);
        self
    }

    /// Called on each shard's thread before its first task; on shard 0 when the runtime is
    /// built. Default: nothing.
    #[must_use]
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_thread_start = Some(Arc::new(hook));
        self
    }

    /// Called on each shard's thread after its last task. Default: nothing.
    #[must_use]
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_thread_stop = Some(Arc::new(hook));
        self
    }

    /// Starts the shards.
    ///
    /// While the memory that may be locked is short, this waits up to two seconds for that of
    /// rings just closed to come back, and then takes smaller rings.
    ///
    /// # Errors
    ///
    /// If a ring is not to be had (the text names the usual cause and the limits in
    /// force), a thread cannot be started, or a setting cannot be: a CPU that is not
    /// allowed, no entries, an unknown name in `ROUNDEL_RING`. Nothing is left running.
    pub fn build(self) -> io::Result<Runtime> {
        Runtime::start(self)
    }

    /// The ring's settings with the environment's mode in place of `Auto`.
    pub(crate) fn ring_config(&self) -> io::Result<RingConfig> {
        let mut ring = self.ring.clone();
        if ring.mode == RingMode::Auto
            && let Some(name) = std::env::var_os("ROUNDEL_RING")
        {
            let mode = name.to_str().and_then(RingMode::from_name);
            ring.mode = mode.ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("ROUNDEL_RING is {name:?}: it may be auto, sqpoll or defer"),
                )
            })?;
        }
        Ok(ring)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("cores", &self.cores)
            .field("ring", &self.ring)
            .field("name", &self.name)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}
