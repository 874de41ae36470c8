//! The order of operations on typed memory.
//!
//! # The steps
//!
//! 1. For each buffer that the operation uses, the log finds the conflicting work: it uses a common byte, and
//!    one of the two writes (`access_log`). The stream waits for that work on the device, unless it is
//!    already ordered after it.
//! 2. The work is queued.
//! 3. An entry is added, with the tick that is open **then**. A record counts its tick before it calls the
//!    driver, so an entry made earlier could carry an older tick that does not cover the work.
//!
//! No conflicting operation can run between these steps: a writer has borrowed the buffer exclusively, and
//! readers do not wait for each other. Launches of graphs borrow nothing; `records` orders them by other
//! means. The third step also runs if the work failed or panicked, because some of it may be queued.
//!
//! # Under capture
//!
//! Captured work runs with the launches of its graph. So its entries name the graph, the launches wait for
//! whatever the work would have to wait for (`capture`), and within the capture streams wait for each other.
//! The driver is asked both before and after the work whether it was captured: the crate may know of a
//! capture slightly before it begins and after it has ended. Work that may or may not have been captured gets
//! both entries.

use std::sync::Arc;

use super::access_entries::{By, Span, raise};
use super::access_log::{AccessLog, Waits};
use super::awake::Queueing;
use super::records::Held;
use super::stream::OutsideCapture;
use super::structure::Awake;
use super::{Device, GraphRecord, StreamCore, TableRecord, Timeline};
use crate::error::{Error, Result};

/// A position in a buffer, for its log.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) log: &'a AccessLog,
    /// The home stream of the log, or any other stream of the device.
    pub(crate) home: &'a StreamCore,
    /// Bytes from the start of the buffer.
    pub(crate) from: u64,
    /// Set if the memory may sleep.
    pub(crate) awake: Option<&'a Arc<Awake>>,
}

/// A use of bytes of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use<'a> {
    place: Place<'a>,
    span: Span,
}

impl std::fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({} in {:?})", self.from, self.log)
    }
}

impl<'a> Place<'a> {
    /// A use of `bytes` bytes from here on.
    #[inline]
    pub(crate) fn used(self, bytes: u64, writes: bool) -> Use<'a> {
        let span = Span {
            from: self.from,
            to: self.from + bytes,
            writes,
        };
        Use { place: self, span }
    }

    pub(crate) fn offset(self, bytes: u64) -> Self {
        let from = self.from + bytes;
        Self { from, ..self }
    }
}

impl Use<'_> {
    /// The device of the memory.
    pub(crate) fn device(&self) -> &Device {
        &self.place.home.device
    }

    fn is_lent(&self) -> bool {
        self.place.log.is_lent()
    }

    /// Returns an error while the memory sleeps.
    fn check_awake(&self) -> Result<()> {
        self.place.awake.map_or(Ok(()), |awake| awake.check())
    }

    /// # Errors
    /// [`Error::Invalid`] if the stream and the memory are of different devices.
    pub(crate) fn check(&self, stream: &StreamCore) -> Result<()> {
        if self.place.home.device.same(&stream.device) {
            return Ok(());
        }
        let why = "it is of another device than the memory";
        Err(Error::invalid("stream", why))
    }

    fn conflicts(
        &self,
        stream: Option<&Timeline>,
        own: Option<&Arc<GraphRecord>>,
        waits: &mut Waits,
    ) {
        if self.span.from < self.span.to {
            let home = &self.place.home.timeline;
            (self.place.log).conflicts(home, self.span, stream, own, waits);
        }
    }

    fn stamp(&self, by: By, waited: bool) {
        if self.span.from < self.span.to {
            let home = &self.place.home.timeline;
            self.place.log.stamp(home, self.span, by, waited);
        }
    }
}

/// Queues `work` on `stream` in the order that its uses require. `None` is memory that the caller orders.
///
/// # Errors
/// [`Error::Invalid`] if memory is of another device than the stream; any error of the driver from a wait.
/// The work is then not queued. Errors of `work` are in the value that it returns.
#[inline]
pub(crate) fn ordered<R>(
    stream: &StreamCore,
    uses: &[Option<Use<'_>>],
    work: impl FnOnce() -> R,
) -> Result<R> {
    let under_way = begin(stream, uses, None)?;
    let outcome = work();
    drop(under_way);
    Ok(outcome)
}

/// Prevents captures of `stream` while work on memory of another library is queued, because a graph cannot keep
/// that memory.
fn outside_with_lent<'u>(
    stream: &'u StreamCore,
    uses: &[Option<Use<'_>>],
    table: Option<&TableUses<'_>>,
) -> Result<Option<OutsideCapture<'u>>> {
    let mut uses = uses.iter().flatten();
    if !uses.any(Use::is_lent) && !table.is_some_and(|table| table.is_lent) {
        return Ok(None);
    }
    let why = "it is being captured, and a graph cannot keep memory that was lent";
    let outside = stream.outside_capture();
    outside.map(Some).map_err(|_| Error::invalid("stream", why))
}

/// The same as [`ordered`], for `work` that is done on the device when it returns, unless it fails: not under capture.
pub(crate) fn ordered_to_its_end<R>(
    stream: &StreamCore,
    uses: &[Option<Use<'_>>],
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    stream.refuse_under_capture()?;
    let mut under_way = begin(stream, uses, None)?;
    let outcome = work();
    under_way.done = outcome.is_ok();
    drop(under_way);
    outcome
}

/// Makes `stream` wait before the caller's own work on `used`. While the returned value lives, launches of graphs
/// that use the same memory wait for that work.
pub(crate) fn wait_before(stream: &StreamCore, used: Use<'_>) -> Result<Held> {
    let uses = [Some(used)];
    let mut under_way = begin(stream, &uses, None)?;
    under_way.uses = &[];
    // No launch can happen in between.
    Ok(Held::new(&under_way.graphs, &stream.timeline))
}

/// Adds the entry of the caller's own work, all of which is queued on `stream` by now. `done` says whether
/// the host has seen it done, and `since` how often captures of the stream had begun and ended before it.
pub(crate) fn note_behind(stream: &StreamCore, used: Use<'_>, done: bool, since: u64) {
    let timeline = &*stream.timeline;
    let recorder = timeline.recorder();
    let own = recorder.as_ref().map(|recorder| recorder.record());
    let mut waits = Waits::default();
    used.conflicts(Some(timeline), own, &mut waits);
    let uses = [Some(used)];
    let turn = (!waits.graphs.is_empty()).then(|| stream.device.inner.turns.take());
    for graph in &waits.graphs {
        match own {
            Some(own) => {
                own.meet(graph);
                // Of work that was queued before the capture.
                graph.report(&stream.timeline, timeline.queued_tick());
            }
            None => graph.count(true),
        }
    }
    drop(turn);
    if own.is_some() {
        waits.graphs.clear();
    }
    drop(UnderWay {
        stream,
        _queueing: Queueing::begin(timeline),
        uses: &uses,
        table: None,
        captures: since,
        // Other work may have used the memory since the wait.
        waited: false,
        done,
        graphs: waits.graphs,
        _outside: None,
    });
}

/// An operation between its first and its last step; its drop makes the last step.
struct UnderWay<'u, 'a, 't> {
    stream: &'u StreamCore,
    /// Keeps the memory from falling asleep until the work is queued.
    _queueing: Queueing<'u>,
    uses: &'u [Option<Use<'a>>],
    table: Option<&'u mut TableUses<'t>>,
    /// The stream's count of captures begun and ended, when the operation began.
    captures: u64,
    waited: bool,
    /// Whether the host has seen the work done.
    done: bool,
    graphs: Vec<Arc<GraphRecord>>,
    _outside: Option<OutsideCapture<'u>>,
}

/// Makes `stream` wait for all conflicting work.
#[inline]
fn begin<'u, 'a, 't>(
    stream: &'u StreamCore,
    uses: &'u [Option<Use<'a>>],
    table: Option<&'u mut TableUses<'t>>,
) -> Result<UnderWay<'u, 'a, 't>> {
    for used in uses.iter().flatten() {
        used.check(stream)?;
    }
    let timeline = &*stream.timeline;
    let queueing = Queueing::begin(timeline);
    if stream.device.has_suspended() {
        let tensors = table.iter().flat_map(|table| &table.tensors);
        let mut all = uses.iter().flatten().chain(tensors);
        all.try_for_each(Use::check_awake)?;
    }
    let mut under_way = UnderWay {
        stream,
        _queueing: queueing,
        uses: &[],
        table: None,
        captures: timeline.captures(),
        waited: true,
        done: false,
        graphs: Vec::new(),
        _outside: None,
    };
    let known = |used: &Use<'_>| used.place.log.is_known(timeline.uid, used.span.writes);
    let nothing_to_wait_for = under_way.captures & 1 == 0
        && uses.iter().flatten().all(known)
        && table.as_ref().is_none_or(|table| table.is_known(timeline));
    if !nothing_to_wait_for {
        under_way._outside = outside_with_lent(stream, uses, table.as_deref())?;
        wait(stream, uses, table.as_deref(), &mut under_way.graphs)?;
    }
    (under_way.uses, under_way.table) = (uses, table);
    Ok(under_way)
}

/// The part of [`begin`] that looks at the logs. Adds to `under_way` the graphs that the work is counted in.
#[cold]
#[inline(never)]
fn wait(
    stream: &StreamCore,
    uses: &[Option<Use<'_>>],
    table: Option<&TableUses<'_>>,
    under_way: &mut Vec<Arc<GraphRecord>>,
) -> Result<()> {
    let timeline = &*stream.timeline;
    let recorder = timeline.recorder();
    let own = recorder.as_ref().map(|recorder| recorder.record());
    if let Some(own) = own {
        // The capture may end before the work is queued, and the graph is not launched until it is.
        let _turn = stream.device.inner.turns.take();
        own.count(true);
        under_way.push(Arc::clone(own));
    }
    if recorder.is_some() && !stream.device.backend().stream_capturing(stream.raw)? {
        return Err(Error::invalid(
            "stream",
            "a capture of it was announced and has not begun, or has just ended: nothing on it can be ordered now",
        ));
    }
    let mut waits = Waits::default();
    for used in uses.iter().flatten() {
        used.conflicts(Some(timeline), own, &mut waits);
    }
    match table {
        Some(table) if own.is_some() => {
            for used in &table.tensors {
                used.conflicts(Some(timeline), own, &mut waits);
            }
        }
        Some(table) => {
            for (theirs, tick) in table.waits.marks.iter().chain(&table.record.0.last()) {
                waits.add(Some(timeline), theirs, *tick);
            }
            for graph in &table.waits.graphs {
                waits.add_graph(graph);
            }
        }
        None => {}
    }
    if waits.is_empty() {
        return Ok(());
    }
    make(stream, waits, own, under_way)
}

/// Queues the waits.
fn make(
    stream: &StreamCore,
    mut waits: Waits,
    own: Option<&Arc<GraphRecord>>,
    under_way: &mut Vec<Arc<GraphRecord>>,
) -> Result<()> {
    let timeline = &*stream.timeline;
    let turns = &stream.device.inner.turns;
    let turn = (!waits.graphs.is_empty()).then(|| turns.take_beside(&waits.graphs));
    for graph in waits.graphs.drain(..) {
        // Under capture too: the capture may end before the work is queued.
        own.inspect(|own| own.meet(&graph));
        if let Some((theirs, tick)) = graph.last() {
            raise(&mut waits.marks, &theirs, tick);
        }
        graph.count(true);
        under_way.push(graph);
    }
    // The driver may keep this thread until the stream has room.
    drop(turn);
    for (theirs, tick) in &waits.marks {
        timeline.wait_in(own, theirs, *tick)?;
    }
    for edge in &waits.edges {
        timeline.wait_in(own, edge, u64::MAX)?;
    }
    Ok(())
}

impl UnderWay<'_, '_, '_> {
    #[inline]
    fn end(&mut self) {
        let timeline = &*self.stream.timeline;
        let tick = match self.done {
            true => timeline.done(),
            false => timeline.open_tick(),
        };
        let known = |used: &Use<'_>| used.place.log.has(timeline.uid, tick, used.span);
        let nothing_to_note = self.table.is_none()
            && self.graphs.is_empty()
            && self.captures & 1 == 0
            && timeline.captures() == self.captures
            && self.uses.iter().flatten().all(known);
        if !nothing_to_note {
            self.note(tick);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, tick: u64) {
        let stream = self.stream;
        let timeline = &stream.timeline;
        let same = timeline.captures() == self.captures;
        let began = self.captures & 1 == 1;
        let is_captured = || {
            matches!(
                stream.device.backend().stream_capturing(stream.raw),
                Ok(true)
            )
        };
        let surely = began && same && is_captured();
        if !surely {
            let waited = self.waited && same && !began;
            for used in self.uses.iter().flatten() {
                used.stamp(By::Stream(Arc::clone(timeline), tick), waited);
            }
            if let Some(table) = &mut self.table {
                table.record.0.launched(timeline, tick);
                if same {
                    table.waits.marks.clear();
                }
            }
        }
        let graphs = (began || !same).then(|| timeline.graphs_since(self.captures));
        for graph in graphs.into_iter().flatten() {
            if !surely {
                self.meet(&graph, tick);
            }
            let tensors = self.table.iter().flat_map(|table| &table.tensors);
            for used in self.uses.iter().flatten().chain(tensors) {
                used.stamp(By::Graph(Arc::clone(&graph), Arc::clone(timeline)), surely);
                used.place.awake.inspect(|awake| graph.sleeps_with(awake));
            }
            if let Some(table) = &mut self.table {
                table.waits.add_graph(&graph);
            }
        }
        if self.graphs.is_empty() {
            return;
        }
        // Not if a wait failed, nor as a part of the graph.
        let is_queued = !surely && (!self.uses.is_empty() || self.table.is_some());
        let turn = stream.device.inner.turns.take();
        for graph in self.graphs.drain(..) {
            if is_queued {
                graph.report(timeline, tick);
            }
            graph.count(false);
        }
        stream.device.inner.turns.tell();
        drop(turn);
    }
}

impl UnderWay<'_, '_, '_> {
    /// Orders launches of `graph` with the work and with what the work waited for. The work may be part of the graph, or
    /// run beside it, and it did not know when it made its waits.
    fn meet(&self, graph: &Arc<GraphRecord>, tick: u64) {
        let timeline = &self.stream.timeline;
        let mut waits = Waits::default();
        let tensors = self.table.iter().flat_map(|table| &table.tensors);
        for used in self.uses.iter().flatten().chain(tensors) {
            used.conflicts(Some(timeline), Some(graph), &mut waits);
        }
        let _turn = self.stream.device.inner.turns.take();
        waits.graphs.iter().for_each(|other| graph.meet(other));
        graph.report(timeline, tick);
    }
}

impl Drop for UnderWay<'_, '_, '_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The tensors of a table that is launched repeatedly.
pub(crate) struct TableUses<'a> {
    record: Ending,
    tensors: Vec<Use<'a>>,
    /// The work that launches have to wait for: marks only the first launch, graphs every launch.
    waits: Waits,
    /// Whether memory of another library is among them.
    is_lent: bool,
}

impl<'a> TableUses<'a> {
    /// Adds the table's record to the log of each tensor.
    pub(crate) fn new(tensors: Vec<Use<'a>>) -> Self {
        let record = Ending(Arc::default());
        let mut waits = Waits::default();
        for used in &tensors {
            used.conflicts(None, None, &mut waits);
        }
        for used in &tensors {
            used.stamp(By::Table(Arc::clone(&record.0)), false);
        }
        Self {
            record,
            is_lent: tensors.iter().any(Use::is_lent),
            tensors,
            waits,
        }
    }

    /// Returns an error if a tensor is of another device than `stream`.
    pub(crate) fn check(tensors: &[Use<'_>], stream: &StreamCore) -> Result<()> {
        tensors.iter().try_for_each(|used| used.check(stream))
    }

    fn is_known(&self, timeline: &Timeline) -> bool {
        !self.is_lent && self.waits.is_empty() && self.record.0.is_of(timeline)
    }

    /// Queues a launch by `work` on `stream`, which uses `others` in addition to the tensors.
    ///
    /// # Errors
    /// See [`ordered`].
    pub(crate) fn launch<R>(
        &mut self,
        stream: &StreamCore,
        others: &[Option<Use<'_>>],
        work: impl FnOnce() -> R,
    ) -> Result<R> {
        let Waits { marks, graphs, .. } = &mut self.waits;
        graphs.retain(|graph| {
            let is_over = graph.is_over();
            if let (true, Some((theirs, tick))) = (is_over, graph.last()) {
                raise(marks, &theirs, tick);
            }
            !is_over
        });
        let under_way = begin(stream, others, Some(self))?;
        let outcome = work();
        drop(under_way);
        Ok(outcome)
    }
}

/// Marks the table's record as ended when it is dropped. A type of its own, so that a table does not borrow
/// the tensors until its drop.
struct Ending(Arc<TableRecord>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl std::fmt::Debug for TableUses<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableUses({} tensors)", self.tensors.len())
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_forgets_the_graphs_that_are_gone() {
        let device = Device::host().expect("the host device");
        let stream = device.stream().expect("a stream");
        let log = AccessLog::new(&stream.core().timeline, 64);
        let place = Place {
            log: &log,
            home: stream.core(),
            from: 0,
            awake: None,
        };
        let mut table = TableUses::new(vec![place.used(64, true)]);
        for _ in 0..50 {
            let capture = stream.begin_capture().expect("a capture");
            (table.launch(stream.core(), &[], || ())).expect("captured");
            let graph = capture.end().expect("a graph");
            graph.launch(&stream).expect("queued");
        }
        let count = table.waits.graphs.len();
        assert!(count <= 1, "{count} graphs are kept");
        // What the last of them does is waited for.
        (table.launch(stream.core(), &[], || ())).expect("queued");
        assert!(table.waits.graphs.is_empty() && table.waits.marks.is_empty());
    }
}
