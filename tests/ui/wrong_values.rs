//! A wrong value for each key.

#[roundel::test(cores = "every")]
async fn cores_word() {}

#[roundel::test(cores = 0)]
async fn cores_none() {}

#[roundel::test(cores = [0, 0])]
async fn cores_twice() {}

#[roundel::test(ring = "epoll")]
async fn ring() {}

#[roundel::test(entries = "many")]
async fn entries_word() {}

#[roundel::test(entries = 0)]
async fn entries_none() {}

#[roundel::test(name = 7)]
async fn name() {}

#[roundel::test(crate = roundel)]
async fn path() {}

fn main() {}
