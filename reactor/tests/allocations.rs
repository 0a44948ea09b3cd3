#![allow(unsafe_code)]
//! Operations cost no allocator call in the steady state (M6).
//!
//! A counting allocator counts on the thread that runs the operations, and only while one is
//! made, awaited or dropped: what the test prepares for it (a socket, a peer) does not count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use roundel_reactor::{
    Guarded, Inflow, IoBuf, IoBufMut, Reactor, RingConfig, RingMode, SharedFd, Turnstile, Wait,
    current, ops,
};
use socket2::{Domain, Socket, Type};

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn note(&self) {
        if COUNTING.get() {
            COUNT.set(COUNT.get() + 1);
        }
    }
}

// SAFETY: everything is the system allocator's; the counters have no destructor and allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note();
        // SAFETY: our caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.note();
        // SAFETY: our caller's promises are the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.note();
        // SAFETY: our caller's promises are the system allocator's.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the calls of the allocator while `what` runs.
fn counted<T>(what: impl FnOnce() -> T) -> T {
    COUNTING.set(true);
    let result = what();
    COUNTING.set(false);
    result
}

fn block_on<F: Future>(reactor: &Reactor, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        reactor.enter(Wait::AtMost(Duration::from_secs(1))).unwrap();
        reactor.reap();
    }
}

fn settle(reactor: &Reactor) {
    while reactor.in_flight() + reactor.staged() > 0 {
        reactor
            .enter(Wait::AtMost(Duration::from_millis(1)))
            .unwrap();
        reactor.reap();
    }
}

/// Runs `once` to warm up, then 2,000 times; what it runs in `counted` must not allocate.
fn costs_nothing(reactor: &Reactor, name: &str, mut once: impl FnMut()) {
    for _ in 0..100 {
        once();
    }
    counted(|| settle(reactor));
    COUNT.set(0);
    for _ in 0..2000 {
        once();
    }
    counted(|| settle(reactor));
    assert_eq!(COUNT.get(), 0, "calls of the allocator in 2,000 of: {name}");
}

/// The allocator is counted at all.
#[test]
fn allocations_are_counted() {
    COUNT.set(0);
    counted(|| drop(std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(COUNT.get(), 2);
}

#[test]
fn operations_do_not_allocate() {
    for mode in [RingMode::Defer, RingMode::SqPoll] {
        let config = RingConfig {
            mode,
            ..RingConfig::default()
        };
        let reactor = Reactor::new(&config).unwrap();
        let _entered = current::enter(reactor.clone());
        pipes_and_files(&reactor);
        sockets(&reactor);
        dropped(&reactor);
    }
}

/// A buffer that goes into an operation and comes back.
struct Lent(RefCell<Vec<u8>>);

impl Lent {
    fn new() -> Self {
        Lent(RefCell::new(vec![0; 64]))
    }

    fn take(&self) -> Vec<u8> {
        self.0.take()
    }

    fn back<T>(&self, (result, buf): (std::io::Result<T>, Vec<u8>)) -> T {
        self.0.replace(buf);
        result.unwrap()
    }
}

fn pipes_and_files(reactor: &Rc<Reactor>) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = SharedFd::new(reader.into());
    let buf = Lent::new();
    costs_nothing(reactor, "read", || {
        writer.write_all(&[1; 64]).unwrap();
        counted(|| {
            let read = ops::ReadAt::new(reader.hold().unwrap(), buf.take(), 0);
            assert_eq!(buf.back(block_on(reactor, current::submit(read))), 64);
        });
    });
    let null = std::fs::File::options().write(true).open("/dev/null");
    let null = SharedFd::new(null.unwrap().into());
    costs_nothing(reactor, "write", || {
        counted(|| {
            let write = ops::WriteAt::new(null.hold().unwrap(), buf.take(), 0);
            assert_eq!(buf.back(block_on(reactor, current::submit(write))), 64);
        });
    });
    let path = Path::new("/proc/self/status");
    costs_nothing(reactor, "open and close", || {
        counted(|| {
            let open = ops::OpenAt::new(ops::PathArg::new(path).unwrap(), libc::O_RDONLY, 0);
            let fd = SharedFd::new(block_on(reactor, current::submit(open)).unwrap());
            block_on(reactor, fd.close()).unwrap();
        });
    });
    costs_nothing(reactor, "statx", || {
        counted(|| {
            let stat = ops::Statx::of_path(ops::PathArg::new(path).unwrap(), true);
            block_on(reactor, current::submit(stat)).unwrap();
            let stat = ops::Statx::of_file(null.hold().unwrap());
            block_on(reactor, current::submit(stat)).unwrap();
        });
    });
}

fn sockets(reactor: &Rc<Reactor>) {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let (one, other) = (SharedFd::new(one.into()), SharedFd::new(other.into()));
    let buf = Lent::new();
    let given_up = Lent::new();
    let (inflow, turnstile) = (Inflow::new(), Turnstile::new());
    costs_nothing(reactor, "send and recv", || {
        counted(|| {
            let turn = block_on(reactor, turnstile.turn());
            let send = ops::Send::new(one.hold().unwrap(), buf.take());
            let send = Guarded::new(send, turn);
            let (sent, _turn) = block_on(reactor, current::submit(send));
            assert_eq!(buf.back(sent), 64);
            let receive = inflow.receive(&other, buf.take(), ops::Recv::new);
            assert_eq!(buf.back(block_on(reactor, receive)), 64);
        });
    });
    costs_nothing(reactor, "receive given up and taken by the next", || {
        counted(|| {
            {
                let mut receive = pin!(inflow.receive(&other, Static::new(), ops::Recv::new));
                let mut cx = Context::from_waker(Waker::noop());
                assert!(receive.as_mut().poll(&mut cx).is_pending());
                reactor.enter(Wait::No).unwrap();
            }
            let send = ops::Send::new(one.hold().unwrap(), Static::new());
            assert_eq!(block_on(reactor, current::submit(send)).0.unwrap(), 8);
            let receive = inflow.receive(&other, given_up.take(), ops::Recv::new);
            assert_eq!(given_up.back(block_on(reactor, receive)), 8);
        });
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shared = SharedFd::new(listener.try_clone().unwrap().into());
    costs_nothing(reactor, "accept", || {
        let client = TcpStream::connect(address).unwrap();
        let accepted = counted(|| {
            let accept = ops::Accept::new(shared.hold().unwrap());
            let (fd, peer) = block_on(reactor, current::submit(accept)).unwrap();
            (SharedFd::new(fd), peer)
        });
        assert_eq!(accepted.1.unwrap(), client.local_addr().unwrap());
        reset(client);
        counted(|| drop(accepted));
    });
    costs_nothing(reactor, "connect and shutdown", || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        counted(|| {
            let fd = SharedFd::new(socket.into());
            let connect = ops::Connect::new(fd.hold().unwrap(), address);
            block_on(reactor, current::submit(connect)).unwrap();
            let shutdown = ops::Shutdown::new(fd.hold().unwrap(), Shutdown::Write);
            block_on(reactor, current::submit(shutdown)).unwrap();
        });
        drop(listener.accept().unwrap());
    });
}

/// Ends a connection without a port that has to wait.
fn reset(stream: TcpStream) {
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Eight static bytes, so that the drop of the buffer does not count.
struct Static(*mut [u8; 8]);

impl Static {
    fn new() -> Self {
        static BYTES: AtomicU64 = AtomicU64::new(0);
        Static(BYTES.as_ptr().cast())
    }
}

// SAFETY: the memory is static, and only the kernel looks at it.
unsafe impl IoBuf for Static {
    fn stable_ptr(&self) -> *const u8 {
        self.0.cast()
    }
    fn bytes_init(&self) -> usize {
        8
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Static {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.cast()
    }
    fn bytes_total(&self) -> usize {
        8
    }
    unsafe fn set_init(&mut self, _count: usize) {}
}

fn dropped(reactor: &Rc<Reactor>) {
    let (reader, _writer) = std::io::pipe().unwrap();
    let reader = SharedFd::new(reader.into());
    for (name, submitted) in [("cancelled read", true), ("read dropped at once", false)] {
        costs_nothing(reactor, name, || {
            counted(|| {
                let read = ops::ReadAt::new(reader.hold().unwrap(), Static::new(), 0);
                let mut read = current::submit(read);
                let mut cx = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut read).poll(&mut cx).is_pending());
                if submitted {
                    reactor.enter(Wait::No).unwrap();
                }
                drop(read);
                // How many are in flight at once is no matter of the steady state.
                settle(reactor);
            });
        });
    }
}
