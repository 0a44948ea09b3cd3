//! Deadlines in order.
//!
//! [`Timers`] keeps the wakers of a shard's sleeping futures by deadline. It reads no clock and
//! calls no waker: the shard passes the time in and wakes what comes out. Deadlines are exact
//! ([`Instant`]); nothing is rounded, so nothing fires early.
//!
//! **How it works.** The deadlines stand in a 4-ary heap, ordered by deadline and then by the order
//! of insertion. A timer's waker rests in a slot that does not move, which knows the timer's
//! present place in the heap; the heap's entries know their slot. So a cancel finds its entry at
//! once and takes it out in O(log n): a cancelled timer leaves nothing behind. A [`Key`] names
//! the slot and the insertion, so the key of a timer that has fired matches nothing any more, even
//! when its slot serves another.
//!
//! Slots stand in chunks, because a slot that is in use pins its place: after a burst, chunks that
//! are empty are freed however the survivors are spread. Freeing (`trim`) looks through all chunks,
//! so it runs only when the number of timers has halved since it last ran, or has fallen to a
//! quarter of what it was; below a quarter of [`KEPT`] timers it never runs for the first time. So
//! a steady load allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

/// Children of a heap node: the four children's deadlines lie in two or three cache lines, and the
/// heap is half as deep as a binary one.
const CHILDREN: usize = 4;

/// Slots of a chunk (6 KiB): what a single survivor of a burst can keep from being freed.
const CHUNK: usize = 256;

/// Timers whose memory is never given back: 128 KiB of heap, 96 KiB of slots.
const KEPT: usize = 4096;

/// Deadlines in order, with the waker of each.
#[derive(Debug)]
pub(crate) struct Timers {
    id: u64,
    /// A min-heap by `(deadline, order)`.
    heap: Vec<Entry>,
    slots: Slots,
    /// The `order` of the next insertion. At one insertion a nanosecond it lasts for 584 years.
    next_order: u64,
    /// `trim` runs when fewer timers than this are left.
    trim_below: usize,
}

/// Names one timer of one [`Timers`], for ever: keys are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    slot: u32,
    order: u64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        // Not part of any protocol between threads: only the uniqueness counts.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Timers {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            heap: Vec::new(),
            slots: Slots::default(),
            next_order: 0,
            trim_below: 0,
        }
    }

    /// Tells this instance from every other of the process, so that a key is not used with a
    /// stranger.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How many timers have neither fired nor been cancelled.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest deadline: how long the shard may sleep.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Adds a timer that hands `waker` out once `deadline` has come. Any deadline is fine.
    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> Key {
        let order = self.next_order;
        self.next_order += 1;
        let position = self.heap.len();
        let slot = self.slots.insert(Slot { waker, position });
        self.heap.push(Entry {
            deadline,
            order,
            slot,
        });
        self.sift_up(position);
        let quarter = self.heap.len() / 4;
        if quarter >= KEPT / 4 && quarter > self.trim_below {
            self.trim_below = quarter;
        }
        Key { slot, order }
    }

    /// The waker of a timer; `None` once it has fired or was cancelled.
    pub(crate) fn waker(&self, key: Key) -> Option<&Waker> {
        let slot = self.slots.get(key.slot)?;
        (self.heap[slot.position].order == key.order).then_some(&slot.waker)
    }

    /// Replaces a timer's waker. Returns the waker that is of no use any more (the new one, if the
    /// timer is gone), to be dropped when nothing is borrowed.
    #[must_use = "drop it when nothing is borrowed"]
    pub(crate) fn replace_waker(&mut self, key: Key, waker: Waker) -> Waker {
        if self.waker(key).is_none() {
            return waker;
        }
        let slot = self.slots.get_mut(key.slot);
        std::mem::replace(&mut slot.waker, waker)
    }

    /// Takes a timer out. Returns its waker, to be dropped when nothing is borrowed; `None` if it
    /// has fired or was cancelled before.
    #[must_use = "drop it when nothing is borrowed"]
    pub(crate) fn cancel(&mut self, key: Key) -> Option<Waker> {
        self.waker(key)?;
        let position = self.slots.get_mut(key.slot).position;
        Some(self.remove(position))
    }

    /// Takes the timers out whose deadline is not after `now`, at most `limit` of them, in the
    /// order of their deadlines, those of equal deadlines in the order of insertion. Appends their
    /// wakers to `wakers` and returns how many there were.
    pub(crate) fn expire(&mut self, now: Instant, limit: usize, wakers: &mut Vec<Waker>) -> usize {
        for count in 0..limit {
            match self.next_deadline() {
                Some(deadline) if deadline <= now => wakers.push(self.remove(0)),
                _ => return count,
            }
        }
        limit
    }

    /// Takes the entry at `position` out of the heap, and its slot out of the slots.
    fn remove(&mut self, position: usize) -> Waker {
        let entry = self.heap.swap_remove(position);
        if position < self.heap.len() {
            // The former last entry has to find its place: it may belong up or down from here.
            let up = self.sift_up(position);
            self.sift_down(up);
        }
        let waker = self.slots.remove(entry.slot).waker;
        if self.heap.len() < self.trim_below {
            self.trim();
        }
        waker
    }

    /// Moves the entry at `position` up until its parent is not later. Returns where it stands now.
    fn sift_up(&mut self, mut position: usize) -> usize {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            if self.heap[parent].rank() <= entry.rank() {
                break;
            }
            self.place(position, self.heap[parent]);
            position = parent;
        }
        self.place(position, entry);
        position
    }

    /// Moves the entry at `position` down until none of its children is earlier.
    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        // Ends at a leaf at the latest.
        loop {
            let first = position * CHILDREN + 1;
            let end = (first + CHILDREN).min(self.heap.len());
            let Some(child) = (first..end).min_by_key(|&child| self.heap[child].rank()) else {
                break;
            };
            if entry.rank() <= self.heap[child].rank() {
                break;
            }
            self.place(position, self.heap[child]);
            position = child;
        }
        self.place(position, entry);
    }

    fn place(&mut self, position: usize, entry: Entry) {
        self.heap[position] = entry;
        self.slots.get_mut(entry.slot).position = position;
    }

    /// Gives memory back, see the head of this file.
    fn trim(&mut self) {
        let live = self.heap.len();
        self.heap.shrink_to((2 * live).max(KEPT));
        self.slots.trim();
        self.trim_below = live / 2;
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: Instant,
    order: u64,
    slot: u32,
}

impl Entry {
    fn rank(&self) -> (Instant, u64) {
        (self.deadline, self.order)
    }
}

#[derive(Debug)]
struct Slot {
    waker: Waker,
    /// Where this timer's entry stands in the heap.
    position: usize,
}

/// Places that do not move, in chunks that can be freed one by one.
#[derive(Debug, Default)]
struct Slots {
    /// Each holds up to [`CHUNK`] slots. One that was freed is empty and has no capacity.
    chunks: Vec<Slab<Slot>>,
    /// The numbers of the chunks that are not full; the last one serves the next insertion.
    with_room: Vec<usize>,
}

impl Slots {
    fn insert(&mut self, slot: Slot) -> u32 {
        let number = match self.with_room.last() {
            Some(number) => *number,
            None => {
                self.chunks.push(Slab::new());
                self.with_room.push(self.chunks.len() - 1);
                self.chunks.len() - 1
            }
        };
        let chunk = &mut self.chunks[number];
        if chunk.capacity() == 0 {
            *chunk = Slab::with_capacity(CHUNK);
        }
        let place = chunk.insert(slot);
        if chunk.len() == CHUNK {
            self.with_room.pop();
        }
        u32::try_from(number * CHUNK + place).expect("memory holds fewer than 2^32 timers")
    }

    fn get(&self, index: u32) -> Option<&Slot> {
        let (number, place) = split(index);
        self.chunks.get(number)?.get(place)
    }

    /// The slot of a timer that is known to stand in the heap.
    fn get_mut(&mut self, index: u32) -> &mut Slot {
        let (number, place) = split(index);
        &mut self.chunks[number][place]
    }

    fn remove(&mut self, index: u32) -> Slot {
        let (number, place) = split(index);
        let chunk = &mut self.chunks[number];
        if chunk.len() == CHUNK {
            self.with_room.push(number);
        }
        chunk.remove(place)
    }

    /// Frees the empty chunks beyond [`KEPT`] slots, and lets the fullest ones fill up first.
    fn trim(&mut self) {
        let mut kept = 0;
        for chunk in &mut self.chunks {
            if chunk.is_empty() && kept >= KEPT {
                *chunk = Slab::new();
            }
            kept += chunk.capacity();
        }
        while self.chunks.last().is_some_and(|last| last.capacity() == 0) {
            self.chunks.pop();
        }
        let chunks = &self.chunks;
        self.with_room.retain(|number| *number < chunks.len());
        self.with_room
            .sort_unstable_by_key(|number| chunks[*number].len());
        self.chunks.shrink_to(2 * KEPT / CHUNK);
        self.with_room.shrink_to(2 * KEPT / CHUNK);
    }
}

/// The number of a slot's chunk, and its place in there.
fn split(index: u32) -> (usize, usize) {
    let index = usize::try_from(index).expect("a usize has 32 bits or more");
    (index / CHUNK, index % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;
    use std::time::Duration;

    /// A waker that writes its number down.
    struct Named {
        name: u64,
        woken: Arc<Mutex<Vec<u64>>>,
    }

    impl Wake for Named {
        fn wake(self: Arc<Self>) {
            self.woken.lock().unwrap().push(self.name);
        }
    }

    /// Timers whose wakers have names, and the names in the order in which they fired.
    struct Bench {
        timers: Timers,
        woken: Arc<Mutex<Vec<u64>>>,
        start: Instant,
    }

    impl Bench {
        fn new() -> Bench {
            Bench {
                timers: Timers::new(),
                woken: Arc::default(),
                start: Instant::now(),
            }
        }

        fn waker(&self, name: u64) -> Waker {
            let woken = self.woken.clone();
            Waker::from(Arc::new(Named { name, woken }))
        }

        fn insert(&mut self, name: u64, nanos: u64) -> Key {
            let waker = self.waker(name);
            self.timers
                .insert(self.start + Duration::from_nanos(nanos), waker)
        }

        /// Fires what is due and returns the names.
        fn expire(&mut self, nanos: u64, limit: usize) -> Vec<u64> {
            let mut wakers = Vec::new();
            let now = self.start + Duration::from_nanos(nanos);
            let count = self.timers.expire(now, limit, &mut wakers);
            assert_eq!(count, wakers.len());
            wakers.into_iter().for_each(Waker::wake);
            std::mem::take(&mut self.woken.lock().unwrap())
        }
    }

    /// A small generator of numbers that look random (xorshift).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    fn count(large: u64) -> u64 {
        match std::env::var("ROUNDEL_TIER").as_deref() {
            Ok("large") => large,
            _ => large / 50,
        }
    }

    /// Slots for which memory is held.
    fn allocated(timers: &Timers) -> usize {
        timers.slots.chunks.iter().map(Slab::capacity).sum()
    }

    /// Deadlines a nanosecond apart are told apart, and equal ones fire as they were inserted.
    #[test]
    fn exact_and_in_order() {
        let mut bench = Bench::new();
        for (name, nanos) in [(0, 5), (1, 3), (2, 5), (3, 4), (4, 3), (5, 5)] {
            bench.insert(name, nanos);
        }
        let first = bench.start + Duration::from_nanos(3);
        assert_eq!(bench.timers.next_deadline(), Some(first));
        assert_eq!(bench.expire(2, 10), []);
        assert_eq!(bench.expire(3, 10), [1, 4]);
        assert_eq!(bench.expire(4, 10), [3]);
        assert_eq!(bench.expire(5, 2), [0, 2], "the limit holds");
        assert_eq!(bench.expire(5, 2), [5]);
        assert_eq!(bench.timers.next_deadline(), None);
    }

    /// The past is due at once; the farthest future is held and can be cancelled.
    #[test]
    fn past_and_far_deadlines() {
        let mut bench = Bench::new();
        let mut far = bench.start;
        for shift in (0..63).rev() {
            far = far
                .checked_add(Duration::from_secs(1 << shift))
                .unwrap_or(far);
        }
        let key = bench.timers.insert(far, bench.waker(7));
        let past = bench.start.checked_sub(Duration::from_secs(1));
        bench
            .timers
            .insert(past.unwrap_or(bench.start), bench.waker(8));
        assert_eq!(bench.expire(0, 10), [8]);
        assert_eq!(bench.expire(u64::MAX, 10), []);
        assert_eq!(bench.timers.next_deadline(), Some(far));
        assert!(bench.timers.cancel(key).is_some());
        assert_eq!(bench.timers.len(), 0);
    }

    /// The last waker given is the one handed out, and the old one comes back.
    #[test]
    fn replaced_waker() {
        let mut bench = Bench::new();
        let key = bench.insert(1, 1);
        let (old, new) = (bench.waker(1), bench.waker(2));
        bench.timers.replace_waker(key, new.clone()).wake();
        drop(old);
        assert!(bench.timers.waker(key).unwrap().will_wake(&new));
        assert_eq!(bench.expire(0, 1), [1], "the old waker was handed back");
        assert_eq!(bench.expire(1, 1), [2]);
        bench.timers.replace_waker(key, bench.waker(3)).wake();
        assert_eq!(bench.expire(1, 1), [3], "a timer that fired takes no waker");
    }

    /// The key of a timer that fired or was cancelled does nothing to the one in the same slot.
    #[test]
    fn stale_key() {
        let mut bench = Bench::new();
        let fired = bench.insert(1, 1);
        assert_eq!(bench.expire(1, 1), [1]);
        let cancelled = bench.insert(2, 1);
        assert!(bench.timers.cancel(cancelled).is_some());
        let live = bench.insert(3, 1);
        assert_eq!((fired.slot, cancelled.slot), (live.slot, live.slot));
        for stale in [fired, cancelled] {
            assert!(bench.timers.waker(stale).is_none());
            assert!(bench.timers.cancel(stale).is_none());
        }
        assert!(bench.timers.waker(live).is_some());
        assert_ne!(bench.timers.id(), Timers::new().id());
    }

    /// P10: random inserts, cancels and advances against a sorted model. Everything fires exactly
    /// once, in order, never before its deadline and never later than the first look after it.
    #[test]
    fn agrees_with_a_sorted_model() {
        let mut bench = Bench::new();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut model = BTreeMap::new();
        let mut keys = Vec::new();
        let mut now = 0;
        for name in 0..count(1_000_000) {
            // Coarse enough for equal deadlines; the past is among them.
            let deadline = (now + random.below(4_000)).saturating_sub(50);
            keys.push((name, deadline, bench.insert(name, deadline)));
            model.insert((deadline, name), ());
            if random.below(3) == 0 {
                let chosen = random.below(keys.len() as u64) as usize;
                let (name, deadline, key) = keys.swap_remove(chosen);
                let lives = model.remove(&(deadline, name)).is_some();
                assert_eq!(bench.timers.waker(key).is_some(), lives);
                assert_eq!(bench.timers.cancel(key).is_some(), lives);
            }
            if random.below(4) == 0 {
                now += random.below(12);
                let limit = 1 + random.below(8) as usize;
                let due: Vec<_> = model.range(..=(now, u64::MAX)).take(limit).collect();
                let due: Vec<_> = due.into_iter().map(|(key, ())| *key).collect();
                let names: Vec<_> = due.iter().map(|(_, name)| *name).collect();
                assert_eq!(bench.expire(now, limit), names);
                due.iter()
                    .for_each(|key| assert!(model.remove(key).is_some()));
            }
            let next = model.first_key_value().map(|((nanos, _), ())| *nanos);
            let next = next.map(|nanos| bench.start + Duration::from_nanos(nanos));
            assert_eq!(bench.timers.next_deadline(), next);
            assert_eq!(bench.timers.len(), model.len());
            if keys.len() > 8_192 {
                keys.retain(|(name, deadline, _)| model.contains_key(&(*deadline, *name)));
            }
        }
        let rest: Vec<_> = model.keys().map(|(_, name)| *name).collect();
        assert_eq!(bench.expire(u64::MAX, usize::MAX), rest);
    }

    /// H53: timers that are cancelled before they fire leave nothing.
    #[test]
    fn inserted_and_cancelled_leaves_nothing() {
        let mut bench = Bench::new();
        let waker = bench.waker(0);
        for nanos in 0..count(1_000_000) {
            let deadline = bench.start + Duration::from_nanos(nanos);
            let key = bench.timers.insert(deadline, waker.clone());
            assert!(bench.timers.cancel(key).is_some());
        }
        assert_eq!(bench.timers.len(), 0);
        assert_eq!(allocated(&bench.timers), CHUNK);
        assert!(bench.timers.heap.capacity() <= CHUNK);
    }

    /// H53: after a burst the memory comes back, though a few of the burst live on, spread evenly;
    /// those are still found and fire in order.
    #[test]
    fn a_burst_gives_its_memory_back() {
        for survivors in [0, 1, 20] {
            let burst = count(1_000_000);
            // When memory was last given back, there were up to twice as many and one.
            let bound = KEPT + CHUNK * (2 * survivors as usize + 1);
            let mut bench = Bench::new();
            let keys: Vec<_> = (0..burst).map(|name| bench.insert(name, name)).collect();
            let lives =
                |name: u64| name < survivors * (burst / 20) && name.is_multiple_of(burst / 20);
            for (name, key) in keys.iter().enumerate() {
                if !lives(name as u64) {
                    assert!(bench.timers.cancel(*key).is_some());
                }
            }
            assert_eq!(bench.timers.len() as u64, survivors);
            assert!(allocated(&bench.timers) <= bound);
            assert!(bench.timers.heap.capacity() <= KEPT);
            let names: Vec<_> = (0..burst).filter(|name| lives(*name)).collect();
            assert_eq!(bench.expire(burst, usize::MAX), names);
            assert!(allocated(&bench.timers) <= bound);
        }
    }

    /// A load that falls to two fifths and rises again allocates nothing once it has peaked.
    #[test]
    fn a_steady_load_allocates_nothing() {
        for peak in [10, 3_000, 50_000] {
            let mut bench = Bench::new();
            let mut keys: Vec<_> = (0..peak).map(|name| bench.insert(name, name)).collect();
            let held = |timers: &Timers| {
                let slots = &timers.slots;
                let tables = slots.chunks.capacity() + slots.with_room.capacity();
                (allocated(timers), timers.heap.capacity(), tables)
            };
            let mut before = held(&bench.timers);
            for round in 0..4 {
                for key in keys.drain(keys.len() * 2 / 5..) {
                    assert!(bench.timers.cancel(key).is_some());
                }
                if round == 0 {
                    // The first fall fills the table of the chunks with room.
                    before.2 = held(&bench.timers).2;
                }
                assert_eq!(held(&bench.timers), before, "nothing was given back");
                while keys.len() < peak as usize {
                    keys.push(bench.insert(0, round));
                }
                assert_eq!(held(&bench.timers), before);
            }
        }
    }
}
