#![allow(unsafe_code)]
//! No call allocates in the steady state.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::pin;

use common::{in_each_mode, poll_once, turn};
use futures::join;
use roundel_net::{TcpListener, TcpStream};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

// SAFETY: everything is the system allocator's; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: our caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// After a warm-up, `round` allocates nothing, however often.
async fn assert_allocates_nothing(what: &str, mut round: impl AsyncFnMut()) {
    for _ in 0..100 {
        round().await;
    }
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        round().await;
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "{what}");
}

#[test]
fn no_call_allocates() {
    in_each_mode(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        assert_allocates_nothing("connect and accept", async || {
            let (client, server) = join!(TcpStream::connect(addr), listener.accept());
            drop((client.unwrap(), server.unwrap()));
        })
        .await;
        let mut incoming = listener.incoming();
        assert_allocates_nothing("incoming", async || {
            let (client, server) = join!(TcpStream::connect(addr), incoming.next());
            drop((client.unwrap(), server.unwrap().unwrap()));
        })
        .await;
        let (client, server) = join!(TcpStream::connect(addr), incoming.next());
        let (client, server) = (client.unwrap(), server.unwrap().unwrap());
        let mut buf = Some(Vec::with_capacity(16));
        assert_allocates_nothing("write and read", async || {
            client.write_all("0123456789").await.0.unwrap();
            let (result, filled) = server.read(buf.take().unwrap()).await;
            assert_eq!(result.unwrap(), 10);
            client.write("01234").await.0.unwrap();
            let (result, filled) = server.read(filled).await;
            assert_eq!(result.unwrap(), 5);
            buf = Some(filled);
        })
        .await;
        // The buffers of dropped reads do not come back: they are made before.
        let mut lost: Vec<Vec<u8>> = (0..1100).map(|_| Vec::with_capacity(16)).collect();
        assert_allocates_nothing("a dropped read", async || {
            poll_once(pin!(server.read(lost.pop().unwrap())));
            turn().await;
            client.write_all("x").await.0.unwrap();
            let (result, filled) = server.read(buf.take().unwrap()).await;
            assert_eq!(result.unwrap(), 1);
            buf = Some(filled);
        })
        .await;
    });
}
