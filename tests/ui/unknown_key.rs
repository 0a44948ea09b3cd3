//! A key that does not exist.

#[roundel::main(threads = 4)]
async fn main() {}
