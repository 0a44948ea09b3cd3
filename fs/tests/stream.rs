//! Reading and writing in order.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::task::Poll;

use common::{fifo, in_each_mode, pattern};
use roundel_fs::File;
use roundel_reactor::IoBufMut;

/// Opens both ends of a new FIFO without waiting: ours to read, std's to write.
async fn reading_end(folder: &std::path::Path) -> (File, std::fs::File) {
    let path = folder.join("fifo");
    fifo(&path);
    let both = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let ours = File::open(&path).await.unwrap();
    let theirs = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    drop(both);
    (ours, theirs)
}

/// Each reader has a position of its own, which moves with what it reads.
#[test]
fn readers_have_positions_of_their_own() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, pattern(1000)).unwrap();
        let file = File::open(&path).await.unwrap();
        let (reader, other) = (file.reader(), file.reader_at(900));
        let (result, buf) = reader.read_exact(vec![0; 600]).await;
        result.unwrap();
        assert_eq!(buf, pattern(1000)[..600]);
        let (result, tail) = other.read_to_end(b"tail".to_vec()).await;
        assert_eq!(result.unwrap(), 100);
        assert_eq!(tail[..4], *b"tail");
        assert_eq!(tail[4..], pattern(1000)[900..]);
        assert_eq!((reader.position(), other.position()), (600, 1000));

        let (result, buf) = reader.read_exact(vec![9; 600]).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf, pattern(1000)[600..]);
        let (result, buf) = reader.read(vec![9; 600]).await;
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
    });
}

/// Reads of a FIFO that are dropped while they wait lose no byte and change no order.
#[test]
fn h04_dropped_reads_lose_nothing() {
    in_each_mode(async |folder, _| {
        let (file, mut theirs) = reading_end(folder).await;
        let writer = std::thread::spawn(move || {
            for part in pattern(100_000).chunks(997) {
                theirs.write_all(part).unwrap();
            }
        });
        let reader = file.reader();
        let mut arrived = Vec::new();
        let mut dropped = 0;
        for round in 0.. {
            let mut reading = Box::pin(reader.read(Vec::with_capacity(100 + round % 400)));
            let (result, buf) = match futures::poll!(&mut reading) {
                Poll::Ready(read) => read,
                Poll::Pending if round % 3 == 0 => reading.await,
                Poll::Pending => {
                    drop(reading);
                    dropped += 1;
                    common::tick().await;
                    continue;
                }
            };
            if result.unwrap() == 0 {
                break;
            }
            arrived.extend_from_slice(&buf);
        }
        writer.join().unwrap();
        assert!(dropped > 0);
        assert!(arrived == pattern(100_000), "every byte, in order");
        assert_eq!(reader.position(), 100_000);
    });
}

/// A buffer is filled from as many parts as it takes, also the uninitialised rest of one.
#[test]
fn read_exact_waits_for_all_parts() {
    in_each_mode(async |folder, reactor| {
        let (file, mut theirs) = reading_end(folder).await;
        let reader = file.reader();
        for whole in [true, false] {
            let mut buf = Vec::with_capacity(64);
            buf.extend_from_slice(b"head");
            let mut filling = std::pin::pin!(async {
                if whole {
                    let (result, buf) = reader.read_exact(vec![9; 9]).await;
                    (result, buf)
                } else {
                    let (result, part) = reader.read_exact(buf.slice_mut(4..13)).await;
                    (result, part.into_inner())
                }
            });
            for part in ["abc", "def", "ghi"] {
                assert!(futures::poll!(&mut filling).is_pending());
                while reactor.staged() > 0 {
                    common::tick().await;
                }
                theirs.write_all(part.as_bytes()).unwrap();
                while reactor.in_flight() > 0 {
                    common::tick().await;
                }
            }
            let (result, buf) = filling.await;
            result.unwrap();
            assert_eq!(
                buf,
                if whole {
                    b"abcdefghi".as_slice()
                } else {
                    b"headabcdefghi"
                }
            );
        }
    });
}

/// Writes go in order behind each other, and a dropped one is not overtaken.
#[test]
fn writers_write_in_order() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        let file = File::create(&path).await.unwrap();
        let writer = file.writer_at(3);
        let (one, two, three) = futures::join!(
            writer.write_all("one"),
            writer.write_all("two"),
            writer.write_all("three")
        );
        one.0.unwrap();
        two.0.unwrap();
        three.0.unwrap();
        assert_eq!(writer.position(), 14);
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0onetwothree");

        for _ in 0..100 {
            let mut dropped = Box::pin(writer.write_all("____"));
            assert!(futures::poll!(&mut dropped).is_pending());
            drop(dropped);
            let before = writer.position();
            writer.write_all("kept").await.0.unwrap();
            // The dropped one was done or not; the position says which.
            assert!([before + 4, before + 8].contains(&writer.position()));
        }
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len() as u64, writer.position());
        assert_eq!(
            written[14..]
                .chunks(4)
                .filter(|part| part == b"kept")
                .count(),
            100
        );
    });
}

/// Large writes into a FIFO are not mixed with each other.
#[test]
fn whole_writes_are_not_mixed() {
    in_each_mode(async |folder, _| {
        let path = folder.join("fifo");
        fifo(&path);
        let mut both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let file = File::options().write(true).open(&path).await.unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; 600_000];
            both.read_exact(&mut all).unwrap();
            all
        });
        let writer = file.writer();
        let (one, two) = futures::join!(
            writer.write_all(vec![1; 300_000]),
            writer.write_all(vec![2; 300_000])
        );
        one.0.unwrap();
        two.0.unwrap();
        let all = reading.join().unwrap();
        assert!(all[..300_000].iter().all(|&byte| byte == 1));
        assert!(all[300_000..].iter().all(|&byte| byte == 2));
    });
}

/// Where offsets have no meaning, positions count.
#[test]
fn devices_and_proc_files_stream() {
    in_each_mode(async |_, _| {
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .await
            .unwrap();
        let writer = null.writer();
        writer.write_all(pattern(10_000)).await.0.unwrap();
        assert_eq!(writer.position(), 10_000);
        assert_eq!(null.reader().read_to_end(Vec::new()).await.0.unwrap(), 0);

        let reader = File::open("/dev/zero").await.unwrap().reader();
        let (result, buf) = reader.read_exact(vec![9; 100_000]).await;
        result.unwrap();
        assert!(buf == vec![0; 100_000]);

        let reader = File::open("/proc/self/status").await.unwrap().reader();
        let mut status = Vec::new();
        let mut buf = Vec::with_capacity(10);
        loop {
            let result;
            (result, buf) = reader.read(buf).await;
            if result.unwrap() == 0 {
                break;
            }
            status.extend_from_slice(&buf);
        }
        assert!(status.starts_with(b"Name:") && status.len() > 500);
    });
}

/// A writer to a FIFO that nobody reads gets an error, and the process no signal.
#[test]
fn a_vanished_reader_is_an_error() {
    in_each_mode(async |folder, _| {
        let path = folder.join("fifo");
        fifo(&path);
        let both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let file = File::options().write(true).open(&path).await.unwrap();
        drop(both);
        let (result, _) = file.writer().write_all("text").await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}
