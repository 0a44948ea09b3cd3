#![allow(unsafe_code)]
//! The life of operations on the scripted backend: every order of events, and what foreign code
//! may do when it is called (P1, P2, P4, H05, H06, H08, H13, H22).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::{Duration, Instant};

use roundel_reactor::script::Script;
use roundel_reactor::{
    Completion, Entry, Multishot, Op, Operation, Reactor, Request, SharedFd, Wait, current, ops,
};

/// A reactor whose kernel is the test.
struct Bench {
    reactor: Rc<Reactor>,
    script: Script,
    _entered: current::Entered,
}

impl Bench {
    fn new() -> Self {
        let script = Script::new();
        let reactor = Reactor::with_backend(script.backend()).unwrap();
        Bench {
            _entered: current::enter(reactor.clone()),
            reactor,
            script,
        }
    }

    /// Hands over what is staged.
    fn enter(&self) {
        self.reactor.enter(Wait::No).unwrap();
    }

    /// The place of the entry with this number in the script.
    fn place(&self, number: u64) -> usize {
        let numbers = self.script.numbers();
        let place = numbers.iter().position(|&other| other == number);
        place.expect("the kernel has this entry")
    }

    /// Answers the first entry of a kind and delivers the answer.
    fn answer(&self, kind: impl Fn(&Request) -> bool, result: i32) {
        let place = self.script.requests().iter().position(kind);
        self.script
            .complete(place.expect("such an entry is there"), result);
        self.reactor.reap();
    }

    /// How many entries of a kind the kernel has.
    fn count(&self, kind: impl Fn(&Request) -> bool) -> usize {
        self.script
            .requests()
            .iter()
            .filter(|request| kind(request))
            .count()
    }

    /// Answers all cancels, as a kernel that found nothing to cancel.
    fn answer_cancels(&self) {
        while let Some(place) = self.script.requests().iter().position(is_cancel) {
            self.script.complete(place, -libc::ENOENT);
        }
        self.reactor.reap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // What a test left in flight would never be answered.
        self.reactor.shutdown(Instant::now());
    }
}

fn is_cancel(request: &Request) -> bool {
    matches!(request, Request::Cancel { .. })
}

fn is_close(request: &Request) -> bool {
    matches!(request, Request::Close { .. })
}

fn is_read(request: &Request) -> bool {
    matches!(request, Request::Read { .. })
}

#[derive(Default)]
struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountWakes {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll_with<F: Future + Unpin>(future: &mut F, wakes: &Arc<CountWakes>) -> Poll<F::Output> {
    let waker = Waker::from(wakes.clone());
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// What became of one operation.
#[derive(Default)]
struct Log {
    entries: Cell<u32>,
    completed: Cell<u32>,
    outputs_dropped: Cell<u32>,
}

/// A no-op that writes a log.
struct Tracked(Rc<Log>);

struct Output(Rc<Log>, i32);

impl Drop for Output {
    fn drop(&mut self) {
        self.0.outputs_dropped.set(self.0.outputs_dropped.get() + 1);
    }
}

// SAFETY: the entry has no pointers.
unsafe impl Operation for Tracked {
    type Output = Output;

    fn entry(&mut self) -> Entry {
        self.0.entries.set(self.0.entries.get() + 1);
        ops::Nop.entry()
    }

    fn complete(self, completion: Completion) -> Output {
        self.0.completed.set(self.0.completed.get() + 1);
        Output(self.0, completion.result())
    }
}

/// Both ends of a pipe; the reading one does not block.
fn pipe() -> (std::fs::File, OwnedFd) {
    let (reader, writer) = io::pipe().unwrap();
    let reader = OwnedFd::from(reader);
    // SAFETY: the call takes no pointers, and the descriptor is open.
    let set = unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(set, 0);
    (reader.into(), writer.into())
}

/// Whether the writing end of a pipe has been closed. Another thread's number may be the same,
/// so the number says nothing.
fn is_closed(reader: &mut std::fs::File) -> bool {
    matches!(reader.read(&mut [0; 8]), Ok(0))
}

/// When a future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Awaited,
    DroppedStaged,
    DroppedInFlight,
    /// In flight; and the cancel has reached the kernel before the completion.
    DroppedAndCancelSent,
    /// After its completion was stored.
    DroppedUnread,
}

const FATES: [Fate; 5] = [
    Fate::Awaited,
    Fate::DroppedStaged,
    Fate::DroppedInFlight,
    Fate::DroppedAndCancelSent,
    Fate::DroppedUnread,
];

fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (place, &first) in of.iter().enumerate() {
        let mut rest = of.to_vec();
        rest.remove(place);
        for mut tail in permutations(&rest) {
            tail.insert(0, first);
            all.push(tail);
        }
    }
    all
}

/// Up to four operations, each of which is awaited or dropped at one of four points, completed
/// in every order: each ends exactly once, with its own result; whoever waits is woken, once,
/// and nobody else; nothing is left (P2, H06).
#[test]
fn every_order_of_up_to_four_operations() {
    let bench = Bench::new();
    for count in 1..=4_usize {
        let orders = permutations(&(0..count).collect::<Vec<_>>());
        for choice in 0..FATES.len().pow(count as u32) {
            let fates: Vec<Fate> = (0..count)
                .map(|place| FATES[choice / FATES.len().pow(place as u32) % FATES.len()])
                .collect();
            for order in &orders {
                one_order(&bench, &fates, order);
            }
        }
    }
}

fn one_order(bench: &Bench, fates: &[Fate], order: &[usize]) {
    let logs: Vec<Rc<Log>> = fates.iter().map(|_| Rc::default()).collect();
    let wakes: Vec<Arc<CountWakes>> = fates.iter().map(|_| Arc::default()).collect();
    let mut numbers = Vec::new();
    let mut ops: Vec<Option<Op<Tracked>>> = Vec::new();
    for (log, wakes) in logs.iter().zip(&wakes) {
        let mut op = current::submit(Tracked(log.clone()));
        assert!(poll_with(&mut op, wakes).is_pending());
        ops.push(Some(op));
    }
    let drop_all = |ops: &mut Vec<Option<Op<Tracked>>>, fate: Fate| {
        for (op, _) in ops
            .iter_mut()
            .zip(fates)
            .filter(|(_, other)| **other == fate)
        {
            *op = None;
        }
    };
    drop_all(&mut ops, Fate::DroppedStaged);
    bench.enter();
    // A dropped one may have left a no-op of nobody's behind; the others are there in order.
    let submitted = bench.script.numbers().into_iter();
    let mut submitted = submitted.filter(|number| number >> 62 == 0);
    for fate in fates {
        numbers.push((*fate != Fate::DroppedStaged).then(|| submitted.next().unwrap()));
    }
    assert_eq!(
        submitted.next(),
        None,
        "an entry was taken out for each dropped future"
    );
    drop_all(&mut ops, Fate::DroppedAndCancelSent);
    bench.enter();
    let cancels_sent = bench.count(is_cancel);
    assert_eq!(
        cancels_sent,
        fates
            .iter()
            .filter(|fate| **fate == Fate::DroppedAndCancelSent)
            .count()
    );
    drop_all(&mut ops, Fate::DroppedInFlight);
    for &which in order {
        let Some(number) = numbers[which] else {
            continue;
        };
        bench.script.complete(bench.place(number), which as i32);
        bench.reactor.reap();
        let waited_for = matches!(fates[which], Fate::Awaited | Fate::DroppedUnread);
        assert_eq!(
            wakes[which].get(),
            usize::from(waited_for),
            "{fates:?} {order:?}"
        );
    }
    drop_all(&mut ops, Fate::DroppedUnread);
    for (which, op) in ops.iter_mut().enumerate() {
        let Some(op) = op else { continue };
        let Poll::Ready(output) = poll_with(op, &wakes[which]) else {
            panic!("{which} is not finished: {fates:?} {order:?}");
        };
        assert_eq!(output.1, which as i32, "a result of another operation");
    }
    for (which, log) in logs.iter().enumerate() {
        assert_eq!(log.completed.get(), 1, "{which}: {fates:?} {order:?}");
        assert_eq!(log.outputs_dropped.get(), 1, "{which}: {fates:?} {order:?}");
        assert_eq!(log.entries.get(), 1);
        assert_eq!(Rc::strong_count(log), 1, "the operation was dropped");
    }
    bench.enter();
    while !bench.script.numbers().is_empty() {
        bench.script.complete(0, 0);
    }
    bench.reactor.reap();
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
}

/// A descriptor that comes for a future which is gone is closed, wherever the future went (P2,
/// H03).
#[test]
fn descriptors_of_abandoned_opens_are_closed() {
    for fate in [
        Fate::DroppedInFlight,
        Fate::DroppedAndCancelSent,
        Fate::DroppedUnread,
    ] {
        let bench = Bench::new();
        let path = ops::PathArg::new("/nowhere".as_ref()).unwrap();
        let mut op = Some(current::submit(ops::OpenAt::new(path, 0, 0)));
        bench.enter();
        let number = bench.script.numbers()[0];
        if fate != Fate::DroppedUnread {
            op = None;
        }
        if fate == Fate::DroppedAndCancelSent {
            bench.enter();
            assert_eq!(bench.count(is_cancel), 1);
        }
        let (mut reader, writer) = pipe();
        bench
            .script
            .complete(bench.place(number), writer.into_raw_fd());
        bench.reactor.reap();
        drop(op);
        assert!(is_closed(&mut reader), "{fate:?}");
    }
}

/// An interrupted operation is started again in its own slot and its waker counts (H13).
#[test]
fn an_interrupted_operation_is_started_again() {
    let bench = Bench::new();
    let log = Rc::<Log>::default();
    let wakes = Arc::<CountWakes>::default();
    let mut op = current::submit(Tracked(log.clone()));
    assert!(poll_with(&mut op, &wakes).is_pending());
    for round in 1..=3 {
        bench.enter();
        let number = bench.script.numbers()[0];
        bench.script.complete(bench.place(number), -libc::EINTR);
        bench.reactor.reap();
        assert_eq!(
            wakes.get(),
            round,
            "its task looks at it, and starts it again"
        );
        assert!(poll_with(&mut op, &wakes).is_pending());
        assert_eq!(bench.reactor.in_flight(), 1);
        assert_eq!(log.entries.get(), 1 + round as u32);
    }
    bench.enter();
    bench.script.complete(0, 7);
    bench.reactor.reap();
    assert!(matches!(poll_with(&mut op, &wakes), Poll::Ready(output) if output.1 == 7));
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
}

/// Dropping an operation that waits to be started again takes its entry out.
#[test]
fn an_interrupted_operation_can_be_dropped_before_it_is_started_again() {
    let bench = Bench::new();
    let log = Rc::<Log>::default();
    let mut op = current::submit(Tracked(log.clone()));
    bench.enter();
    bench.script.complete(0, -libc::EINTR);
    bench.reactor.reap();
    assert!(poll_once(&mut op).is_pending());
    drop(op);
    bench.enter();
    assert!(bench.script.numbers().is_empty());
    assert_eq!((log.completed.get(), bench.reactor.in_flight()), (1, 0));
}

/// An operation that was interrupted because it is being cancelled is not started again, and
/// says that it was cancelled: EINTR reaches nobody.
#[test]
fn a_cancelled_operation_is_not_started_again() {
    let bench = Bench::new();
    let (_reader, writer) = pipe();
    let fd = SharedFd::new(writer);
    let write = ops::WriteAt::new(fd.hold().unwrap(), b"x".to_vec(), 0);
    let mut write = current::submit(write);
    bench.enter();
    let number = bench.script.numbers()[0];
    let mut close = pin!(fd.close());
    assert!(poll_once(&mut close).is_pending());
    bench.enter();
    assert_eq!(bench.count(is_cancel), 1);
    bench.script.complete(bench.place(number), -libc::EINTR);
    bench.reactor.reap();
    let Poll::Ready((result, buf)) = poll_once(&mut write) else {
        panic!("a cancelled operation was started again");
    };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buf, b"x");
}

/// However few entries the kernel takes at a time, they leave in the order they were staged, and
/// each cancel behind its operation; none is lost (H05, H11).
#[test]
fn a_full_ring_delays_and_loses_nothing() {
    let bench = Bench::new();
    bench.script.set_room(3);
    let logs: Vec<Rc<Log>> = (0..100).map(|_| Rc::default()).collect();
    let mut ops: Vec<_> = logs
        .iter()
        .map(|log| Some(current::submit(Tracked(log.clone()))))
        .collect();
    // Thirty are in the kernel, seventy wait; every third future is dropped.
    for _ in 0..10 {
        bench.enter();
    }
    let order = bench.script.numbers();
    assert_eq!(order.len(), 30);
    for op in ops.iter_mut().step_by(3) {
        *op = None;
    }
    while bench.reactor.staged() > 0 {
        bench.enter();
    }
    let numbers = bench.script.numbers();
    let own: Vec<u64> = numbers
        .iter()
        .copied()
        .filter(|number| number >> 62 == 0)
        .collect();
    let mut sorted = own.clone();
    // The numbers' upper halves count the operations.
    sorted.sort_by_key(|number| number >> 32);
    assert_eq!(own, sorted, "entries left out of order");
    assert_eq!(
        own.len(),
        30 + 46,
        "the dropped ones of those that waited were taken out"
    );
    let targets: Vec<u64> = bench
        .script
        .requests()
        .iter()
        .filter_map(|request| match request {
            Request::Cancel { target } => *target,
            _ => None,
        })
        .collect();
    let expected: Vec<u64> = order.iter().copied().step_by(3).collect();
    assert_eq!(
        targets, expected,
        "each dropped one of those in the kernel was cancelled"
    );
    for number in own {
        bench.script.complete(bench.place(number), 0);
    }
    bench.reactor.reap();
    ops.iter_mut()
        .flatten()
        .for_each(|op| assert!(poll_once(op).is_ready()));
    assert!(logs.iter().all(|log| log.outputs_dropped.get() == 1));
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
}

/// A cancel that finds nothing, although its operation is in flight (the kernel was just moving
/// it), is tried again, until the operation is over; no wait is longer than until then (H05).
#[test]
fn h05_a_cancel_that_missed_is_tried_again() {
    let bench = Bench::new();
    let log = Rc::<Log>::default();
    let op = current::submit(Tracked(log.clone()));
    bench.enter();
    let number = bench.script.numbers()[0];
    drop(op);
    for errno in [libc::EALREADY, libc::ENOENT, libc::EALREADY] {
        let began = Instant::now();
        while bench.count(is_cancel) == 0 {
            assert!(began.elapsed() < Duration::from_secs(5), "it is given up");
            bench.enter();
        }
        let target = bench.script.requests();
        let cancel = target.iter().position(is_cancel).unwrap();
        assert!(
            matches!(target[cancel], Request::Cancel { target: Some(target) } if target == number)
        );
        bench.script.complete(cancel, -errno);
        bench.reactor.reap();
    }
    bench.script.complete(bench.place(number), 0);
    bench.reactor.reap();
    assert_eq!(log.completed.get(), 1);
    std::thread::sleep(Duration::from_millis(50));
    bench.enter();
    assert!(
        bench.script.numbers().is_empty(),
        "there is nothing left to cancel"
    );
}

/// The waker of the last poll is called, and no other (H08).
#[test]
fn h08_the_last_waker_counts() {
    let bench = Bench::new();
    let (first, second) = (Arc::<CountWakes>::default(), Arc::<CountWakes>::default());
    let mut op = current::submit(ops::Nop);
    assert!(poll_with(&mut op, &first).is_pending());
    assert!(poll_with(&mut op, &second).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the old waker is let go");
    bench.enter();
    bench.script.complete(0, 0);
    bench.reactor.reap();
    assert_eq!((first.get(), second.get()), (0, 1));
    assert!(poll_once(&mut op).is_ready());
}

fn accept_multi(fd: &SharedFd) -> Multishot<ops::AcceptMulti> {
    current::submit_multishot(ops::AcceptMulti::new(fd.hold().unwrap()))
}

/// Items come in order, also behind the last completion; then the multishot has ended.
#[test]
fn a_multishot_ends_after_its_last_item() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    let mut accepts = accept_multi(&fd);
    bench.enter();
    let wakes = Arc::<CountWakes>::default();
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(accepts.poll_next(&mut cx).is_pending());
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (reader, writer) = pipe();
        bench.script.complete_more(0, writer.into_raw_fd());
        readers.push(reader);
    }
    bench.script.complete(0, -libc::EMFILE);
    bench.reactor.reap();
    assert_eq!((wakes.get(), accepts.queued()), (1, 4));
    for reader in &mut readers {
        let Poll::Ready(Some(Ok(fd))) = accepts.poll_next(&mut cx) else {
            panic!("an item is missing")
        };
        assert!(!is_closed(reader));
        drop(fd);
        assert!(is_closed(reader), "they come in order");
    }
    let Poll::Ready(Some(Err(error))) = accepts.poll_next(&mut cx) else {
        panic!("the error is an item, too")
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    assert!(matches!(accepts.poll_next(&mut cx), Poll::Ready(None)));
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (1, 0));
    drop(accepts);
    assert_eq!(bench.reactor.slots(), 0);
}

/// An orphaned multishot is cancelled and closes what it had queued, what comes before its end
/// and what comes with it; dropped after its end it closes what nobody took.
#[test]
fn an_orphaned_multishot_closes_what_it_brings() {
    for ended in [false, true] {
        let bench = Bench::new();
        let fd = SharedFd::new(pipe().1);
        let accepts = accept_multi(&fd);
        bench.enter();
        let number = bench.script.numbers()[0];
        let mut readers = Vec::new();
        let mut bring = |last: bool| {
            let (reader, writer) = pipe();
            readers.push(reader);
            let place = bench.place(number);
            if last {
                bench.script.complete(place, writer.into_raw_fd());
            } else {
                bench.script.complete_more(place, writer.into_raw_fd());
            }
            bench.reactor.reap();
        };
        bring(false);
        if ended {
            bring(true);
            drop(accepts);
        } else {
            drop(accepts);
            bench.enter();
            assert_eq!(bench.count(is_cancel), 1);
            bring(false);
            bring(true);
        }
        assert!(readers.iter_mut().all(is_closed), "ended: {ended}");
        assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
    }
}

/// A multishot that never reached the kernel leaves nothing behind.
#[test]
fn a_multishot_dropped_before_it_was_submitted_is_taken_out() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    drop(accept_multi(&fd));
    bench.enter();
    assert!(bench.script.numbers().is_empty());
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
}

/// Whatever errno comes, the buffer comes back with it, unchanged.
#[test]
fn every_errno_comes_back_with_the_buffer() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    for errno in (1..134).filter(|errno| *errno != libc::EINTR) {
        let read = ops::ReadAt::new(fd.hold().unwrap(), b"as it was".to_vec(), 0);
        let mut read = current::submit(read);
        let mut send = current::submit(ops::Send::new(fd.hold().unwrap(), b"to be sent".to_vec()));
        bench.enter();
        bench.script.complete(0, -errno);
        bench.script.complete(0, -errno);
        bench.reactor.reap();
        let Poll::Ready((result, buf)) = poll_once(&mut read) else {
            panic!("errno {errno} did not end the read")
        };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
        assert_eq!(buf, b"as it was");
        let Poll::Ready((result, buf)) = poll_once(&mut send) else {
            panic!("errno {errno} did not end the send")
        };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
        assert_eq!(buf, b"to be sent");
    }
    assert_eq!(bench.reactor.slots(), 0);
}

/// A short count sets the buffer's length, and the bytes are those that were written (H52).
#[test]
fn a_short_read_has_its_length() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    let mut read = current::submit(ops::ReadAt::new(fd.hold().unwrap(), vec![0; 64], 9));
    bench.enter();
    match &mut bench.script.requests()[..] {
        [
            Request::Read {
                buffer, offset: 9, ..
            },
        ] => assert_eq!(buffer.fill(b"short"), 5),
        other => panic!("{other:?}"),
    }
    bench.answer(is_read, 5);
    assert!(matches!(poll_once(&mut read), Poll::Ready((Ok(5), buf)) if buf == b"short"));
}

/// A forgotten future keeps its slot and its buffer, and costs nobody else anything (P1).
#[test]
fn a_forgotten_future_is_kept_for_ever() {
    let bench = Bench::new();
    let log = Rc::<Log>::default();
    std::mem::forget(current::submit(Tracked(log.clone())));
    let mut other = current::submit(ops::Nop);
    bench.enter();
    bench.script.complete(0, 0);
    bench.script.complete(0, 0);
    bench.reactor.reap();
    assert!(poll_once(&mut other).is_ready());
    assert_eq!((log.completed.get(), Rc::strong_count(&log)), (0, 2));
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (1, 0));
}

thread_local! {
    /// What a returning waker does each time it is called, cloned or dropped.
    static REACTION: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

fn react(_: *const ()) {
    let reaction = REACTION.with_borrow(Clone::clone);
    if let Some(reaction) = reaction {
        reaction();
    }
}

/// A waker that comes back to the reactor in everything that is done with it. The two are not
/// the same to `will_wake`.
fn returning_waker(which: usize) -> Waker {
    fn clone(data: *const ()) -> RawWaker {
        react(data);
        RawWaker::new(data, &VTABLE)
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, react, react, react);
    // SAFETY: the functions only call what stands in `REACTION`; the data is a mere number.
    unsafe { Waker::new(std::ptr::without_provenance(which), &VTABLE) }
}

/// Everything that foreign code could do with the reactor while a waker of it is in our hands.
fn come_back(reactor: &Rc<Reactor>) -> (Rc<Cell<usize>>, impl Drop + use<>) {
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            let _ = REACTION.take();
        }
    }
    let count = Rc::new(Cell::new(0));
    let (counted, reactor) = (count.clone(), reactor.clone());
    REACTION.set(Some(Rc::new(move || {
        counted.set(counted.get() + 1);
        let mut op = reactor.submit(ops::Nop);
        let _ = poll_once(&mut op);
        drop(op);
        reactor.reap();
    })));
    (count, Stop)
}

/// A waker may come back to the reactor when it is cloned, called or dropped: nothing is
/// borrowed then.
#[test]
fn wakers_may_come_back() {
    let bench = Bench::new();
    let (calls, _stop) = come_back(&bench.reactor);
    let expect_calls = |what: &str| assert!(calls.replace(0) > 0, "{what} called no waker");
    let (first, second) = (returning_waker(1), returning_waker(2));

    let mut op = current::submit(ops::Nop);
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&first))
            .is_pending()
    );
    expect_calls("the first poll");
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&second))
            .is_pending()
    );
    expect_calls("a poll with another waker");
    drop(op);
    expect_calls("dropping it before it was submitted");

    let mut op = current::submit(ops::Nop);
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&first))
            .is_pending()
    );
    bench.enter();
    calls.set(0);
    drop(op);
    expect_calls("dropping it in flight");

    let mut op = current::submit(ops::Nop);
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&first))
            .is_pending()
    );
    bench.enter();
    while !bench.script.numbers().is_empty() {
        bench.script.complete(0, 0);
    }
    calls.set(0);
    bench.reactor.reap();
    expect_calls("its completion");

    let share = current::refill_budget();
    for _ in 0..current::BUDGET {
        assert!(current::spend_budget(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&first))
            .is_pending()
    );
    expect_calls("a poll without a budget");
    drop(share);
    assert!(
        Pin::new(&mut op)
            .poll(&mut Context::from_waker(&first))
            .is_ready()
    );

    let fd = SharedFd::new(pipe().1);
    let mut accepts = accept_multi(&fd);
    assert!(
        accepts
            .poll_next(&mut Context::from_waker(&first))
            .is_pending()
    );
    assert!(
        accepts
            .poll_next(&mut Context::from_waker(&second))
            .is_pending()
    );
    expect_calls("polls of a multishot");
    bench.enter();
    calls.set(0);
    drop(accepts);
    expect_calls("dropping a multishot in flight");
}

/// A completion that arrives while the waker is being cloned is taken at once by the first
/// poll, and wakes the task of a later one.
#[test]
fn a_completion_during_the_clone_of_a_waker_is_not_lost() {
    for polled_before in [false, true] {
        let bench = Bench::new();
        let mut op = current::submit(ops::Nop);
        if polled_before {
            assert!(poll_once(&mut op).is_pending());
        }
        bench.enter();
        let (script, reactor) = (bench.script.clone(), bench.reactor.clone());
        let calls = Rc::new(Cell::new(0));
        let counted = calls.clone();
        REACTION.set(Some(Rc::new(move || {
            counted.set(counted.get() + 1);
            if !script.numbers().is_empty() {
                script.complete(0, 0);
                reactor.reap();
            }
        })));
        let polled = Pin::new(&mut op).poll(&mut Context::from_waker(&returning_waker(1)));
        let _ = REACTION.take();
        assert_eq!(polled.is_ready(), !polled_before);
        if polled_before {
            assert!(calls.get() >= 2, "nobody was told of the completion");
            assert!(poll_once(&mut op).is_ready());
        }
    }
}

/// An operation that is started again may use the reactor while it writes its entry.
#[test]
fn an_entry_may_be_written_again_with_the_reactor_free() {
    struct Returning(u32);
    // SAFETY: the entry has no pointers.
    unsafe impl Operation for Returning {
        type Output = ();
        fn entry(&mut self) -> Entry {
            self.0 += 1;
            drop(current::submit(ops::Nop));
            assert!(self.0 < 3, "the second restart fails");
            ops::Nop.entry()
        }
        fn complete(self, _: Completion) {}
    }
    let bench = Bench::new();
    let mut op = current::submit(Returning(0));
    bench.enter();
    bench.script.complete(0, -libc::EINTR);
    bench.reactor.reap();
    assert!(poll_once(&mut op).is_pending());
    bench.enter();
    bench.script.complete(0, -libc::EINTR);
    bench.reactor.reap();
    // A panic there leaves the operation as it was: not in flight.
    let panicked = catch_unwind(AssertUnwindSafe(|| poll_once(&mut op)));
    assert!(panicked.is_err());
    assert_eq!(bench.reactor.in_flight(), 0);
    drop(op);
    assert_eq!(bench.reactor.slots(), 0);
}

/// A waker that panics, even with a payload that panics again when dropped, costs nobody else
/// the wake; nor does the drop of an abandoned output.
#[test]
fn panics_of_foreign_code_stop_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload panics, too");
        }
    }
    struct BombWaker;
    impl Wake for BombWaker {
        fn wake(self: Arc<Self>) {
            panic_any(Bomb);
        }
    }
    struct Explosive;
    // SAFETY: the entry has no pointers.
    unsafe impl Operation for Explosive {
        type Output = Bomb;
        fn entry(&mut self) -> Entry {
            ops::Nop.entry()
        }
        fn complete(self, _: Completion) -> Bomb {
            Bomb
        }
    }
    let bench = Bench::new();
    let mut bomb = current::submit(ops::Nop);
    let waker = Waker::from(Arc::new(BombWaker));
    assert!(
        Pin::new(&mut bomb)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let orphan = current::submit(Explosive);
    let wakes = Arc::<CountWakes>::default();
    let mut last = current::submit(ops::Nop);
    assert!(poll_with(&mut last, &wakes).is_pending());
    bench.enter();
    drop(orphan);
    for _ in 0..3 {
        bench.script.complete(0, 0);
    }
    assert_eq!(bench.reactor.reap(), 3);
    assert_eq!(wakes.get(), 1);
    assert!(poll_once(&mut last).is_ready() && poll_once(&mut bomb).is_ready());
    assert_eq!((bench.reactor.slots(), bench.reactor.in_flight()), (0, 0));
}

/// A dropped handle's close that the kernel cancelled is done by us.
#[test]
fn a_cancelled_close_closes() {
    let bench = Bench::new();
    let (mut reader, writer) = pipe();
    drop(SharedFd::new(writer));
    bench.enter();
    assert!(!is_closed(&mut reader), "the kernel has it");
    bench.answer(is_close, -libc::ECANCELED);
    assert!(is_closed(&mut reader));
    assert_eq!(bench.reactor.in_flight(), 0);
}

/// A dropped handle's close that never got to the kernel before the end is done by us.
#[test]
fn a_close_that_was_never_submitted_is_done_at_the_end() {
    let bench = Bench::new();
    let (mut reader, writer) = pipe();
    drop(SharedFd::new(writer));
    assert!(!is_closed(&mut reader), "it was handed to the ring");
    bench.reactor.shutdown(Instant::now());
    assert!(is_closed(&mut reader));
    assert_eq!(bench.reactor.in_flight(), 0);
}

/// An operation that never got to the kernel before the end comes back with its buffer.
#[test]
fn an_operation_that_was_never_submitted_comes_back_at_the_end() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    let wakes = Arc::<CountWakes>::default();
    let mut read = current::submit(ops::ReadAt::new(fd.hold().unwrap(), b"mine".to_vec(), 0));
    assert!(poll_with(&mut read, &wakes).is_pending());
    let abandonment = bench.reactor.shutdown(Instant::now());
    assert_eq!(abandonment.operations, Vec::<String>::new());
    assert_eq!(wakes.get(), 1, "its task is told");
    let Poll::Ready((result, buf)) = poll_once(&mut read) else {
        panic!("it is over")
    };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buf, b"mine");
}

/// What an orphaned multishot had brought is closed, also if its end never comes (P2, P4).
#[test]
fn an_orphans_queue_is_closed_at_the_end() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    let accepts = accept_multi(&fd);
    bench.enter();
    let (mut queued, writer) = pipe();
    bench.script.complete_more(0, writer.into_raw_fd());
    bench.reactor.reap();
    drop(accepts);
    let (mut late, writer) = pipe();
    bench.script.complete_more(0, writer.into_raw_fd());
    bench.reactor.reap();
    let abandonment = bench.reactor.shutdown(Instant::now());
    assert_eq!(abandonment.operations.len(), 1, "{abandonment:?}");
    assert!(
        abandonment.operations[0].starts_with("accept"),
        "{abandonment:?}"
    );
    assert!(is_closed(&mut queued) && is_closed(&mut late));
}

/// A descriptor that a forgotten future never took is closed at the end.
#[test]
fn an_unclaimed_descriptor_is_closed_at_the_end() {
    let bench = Bench::new();
    let path = ops::PathArg::new("/nowhere".as_ref()).unwrap();
    std::mem::forget(current::submit(ops::OpenAt::new(path, 0, 0)));
    bench.enter();
    let (mut reader, writer) = pipe();
    bench.script.complete(0, writer.into_raw_fd());
    bench.reactor.reap();
    assert!(!is_closed(&mut reader));
    bench.reactor.shutdown(Instant::now());
    assert!(is_closed(&mut reader));
}

/// Whoever waits for an operation that the kernel did not give back is told at the end: polling
/// it says that the runtime has ended; its buffer is never freed (P1, P4).
#[test]
fn what_the_kernel_keeps_is_named_and_its_waiters_are_told() {
    let bench = Bench::new();
    let log = Rc::<Log>::default();
    let wakes = Arc::<CountWakes>::default();
    let mut op = current::submit(Tracked(log.clone()));
    let orphan_log = Rc::<Log>::default();
    let orphan = current::submit(Tracked(orphan_log.clone()));
    assert!(poll_with(&mut op, &wakes).is_pending());
    bench.enter();
    drop(orphan);
    let began = Instant::now();
    let abandonment = bench.reactor.shutdown(began + Duration::from_millis(50));
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(abandonment.operations.len(), 2, "{abandonment:?}");
    assert_eq!(wakes.get(), 1, "its task is told");
    let polled = catch_unwind(AssertUnwindSafe(|| poll_once(&mut op).is_ready()));
    let message = *polled.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("runtime has ended"), "{message}");
    drop(op);
    for log in [log, orphan_log] {
        assert_eq!(
            (log.completed.get(), Rc::strong_count(&log)),
            (0, 2),
            "it is leaked"
        );
    }
    assert_eq!(
        bench.reactor.shutdown(began).operations,
        Vec::<String>::new()
    );
}

/// What is submitted after the end completes as cancelled, with its buffer.
#[test]
fn submitting_after_the_end_is_answered() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    bench.reactor.shutdown(Instant::now());
    let mut send = current::submit(ops::Send::new(fd.hold().unwrap(), b"late".to_vec()));
    let Poll::Ready((result, buf)) = poll_once(&mut send) else {
        panic!("nobody would ever answer")
    };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buf, b"late");
    let mut accepts = accept_multi(&fd);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(
        accepts.poll_next(&mut cx),
        Poll::Ready(Some(Err(_)))
    ));
    assert!(matches!(accepts.poll_next(&mut cx), Poll::Ready(None)));
    assert!(poll_once(&mut pin!(fd.close())).is_ready());
}

/// Closing waits for the operations in the kernel, and for no task: one whose result nobody has
/// taken yet does not hold the close up. The number is freed after the last of them (H22).
#[test]
fn h22_a_close_waits_for_the_kernel_alone() {
    let bench = Bench::new();
    let (mut reader, writer) = pipe();
    let fd = SharedFd::new(writer);
    let mut finished = current::submit(ops::ReadAt::new(fd.hold().unwrap(), vec![0; 8], 0));
    let mut running = current::submit(ops::ReadAt::new(fd.hold().unwrap(), vec![0; 8], 0));
    let orphan = current::submit(ops::ReadAt::new(fd.hold().unwrap(), vec![0; 8], 0));
    bench.enter();
    bench.answer(is_read, 3);
    drop(orphan);
    let wakes = Arc::<CountWakes>::default();
    let mut close = Box::pin(fd.close());
    assert!(poll_with(&mut close, &wakes).is_pending());
    assert!(fd.hold().is_err(), "no new operations");
    bench.enter();
    assert_eq!(bench.count(is_close), 0, "two are in flight");
    bench.answer(is_read, -libc::ECANCELED);
    if wakes.get() > 0 {
        assert!(poll_with(&mut close, &wakes).is_pending());
    }
    bench.enter();
    assert_eq!(bench.count(is_close), 0, "the orphan is in flight");
    let before = wakes.get();
    bench.answer(is_read, -libc::ECANCELED);
    assert!(wakes.get() > before, "the closer was not told");
    assert!(poll_with(&mut close, &wakes).is_pending());
    bench.enter();
    assert_eq!(bench.count(is_close), 1);
    assert!(!is_closed(&mut reader));
    bench.answer(is_close, -libc::ECANCELED);
    assert!(matches!(poll_with(&mut close, &wakes), Poll::Ready(Ok(()))));
    assert!(is_closed(&mut reader));
    assert!(matches!(poll_once(&mut finished), Poll::Ready((Ok(3), _))));
    assert!(matches!(poll_once(&mut running), Poll::Ready((Err(_), _))));
    drop(close);
    drop(fd);
    bench.enter();
    bench.answer_cancels();
    assert!(bench.script.numbers().is_empty(), "it is closed once");
}

/// Closing waits for an operation that was made and not yet submitted.
#[test]
fn h22_a_close_waits_for_a_hold() {
    let bench = Bench::new();
    let fd = SharedFd::new(pipe().1);
    let hold = fd.hold().unwrap();
    let wakes = Arc::<CountWakes>::default();
    let mut close = pin!(fd.close());
    assert!(poll_with(&mut close, &wakes).is_pending());
    let mut read = current::submit(ops::ReadAt::new(hold, vec![0; 8], 0));
    bench.enter();
    assert_eq!(bench.count(is_close), 0);
    bench.answer(is_read, 0);
    assert!(poll_once(&mut read).is_ready());
    assert_eq!(wakes.get(), 1);
    assert!(poll_with(&mut close, &wakes).is_pending());
    bench.enter();
    assert_eq!(bench.count(is_close), 1);
}

/// A result that nobody took yet says nothing of the descriptor that has its number now.
#[test]
fn h22_a_result_of_a_closed_descriptor_does_not_count_for_the_next() {
    let bench = Bench::new();
    let (_reader, writer) = pipe();
    let number = writer.as_raw_fd();
    let fd = SharedFd::new(writer);
    let mut unclaimed = current::submit(ops::ReadAt::new(fd.hold().unwrap(), vec![0; 8], 0));
    bench.enter();
    bench.answer(is_read, 0);
    let mut close = Box::pin(fd.close());
    assert!(poll_once(&mut close).is_pending());
    bench.enter();
    bench.answer(is_close, 0);
    assert!(matches!(poll_once(&mut close), Poll::Ready(Ok(()))));
    // The script did not really close it: so the same number again is the next descriptor.
    // SAFETY: the number is open, and its first owner has let it go.
    let next = SharedFd::new(unsafe { OwnedFd::from_raw_fd(number) });
    let hold = next.hold().unwrap();
    let mut close = Box::pin(next.close());
    assert!(poll_once(&mut close).is_pending());
    bench.enter();
    assert_eq!(bench.count(is_close), 0, "the hold is not counted");
    drop(hold);
    assert!(poll_once(&mut close).is_pending());
    bench.enter();
    assert_eq!(bench.count(is_close), 1);
    bench.answer(is_close, -libc::ECANCELED);
    assert!(matches!(poll_once(&mut close), Poll::Ready(Ok(()))));
    assert!(poll_once(&mut unclaimed).is_ready());
}

/// An interrupted close has closed: it is not tried again, since the number may be another's.
#[test]
fn an_interrupted_close_is_not_tried_again() {
    let bench = Bench::new();
    let (mut reader, writer) = pipe();
    let fd = SharedFd::new(writer);
    {
        let mut close = pin!(fd.close());
        assert!(poll_once(&mut close).is_pending());
        bench.enter();
        bench.answer(is_close, -libc::EINTR);
        assert!(matches!(poll_once(&mut close), Poll::Ready(Ok(()))));
    }
    bench.enter();
    assert!(bench.script.numbers().is_empty());
    assert!(
        !is_closed(&mut reader),
        "the script only said that it was closed"
    );
}

/// Futures are dropped in a time that does not grow with how many there are: 100,000 in the
/// kernel and as many that wait, the oldest first.
#[test]
fn dropping_very_many_futures_is_quick() {
    let bench = Bench::new();
    for submitted in [true, false] {
        let ops: Vec<_> = (0..100_000).map(|_| current::submit(ops::Nop)).collect();
        if submitted {
            bench.enter();
        }
        let began = Instant::now();
        drop(ops);
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
    }
}
