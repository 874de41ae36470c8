//! The uses of a typed buffer by queued work: the bytes, read or write, the stream and the tick.
//!
//! # Entries
//!
//! An entry has a range of bytes of the buffer, whether they are written, and the work that does it: a stream
//! up to a tick (see `timeline`), the last launch of a table, or every launch of a graph. The first entry is
//! the allocation, a write of the whole buffer by its home stream. An operation waits for every entry that it
//! conflicts with: both use a common byte and one of them writes. Once the operation is queued, it adds its
//! own entry (`ordered` has the steps).
//!
//! A queued write runs after everything it conflicted with, so its entry replaces those inside its bytes.
//! Entries of one stream for adjacent bytes and the same tick become one. Entries stay few: above a limit, a
//! stream with many of them gets a single one with the range of all their bytes and the last tick. This only
//! makes others wait for more. Work that the driver calls done loses its entries.
//!
//! # The fast path without the latch
//!
//! A buffer that one stream uses repeatedly does not need a look at its entries. Two words hold a stream and
//! a tick each. `writer`: this stream has nothing to wait for here, and there is an entry that it writes the
//! whole buffer up to the tick. `reader`: the same for reading. Two more words, `part` and `part_by`, hold
//! the last entry made for a part of the buffer, so that repeated uses of the same part need no further
//! entry. All four are written under the latch, whenever an entry is added.
//!
//! Reading them without the latch is enough. Only a write by another thread could make them wrong, and a
//! writer has borrowed the buffer exclusively. Launches of graphs borrow nothing, but the words of a buffer
//! that a graph uses are empty.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::access_entries::{By, END, Entries, Entry, Span, raise, raise_all};
use super::host_call::{is_running, without_any};
use super::{GraphRecord, Recorder, Timeline};
use crate::sync::{AtomicU64, Latch, latch, latch_mut};

/// Bits of a tick in a word; the other bits are the stream's uid.
const TICK_BITS: u32 = 40;

/// The work that an operation has to wait for.
#[derive(Default)]
pub(crate) struct Waits {
    /// Work of streams up to a tick, at most one entry per stream.
    pub(super) marks: Vec<(Arc<Timeline>, u64)>,
    /// Other streams of the operation's own capture.
    pub(super) edges: Vec<Arc<Timeline>>,
    /// Graphs: the operation waits for their last launch and has to report itself to them.
    pub(super) graphs: Vec<Arc<GraphRecord>>,
}

/// The work that must be done before a dropped buffer's memory is reused.
#[derive(Default)]
pub(crate) struct Left {
    /// Work of streams; of the home stream only if the memory may be freed on another.
    pub(crate) marks: Vec<(Arc<Timeline>, u64)>,
    /// Captures and graphs that use the memory.
    pub(crate) graphs: Vec<Arc<Recorder>>,
    /// The streams that their work was captured from.
    pub(crate) branches: Vec<Arc<Timeline>>,
}

/// The uses of one typed buffer; see the module documentation.
pub(crate) struct AccessLog {
    /// The uid of the home stream; 0 if there is none, and then no entry is [`By::Home`].
    home: u64,
    bytes: AtomicU64,
    writer: AtomicU64,
    reader: AtomicU64,
    /// The stream and tick of the entry in `part`; 0 while `part` is being written.
    part_by: AtomicU64,
    part: AtomicU64,
    /// How often both were written.
    part_count: AtomicU64,
    entries: Latch<Entries>,
    /// Whether the memory belongs to another library; a graph cannot keep it.
    lent: bool,
}

/// Asks the driver which of this work is done, and whether it may: nobody else may ask about streams that are gone.
fn ask(work: &[(Arc<Timeline>, u64)]) -> bool {
    let may_ask = !is_running() && work.iter().all(|(on, _)| on.may_poll());
    for (on, tick) in work.iter().filter(|_| may_ask) {
        if on.done() < *tick {
            // No record is made, and no host call runs: the caller may hold a lock. Work of which nothing is known stays.
            let _ = without_any(|| on.poll(*tick, u64::MAX));
        }
    }
    may_ask
}

/// A stream and a tick packed into a word; 0 if they do not fit.
#[inline]
fn word(uid: u64, tick: u64) -> u64 {
    let fits = uid >> (64 - TICK_BITS) == 0 && tick >> TICK_BITS == 0;
    if fits { (uid << TICK_BITS) | tick } else { 0 }
}

impl Waits {
    /// Adds work of `theirs` up to `tick`, unless `stream` is given and is already ordered after it.
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
    /// The log of a buffer of `bytes` that was just allocated on `home`'s stream.
    pub(crate) fn new(home: &Timeline, bytes: u64) -> Self {
        let tick = home.open_tick();
        Self::begin(home.uid, By::Home(tick), word(home.uid, tick), bytes)
    }

    /// The same as [`AccessLog::new`], for a buffer whose home stream may change.
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
            part_count: AtomicU64::new(0),
            entries: Latch::new(Entries::of(first)),
            lent: false,
        }
    }

    /// The log of `bytes` of another library's memory that `timeline`'s stream may use.
    #[cfg(feature = "cudarc")]
    pub(crate) fn lent(timeline: &Arc<Timeline>, bytes: u64) -> Self {
        let log = Self::without_home(timeline, bytes);
        Self { lent: true, ..log }
    }

    /// Whether no graph may use the memory.
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Sets the buffer's length to `bytes`.
    pub(crate) fn resized(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether the words alone show that the stream with this uid has nothing to wait for, not even for a
    /// capture to be kept off.
    #[inline]
    pub(super) fn is_known(&self, uid: u64, writes: bool) -> bool {
        let known = self.writer.load(Ordering::Acquire) >> TICK_BITS == uid
            || (!writes && self.reader.load(Ordering::Acquire) >> TICK_BITS == uid);
        known && !self.lent
    }

    /// Whether the words alone show that an entry covers the stream's work up to `tick`.
    #[inline]
    pub(super) fn has(&self, uid: u64, tick: u64, span: Span) -> bool {
        let word = word(uid, tick);
        word != 0
            && (self.writer.load(Ordering::Acquire) == word
                || (!span.writes && self.reader.load(Ordering::Acquire) == word)
                || self.has_part(word, span))
    }

    /// Whether the last entry has the stream and tick in `word`, and covers `span`.
    #[inline]
    fn has_part(&self, word: u64, span: Span) -> bool {
        let count = self.part_count.load(Ordering::Acquire);
        self.part_by.load(Ordering::Acquire) == word
            && Span::unpacked(self.part.load(Ordering::Acquire)).has(&span)
            && self.part_by.load(Ordering::Acquire) == word
            && self.part_count.load(Ordering::Acquire) == count
    }

    /// Stores the last entry in `part` and `part_by`. A thread that reads `part` while it is written finds 0
    /// in `part_by` afterwards.
    fn show_part(&self, span: Span, by: &By) {
        let packed = span.packed();
        let uid = by.uid(self.home).filter(|_| packed != 0);
        // Under the latch. A reader that finds the new part finds the new count too.
        let count = self.part_count.load(Ordering::Relaxed) + 1;
        self.part_count.store(count, Ordering::Release);
        self.part_by.store(0, Ordering::Release);
        self.part.store(packed, Ordering::Release);
        let by = uid.map_or(0, |uid| word(uid, by.tick()));
        self.part_by.store(by, Ordering::Release);
    }

    /// A use of the whole buffer also covers the bytes that it had before it shrank: they may come back when
    /// it grows, and work queued for them must still be waited for.
    fn widened(&self, mut span: Span) -> Span {
        if span.from == 0 && span.to >= self.bytes.load(Ordering::Relaxed) {
            span.to = END;
        }
        span
    }

    /// Adds to `waits` the work that a use of `span` on `stream`, within the capture of `own`, has to wait
    /// for. Without a stream: all work that conflicts.
    pub(super) fn conflicts(
        &self,
        home: &Arc<Timeline>,
        span: Span,
        stream: Option<&Timeline>,
        own: Option<&Arc<GraphRecord>>,
        waits: &mut Waits,
    ) {
        let span = self.widened(span);
        let entries = latch(&self.entries);
        for entry in entries.iter().filter(|entry| span.meets(&entry.span)) {
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
                // Within the capture, its streams come behind the allocation.
                By::Launches(graph) if own.is_some_and(|own| Arc::ptr_eq(own, graph)) => {}
                By::Graph(graph, _) | By::Launches(graph) => waits.add_graph(graph),
            }
        }
    }

    /// Adds the entry of a queued operation. With `waited`, the operation waited for everything it conflicted
    /// with, so the entry replaces those it covers.
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
        entries.add(new, waited);
        self.show(&entries, span, &by, waited);
        self.show_part(span, &by);
        if let Some(open) = entries.too_many(home) {
            drop(entries);
            let asked = ask(&open);
            latch(&self.entries).shorten(home, asked);
        }
    }

    /// Updates `writer` and `reader` after a new entry.
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
            _ if span.writes => self.reader.store(0, Ordering::Release),
            _ => {}
        }
    }

    /// Adds an entry that `timeline`'s stream wrote the whole buffer up to `tick`; with `waited`, after all
    /// other uses.
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

    /// Adds an entry for a buffer in the memory of `graph`, captured on `timeline`'s stream: each launch writes it.
    pub(crate) fn note_launches(&self, timeline: &Arc<Timeline>, graph: &Arc<GraphRecord>) {
        let span = Span {
            from: 0,
            to: END,
            writes: true,
        };
        self.stamp(timeline, span, By::Launches(Arc::clone(graph)), true);
    }

    /// The work that must be done before the buffer's memory is reused: all entries except the home stream's.
    fn left(&self, entries: &Entries) -> Left {
        let mut left = Left::default();
        for entry in entries.iter() {
            match &entry.by {
                By::Home(_) => {}
                By::Stream(timeline, tick) => left.marks.push((Arc::clone(timeline), *tick)),
                By::Table(table) => left.marks.extend(table.last()),
                // It keeps its memory in any case.
                By::Launches(graph) => left.marks.extend(graph.last()),
                By::Graph(graph, on) => {
                    // The recorder first: if the graph is gone, its last launch is final; if not, it keeps the memory.
                    let recorder = graph.recorder();
                    left.marks.extend(graph.last());
                    if recorder.is_some() && left.branches.iter().all(|it| it.uid != on.uid) {
                        left.branches.push(Arc::clone(on));
                    }
                    let known = |r: &Arc<Recorder>| left.graphs.iter().any(|k| Arc::ptr_eq(k, r));
                    left.graphs.extend(recorder.filter(|r| !known(r)));
                }
            }
        }
        raise_all(&mut left.marks, []);
        left
    }

    /// Empties the log of a buffer that is dropped. Returns the work that must be done before its memory is
    /// reused, if any.
    #[inline]
    pub(crate) fn leave(&mut self) -> Option<Left> {
        let entries = latch_mut(&mut self.entries);
        let at_home = entries.iter().all(|entry| matches!(entry.by, By::Home(_)));
        if at_home {
            return None;
        }
        let entries = std::mem::take(entries);
        Some(self.left(&entries))
    }

    /// The last tick of the home stream's own uses, which [`AccessLog::leave`] leaves out.
    pub(crate) fn last_at_home(&mut self) -> u64 {
        let entries = latch_mut(&mut self.entries);
        let own = entries.iter().filter(|it| matches!(it.by, By::Home(_)));
        own.map(|it| it.by.tick()).max().unwrap_or(0)
    }

    /// The work to wait for before the memory is used for anything else.
    pub(crate) fn uses(&self) -> Vec<(Arc<Timeline>, u64)> {
        self.left(&latch(&self.entries)).marks
    }

    /// Whether a capture or a graph uses the memory.
    pub(crate) fn is_in_a_graph(&self) -> bool {
        let entries = latch(&self.entries);
        let mut all = entries.iter();
        all.any(|e| matches!(&e.by, By::Graph(graph, _) if !graph.is_over()))
    }

    /// The graphs that use the memory and were not returned before; the caller holds the memory at its
    /// address for them.
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

#[cfg(test)]
mod tests;
