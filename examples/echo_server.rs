//! Sends everything back: one listener and one accept loop on each shard.

use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{Either, select};
use roundel::net::{TcpListener, TcpStream};
use roundel::{Builder, Cores, RingMode, Runtime};

const USAGE: &str = "usage: echo_server [--addr ADDR] [--cores N] [--mode auto|sqpoll|defer]

Sends everything back that it receives, until Ctrl-C or SIGTERM.

  --addr ADDR   address and port to listen at, port 0 for any (default 127.0.0.1:7777)
  --cores N     how many shards (default: one for each CPU)
  --mode MODE   which ring: auto, sqpoll (a kernel thread polls), defer (default auto)";
const BUFFER: usize = 16 * 1024;

fn main() {
    let options = match Options::from_args(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return println!("{USAGE}"),
        Err(error) => fail(&format!("{error}\n\n{USAGE}")),
    };
    if let Err(error) = run(&options) {
        fail(&error.to_string());
    }
}

fn fail(text: &str) -> ! {
    eprintln!("echo_server: {text}");
    std::process::exit(1)
}

struct Options {
    address: SocketAddr,
    cores: Cores,
    mode: RingMode,
}

impl Options {
    /// `None` if only the usage is asked for.
    fn from_args(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Options {
            address: SocketAddr::from(([127, 0, 0, 1], 7777)),
            cores: Cores::All,
            mode: RingMode::Auto,
        };
        while let Some(option) = args.next() {
            if option == "--help" {
                return Ok(None);
            }
            let value = args.next().ok_or(format!("{option} needs a value"))?;
            let wrong = |what: &str| format!("{option} {value:?} is no {what}");
            match option.as_str() {
                "--addr" => {
                    options.address = value.parse().map_err(|_| wrong("address with a port"))?;
                }
                "--cores" => {
                    let count = value.parse().map_err(|_| wrong("number of shards"))?;
                    options.cores = Cores::Count(count);
                }
                "--mode" => {
                    options.mode = RingMode::from_name(&value).ok_or(wrong("mode"))?;
                }
                _ => return Err(format!("there is no option {option}")),
            }
        }
        Ok(Some(options))
    }
}

#[derive(Default)]
struct Totals {
    connections: AtomicU64,
    bytes: AtomicU64,
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new()
        .cores(options.cores.clone())
        .ring(options.mode)
        .name("echo")
        .build()?;
    let totals = Arc::new(Totals::default());
    runtime.block_on(serve_until_told(options.address, totals.clone()))?;
    summarise(&runtime, &totals);
    Ok(())
}

/// Shard 0 binds first, so that all shards share its port if any will do.
async fn serve_until_told(address: SocketAddr, totals: Arc<Totals>) -> Result<(), Box<dyn Error>> {
    let told = stop_signal();
    let listener = TcpListener::bind_reuseport(address).await?;
    let address = listener.local_addr()?;
    let mut ready = Vec::new();
    for shard in 1..roundel::Handle::current().shards() {
        let totals = totals.clone();
        ready.push(roundel::spawn_on(shard, move || async move {
            let listener = TcpListener::bind_reuseport(address).await?;
            roundel::spawn(serve(listener, totals));
            io::Result::Ok(())
        }));
    }
    for shard in ready {
        shard.await??;
    }
    roundel::spawn(serve(listener, totals));
    println!("listening on {address}");
    told.await?;
    Ok(())
}

/// Both are caught from here on, also before the future is first polled.
fn stop_signal() -> impl Future<Output = io::Result<()>> {
    let (interrupt, terminate) = (roundel::signal::ctrl_c(), roundel::signal::terminate());
    async {
        match select(std::pin::pin!(interrupt), std::pin::pin!(terminate)).await {
            Either::Left((told, _)) | Either::Right((told, _)) => told,
        }
    }
}

async fn serve(listener: TcpListener, totals: Arc<Totals>) {
    let mut incoming = listener.incoming();
    while let Some(accepted) = incoming.next().await {
        match accepted {
            Ok(stream) => {
                totals.connections.fetch_add(1, Ordering::Relaxed);
                let totals = totals.clone();
                roundel::spawn(async move {
                    let echoed = Cell::new(0);
                    // A client that vanishes is no concern of the others.
                    let _ = echo(&stream, &echoed).await;
                    totals.bytes.fetch_add(echoed.get(), Ordering::Relaxed);
                });
            }
            // The next accept waits a little if descriptors have run out.
            Err(error) => eprintln!("echo_server: accept: {error}"),
        }
    }
}

async fn echo(stream: &TcpStream, echoed: &Cell<u64>) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER);
    // Ends when the client has no more to send, or with an error.
    loop {
        let (result, received) = stream.read(buffer).await;
        let count = result?;
        if count == 0 {
            return Ok(());
        }
        let (result, sent) = stream.write_all(received).await;
        result?;
        echoed.set(echoed.get() + count as u64);
        buffer = sent;
    }
}

fn summarise(runtime: &Runtime, totals: &Totals) {
    let (mut operations, mut enters) = (0, 0);
    for shard in runtime.metrics() {
        operations += shard.ring.completed;
        enters += shard.ring.enters;
    }
    println!(
        "{} connections, {} bytes, {operations} operations, {enters} enters: {:.3} system calls \
         per operation",
        totals.connections.load(Ordering::Relaxed),
        totals.bytes.load(Ordering::Relaxed),
        enters as f64 / (operations.max(1)) as f64,
    );
}
