//! What a shard counts about itself, for other threads to read.
//!
//! A shard has one `ShardMetrics` and is the only one to write it, so a counter is raised by a plain
//! load and store, not by a locked instruction: counting costs what a memory increment costs. Anybody
//! may take a `Snapshot` at any time. Each of its numbers is exact for some moment, but they are read
//! one after the other, so sums over several need not match to the last one while the shard runs.

use std::fmt;

use crate::atomics::{AtomicU64, Ordering};

/// The counters of one shard. Only the shard calls the methods that change them.
///
/// Aligned so that no other thread's data shares a cache line (or the pair of lines that is fetched
/// together) with what the shard writes at every poll.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ShardMetrics {
    turns: Counter,
    polls_completion: Counter,
    polls_ordinary: Counter,
    parks: Counter,
    foreign_wakes: Counter,
    tasks_spawned: Counter,
    tasks_live: Counter,
    slots_reserved: Counter,
    slot_bytes_reserved: Counter,
    timers_live: Counter,
    panics: Counter,
}

impl ShardMetrics {
    /// All zero.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A turn of the loop has begun.
    pub(crate) fn turn(&self) {
        self.turns.add(1);
    }

    /// A task of the completion queue is polled.
    pub(crate) fn poll_completion(&self) {
        self.polls_completion.add(1);
    }

    /// A task of the ordinary queue is polled.
    pub(crate) fn poll_ordinary(&self) {
        self.polls_ordinary.add(1);
    }

    /// The shard is about to wait in the kernel.
    pub(crate) fn park(&self) {
        self.parks.add(1);
    }

    /// So many items were taken out of the inbox.
    pub(crate) fn foreign_wakes(&self, count: u64) {
        self.foreign_wakes.add(count);
    }

    /// How many tasks there were so far and are now.
    pub(crate) fn tasks(&self, spawned: u64, live: u64) {
        self.tasks_spawned.set(spawned);
        self.tasks_live.set(live);
    }

    /// How many slots are reserved for tasks, and their bytes.
    pub(crate) fn slots(&self, reserved: u64, bytes: u64) {
        self.slots_reserved.set(reserved);
        self.slot_bytes_reserved.set(bytes);
    }

    /// How many timers are armed now.
    pub(crate) fn timers_live(&self, count: u64) {
        self.timers_live.set(count);
    }

    /// A panic of a task was caught.
    pub(crate) fn panic_caught(&self) {
        self.panics.add(1);
    }

    /// All numbers as they are now. From any thread.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            turns: self.turns.get(),
            polls_completion: self.polls_completion.get(),
            polls_ordinary: self.polls_ordinary.get(),
            parks: self.parks.get(),
            foreign_wakes: self.foreign_wakes.get(),
            tasks_spawned: self.tasks_spawned.get(),
            tasks_live: self.tasks_live.get(),
            slots_reserved: self.slots_reserved.get(),
            slot_bytes_reserved: self.slot_bytes_reserved.get(),
            timers_live: self.timers_live.get(),
            panics: self.panics.get(),
        }
    }
}

/// What a shard had counted at one moment. Counters begin at zero when the shard starts and never fall;
/// the ones that say `live` or `reserved` are what there is now.
///
/// Its `Display` is a table, one number a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Turns of the main loop.
    pub turns: u64,
    /// Polls of tasks that a completion had woken (an operation, a pool job, a timer).
    pub polls_completion: u64,
    /// Polls of all other tasks: spawned, or woken by a task or a thread.
    pub polls_ordinary: u64,
    /// Times the shard had nothing to do and waited in the kernel.
    pub parks: u64,
    /// Wakes, spawns and finished pool jobs that other threads brought.
    pub foreign_wakes: u64,
    /// Tasks spawned on this shard.
    pub tasks_spawned: u64,
    /// Tasks that have not ended.
    pub tasks_live: u64,
    /// Slots for tasks that were ever in use. They are kept for later tasks: the high-water mark of
    /// live tasks, for each size of a future, and of the shards whose memory this one has taken over.
    pub slots_reserved: u64,
    /// The memory of these slots, in bytes.
    pub slot_bytes_reserved: u64,
    /// Timers that have neither expired nor been dropped.
    pub timers_live: u64,
    /// Panics of tasks that were caught.
    pub panics: u64,
}

impl fmt::Display for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("turns", self.turns),
            ("polls, completion", self.polls_completion),
            ("polls, ordinary", self.polls_ordinary),
            ("parks", self.parks),
            ("foreign wakes", self.foreign_wakes),
            ("tasks spawned", self.tasks_spawned),
            ("tasks live", self.tasks_live),
            ("slots reserved", self.slots_reserved),
            ("slot bytes", self.slot_bytes_reserved),
            ("timers live", self.timers_live),
            ("panics", self.panics),
        ];
        for (index, (name, value)) in rows.iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            write!(formatter, "{name:<18}{value:>14}")?;
        }
        Ok(())
    }
}

/// A number that one thread changes and every thread may read.
///
/// Relaxed throughout: a counter says how often something happened and never that something else did.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each method moves its number alone, and a snapshot shows all of them.
    #[test]
    fn a_snapshot_shows_what_was_counted() {
        let metrics = ShardMetrics::new();
        assert_eq!(metrics.snapshot(), Snapshot::default());
        (0..2).for_each(|_| metrics.turn());
        (0..3).for_each(|_| metrics.poll_completion());
        (0..4).for_each(|_| metrics.poll_ordinary());
        (0..5).for_each(|_| metrics.park());
        metrics.foreign_wakes(6);
        metrics.tasks(7, 3);
        metrics.slots(10, 11);
        metrics.timers_live(20);
        metrics.timers_live(8);
        (0..9).for_each(|_| metrics.panic_caught());
        let expected = Snapshot {
            turns: 2,
            polls_completion: 3,
            polls_ordinary: 4,
            parks: 5,
            foreign_wakes: 6,
            tasks_spawned: 7,
            tasks_live: 3,
            slots_reserved: 10,
            slot_bytes_reserved: 11,
            timers_live: 8,
            panics: 9,
        };
        assert_eq!(metrics.snapshot(), expected);
    }

    /// Another thread reads while the shard counts: what it sees never falls, and ends exact.
    #[test]
    fn a_reader_sees_counters_rise() {
        const TURNS: u64 = 100_000;
        let metrics = ShardMetrics::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..TURNS).for_each(|_| metrics.turn()));
            let mut last = 0;
            // Ends: the other thread counts up to this.
            while last < TURNS {
                let turns = metrics.snapshot().turns;
                assert!(turns >= last);
                last = turns;
                std::thread::yield_now();
            }
        });
        assert_eq!(metrics.snapshot().turns, TURNS);
    }

    /// The table has one line a number, all equally wide.
    #[test]
    fn the_table_is_aligned() {
        let snapshot = Snapshot {
            turns: 12,
            panics: 3_000_000,
            ..Snapshot::default()
        };
        let table = snapshot.to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 11);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        assert_eq!(lines[0], "turns                         12");
        assert_eq!(lines[10], "panics                   3000000");
    }
}
