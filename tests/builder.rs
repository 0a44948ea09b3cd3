//! What can be set, what cannot be had, and that a build that fails leaves nothing behind.

use std::io::ErrorKind;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use roundel::time::sleep;
use roundel::{Builder, Cores, RingMode, Runtime, on_each_shard, spawn_blocking};
use roundel_testing::{Lowered, descriptors, in_defer, threads};

fn error(builder: Builder) -> std::io::Error {
    match builder.build() {
        Ok(_) => panic!("this cannot be had"),
        Err(error) => error,
    }
}

/// Settings that cannot be are refused with the remedy, and nothing is started; provoked one by one.
#[test]
fn impossible_settings_are_refused() {
    in_defer(|case| {
        let before = (threads(), descriptors());
        let refused = [
            (
                case.builder().cores(Cores::Count(0)),
                "ask for one core or more",
            ),
            (case.builder().cores(Cores::Count(100_000)), "are too many"),
            (
                case.builder().cores(Cores::List(vec![])),
                "name one CPU or more",
            ),
            (
                case.builder().cores(Cores::List(vec![0, 1_000])),
                "CPU 1000 does not exist",
            ),
            (
                case.builder().cores(Cores::List(vec![usize::MAX])),
                "does not exist",
            ),
            (case.builder().entries(0), "at least one entry"),
            (
                case.builder().cores(Cores::Count(2)).name("a\0b"),
                "zero byte",
            ),
        ];
        for (builder, expected) in refused {
            let setting = format!("{builder:?}");
            let error = error(builder);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{setting}: {error}");
            assert!(error.to_string().contains(expected), "{setting}: {error}");
            assert_eq!((threads(), descriptors()), before, "{setting}");
        }
    });
}

/// A build that fails in the middle leaves no thread and no descriptor behind when it returns; provoked
/// by a limit of descriptors that suffices for some of the shards.
#[test]
fn a_build_that_fails_in_the_middle_leaves_nothing() {
    in_defer(|case| {
        let before = (threads(), descriptors());
        for room in 0..24 {
            let lowered = Lowered::descriptors(before.1 + room);
            let built = case.builder().cores(Cores::Count(16)).build();
            let after = (threads(), descriptors());
            drop(lowered);
            let error = built.map(drop).expect_err("sixteen shards need more");
            assert_eq!(after, before, "with room for {room}: {error}");
        }
        // And afterwards it works.
        case.run_on(
            case.builder().cores(Cores::Count(16)),
            sleep(Duration::from_millis(1)),
        );
    });
}

/// Threads bear the runtime's name and a number, and the hooks run on each shard's own thread, before
/// its first task and after its last.
#[test]
fn names_and_hooks() {
    in_defer(|case| {
        let trace = Arc::new(Mutex::new(Vec::<(&'static str, Option<String>)>::new()));
        let note = |what: &'static str| {
            let trace = trace.clone();
            move || {
                let name = thread::current().name().map(str::to_owned);
                trace.lock().unwrap().push((what, name));
            }
        };
        let builder = case
            .builder()
            .cores(Cores::Count(3))
            .name("proxy")
            .on_thread_start(note("start"))
            .on_thread_stop(note("stop"));
        let here = thread::current().name().map(str::to_owned);
        let task = note("task");
        case.run_on(builder, async move {
            for task in on_each_shard(move || async move { task() }) {
                task.await.unwrap();
            }
            let worker = spawn_blocking(|| thread::current().name().map(str::to_owned));
            let worker = worker.await.unwrap().unwrap();
            assert!(worker.starts_with("proxy-b"), "{worker}");
        });
        let trace = trace.lock().unwrap();
        for name in [here, Some("proxy-1".into()), Some("proxy-2".into())] {
            let own: Vec<_> = trace.iter().filter(|(_, on)| *on == name).collect();
            let own: Vec<_> = own.into_iter().map(|(what, _)| *what).collect();
            assert_eq!(own, ["start", "task", "stop"], "on {name:?}");
        }
        assert_eq!(trace.len(), 9);
    });
}

const CHILD: &str = "ROUNDEL_TEST_BUILDER_CHILD";

/// Runs one test of this binary once more, with `ROUNDEL_RING` as it says.
fn with_ring(test: &str, ring: &std::ffi::OsStr) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("ROUNDEL_RING", ring)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ROUNDEL_RING={ring:?}: {said}");
}

/// The environment takes the place of `Auto`, and of no other mode.
#[test]
fn the_environment_replaces_auto_only() {
    if std::env::var_os(CHILD).is_some() {
        let one = || Builder::new().cores(Cores::Count(1));
        let report = one().build().unwrap().report();
        assert_eq!(report.mode, RingMode::SqPoll);
        assert_eq!(report.cpus, [None], "one shard is not pinned");
        let explicit = one().ring(RingMode::Defer).build().unwrap();
        assert_eq!(explicit.report().mode, RingMode::Defer);
        return;
    }
    with_ring("the_environment_replaces_auto_only", "sqpoll".as_ref());
}

/// A name in the environment that is none is refused, and named, also one that is no text; a mode that
/// was named in the program does not look there.
#[test]
fn nonsense_in_the_environment_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    if std::env::var_os(CHILD).is_some() {
        let error = Runtime::new().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(text.starts_with("ROUNDEL_RING is "), "{text}");
        assert!(text.ends_with("it may be auto, sqpoll or defer"), "{text}");
        let explicit = Builder::new().cores(Cores::Count(1)).ring(RingMode::Defer);
        assert_eq!(explicit.build().unwrap().report().mode, RingMode::Defer);
        return;
    }
    for nonsense in ["SQPOLL", "", "defer ", "1"] {
        with_ring("nonsense_in_the_environment_is_refused", nonsense.as_ref());
    }
    let no_text = std::ffi::OsStr::from_bytes(&[b'd', 0xff]);
    with_ring("nonsense_in_the_environment_is_refused", no_text);
}
