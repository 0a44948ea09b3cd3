//! A key given twice.

#[roundel::main(cores = 1, ring = "auto", cores = 2)]
async fn main() {}
