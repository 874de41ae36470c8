//! Writing an allocation log.

use std::io::{self, BufWriter, Write};

/// Pointers that [`Trace::write_csv`](super::Trace::write_csv) makes up start here,
pub(super) const POINTER_BASE: u64 = 0x7f00_0000_0000;
/// and are this far apart.
pub(super) const POINTER_STEP: u64 = 512;

/// Writes rows in RMM's columns, buffered. `Thread` is 1 and `Time` the number of the row, in the
/// shape of a clock: hours, minutes, seconds, microseconds.
///
/// Rows are not checked against each other; [`Trace::read`](super::Trace::read) does that.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    to: BufWriter<W>,
    rows: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// What the writer below said, here and in every other call.
    pub fn new(to: W) -> io::Result<Self> {
        let mut to = BufWriter::new(to);
        to.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
        Ok(Self { to, rows: 0 })
    }

    /// Writes that `bytes` were allocated at `pointer` on `stream`.
    ///
    /// # Errors
    /// See [`TraceWriter::new`].
    pub fn allocate(&mut self, pointer: u64, bytes: u64, stream: u64) -> io::Result<()> {
        self.row("allocate", pointer, bytes, stream)
    }

    /// Writes that the `bytes` at `pointer` were freed on `stream`.
    ///
    /// # Errors
    /// See [`TraceWriter::new`].
    pub fn free(&mut self, pointer: u64, bytes: u64, stream: u64) -> io::Result<()> {
        self.row("free", pointer, bytes, stream)
    }

    fn row(&mut self, action: &str, pointer: u64, bytes: u64, stream: u64) -> io::Result<()> {
        let (seconds, micros) = (self.rows / 1_000_000, self.rows % 1_000_000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        self.rows += 1;
        writeln!(
            self.to,
            "1,{hours:02}:{minutes:02}:{seconds:02}:{micros:06},{action},{pointer:#x},{bytes},{stream:#x}"
        )
    }

    /// Writes out what is buffered and gives the writer below back.
    ///
    /// # Errors
    /// See [`TraceWriter::new`].
    pub fn finish(self) -> io::Result<W> {
        self.to.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
