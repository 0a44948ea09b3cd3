#![allow(unsafe_code)]
//! The part of a slot that other threads touch, and the stack on which they leave woken slots.
//!
//! A slot begins with a [`Link`]. A thread that wakes a task of another shard *claims* the link and
//! pushes it on that shard's [`Stack`]; the owner takes the whole stack at once and *releases* each
//! link before it wakes the task. Nothing is allocated for a wake, and a slot is on the stack at most
//! once.
//!
//! # How a wake is never lost
//!
//! ```text
//!   waker                                       owner
//!   W1  was = claimed.swap(true)                D1  takes all: head.swap(null)
//!   W2  if !was: next = head                    D2  for each, oldest first: reads next,
//!   W3           head: compare-exchange         D3  claimed.swap(false), and then
//!   W4           announces (inbox.rs)           D4  queues the task, which is polled later
//! ```
//!
//! Every change of `claimed` is a swap (`AcqRel`), so they have one order, and each sees what was done
//! before those that precede it. Take a waker's W1 and the owner's next D3 of that slot:
//!
//! 1. W1 comes before D3: the poll that follows D4 sees all that was written before W1, also if W1
//!    found the link claimed and pushed nothing. (Hence a swap, and not a look first.)
//! 2. W1 comes after D3: it finds the link free, or claimed by another waker that came after D3, and
//!    that one pushes; there is a next D3.
//!
//! And there *is* a next D3: who claims pushes (W3), and who pushes announces (W4), so that the owner
//! looks or, if it has ended, the next owner of the same seat. A waker that is suspended between W1 and
//! W3 holds back the wakes of that one task until it goes on; nothing else waits for it.
//!
//! # Who may touch what
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `claimed` | anybody, by swaps | the same |
//! | `next` | who claimed, between W1 and W3; then the owner, between D1 and D3 | the owner, between D1 and D3 |
//! | `generation` | the owner, when a task ends | anybody |
//! | `flags` | the owner | the owner |
//!
//! `next` needs no atomic: W3 (Release) and D1 (Acquire) hand it to the owner, D3 and the next W1 hand
//! it to whoever claims next. The owner reads it before D3, for after D3 it is not the owner's.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::atomics::{AtomicBool, AtomicPtr, AtomicU32, Ordering, UnsafeCell};

/// The beginning of every slot; see the module for who may touch what.
pub(crate) struct Link {
    next: UnsafeCell<*mut Link>,
    /// How many tasks have ended in this slot.
    generation: AtomicU32,
    claimed: AtomicBool,
    /// The state of the task, which stands here because here is room for it.
    pub(super) flags: Cell<u8>,
}

impl Link {
    pub(super) fn new() -> Self {
        Link {
            next: UnsafeCell::new(ptr::null_mut()),
            generation: AtomicU32::new(0),
            claimed: AtomicBool::new(false),
            flags: Cell::new(0),
        }
    }
}

/// The address of a link that is never unmapped and always a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkRef(NonNull<Link>);

// SAFETY: the atomics may be touched by anybody. `next` is touched in this file alone, by the one thread
// that the protocol above gives it to. `flags` is touched by `Slot` alone, which stays on the owner's
// thread.
unsafe impl Send for LinkRef {}
// SAFETY: as above; a shared `LinkRef` gives no more than a sent one, as it can be copied.
unsafe impl Sync for LinkRef {}

impl LinkRef {
    /// # Safety
    ///
    /// `link` points to an initialised link that stays one for ever: it is not unmapped, moved or used
    /// for anything else.
    pub(super) unsafe fn new(link: NonNull<Link>) -> Self {
        LinkRef(link)
    }

    pub(super) fn as_ptr(self) -> NonNull<Link> {
        self.0
    }

    pub(super) fn get(self) -> &'static Link {
        // SAFETY: it points to an initialised link for ever (`new`), of which nobody has a `&mut`.
        unsafe { self.0.as_ref() }
    }

    /// How many tasks have ended in this slot. Acquire: who sees that a task has ended sees what it did.
    pub(crate) fn generation(self) -> u32 {
        self.get().generation.load(Ordering::Acquire)
    }

    /// Notes that the slot's task has ended. For the owner.
    pub(super) fn next_generation(self) {
        let generation = &self.get().generation;
        // The owner is the only one to write it, so that this needs no read-modify-write.
        let ended = generation.load(Ordering::Relaxed);
        generation.store(ended.wrapping_add(1), Ordering::Release);
    }
}

/// Slots that other threads have woken.
pub(crate) struct Stack {
    /// The newest.
    head: AtomicPtr<Link>,
}

impl Stack {
    pub(crate) fn new() -> Self {
        Stack {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Leaves a woken slot here for the owner (W1 to W3), from any thread. `true`: it was not here
    /// before, and the caller announces it (W4).
    #[must_use = "whoever pushes announces it"]
    pub(crate) fn push(&self, link: LinkRef) -> bool {
        if link.get().claimed.swap(true, Ordering::AcqRel) {
            return false;
        }
        let new = link.0.as_ptr();
        let mut head = self.head.load(Ordering::Relaxed);
        // Ends: each failure means that another thread's push or drain succeeded.
        loop {
            // SAFETY: this thread has claimed the link and not yet pushed it, so `next` is its own.
            link.get().next.with_mut(|next| unsafe { *next = head });
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(changed) => head = changed,
            }
        }
    }

    /// Whether nothing is here. A push that this thread does not know of may be missed.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes everything, and gives each slot to `wake`, the oldest first, released (D1 to D4). For the
    /// owner. `wake` must not panic: the wakes that follow would be lost.
    pub(crate) fn drain(&self, mut wake: impl FnMut(LinkRef)) {
        if self.is_empty() {
            return;
        }
        let mut newest = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        // Turns the list around. Both loops end: a list holds each slot once.
        let mut oldest = ptr::null_mut();
        while let Some(link) = NonNull::new(newest) {
            let link = LinkRef(link);
            // SAFETY: the list came out of the stack by the swap, so until they are released its
            // links' `next` are this thread's.
            newest = link
                .get()
                .next
                .with_mut(|next| unsafe { std::mem::replace(&mut *next, oldest) });
            oldest = link.0.as_ptr();
        }
        while let Some(link) = NonNull::new(oldest) {
            let link = LinkRef(link);
            // SAFETY: as above; this link is released in the next line and not before.
            oldest = link.get().next.with(|next| unsafe { *next });
            link.get().claimed.swap(false, Ordering::AcqRel);
            wake(link);
        }
    }
}

// Models of the protocol above together with the inbox's sleep; see inbox.rs for how they are run. A
// lost wake shows as a deadlock. Each of these changes was tried alone, and makes the named models fail
// (without their `loom_`; "wakers" are two_wakers_and_the_owner, claimed_again, a_seat_changes_hands):
//
//   W1 a look first, without Acquire, without Release, left out   wakers
//   W3 without Release; W4 left out                               wakers; two_slots_on_the_stack
//   D1 without Acquire                                            wakers; two_slots_on_the_stack
//   D3 a store, without Acquire, without Release, before D2,
//     after D4                                                    wakers
//   O2 without a look at the slot lane                            wakers; two_slots_on_the_stack
//   the notifier of the former owner stays                        a_seat_changes_hands
//   `generation` stored without Release                           abort_against_completion
#[cfg(all(test, loom))]
mod loom_tests {
    use std::ptr::NonNull;

    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::{Link, LinkRef};
    use crate::inbox::Inbox;

    type Notify = Box<dyn Fn() + Send + Sync>;

    /// One bit that a wait takes.
    #[derive(Default)]
    struct Signal {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        fn raise(&self) {
            *self.raised.lock().unwrap() = true;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.changed.wait(raised).unwrap();
            }
            *raised = false;
        }
    }

    /// What an abort names.
    type Abort = (LinkRef, u32);

    struct Seat(Inbox<Abort, Notify>);

    impl Seat {
        fn new() -> Arc<Self> {
            Arc::new(Seat(Inbox::new()))
        }

        /// Takes the seat, with a signal of the new owner's.
        fn open(&self, epoch: u64) -> Arc<Signal> {
            let signal = Arc::new(Signal::default());
            let notifier = signal.clone();
            self.0.open(epoch, Box::new(move || notifier.raise()));
            signal
        }

        /// Drains, and sleeps whenever it may, until `poll`, which is called for each slot that came out,
        /// says that it is over.
        fn run(&self, signal: &Signal, mut poll: impl FnMut(LinkRef) -> bool) {
            let mut over = false;
            // Ends when `poll` has said so: a wake that is lost is a wait without end.
            while !over {
                self.0.drain_slots(|link| over |= poll(link));
                if !over && let Some(asleep) = self.0.prepare_sleep() {
                    signal.wait();
                    drop(asleep);
                }
            }
        }
    }

    /// A slot for ever: the model leaks it, as an arena does.
    fn slot() -> LinkRef {
        let link = NonNull::from(Box::leak(Box::new(Link::new())));
        // SAFETY: initialised and leaked.
        unsafe { LinkRef::new(link) }
    }

    /// Two wakers of one task write and wake; the task looks only when it is woken, and sees both writes.
    /// It is woken at most twice: a slot is on the stack once.
    #[test]
    fn loom_two_wakers_and_the_owner() {
        loom::model(|| {
            let (seat, link) = (Seat::new(), slot());
            let signal = seat.open(1);
            let ready = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let wakers: Vec<_> = (0..2)
                .map(|index| {
                    let (seat, ready) = (seat.clone(), ready.clone());
                    thread::spawn(move || {
                        ready[index].store(true, Ordering::Relaxed);
                        seat.0.push_slot(link);
                    })
                })
                .collect();
            let mut polls = 0;
            seat.run(&signal, |woken| {
                assert_eq!(woken, link);
                polls += 1;
                ready.iter().all(|bit| bit.load(Ordering::Relaxed))
            });
            for waker in wakers {
                waker.join().unwrap();
            }
            seat.0.drain_slots(|_| polls += 1);
            assert!(polls <= 2);
        });
    }

    /// One waker wakes a task twice while the owner drains it, which is claimed again, and another waker
    /// wakes it once.
    #[test]
    fn loom_claimed_again() {
        loom::model(|| {
            let (seat, link) = (Seat::new(), slot());
            let signal = seat.open(1);
            let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let wakers: Vec<_> = [2, 1]
                .into_iter()
                .enumerate()
                .map(|(index, times)| {
                    let (seat, counts) = (seat.clone(), counts.clone());
                    thread::spawn(move || {
                        for count in 1..=times {
                            counts[index].store(count, Ordering::Relaxed);
                            seat.0.push_slot(link);
                        }
                    })
                })
                .collect();
            seat.run(&signal, |_| {
                let seen = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                seen == [2, 1]
            });
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// Two tasks, each woken by its own waker and by the other's: the list is whole, and both see their
    /// waker's write.
    #[test]
    fn loom_two_slots_on_the_stack() {
        loom::model(|| {
            let (seat, links) = (Seat::new(), [slot(), slot()]);
            let signal = seat.open(1);
            let ready = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let wakers: Vec<_> = (0..2)
                .map(|index| {
                    let (seat, ready) = (seat.clone(), ready.clone());
                    thread::spawn(move || {
                        ready[index].store(true, Ordering::Relaxed);
                        seat.0.push_slot(links[index]);
                    })
                })
                .collect();
            let mut done = [false, false];
            seat.run(&signal, |woken| {
                for index in 0..2 {
                    if woken == links[index] {
                        done[index] |= ready[index].load(Ordering::Relaxed);
                    }
                }
                done == [true, true]
            });
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// A seat changes hands while two wakers wake one of its slots, in which the next owner's task lives
    /// then: what the first owner did not see, the second one does, although it may have been claimed in
    /// the time of the first and pushed in that of the second.
    #[test]
    fn loom_a_seat_changes_hands() {
        loom::model(|| {
            let (seat, link) = (Seat::new(), slot());
            let ready = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            drop(seat.open(1));
            let wakers: Vec<_> = (0..2)
                .map(|index| {
                    let (seat, ready) = (seat.clone(), ready.clone());
                    thread::spawn(move || {
                        ready[index].store(true, Ordering::Relaxed);
                        seat.0.push_slot(link);
                    })
                })
                .collect();
            // The first owner ends here, after one look; the second begins on another thread.
            let all = |ready: &[AtomicBool; 2]| ready.iter().all(|bit| bit.load(Ordering::Relaxed));
            let mut seen = false;
            seat.0.drain_slots(|_| seen |= all(&ready));
            drop(seat.0.close());
            let second = {
                let (seat, ready) = (seat.clone(), ready.clone());
                thread::spawn(move || {
                    let signal = seat.open(2);
                    if !seen {
                        seat.run(&signal, |_| all(&ready));
                    }
                })
            };
            for waker in wakers {
                waker.join().unwrap();
            }
            second.join().unwrap();
        });
    }

    /// An abort from elsewhere against the end of its task, whose slot another task gets: it ends the one
    /// it means or nobody. Who sees that the task has ended sees what it did.
    #[test]
    fn loom_abort_against_completion() {
        loom::model(|| {
            let (seat, link) = (Seat::new(), slot());
            let signal = seat.open(1);
            let done = Arc::new(AtomicBool::new(false));
            let aborter = {
                let (seat, done) = (seat.clone(), done.clone());
                thread::spawn(move || {
                    let generation = 0;
                    if link.generation() != generation {
                        assert!(done.load(Ordering::Relaxed));
                        return;
                    }
                    seat.0.push(1, (link, generation)).unwrap();
                })
            };
            // The task ends by itself unless an abort is there first; then its slot is the next one's.
            let mut aborted = 0;
            if seat.0.pop().is_some() {
                aborted += 1;
            }
            done.store(true, Ordering::Relaxed);
            link.next_generation();
            // The next task in the slot.
            if let Some((target, generation)) = seat.0.pop() {
                assert_eq!(target, link);
                assert_ne!(
                    target.generation(),
                    generation,
                    "it is not the one that is meant"
                );
            }
            aborter.join().unwrap();
            drop(signal);
            assert!(aborted <= 1);
        });
    }

    /// Two aborts that come from elsewhere wake a shard that sleeps.
    #[test]
    fn loom_an_abort_ends_the_sleep() {
        loom::model(|| {
            let (seat, link) = (Seat::new(), slot());
            let signal = seat.open(1);
            let aborters: Vec<_> = (0..2)
                .map(|_| {
                    let seat = seat.clone();
                    thread::spawn(move || seat.0.push(1, (link, 0)).unwrap())
                })
                .collect();
            let mut aborts = 0;
            while aborts < 2 {
                while let Some((target, generation)) = seat.0.pop() {
                    assert_eq!(target.generation(), generation);
                    aborts += 1;
                }
                if aborts < 2
                    && let Some(asleep) = seat.0.prepare_sleep()
                {
                    signal.wait();
                    drop(asleep);
                }
            }
            for aborter in aborters {
                aborter.join().unwrap();
            }
        });
    }
}
