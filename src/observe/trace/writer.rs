//! Writing an allocation log.

use std::io::{self, BufWriter, Write};

/// Pointers that [`Trace::write_csv`](super::Trace::write_csv) generates start here,
pub(super) const POINTER_BASE: u64 = 0x7f00_0000_0000;
/// and are this many bytes apart.
pub(super) const POINTER_STEP: u64 = 512;

/// Writes rows in RMM's columns, buffered. `Thread` is 1. `Time` is the row's number, formatted as
/// a time: hours, minutes, seconds, microseconds.
///
/// Rows are not checked for consistency; [`Trace::read`](super::Trace::read) does that.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    to: BufWriter<W>,
    rows: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Any error of the underlying writer, here and in every other call.
    pub fn new(to: W) -> io::Result<Self> {
        let mut to = BufWriter::new(to);
        to.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
        Ok(Self { to, rows: 0 })
    }

    /// Writes an allocation of `bytes` at `pointer` on `stream`.
    ///
    /// # Errors
    /// See [`TraceWriter::new`].
    pub fn allocate(&mut self, pointer: u64, bytes: u64, stream: u64) -> io::Result<()> {
        self.row("allocate", pointer, bytes, stream)
    }

    /// Writes a free of the `bytes` at `pointer` on `stream`.
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

    /// Writes out the buffer and returns the underlying writer.
    ///
    /// # Errors
    /// See [`TraceWriter::new`].
    pub fn finish(self) -> io::Result<W> {
        self.to.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
