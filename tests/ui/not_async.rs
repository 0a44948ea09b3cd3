//! A function without `async`.

#[roundel::main]
fn main() {}
