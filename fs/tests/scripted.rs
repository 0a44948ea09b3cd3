//! What is asked of the kernel, and what is made of answers that a real one seldom gives.

mod common;

use std::fs::OpenOptions;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::Folder;
use roundel_blocking_pool as pool;
use roundel_fs::File;
use roundel_reactor::script::Script;
use roundel_reactor::{Reactor, Request, current};

const EINVAL: i32 = -22;
/// The most bytes the kernel moves at once.
const TRANSFER_MAX: usize = 0x7fff_f000;

struct Bench {
    script: Script,
    reactor: Rc<Reactor>,
    folder: Folder,
    _entered: current::Entered,
}

impl Bench {
    fn new() -> Self {
        let script = Script::new();
        let reactor = Reactor::with_backend(script.backend()).unwrap();
        Bench {
            script,
            folder: Folder::new(),
            _entered: current::enter(reactor.clone()),
            reactor,
        }
    }

    /// A real file, since it names a descriptor; the script answers for it.
    fn file(&self) -> File {
        let mut options = OpenOptions::new();
        let path = self.folder.0.join("file");
        options.read(true).write(true).create(true).truncate(false);
        File::from_std(options.open(path).unwrap())
    }

    /// Takes what was submitted: the one request there is.
    fn request(&self) -> Request {
        self.reactor.enter(roundel_reactor::Wait::No).unwrap();
        let mut requests = self.script.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    fn answer(&self, result: i32) {
        self.script.complete(0, result);
        self.reactor.reap();
    }
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn output<F: Future>(future: &mut Pin<&mut F>) -> F::Output {
    match poll(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits for something else"),
    }
}

fn write_of(request: Request) -> (usize, u64) {
    match request {
        Request::Write { buffer, offset, .. } => (buffer.len(), offset),
        other => panic!("{other:?} is no write"),
    }
}

fn read_of(request: Request) -> (usize, u64) {
    match request {
        Request::Read { buffer, offset, .. } => (buffer.len(), offset),
        other => panic!("{other:?} is no read"),
    }
}

/// Each part of a long transfer begins where the one before ended, and none is longer than
/// the kernel takes. (The memory is asked for and never touched.)
#[test]
fn h17_long_transfers_go_in_parts() {
    let bench = Bench::new();
    let file = bench.file();
    let total = (1 << 31) + 5000;

    let mut writing = pin!(file.write_all_at(vec![0; total], 70));
    assert!(poll(&mut writing).is_pending());
    assert_eq!(write_of(bench.request()), (TRANSFER_MAX, 70));
    bench.answer(TRANSFER_MAX as i32);
    assert!(poll(&mut writing).is_pending());
    let rest = total - TRANSFER_MAX;
    assert_eq!(write_of(bench.request()), (rest, 70 + TRANSFER_MAX as u64));
    bench.answer(rest as i32);
    let (result, buf) = output(&mut writing);
    result.unwrap();
    assert_eq!(buf.len(), total);

    let mut reading = pin!(file.read_exact_at(buf.into_boxed_slice(), 70));
    assert!(poll(&mut reading).is_pending());
    assert_eq!(read_of(bench.request()), (TRANSFER_MAX, 70));
    bench.answer(TRANSFER_MAX as i32);
    assert!(poll(&mut reading).is_pending());
    assert_eq!(read_of(bench.request()), (rest, 70 + TRANSFER_MAX as u64));
    bench.answer(rest as i32);
    output(&mut reading).0.unwrap();
}

/// A short write goes on behind what was written, and one that gets nowhere is an error.
#[test]
fn h15_short_writes_go_on_where_they_ended() {
    let bench = Bench::new();
    let file = bench.file();
    let writer = file.writer_at(1000);
    for through_writer in [false, true] {
        let mut writing = pin!(async {
            if through_writer {
                writer.write_all("0123456789").await
            } else {
                file.write_all_at("0123456789", 1000).await
            }
        });
        for (len, offset, count) in [(10, 1000, 4), (6, 1004, 5)] {
            assert!(poll(&mut writing).is_pending());
            assert_eq!(write_of(bench.request()), (len, offset));
            bench.answer(count);
        }
        assert!(poll(&mut writing).is_pending());
        assert_eq!(write_of(bench.request()), (1, 1009));
        bench.answer(0);
        let (result, buf) = output(&mut writing);
        assert_eq!(
            (result.unwrap_err().kind(), buf),
            (ErrorKind::WriteZero, "0123456789")
        );
    }
    assert_eq!(writer.position(), 1009);
}

/// What a failed read left in the buffer before is not taken for what arrived.
#[test]
fn a_failed_read_exact_has_no_stale_bytes() {
    let bench = Bench::new();
    let file = bench.file();
    for arrived in [0, 3] {
        let mut reading = pin!(file.read_exact_at(vec![9; 10], 0));
        assert!(poll(&mut reading).is_pending());
        assert_eq!(read_of(bench.request()), (10, 0));
        if arrived > 0 {
            bench.answer(arrived);
            assert!(poll(&mut reading).is_pending());
            assert_eq!(read_of(bench.request()), (7, 3));
        }
        bench.answer(-5);
        let (result, buf) = output(&mut reading);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(buf.len(), arrived as usize);
    }
}

/// A write waits for the last word on a dropped one, and begins behind what that wrote.
#[test]
fn a_dropped_write_is_not_overtaken() {
    let bench = Bench::new();
    let file = bench.file();
    let writer = file.writer();
    let mut dropped = Box::pin(writer.write_all("dropped"));
    assert!(poll(&mut dropped.as_mut()).is_pending());
    assert_eq!(write_of(bench.request()), (7, 0));
    drop(dropped);

    let mut next = pin!(writer.write_all("next"));
    assert!(poll(&mut next).is_pending());
    bench.reactor.enter(roundel_reactor::Wait::No).unwrap();
    let writes = |request: &Request| matches!(request, Request::Write { .. });
    let requests = bench.script.requests();
    assert_eq!(requests.iter().filter(|request| writes(request)).count(), 1);
    assert!(
        requests
            .iter()
            .any(|request| matches!(request, Request::Cancel { .. }))
    );

    // The cancel came too late for three bytes.
    bench.script.complete(0, 3);
    bench.script.complete(0, -2);
    bench.reactor.reap();
    assert!(poll(&mut next).is_pending());
    assert_eq!(write_of(bench.request()), (4, 3));
    bench.answer(4);
    output(&mut next).0.unwrap();
    assert_eq!(writer.position(), 7);
}

/// On a kernel without the operation, lengths are set on the pool, if there is one.
#[test]
fn old_kernels_set_lengths_on_the_pool() {
    let bench = Bench::new();
    let file = bench.file();
    {
        let mut setting = pin!(file.set_len(1234));
        assert!(poll(&mut setting).is_pending());
        assert!(matches!(
            bench.request(),
            Request::Truncate { len: 1234, .. }
        ));
        bench.answer(EINVAL);
        let error = output(&mut setting).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    let pool = pool::Pool::new(pool::Config::new()).unwrap();
    let _in_pool = pool::current::enter(&pool, None);
    let mut setting = pin!(file.set_len(1234));
    assert!(poll(&mut setting).is_pending());
    bench.request();
    bench.answer(EINVAL);
    futures::executor::block_on(setting).unwrap();
    let len = std::fs::metadata(bench.folder.0.join("file"))
        .unwrap()
        .len();
    assert_eq!(len, 1234);
}
