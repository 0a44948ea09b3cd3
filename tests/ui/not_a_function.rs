//! An item that is no function.

#[roundel::main]
struct Main;

fn main() {}
