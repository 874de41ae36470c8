//! What queued work does to a typed buffer: which bytes it reads or writes, on which stream, up to
//! which tick.
//!
//! # What an entry says
//!
//! An entry names bytes of the buffer, whether they are written, and work: that of a stream up to a
//! tick (see `timeline`), the last launch of a table, or every launch of a graph. The first entry is
//! the allocation, a write of everything by the buffer's home stream. An operation waits for all
//! entries that it meets in a byte where one of the two writes, and makes an entry of its own once it
//! is queued (`ordered` has the steps).
//!
//! A write that is queued runs behind everything it met, so its entry takes the place of those that
//! lie inside its bytes; and entries of a stream for neighbouring bytes and the same tick are one.
//! Entries are few: past some number those of a stream that has many become one with all their bytes
//! and the last tick, which only makes others wait for more.
//!
//! # Without the latch
//!
//! A buffer that one stream uses again and again needs no look at the entries. Two words beside them
//! hold a stream and a tick: for the stream in `writer` nothing here is to be waited for, and there is
//! an entry that it writes everything up to the tick; for the stream in `reader` the same is known of
//! reading. Two more hold the last entry of a stream made for a part of the buffer, so that a part used
//! again and again needs no other. All are written under the latch, whenever an entry is made.
//!
//! Reading them without it is enough. What could make them wrong is a write by somebody else, and
//! who writes has the buffer for himself; launches of graphs, which borrow nothing, are for buffers
//! whose words are empty.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::access_entries::{By, END, Entries, Entry, Span, raise};
use super::{GraphRecord, Recorder, Timeline};
use crate::seeded::seeded;
use crate::sync::{AtomicU64, Latch, latch, latch_mut};

/// Bits of a tick in a word; the rest is the stream's number.
const TICK_BITS: u32 = 40;

/// What an operation has to run behind.
#[derive(Default)]
pub(crate) struct Waits {
    /// Work of streams up to a tick, one entry a stream.
    pub(super) marks: Vec<(Arc<Timeline>, u64)>,
    /// Streams of the operation's own capture.
    pub(super) edges: Vec<Arc<Timeline>>,
    /// Graphs: their last launch, and they have to be told of the operation.
    pub(super) graphs: Vec<Arc<GraphRecord>>,
}

/// What a buffer's memory has to outlast when it is dropped.
#[derive(Default)]
pub(crate) struct Left {
    /// Work of other streams than the home stream.
    pub(crate) marks: Vec<(Arc<Timeline>, u64)>,
    /// Captures and graphs that use the memory.
    pub(crate) graphs: Vec<Arc<Recorder>>,
}

/// See the module documentation.
pub(crate) struct AccessLog {
    /// The uid of the home stream; 0 where there is none, and no entry is [`By::Home`].
    home: u64,
    bytes: AtomicU64,
    writer: AtomicU64,
    reader: AtomicU64,
    /// The stream and tick of the last entry for `part`; 0 while that is written.
    part_by: AtomicU64,
    part: AtomicU64,
    entries: Latch<Entries>,
    /// The memory is another library's, which no graph can keep.
    lent: bool,
}

/// A stream and a tick in a word; 0 where they do not fit.
#[inline]
fn word(uid: u64, tick: u64) -> u64 {
    let fits = uid >> (64 - TICK_BITS) == 0 && tick >> TICK_BITS == 0;
    if fits { (uid << TICK_BITS) | tick } else { 0 }
}

impl Waits {
    /// Adds work that `stream`, where one is named, does not run behind already.
    pub(super) fn add(&mut self, stream: Option<&Timeline>, theirs: &Arc<Timeline>, tick: u64) {
        if !stream.is_some_and(|stream| stream.is_behind(theirs, tick)) {
            raise(&mut self.marks, theirs, tick);
        }
    }

    pub(super) fn add_graph(&mut self, graph: &Arc<GraphRecord>) {
        if !self.graphs.iter().any(|known| Arc::ptr_eq(known, graph)) {
            self.graphs.push(Arc::clone(graph));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.edges.is_empty() && self.graphs.is_empty()
    }
}

impl AccessLog {
    /// The log of a buffer of `bytes` that `home`'s stream was just given.
    pub(crate) fn new(home: &Timeline, bytes: u64) -> Self {
        let tick = home.open_tick();
        Self::begin(home.uid, By::Home(tick), word(home.uid, tick), bytes)
    }

    /// As [`AccessLog::new`], for a buffer that may come to lie in the order of another stream.
    pub(crate) fn without_home(timeline: &Arc<Timeline>, bytes: u64) -> Self {
        let tick = timeline.open_tick();
        let by = By::Stream(Arc::clone(timeline), tick);
        Self::begin(0, by, word(timeline.uid, tick), bytes)
    }

    fn begin(home: u64, by: By, writer: u64, bytes: u64) -> Self {
        let first = Entry {
            span: Span {
                from: 0,
                to: END,
                writes: true,
            },
            by,
            held: false,
        };
        Self {
            home,
            bytes: AtomicU64::new(bytes),
            writer: AtomicU64::new(writer),
            reader: AtomicU64::new(0),
            part_by: AtomicU64::new(0),
            part: AtomicU64::new(0),
            entries: Latch::new(Entries::of(first)),
            lent: false,
        }
    }

    /// The log of `bytes` of another library's that `timeline`'s stream may use.
    #[cfg(feature = "cudarc")]
    pub(crate) fn lent(timeline: &Arc<Timeline>, bytes: u64) -> Self {
        let log = Self::without_home(timeline, bytes);
        Self { lent: true, ..log }
    }

    /// Whether no graph may use the memory.
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// The buffer has `bytes` from now on.
    pub(crate) fn resized(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether it is known without a look that the stream of this uid has nothing to wait for.
    #[inline]
    pub(super) fn is_known(&self, uid: u64, writes: bool) -> bool {
        self.writer.load(Ordering::Acquire) >> TICK_BITS == uid
            || (!writes && self.reader.load(Ordering::Acquire) >> TICK_BITS == uid)
    }

    /// Whether it is known without a look that an entry covers work of the stream up to `tick`.
    #[inline]
    pub(super) fn has(&self, uid: u64, tick: u64, span: Span) -> bool {
        let word = word(uid, tick);
        word != 0
            && (self.writer.load(Ordering::Acquire) == word
                || (!span.writes && self.reader.load(Ordering::Acquire) == word)
                || self.has_part(word, span))
    }

    /// Whether the last entry is of the stream and tick in `word`, and covers `span`.
    #[inline]
    fn has_part(&self, word: u64, span: Span) -> bool {
        self.part_by.load(Ordering::Acquire) == word
            && Span::unpacked(self.part.load(Ordering::Acquire)).has(&span)
            && self.part_by.load(Ordering::Acquire) == word
    }

    /// Remembers the last entry. Who reads the part while it is written finds 0 behind it.
    fn show_part(&self, span: Span, by: &By) {
        let packed = span.packed();
        let uid = by.uid(self.home).filter(|_| packed != 0);
        self.part_by.store(0, Ordering::Release);
        self.part.store(packed, Ordering::Release);
        let by = uid.map_or(0, |uid| word(uid, by.tick()));
        self.part_by.store(by, Ordering::Release);
    }

    /// All of a buffer is what it had before it shrank too: what is queued for that is there again when
    /// the buffer grows.
    fn widened(&self, mut span: Span) -> Span {
        if span.from == 0 && span.to >= self.bytes.load(Ordering::Relaxed) {
            span.to = END;
        }
        span
    }

    /// Adds what an operation on `span` has to run behind: on `stream`, within the capture of `own`.
    /// Without a stream, everything.
    pub(super) fn conflicts(
        &self,
        home: &Arc<Timeline>,
        span: Span,
        stream: Option<&Timeline>,
        own: Option<&Arc<GraphRecord>>,
        waits: &mut Waits,
    ) {
        let span = match seeded!("shrunk-part-not-waited-for") {
            true => span,
            false => self.widened(span),
        };
        let entries = latch(&self.entries);
        for entry in entries.iter().filter(|entry| span.meets(&entry.span)) {
            if seeded!("readers-not-waited-for") && !entry.span.writes {
                continue;
            }
            match &entry.by {
                By::Home(tick) => waits.add(stream, home, *tick),
                By::Stream(timeline, tick) => waits.add(stream, timeline, *tick),
                By::Table(table) => {
                    if let Some((timeline, tick)) = table.last() {
                        waits.add(stream, &timeline, tick);
                    }
                }
                By::Graph(graph, on) if own.is_some_and(|own| Arc::ptr_eq(own, graph)) => {
                    let uid = stream.map(|stream| stream.uid);
                    if uid != Some(on.uid) && !waits.edges.iter().any(|edge| edge.uid == on.uid) {
                        waits.edges.push(Arc::clone(on));
                    }
                }
                By::Graph(graph, _) => waits.add_graph(graph),
            }
        }
    }

    /// Adds the entry of an operation that is queued. One that `waited` for all it met takes the place
    /// of what it covers.
    pub(super) fn stamp(&self, home: &Arc<Timeline>, span: Span, by: By, waited: bool) {
        let span = self.widened(span);
        let by = match by {
            By::Stream(timeline, tick) if timeline.uid == self.home => By::Home(tick),
            other => other,
        };
        let new = Entry {
            span,
            by,
            held: false,
        };
        let mut entries = latch(&self.entries);
        let by = new.by.clone();
        entries.add(new, home, waited);
        self.show(&entries, span, &by, waited);
        self.show_part(span, &by);
    }

    /// Writes the words behind a new entry.
    fn show(&self, entries: &Entries, span: Span, by: &By, waited: bool) {
        let whole = |entry: &Entry| entry.span.from == 0 && entry.span.to == END;
        let uid = by.uid(self.home);
        let alone = entries.iter().all(|e| e.by.uid(self.home) == uid);
        let written = entries
            .iter()
            .filter(|entry| entry.span.writes && whole(entry))
            .map(|entry| entry.by.tick())
            .max();
        let writer = match (uid, written) {
            (Some(uid), Some(tick)) if alone => word(uid, tick),
            _ => 0,
        };
        self.writer.store(writer, Ordering::Release);
        let repeated = |e: &Entry| e.span.writes && e.by.uid(self.home).is_none();
        let reads_all = !span.writes && span.from == 0 && span.to == END;
        match uid {
            Some(uid) if reads_all && waited && !entries.iter().any(repeated) => {
                self.reader.store(word(uid, by.tick()), Ordering::Release);
            }
            _ if span.writes && !seeded!("reader-outlives-a-write") => {
                self.reader.store(0, Ordering::Release)
            }
            _ => {}
        }
    }

    /// The stream of `timeline` wrote everything up to `tick`, behind all uses if it `waited`.
    pub(crate) fn written(&self, timeline: &Arc<Timeline>, tick: u64, waited: bool) {
        let span = Span {
            from: 0,
            to: END,
            writes: true,
        };
        self.stamp(
            timeline,
            span,
            By::Stream(Arc::clone(timeline), tick),
            waited,
        );
    }

    /// What the buffer's memory has to outlast: all entries but the home stream's.
    fn left(&self, entries: &Entries) -> Left {
        let mut left = Left::default();
        for entry in entries.iter() {
            match &entry.by {
                By::Home(_) => {}
                By::Stream(timeline, tick) => raise(&mut left.marks, timeline, *tick),
                By::Table(table) => {
                    if let Some((timeline, tick)) = table.last() {
                        raise(&mut left.marks, &timeline, tick);
                    }
                }
                By::Graph(graph, _) => {
                    if let Some((timeline, tick)) = graph.last() {
                        raise(&mut left.marks, &timeline, tick);
                    }
                    let recorder = graph.recorder();
                    let known = |r: &Arc<Recorder>| left.graphs.iter().any(|k| Arc::ptr_eq(k, r));
                    left.graphs.extend(recorder.filter(|r| !known(r)));
                }
            }
        }
        left
    }

    /// Empties the log of a buffer that is dropped; gives what its memory has to outlast, if anything.
    #[inline]
    pub(crate) fn leave(&mut self) -> Option<Left> {
        let entries = latch_mut(&mut self.entries);
        let at_home = entries.iter().all(|entry| matches!(entry.by, By::Home(_)));
        if at_home || seeded!("typed-uses-forgotten-by-the-free") {
            return None;
        }
        let entries = std::mem::take(entries);
        Some(self.left(&entries))
    }

    /// What has to be waited for before the memory is used otherwise.
    pub(crate) fn uses(&self) -> Vec<(Arc<Timeline>, u64)> {
        self.left(&latch(&self.entries)).marks
    }

    /// Whether a capture or a graph uses the memory.
    pub(crate) fn is_in_a_graph(&self) -> bool {
        let entries = latch(&self.entries);
        let mut all = entries.iter();
        all.any(|e| matches!(&e.by, By::Graph(graph, _) if !graph.is_over()))
    }

    /// The graphs that use the memory and that this was not yet asked for, to hold it where it is.
    pub(crate) fn graphs_to_hold(&self) -> Vec<Arc<Recorder>> {
        let mut entries = latch(&self.entries);
        let mut graphs: Vec<Arc<Recorder>> = Vec::new();
        let mut held: Vec<Arc<GraphRecord>> = Vec::new();
        for entry in entries.iter() {
            if let By::Graph(graph, _) = &entry.by
                && entry.held
            {
                held.push(Arc::clone(graph));
            }
        }
        for entry in entries.iter_mut() {
            let By::Graph(graph, _) = &entry.by else {
                continue;
            };
            entry.held = true;
            if !held.iter().any(|known| Arc::ptr_eq(known, graph)) {
                held.push(Arc::clone(graph));
                graphs.extend(graph.recorder());
            }
        }
        graphs
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessLog({} entries)", latch(&self.entries).len())
    }
}
