//! The smallest program: a task, a timer, and a file.

use std::time::Duration;

#[roundel::main(cores = 1)]
async fn main() -> std::io::Result<()> {
    if std::env::args().nth(1).is_some() {
        println!("usage: hello\n\nSays hello from a task, and which kernel it runs on.");
        return Ok(());
    }
    let task = roundel::spawn(async {
        roundel::time::sleep(Duration::from_millis(1)).await;
        "hello from a task"
    });
    let release = roundel::fs::read_to_string("/proc/sys/kernel/osrelease").await?;
    let greeting = task.await.map_err(std::io::Error::from)?;
    println!("{greeting}, on Linux {}", release.trim());
    Ok(())
}
