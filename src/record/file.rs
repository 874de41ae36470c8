//! The file of a recording: its name, its lock, and compression.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::book::HEADER;
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// How long a pipe may have no reader, or a reader that reads nothing. Threads that produce events faster than the
/// file takes them wait for it, and so does the pool's drop.
const STALL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Time between two polls for a pipe's reader.
const PAUSE: Duration = Duration::from_millis(5);

/// Number of requests for each name in this process.
static NAMES: Mutex<Option<HashMap<PathBuf, u64>>> = Mutex::new(None);

/// The destination of rows.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    compressed: bool,
}

impl Output {
    /// Creates the file for the requested name, and locks it for this recording.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the setting `what`.
    pub(super) fn create(what: &'static str, asked: &Path) -> Result<(PathBuf, Self)> {
        let asked = with_process(asked);
        let refused = |path: &Path, why: String| {
            Error::invalid(what, format!("cannot record to {}: {why}", path.display()))
        };
        let compressed = asked.extension().is_some_and(|ending| ending == "gz");
        if compressed && cfg!(not(feature = "gzip")) {
            let why =
                "compression is not in this build: leave .gz out, or build with the feature gzip";
            return Err(refused(&asked, why.into()));
        }
        let number = next_number(&asked);
        let path = numbered(&asked, number);
        match Self::begin(&path, compressed) {
            Ok(output) => Ok((path, output)),
            Err(why) => {
                give_back(&asked, number);
                Err(refused(&path, why))
            }
        }
    }

    /// Opens the file with this name and writes its header, or returns the reason that it cannot.
    fn begin(path: &Path, compressed: bool) -> std::result::Result<Self, String> {
        let file = opened(path).map_err(|error| error.to_string())?;
        // SAFETY: the call takes an open file and accesses no memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(why_locked(&io::Error::last_os_error()));
        }
        let mut output = Self { file, compressed };
        // A pipe has no start to truncate to.
        if output.file.metadata().is_ok_and(|about| about.is_file()) {
            output.file.set_len(0).map_err(|error| error.to_string())?;
        }
        output.write(HEADER).map_err(|error| error.to_string())?;
        Ok(output)
    }

    /// Appends rows. The file is complete afterwards, or unchanged after an error.
    pub(super) fn write(&mut self, rows: &[u8]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        // Fails for a pipe, which has no position.
        let whole = self.file.stream_position();
        let written = match self.compressed {
            true => compressed(rows).and_then(|part| self.write_all(&part)),
            false => self.write_all(rows),
        };
        if let (Err(_), Ok(whole)) = (&written, whole) {
            // A partly written member cannot be read, so it is cut off. The first error is the one
            // to report.
            let _ = self.file.set_len(whole);
        }
        written.map_err(file_error)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut until = Instant::now() + STALL;
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    bytes = &bytes[taken..];
                    until = Instant::now() + STALL;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_for_room(until)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a pipe takes more, or a signal arrives.
    fn wait_for_room(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let mut asked = libc::pollfd {
            fd: self.file.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: the call reads and writes one element, which exists.
        match unsafe { libc::poll(&raw mut asked, 1, left.as_millis() as i32) } {
            0 => Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("it took nothing for {STALL:?}: its reader does not read"),
            )),
            _ => Ok(()),
        }
    }
}

/// Opens the file for writing without blocking; waits for a pipe's reader for at most [`STALL`].
fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.custom_flags(libc::O_NONBLOCK);
    let until = Instant::now() + STALL;
    loop {
        match options.open(path) {
            // No process has the pipe open for reading.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                if Instant::now() >= until {
                    let why = format!("nobody reads it within {STALL:?}");
                    return Err(io::Error::new(ErrorKind::TimedOut, why));
                }
                std::thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

impl Drop for Output {
    /// Unlocks the file: a child of `fork` would hold the lock for as long as it lives.
    fn drop(&mut self) {
        // SAFETY: the call takes an open file and accesses no memory.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Compresses rows as a separate gzip member: a file that ends with one is complete.
#[cfg(feature = "gzip")]
fn compressed(rows: &[u8]) -> io::Result<Vec<u8>> {
    let room = Vec::with_capacity(rows.len() / 8);
    let mut encoder = flate2::write::GzEncoder::new(room, flate2::Compression::fast());
    encoder.write_all(rows)?;
    encoder.finish()
}

#[cfg(not(feature = "gzip"))]
fn compressed(_: &[u8]) -> io::Result<Vec<u8>> {
    Err(ErrorKind::Unsupported.into())
}

fn file_error(error: io::Error) -> Error {
    Error::Os {
        call: "writing the recording",
        words: error.to_string(),
    }
}

/// Replaces `%p` in the file's name by the process id.
fn with_process(path: &Path) -> PathBuf {
    let (mut rest, mut made) = (path.as_os_str().as_bytes(), Vec::new());
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        made.extend_from_slice(&rest[..at]);
        made.extend_from_slice(std::process::id().to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    made.extend_from_slice(rest);
    OsString::from_vec(made).into()
}

/// Number of requests for `path`, including this one.
fn next_number(path: &Path) -> u64 {
    let mut names = lock(&NAMES);
    let count = names.get_or_insert_default().entry(path.to_owned());
    let count = count.or_default();
    *count += 1;
    *count
}

/// Takes back a request for `path` that failed.
fn give_back(path: &Path, number: u64) {
    if let Some(count) = lock(&NAMES).get_or_insert_default().get_mut(path)
        && *count == number
    {
        *count -= 1;
    }
}

/// `trace.csv.gz` for the first pool of a process, `trace.2.csv.gz` for its second.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let Some(name) = path.file_name().filter(|_| number > 1) else {
        return path.to_owned();
    };
    let name = name.as_bytes();
    let at = name.iter().skip(1).position(|&byte| byte == b'.');
    let at = at.map_or(name.len(), |at| at + 1);
    let made = [&name[..at], format!(".{number}").as_bytes(), &name[at..]].concat();
    path.with_file_name(OsString::from_vec(made))
}

/// The reason that a file cannot be locked for this recording.
fn why_locked(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock => String::from(
            "another process or another pool records to it: put %p into the name, which becomes the process's number",
        ),
        _ => format!("it cannot be locked: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_pool_of_a_process_has_a_file_of_its_own() {
        for (asked, second) in [
            ("a/trace.csv.gz", "a/trace.2.csv.gz"),
            ("trace", "trace.2"),
            (".trace.csv", ".trace.2.csv"),
            ("a.b/trace.csv", "a.b/trace.2.csv"),
        ] {
            assert_eq!(numbered(Path::new(asked), 1), Path::new(asked));
            assert_eq!(numbered(Path::new(asked), 2), Path::new(second));
        }
    }

    #[test]
    fn a_name_may_have_the_process_in_it() {
        let number = std::process::id();
        let made = with_process(Path::new("a/%p.csv"));
        assert_eq!(made, PathBuf::from(format!("a/{number}.csv")));
    }

    #[test]
    fn a_name_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;
        let path = |bytes: &'static [u8]| Path::new(std::ffi::OsStr::from_bytes(bytes));
        assert_eq!(
            numbered(path(b"a/\xff.\xfe.gz"), 2),
            path(b"a/\xff.2.\xfe.gz")
        );
        let number = std::process::id().to_string();
        let made = with_process(path(b"\xff/%p-%p"));
        assert_eq!(
            made.as_os_str().as_bytes(),
            [b"\xff/", number.as_bytes(), b"-", number.as_bytes()].concat()
        );
    }

    #[test]
    fn a_lock_that_the_system_has_none_of_is_told_in_its_words() {
        let taken = why_locked(&io::Error::from_raw_os_error(libc::EWOULDBLOCK));
        assert!(
            taken.contains("another pool") && taken.contains("%p"),
            "{taken}"
        );
        let none = why_locked(&io::Error::from_raw_os_error(libc::ENOLCK));
        assert!(
            none.contains("locks") && !none.contains("another"),
            "{none}"
        );
    }

    #[test]
    fn a_file_is_free_once_its_recording_is_over_whoever_was_forked_meanwhile() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.csv");
        let output = Output::begin(&path, false).expect("a file");
        // Like the copy of a child of `fork`, which may live on.
        let child = output.file.try_clone().expect("a file");
        assert!(Output::begin(&path, false).is_err());
        drop(output);
        assert!(Output::begin(&path, false).is_ok());
        drop(child);
    }
}
