//! A function that takes arguments.

#[roundel::main]
async fn main(arguments: Vec<String>) {
    println!("{arguments:?}");
}
