//! The serial lanes: jobs with one key run one at a time, in the order they were submitted (M11).
//!
//! A lane is a 64-bit keyed hash of the user's key; two keys with the same hash (one in 2^64) would share
//! a lane and serialise, nothing worse. The hash is keyed afresh for each pool, so that nobody can craft
//! keys that meet. Lanes are spread over buckets only to spread their locks.
//!
//! A lane exists while one of its jobs is *out*: in the public queue or running. The jobs behind it wait
//! here, so a lane that is stuck holds no worker and stalls no other lane.
//!
//! Hand-over, step by step:
//! 1. `enter` under the bucket's lock: no lane of that hash → make an empty one, and the job goes out.
//!    Otherwise it is appended.
//! 2. Whoever ends the job that is out (ran it, saw it panic, popped its shell) calls `next`, once.
//! 3. `next` under the same lock: the first job behind goes out; if there is none, the lane is removed.
//!
//! Both hold the same lock, so a job is either seen by 3 or finds no lane in 1: none is left behind.

use crate::atomics::{Mutex, lock};
use crate::job::{Task, take_shells};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};

/// Locks that lanes are spread over; the source uses 64.
const BUCKETS: usize = if cfg!(loom) { 1 } else { 64 };

pub(crate) struct Lanes {
    keyed: RandomState,
    buckets: Box<[Mutex<Bucket>]>,
}

/// The jobs behind the one that is out, for each lane.
type Bucket = HashMap<u64, VecDeque<Task>>;

impl Lanes {
    pub(crate) fn new() -> Self {
        Lanes {
            keyed: RandomState::new(),
            buckets: (0..BUCKETS).map(|_| Mutex::new(HashMap::new())).collect(),
        }
    }

    /// The lane of a key. Runs the user's `Hash`, so it is called with no lock held.
    pub(crate) fn lane_of(&self, key: &impl Hash) -> u64 {
        self.keyed.hash_one(key)
    }

    /// Step 1. True: the lane was free, and the caller sends the job out.
    #[must_use]
    pub(crate) fn enter(&self, lane: u64, task: &Task) -> bool {
        match lock(self.bucket(lane)).entry(lane) {
            Entry::Vacant(vacant) => {
                vacant.insert(VecDeque::new());
                true
            }
            Entry::Occupied(mut behind) => {
                behind.get_mut().push_back(task.clone());
                false
            }
        }
    }

    /// Steps 2 and 3: the job that was out has ended. Gives the next, which the caller sends out; shells on
    /// the way are dropped.
    #[must_use]
    pub(crate) fn next(&self, lane: u64) -> Option<Task> {
        let mut shells = Vec::new();
        let mut bucket = lock(self.bucket(lane));
        let behind = bucket.get_mut(&lane)?;
        let mut next = behind.pop_front();
        // Ends at the first live job, or at the end of the lane.
        while let Some(shell) = next.take_if(|task| task.header().is_shell()) {
            shells.push(shell);
            next = behind.pop_front();
        }
        if next.is_none() {
            bucket.remove(&lane);
        }
        drop(bucket);
        next
    }

    /// Takes out the shells that wait in lanes; they are dropped by the caller, with no lock held.
    pub(crate) fn take_shells(&self) -> Vec<Task> {
        let mut shells = Vec::new();
        for bucket in &self.buckets {
            for behind in lock(bucket).values_mut() {
                shells.extend(take_shells(behind));
            }
        }
        shells
    }

    /// Takes everything that waits in lanes, at shutdown.
    pub(crate) fn take_all(&self) -> Vec<Task> {
        let mut taken = Vec::new();
        for bucket in &self.buckets {
            for behind in lock(bucket).values_mut() {
                taken.extend(behind.drain(..));
            }
        }
        taken
    }

    fn bucket(&self, lane: u64) -> &Mutex<Bucket> {
        // The modulus is below the number of buckets, so it fits.
        &self.buckets[(lane % BUCKETS as u64) as usize]
    }
}
