//! Reading a file into a [`Trace`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::Trace;
use super::ledger::Ledger;
use super::lines::Lines;
use super::row::{Columns, Row};
use crate::error::{Error, Result};

impl Trace {
    /// Reads the log at `path`. Its blocks may have at most `max_bytes` each: the size of the
    /// device for a replay, or `u64::MAX`.
    ///
    /// # Errors
    /// [`Error::Malformed`] with file and line: the file cannot be read, is empty, has another
    /// format, is damaged or truncated, or has an impossible event (a free of a pointer that is not
    /// live or has another size, an allocation of a live pointer, a block over `max_bytes`).
    pub fn read(path: impl AsRef<Path>, max_bytes: u64) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|error| at(&name, 0, format!("cannot open: {error}")))?;
        Self::read_from(&name, file, max_bytes)
    }

    /// Reads a log, plain or gzip, from any reader. Errors call it `name`. Reads in large pieces,
    /// so buffering `from` gains nothing.
    ///
    /// # Errors
    /// See [`Trace::read`].
    #[doc(hidden)]
    pub fn read_from(name: &str, from: impl Read, max_bytes: u64) -> Result<Self> {
        let mut lines = Lines::new(from).map_err(|why| at(name, 0, why))?;
        match read_lines(name, &mut lines, max_bytes) {
            Ok(trace) => Ok(trace),
            // An empty file fails at its first line, which is missing.
            Err(why) => Err(at(name, lines.number.max(1), why)),
        }
    }
}

fn at(file: &str, line: u64, why: String) -> Error {
    Error::Malformed {
        file: file.to_owned(),
        line,
        why,
    }
}

fn read_lines(
    name: &str,
    lines: &mut Lines<'_>,
    max_bytes: u64,
) -> std::result::Result<Trace, String> {
    let Some(header) = lines.next()? else {
        return Err(
            "the file is empty; expected Thread,Time,Action,Pointer,Size,Stream".to_owned(),
        );
    };
    let columns = Columns::from_header(header)?;
    let (mut ledger, mut failed) = (Ledger::new(name, max_bytes), 0_u64);
    while let Some(line) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match columns.row(line)? {
            Row::Alloc {
                pointer,
                bytes,
                stream,
            } => ledger.alloc(pointer, bytes, stream)?,
            Row::Free {
                pointer,
                bytes,
                stream,
            } => ledger.free(pointer, bytes, stream)?,
            Row::Failure => failed += 1,
        }
    }
    let trace = ledger.finish();
    match failed {
        _ if !trace.events.is_empty() => Ok(trace),
        0 => Err("the file has a header and no events".to_owned()),
        _ => Err(format!(
            "all {failed} requests in the file failed: nothing is left to replay"
        )),
    }
}
