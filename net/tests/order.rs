//! The order of what a stream sends, answer by answer.

mod common;

use std::net;
use std::pin::pin;

use common::{block_on, poll_once};
use futures::join;
use roundel_net::TcpStream;
use roundel_reactor::script::Script;
use roundel_reactor::{Reactor, Request, Wait, current};

/// The next write and the shutdown start after the kernel's last word on a write that was
/// dropped, not after its cancel was asked for.
#[test]
fn a_write_waits_for_the_end_of_a_dropped_one() {
    let script = Script::new();
    let reactor = Reactor::with_backend(script.backend()).unwrap();
    let _entered = current::enter(reactor.clone());
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = TcpStream::from_std(client).unwrap();
    // What the kernel has, as the first letter of what is sent, or `|` for the end.
    let in_flight = || -> String {
        reactor.enter(Wait::No).unwrap();
        let requests = script.requests();
        let letters = requests.iter().filter_map(|request| match request {
            Request::Send { buffer, .. } => Some(char::from(buffer.to_vec()[0])),
            Request::Shutdown { .. } => Some('|'),
            _ => None,
        });
        letters.collect()
    };
    // The answered request stands in front of all others.
    let answer = |result| {
        script.complete(0, result);
        reactor.reap();
    };

    let mut dropped = Box::pin(stream.write_all("aaaa"));
    poll_once(dropped.as_mut());
    assert_eq!(in_flight(), "a");
    drop(dropped);
    let mut second = pin!(stream.write_all("bcd"));
    let mut end = pin!(stream.shutdown(net::Shutdown::Write));
    poll_once(second.as_mut());
    poll_once(end.as_mut());
    assert_eq!(in_flight(), "a", "the dropped one is still with the kernel");
    answer(2);
    poll_once(second.as_mut());
    poll_once(end.as_mut());
    assert_eq!(in_flight(), "b");
    // A short count: the rest follows before anything else. The cancel is answered first.
    answer(0);
    answer(1);
    poll_once(second.as_mut());
    poll_once(end.as_mut());
    assert_eq!(in_flight(), "c");
    answer(2);
    let both = async {
        join!(second, async {
            poll_once(end.as_mut());
            assert_eq!(in_flight(), "|");
            answer(0);
            end.await
        })
    };
    let (second, end) = block_on(&reactor, both);
    second.0.unwrap();
    end.unwrap();
}
