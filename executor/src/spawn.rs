//! Starting things from inside: tasks here and elsewhere, blocking jobs, a pause.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};

use roundel_blocking_pool::current::deliver;
use roundel_blocking_pool::{Account, Full, Pool};

use crate::current;
use crate::handle::Handle;
use crate::join::{Id, JoinHandle, SendJoinHandle};
use crate::task;

/// Spawns a task on this shard. Its future need not be `Send`, and never leaves the shard.
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// let shared = std::rc::Rc::new(41);
/// let task = roundel_executor::spawn(async move { *shared + 1 });
/// assert_eq!(task.await.unwrap(), 42);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let owner = current::owner().expect(current::NO_SHARD);
    JoinHandle::new(task::spawn_local(owner, future))
}

/// Spawns a task on the shard with this number: `make` runs there and makes the future,
/// which need not be `Send`.
///
/// # Panics
///
/// If no shard runs on this thread, or there is no shard of that number.
pub fn spawn_on<C, F>(shard: usize, make: C) -> SendJoinHandle<F::Output>
where
    C: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    Handle::current().spawn_on(shard, make)
}

/// Spawns a task on some shard, one after the other.
///
/// # Panics
///
/// If no shard runs on this thread.
pub fn spawn_any<C, F>(make: C) -> SendJoinHandle<F::Output>
where
    C: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    Handle::current().spawn(make)
}

/// Spawns a task on each shard, in the order of their numbers.
///
/// # Panics
///
/// If no shard runs on this thread.
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(2)).build()?.block_on(async {
/// let mut numbers = Vec::new();
/// for task in roundel_executor::on_each_shard(|| async { roundel_executor::shard() }) {
///     numbers.push(task.await.unwrap());
/// }
/// assert_eq!(numbers, [0, 1]);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn on_each_shard<C, F>(make: C) -> Vec<SendJoinHandle<F::Output>>
where
    C: FnOnce() -> F + Clone + Send + 'static,
    F: Future + 'static,
    F::Output: Send,
{
    let handle = Handle::current();
    (0..handle.shards())
        .map(|shard| handle.spawn_on(shard, make.clone()))
        .collect()
}

/// The number of the shard that runs on this thread.
///
/// # Panics
///
/// If no shard runs on this thread.
pub fn shard() -> usize {
    current::with(|shard| shard.home().index).expect(current::NO_SHARD)
}

/// Runs a closure that may block on the pool's unbound account, and gives its value.
///
/// Inside the closure there is no shard: to spawn tasks from it, take [`Handle::current`]
/// along. [`spawn_blocking`] itself works there.
///
/// While the account is full the job waits for room when it is awaited. Dropping the handle
/// detaches the job; [`abort`](SendJoinHandle::abort) takes it back if it has not begun. A
/// job that never returns is abandoned at shutdown, and named.
///
/// # Panics
///
/// If no shard runs on this thread, unless it is one of the pool's workers.
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// let sum = roundel_executor::spawn_blocking(|| (1..=1_000_u64).sum::<u64>());
/// assert_eq!(sum.await.unwrap(), 500_500);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn spawn_blocking<F, T>(f: F) -> SendJoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let job = pool().submit(Account::Unbound, deliver(), f);
    SendJoinHandle::of_job(job, Id::next())
}

/// As [`spawn_blocking`], but with a full account the closure comes back at once: for who
/// would rather shed work than wait.
///
/// # Errors
///
/// The closure, if there is no room, no worker can be started, or the runtime has ended.
///
/// # Panics
///
/// If no shard runs on this thread, unless it is one of the pool's workers.
pub fn try_spawn_blocking<F, T>(f: F) -> Result<SendJoinHandle<T>, Full<F>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let job = pool().try_submit(Account::Unbound, deliver(), f)?;
    Ok(SendJoinHandle::of_job(job, Id::next()))
}

/// As [`spawn_blocking`], but closures with equal keys run one at a time, in the order of
/// these calls, also when a handle was dropped; closures with other keys are not held up
/// (M11). A closure that panics or is aborted does not stop those behind it.
///
/// A closure must not wait for one of its own key.
///
/// # Panics
///
/// If no shard runs on this thread, unless it is one of the pool's workers.
///
/// ```
/// # roundel_executor::Builder::new().cores(roundel_executor::Cores::Count(1)).build()?.block_on(async {
/// use std::sync::{Arc, Mutex};
///
/// let log = Arc::new(Mutex::new(Vec::new()));
/// let (first, second) = (log.clone(), log.clone());
/// roundel_executor::spawn_serial("log", move || first.lock().unwrap().push(1));
/// roundel_executor::spawn_serial("log", move || second.lock().unwrap().push(2)).await.unwrap();
/// assert_eq!(*log.lock().unwrap(), [1, 2]);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn spawn_serial<K, F, T>(key: K, f: F) -> SendJoinHandle<T>
where
    K: Hash,
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let job = pool().submit_serial(Account::Unbound, key, deliver(), f);
    SendJoinHandle::of_job(job, Id::next())
}

/// The blocking pool of the runtime whose shard, or whose worker, this thread is.
///
/// # Panics
///
/// If it is neither.
pub fn pool() -> Pool {
    roundel_blocking_pool::current::pool().expect(current::NO_SHARD)
}

/// Lets every other ready task run once before this one goes on.
///
/// Dropping this future does nothing.
pub async fn yield_now() {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.0 {
                return Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Yield(false).await;
}
