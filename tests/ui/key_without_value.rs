//! A key without its value.

#[roundel::main(cores)]
async fn main() {}
