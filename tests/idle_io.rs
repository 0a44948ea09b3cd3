//! An idle program uses no CPU, however many connections it has (P11, H37).

use std::io::{Read, Write};
use std::net::TcpStream as StdStream;
use std::time::Duration;

use roundel::net::{TcpListener, TcpStream};
use roundel::time::sleep;
use roundel_testing::{Case, PATIENCE, cpu_time, every_mode, scaled};

const CONNECTIONS: usize = 1_000;

/// A thousand open connections, each waited on by a task that has served it, cost less than
/// a hundredth of one core while nothing comes, all threads of the process together, a
/// poller of the kernel's among them; then they go on as if nothing had been.
#[test]
fn a_thousand_idle_connections_cost_nothing() {
    every_mode(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = roundel::spawn(async move {
                let mut incoming = listener.incoming();
                // Ends: when it is aborted.
                loop {
                    let stream = incoming.next().await.unwrap().unwrap();
                    drop(roundel::spawn(echo(stream)));
                }
            });
            let clients = roundel::spawn_blocking(move || {
                let mut clients: Vec<StdStream> = (0..CONNECTIONS)
                    .map(|_| StdStream::connect(address).unwrap())
                    .collect();
                clients.iter_mut().for_each(ask);
                clients
            });
            let mut clients = clients.await.unwrap();
            idle(case).await;
            let asked = roundel::spawn_blocking(move || clients.iter_mut().for_each(ask));
            asked.await.unwrap();
            serving.abort();
            assert!(serving.await.unwrap_err().is_cancelled());
        });
    });
}

async fn idle(case: &Case) {
    // What has just run may still be on its way to sleep: a poller stays awake a little, and
    // so does an idle worker of the pool.
    sleep(Duration::from_millis(500)).await;
    let window = Duration::from_secs(if scaled(50) == 50 { 5 } else { 2 });
    let before = cpu_time();
    sleep(window).await;
    let burnt = cpu_time() - before;
    assert!(
        burnt < window / 100,
        "{:?}: {burnt:?} of CPU in {window:?}",
        case.mode()
    );
}

async fn echo(stream: TcpStream) {
    let mut buf = Vec::with_capacity(64);
    // Ends: with the client.
    loop {
        let (result, read) = stream.read(buf).await;
        if result.unwrap() == 0 {
            return;
        }
        let (result, written) = stream.write_all(read).await;
        result.unwrap();
        buf = written;
    }
}

fn ask(client: &mut StdStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"there?").unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"there?");
}
