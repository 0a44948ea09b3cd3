//! A runtime that has nothing to do costs nothing (P11, H37).

use std::future::pending;
use std::time::Duration;

use roundel::time::sleep;
use roundel::{Cores, Handle, on_each_shard, spawn, spawn_blocking};
use roundel_testing::{Case, cpu_time, every_mode};

/// How long a runtime is watched, and what it may use: a hundredth of one core, all threads together.
const WATCHED: Duration = Duration::from_secs(3);
const ALLOWED: Duration = Duration::from_millis(30);
/// Turns of a shard's loop meanwhile. One that woke up now and then for nothing would need more, and
/// be seen here however short its turns are.
const TURNS: u64 = 20;

/// Sets a runtime of two shards up, then watches it do nothing.
fn watch(case: &Case, prepare: fn()) {
    case.run_on(case.builder().cores(Cores::Count(2)), async move {
        for task in on_each_shard(move || async move {
            prepare();
            // What was prepared stands, and a kernel poller has gone to sleep.
            sleep(Duration::from_millis(200)).await;
        }) {
            task.await.unwrap();
        }
        let handle = Handle::current();
        let turns = || {
            handle
                .metrics()
                .iter()
                .map(|shard| shard.tasks.turns)
                .sum::<u64>()
        };
        let before = (cpu_time(), turns());
        sleep(WATCHED).await;
        let used = (cpu_time() - before.0, turns() - before.1);
        assert!(
            used.0 < ALLOWED,
            "{:?} of CPU time in {WATCHED:?} of nothing",
            used.0
        );
        assert!(used.1 < TURNS, "{} turns in {WATCHED:?} of nothing", used.1);
    });
}

/// An idle runtime uses under a hundredth of a core; watched for some seconds in every mode.
#[test]
fn h37_an_idle_runtime_uses_no_cpu() {
    every_mode(|case| watch(case, || {}));
}

/// The same with a thousand sleeping tasks on each shard.
#[test]
fn h37_sleeping_tasks_use_no_cpu() {
    every_mode(|case| {
        watch(case, || {
            for number in 0..1_000 {
                drop(spawn(sleep(Duration::from_secs(3600 + number))));
            }
        });
    });
}

/// The same with tasks that wait for each other, an accept in flight, and a pool that had work.
#[test]
fn h37_waiting_tasks_use_no_cpu() {
    every_mode(|case| {
        watch(case, || {
            drop(spawn(async { spawn(pending::<()>()).await }));
            drop(spawn_blocking(|| ()));
            drop(spawn(async {
                let listener = roundel::net::TcpListener::bind("127.0.0.1:0")
                    .await
                    .unwrap();
                let _ = listener.accept().await;
                unreachable!("nobody connects");
            }));
        });
    });
}
