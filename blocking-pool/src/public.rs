//! The public queue of an account, its bound, and those who wait for room.
//!
//! A place is reserved before a job is pushed and freed when the job leaves `Queued` (start or abort), so
//! `queued` never exceeds the bound and counts only jobs that are still to run. A job that finds no place
//! stands in the waiting list, in order of arrival; it moves to the queue when a place is free.
//!
//! Waiting for room against freeing a place:
//! 1. A submitter that found no place locks the list, counts itself in `waiting_count`, and fences.
//! 2. It then tries to move jobs from the head of the list into the queue itself.
//! 3. Whoever frees a place decrements `queued`, fences, and reads `waiting_count`; above zero, it moves
//!    jobs likewise. Of 2 and 3 at least one sees the other, so no job waits beside a free place.

use crate::atomics::{AtomicUsize, Mutex, Queue, fence, lock};
use crate::job::{Home, Task, take_shells};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

pub(crate) struct Public {
    queue: Queue<Task>,
    bound: usize,
    /// Jobs whose home is this queue and that have not started.
    queued: AtomicUsize,
    waiting: Mutex<VecDeque<Task>>,
    waiting_count: AtomicUsize,
    /// Live jobs without a place: those in the waiting list, and those that wait for their turn in a lane.
    unplaced: AtomicUsize,
}

impl Public {
    pub(crate) fn new(bound: usize) -> Self {
        Public {
            queue: Queue::new(),
            bound,
            queued: AtomicUsize::new(0),
            waiting: Mutex::new(VecDeque::new()),
            waiting_count: AtomicUsize::new(0),
            unplaced: AtomicUsize::new(0),
        }
    }

    /// Takes a place, unless none is free or others wait for one.
    pub(crate) fn reserve(&self) -> bool {
        self.waiting_count.load(Acquire) == 0 && self.reserve_next()
    }

    fn reserve_next(&self) -> bool {
        self.queued
            .fetch_update(AcqRel, Acquire, |queued| {
                (queued < self.bound).then_some(queued + 1)
            })
            .is_ok()
    }

    /// Gives a job without a place the one that was just reserved. False: it was aborted just now, and the
    /// place is the caller's to release.
    #[must_use]
    pub(crate) fn settle(&self, task: &Task) -> bool {
        let settled = task.header().move_home(Home::Waiting, Home::Public);
        if settled {
            self.unplaced.fetch_sub(1, AcqRel);
        }
        settled
    }

    /// Counts a job that has no place.
    pub(crate) fn add_unplaced(&self) {
        self.unplaced.fetch_add(1, AcqRel);
    }

    /// A job that had no place was aborted.
    pub(crate) fn remove_unplaced(&self) {
        self.unplaced.fetch_sub(1, AcqRel);
    }

    /// Pushes a job that has its place here.
    pub(crate) fn push(&self, task: Task) {
        self.queue.push(task);
    }

    /// Puts a job without a place at the end of the waiting list (step 1); returns the jobs that have a
    /// place now and must be pushed (step 2).
    #[must_use]
    pub(crate) fn wait(&self, task: Task) -> Vec<Task> {
        let mut waiting = lock(&self.waiting);
        waiting.push_back(task);
        self.waiting_count.store(waiting.len(), Relaxed);
        drop(waiting);
        fence(SeqCst);
        self.promote()
    }

    /// Frees one place (step 3); returns the jobs that have one now and must be pushed.
    #[must_use]
    pub(crate) fn release(&self) -> Vec<Task> {
        self.queued.fetch_sub(1, AcqRel);
        fence(SeqCst);
        if self.waiting_count.load(Relaxed) == 0 {
            return Vec::new();
        }
        self.promote()
    }

    fn promote(&self) -> Vec<Task> {
        let mut promoted = Vec::new();
        let mut waiting = lock(&self.waiting);
        while let Some(front) = waiting.front() {
            if front.header().home() == Some(Home::Waiting) {
                if !self.reserve_next() {
                    break;
                }
                if !self.settle(front) {
                    self.queued.fetch_sub(1, AcqRel);
                }
            }
            // A shell is handed on too: a serial lane moves on when its head is popped.
            promoted.extend(waiting.pop_front());
        }
        self.waiting_count.store(waiting.len(), Relaxed);
        promoted
    }

    pub(crate) fn pop(&self) -> Option<Task> {
        self.queue.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Entries in the queue itself, with shells.
    pub(crate) fn entries(&self) -> usize {
        self.queue.len()
    }

    /// Jobs that count against the bound.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Acquire)
    }

    /// Jobs that wait for room or for their turn in a lane.
    pub(crate) fn unplaced(&self) -> usize {
        self.unplaced.load(Acquire)
    }

    /// Takes the whole waiting list, at shutdown.
    pub(crate) fn take_waiting(&self) -> VecDeque<Task> {
        let mut waiting = lock(&self.waiting);
        self.waiting_count.store(0, Relaxed);
        std::mem::take(&mut *waiting)
    }

    /// Takes the shells out of the waiting list.
    pub(crate) fn take_waiting_shells(&self) -> Vec<Task> {
        let mut waiting = lock(&self.waiting);
        let shells = take_shells(&mut waiting);
        self.waiting_count.store(waiting.len(), Relaxed);
        shells
    }
}
