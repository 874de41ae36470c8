//! Records a pool's requests as a log that `warpool replay` reads.
//!
//! # The path of an event
//!
//! A thread that allocates or frees takes a number from the recording's counter and puts the event into
//! its own buffer (`buffer`). A thread of the recording empties all buffers every [`PERIOD`], sorts the
//! events by number and writes rows (`book`) to the file (`file`). The number is taken while the buffer
//! is locked. So once the counter has passed a number and the buffer has been locked again, the event
//! with that number has been seen, and the rows written before it are complete.
//!
//! # What is lost
//!
//! Nothing if the pool is dropped, if the process ends by `exit` or the end of `main` (`exit`), or after a
//! request that fails for want of memory. A process that is killed or crashes loses the events of the last
//! [`PERIOD`]. The part that was written is complete: each part of a compressed file is a separate gzip
//! member.
//!
//! # fork
//!
//! A child of `fork` has the buffers but not the thread. Its recordings do nothing: they neither
//! write nor wait, and the parent continues.

mod book;
mod buffer;
mod exit;
mod file;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::beside;
use crate::error::{Error, Result};
use crate::sync::plain::lock;
use book::Book;
use buffer::Buffers;
pub(crate) use buffer::What;
use file::Output;

/// How long events stay in memory at most, if the file is fast enough.
const PERIOD: Duration = Duration::from_millis(100);

/// How long the end of the process waits for all files together.
const AT_EXIT: Duration = Duration::from_secs(10);

/// The state shared by the threads that record and the one that writes.
struct Shared {
    buffers: Buffers,
    /// The process that made the recording; see `exit`.
    forks: u64,
    path: PathBuf,
    /// Set once the file has failed: further events are dropped.
    failed: AtomicBool,
    state: Mutex<State>,
    /// Notified when there is work for the writer, and when it is done.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread's buffer is full.
    hurry: bool,
    /// Number of flushes requested; `done` are finished.
    asked: u64,
    done: u64,
    ends: bool,
    /// Whether the writer has ended, or is about to.
    over: bool,
    /// The error of the file.
    error: Option<Error>,
}

/// A pool's recording; its drop writes the rest.
pub(crate) struct Recording {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Recording {
    /// The recording to `path` or, without one, as the environment requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the path cannot be written, or another process writes to it.
    pub(crate) fn asked_for(path: Option<&Path>) -> Result<Option<Self>> {
        if let Some(path) = path {
            return Self::to("record", path).map(Some);
        }
        match std::env::var_os("WARPOOL_RECORD").filter(|value| !value.is_empty()) {
            Some(path) => Self::to("WARPOOL_RECORD", Path::new(&path)).map(Some),
            None => Ok(None),
        }
    }

    fn to(what: &'static str, path: &Path) -> Result<Self> {
        Self::by(what, path, |work| {
            let writer = std::thread::Builder::new().name(String::from("warpool record"));
            writer.spawn(work)
        })
    }

    /// The same as [`Recording::to`], with the writer's thread started by `start`.
    fn by(
        what: &'static str,
        path: &Path,
        start: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>,
    ) -> Result<Self> {
        let (give, take) = std::sync::mpsc::channel::<(Arc<Shared>, Output)>();
        let work = move || {
            if let Ok((shared, output)) = take.recv() {
                shared.write_all(output);
            }
        };
        // The thread comes first: without it the file stays unchanged and its name stays free.
        let writer = start(Box::new(work)).map_err(|error| Error::Os {
            call: "starting the thread that writes the recording",
            words: error.to_string(),
        })?;
        let (path, output) = Output::create(what, path)?;
        let shared = Arc::new(Shared {
            buffers: Buffers::new(),
            forks: exit::forks(),
            path,
            failed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        // The thread is waiting for it.
        let _ = give.send((Arc::clone(&shared), output));
        exit::watch(&shared);
        Ok(Self {
            shared,
            writer: Some(writer),
        })
    }

    /// Records an event of a block, on the stream with this number.
    #[inline]
    pub(crate) fn note(&self, what: What, stream: u64) {
        self.shared.note(what, stream);
    }

    /// Waits until everything so far is in the file.
    ///
    /// # Errors
    /// The first error of the file, now or before.
    pub(crate) fn flush(&self) -> Result<()> {
        self.shared.flush(None)
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.shared.is_here() {
            return;
        }
        lock(&self.shared.state).ends = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // The writer does not panic, and reports errors of the file itself.
            beside(move || _ = writer.join());
        }
    }
}

impl Shared {
    /// Whether this is the process that made the recording.
    #[inline]
    fn is_here(&self) -> bool {
        self.forks == exit::forks()
    }

    #[inline]
    fn note(&self, what: What, stream: u64) {
        if !self.is_here() || self.failed.load(Ordering::Relaxed) {
            return;
        }
        if self.buffers.push(what, stream) {
            self.make_room();
        }
    }

    /// Requests that the buffers be emptied, and waits while the calling thread's buffer is full.
    #[cold]
    fn make_room(&self) {
        lock(&self.state).hurry = true;
        self.changed.notify_all();
        while self.buffers.is_full() && self.is_here() && !self.failed.load(Ordering::Relaxed) {
            let state = lock(&self.state);
            drop(self.wait(state, PERIOD));
        }
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, most: Duration) -> MutexGuard<'s, State> {
        match self.changed.wait_timeout(state, most) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    /// See [`Recording::flush`]; waits no longer than `until`.
    fn flush(&self, until: Option<Instant>) -> Result<()> {
        if !self.is_here() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        state.asked += 1;
        let asked = state.asked;
        self.changed.notify_all();
        while state.done < asked && !state.over {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            state = self.wait(state, PERIOD);
        }
        state.error.clone().map_or(Ok(()), Err)
    }

    /// Runs on the writer's thread.
    fn write_all(&self, mut output: Output) {
        let mut book = Book::default();
        let mut rows = Vec::new();
        loop {
            let (asked, ends) = self.wait_for_work();
            let events = self.buffers.collect();
            self.changed.notify_all();
            rows.clear();
            book.write(&events, &mut rows);
            let written = output.write(&rows);
            let mut state = lock(&self.state);
            state.done = asked;
            if let Err(error) = written {
                let path = self.path.display();
                // If standard error cannot be written, `flush` reports the error.
                let _ = writeln!(
                    std::io::stderr(),
                    "warpool: recording to {path} ends: {error}"
                );
                self.failed.store(true, Ordering::Relaxed);
                state.error = Some(error);
            }
            state.over = ends || state.error.is_some();
            let over = state.over;
            drop(state);
            self.changed.notify_all();
            if over {
                return;
            }
        }
    }

    /// Waits for the end of the period, or for an earlier request.
    fn wait_for_work(&self) -> (u64, bool) {
        let wanted = |state: &State| state.hurry || state.ends || state.asked > state.done;
        let until = Instant::now() + PERIOD;
        let mut state = lock(&self.state);
        while !wanted(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.wait(state, left);
        }
        state.hurry = false;
        (state.asked, state.ends)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
