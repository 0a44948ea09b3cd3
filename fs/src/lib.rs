//! Files on the ring: std's names and meanings, as operations of io_uring.
//!
//! A [`File`] is read and written at offsets; its [`Reader`] and [`Writer`] go in order,
//! each with a position of its own. [`read()`], [`write()`] and [`metadata`] take a path.
//! All of it runs on the shard of the thread it is called on, and needs no other thread
//! where the kernel has the operation.
//!
//! ```
//! # use std::{future::Future, pin::pin, rc::Rc, task::{Context, Poll, Waker}};
//! # use roundel_reactor::{Reactor, RingConfig, Wait, current};
//! # fn block_on<F: Future>(reactor: &Rc<Reactor>, future: F) -> F::Output {
//! #     let _entered = current::enter(reactor.clone());
//! #     let mut future = pin!(future);
//! #     let mut cx = Context::from_waker(Waker::noop());
//! #     loop {
//! #         if let Poll::Ready(output) = future.as_mut().poll(&mut cx) { return output; }
//! #         reactor.enter(Wait::Forever).expect("the ring works");
//! #         reactor.reap();
//! #     }
//! # }
//! # let path = std::env::temp_dir().join(format!("roundel-fs-{}", std::process::id()));
//! # let reactor = Reactor::new(&RingConfig::default())?;
//! # block_on(&reactor, async {
//! use roundel_fs as fs;
//!
//! let (result, _text) = fs::write(&path, "some text").await;
//! result?;
//! assert_eq!(fs::read_to_string(&path).await?, "some text");
//! # std::io::Result::Ok(())
//! # })?;
//! # std::fs::remove_file(path)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Calls
//!
//! | call | ring operation | Linux | dropping its future |
//! |---|---|---|---|
//! | [`File::open`], [`create`](File::create), [`create_new`](File::create_new), [`OpenOptions::open`] | `OPENAT` | 5.6 | cancels; a file opened all the same is closed, but stays created or emptied |
//! | [`File::read_at`], [`read_exact_at`](File::read_exact_at) | `READ` | 5.6 | cancels; the buffer is freed when the kernel is done with it |
//! | [`File::write_at`], [`write_all_at`](File::write_all_at) | `WRITE` | 5.6 | cancels; all, a part or nothing was written |
//! | [`File::sync_all`], [`sync_data`](File::sync_data) | `FSYNC` | 5.1 | cancels; it may have been done |
//! | [`File::set_len`] | `FTRUNCATE`, else the pool (`ftruncate(2)`) | 6.9 | cancels; it may have been done |
//! | [`File::metadata`], [`metadata()`], [`symlink_metadata`] | `STATX` | 5.6 | cancels; nothing changes |
//! | [`File::close`] | `CLOSE` | 5.6 | the file is unusable, and closed with its last handle |
//! | [`Reader::read`] | `READ` | 5.6 | the read goes on for the next call; no byte is lost |
//! | [`Reader::read_exact`], [`read_to_end`](Reader::read_to_end) | `READ` | 5.6 | loses what came before the read in flight |
//! | [`Writer::write`], [`write_all`](Writer::write_all) | `WRITE` | 5.6 | cancels; the next write waits for its end and goes on behind it |
//! | [`read()`], [`read_to_string`] | `OPENAT`, `STATX`, `READ` | 5.6 | ends; a regular file is as it was |
//! | [`write()`] | `OPENAT`, `WRITE` | 5.6 | ends; the file may be empty or written in part |
//!
//! # Errors
//!
//! Calls on an open file return the kernel's error as it is. Calls that are given a path
//! name the path and what was tried; the [`io::ErrorKind`](std::io::ErrorKind) stays, and
//! [`PathError`] has the errno.
//!
//! Lengths have no limit but memory: what exceeds the 2 GiB the kernel moves at once is cut
//! by `read_at`, `write_at`, `read` and `write`, which return how far they came, and moved
//! in parts by the others.

mod file;
mod metadata;
mod open_options;
mod path_error;
mod stream;
mod transfer;
mod whole;

pub use file::File;
pub use metadata::{FileType, Metadata};
pub use open_options::OpenOptions;
pub use path_error::PathError;
pub use stream::{Reader, Writer};
pub use whole::{metadata, read, read_to_string, symlink_metadata, write};
