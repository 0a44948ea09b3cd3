//! Who is woken when work comes, and how those who look for work are counted.
//!
//! Nobody is woken while somebody *searches*. A searcher looks at every queue, and does so again after it
//! announced that it goes to sleep. When it finds something and was the last searcher, it calls the next if
//! more is left. So while work waits there is a searcher, or every worker is busy:
//! 1. A producer pushes, fences, reads `searching`. Above zero: done. Otherwise it raises `searching`, claims
//!    one sleeper (or starts a thread), which inherits that count.
//! 2. If it found nobody, it lowers `searching` again, fences, and if a sleeper or other work is there now, tries
//!    again: another producer may have seen the raised count and relied on it.
//! 3. A searcher that found work lowers `searching`; if it was the last, it does as a producer does.
//! 4. A searcher that found nothing announces its sleep, lowers `searching`, fences, looks at every queue. (An
//!    ordinary worker, who does not run private jobs, calls another for them.)

use super::{Crew, Stage};
use crate::atomics::fence;
use crate::fixed::{Phase, Seat};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};

impl Crew {
    /// Makes sure that a job just inserted here is seen (step 2 of the seat's protocol).
    pub(super) fn wake_for(self: &Arc<Self>, seat: &Seat) {
        fence(SeqCst);
        match seat.phase() {
            Phase::Searching => {}
            Phase::Asleep => self.claim(seat),
            Phase::Busy | Phase::Stuck | Phase::Vacant => self.call_for_private(),
        }
    }

    /// The short way of `call` for what every producer does when all workers are busy: a look at the phases
    /// tells that nobody is there to be woken. (Who announces its sleep later sees the job.)
    pub(super) fn call_for_private(self: &Arc<Self>) {
        let mut anyone = false;
        for seat in &self.seats[..self.nr_workers()] {
            match seat.phase() {
                Phase::Searching => return,
                Phase::Asleep | Phase::Vacant => anyone = true,
                Phase::Busy | Phase::Stuck => {}
            }
        }
        if anyone {
            self.call();
        } else if self.watch.arm() {
            self.summon_ordinary();
        }
    }

    /// Sees to it that work that waits has a searcher, or that every worker is busy; in that case, that
    /// someone watches over what waits in private queues.
    pub(crate) fn call(self: &Arc<Self>) {
        // Each further round means that a worker went to sleep, or work came or went, meanwhile.
        loop {
            fence(SeqCst);
            if self.searching.load(Acquire) > 0 || self.stage() == Stage::Closed {
                return;
            }
            let (public, private) = self.backlog();
            if !public && !private {
                return;
            }
            self.searching.fetch_add(1, AcqRel);
            if public && self.ordinary.call_idle()
                || self.claim_any()
                || private && self.start_any_fixed()
                || public && self.grows()
            {
                return;
            }
            self.searching.fetch_sub(1, AcqRel);
            fence(SeqCst);
            let more_work = self.backlog() != (public, private);
            let anyone = public && self.ordinary.any_idle()
                || self
                    .seats()
                    .iter()
                    .any(|seat| seat.phase() == Phase::Asleep);
            if more_work || anyone {
                continue;
            }
            if private && self.watch.arm() {
                self.summon_ordinary();
            }
            return;
        }
    }

    /// Whether anything waits in the public queue, and whether anything that can be stolen waits in private ones.
    pub(super) fn backlog(&self) -> (bool, bool) {
        let private = self.seats().iter().any(Seat::has_stealable);
        (!self.public.is_empty(), private)
    }

    /// Sees to it that an ordinary worker comes by, if there may be one more: it is to watch.
    pub(crate) fn summon_ordinary(self: &Arc<Self>) {
        self.searching.fetch_add(1, AcqRel);
        if !self.ordinary.call_idle() && !self.grows() {
            self.retract_search();
        }
    }

    fn grows(self: &Arc<Self>) -> bool {
        matches!(self.grow(), Some(Ok(())))
    }

    /// Claims and wakes the worker of one seat, if it sleeps.
    pub(super) fn claim(self: &Arc<Self>, seat: &Seat) {
        self.searching.fetch_add(1, AcqRel);
        if seat.claim_sleeper() {
            seat.unpark();
        } else {
            self.retract_search();
        }
    }

    /// Wakes any fixed worker that sleeps; the caller has counted it as searching.
    pub(super) fn claim_any(&self) -> bool {
        let sleeper = self.seats().iter().find(|seat| seat.claim_sleeper());
        if let Some(seat) = sleeper {
            seat.unpark();
        }
        sleeper.is_some()
    }

    /// Lowers a count that was raised for a worker who then could not be had (step 2): whoever saw the raised
    /// count may have relied on it.
    pub(super) fn retract_search(self: &Arc<Self>) {
        self.searching.fetch_sub(1, AcqRel);
        self.call();
    }

    /// A worker looks for work from here on.
    pub(crate) fn start_searching(&self) {
        self.searching.fetch_add(1, AcqRel);
    }

    /// A searcher found work (step 3).
    pub(crate) fn found_work(self: &Arc<Self>) {
        if self.searching.fetch_sub(1, AcqRel) == 1 {
            self.call();
        }
    }

    /// A searcher ends its search, having announced its sleep or its exit.
    pub(crate) fn stop_searching(&self) {
        self.searching.fetch_sub(1, AcqRel);
    }

    /// The last look of a fixed worker that has announced its sleep (step 4).
    pub(crate) fn anything_to_do(&self) -> bool {
        self.stage() != Stage::Open
            || !self.public.is_empty()
            || self.seats().iter().any(Seat::has_stealable)
    }
}
