//! Copies files to standard output through the ring: regular files, pipes, devices and
//! those of `/proc`.

use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use roundel::fs::{File, Writer};

const USAGE: &str = "usage: cat FILE...

Copies each file to standard output, one after the other.";
const BLOCK: usize = 256 * 1024;

#[roundel::main(cores = 1)]
async fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    if paths.iter().any(|path| path == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if paths.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    }
    match cat_all(&paths).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cat: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A file that cannot be read does not keep the next one from being copied; an output that
/// cannot be written ends it all.
async fn cat_all(paths: &[std::ffi::OsString]) -> io::Result<ExitCode> {
    let mut output = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // A regular file may stand anywhere; what has no position does not mind.
    let start = output.stream_position().unwrap_or(0);
    let writer = File::from_std(output.try_clone()?).writer_at(start);
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        if let Err(error) = cat(path.as_ref(), &writer).await? {
            eprintln!("cat: {error}");
            code = ExitCode::FAILURE;
        }
    }
    // Whoever shares the output goes on behind it.
    let _ = output.seek(SeekFrom::Start(writer.position()));
    Ok(code)
}

/// The outer result is the output's, the inner one the file's.
async fn cat(path: &Path, writer: &Writer) -> io::Result<io::Result<()>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("read {path:?}: {error}"));
    let reader = match File::open(path).await {
        Ok(file) => file.reader(),
        Err(error) => return Ok(Err(error)),
    };
    let mut block = Vec::with_capacity(BLOCK);
    // Ends at the end of the file, or with an error.
    loop {
        let (result, full) = reader.read(block).await;
        match result {
            Ok(0) => return Ok(Ok(())),
            Ok(_) => {}
            Err(error) => return Ok(Err(named(error))),
        }
        let (result, empty) = writer.write_all(full).await;
        result?;
        block = empty;
    }
}
