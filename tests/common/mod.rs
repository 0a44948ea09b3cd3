//! What the tests of tasks and timers share.

/// Has the ring serve something once, as `Case` demands, in tests that need none.
pub async fn use_the_ring() {
    let opened = roundel::fs::File::open("/dev/null").await;
    drop(opened.expect("it is always there"));
}
