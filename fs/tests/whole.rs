//! Calls that take a path and are done when they return.

mod common;

use std::io::ErrorKind;

use common::{fifo, in_each_mode, pattern};

/// What is written is read, of sizes around the parts it is moved in.
#[test]
fn whole_files_are_written_and_read() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        for len in [3_000_000, 1 << 20, (1 << 20) - 1, 8192, 100, 1, 0] {
            let (result, bytes) = roundel_fs::write(&path, pattern(len)).await;
            result.unwrap();
            assert_eq!(bytes.len(), len);
            assert_eq!(
                std::fs::read(&path).unwrap(),
                bytes,
                "the older, longer one is gone"
            );
            assert_eq!(roundel_fs::read(&path).await.unwrap(), bytes);
        }
    });
}

/// Files whose size says nothing are read to their end.
#[test]
fn files_without_a_size_are_read() {
    in_each_mode(async |_, _| {
        let cpus = std::fs::read_to_string("/proc/cpuinfo")
            .unwrap()
            .matches("processor")
            .count();
        let read = roundel_fs::read_to_string("/proc/cpuinfo").await.unwrap();
        assert_eq!(read.matches("processor").count(), cpus);
        assert!(
            roundel_fs::read("/proc/self/status")
                .await
                .unwrap()
                .starts_with(b"Name:")
        );
        assert_eq!(roundel_fs::read("/dev/null").await.unwrap(), b"");
        roundel_fs::write("/dev/null", "text").await.0.unwrap();
    });
}

/// A FIFO is read until its writer is done, whichever of the two comes first.
#[test]
fn fifos_are_read() {
    in_each_mode(async |folder, reactor| {
        for round in 0..20 {
            // A new one each: the former's reader is closed in the background.
            let path = folder.join(format!("fifo-{round}"));
            fifo(&path);
            let writer = std::thread::spawn({
                let path = path.clone();
                move || std::fs::write(path, pattern(200_000))
            });
            assert_eq!(roundel_fs::read(&path).await.unwrap(), pattern(200_000));
            writer.join().unwrap().unwrap();
        }

        // The open waits for a writer: it is on its way before there is one.
        let path = folder.join("late");
        fifo(&path);
        let mut reading = std::pin::pin!(roundel_fs::read(&path));
        assert!(futures::poll!(&mut reading).is_pending());
        while reactor.staged() > 0 {
            common::tick().await;
        }
        let writer = std::thread::spawn({
            let path = path.clone();
            move || std::fs::write(path, "late")
        });
        assert_eq!(reading.await.unwrap(), b"late");
        writer.join().unwrap().unwrap();

        let path = folder.join("read");
        fifo(&path);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read(path)
        });
        let file = roundel_fs::File::options()
            .write(true)
            .open(&path)
            .await
            .unwrap();
        file.writer().write_all(pattern(200_000)).await.0.unwrap();
        file.close().await.unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), pattern(200_000));
    });
}

/// Errors name the path and what was tried.
#[test]
fn errors_name_the_path() {
    in_each_mode(async |folder, _| {
        let missing = folder.join("no").join("file");
        let error = roundel_fs::read(&missing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error
                .to_string()
                .starts_with(&format!("open {missing:?}: ")),
            "{error}"
        );

        let (result, contents) = roundel_fs::write(&missing, "text").await;
        assert_eq!(
            (result.unwrap_err().kind(), contents),
            (ErrorKind::NotFound, "text")
        );

        let error = roundel_fs::read(folder).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        assert!(
            error.to_string().starts_with(&format!("read {folder:?}: ")),
            "{error}"
        );

        let error = roundel_fs::write("/dev/full", "text").await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(
            error.to_string().starts_with("write \"/dev/full\": "),
            "{error}"
        );

        let path = folder.join("file");
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        let error = roundel_fs::read_to_string(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(
            error.to_string().starts_with(&format!("read {path:?}: ")),
            "{error}"
        );
    });
}
