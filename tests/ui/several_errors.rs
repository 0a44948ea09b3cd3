//! Several mistakes, reported together.

#[roundel::main(speed = 9, entries = 0)]
fn main(argument: u8) {}
