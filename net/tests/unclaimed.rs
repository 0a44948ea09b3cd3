//! How a stream of connections bounds what it accepts ahead, answer by answer.

mod common;

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::pin::pin;
use std::rc::Rc;

use common::{block_on, poll_once};
use roundel_net::{Incoming, TcpListener};
use roundel_reactor::script::Script;
use roundel_reactor::{Reactor, Request, Wait, current};

/// What the kernel was asked for and has not answered, and what the script answers it.
struct Kernel {
    script: Script,
    reactor: Rc<Reactor>,
}

impl Kernel {
    /// The places of the multishot accepts among the requests.
    fn accepts(&self) -> Vec<usize> {
        self.places(|request| {
            matches!(
                request,
                Request::Accept {
                    multishot: true,
                    ..
                }
            )
        })
    }

    fn cancels(&self) -> Vec<usize> {
        self.places(|request| matches!(request, Request::Cancel { target: Some(_) }))
    }

    fn places(&self, is_it: impl Fn(&Request) -> bool) -> Vec<usize> {
        self.reactor.enter(Wait::No).unwrap();
        let requests = self.script.requests();
        (0..requests.len())
            .filter(|place| is_it(&requests[*place]))
            .collect()
    }

    /// Brings so many connections. Any descriptor will do.
    fn bring(&self, count: usize) {
        let place = self.accepts()[0];
        for _ in 0..count {
            let fd = File::open("/dev/null").unwrap().into_raw_fd();
            self.script.complete_more(place, fd);
        }
        self.reactor.reap();
    }

    /// Ends a multishot accept.
    fn end(&self, errno: i32) {
        self.script.complete(self.accepts()[0], -errno);
        self.reactor.reap();
    }

    fn claim(&self, incoming: &mut Incoming<'_>, count: usize) {
        for _ in 0..count {
            let next = block_on(&self.reactor, incoming.next());
            next.unwrap().unwrap();
        }
    }
}

fn with_kernel(test: impl FnOnce(&Kernel, &mut Incoming<'_>)) {
    let script = Script::new();
    let reactor = Reactor::with_backend(script.backend()).unwrap();
    let _entered = current::enter(reactor.clone());
    let listener = block_on(&reactor, TcpListener::bind("127.0.0.1:0")).unwrap();
    let mut incoming = listener.incoming();
    let kernel = Kernel { script, reactor };
    poll_once(pin!(incoming.next()));
    assert_eq!(kernel.accepts().len(), 1);
    test(&kernel, &mut incoming);
}

/// With 128 unclaimed it goes on, beyond that it is cancelled, and armed again when half
/// have been claimed, the older ones first and without a word about the cancel.
#[test]
fn a_multishot_pauses_and_goes_on() {
    with_kernel(|kernel, incoming| {
        kernel.bring(128);
        assert_eq!(kernel.cancels().len(), 0, "128 may wait");
        kernel.bring(1);
        assert_eq!(kernel.cancels().len(), 1, "129 may not, though nobody asks");
        kernel.claim(incoming, 1);
        // ECANCELED; what waits now are 128 connections and this.
        kernel.end(125);
        assert_eq!(kernel.accepts().len(), 0);
        kernel.claim(incoming, 64);
        assert_eq!(kernel.accepts().len(), 0, "more than half still wait");
        kernel.claim(incoming, 1);
        assert_eq!(kernel.accepts().len(), 1, "armed again");
        assert_eq!(kernel.cancels().len(), 1, "and not cancelled again");
        kernel.claim(incoming, 63);
        poll_once(pin!(incoming.next()));
        kernel.bring(1);
        kernel.claim(incoming, 1);
        poll_once(pin!(incoming.next()));
    });
}

/// A multishot that ends by itself is armed again; one that ends by an error of a single
/// connection says nothing; another error is an item.
#[test]
fn a_multishot_that_ends_is_armed_again() {
    with_kernel(|kernel, incoming| {
        // ECONNABORTED
        kernel.end(103);
        poll_once(pin!(incoming.next()));
        assert_eq!(kernel.accepts().len(), 1);
        let fd = File::open("/dev/null").unwrap().into_raw_fd();
        kernel.script.complete(kernel.accepts()[0], fd);
        kernel.reactor.reap();
        kernel.claim(incoming, 1);
        poll_once(pin!(incoming.next()));
        assert_eq!(kernel.accepts().len(), 1);
        // EINVAL
        kernel.end(22);
        let error = block_on(&kernel.reactor, incoming.next())
            .unwrap()
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(22));
        poll_once(pin!(incoming.next()));
        assert_eq!(kernel.accepts().len(), 1);
    });
}

/// After `EMFILE` nothing is asked for before the wait is over.
#[test]
fn a_shortage_is_waited_out() {
    with_kernel(|kernel, incoming| {
        for _ in 0..3 {
            kernel.end(24);
            let error = block_on(&kernel.reactor, incoming.next())
                .unwrap()
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(24));
            poll_once(pin!(incoming.next()));
            assert_eq!(kernel.accepts().len(), 0, "it waits");
            // ETIME, as a timeout that is over.
            let timeout = kernel.places(|request| matches!(request, Request::Unknown { .. }));
            kernel.script.complete(timeout[0], -62);
            kernel.reactor.reap();
            poll_once(pin!(incoming.next()));
            assert_eq!(kernel.accepts().len(), 1, "it asks again");
        }
    });
}

/// A stream that is dropped accepts no more ahead.
#[test]
fn a_dropped_stream_asks_for_no_more() {
    let script = Script::new();
    let reactor = Reactor::with_backend(script.backend()).unwrap();
    let _entered = current::enter(reactor.clone());
    let listener = block_on(&reactor, TcpListener::bind("127.0.0.1:0")).unwrap();
    let kernel = Kernel { script, reactor };
    let mut incoming = listener.incoming();
    poll_once(pin!(incoming.next()));
    assert_eq!(kernel.accepts().len(), 1);
    assert_eq!(kernel.cancels().len(), 0);
    drop(incoming);
    assert_eq!(kernel.cancels().len(), 1);
}
