//! Interruptions, parts, sizes and ends of transfers (H13 to H15, H17 to H19, H52).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::time::{Duration, Instant};

use roundel::IoBufMut;
use roundel::fs::{File, OpenOptions};
use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};
use roundel_testing::{Alarms, Lowered, PATIENCE, TempDir, cpu_time, each_mode, in_defer, scaled};

const MIB: usize = 1 << 20;

/// Signals in the middle of everything are nobody's concern: a thousand a second, whose
/// handler restarts no call, meet the shard during an echo server, copies of a file, and a
/// sleep that may neither end early nor begin anew.
#[test]
fn h13_signals_neither_fail_nor_restart_anything() {
    each_mode(|case| {
        let dir = TempDir::new();
        let source = dir.file("source", &vec![7; MIB]);
        let target = dir.join("target");
        case.run(async move {
            let alarms = Alarms::every(Duration::from_millis(1));
            let first = Alarms::arrived();
            let begun = Instant::now();
            let until = begun + Duration::from_secs(if scaled(50) == 50 { 3 } else { 1 });
            let echo = roundel::spawn(echo_until(until));
            let copy = roundel::spawn(async move {
                let mut copies = 0;
                while Instant::now() < until {
                    copy(&source, &target).await;
                    copies += 1;
                }
                copies
            });
            sleep(Duration::from_secs(1)).await;
            let slept = begun.elapsed();
            let (echoed, copies) = (echo.await.unwrap(), copy.await.unwrap());
            drop(alarms);
            let arrived = Alarms::arrived() - first;
            assert!(arrived > 100, "only {arrived} signals arrived");
            assert!(echoed > 0 && copies > 0, "{echoed} echoes, {copies} copies");
            assert!(slept >= Duration::from_secs(1), "{slept:?}");
            assert!(slept < Duration::from_secs(3), "{slept:?}");
        });
    });
}

async fn echo_until(until: Instant) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = roundel::spawn(async move {
        // Ends: the last client says so by sending nothing.
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (result, bytes) = stream.read(Vec::with_capacity(1000)).await;
            if result.unwrap() == 0 {
                return;
            }
            stream.write_all(bytes).await.0.unwrap();
        }
    });
    let mut echoed = 0;
    while Instant::now() < until {
        let client = TcpStream::connect(address).await.unwrap();
        client.write_all("as it was").await.0.unwrap();
        let (result, answer) = client.read_exact(Vec::with_capacity(9)).await;
        result.unwrap();
        assert_eq!(answer, b"as it was");
        echoed += 1;
    }
    drop(TcpStream::connect(address).await.unwrap());
    server.await.unwrap();
    echoed
}

async fn copy(source: &std::path::Path, target: &std::path::Path) {
    let bytes = roundel::fs::read(source).await.unwrap();
    assert_eq!(bytes.len(), MIB);
    let file = File::create(target).await.unwrap();
    file.write_all_at(bytes, 0).await.0.unwrap();
    file.sync_data().await.unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), MIB as u64);
    file.close().await.unwrap();
}

/// A peer that does not read yet is waited for, without `WouldBlock` and without spinning:
/// ten MiB to one that begins after half a second, also on a socket that std had made
/// non-blocking.
#[test]
fn h14_a_slow_peer_is_waited_for() {
    const PAUSE: Duration = Duration::from_millis(500);
    each_mode(|case| {
        for from_std in [false, true] {
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let peer = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let before = cpu_time();
                std::thread::sleep(PAUSE);
                let burnt = cpu_time() - before;
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                (burnt, received)
            });
            case.run(async move {
                let stream = if from_std {
                    let stream = StdStream::connect(address).unwrap();
                    stream.set_nonblocking(true).unwrap();
                    TcpStream::from_std(stream).unwrap()
                } else {
                    TcpStream::connect(address).await.unwrap()
                };
                for part in 0..10 {
                    let bytes = vec![part; MIB];
                    stream.write_all(bytes).await.0.unwrap();
                }
            });
            let (burnt, received) = peer.join().unwrap();
            assert_eq!(received.len(), 10 * MIB);
            for (part, bytes) in received.chunks(MIB).enumerate() {
                assert!(bytes.iter().all(|byte| *byte == part as u8), "{part}");
            }
            assert!(burnt < PAUSE / 2, "{burnt:?} of CPU in {PAUSE:?}");
        }
    });
}

/// Success never hides bytes that are missing: two MiB into room for one. A single write
/// may say how much it wrote; the form for all goes on behind that and ends with the true
/// error.
#[test]
fn h15_a_short_write_is_not_taken_for_a_whole_one() {
    each_mode(|case| {
        let dir = TempDir::new();
        let (one, all) = (dir.join("one"), dir.join("all"));
        let contents = all.clone();
        case.run(async move {
            let bytes: Vec<u8> = (0..2 * MIB).map(|place| (place % 251) as u8).collect();
            let (one, all) = (File::create(one).await, File::create(all).await);
            let limit = Lowered::file_size(MIB);
            let (result, bytes) = one.unwrap().write_at(bytes, 0).await;
            assert_eq!(result.unwrap(), MIB);
            let all = all.unwrap();
            let (result, bytes) = all.write_all_at(bytes, 0).await;
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
            assert_eq!(all.metadata().await.unwrap().len(), MIB as u64);
            // The sequential form tells the same, and its position is behind what it wrote.
            let writer = all.writer_at(MIB as u64 - 10);
            let error = writer.write_all(vec![1; 20]).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
            assert_eq!(writer.position(), MIB as u64);
            all.write_all_at(bytes.slice_mut(MIB - 10..MIB), MIB as u64 - 10)
                .await
                .0
                .unwrap();
            drop(limit);
        });
        let contents = std::fs::read(contents).unwrap();
        let right = |(place, byte): (usize, &u8)| *byte == (place % 251) as u8;
        assert!(contents.iter().enumerate().all(right));
    });
}

/// The same where the device is full.
#[test]
fn h15_a_full_device_is_an_error() {
    each_mode(|case| {
        case.run(async {
            let full = OpenOptions::new().write(true).open("/dev/full").await;
            let full = full.unwrap();
            let error = full.write_all_at(vec![1; 100], 0).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            let error = full.writer().write_all("text").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            let error = roundel::fs::write("/dev/full", "text").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        });
    });
}

/// Lengths are capped and never wrap: buffers of 4 GiB, whose length is 0 in 32 bits,
/// transfer what there is.
#[test]
fn h17_lengths_of_four_gib_are_not_zero() {
    const HUGE: usize = 1 << 32;
    each_mode(|case| {
        let dir = TempDir::new();
        let four = dir.file("four", b"four");
        case.run(async move {
            let file = File::open(four).await.unwrap();
            let (result, buf) = file.read_at(Vec::with_capacity(HUGE), 0).await;
            assert_eq!((result.unwrap(), &buf[..]), (4, &b"four"[..]));
            let (result, buf) = file.reader().read(buf).await;
            assert_eq!((result.unwrap(), &buf[..]), (4, &b"four"[..]));

            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut peer = StdStream::connect(address).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            peer.write_all(b"five!").unwrap();
            let (result, buf) = stream.read(buf).await;
            assert_eq!((result.unwrap(), &buf[..]), (5, &b"five!"[..]));
            drop(buf);

            // Zeroed pages that nobody touches take no memory.
            let (result, zeros) = stream.write(vec![0; HUGE]).await;
            let sent = result.unwrap();
            assert!(sent > 0 && sent <= HUGE, "{sent}");
            let received = roundel::spawn_blocking(move || {
                let mut received = Vec::new();
                peer.read_to_end(&mut received).unwrap();
                received.len()
            });
            drop(stream);
            assert_eq!(received.await.unwrap(), sent);

            let null = OpenOptions::new().write(true).open("/dev/null").await;
            let null = null.unwrap();
            let (result, zeros) = null.write_at(zeros, 0).await;
            assert!(result.unwrap() > 0);
            null.write_all_at(zeros, 0).await.0.unwrap();
        });
    });
}

/// A file opened to append honours no offset, so none is taken: `write_at` is refused, and
/// the writer appends.
#[test]
fn h18_an_append_handle_refuses_offsets() {
    each_mode(|case| {
        let dir = TempDir::new();
        let path = dir.join("log");
        let contents = path.clone();
        case.run(async move {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(&path).await.unwrap();
            for byte in [b"1", b"2", b"3"] {
                let error = file.write_at(&byte[..], 1).await.0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert_eq!(file.writer().write(&byte[..]).await.0.unwrap(), 1);
            }
            let std = std::fs::OpenOptions::new().append(true).open(&path);
            let taken_over = File::from_std(std.unwrap());
            let error = taken_over.write_all_at("4", 0).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        });
        assert_eq!(std::fs::read(contents).unwrap(), b"123");
    });
}

/// The end of a file ends every read: at once, and by its name.
#[test]
fn h19_the_end_of_a_file_is_met_once() {
    each_mode(|case| {
        let dir = TempDir::new();
        let path = dir.file("hundred", &[5; 100]);
        case.run(async move {
            let file = File::open(path).await.unwrap();
            let reads = async {
                let buf = || Vec::with_capacity(200);
                assert_eq!(file.read_at(buf(), 100).await.0.unwrap(), 0);
                assert_eq!(file.read_at(buf(), 50).await.0.unwrap(), 50);
                let (result, read) = file.read_exact_at(buf(), 0).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
                assert_eq!(read, [5; 100]);
                let (result, read) = file.reader_at(30).read_exact(buf()).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
                assert_eq!(read, [5; 70]);
            };
            timeout(PATIENCE, reads)
                .await
                .expect("no read is repeated for ever");
        });
    });
}

/// After a read a buffer is as long as what was read, whatever stood in it before: only
/// that is written on.
#[test]
fn h52_a_read_sets_the_length() {
    each_mode(|case| {
        let dir = TempDir::new();
        let path = dir.file("ten", b"0123456789");
        let copied = dir.join("copied");
        let contents = copied.clone();
        case.run(async move {
            let old = || vec![0xaa; 2_000];
            let file = File::open(path).await.unwrap();
            let (result, bytes) = file.read_at(old(), 0).await;
            assert_eq!((result.unwrap(), bytes.len()), (10, 10));
            let target = File::create(copied).await.unwrap();
            target.write_all_at(bytes, 0).await.0.unwrap();
            let (result, bytes) = file.reader().read(old()).await;
            assert_eq!((result.unwrap(), bytes.len()), (10, 10));

            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let client = TcpStream::connect(address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            client.write_all(bytes).await.0.unwrap();
            let (result, bytes) = server.read(old()).await;
            assert_eq!((result.unwrap(), &bytes[..]), (10, &b"0123456789"[..]));
            server.write_all(bytes).await.0.unwrap();
            drop(server);
            let (result, bytes) = client.read(old()).await;
            assert_eq!((result.unwrap(), bytes.len()), (10, 10));
            let (result, bytes) = client.read(bytes).await;
            assert_eq!((result.unwrap(), bytes.len()), (0, 0));
        });
        assert_eq!(std::fs::read(contents).unwrap(), b"0123456789");
    });
}

/// A part of a buffer is lent and comes back in its place.
#[test]
fn h52_a_slice_fills_its_part_alone() {
    in_defer(|case| {
        let dir = TempDir::new();
        let path = dir.file("ten", b"0123456789");
        case.run(async move {
            let file = File::open(path).await.unwrap();
            let buf = vec![b'-'; 8];
            let (result, part) = file.read_at(buf.slice_mut(2..5), 0).await;
            assert_eq!(result.unwrap(), 3);
            assert!(part.into_inner().starts_with(b"--012"));
        });
    });
}
