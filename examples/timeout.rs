//! Bounds a wait: a peer that never answers, and one that does.
//!
//! The timed-out read loses nothing. What arrives later belongs to the stream, and the next
//! read gets it.

use std::time::Duration;

use roundel::net::{TcpListener, TcpStream};
use roundel::time::{sleep, timeout};

const USAGE: &str = "usage: timeout [MILLISECONDS]

Waits so long (default 100) for a peer that says nothing yet, then reads what it says later.";

#[roundel::main(cores = 1)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let patience = match std::env::args().nth(1) {
        None => 100,
        Some(text) if text == "--help" => {
            println!("{USAGE}");
            return Ok(());
        }
        Some(text) => text
            .parse()
            .map_err(|_| format!("{text:?} is no number of milliseconds\n\n{USAGE}"))?,
    };
    let patience = Duration::from_millis(patience);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let peer = roundel::spawn(async move {
        let (stream, _) = listener.accept().await?;
        sleep(patience * 2).await;
        stream.write_all("at last").await.0
    });

    let stream = TcpStream::connect(address).await?;
    match timeout(patience, stream.read(Vec::with_capacity(64))).await {
        Ok((result, _)) => println!("{} bytes in time", result?),
        Err(elapsed) => println!("nothing after {patience:?}: {elapsed}"),
    }
    let (result, late) = stream.read(Vec::with_capacity(64)).await;
    println!(
        "{} bytes later: {}",
        result?,
        String::from_utf8_lossy(&late)
    );
    peer.await??;
    Ok(())
}
