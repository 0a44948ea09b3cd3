//! Dropped futures: whose memory, descriptors and bytes are where afterwards.

mod common;

use std::io::Write;

use common::{alone, descriptors, fifo, in_each_mode, is_child, pattern, settled};
use roundel_fs::File;

/// Buffers of dropped reads are freed only when the kernel is done with them: what is
/// allocated meanwhile stays as it was written.
#[test]
fn h01_dropped_reads_write_nowhere() {
    in_each_mode(async |folder, reactor| {
        const LEN: usize = 64 * 1024;
        let path = folder.join("file");
        std::fs::write(&path, vec![0xab; 16 * LEN]).unwrap();
        let file = File::open(&path).await.unwrap();
        let mut others = Vec::new();
        for round in 0..1000_u64 {
            let mut reading =
                Box::pin(file.read_at(vec![0; LEN], round * 7919 % (15 * LEN as u64)));
            let _ = futures::poll!(&mut reading);
            if round % 2 == 0 {
                // Half of them are dropped when the kernel has them, half before.
                common::tick().await;
            }
            drop(reading);
            others.push(vec![round as u8 % 100; LEN]);
            if others.len() == 16 {
                settled(reactor).await;
                for (other, expected) in others.iter().zip(round - 15..) {
                    let expected = expected as u8 % 100;
                    assert!(other.iter().all(|&byte| byte == expected), "{round}");
                }
                others.clear();
            }
        }
    });
}

/// A descriptor that a dropped open brings is closed. (Counted in a process of its own.)
#[test]
fn h03_dropped_opens_leak_nothing() {
    if !is_child() {
        return alone("h03_dropped_opens_leak_nothing", "");
    }
    in_each_mode(async |folder, reactor| {
        let path = folder.join("file");
        std::fs::write(&path, "text").unwrap();
        drop(File::open(&path).await.unwrap());
        settled(reactor).await;
        let before = descriptors();
        for round in 0..1000 {
            let mut opening = Box::pin(File::open(&path));
            let _ = futures::poll!(&mut opening);
            if round % 2 == 0 {
                common::tick().await;
            }
            drop(opening);
        }
        settled(reactor).await;
        assert_eq!(descriptors(), before);
        for _ in 0..100 {
            let file = File::open(&path).await.unwrap();
            let (_, reader, _) = (file.clone(), file.reader(), file.writer());
            reader.read(Vec::with_capacity(4)).await.0.unwrap();
        }
        settled(reactor).await;
        assert_eq!(descriptors(), before, "dropped files are closed");
    });
}

/// An open that waits for the other end of a FIFO can be dropped.
#[test]
fn an_open_that_waits_can_be_dropped() {
    in_each_mode(async |folder, reactor| {
        let path = folder.join("fifo");
        fifo(&path);
        let mut opening = Box::pin(File::open(&path));
        assert!(futures::poll!(&mut opening).is_pending());
        while reactor.staged() > 0 {
            common::tick().await;
        }
        assert!(
            futures::poll!(&mut opening).is_pending(),
            "there is no writer"
        );
        drop(opening);
        settled(reactor).await;
    });
}

/// A close ends the read that waits, before the number can be another file's: bytes that
/// are sent afterwards show up nowhere.
#[test]
fn h22_a_close_does_not_overtake_a_read() {
    in_each_mode(async |folder, _| {
        let path = folder.join("fifo");
        fifo(&path);
        let mut both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let file = File::open(&path).await.unwrap();
        let reader = file.reader();
        let (read, closed) = futures::join!(reader.read(Vec::with_capacity(100)), file.close());
        closed.unwrap();
        assert!(read.0.is_err(), "{read:?}");
        let others = [0, 1, 2, 3].map(|number| folder.join(format!("other-{number}")));
        let mut opened = Vec::new();
        for other in &others {
            opened.push(File::create_new(other).await.unwrap());
        }
        both.write_all(b"late").unwrap();
        let (result, _) = reader.read(Vec::with_capacity(100)).await;
        result.unwrap_err();
        for other in &opened {
            assert_eq!(other.metadata().await.unwrap().len(), 0);
        }
    });
}

/// A close ends a read that nobody waits for any more and that is still with its reader.
#[test]
fn h22_a_close_ends_an_abandoned_read() {
    in_each_mode(async |folder, reactor| {
        let path = folder.join("fifo");
        fifo(&path);
        let _both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let file = File::open(&path).await.unwrap();
        let reader = file.reader();
        let mut reading = Box::pin(reader.read(Vec::with_capacity(100)));
        assert!(futures::poll!(&mut reading).is_pending());
        drop(reading);
        while reactor.staged() > 0 {
            common::tick().await;
        }
        file.close().await.unwrap();
        drop(reader);
    });
}

/// Forgotten futures do no harm to what comes after them.
#[test]
fn forgotten_futures_do_no_harm() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, pattern(1000)).unwrap();
        let file = File::open(&path).await.unwrap();
        for _ in 0..10 {
            let mut reading = Box::pin(file.read_at(vec![0; 100], 0));
            let _ = futures::poll!(&mut reading);
            std::mem::forget(reading);
        }
        let (result, buf) = file.read_exact_at(vec![0; 1000], 0).await;
        result.unwrap();
        assert_eq!(buf, pattern(1000));
    });
}
