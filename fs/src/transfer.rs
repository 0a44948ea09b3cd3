//! What transfers have in common: which offsets they may have, how a whole one is made of
//! parts, and the errors of those that end early.

use std::io;

use roundel_reactor::{BufResult, IoBufMut};

/// The largest offset a file can have: offsets are signed in the kernel.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Refuses offsets that mean something else to the kernel, and ends that no file has.
pub(crate) fn check_range(offset: u64, len: usize) -> io::Result<()> {
    if offset == u64::MAX {
        return Err(invalid_input(
            "offset u64::MAX means the current position to the kernel, and this file has none: \
             use an offset within the file, or a reader or writer"
                .to_owned(),
        ));
    }
    let end = u64::try_from(len)
        .ok()
        .and_then(|len| offset.checked_add(len));
    match end {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(invalid_input(format!(
            "offset {offset} and length {len} end beyond {OFFSET_MAX}, the largest offset of a file"
        ))),
    }
}

/// Refuses a length that no file has.
pub(crate) fn check_len(len: u64) -> io::Result<()> {
    if len <= OFFSET_MAX {
        return Ok(());
    }
    Err(invalid_input(format!(
        "length {len} is beyond {OFFSET_MAX}, the largest length of a file"
    )))
}

pub(crate) fn invalid_input(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The kernel took nothing of what was left to write.
pub(crate) fn write_zero(written: usize, total: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::WriteZero,
        format!("nothing more was written after {written} of {total} bytes"),
    )
}

/// Where a buffer is filled from, in parts.
pub(crate) trait Source {
    /// Reads what there is, behind the `done` bytes that were read before.
    async fn read_some<B: IoBufMut>(&self, buf: B, done: usize) -> BufResult<usize, B>;
}

/// Fills the whole capacity of `buf`, or says why not; then the buffer has what arrived.
pub(crate) async fn fill<B: IoBufMut>(source: &impl Source, mut buf: B) -> BufResult<(), B> {
    let total = buf.bytes_total();
    if total == 0 {
        return (Ok(()), buf);
    }
    let mut done = 0;
    let mut result;
    (result, buf) = source.read_some(buf, done).await;
    // Ends: each round fills a byte or more of a buffer that does not grow.
    loop {
        match result {
            Ok(0) => return (Err(unexpected_end(done, total)), buf),
            Ok(count) => done += count,
            Err(error) => {
                if done == 0 {
                    // Nothing arrived, so what stood there before is not to be taken for it.
                    buf.fill_from(&[]);
                }
                return (Err(error), buf);
            }
        }
        if done >= total {
            return (Ok(()), buf);
        }
        let (next, part) = source.read_some(buf.slice_mut(done..), done).await;
        (result, buf) = (next, part.into_inner());
    }
}

fn unexpected_end(done: usize, total: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the end came after {done} of {total} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The current-position offset and ends beyond the signed range are refused by name.
    #[test]
    fn h17_ranges_that_no_file_has_are_refused() {
        assert!(check_range(0, 0).is_ok());
        assert!(check_range(OFFSET_MAX, 0).is_ok());
        assert!(check_range(OFFSET_MAX - 7, 7).is_ok());
        for (offset, len) in [
            (u64::MAX, 0),
            (u64::MAX - 1, 1),
            (u64::MAX - 1, 2),
            (OFFSET_MAX, 1),
            (OFFSET_MAX - 7, 8),
            (1, usize::MAX),
        ] {
            let error = check_range(offset, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("offset"), "{error}");
        }
        assert!(check_len(OFFSET_MAX).is_ok());
        assert!(check_len(OFFSET_MAX + 1).is_err());
    }
}
