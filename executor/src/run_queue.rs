//! The completion queue and the submission queue, and which of them is served next.
//!
//! A shard's ready tasks stand in two queues, each first come first served. A task that was woken
//! by a completion stands in the *completion queue*, everything else in the *submission queue*.
//! Completions go first; [`CompletionShare`] bounds how far that may hold ordinary tasks up. Pure
//! and generic: no clock, no tasks, no wakers.
//!
//! **The rule.** `pop` takes from the completion queue, unless an ordinary task is ready and has
//! its turn. It has its turn
//!
//! - with `Ratio(r)`: once `r` completions were taken in a row. Hence the promise: an ordinary task
//!   with `n` ordinary tasks before it is taken after at most `(n + 1) * r` completions, whatever
//!   arrives meanwhile.
//! - with `Unlimited` and `OneIn(k)`: once the *cohort* is used up. A cohort is the completions
//!   that were ready when the round began; a round begins with the first `pop` after one that took
//!   an ordinary task or found none ready, so nobody has to start one. Of the completions that
//!   arrive later, none waits for more than one ordinary task.
//!
//! `Ratio` and `Unlimited` admit every completion to the completion queue. `OneIn(k)` bounds the
//! share at the entrance instead. It keeps one integer, `factor`, 0 at first. A completion is
//! admitted while `factor >= 0`, and lowers it by `k - 1`; one that is not admitted goes to the
//! submission queue like an ordinary task, and both of these raise it by 1. It is 0 again only when
//! both queues have been empty. So of a flood of completions one in `k` is admitted, and ordinary
//! tasks that were pushed before earn completions their admission.

use std::collections::VecDeque;

/// An empty queue that has room for more than this many tasks gives its memory back (128 KiB of
/// pointers). Above it a load that comes and goes pays a few allocations a burst.
const KEPT: usize = 16_384;

/// How much of a shard's time completions may take while ordinary tasks wait.
///
/// Completions always go first; this says when an ordinary task runs in spite of them.
///
/// # Examples
///
/// ```
/// use roundel_executor::CompletionShare;
///
/// assert_eq!(CompletionShare::default(), CompletionShare::Ratio(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionShare {
    /// After this many completions in a row, one ordinary task runs. An ordinary task with `n`
    /// ordinary tasks before it runs after at most `(n + 1) * r` completions. 0 is taken as 1.
    ///
    /// The default is `Ratio(3)`: it costs completions nothing measurable, while at 1024 operations
    /// in flight a ratio of 1 makes them wait seven times as long.
    Ratio(u32),
    /// All the completions that are ready when an ordinary task's turn comes up run before it; those
    /// that arrive meanwhile run after it.
    Unlimited,
    /// One in so many tasks may be a completion that goes first; the other completions wait in line
    /// with the ordinary tasks. 0 is taken as 1. Stricter than the ratio of the same name:
    /// `OneIn(3)` lets one completion go before two others.
    OneIn(u32),
}

impl Default for CompletionShare {
    fn default() -> Self {
        CompletionShare::Ratio(3)
    }
}

/// What made a task ready, and which queue it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Completions, failed and cancelled operations, finished blocking jobs, aborts, timers.
    Completion,
    /// Spawns, wakes by tasks and by other threads, joins, bare readiness.
    Ordinary,
}

/// The two queues of a shard.
#[derive(Debug)]
pub(crate) struct RunQueues<T> {
    completions: VecDeque<T>,
    ordinary: VecDeque<T>,
    share: CompletionShare,
    /// `Ratio`: completions taken since the last ordinary task.
    in_a_row: u32,
    /// `Unlimited`, `OneIn`: what is left of the cohort; `None` until the round begins.
    cohort: Option<usize>,
    /// `OneIn`: completions are admitted while it is not negative.
    factor: i64,
}

impl<T> RunQueues<T> {
    pub(crate) fn new(share: CompletionShare) -> RunQueues<T> {
        RunQueues {
            completions: VecDeque::new(),
            ordinary: VecDeque::new(),
            share,
            in_a_row: 0,
            cohort: None,
            factor: 0,
        }
    }

    /// Puts a ready task at the end of the queue that its class and the share give it.
    pub(crate) fn push(&mut self, class: Class, task: T) {
        match self.admit(class) {
            Class::Completion => self.completions.push_back(task),
            Class::Ordinary => self.ordinary.push_back(task),
        }
    }

    /// Takes the next task by the rule above, with the queue it stood in.
    pub(crate) fn pop(&mut self) -> Option<(Class, T)> {
        let class = self.next()?;
        let (queue, waiting) = match class {
            Class::Completion => (&mut self.completions, !self.ordinary.is_empty()),
            Class::Ordinary => (&mut self.ordinary, false),
        };
        let ready = queue.len();
        let task = queue.pop_front()?;
        if queue.is_empty() && queue.capacity() > KEPT {
            queue.shrink_to(KEPT);
        }
        match class {
            Class::Completion => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                // With nobody waiting there is no round: the next `pop` begins one.
                let cohort = self.cohort.unwrap_or(ready);
                self.cohort = waiting.then(|| cohort.saturating_sub(1));
            }
            Class::Ordinary => {
                self.in_a_row = 0;
                self.cohort = None;
            }
        }
        if self.is_empty() {
            self.factor = 0;
        }
        Some((class, task))
    }

    /// The class [`pop`](RunQueues::pop) would take now: when it turns from completions to ordinary
    /// tasks, what is staged should be on its way to the kernel.
    pub(crate) fn next(&self) -> Option<Class> {
        match (self.completions.is_empty(), self.ordinary.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Class::Ordinary),
            (false, true) => Some(Class::Completion),
            (false, false) if self.ordinary_has_its_turn() => Some(Class::Ordinary),
            (false, false) => Some(Class::Completion),
        }
    }

    /// Whether no task is ready.
    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.ordinary.is_empty()
    }

    /// How many tasks stand in the completion queue.
    pub(crate) fn completions(&self) -> usize {
        self.completions.len()
    }

    /// How many tasks stand in the submission queue.
    pub(crate) fn ordinary(&self) -> usize {
        self.ordinary.len()
    }

    fn ordinary_has_its_turn(&self) -> bool {
        match self.share {
            CompletionShare::Ratio(ratio) => self.in_a_row >= ratio.max(1),
            CompletionShare::Unlimited | CompletionShare::OneIn(_) => self.cohort == Some(0),
        }
    }

    /// The admission rule of `OneIn`: which queue a task of this class joins.
    fn admit(&mut self, class: Class) -> Class {
        let CompletionShare::OneIn(one_in) = self.share else {
            return class;
        };
        if class == Class::Completion && self.factor >= 0 {
            self.factor -= i64::from(one_in.max(1)) - 1;
            return Class::Completion;
        }
        self.factor += 1;
        Class::Ordinary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Completion, Ordinary};

    /// What the promise says of one ordinary task that waits.
    struct Waiting {
        name: u32,
        /// Ordinary tasks that stood before it when it came, and itself: `n + 1`.
        place: u32,
        /// Completions taken since.
        overtaken_by: u32,
    }

    /// The queues, and a record of who waits for how long.
    struct Watched {
        queues: RunQueues<u32>,
        ratio: u32,
        pushed: u32,
        completions: VecDeque<u32>,
        ordinary: VecDeque<Waiting>,
    }

    impl Watched {
        fn new(ratio: u32) -> Watched {
            Watched {
                queues: RunQueues::new(CompletionShare::Ratio(ratio)),
                ratio,
                pushed: 0,
                completions: VecDeque::new(),
                ordinary: VecDeque::new(),
            }
        }

        fn push(&mut self, class: Class) {
            let name = self.pushed;
            self.pushed += 1;
            self.queues.push(class, name);
            match class {
                Completion => self.completions.push_back(name),
                Ordinary => self.ordinary.push_back(Waiting {
                    name,
                    place: self.ordinary.len() as u32 + 1,
                    overtaken_by: 0,
                }),
            }
        }

        /// Takes one task and checks order, promise, and that completions go first while they may.
        fn pop(&mut self) -> Option<Class> {
            let expected = self.queues.next();
            let Some((class, name)) = self.queues.pop() else {
                assert!(self.completions.is_empty() && self.ordinary.is_empty());
                assert_eq!(expected, None);
                return None;
            };
            assert_eq!(expected, Some(class));
            match class {
                Completion => {
                    assert_eq!(self.completions.pop_front(), Some(name));
                    for waiting in &mut self.ordinary {
                        waiting.overtaken_by += 1;
                        assert!(
                            waiting.overtaken_by <= waiting.place * self.ratio,
                            "task {} waited for {} completions",
                            waiting.name,
                            waiting.overtaken_by
                        );
                    }
                }
                Ordinary => assert_eq!(self.ordinary.pop_front().map(|w| w.name), Some(name)),
            }
            assert_eq!(self.queues.completions(), self.completions.len());
            assert_eq!(self.queues.ordinary(), self.ordinary.len());
            Some(class)
        }

        fn drain(&mut self) {
            while self.pop().is_some() {}
        }
    }

    /// P6: under every order of ten arrivals and polls, no ordinary task waits for more completions
    /// than promised, and nothing is lost, doubled or overtaken in its own class.
    #[test]
    fn every_arrival_order_keeps_the_promise() {
        for ratio in 1..=4 {
            for mut code in 0..3_u32.pow(10) {
                let mut watched = Watched::new(ratio);
                for _ in 0..10 {
                    match code % 3 {
                        0 => watched.push(Completion),
                        1 => watched.push(Ordinary),
                        _ => drop(watched.pop()),
                    }
                    code /= 3;
                }
                watched.drain();
            }
        }
    }

    /// P6 under a flood: each completion that is taken brings another one, and the ordinary tasks
    /// still come through; under long random orders, too.
    #[test]
    fn a_flood_keeps_the_promise() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for ratio in [1, 2, 3, 7, 64] {
            let mut watched = Watched::new(ratio);
            for _ in 0..200 {
                watched.push(Completion);
            }
            for _ in 0..20 {
                watched.push(Ordinary);
            }
            while !watched.ordinary.is_empty() {
                if watched.pop() == Some(Completion) {
                    watched.push(Completion);
                }
            }
            for _ in 0..20_000 {
                match random() % 16 {
                    0..7 => watched.push(Completion),
                    7..9 => watched.push(Ordinary),
                    _ => drop(watched.pop()),
                }
            }
            watched.drain();
        }
    }

    /// Runs a script: `c` and `o` push, a space ends a batch, `.` pops. Returns the classes taken,
    /// as `C` and `O`.
    fn run(share: CompletionShare, script: &str) -> String {
        let mut queues = RunQueues::new(share);
        let mut taken = String::new();
        for step in script.chars() {
            match step {
                'c' => queues.push(Completion, ()),
                'o' => queues.push(Ordinary, ()),
                _ => match queues.pop() {
                    Some((Completion, ())) => taken.push('C'),
                    Some((Ordinary, ())) => taken.push('O'),
                    None => taken.push('-'),
                },
            }
        }
        taken
    }

    /// M1: a completion that arrives while heavy tasks are queued goes before all of them, in every
    /// share.
    #[test]
    fn a_completion_goes_before_queued_tasks() {
        let shares = [
            CompletionShare::Ratio(1),
            CompletionShare::default(),
            CompletionShare::Unlimited,
            CompletionShare::OneIn(3),
        ];
        for share in shares {
            assert_eq!(run(share, "ooooo.c......"), "OCOOOO-", "{share:?}");
        }
    }

    /// `Ratio(r)` takes r completions to one ordinary task, and counts in a row.
    #[test]
    fn ratio() {
        let three = CompletionShare::Ratio(3);
        assert_eq!(run(three, "ccccccccooo..........."), "CCCOCCCOCCO");
        assert_eq!(run(three, "ccccc...oo...."), "CCCOCCO");
        // An ordinary task in between starts the count anew.
        assert_eq!(run(three, "cc..o.occcc....."), "CCOCCCOC");
        assert_eq!(run(CompletionShare::Ratio(0), "ccoo...."), "COCO");
    }

    /// `Unlimited` takes what was ready when the round began, then one ordinary task; what arrived
    /// in the round waits for that one only.
    #[test]
    fn unlimited_is_bounded_by_the_cohort() {
        let unlimited = CompletionShare::Unlimited;
        assert_eq!(run(unlimited, "cccccccoo........."), "CCCCCCCOO");
        // Each poll brings another completion.
        assert_eq!(run(unlimited, "cccooo.c.c.c.c.c.c.c.c."), "CCCOCCCCO");
        // An ordinary task that comes into a running flood waits for one cohort.
        assert_eq!(run(unlimited, "cc.co.c.c.c.."), "CCCOCC");
    }

    /// The factor of `OneIn(k)`, step by step: of a flood one in k is admitted; ordinary tasks earn
    /// admissions; only when both queues have been empty it starts anew.
    #[test]
    fn one_in() {
        let mut queues = RunQueues::new(CompletionShare::OneIn(3));
        let mut push = |class| {
            let before = queues.completions();
            queues.push(class, ());
            (queues.completions() > before, queues.factor)
        };
        assert_eq!(push(Completion), (true, -2));
        assert_eq!(push(Completion), (false, -1));
        assert_eq!(push(Completion), (false, 0));
        assert_eq!(push(Completion), (true, -2));
        assert_eq!(push(Ordinary), (false, -1));
        assert_eq!(push(Ordinary), (false, 0));
        assert_eq!(push(Ordinary), (false, 1));
        assert_eq!(push(Completion), (true, -1));
        assert_eq!(push(Completion), (false, 0));
        while queues.ordinary() > 1 {
            queues.pop();
        }
        assert_eq!(queues.factor, 0);
        queues.push(Completion, ());
        assert_eq!(queues.factor, -2, "one task was left, so it goes on");
        while queues.pop().is_some() {}
        assert_eq!(queues.factor, 0);
        let mut queues = RunQueues::new(CompletionShare::OneIn(2));
        queues.push(Ordinary, ());
        queues.push(Completion, ());
        assert_eq!(queues.pop(), Some((Completion, ())));
        queues.push(Completion, ());
        assert_eq!(queues.pop(), Some((Ordinary, ())));
        assert_eq!(queues.factor, -1, "one completion was left, so it goes on");
        // One in one admits all, and the cohort still lets ordinary tasks through.
        assert_eq!(run(CompletionShare::OneIn(1), "cco.c.c.c"), "CCO");
        assert_eq!(run(CompletionShare::OneIn(0), "cccc...."), "CCCC");
        assert_eq!(run(CompletionShare::OneIn(3), "cccccc......"), "CCOOOO");
    }

    /// In every share and under every order of nine arrivals and polls: nothing is lost or doubled,
    /// and an ordinary task is held up by a cohort at most.
    #[test]
    fn every_share_serves_everything() {
        for share in [CompletionShare::Unlimited, CompletionShare::OneIn(2)] {
            for mut code in 0..3_u32.pow(9) {
                let mut queues = RunQueues::new(share);
                let (mut pushed, mut popped, mut in_a_row, mut bound) = (0, 0, 0, 0);
                for _ in 0..9 {
                    let step = code % 3;
                    code /= 3;
                    pushed += u32::from(step != 2);
                    match step {
                        0 => queues.push(Completion, ()),
                        1 => queues.push(Ordinary, ()),
                        _ => {
                            if in_a_row == 0 {
                                bound = queues.completions();
                            }
                            let somebody_waits = queues.ordinary() > 0;
                            match queues.pop().map(|(class, _)| class) {
                                Some(Completion) if somebody_waits => in_a_row += 1,
                                Some(_) => in_a_row = 0,
                                None => continue,
                            }
                            popped += 1;
                            assert!(in_a_row <= bound);
                        }
                    }
                }
                while queues.pop().is_some() {
                    popped += 1;
                }
                assert_eq!(pushed, popped);
            }
        }
    }

    /// A burst gives its memory back; a load below the bound keeps it.
    #[test]
    fn memory() {
        let mut queues = RunQueues::new(CompletionShare::default());
        for round in 0..3 {
            for _ in 0..=KEPT {
                queues.push(Completion, round);
                queues.push(Ordinary, round);
            }
            while queues.pop().is_some() {}
            assert!(queues.completions.capacity() <= KEPT);
            assert!(queues.ordinary.capacity() <= KEPT);
        }
        let kept = queues.completions.capacity();
        queues.push(Completion, 0);
        queues.pop();
        assert_eq!(queues.completions.capacity(), kept);
    }
}
