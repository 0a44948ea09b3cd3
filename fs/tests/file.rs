//! Open files: what transfers at offsets, lengths and metadata come to.

mod common;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{alone, in_each_mode, is_child, pattern};
use roundel_fs::{File, OpenOptions, PathError};
use roundel_reactor::IoBufMut;

/// What is written at an offset is read there, by us and by std.
#[test]
fn written_bytes_are_read_back() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        let file = File::create_new(&path).await.unwrap();
        let (result, buf) = file.write_at(pattern(1000), 50).await;
        assert_eq!(result.unwrap(), 1000);
        assert_eq!(buf, pattern(1000), "the buffer comes back");
        let (result, buf) = file.read_at(Vec::with_capacity(2000), 40).await;
        assert_eq!(result.unwrap(), 1010);
        assert_eq!(buf[..10], [0; 10]);
        assert_eq!(buf[10..], pattern(1000));
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        file.close().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[50..], pattern(1000));
    });
}

/// A clone is a handle to the same file, a close is one for all, and says so afterwards.
#[test]
fn a_close_is_for_every_handle() {
    in_each_mode(async |folder, _| {
        let file = File::create_new(folder.join("file")).await.unwrap();
        let other = file.clone();
        file.close().await.unwrap();
        let (result, buf) = other.write_at("text", 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotConnected);
        assert_eq!(buf, "text");
        assert_eq!(
            other.metadata().await.unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        assert_eq!(
            other.close().await.unwrap_err().kind(),
            ErrorKind::NotConnected
        );
    });
}

/// An error of an open names the path, and has kind and errno of the kernel's.
#[test]
fn errors_of_an_open_name_the_path() {
    in_each_mode(async |folder, _| {
        let path = folder.join("missing");
        let error = File::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            format!("open {path:?}: No such file or directory (os error 2)")
        );
        let inner = error
            .get_ref()
            .unwrap()
            .downcast_ref::<PathError>()
            .unwrap();
        assert_eq!(inner.raw_os_error(), Some(2));

        let error = File::create(folder).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        let error = File::open("a\0b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = File::create_new(folder.join("a")).await.map(drop);
        error.unwrap();
        let error = File::create_new(folder.join("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let error = OpenOptions::new().open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

/// The options reach the kernel: truncation, mode, no creation.
#[test]
fn options_mean_what_they_mean_in_std() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path).await.unwrap();
        assert_eq!(
            file.metadata().await.unwrap().permissions().mode() & 0o777,
            0o600
        );
        file.write_all_at("0123456789", 0).await.0.unwrap();
        let (result, _) = file.read_at(Vec::with_capacity(4), 0).await;
        assert_eq!(
            result.unwrap_err().raw_os_error(),
            Some(9),
            "EBADF: it cannot be read"
        );

        let kept = File::options().write(true).open(&path).await.unwrap();
        assert_eq!(kept.metadata().await.unwrap().len(), 10);
        let emptied = File::create(&path).await.unwrap();
        assert_eq!(emptied.metadata().await.unwrap().len(), 0);
    });
}

/// A long path goes another way than a short one.
#[test]
fn long_paths_work() {
    in_each_mode(async |folder, _| {
        let mut path = folder.to_owned();
        for _ in 0..4 {
            path.push("x".repeat(200));
            std::fs::create_dir(&path).unwrap();
        }
        path.push("file");
        let (result, _) = roundel_fs::write(&path, "text").await;
        result.unwrap();
        assert_eq!(roundel_fs::read(&path).await.unwrap(), b"text");
    });
}

/// Offsets that mean something else to the kernel, and ends that no file has, are refused
/// before anything happens, and the buffer comes back.
#[test]
fn h17_impossible_ranges_are_refused() {
    in_each_mode(async |folder, reactor| {
        let file = File::create_new(folder.join("file")).await.unwrap();
        let before = reactor.counters().snapshot().submitted;
        for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64 - 2] {
            let (result, buf) = file.write_at("text", offset).await;
            let error = result.unwrap_err();
            assert_eq!((error.kind(), buf), (ErrorKind::InvalidInput, "text"));
            assert!(error.to_string().contains("offset"), "{error}");
            let (result, buf) = file.write_all_at("text", offset).await;
            assert_eq!(
                (result.unwrap_err().kind(), buf),
                (ErrorKind::InvalidInput, "text")
            );
            let (result, buf) = file.read_at(vec![1; 4], offset).await;
            assert_eq!(
                (result.unwrap_err().kind(), buf),
                (ErrorKind::InvalidInput, vec![1; 4])
            );
            let (result, buf) = file.read_exact_at(vec![1; 4], offset).await;
            assert_eq!(
                (result.unwrap_err().kind(), buf),
                (ErrorKind::InvalidInput, vec![1; 4])
            );
            let (result, buf) = file.reader_at(offset).read(vec![1; 4]).await;
            assert_eq!(
                (result.unwrap_err().kind(), buf),
                (ErrorKind::InvalidInput, vec![1; 4])
            );
            let (result, buf) = file.writer_at(offset).write("text").await;
            assert_eq!(
                (result.unwrap_err().kind(), buf),
                (ErrorKind::InvalidInput, "text")
            );
        }
        assert_eq!(reactor.counters().snapshot().submitted, before);
        assert_eq!(file.metadata().await.unwrap().len(), 0);
    });
}

/// A capacity beyond 32 bits reads what there is, and not nothing.
#[test]
fn h17_long_buffers_are_not_wrapped() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, "1234").unwrap();
        let file = File::open(&path).await.unwrap();
        // The memory is asked for and never touched.
        let (result, buf) = file.read_at(Vec::with_capacity(1 << 32), 0).await;
        assert_eq!(result.unwrap(), 4);
        assert_eq!(buf, b"1234");
        let (result, buf) = file.read_exact_at(buf, 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf, b"1234");
    });
}

/// Files opened to append have no offsets to write at; their writer appends.
#[test]
fn h18_append_refuses_offsets() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, "head").unwrap();
        let ours = File::options().append(true).open(&path).await.unwrap();
        let std = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        let taken_over = File::from_std(std);
        for file in [ours, taken_over] {
            for _ in 0..3 {
                let (result, buf) = file.write_at("x", 1).await;
                let error = result.unwrap_err();
                assert_eq!((error.kind(), buf), (ErrorKind::InvalidInput, "x"));
                assert!(error.to_string().contains("writer"), "the remedy: {error}");
                let (result, _) = file.write_all_at("x", 1).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
            }
            let writer = file.writer();
            for _ in 0..3 {
                writer.write_all("y").await.0.unwrap();
            }
            assert_eq!(writer.position(), 3);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"headyyyyyy");
    });
}

/// The end of a file is a count or an error, at once.
#[test]
fn h19_the_end_is_no_loop() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, pattern(100)).unwrap();
        let file = File::open(&path).await.unwrap();
        let (result, buf) = file.read_at(vec![9; 200], 100).await;
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
        let (result, buf) = file.read_at(vec![9; 200], 50).await;
        assert_eq!((result.unwrap(), buf.as_slice()), (50, &pattern(100)[50..]));

        let (result, buf) = file.read_exact_at(vec![9; 200], 0).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("100 of 200"), "{error}");
        assert_eq!(buf, pattern(100), "what arrived, and no more");
        let (result, buf) = file.read_exact_at(vec![9; 200], 100).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(buf.is_empty());

        let (result, buf) = file.read_exact_at(vec![9; 60], 40).await;
        result.unwrap();
        assert_eq!(buf, pattern(100)[40..]);
        let (result, _) = file.read_exact_at(Vec::new(), 500).await;
        result.unwrap();
    });
}

/// A reused buffer has what was read last, and nothing older.
#[test]
fn h52_a_reused_buffer_has_no_stale_bytes() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, pattern(2010)).unwrap();
        let file = File::open(&path).await.unwrap();
        let (result, buf) = file.read_at(vec![0; 2000], 0).await;
        assert_eq!((result.unwrap(), buf.len()), (2000, 2000));
        let (result, buf) = file.read_at(buf, 2000).await;
        assert_eq!(result.unwrap(), 10);
        let (result, buf) = roundel_fs::write(folder.join("copy"), buf).await;
        result.unwrap();
        assert_eq!(buf.len(), 10);
        assert_eq!(
            std::fs::read(folder.join("copy")).unwrap(),
            pattern(2010)[2000..]
        );
    });
}

/// A read into a part of a buffer leaves the rest of it alone.
#[test]
fn parts_of_buffers_are_filled() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, "0123456789").unwrap();
        let file = File::open(&path).await.unwrap();
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"head");
        let (result, part) = file.read_exact_at(buf.slice_mut(4..12), 2).await;
        result.unwrap();
        assert_eq!(part.into_inner(), b"head23456789");
        let (result, part) = file
            .read_exact_at(b"____".to_vec().slice_mut(1..3), 0)
            .await;
        result.unwrap();
        assert_eq!(part.into_inner(), b"_01_");
    });
}

/// A write that the kernel cuts short goes on behind it and ends with the true error (the
/// limit on file sizes is a mebibyte here, and its signal is ignored).
#[test]
fn h15_a_short_write_is_not_a_full_one() {
    if !is_child() {
        // In blocks of 512 bytes or of 1,024, as the shell has it: 1 MiB or 2 MiB.
        return alone(
            "h15_a_short_write_is_not_a_full_one",
            "trap '' XFSZ; ulimit -f 2048",
        );
    }
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        let file = File::create_new(&path).await.unwrap();
        let bytes = pattern(3 << 20);
        let (result, bytes) = file.write_at(bytes, 0).await;
        let short = result.unwrap();
        assert!(short < bytes.len(), "{short} bytes are a short count");
        let (result, bytes) = file.write_all_at(bytes, 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(bytes.len(), 3 << 20);
        let (result, bytes) = file.writer().write_all(bytes).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::FileTooLarge);
        // From the end of the room on, so that the first part fits: it is not written twice.
        let (result, bytes) = file.write_all_at(bytes, short as u64 - 100).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::FileTooLarge);
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len(), short);
        assert_eq!(written[..short - 100], bytes[..short - 100]);
        assert_eq!(written[short - 100..], bytes[..100]);
    });
}

/// A device without room says so.
#[test]
fn a_full_device_is_an_error() {
    in_each_mode(async |_, _| {
        let full = File::options().write(true).open("/dev/full").await.unwrap();
        let (result, buf) = full.write_all_at("text", 0).await;
        assert_eq!(
            (result.unwrap_err().kind(), buf),
            (ErrorKind::StorageFull, "text")
        );
        let (result, buf) = full.writer().write_all("text").await;
        assert_eq!(
            (result.unwrap_err().kind(), buf),
            (ErrorKind::StorageFull, "text")
        );
    });
}

/// Lengths are set both ways; what cannot be is refused.
#[test]
fn lengths_are_set() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, "0123456789").unwrap();
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .await
            .unwrap();
        file.set_len(4).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123");
        file.set_len(6).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123\0\0");
        for len in [u64::MAX, i64::MAX as u64 + 1] {
            assert_eq!(
                file.set_len(len).await.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
        let file = File::open(&path).await.unwrap();
        assert_eq!(
            file.set_len(0).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    });
}

/// Metadata is what std says it is, of files, folders, links and devices.
#[test]
fn metadata_is_stds() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        std::fs::write(&path, pattern(5000)).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [path.as_path(), link.as_path(), folder, "/dev/null".as_ref()] {
            let ours = roundel_fs::metadata(path).await.unwrap();
            assert_same(&ours, &std::fs::metadata(path).unwrap());
            let ours = roundel_fs::symlink_metadata(path).await.unwrap();
            assert_same(&ours, &std::fs::symlink_metadata(path).unwrap());
        }
        let file = File::open(&path).await.unwrap();
        assert_same(
            &file.metadata().await.unwrap(),
            &std::fs::metadata(&path).unwrap(),
        );

        let error = roundel_fs::metadata(folder.join("missing"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().starts_with("stat "), "{error}");
    });
}

fn assert_same(ours: &roundel_fs::Metadata, theirs: &std::fs::Metadata) {
    assert_eq!(ours.len(), theirs.len());
    assert_eq!(ours.is_file(), theirs.is_file());
    assert_eq!(ours.is_dir(), theirs.is_dir());
    assert_eq!(ours.is_symlink(), theirs.is_symlink());
    assert_eq!(ours.permissions(), theirs.permissions());
    assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
    assert_eq!(ours.accessed().unwrap(), theirs.accessed().unwrap());
    assert_eq!(ours.created().ok(), theirs.created().ok());
    assert_eq!(ours.dev(), theirs.dev());
    assert_eq!(ours.ino(), theirs.ino());
    assert_eq!(ours.mode(), theirs.mode());
    assert_eq!(ours.nlink(), theirs.nlink());
    assert_eq!((ours.uid(), ours.gid()), (theirs.uid(), theirs.gid()));
    assert_eq!(ours.blocks(), theirs.blocks());
    assert_eq!(ours.blksize(), theirs.blksize());
}

/// Descriptors come from std and can be lent to it.
#[test]
fn std_and_roundel_share_descriptors() {
    in_each_mode(async |folder, _| {
        let path = folder.join("file");
        let file = File::from(std::fs::File::create_new(&path).unwrap());
        file.write_all_at("text", 0).await.0.unwrap();
        let clone = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(clone.metadata().unwrap().len(), 4);
    });
}
