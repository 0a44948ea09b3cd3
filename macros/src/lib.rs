//! The attributes `#[roundel::main]` and `#[roundel::test]`: an `async fn` becomes an ordinary
//! function that starts a runtime and waits for it.
//!
//! Use them through the facade, as `roundel::main` and `roundel::test`: what they expand to names
//! nothing but the facade. This crate holds no part of the runtime and depends on none of it.
//!
//! # How it works
//!
//! `options.rs` reads the keys of the attribute, `function.rs` reads the function, and `expand.rs`
//! writes one function from the two. The user's function stays as it was written, an `async fn` of
//! the same name, inside the function that replaces it. So its types, its `?` and its errors are
//! checked against the signature the user wrote, and nothing that the expansion declares can be
//! seen from the body.

mod expand;
mod function;
mod options;

use expand::Attribute;

/// Runs an `async fn main` on a runtime.
///
/// The body runs **once**, on shard 0, which is the thread that called `main`. The other shards
/// serve what is sent to them: `spawn_on`, `spawn_any`, or a listener that is shared among the
/// shards. When the body returns the runtime is dropped, which ends what is still running within
/// 500 ms.
///
/// ```text
/// #[roundel::main]
/// async fn main() -> std::io::Result<()> {
///     let text = roundel::fs::read_to_string("/etc/hostname").await?;
///     print!("{text}");
///     Ok(())
/// }
/// ```
///
/// # Keys
///
/// All are optional, in any order: `#[roundel::main(cores = 2, ring = "defer")]`.
///
/// | key | value | without it |
/// |---|---|---|
/// | `cores` | `"all"`, a number of cores such as `2`, or a list of CPU numbers such as `[0, 1]` | `"all"`: each CPU the process may use |
/// | `ring` | `"auto"`, `"sqpoll"` or `"defer"`: the mode of the shards' rings | `"auto"` |
/// | `entries` | a number: entries in the submission queue of a ring | the builder's default |
/// | `name` | a string: what the runtime's threads are called | the builder's default |
/// | `crate` | a string: the path under which roundel is found, for a crate that re-exports it | `"::roundel"` |
///
/// `"auto"` takes what the machine offers. Each other mode is a requirement: where it cannot be
/// had, the program says why and ends.
///
/// For a setting that has no key here, write an ordinary `main` with `roundel::Builder`.
///
/// # Result
///
/// The function keeps its return type. `Result<(), E>` works as it does for an ordinary `main`: an
/// `Err` is printed and the exit code is 1.
///
/// # Errors
///
/// If the runtime cannot be built (no io_uring, a limit on locked memory, CPUs that do not exist),
/// the reason is printed on standard error and the process exits with code 1.
///
/// These do not compile: a key that is unknown or given twice, a value of the wrong kind, and a
/// function that is not `async`, takes arguments, or has generics.
///
/// # Panics
///
/// A panic of the body is an ordinary panic of `main`. Calling the function from within a runtime
/// panics, as one shard cannot wait inside another.
#[proc_macro_attribute]
pub fn main(
    keys: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand::expand(Attribute::Main, keys.into(), item.into()).into()
}

/// Makes a test of an `async fn`.
///
/// Each test has a runtime of its own, so tests do not see each other's tasks, timers or
/// descriptors, and may run at the same time as usual. By default that runtime has **one** shard,
/// which is not pinned to a CPU.
///
/// ```text
/// #[roundel::test]
/// async fn a_pause_lasts_as_long_as_asked() {
///     let pause = std::time::Duration::from_millis(5);
///     let start = std::time::Instant::now();
///     roundel::time::sleep(pause).await;
///     assert!(start.elapsed() >= pause);
/// }
///
/// #[roundel::test(cores = 2)]
/// #[should_panic(expected = "on purpose")]
/// async fn a_panic_is_seen() {
///     panic!("on purpose");
/// }
/// ```
///
/// The attribute adds the standard `#[test]`, so there must be none on the function. Others, such
/// as `#[should_panic]` or `#[cfg(...)]`, stay and mean what they always mean.
///
/// # Keys
///
/// Those of [`main`](macro@main). Only the default of `cores` is another one: `1`.
///
/// # Result
///
/// The function keeps its return type: with `Result<(), E>` a test fails by returning `Err`.
///
/// # Errors
///
/// If the runtime cannot be built, the reason is printed on standard error and the test process
/// exits with code 1: no test of this kind could tell more.
///
/// These do not compile: what does not compile for [`main`](macro@main), and a second `#[test]`.
#[proc_macro_attribute]
pub fn test(
    keys: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand::expand(Attribute::Test, keys.into(), item.into()).into()
}
