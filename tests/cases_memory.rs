//! Memory the kernel still owns, on the whole runtime (H01, H02).

use std::hint::black_box;
use std::pin::pin;

use futures::poll;
use roundel::fs::File;
use roundel::net::{TcpListener, TcpStream};
use roundel::{IoBufMut, yield_now};
use roundel_testing::{Case, GuardBuf, Random, TempDir, each_mode, evict, scaled};

const PART: usize = 64 * 1024;
const PARTS: usize = 64;
/// What the file holds, and what the memory holds that belongs to somebody else.
const READ: u8 = 0xee;
const OTHERS: u8 = 0x55;

/// A buffer stays the kernel's until the read is over, whatever becomes of its future:
/// reads of a file that is not cached are dropped, by hand and by a panic, before the
/// kernel has them, while it has them, and later; vectors that get their memory next must
/// keep what they hold.
#[test]
fn h01_a_dropped_read_writes_into_nobody_elses_memory() {
    each_mode(|case| {
        drop_reads(case, || vec![0; PART], scaled(10_000));
    });
}

/// The same with buffers whose memory faults when it was freed: the kernel, which would
/// write in silence, must meet none of them.
#[test]
fn h01_a_dropped_read_never_meets_freed_memory() {
    each_mode(|case| {
        drop_reads(case, || GuardBuf::with_capacity(PART), scaled(10_000));
    });
}

fn drop_reads<B: IoBufMut>(case: &Case, buf: fn() -> B, rounds: usize) {
    let dir = TempDir::new();
    let path = dir.file("data", &vec![READ; PARTS * PART]);
    let cached = std::fs::File::open(&path).unwrap();
    let mut random = Random::new(case.seed());
    case.run(async move {
        let file = File::open(&path).await.unwrap();
        for round in 0..rounds {
            if round % PARTS == 0 {
                evict(&cached);
            }
            let offset = (random.below(PARTS) * PART) as u64;
            let turns = random.below(3);
            if random.below(2) == 0 {
                let mut read = Box::pin(file.read_at(buf(), offset));
                assert!(poll!(read.as_mut()).is_pending());
                for _ in 0..turns {
                    yield_now().await;
                }
                drop(read);
            } else {
                let file = file.clone();
                let panicked = roundel::spawn(async move {
                    let mut read = pin!(file.read_at(buf(), offset));
                    assert!(poll!(read.as_mut()).is_pending());
                    for _ in 0..turns {
                        // More than one turn of the loop, which polls a lone task often.
                        roundel::time::sleep(std::time::Duration::from_micros(20)).await;
                    }
                    // As a panic, but without its text in the log.
                    std::panic::resume_unwind(Box::new("on purpose"));
                });
                assert!(panicked.await.unwrap_err().is_panic());
            }
            let others: Vec<Vec<u8>> = (0..4).map(|_| vec![OTHERS; PART]).collect();
            yield_now().await;
            for other in &others {
                assert!(other.iter().all(|byte| *byte == OTHERS), "round {round}");
            }
        }
    });
}

/// Arguments live as long as the kernel needs them: connects over both families, with
/// unrelated calls that overwrite the stack between making, polling and awaiting each.
#[test]
fn h02_addresses_outlive_the_frame_that_made_them() {
    each_mode(|case| {
        let rounds = scaled(1_000).max(200);
        case.run(async move {
            let four = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let six = TcpListener::bind("[::1]:0").await.unwrap();
            for round in 0..rounds {
                let listener = if round % 2 == 0 { &four } else { &six };
                let to = listener.local_addr().unwrap();
                let mut connect = Box::pin(TcpStream::connect(to));
                overwrite_stack(64);
                assert!(poll!(connect.as_mut()).is_pending());
                overwrite_stack(64);
                let client = connect.await.unwrap();
                let (server, from) = listener.accept().await.unwrap();
                assert_eq!(from, client.local_addr().unwrap());
                assert_eq!(client.peer_addr().unwrap(), to);
                drop((client, server));
            }
        });
    });
}

/// Paths live as long as the kernel needs them: opens and statx calls whose text is freed
/// and overwritten as soon as they were polled.
#[test]
fn h02_paths_outlive_the_text_that_named_them() {
    each_mode(|case| {
        let dir = TempDir::new();
        for number in 0..8 {
            dir.file(&number.to_string(), &vec![b'x'; number]);
        }
        let rounds = scaled(1_000).max(200);
        case.run(async move {
            for round in 0..rounds {
                let number = round % 8;
                let name = dir.join(&number.to_string());
                let mut stat = Box::pin(roundel::fs::metadata(name.clone()));
                let mut open = Box::pin(File::open(name));
                assert!(poll!(stat.as_mut()).is_pending());
                assert!(poll!(open.as_mut()).is_pending());
                overwrite_stack(64);
                let others: Vec<Vec<u8>> = (0..16).map(|_| vec![OTHERS; 256]).collect();
                assert_eq!(stat.await.unwrap().len(), number as u64);
                let file = open.await.unwrap();
                assert_eq!(file.metadata().await.unwrap().len(), number as u64);
                drop(others);
            }
        });
    });
}

/// Frames of rubbish where the caller's callees had theirs.
fn overwrite_stack(depth: usize) {
    let frame = black_box([OTHERS; 512]);
    if depth > 0 {
        overwrite_stack(depth - 1);
    }
    assert!(black_box(&frame).iter().all(|byte| *byte == OTHERS));
}
