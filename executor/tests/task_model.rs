//! Tasks against a reference: whatever is done to them in whatever order, each is polled when it was
//! woken, ends once, and in the way that it should.
//!
//! A random sequence of spawns, wakes, aborts, joins and drops of handles, here and from another
//! thread, with panics at every point where code of the user's runs, goes to a runtime and to a model
//! of a task that fits in one function ([`Model::settle`]). `ROUNDEL_TIER=large` runs 5,000 sequences,
//! otherwise 100; `ROUNDEL_SEED` sets the seed.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use roundel_executor::{
    AbortHandle, Builder, Cores, Handle, JoinError, JoinHandle, RingMode, spawn, yield_now,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// What a task does at its next poll.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Wait,
    /// Wakes itself so many times in a row, once a poll.
    WakeSelf(usize),
    Finish,
    Panic,
    /// Aborts itself, and waits.
    AbortAndWait,
    /// Aborts itself, and finishes all the same.
    AbortAndFinish,
    /// Drops its own handle, if it has it, and waits.
    DropHandle,
}

/// What a task and the test share.
struct Script {
    step: Step,
    polls: usize,
    waker: Option<Waker>,
    abort: Option<AbortHandle>,
    own_handle: Option<JoinHandle<Output>>,
    future_drops: usize,
    output_drops: usize,
    panic_in_future_drop: bool,
    panic_in_output_drop: bool,
}

type Shared = Rc<RefCell<Script>>;

struct Task(Shared);

struct Padded(Task, [u8; 700]);

impl Future for Padded {
    type Output = Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Output> {
        assert_eq!(self.1[699], 0);
        Pin::new(&mut self.0).poll(cx)
    }
}

struct Output(Shared);

impl Future for Task {
    type Output = Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Output> {
        let (step, abort) = {
            let mut script = self.0.borrow_mut();
            script.polls += 1;
            script.waker = Some(cx.waker().clone());
            let step = script.step;
            script.step = match step {
                Step::WakeSelf(left) if left > 1 => Step::WakeSelf(left - 1),
                _ => Step::Wait,
            };
            (step, script.abort.clone())
        };
        let abort = || abort.expect("it was handed over at the spawn").abort();
        match step {
            Step::Wait => Poll::Pending,
            Step::WakeSelf(_) => {
                let copy = cx.waker().clone();
                cx.waker().wake_by_ref();
                copy.wake();
                Poll::Pending
            }
            Step::Finish => Poll::Ready(Output(self.0.clone())),
            Step::Panic => panic!("planned: poll"),
            Step::AbortAndWait => {
                abort();
                Poll::Pending
            }
            Step::AbortAndFinish => {
                abort();
                Poll::Ready(Output(self.0.clone()))
            }
            Step::DropHandle => {
                let own = self.0.borrow_mut().own_handle.take();
                drop(own);
                Poll::Pending
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let (own, waker, panic) = {
            let mut script = self.0.borrow_mut();
            script.future_drops += 1;
            let own = script.own_handle.take();
            (own, script.waker.clone(), script.panic_in_future_drop)
        };
        // What ends may still be woken and detached by what it drops.
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(own);
        if panic {
            panic!("planned: drop of the future");
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let panic = {
            let mut script = self.0.borrow_mut();
            script.output_drops += 1;
            script.panic_in_output_drop
        };
        if panic {
            panic!("planned: drop of the output");
        }
    }
}

/// A joiner's waker whose call panics.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("planned: waker");
    }
}

/// A joiner's waker whose last drop panics.
struct PanickingDrop;

impl Wake for PanickingDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanickingDrop {
    fn drop(&mut self) {
        panic!("planned: drop of a waker");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Finished,
    Panicked,
    Cancelled,
}

fn end_of(outcome: &Result<Output, JoinError>) -> End {
    match outcome {
        Ok(_) => End::Finished,
        Err(error) if error.is_panic() => End::Panicked,
        Err(_) => End::Cancelled,
    }
}

/// What should be of one task.
struct Model {
    script: Shared,
    abort: AbortHandle,
    /// `None`: dropped, resolved, or with the task.
    handle: Option<JoinHandle<Output>>,
    /// The outcome has somebody to wait for it.
    joined: bool,
    queued: bool,
    aborted: bool,
    polls: usize,
    end: Option<End>,
    output_dropped: bool,
}

impl Model {
    /// All that is queued has run: what a task does, in one place.
    fn settle(&mut self, step: Step, closing: bool) {
        if self.end.is_some() || !(self.queued || closing) {
            return;
        }
        self.queued = false;
        let end = if closing || self.aborted {
            Some(End::Cancelled)
        } else {
            self.polls += 1;
            match step {
                Step::Wait => None,
                Step::WakeSelf(times) => {
                    self.polls += times;
                    None
                }
                Step::Finish | Step::AbortAndFinish => Some(End::Finished),
                Step::Panic => Some(End::Panicked),
                Step::AbortAndWait => Some(End::Cancelled),
                Step::DropHandle => {
                    self.joined &= self.handle.is_some();
                    None
                }
            }
        };
        let Some(mut end) = end else { return };
        let script = self.script.borrow();
        if end == End::Cancelled && script.panic_in_future_drop {
            end = End::Panicked;
        }
        // A handle that the task itself had went with its future.
        self.joined &= self.handle.is_some();
        self.output_dropped = end == End::Finished && !self.joined;
        self.end = Some(end);
    }

    /// The handle gave the outcome, which the test has dropped.
    fn resolved(&mut self) {
        self.joined = false;
        self.output_dropped = self.end == Some(End::Finished);
    }

    fn check(&self, needless_wakes: usize) {
        let script = self.script.borrow();
        let expected = self.polls..=self.polls + needless_wakes;
        assert!(
            expected.contains(&script.polls),
            "{expected:?} {}",
            script.polls
        );
        assert_eq!(script.future_drops, usize::from(self.end.is_some()));
        assert_eq!(script.output_drops, usize::from(self.output_dropped));
        assert_eq!(self.abort.is_finished(), self.end.is_some());
        if let Some(handle) = &self.handle {
            assert_eq!(handle.is_finished(), self.end.is_some());
            assert_eq!(handle.id(), self.abort.id());
        }
    }
}

fn start(random: &mut Random) -> Model {
    let script = Rc::new(RefCell::new(Script {
        step: Step::Wait,
        polls: 0,
        waker: None,
        abort: None,
        own_handle: None,
        future_drops: 0,
        output_drops: 0,
        panic_in_future_drop: random.one_in(6),
        panic_in_output_drop: random.one_in(6),
    }));
    let handle = match random.below(3) {
        // Larger, and boxed.
        0 => spawn(Padded(Task(script.clone()), [0; 700])),
        _ => spawn(Task(script.clone())),
    };
    let abort = handle.abort_handle();
    script.borrow_mut().abort = Some(abort.clone());
    Model {
        script,
        abort,
        handle: Some(handle),
        joined: true,
        queued: true,
        aborted: false,
        polls: 0,
        end: None,
        output_dropped: false,
    }
}

#[derive(PartialEq)]
enum Place {
    Here,
    Elsewhere,
}

/// Here, or on another thread.
fn anywhere(random: &mut Random, act: impl FnOnce() + Send + 'static) -> Place {
    if random.one_in(8) {
        thread::spawn(act).join().unwrap();
        Place::Elsewhere
    } else {
        act();
        Place::Here
    }
}

fn poll_once(handle: &mut JoinHandle<Output>, waker: &Waker) -> Poll<Result<Output, JoinError>> {
    Pin::new(handle).poll(&mut Context::from_waker(waker))
}

/// The drop of an output that was taken is the test's own.
fn drop_taken(outcome: Result<Output, JoinError>) {
    if let Ok(output) = &outcome {
        output.0.borrow_mut().panic_in_output_drop = false;
    }
    drop(outcome);
}

/// One random thing.
fn act(random: &mut Random, tasks: &mut Vec<Model>, needless_wakes: &mut usize) {
    if tasks.is_empty() || (tasks.len() < 60 && random.one_in(5)) {
        tasks.push(start(random));
        return;
    }
    let place = random.below(tasks.len());
    let task = &mut tasks[place];
    match random.below(9) {
        0..=2 => {
            let steps = [
                Step::Wait,
                Step::WakeSelf(3),
                Step::Finish,
                Step::Panic,
                Step::AbortAndWait,
                Step::AbortAndFinish,
                Step::DropHandle,
            ];
            let Some(waker) = task.script.borrow().waker.clone() else {
                return;
            };
            if task.aborted && task.end.is_none() {
                // An abort that is on its way from elsewhere would come after the poll.
                return;
            }
            if task.end.is_some() {
                // Whoever lives in its slot now is polled, perhaps.
                *needless_wakes += 1;
            } else {
                // It runs when everything that is queued has.
                if task.script.borrow().step == Step::Wait {
                    task.script.borrow_mut().step = steps[random.below(steps.len())];
                }
                task.queued = true;
            }
            let place = anywhere(random, move || {
                waker.wake_by_ref();
                waker.wake();
            });
            if place == Place::Elsewhere {
                // It comes out of the inbox after the poll of a wake from here, perhaps.
                *needless_wakes += 1;
            }
        }
        3 => {
            let queued = task.queued;
            if task.end.is_none() {
                task.aborted = true;
                task.queued = true;
            }
            let abort = task.abort.clone();
            match &task.handle {
                Some(handle) if random.one_in(2) => handle.abort(),
                // From elsewhere it would come after the poll that the task is queued for.
                _ if queued => abort.abort(),
                _ => {
                    anywhere(random, move || abort.abort());
                }
            }
        }
        4 => {
            if let Some(handle) = task.handle.take() {
                task.resolved();
                drop(handle);
            }
        }
        5 => {
            let handle = task.handle.take();
            if task.end.is_none() {
                task.script.borrow_mut().own_handle = handle;
            } else {
                task.handle = handle;
            }
        }
        6 => {
            if let Some(handle) = &mut task.handle {
                let waker = match random.below(3) {
                    0 => Waker::from(Arc::new(Panicking)),
                    1 => Waker::from(Arc::new(PanickingDrop)),
                    _ => Waker::noop().clone(),
                };
                // The one that is replaced may panic in its drop, which is the joiner's matter.
                let polled = catch_unwind(AssertUnwindSafe(|| poll_once(handle, &waker)));
                let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
                match polled {
                    Ok(Poll::Ready(outcome)) => {
                        assert_eq!(Some(end_of(&outcome)), task.end);
                        drop_taken(outcome);
                        task.resolved();
                        task.handle = None;
                    }
                    Ok(Poll::Pending) | Err(_) => assert_eq!(task.end, None),
                }
            }
        }
        _ => {}
    }
}

fn sequence(seed: u64) {
    let mut random = Random(seed | 1);
    let mut tasks = Vec::new();
    let mut needless_wakes = 0;
    let runtime = Builder::new()
        .cores(Cores::Count(1))
        .ring(RingMode::Defer)
        .build()
        .unwrap();
    for _ in 0..2 {
        let (random, tasks, needless_wakes) = (&mut random, &mut tasks, &mut needless_wakes);
        runtime.block_on(async move {
            for _ in 0..60 {
                for _ in 0..1 + random.below(6) {
                    act(random, tasks, needless_wakes);
                }
                let steps: Vec<Step> = tasks.iter().map(|task| task.script.borrow().step).collect();
                // More turns than a task has polls in a row.
                for _ in 0..20 {
                    yield_now().await;
                }
                for (task, step) in tasks.iter_mut().zip(steps) {
                    task.settle(step, false);
                    task.check(*needless_wakes);
                }
                let live = tasks.iter().filter(|task| task.end.is_none()).count();
                let metrics = Handle::current().metrics()[0].tasks;
                assert_eq!(metrics.tasks_live, live as u64);
                assert_eq!(metrics.tasks_spawned, tasks.len() as u64);
            }
        });
    }
    drop(runtime);
    for task in &mut tasks {
        task.settle(Step::Wait, true);
        task.check(needless_wakes);
        if let Some(mut handle) = task.handle.take() {
            let Poll::Ready(outcome) = poll_once(&mut handle, Waker::noop()) else {
                panic!("a task is over when its runtime is")
            };
            assert_eq!(Some(end_of(&outcome)), task.end);
            drop_taken(outcome);
            task.resolved();
        }
        task.check(needless_wakes);
    }
}

#[test]
fn tasks_do_as_the_model() {
    let sequences = match std::env::var("ROUNDEL_TIER").as_deref() {
        Ok("large") => 5_000,
        _ => 100,
    };
    let seed = std::env::var("ROUNDEL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x2545_f491_4f6c_dd1d_u64);
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic
            .payload_as_str()
            .is_some_and(|text| text.starts_with("planned"))
        {
            told(panic);
        }
    }));
    let mut random = Random(seed | 1);
    for number in 0..sequences {
        let seed = random.next();
        let ended = thread::spawn(move || sequence(seed)).join();
        if let Err(panic) = ended {
            let text = panic.downcast_ref::<&str>();
            panic!("sequence {number} with seed {seed} failed: {text:?}");
        }
    }
}
