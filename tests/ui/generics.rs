//! A function with generics.

#[roundel::main]
async fn main<T: Default>() {
    let _ = T::default();
}
