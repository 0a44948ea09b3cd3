//! Delivery by each kind of ring, and full queues (H09 to H12).

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel::{Handle, yield_now};
use roundel_testing::{
    PATIENCE, TempDir, descriptors, each_mode, eventually, in_defer, in_sqpoll, scaled, settled,
};

/// A poller that sleeps is woken for an entry that it has seen or will see: one write at a
/// time, with pauses around the poller's idle time, so that it is met awake, asleep, and on
/// its way, and now and then much longer ones. No round may take a second.
#[test]
fn h09_a_poller_that_falls_asleep_misses_no_entry() {
    const IDLE: Duration = Duration::from_millis(4);
    in_sqpoll(|case| {
        let dir = TempDir::new();
        let path = dir.join("data");
        case.run_on(case.builder().sq_idle(IDLE), async move {
            let file = File::create(path).await.unwrap();
            let mut block = vec![9; 20 * 1024];
            let mut slowest = Duration::ZERO;
            let rounds = scaled(5_000).max(200);
            for round in 0..rounds {
                let begun = Instant::now();
                let write = timeout(PATIENCE, file.write_at(block, 0)).await;
                let (result, written) = write.expect("the poller sees the entry");
                assert_eq!(result.unwrap(), written.len());
                slowest = slowest.max(begun.elapsed());
                block = written;
                // From two milliseconds less than the idle time to two more.
                let around = 2_000 + (round as u64 * 97) % 4_000;
                let long = if round % 8 == 7 { 20_000 } else { 0 };
                sleep(Duration::from_micros(around + long)).await;
            }
            let wakes = Handle::current().metrics()[0].ring.poller_wakes;
            assert!(wakes > 10, "the poller was seen asleep {wakes} times only");
            assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        });
    });
}

/// Finished work is fetched although the shard never parks: beside a task that yields for
/// ever, a socket whose peer writes after a while is read.
#[test]
fn h10_a_shard_that_never_parks_fetches_completions() {
    in_defer(|case| {
        case.run(async {
            let storm = roundel::spawn(async {
                loop {
                    yield_now().await;
                }
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let peer = std::thread::spawn(move || {
                let mut stream = StdStream::connect(address).unwrap();
                let mut delays = Vec::new();
                for _ in 0..10 {
                    std::thread::sleep(Duration::from_millis(50));
                    let sent = Instant::now();
                    stream.write_all(b"x").unwrap();
                    stream.read_exact(&mut [0]).unwrap();
                    delays.push(sent.elapsed());
                }
                delays
            });
            let reader = roundel::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                for _ in 0..10 {
                    let (result, byte) = stream.read(Vec::with_capacity(1)).await;
                    assert_eq!(result.unwrap(), 1);
                    stream.write_all(byte).await.0.unwrap();
                }
            });
            reader.await.unwrap();
            let mut delays = peer.join().unwrap();
            delays.sort();
            assert!(delays[9] < Duration::from_secs(1), "{delays:?}");
            // Most of the time it is a matter of microseconds.
            assert!(delays[4] < Duration::from_millis(20), "{delays:?}");
            storm.abort();
            assert!(storm.await.unwrap_err().is_cancelled());
        });
    });
}

/// The same with a single write, while the shard has nothing but timers.
#[test]
fn h10_a_lone_write_beside_timers_is_fetched() {
    in_defer(|case| {
        let dir = TempDir::new();
        let path = dir.join("data");
        case.run(async move {
            let timers = roundel::spawn(async {
                loop {
                    sleep(Duration::from_millis(5)).await;
                }
            });
            let file = File::create(path).await.unwrap();
            for _ in 0..20 {
                let write = timeout(PATIENCE, file.write_all_at(vec![1; 100_000], 0));
                write.await.expect("the write is seen").0.unwrap();
                let sync = timeout(PATIENCE, file.sync_data());
                sync.await.expect("the sync is seen").unwrap();
            }
            timers.abort();
            let _ = timers.await;
        });
    });
}

/// A full submission queue is no error: ten thousand writes at once through a ring of 8 all
/// complete, and each is where it belongs.
#[test]
fn h11_ten_thousand_writes_pass_through_a_ring_of_eight() {
    const BLOCK: usize = 64;
    each_mode(|case| {
        let dir = TempDir::new();
        let path = dir.join("data");
        let count = scaled(10_000).max(2_000);
        let from = path.clone();
        case.run_on(case.builder().entries(8), async move {
            let file = File::create(path).await.unwrap();
            let writes: Vec<_> = (0..count)
                .map(|number| {
                    let file = file.clone();
                    roundel::spawn(async move {
                        let block = vec![number as u8; BLOCK];
                        file.write_at(block, (number * BLOCK) as u64).await.0
                    })
                })
                .collect();
            for write in writes {
                let written = timeout(PATIENCE, write).await.expect("every write ends");
                assert_eq!(written.unwrap().unwrap(), BLOCK);
            }
        });
        let bytes = std::fs::read(from).unwrap();
        assert_eq!(bytes.len(), count * BLOCK);
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8), "{number}");
        }
    });
}

/// A completion queue that overflows loses nothing: thousands of connections on a ring of
/// 32 are all sent to at once, and all get their answers.
#[test]
fn h12_echoes_survive_an_overflow_of_the_completion_queue() {
    const ROUNDS: u8 = 3;
    each_mode(|case| {
        let count = scaled(3_000).max(1_000);
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let pairs: Vec<(StdStream, StdStream)> = (0..count)
            .map(|_| {
                let client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        let (mut clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        case.run_on(case.builder().entries(32), async move {
            let echoes: Vec<_> = servers
                .into_iter()
                .map(|server| {
                    roundel::spawn(async move {
                        let stream = TcpStream::from_std(server).unwrap();
                        let mut buf = Vec::with_capacity(64);
                        // Ends: with the client.
                        loop {
                            let (result, read) = stream.read(buf).await;
                            if result.unwrap() == 0 {
                                return;
                            }
                            let (result, written) = stream.write_all(read).await;
                            result.unwrap();
                            buf = written;
                        }
                    })
                })
                .collect();
            let peers = std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    for client in &mut clients {
                        client.write_all(&[round; 10]).unwrap();
                    }
                    for client in &mut clients {
                        client.set_read_timeout(Some(PATIENCE)).unwrap();
                        let mut answer = [!round; 10];
                        client.read_exact(&mut answer).expect("every answer comes");
                        assert_eq!(answer, [round; 10]);
                    }
                }
            });
            for echo in echoes {
                let ended = timeout(PATIENCE, echo).await;
                ended.expect("every connection ends").unwrap();
            }
            peers.join().unwrap();
        });
    });
}

/// An overflow is noticed by a shard that never parks: beside a task that yields for ever,
/// hundreds of reads complete at once on a ring of 8, and nothing else is submitted that
/// would make the kernel hand out the rest.
#[test]
fn h12_a_shard_that_never_parks_notices_an_overflow() {
    const READS: usize = 500;
    each_mode(|case| {
        case.run_on(case.builder().entries(8), async {
            let storm = roundel::spawn(async {
                loop {
                    yield_now().await;
                }
            });
            let (reader, mut writer) = std::io::pipe().unwrap();
            let pipe = File::from(std::os::fd::OwnedFd::from(reader));
            let reads: Vec<_> = (0..READS)
                .map(|_| {
                    let pipe = pipe.clone();
                    roundel::spawn(async move { pipe.read_at(vec![0], 0).await.0 })
                })
                .collect();
            let submitted = || Handle::current().metrics()[0].ring.submitted;
            eventually("all reads in flight", || submitted() >= READS as u64).await;
            writer.write_all(&[1; READS]).unwrap();
            for read in reads {
                let count = timeout(PATIENCE, read).await.expect("every read ends");
                assert_eq!(count.unwrap().unwrap(), 1);
            }
            storm.abort();
            assert!(storm.await.unwrap_err().is_cancelled());
        });
    });
}

/// Many completions that come from other threads of the kernel, on a ring of 32.
#[test]
fn h12_ten_thousand_metadata_calls_on_a_ring_of_32_resolve() {
    each_mode(|case| {
        let count = scaled(10_000).max(2_000);
        case.run_on(case.builder().entries(32), async move {
            let calls = (0..count).map(|_| roundel::fs::metadata("/etc/hostname"));
            let calls = timeout(PATIENCE, join_all(calls)).await;
            let lens: Vec<u64> = calls
                .expect("every call resolves")
                .into_iter()
                .map(|metadata| metadata.unwrap().len())
                .collect();
            assert!(lens.iter().all(|len| *len == lens[0]));
        });
    });
}

/// Cancels of what waits in a queue that is full reach it: reads beyond a ring of 8 are
/// dropped while most of them wait, and the ring goes on.
#[test]
fn h11_a_full_ring_can_be_cancelled() {
    each_mode(|case| {
        case.run_on(case.builder().entries(8), async {
            let outside = descriptors();
            let (reader, writer) = std::io::pipe().unwrap();
            let pipe = File::from(std::os::fd::OwnedFd::from(reader));
            for _ in 0..5 {
                let got = Rc::new(RefCell::new(0));
                let reads: Vec<_> = (0..300)
                    .map(|_| {
                        let (pipe, got) = (pipe.clone(), got.clone());
                        roundel::spawn(async move {
                            let (result, _) = pipe.read_at(Vec::with_capacity(8), 0).await;
                            result.unwrap();
                            *got.borrow_mut() += 1;
                        })
                    })
                    .collect();
                yield_now().await;
                yield_now().await;
                reads.iter().for_each(roundel::JoinHandle::abort);
                for read in reads {
                    let ended = timeout(PATIENCE, read).await;
                    assert!(ended.expect("it ends").unwrap_err().is_cancelled());
                }
                assert_eq!(*got.borrow(), 0);
            }
            drop((pipe, writer));
            settled(outside).await;
        });
    });
}
