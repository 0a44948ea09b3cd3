//! What the reactor remembers of each operation in flight; pure state.
//!
//! ```text
//!            insert 1              complete 2             poll 3, abandon 4
//!   vacant ───────────► InFlight ────────────► Completed ──────────────────► vacant
//!                          │ orphan 5
//!                          ▼
//!                       Orphaned ──complete 6──► vacant
//! ```
//!
//! An operation with many completions goes the same way: while its future lives they
//! queue in `Many`, and once it is orphaned they queue until the last one came.
//!
//! A slot is named by a [`Key`]: its place and a generation. The key travels through the
//! kernel as the entry's number, so a completion can be told from one of the place's
//! former tenant. Transitions return what is to be done; the reactor does it after its
//! borrow has ended.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::task::Waker;

use slab::Slab;

use crate::backend::Completion;

/// An operation's name: its slot and which tenant of the slot it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    place: u32,
    /// Below `1 << 31`: numbers with the top bit set are the reactor's own.
    generation: u32,
}

impl Key {
    pub(crate) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    fn from_user_data(user_data: u64) -> Self {
        Key {
            place: user_data as u32,
            generation: (user_data >> 32) as u32,
        }
    }
}

/// What is to be done after a completion was stored. `O` is an abandoned operation.
#[must_use]
#[derive(Debug)]
pub(crate) enum Action<O> {
    Nothing,
    Wake(Waker),
    /// The abandoned operation got its last completion: end it with these.
    Finish(O, Ending),
}

/// The completions an abandoned operation is ended with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    One(Completion),
    Many(VecDeque<Completion>),
}

/// What an abandoned future finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// The operation is over; its slot is free.
    Over(Ending),
    /// The kernel still has it: hand the operation over with [`Slots::orphan`].
    InFlight,
}

/// What a poll finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    /// The one completion; the slot is free.
    Ready(Completion),
    /// One of many; the slot stays.
    Item(Completion),
    /// No more will come; the slot stays until the future is dropped.
    Ended,
}

enum State<O> {
    InFlight(Option<Waker>),
    Completed(Completion),
    Many {
        waker: Option<Waker>,
        queue: VecDeque<Completion>,
        ended: bool,
    },
    Orphaned(O, Option<VecDeque<Completion>>),
}

struct Slot<O> {
    generation: u32,
    opcode: u8,
    fd: RawFd,
    /// A cancel was asked for, so an interruption is an end and not a reason to try again.
    cancelled: bool,
    state: State<O>,
}

/// All operations in flight, and those whose completion nobody took yet.
pub(crate) struct Slots<O> {
    slab: Slab<Slot<O>>,
    generation: u32,
    in_flight: usize,
}

/// Places kept after a burst; beyond it an empty table gives its memory back.
const PLACES_KEPT: usize = 4096;

impl<O> Slots<O> {
    pub(crate) fn new() -> Self {
        Slots {
            slab: Slab::new(),
            generation: 0,
            in_flight: 0,
        }
    }

    /// A place for a new operation (1). `many`: it completes more than once.
    pub(crate) fn insert(&mut self, opcode: u8, fd: RawFd, many: bool) -> Key {
        self.generation = (self.generation + 1) & 0x7fff_ffff;
        self.in_flight += 1;
        let state = if many {
            State::Many {
                waker: None,
                queue: VecDeque::new(),
                ended: false,
            }
        } else {
            State::InFlight(None)
        };
        let place = self.slab.insert(Slot {
            generation: self.generation,
            opcode,
            fd,
            cancelled: false,
            state,
        });
        Key {
            place: u32::try_from(place).expect("fewer than 4 billion operations fit in memory"),
            generation: self.generation,
        }
    }

    /// How many operations the kernel still has.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many places are taken: in flight, or completed and not yet claimed.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Stores a completion (2, 6).
    pub(crate) fn complete(&mut self, completion: Completion) -> Action<O> {
        let key = Key::from_user_data(completion.user_data);
        let more = completion.more();
        let Some(slot) = self.get_mut(key) else {
            debug_assert!(false, "stale completion {completion:?}");
            return Action::Nothing;
        };
        let action = match &mut slot.state {
            State::InFlight(waker) => {
                debug_assert!(!more, "{completion:?} announces more of a single operation");
                let waker = waker.take();
                slot.state = State::Completed(completion);
                waker.map_or(Action::Nothing, Action::Wake)
            }
            State::Many {
                waker,
                queue,
                ended,
            } => {
                queue.push_back(completion);
                *ended = !more;
                waker.take().map_or(Action::Nothing, Action::Wake)
            }
            State::Orphaned(_, Some(queue)) if more => {
                queue.push_back(completion);
                Action::Nothing
            }
            State::Orphaned(..) => {
                let State::Orphaned(orphan, queue) = self.remove(key) else {
                    unreachable!("the state was just matched")
                };
                let ending = match queue {
                    None => Ending::One(completion),
                    Some(mut queue) => {
                        queue.push_back(completion);
                        Ending::Many(queue)
                    }
                };
                Action::Finish(orphan, ending)
            }
            State::Completed(_) => {
                debug_assert!(false, "{completion:?} completes an operation again");
                return Action::Nothing;
            }
        };
        if !more {
            self.in_flight -= 1;
        }
        action
    }

    /// The next completion, or a place for the waker: the last one polled with counts (3).
    pub(crate) fn poll(&mut self, key: Key, waker: &Waker) -> Polled {
        let slot = self
            .get_mut(key)
            .expect("a future's slot lives as long as the future");
        let stored = match &mut slot.state {
            State::Completed(completion) => {
                let completion = *completion;
                let _ = self.remove(key);
                return Polled::Ready(completion);
            }
            State::Many {
                queue,
                ended,
                waker,
            } => {
                if let Some(completion) = queue.pop_front() {
                    return Polled::Item(completion);
                }
                if *ended {
                    return Polled::Ended;
                }
                waker
            }
            State::InFlight(waker) => waker,
            State::Orphaned(..) => unreachable!("an orphan has no future that could poll it"),
        };
        match stored {
            Some(stored) => stored.clone_from(waker),
            None => *stored = Some(waker.clone()),
        }
        Polled::Pending
    }

    /// Whether a poll would find something.
    pub(crate) fn is_ready(&self, key: Key) -> bool {
        match self.slab.get(key.place as usize).map(|slot| &slot.state) {
            Some(State::Completed(_)) => true,
            Some(State::Many { queue, ended, .. }) => *ended || !queue.is_empty(),
            _ => false,
        }
    }

    /// How many completions wait to be taken.
    pub(crate) fn queued(&self, key: Key) -> usize {
        match self.slab.get(key.place as usize).map(|slot| &slot.state) {
            Some(State::Many { queue, .. }) => queue.len(),
            _ => 0,
        }
    }

    /// An operation that completed with `interrupted`, the result of one that did nothing
    /// because a signal came, is in flight again in its own slot, and its entry has to be
    /// staged once more. One that was cancelled ends instead.
    pub(crate) fn restart(&mut self, key: Key, interrupted: i32) -> bool {
        let Some(slot) = self.get_mut(key) else {
            return false;
        };
        let State::Completed(completion) = &slot.state else {
            return false;
        };
        let again = completion.result == interrupted && !slot.cancelled;
        if again {
            slot.state = State::InFlight(None);
            self.in_flight += 1;
        }
        again
    }

    /// The future goes (4), or has to hand the operation over.
    pub(crate) fn abandon(&mut self, key: Key) -> Abandoned {
        let slot = self
            .get_mut(key)
            .expect("a future's slot lives as long as the future");
        match &slot.state {
            State::InFlight(_) | State::Many { ended: false, .. } => return Abandoned::InFlight,
            _ => {}
        }
        match self.remove(key) {
            State::Completed(completion) => Abandoned::Over(Ending::One(completion)),
            State::Many { queue, .. } => Abandoned::Over(Ending::Many(queue)),
            State::InFlight(_) | State::Orphaned(..) => {
                unreachable!("in flight was answered, and an orphan has no future")
            }
        }
    }

    /// The operation goes into its slot (5), after [`Abandoned::InFlight`].
    pub(crate) fn orphan(&mut self, key: Key, orphan: O) {
        let slot = self
            .get_mut(key)
            .expect("the slot was just found in flight");
        slot.cancelled = true;
        let queue = match &mut slot.state {
            State::Many { queue, .. } => Some(std::mem::take(queue)),
            _ => None,
        };
        slot.state = State::Orphaned(orphan, queue);
    }

    /// An operation that never reached the kernel leaves its slot, with what it had queued.
    pub(crate) fn withdraw(&mut self, key: Key) {
        let _ = self.remove(key);
        self.in_flight -= 1;
    }

    /// Notes that the operation is being cancelled.
    pub(crate) fn mark_cancelled(&mut self, key: Key) {
        if let Some(slot) = self.get_mut(key) {
            slot.cancelled = true;
        }
    }

    /// The operations in flight on a descriptor.
    pub(crate) fn on_descriptor(&self, fd: RawFd) -> impl Iterator<Item = Key> {
        self.slab.iter().filter_map(move |(place, slot)| {
            let in_flight = !matches!(
                slot.state,
                State::Completed(_) | State::Many { ended: true, .. }
            );
            (slot.fd == fd && in_flight).then_some(Key {
                place: place as u32,
                generation: slot.generation,
            })
        })
    }

    /// Opcode and descriptor of everything in flight, for a report.
    pub(crate) fn named_in_flight(&self) -> impl Iterator<Item = (u8, RawFd)> {
        self.slab.iter().filter_map(|(_, slot)| match slot.state {
            State::Completed(_) | State::Many { ended: true, .. } => None,
            _ => Some((slot.opcode, slot.fd)),
        })
    }

    /// Rewrites completions that nobody took yet; for the end of the reactor.
    pub(crate) fn rewrite_unclaimed(&mut self, mut rewrite: impl FnMut(u8, &mut Completion)) {
        for (_, slot) in &mut self.slab {
            match &mut slot.state {
                State::Completed(completion) => rewrite(slot.opcode, completion),
                State::Many { queue, .. } => {
                    for completion in queue {
                        rewrite(slot.opcode, completion);
                    }
                }
                State::InFlight(_) | State::Orphaned(..) => {}
            }
        }
    }

    /// Takes the orphans that are still in flight, to be leaked.
    pub(crate) fn take_orphans(&mut self) -> Vec<O> {
        let places: Vec<usize> = self
            .slab
            .iter()
            .filter(|(_, slot)| matches!(slot.state, State::Orphaned(..)))
            .map(|(place, _)| place)
            .collect();
        places
            .into_iter()
            .filter_map(|place| match self.slab.remove(place).state {
                State::Orphaned(orphan, _) => Some(orphan),
                _ => None,
            })
            .collect()
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Slot<O>> {
        self.slab
            .get_mut(key.place as usize)
            .filter(|slot| slot.generation == key.generation)
    }

    fn remove(&mut self, key: Key) -> State<O> {
        let state = self.slab.remove(key.place as usize).state;
        if self.slab.is_empty() && self.slab.capacity() > PLACES_KEPT {
            self.slab = Slab::new();
        }
        state
    }
}
