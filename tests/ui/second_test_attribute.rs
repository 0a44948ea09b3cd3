//! The standard test attribute beside ours.

#[roundel::test]
#[test]
async fn works() {}

fn main() {}
