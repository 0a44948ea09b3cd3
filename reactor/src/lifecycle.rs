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
//! former tenant. Transitions return what is to be done, and the wakers to be let go; the
//! reactor does it after its borrow has ended, since a waker's clone, call and drop are
//! foreign code.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::task::Waker;

use crate::backend::Completion;
use io_uring::opcode;

/// An operation's name: its slot and which tenant of the slot it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    place: u32,
    /// Below `1 << 30`: numbers with one of the two top bits set are the reactor's own.
    generation: u32,
}

impl Key {
    #[inline]
    pub(crate) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    #[inline]
    pub(crate) fn from_user_data(user_data: u64) -> Self {
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
    /// Nothing yet, and this waker is kept already.
    Pending,
    /// Nothing yet: a clone of the waker is to be kept with [`Slots::keep_waker`].
    NewWaker,
    /// It did nothing, because a signal came: its entry is to be staged again, with
    /// [`Slots::restart`].
    Interrupted,
    /// Something is there, and the task may not have it now.
    Deferred,
    /// The one completion; the slot is free.
    Ready(Completion),
    /// One of many; the slot stays.
    Item(Completion),
    /// No more will come; the slot stays until the future is dropped.
    Ended,
}

enum State<O> {
    /// Nobody's; the next vacant place, or [`NO_PLACE`].
    Vacant(u32),
    InFlight(Option<Waker>),
    Completed(Completion),
    /// Boxed, so that the slot of a single operation is one cache line.
    Many(Box<Many>),
    Orphaned(O, Option<Box<Many>>),
}

#[derive(Default)]
struct Many {
    /// How many completions may wait; more, and the operation is to be cancelled. 0 is no
    /// bound.
    bound: usize,
    waker: Option<Waker>,
    queue: VecDeque<Completion>,
    ended: bool,
}

struct Slot<O> {
    generation: u32,
    opcode: u8,
    fd: RawFd,
    /// When its entry was staged, as a place in the line of all entries ever staged.
    staged_at: u64,
    /// An interruption is a reason to try again. Not so once a cancel was asked for, and not
    /// for a close: the number is free by then, and may be another's.
    restarts: bool,
    /// Whoever closes the descriptor, and waits for the last completion.
    closer: Option<Box<Waker>>,
    state: State<O>,
}

impl<O> Slot<O> {
    fn key(&self, place: usize) -> Key {
        Key {
            place: u32::try_from(place).expect("fewer than 4 billion operations fit in memory"),
            generation: self.generation,
        }
    }

    fn is_in_flight(&self) -> bool {
        match &self.state {
            State::Vacant(_) | State::Completed(_) => false,
            State::Many(many) => !many.ended,
            State::InFlight(_) | State::Orphaned(..) => true,
        }
    }
}

/// All operations in flight, and those whose completion nobody took yet.
pub(crate) struct Slots<O> {
    places: Vec<Slot<O>>,
    /// The first vacant place, or [`NO_PLACE`]: last in, first out, as its line is in the cache.
    vacant: u32,
    taken: usize,
    generation: u32,
    in_flight: usize,
}

/// The result of an operation that did nothing because a signal came.
const INTERRUPTED: i32 = -libc::EINTR;

/// Of vacant places: no operation has it, so a late key matches none of them.
const NO_GENERATION: u32 = u32::MAX;

/// The end of the list of vacant places.
const NO_PLACE: u32 = u32::MAX;

/// Places kept after a burst; beyond it an empty table gives its memory back.
const PLACES_KEPT: usize = 4096;

impl<O> Slots<O> {
    pub(crate) fn new() -> Self {
        Slots {
            places: Vec::new(),
            vacant: NO_PLACE,
            taken: 0,
            generation: 0,
            in_flight: 0,
        }
    }

    /// Bounds how many completions of a multishot operation may wait.
    pub(crate) fn bound(&mut self, key: Key, bound: usize) {
        if let Some(State::Many(many)) = self.get_mut(key).map(|slot| &mut slot.state) {
            many.bound = bound;
        }
    }

    /// Whether more completions wait than may, and nobody has cancelled the operation yet.
    #[inline]
    pub(crate) fn exceeds_bound(&self, key: Key) -> bool {
        match self.get(key) {
            Some(slot) if slot.restarts => match &slot.state {
                State::Many(many) => many.bound > 0 && many.queue.len() > many.bound,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether a cancel was asked for.
    pub(crate) fn is_cancelled(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| !slot.restarts)
    }

    /// A place for a new operation (1). `many`: it completes more than once.
    #[inline]
    pub(crate) fn insert(&mut self, opcode: u8, fd: RawFd, many: bool, staged_at: u64) -> Key {
        self.generation = (self.generation + 1) & 0x3fff_ffff;
        self.in_flight += 1;
        let state = if many {
            State::Many(Box::default())
        } else {
            State::InFlight(None)
        };
        let slot = Slot {
            generation: self.generation,
            opcode,
            fd,
            staged_at,
            restarts: opcode != opcode::Close::CODE,
            closer: None,
            state,
        };
        Key {
            place: self.place(slot),
            generation: self.generation,
        }
    }

    #[inline]
    fn place(&mut self, slot: Slot<O>) -> u32 {
        self.taken += 1;
        let place = self.vacant;
        match self.places.get_mut(place as usize) {
            Some(vacant) => {
                let State::Vacant(next) = vacant.state else {
                    unreachable!("the list has vacant places only")
                };
                self.vacant = next;
                *vacant = slot;
                place
            }
            None => {
                let place = u32::try_from(self.places.len());
                self.places.push(slot);
                place.expect("fewer than 4 billion operations fit in memory")
            }
        }
    }

    /// How many operations the kernel still has.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many places are taken: in flight, or completed and not yet claimed.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// Stores a completion (2, 6). Returns, besides, the waker of whoever closes the
    /// descriptor and waited for this.
    #[inline]
    pub(crate) fn complete(&mut self, completion: Completion) -> (Action<O>, Option<Waker>) {
        let key = Key::from_user_data(completion.user_data);
        let more = completion.more();
        let Some(slot) = self.get_mut(key) else {
            debug_assert!(false, "stale completion {completion:?}");
            return (Action::Nothing, None);
        };
        let closer = if more { None } else { slot.closer.take() };
        let closer = closer.map(|closer| *closer);
        let action = match &mut slot.state {
            State::InFlight(waker) => {
                debug_assert!(!more, "{completion:?} announces more of a single operation");
                let waker = waker.take();
                slot.state = State::Completed(completion);
                waker.map_or(Action::Nothing, Action::Wake)
            }
            State::Many(many) => {
                many.queue.push_back(completion);
                many.ended = !more;
                many.waker.take().map_or(Action::Nothing, Action::Wake)
            }
            State::Orphaned(_, Some(many)) if more => {
                many.queue.push_back(completion);
                Action::Nothing
            }
            State::Orphaned(..) => {
                let State::Orphaned(orphan, many) = self.remove(key) else {
                    unreachable!("the state was just matched")
                };
                let ending = match many {
                    None => Ending::One(completion),
                    Some(mut many) => {
                        many.queue.push_back(completion);
                        Ending::Many(many.queue)
                    }
                };
                Action::Finish(orphan, ending)
            }
            State::Completed(_) | State::Vacant(_) => {
                debug_assert!(false, "{completion:?} completes an operation again");
                return (Action::Nothing, closer);
            }
        };
        if !more {
            self.in_flight -= 1;
        }
        (action, closer)
    }

    /// The next completion (3), or whether the waker has to be kept.
    ///
    /// `may_resolve` is asked if there is something: whether the task may have it now.
    pub(crate) fn poll(
        &mut self,
        key: Key,
        waker: &Waker,
        may_resolve: impl FnOnce() -> bool,
    ) -> Polled {
        let slot = self
            .get_mut(key)
            .expect("a future's slot lives as long as the future");
        let kept = match &mut slot.state {
            State::Completed(completion) => {
                let mut completion = *completion;
                if completion.result == INTERRUPTED && slot.opcode != opcode::Close::CODE {
                    if slot.restarts {
                        return Polled::Interrupted;
                    }
                    // Not started again: what interrupted it was a cancel.
                    completion.result = -libc::ECANCELED;
                }
                if !may_resolve() {
                    return Polled::Deferred;
                }
                let _ = self.remove(key);
                return Polled::Ready(completion);
            }
            State::Many(many) => {
                if (many.ended || !many.queue.is_empty()) && !may_resolve() {
                    return Polled::Deferred;
                }
                if let Some(completion) = many.queue.pop_front() {
                    return Polled::Item(completion);
                }
                if many.ended {
                    return Polled::Ended;
                }
                &mut many.waker
            }
            State::InFlight(waker) => waker,
            State::Orphaned(..) | State::Vacant(_) => {
                unreachable!("a future's slot is its own, and an orphan has none")
            }
        };
        match kept {
            Some(kept) if kept.will_wake(waker) => Polled::Pending,
            _ => Polled::NewWaker,
        }
    }

    /// Keeps a waker: that of the last poll counts. Returns the one to be let go.
    #[inline]
    pub(crate) fn keep_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.get_mut(key).map(|slot| &mut slot.state) {
            Some(State::InFlight(kept)) => kept.replace(waker),
            Some(State::Many(many)) => many.waker.replace(waker),
            _ => Some(waker),
        }
    }

    /// Keeps the waker of whoever closes the descriptor until the last completion. Returns the
    /// one to be let go.
    pub(crate) fn keep_closer(&mut self, key: Key, closer: Waker) -> Option<Waker> {
        match self.get_mut(key) {
            Some(slot) => slot.closer.replace(Box::new(closer)).map(|former| *former),
            None => Some(closer),
        }
    }

    /// Whether a poll would find something.
    #[inline]
    pub(crate) fn is_ready(&self, key: Key) -> bool {
        match self.get(key).map(|slot| &slot.state) {
            Some(State::Completed(_)) => true,
            Some(State::Many(many)) => many.ended || !many.queue.is_empty(),
            _ => false,
        }
    }

    /// How many completions wait to be taken.
    pub(crate) fn queued(&self, key: Key) -> usize {
        match self.get(key).map(|slot| &slot.state) {
            Some(State::Many(many)) => many.queue.len(),
            _ => 0,
        }
    }

    /// An interrupted operation is in flight again in its own slot.
    pub(crate) fn restart(&mut self, key: Key, staged_at: u64) {
        let slot = self
            .get_mut(key)
            .expect("the slot was just found interrupted");
        slot.state = State::InFlight(None);
        slot.staged_at = staged_at;
        self.in_flight += 1;
    }

    /// When the operation's entry was staged.
    pub(crate) fn staged_at(&self, key: Key) -> u64 {
        self.places[key.place as usize].staged_at
    }

    /// The future goes (4), or has to hand the operation over.
    pub(crate) fn abandon(&mut self, key: Key) -> Abandoned {
        let slot = self
            .get_mut(key)
            .expect("a future's slot lives as long as the future");
        match &slot.state {
            State::InFlight(_) => return Abandoned::InFlight,
            State::Many(many) if !many.ended => return Abandoned::InFlight,
            _ => {}
        }
        match self.remove(key) {
            State::Completed(completion) => Abandoned::Over(Ending::One(completion)),
            State::Many(many) => Abandoned::Over(Ending::Many(many.queue)),
            State::InFlight(_) | State::Orphaned(..) | State::Vacant(_) => {
                unreachable!("in flight was answered, and an orphan has no future")
            }
        }
    }

    /// The operation goes into its slot (5), after [`Abandoned::InFlight`]. Returns the waker
    /// to be let go.
    pub(crate) fn orphan(&mut self, key: Key, orphan: O) -> Option<Waker> {
        let slot = self
            .get_mut(key)
            .expect("the slot was just found in flight");
        let (waker, many) = match &mut slot.state {
            State::InFlight(waker) => (waker.take(), None),
            State::Many(many) => (many.waker.take(), Some(std::mem::take(many))),
            State::Completed(_) | State::Orphaned(..) | State::Vacant(_) => {
                unreachable!("the slot was just found in flight")
            }
        };
        slot.state = State::Orphaned(orphan, many);
        waker
    }

    /// An operation that never reached the kernel leaves its slot. Returns the wakers to be
    /// let go; a closer is told by the hold on the descriptor.
    pub(crate) fn withdraw(&mut self, key: Key) -> [Option<Waker>; 2] {
        let closer = self.get_mut(key).and_then(|slot| slot.closer.take());
        let closer = closer.map(|closer| *closer);
        self.in_flight -= 1;
        match self.remove(key) {
            State::InFlight(waker) => [waker, closer],
            State::Many(many) => [many.waker, closer],
            State::Completed(_) | State::Orphaned(..) | State::Vacant(_) => [None, closer],
        }
    }

    /// Notes that the operation is being cancelled.
    pub(crate) fn mark_cancelled(&mut self, key: Key) {
        if let Some(slot) = self.get_mut(key) {
            slot.restarts = false;
        }
    }

    /// The operations on a descriptor: in flight, or completed and not yet claimed.
    pub(crate) fn on_descriptor(&self, fd: RawFd) -> impl Iterator<Item = Key> {
        let on_it = self.all().filter(move |(_, slot)| slot.fd == fd);
        on_it.map(|(place, slot)| slot.key(place))
    }

    /// The operation's descriptor is no more; its number may soon be another's.
    pub(crate) fn detach(&mut self, key: Key) {
        if let Some(slot) = self.get_mut(key) {
            slot.fd = -1;
        }
    }

    /// Everything in flight.
    pub(crate) fn in_flight_keys(&self) -> impl Iterator<Item = Key> {
        let in_flight = self.all().filter(|(_, slot)| slot.is_in_flight());
        in_flight.map(|(place, slot)| slot.key(place))
    }

    /// Whether the kernel still has an operation; `None` if it is over and claimed.
    pub(crate) fn is_in_flight(&self, key: Key) -> Option<bool> {
        self.get(key).map(Slot::is_in_flight)
    }

    /// Opcode and descriptor of everything in flight, for a report.
    pub(crate) fn named_in_flight(&self) -> impl Iterator<Item = (u8, RawFd)> {
        let in_flight = self.all().filter(|(_, slot)| slot.is_in_flight());
        in_flight.map(|(_, slot)| (slot.opcode, slot.fd))
    }

    /// Rewrites completions that nobody took yet; for the end of the reactor.
    pub(crate) fn rewrite_unclaimed(&mut self, mut rewrite: impl FnMut(u8, &mut Completion)) {
        for slot in &mut self.places {
            match &mut slot.state {
                State::Completed(completion) => rewrite(slot.opcode, completion),
                State::Many(many) | State::Orphaned(_, Some(many)) => {
                    for completion in &mut many.queue {
                        rewrite(slot.opcode, completion);
                    }
                }
                State::InFlight(_) | State::Orphaned(_, None) | State::Vacant(_) => {}
            }
        }
    }

    /// Takes the wakers of all who wait; for the end of the reactor.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in &mut self.places {
            wakers.extend(slot.closer.take().map(|closer| *closer));
            match &mut slot.state {
                State::InFlight(waker) => wakers.extend(waker.take()),
                State::Many(many) => wakers.extend(many.waker.take()),
                State::Completed(_) | State::Orphaned(..) | State::Vacant(_) => {}
            }
        }
        wakers
    }

    /// Takes the orphans that are still in flight, to be leaked.
    pub(crate) fn take_orphans(&mut self) -> Vec<O> {
        let orphaned = |(_, slot): &(usize, &Slot<O>)| matches!(slot.state, State::Orphaned(..));
        let keys = self.all().filter(orphaned);
        let keys: Vec<Key> = keys.map(|(place, slot)| slot.key(place)).collect();
        let states = keys.into_iter().map(|key| self.remove(key));
        states
            .filter_map(|state| match state {
                State::Orphaned(orphan, _) => Some(orphan),
                _ => None,
            })
            .collect()
    }

    /// Every place that is taken.
    fn all(&self) -> impl Iterator<Item = (usize, &Slot<O>)> {
        let taken = |(_, slot): &(usize, &Slot<O>)| !matches!(slot.state, State::Vacant(_));
        self.places.iter().enumerate().filter(taken)
    }

    #[inline]
    fn get(&self, key: Key) -> Option<&Slot<O>> {
        let slot = self.places.get(key.place as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    #[inline]
    fn get_mut(&mut self, key: Key) -> Option<&mut Slot<O>> {
        let slot = self.places.get_mut(key.place as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    /// Frees the place of an operation that is over.
    #[inline]
    fn remove(&mut self, key: Key) -> State<O> {
        let slot = &mut self.places[key.place as usize];
        debug_assert_eq!(slot.generation, key.generation, "whose place it is");
        slot.generation = NO_GENERATION;
        slot.closer = None;
        let state = std::mem::replace(&mut slot.state, State::Vacant(self.vacant));
        self.vacant = key.place;
        self.taken -= 1;
        if self.taken == 0 && self.places.capacity() > PLACES_KEPT {
            self.places = Vec::new();
            self.vacant = NO_PLACE;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MORE;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What happens to one operation, from its point of view.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Submit,
        /// With one of two wakers.
        Poll(usize),
        Complete,
        /// It completes interrupted, is polled, and is in flight again.
        Interrupt,
        /// A completion that is not the last.
        More,
        Drop,
        /// Dropped while its entry is still staged.
        Withdraw,
    }
    use Event::{Complete, Drop, Interrupt, More, Poll, Submit, Withdraw};

    /// All that one single operation can go through.
    const LIVES: &[&[Event]] = &[
        &[Submit, Complete, Poll(0)],
        &[Submit, Complete, Drop],
        &[Submit, Drop, Complete],
        &[Submit, Withdraw],
        &[Submit, Poll(0), Complete, Poll(0)],
        &[Submit, Poll(0), Drop, Complete],
        &[Submit, Poll(0), Withdraw],
        &[Submit, Poll(0), Complete, Drop],
        &[Submit, Poll(0), Poll(1), Complete, Poll(0)],
        &[Submit, Interrupt, Complete, Poll(0)],
        &[Submit, Poll(0), Interrupt, Drop, Complete],
    ];

    /// All orders of events of a multishot operation with at most two items and an end.
    const MULTISHOT_LIVES: &[&[Event]] = &[
        &[
            Submit,
            Poll(0),
            More,
            Poll(0),
            More,
            Complete,
            Poll(0),
            Poll(0),
            Drop,
        ],
        &[Submit, More, More, Complete, Drop],
        &[Submit, More, Drop, More, Complete],
        &[Submit, Drop, More, More, Complete],
        &[Submit, Poll(0), More, Poll(0), Poll(1), Drop, Complete],
        &[Submit, Complete, Poll(0), Poll(0), Drop],
        &[Submit, Withdraw],
    ];

    /// One operation of the model that the table is compared with.
    struct Model {
        life: &'static [Event],
        many: bool,
        key: Option<Key>,
        wakers: [Arc<Count>; 2],
        /// The waker that is called by the next completion.
        kept: Option<usize>,
        wakes: [usize; 2],
        /// Results that were stored and not taken, the numbers of the completions.
        queue: VecDeque<i32>,
        completions: i32,
        over: bool,
        orphan: bool,
        ended: u32,
    }

    impl Model {
        fn new(life: &'static [Event], many: bool) -> Self {
            Model {
                life,
                many,
                key: None,
                wakers: Default::default(),
                kept: None,
                wakes: [0; 2],
                queue: VecDeque::new(),
                completions: 0,
                over: false,
                orphan: false,
                ended: 0,
            }
        }

        fn key(&self) -> Key {
            self.key.expect("its life begins with its submission")
        }

        fn step(&mut self, event: Event, slots: &mut Slots<usize>, place: usize) {
            match event {
                Submit => self.key = Some(slots.insert(opcode::Nop::CODE, -1, self.many, 0)),
                Poll(which) => self.poll(which, slots),
                Complete => self.complete(0, slots, place),
                More => self.complete(MORE, slots, place),
                Interrupt => {
                    let key = self.key();
                    let completion = Completion {
                        user_data: key.user_data(),
                        result: INTERRUPTED,
                        flags: 0,
                    };
                    self.expect_wake(slots.complete(completion));
                    let polled = slots.poll(key, Waker::noop(), || unreachable!("nothing to have"));
                    assert_eq!(polled, Polled::Interrupted);
                    slots.restart(key, 0);
                    assert!(!slots.is_ready(key));
                }
                Drop => self.drop(slots, place),
                Withdraw => {
                    assert_eq!(slots.abandon(self.key()), Abandoned::InFlight);
                    let [waker, closer] = slots.withdraw(self.key());
                    assert_eq!(waker.is_some(), self.kept.is_some());
                    assert!(closer.is_none());
                    self.ended += 1;
                }
            }
        }

        fn poll(&mut self, which: usize, slots: &mut Slots<usize>) {
            let waker = Waker::from(self.wakers[which].clone());
            let deferred = slots.poll(self.key(), &waker, || false);
            let something = self.over || !self.queue.is_empty();
            assert_eq!(
                deferred == Polled::Deferred,
                something,
                "it stays for another time"
            );
            let polled = slots.poll(self.key(), &waker, || true);
            match self.queue.pop_front() {
                Some(result) => {
                    let (Polled::Ready(found) | Polled::Item(found)) = polled else {
                        panic!("{polled:?} instead of {result}")
                    };
                    assert_eq!(found.result, result);
                    self.ended += u32::from(!self.many);
                }
                None if self.over => assert_eq!(polled, Polled::Ended),
                None if self.kept == Some(which) => assert_eq!(polled, Polled::Pending),
                None => {
                    assert_eq!(polled, Polled::NewWaker);
                    let former = slots.keep_waker(self.key(), waker);
                    assert_eq!(former.is_some(), self.kept.is_some());
                    self.kept = Some(which);
                }
            }
        }

        fn complete(&mut self, flags: u32, slots: &mut Slots<usize>, place: usize) {
            self.completions += 1;
            let completion = Completion {
                user_data: self.key().user_data(),
                // Each result tells whose it is.
                result: place as i32 * 100 + self.completions,
                flags,
            };
            self.queue.push_back(completion.result);
            self.over = flags == 0;
            let done = slots.complete(completion);
            if !self.orphan {
                return self.expect_wake(done);
            }
            let (action, None) = done else {
                panic!("nobody closes here")
            };
            if !self.over {
                assert!(matches!(action, Action::Nothing));
                return;
            }
            let Action::Finish(orphan, ending) = action else {
                panic!("the orphan's last completion ends it")
            };
            assert_eq!(orphan, place);
            self.expect_ending(ending);
        }

        fn expect_wake(&mut self, done: (Action<usize>, Option<Waker>)) {
            match (done, self.kept.take()) {
                ((Action::Wake(waker), None), Some(which)) => {
                    waker.wake();
                    self.wakes[which] += 1;
                }
                ((Action::Nothing, None), None) => {}
                (done, kept) => panic!("{done:?}, and kept was {kept:?}"),
            }
            let count = |which: usize| self.wakers[which].0.load(Ordering::Relaxed);
            assert_eq!([count(0), count(1)], self.wakes);
        }

        fn expect_ending(&mut self, ending: Ending) {
            let results: Vec<i32> = match ending {
                Ending::One(completion) => vec![completion.result],
                Ending::Many(completions) => completions.iter().map(|one| one.result).collect(),
            };
            assert_eq!(results, self.queue.drain(..).collect::<Vec<_>>());
            self.ended += 1;
        }

        fn drop(&mut self, slots: &mut Slots<usize>, place: usize) {
            match slots.abandon(self.key()) {
                Abandoned::Over(ending) => {
                    assert!(self.over);
                    self.expect_ending(ending);
                }
                Abandoned::InFlight => {
                    assert!(!self.over);
                    let waker = slots.orphan(self.key(), place);
                    assert_eq!(waker.is_some(), self.kept.take().is_some());
                    self.orphan = true;
                }
            }
        }
    }

    type Life = (&'static [Event], bool);

    /// Calls `found` with every order in which the events of these lives can happen: each a
    /// list of whose event is next. Of equal lives the first begins first, since all else is
    /// the same with the names changed.
    fn interleave(
        lives: &[Life],
        at: &mut [usize],
        order: &mut Vec<usize>,
        found: &dyn Fn(&[usize]),
    ) {
        let mut is_last = true;
        for which in 0..lives.len() {
            let begun = at[which] > 0 || which == 0;
            if at[which] == lives[which].0.len() {
                continue;
            }
            is_last = false;
            if !begun && at[which - 1] == 0 && lives[which] == lives[which - 1] {
                continue;
            }
            at[which] += 1;
            order.push(which);
            interleave(lives, at, order, found);
            order.pop();
            at[which] -= 1;
        }
        if is_last {
            found(order);
        }
    }

    fn play(lives: &[Life], order: &[usize]) {
        let mut slots = Slots::new();
        let mut models: Vec<Model> = lives
            .iter()
            .map(|&(life, many)| Model::new(life, many))
            .collect();
        let mut at = vec![0; lives.len()];
        for &which in order {
            let event = models[which].life[at[which]];
            at[which] += 1;
            models[which].step(event, &mut slots, which);
        }
        assert!(models.iter().all(|model| model.ended == 1 || model.many));
        assert_eq!(
            (slots.in_flight(), slots.len()),
            (0, 0),
            "{lives:?} {order:?}"
        );
        // No waker stayed behind: the models' are the last owners.
        let wakers = models.iter().flat_map(|model| &model.wakers);
        assert!(
            wakers
                .into_iter()
                .all(|waker| Arc::strong_count(waker) == 1)
        );
    }

    fn play_all(lives: &[Life]) {
        let mut at = vec![0; lives.len()];
        interleave(lives, &mut at, &mut Vec::new(), &|order| play(lives, order));
    }

    fn singles() -> impl Iterator<Item = Life> {
        LIVES.iter().map(|&life| (life, false))
    }

    /// One and two operations: every pair of lives, in every order of their events.
    #[test]
    fn every_order_of_two_operations() {
        for first in singles() {
            play_all(&[first]);
            for second in singles() {
                play_all(&[first, second]);
            }
        }
    }

    /// Three operations of the lives that matter to each other: taken, abandoned in flight,
    /// taken out, interrupted.
    #[test]
    fn every_order_of_three_operations() {
        let lives = [LIVES[2], LIVES[3], LIVES[4], LIVES[9]].map(|life| (life, false));
        for (place, &first) in lives.iter().enumerate() {
            for (next, &second) in lives.iter().enumerate().skip(place) {
                for &third in &lives[next..] {
                    play_all(&[first, second, third]);
                }
            }
        }
    }

    /// Four operations, each awaited or abandoned in flight, in every order of their events.
    #[test]
    fn every_order_of_four_operations() {
        let (awaited, abandoned) = ((LIVES[0], false), (LIVES[2], false));
        for count in 0..=4 {
            let mut lives = vec![awaited; 4];
            lives[..count].fill(abandoned);
            play_all(&lives);
        }
    }

    /// Multishot operations, alone and each beside a single one, in every order of their events.
    #[test]
    fn every_order_of_multishots() {
        for &life in MULTISHOT_LIVES {
            play_all(&[(life, true)]);
            for single in singles().filter(|(life, _)| life.len() < 5) {
                play_all(&[(life, true), single]);
            }
        }
        for &first in &MULTISHOT_LIVES[1..] {
            for &second in &MULTISHOT_LIVES[1..] {
                play_all(&[(first, true), (second, true)]);
            }
        }
    }

    fn completion(key: Key, result: i32, flags: u32) -> Completion {
        Completion {
            user_data: key.user_data(),
            result,
            flags,
        }
    }

    /// A place's next tenant has another number, which stays below the reactor's own.
    #[test]
    fn a_place_is_told_from_its_former_tenant() {
        let mut slots = Slots::<()>::new();
        slots.generation = 0x3fff_fffe;
        let mut former = None;
        for _ in 0..4 {
            let key = slots.insert(opcode::Nop::CODE, -1, false, 0);
            assert_eq!(key.place, 0);
            assert_ne!(Some(key), former);
            assert_eq!(key.user_data() >> 62, 0);
            assert_eq!(Key::from_user_data(key.user_data()), key);
            if let Some(former) = former {
                assert_eq!(slots.is_in_flight(former), None);
                slots.mark_cancelled(former);
            }
            assert_eq!(slots.is_in_flight(key), Some(true));
            let _ = slots.complete(completion(key, 0, 0));
            assert_eq!(slots.is_in_flight(key), Some(false));
            assert!(matches!(
                slots.abandon(key),
                Abandoned::Over(Ending::One(_))
            ));
            former = Some(key);
        }
    }

    /// A completion of a former tenant is noticed, and changes nothing.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "stale completion")]
    fn a_stale_completion_is_noticed() {
        let mut slots = Slots::<()>::new();
        let key = slots.insert(opcode::Nop::CODE, -1, false, 0);
        let _ = slots.withdraw(key);
        slots.insert(opcode::Nop::CODE, -1, false, 0);
        let _ = slots.complete(completion(key, 0, 0));
    }

    /// An interruption is a reason to try again, but not after a cancel and not for a close;
    /// and what is not tried again was cancelled, unless it is a close, which has closed.
    #[test]
    fn interruptions() {
        for (number, cancel, again, result) in [
            (opcode::Read::CODE, false, true, INTERRUPTED),
            (opcode::Read::CODE, true, false, -libc::ECANCELED),
            (opcode::Close::CODE, false, false, INTERRUPTED),
            (opcode::Close::CODE, true, false, INTERRUPTED),
        ] {
            let mut slots = Slots::<()>::new();
            let key = slots.insert(number, 3, false, 0);
            if cancel {
                slots.mark_cancelled(key);
            }
            let _ = slots.complete(completion(key, INTERRUPTED, 0));
            if again {
                let polled = slots.poll(key, Waker::noop(), || true);
                assert_eq!(polled, Polled::Interrupted);
                slots.restart(key, 7);
                assert_eq!((slots.in_flight(), slots.staged_at(key)), (1, 7));
                continue;
            }
            let Polled::Ready(found) = slots.poll(key, Waker::noop(), || true) else {
                panic!("it is over")
            };
            assert_eq!(found.result, result);
        }
    }

    /// Whoever closes is told by the last completion, of a multishot's too, and by no other.
    #[test]
    fn a_closer_is_told_by_the_last_completion() {
        for orphaned in [false, true] {
            let mut slots = Slots::new();
            let key = slots.insert(opcode::Accept::CODE, 3, true, 0);
            let other = slots.insert(opcode::Accept::CODE, 4, false, 0);
            assert!(slots.on_descriptor(3).eq([key]));
            let count = Arc::new(Count::default());
            assert!(slots.keep_closer(key, Waker::noop().clone()).is_none());
            assert!(slots.keep_closer(key, Waker::from(count.clone())).is_some());
            if orphaned {
                let _ = slots.orphan(key, ());
            }
            assert!(slots.complete(completion(other, 0, 0)).1.is_none());
            assert!(slots.complete(completion(key, 0, MORE)).1.is_none());
            let (_, closer) = slots.complete(completion(key, 0, 0));
            closer.expect("this was the last").wake();
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
            assert_eq!(slots.on_descriptor(3).count(), usize::from(!orphaned));
            assert_eq!(slots.in_flight_keys().count(), 0);
        }
    }

    /// At the end every waiter's waker comes out, once, and every orphan in flight.
    #[test]
    fn the_end_takes_wakers_and_orphans() {
        let mut slots = Slots::new();
        let keys: Vec<Key> = (0..6)
            .map(|place| slots.insert(opcode::Read::CODE, place, place % 2 == 1, 0))
            .collect();
        for &key in &keys[..4] {
            assert!(slots.keep_waker(key, Waker::noop().clone()).is_none());
        }
        assert!(slots.keep_closer(keys[0], Waker::noop().clone()).is_none());
        let _ = slots.complete(completion(keys[2], 0, 0));
        let _ = slots.complete(completion(keys[3], 0, 0));
        let _ = slots.orphan(keys[4], 4);
        let _ = slots.orphan(keys[5], 5);
        let in_flight: Vec<RawFd> = slots.named_in_flight().map(|(_, fd)| fd).collect();
        assert_eq!(in_flight, [0, 1, 4, 5]);
        assert_eq!(slots.take_wakers().len(), 3);
        assert_eq!(slots.take_wakers().len(), 0);
        assert_eq!(slots.take_orphans(), [4, 5]);
        assert_eq!(slots.len(), 4);
    }

    /// A burst gives its memory back once it is over (M6).
    #[test]
    fn memory_is_bounded() {
        let mut slots = Slots::<()>::new();
        for count in [PLACES_KEPT, PLACES_KEPT * 2] {
            let keys: Vec<Key> = (0..count)
                .map(|_| slots.insert(opcode::Nop::CODE, -1, false, 0))
                .collect();
            for key in keys {
                let _ = slots.withdraw(key);
            }
        }
        assert_eq!(slots.places.capacity(), 0);
        for _ in 0..1000 {
            let key = slots.insert(opcode::Nop::CODE, -1, false, 0);
            let _ = slots.withdraw(key);
        }
        assert!(slots.places.capacity() < 16, "places are used again");
    }
}
