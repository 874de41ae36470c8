//! Lines of a plain or gzip file, read with one fixed buffer.

use std::io::{Chain, Cursor, Read};

/// The longest line, and the size of the buffer.
const MAX_LINE: usize = 64 << 10;

/// The first bytes of every gzip member (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The lines of one file. `number` is the last line returned, from 1.
pub(super) struct Lines<'a> {
    source: Box<dyn Read + 'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    pub(super) number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(mut file: impl Read + 'a) -> Result<Self, String> {
        let mut head = Vec::with_capacity(GZIP_MAGIC.len());
        file.by_ref()
            .take(GZIP_MAGIC.len() as u64)
            .read_to_end(&mut head)
            .map_err(|error| words(&error))?;
        let gzip = head == GZIP_MAGIC;
        let whole = Cursor::new(head).chain(file);
        let source = if gzip {
            gunzip(whole)?
        } else {
            Box::new(whole)
        };
        Ok(Self {
            source,
            buffer: vec![0; MAX_LINE],
            start: 0,
            end: 0,
            ended: false,
            number: 0,
        })
    }

    /// The next line without its ending; `None` after the last. After an error `number` is the line
    /// that could not be read.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, String> {
        let mut searched = self.start;
        loop {
            let fresh = &self.buffer[searched..self.end];
            if let Some(at) = fresh.iter().position(|&byte| byte == b'\n') {
                let line = self.start..searched + at;
                self.start = line.end + 1;
                self.number += 1;
                return Ok(Some(without_return(&self.buffer[line])));
            }
            if self.ended {
                return Ok(self.last());
            }
            searched = self.fill().inspect_err(|_| self.number += 1)?;
        }
    }

    /// The text after the last line ending, if any.
    fn last(&mut self) -> Option<&[u8]> {
        if self.start == self.end {
            return None;
        }
        let line = self.start..self.end;
        self.start = self.end;
        self.number += 1;
        Some(without_return(&self.buffer[line]))
    }

    /// Moves the unfinished line to the front and reads more after it; returns where the new bytes
    /// start.
    fn fill(&mut self) -> Result<usize, String> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            return Err(format!(
                "the line is longer than {MAX_LINE} bytes: this is not an allocation log"
            ));
        }
        let from = self.end;
        loop {
            match self.source.read(&mut self.buffer[from..]) {
                Ok(0) => self.ended = true,
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(words(&error)),
            }
            return Ok(from);
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            "the gzip stream ends too early: the file is truncated, copy it again".to_owned()
        }
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData => {
            format!("the gzip stream is damaged: {error}")
        }
        _ => format!("cannot read: {error}"),
    }
}

#[cfg(feature = "gzip")]
fn gunzip<'a, R: Read + 'a>(file: Chain<Cursor<Vec<u8>>, R>) -> Result<Box<dyn Read + 'a>, String> {
    Ok(Box::new(flate2::read::MultiGzDecoder::new(file)))
}

#[cfg(not(feature = "gzip"))]
fn gunzip<'a, R: Read + 'a>(
    _file: Chain<Cursor<Vec<u8>>, R>,
) -> Result<Box<dyn Read + 'a>, String> {
    Err(
        "the file is gzip, and warpool was built without its feature `gzip`: gunzip it first"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> (Vec<Vec<u8>>, Option<(u64, String)>) {
        let mut lines = Lines::new(bytes).expect("opens");
        let mut found = Vec::new();
        loop {
            match lines.next() {
                Ok(Some(line)) => found.push(line.to_vec()),
                Ok(None) => return (found, None),
                Err(why) => return (found, Some((lines.number, why))),
            }
        }
    }

    #[test]
    fn lines_end_in_a_newline_a_return_and_newline_or_the_end_of_the_file() {
        let (lines, error) = all(b"a\nbb\r\n\nccc");
        assert_eq!(lines, [&b"a"[..], b"bb", b"", b"ccc"]);
        assert!(error.is_none());
    }

    #[test]
    fn lines_across_the_buffer_are_whole() {
        let text: Vec<u8> = (0..40_000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        let (lines, error) = all(&text);
        assert!(error.is_none());
        assert_eq!(lines.len(), 40_000);
        assert!(
            lines
                .iter()
                .enumerate()
                .all(|(n, line)| *line == format!("line {n}").into_bytes())
        );
    }

    #[test]
    fn a_line_without_end_is_an_error_and_takes_no_more_memory() {
        let mut lines = Lines::new(std::io::repeat(b'x')).expect("opens");
        let why = lines.next().expect_err("too long");
        assert!(why.contains("longer than 65536 bytes"), "{why}");
        assert_eq!(lines.number, 1);
        assert_eq!(lines.buffer.len(), MAX_LINE);
    }

    #[test]
    fn one_byte_is_a_line() {
        assert_eq!(all(b"x").0, [b"x"]);
        assert_eq!(all(&GZIP_MAGIC[..1]).0, [&GZIP_MAGIC[..1]]);
    }
}
