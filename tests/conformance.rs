//! One program with every kind of operation, which does the same in every mode.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use roundel::fs::{self, File, OpenOptions};
use roundel::net::{TcpListener, TcpSocket, TcpStream};
use roundel::sync::{Notify, mpsc, oneshot};
use roundel::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};
use roundel::{Cores, IoBuf, IoBufMut, JoinError, yield_now};
use roundel_testing::{GuardBuf, PATIENCE, TempDir, descriptors, every_mode, settled};

/// What the program says, line by line, whatever ring serves it.
const EXPECTED: &[&str] = &[
    "file: created, 11 bytes, Ok(5) \"world\", exact \"hello\"",
    "file: short Ok(6), end Ok(0), UnexpectedEof",
    "file: set_len 5, then \"hello\"",
    "file: reader Ok(3) \"hel\", then \"lo\", at 5",
    "file: writer at 8, \"helloabc\"",
    "file: append \"helloabc!\", InvalidInput",
    "file: slice Ok(3) \"--hel\"",
    "file: synced, closed, NotConnected",
    "file: missing NotFound, again AlreadyExists, no access InvalidInput",
    "whole: \"contents\", 8 bytes, a file, InvalidData",
    "pipe: Ok(4) \"pipe\", end Ok(0)",
    "tcp: accepted its peer, incoming its peer",
    "tcp: \"ping\" \"pong\", exact \"0123456789\"",
    "tcp: half-closed \"the end\", halves reunited",
    "tcp: refused ConnectionRefused, closed NotConnected",
    "tcp: a dropped read's bytes \"late\"",
    "tcp: socket listens, nodelay true",
    "time: slept, elapsed, at once, 3 ticks",
    "sync: [1, 2, 3], oneshot 7, notified",
    "tasks: 42, panicked boom, cancelled, blocking 12, any 9",
    "shards: on 1 \"other shard\", its socket \"across\"",
    "signal: none came",
];

/// One program uses everything there is, of files, sockets, timers, channels, tasks and the
/// pool, and gets the same results from each mode.
#[test]
fn every_mode_gives_the_same_results() {
    every_mode(|case| {
        let dir = TempDir::new();
        let cores = Cores::Count(2);
        let said = case.run_on(case.builder().cores(cores), async move {
            let before = descriptors();
            let mut said = Vec::new();
            files(&dir, &mut said).await.unwrap();
            whole_files(&dir, &mut said).await.unwrap();
            pipes(&mut said).await.unwrap();
            sockets(&mut said).await.unwrap();
            timers(&mut said).await;
            channels(&mut said).await;
            tasks(&mut said).await;
            shards(&mut said).await;
            signals(&mut said).await;
            settled(before).await;
            said
        });
        for (said, expected) in said.iter().zip(EXPECTED) {
            assert_eq!(said, expected);
        }
        assert_eq!(said.len(), EXPECTED.len());
    });
}

fn text(bytes: impl IoBuf) -> String {
    String::from_utf8(bytes.as_bytes().to_vec()).unwrap()
}

fn room(count: usize) -> GuardBuf {
    GuardBuf::with_capacity(count)
}

async fn files(dir: &TempDir, said: &mut Vec<String>) -> io::Result<()> {
    let path = dir.join("file");
    let file = File::create_new(&path).await?;
    file.write_all_at("hello, world".as_bytes(), 0).await.0?;
    file.write_at(" world", 5).await.0?;
    let len = {
        file.set_len(11).await?;
        file.metadata().await?.len()
    };
    let (count, world) = file.read_at(room(5), 6).await;
    let (exact, hello) = file.read_exact_at(room(5), 0).await;
    exact?;
    let (world, hello) = (text(world), text(hello));
    said.push(format!(
        "file: created, {len} bytes, {count:?} {world:?}, exact {hello:?}"
    ));
    let short = file.read_at(room(100), 5).await.0;
    let end = file.read_at(room(100), 11).await.0;
    let early = file.read_exact_at(room(100), 0).await.0.unwrap_err();
    said.push(format!(
        "file: short {short:?}, end {end:?}, {:?}",
        early.kind()
    ));
    file.set_len(5).await?;
    let (_, all) = file.read_at(room(100), 0).await;
    let len = file.metadata().await?.len();
    said.push(format!("file: set_len {len}, then {:?}", text(all)));

    let reader = file.reader();
    let (count, first) = reader.read(room(3)).await;
    let (_, rest) = reader.read_to_end(Vec::new()).await;
    let (first, rest, position) = (text(first), text(rest), reader.position());
    said.push(format!(
        "file: reader {count:?} {first:?}, then {rest:?}, at {position}"
    ));
    let writer = file.writer_at(5);
    writer.write("a").await.0?;
    writer.write_all("bc").await.0?;
    let written = fs::read_to_string(&path).await?;
    said.push(format!(
        "file: writer at {}, {written:?}",
        writer.position()
    ));

    let log = OpenOptions::new().append(true).open(&path).await?;
    log.writer().write_all("!").await.0?;
    let refused = log.write_at("?", 0).await.0.unwrap_err().kind();
    let appended = fs::read_to_string(&path).await?;
    said.push(format!("file: append {appended:?}, {refused:?}"));
    let (count, part) = file.read_at(vec![b'-'; 5].slice_mut(2..), 0).await;
    said.push(format!(
        "file: slice {count:?} {:?}",
        text(part.into_inner())
    ));

    file.sync_data().await?;
    file.sync_all().await?;
    let other = file.clone();
    file.close().await?;
    let closed = other.metadata().await.unwrap_err().kind();
    said.push(format!("file: synced, closed, {closed:?}"));

    let missing = File::open(dir.join("missing")).await.unwrap_err().kind();
    let again = File::create_new(&path).await.unwrap_err().kind();
    let aimless = OpenOptions::new().open(&path).await.unwrap_err().kind();
    said.push(format!(
        "file: missing {missing:?}, again {again:?}, no access {aimless:?}"
    ));
    Ok(())
}

async fn whole_files(dir: &TempDir, said: &mut Vec<String>) -> io::Result<()> {
    let path = dir.join("whole");
    fs::write(&path, "contents").await.0?;
    let contents = fs::read_to_string(&path).await?;
    let metadata = fs::metadata(&path).await?;
    let kind = if metadata.is_file() {
        "a file"
    } else {
        "no file"
    };
    fs::write(&path, vec![0xff]).await.0?;
    let garbage = fs::read_to_string(&path).await.unwrap_err().kind();
    said.push(format!(
        "whole: {contents:?}, {} bytes, {kind}, {garbage:?}",
        metadata.len()
    ));
    Ok(())
}

async fn pipes(said: &mut Vec<String>) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    let (reader, writer) = (
        File::from(OwnedFd::from(reader)),
        File::from(OwnedFd::from(writer)),
    );
    let reading = roundel::spawn(async move {
        let reader = reader.reader();
        let (count, bytes) = reader.read(room(10)).await;
        let end = reader.read(room(10)).await.0;
        format!("pipe: {count:?} {:?}, end {end:?}", text(bytes))
    });
    yield_now().await;
    writer.writer().write_all("pipe").await.0?;
    drop(writer);
    said.push(reading.await?);
    Ok(())
}

async fn sockets(said: &mut Vec<String>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let peer = |is_it: bool| if is_it { "its peer" } else { "a stranger" };
    let client = TcpStream::connect(address).await?;
    let (server, from) = listener.accept().await?;
    let accepted = peer(from == client.local_addr()?);
    let second = TcpStream::connect(address).await?;
    let incoming = listener.incoming().next().await.unwrap()?;
    let came = peer(incoming.peer_addr()? == second.local_addr()?);
    said.push(format!("tcp: accepted {accepted}, incoming {came}"));

    client.write_all("ping").await.0?;
    let (_, ping) = server.read(room(10)).await;
    server.write("pong").await.0?;
    let (_, pong) = client.read(room(10)).await;
    let exact = roundel::spawn(async move {
        let (result, bytes) = second.read_exact(room(10)).await;
        result.map(|()| bytes)
    });
    incoming.write_all("01234").await.0?;
    yield_now().await;
    incoming.write_all("56789").await.0?;
    let (ping, pong, exact) = (text(ping), text(pong), text(exact.await??));
    said.push(format!("tcp: {ping:?} {pong:?}, exact {exact:?}"));

    client.shutdown(Shutdown::Write).await?;
    assert_eq!(server.read(room(1)).await.0?, 0);
    let (reader, writer) = server.into_split();
    writer.write_all("the end").await.0?;
    let server = reader.reunite(writer).unwrap();
    drop(server);
    let (_, last) = client.read(room(10)).await;
    assert_eq!(client.read(room(1)).await.0?, 0);
    said.push(format!(
        "tcp: half-closed {:?}, halves reunited",
        text(last)
    ));

    let nobody = TcpListener::bind("127.0.0.1:0").await?;
    let free = nobody.local_addr()?;
    nobody.close().await?;
    let refused = TcpStream::connect(free).await.unwrap_err().kind();
    client.close().await?;
    let closed = client.write("x").await.0.unwrap_err().kind();
    said.push(format!("tcp: refused {refused:?}, closed {closed:?}"));

    let client = TcpStream::connect(address).await?;
    let (server, _) = listener.accept().await?;
    let early = timeout(Duration::from_millis(1), server.read(room(10))).await;
    assert!(early.is_err());
    client.write_all("late").await.0?;
    let (_, late) = server.read(room(10)).await;
    said.push(format!("tcp: a dropped read's bytes {:?}", text(late)));

    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    let nodelay = socket.nodelay()?;
    socket.bind("127.0.0.1:0".parse().unwrap())?;
    let listening = socket.listen(16)?;
    let client = TcpSocket::new_v4()?;
    client.connect(listening.local_addr()?).await?;
    listening.accept().await?;
    said.push(format!("tcp: socket listens, nodelay {nodelay}"));
    Ok(())
}

async fn timers(said: &mut Vec<String>) {
    let begun = Instant::now();
    sleep(Duration::from_millis(2)).await;
    assert!(begun.elapsed() >= Duration::from_millis(2));
    let late = timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
    let late = if late.is_err() { "elapsed" } else { "ready" };
    sleep_until(begun).await;
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut ticked = 0;
    for _ in 0..3 {
        ticks.tick().await;
        ticked += 1;
    }
    said.push(format!("time: slept, {late}, at once, {ticked} ticks"));
}

async fn channels(said: &mut Vec<String>) {
    let (sender, mut receiver) = mpsc::channel(1);
    drop(roundel::spawn(async move {
        for number in 1..=3 {
            sender.send(number).await.unwrap();
        }
    }));
    let mut received = Vec::new();
    while let Some(number) = receiver.recv().await {
        received.push(number);
    }
    let (answer, question) = oneshot::channel();
    let notify = std::rc::Rc::new(Notify::new());
    let notified = roundel::spawn({
        let notify = notify.clone();
        async move { notify.notified().await }
    });
    yield_now().await;
    notify.notify_one();
    notified.await.unwrap();
    answer.send(7).unwrap();
    let seven = question.await.unwrap();
    said.push(format!("sync: {received:?}, oneshot {seven}, notified"));
}

async fn tasks(said: &mut Vec<String>) {
    let value = roundel::spawn(async { 42 }).await.unwrap();
    let panicked = roundel::spawn(async {
        // As a panic, but without its text in the log.
        std::panic::resume_unwind(Box::new("boom"))
    });
    let payload = JoinError::into_panic(panicked.await.unwrap_err());
    let payload = payload.downcast_ref::<&str>().unwrap().to_string();
    let endless = roundel::spawn(std::future::pending::<()>());
    endless.abort();
    let cancelled = endless.await.unwrap_err().is_cancelled();
    assert!(cancelled);
    let blocking = roundel::spawn_blocking(|| 3 * 4).await.unwrap();
    let any = roundel::spawn_any(|| async { 9 }).await.unwrap();
    said.push(format!(
        "tasks: {value}, panicked {payload}, cancelled, blocking {blocking}, any {any}"
    ));
}

async fn shards(said: &mut Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let other = roundel::spawn_on(1, move || async move {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.write_all("across").await.0.unwrap();
        let name = std::thread::current().name().map(str::to_owned);
        assert_eq!(name.as_deref(), Some("roundel-1"));
        "other shard"
    });
    let (stream, _) = listener.accept().await.unwrap();
    let (_, across) = stream.read_exact(room(6)).await;
    let other = within_patience(other).await.unwrap();
    said.push(format!(
        "shards: on 1 {other:?}, its socket {:?}",
        text(across)
    ));
}

async fn signals(said: &mut Vec<String>) {
    let (signal, pause) = (
        roundel::signal::terminate(),
        sleep(Duration::from_millis(1)),
    );
    let came = match select(pin!(signal), pin!(pause)).await {
        Either::Left(_) => "one came",
        Either::Right(_) => "none came",
    };
    said.push(format!("signal: {came}"));
}

async fn within_patience<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("it ends")
}
