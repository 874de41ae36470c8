//! Entries of an access log: their meaning, which of them replace others, and how their number stays small.

use std::cmp::Reverse;
use std::sync::Arc;

use super::structure::{GraphRecord, TableRecord, Timeline};

/// Number of entries above which they are merged.
const MANY: usize = 24;

/// A stream, table or graph with at most this many entries keeps them when entries are merged.
const FEW: usize = 4;

/// The end of an entry that covers the buffer, whatever its length.
pub(super) const END: u64 = u64::MAX;

/// The work of an entry.
#[derive(Clone)]
pub(super) enum By {
    /// The home stream up to a tick. Keeps no reference to the stream.
    Home(u64),
    /// A stream up to a tick.
    Stream(Arc<Timeline>, u64),
    /// The last launch of a table.
    Table(Arc<TableRecord>),
    /// Every launch of a graph, whose work was captured from the stream.
    Graph(Arc<GraphRecord>, Arc<Timeline>),
    /// Every launch of the graph whose memory the buffer is in: it uses the bytes for what was freed before.
    Launches(Arc<GraphRecord>),
}

/// A range of bytes of the buffer, and whether they are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) writes: bool,
}

pub(super) struct Entry {
    pub(super) span: Span,
    pub(super) by: By,
    /// For a graph and movable memory: the graph holds the memory at its address.
    pub(super) held: bool,
}

/// The entries of a buffer; two of them need no allocation.
#[derive(Default)]
pub(super) struct Entries {
    few: [Option<Entry>; 2],
    more: Vec<Entry>,
    /// Number of entries at which they are merged next; 0 before the first time.
    many: usize,
}

/// Adds a tick to a list with at most one tick per stream.
pub(crate) fn raise(marks: &mut Vec<(Arc<Timeline>, u64)>, timeline: &Arc<Timeline>, tick: u64) {
    match marks
        .iter_mut()
        .find(|(known, _)| known.uid == timeline.uid)
    {
        Some((_, last)) => *last = tick.max(*last),
        None => marks.push((Arc::clone(timeline), tick)),
    }
}

/// Adds ticks to such a list of many streams, in time that grows with their number alone.
pub(crate) fn raise_all(
    marks: &mut Vec<(Arc<Timeline>, u64)>,
    more: impl IntoIterator<Item = (Arc<Timeline>, u64)>,
) {
    marks.extend(more);
    // Stable, as it merges sorted runs.
    marks.sort_by_key(|(on, tick)| (on.uid, Reverse(*tick)));
    marks.dedup_by_key(|(on, _)| on.uid);
}

impl Span {
    /// Whether all bytes of `other` are in this span.
    fn surrounds(&self, other: &Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    /// The range from the first byte of both to the last, a write if either is.
    fn joined(&self, other: &Self) -> Self {
        Self {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
            writes: self.writes | other.writes,
        }
    }

    /// Whether this span includes all bytes of `other` and does at least the same to them.
    pub(super) fn has(&self, other: &Self) -> bool {
        self.surrounds(other) && (self.writes || !other.writes)
    }

    /// The span packed into a word; 0 if it does not fit.
    pub(super) fn packed(&self) -> u64 {
        match self.from >> 31 == 0 && self.to >> 32 == 0 {
            true => (self.from << 33) | (self.to << 1) | u64::from(self.writes),
            false => 0,
        }
    }

    pub(super) fn unpacked(word: u64) -> Self {
        Self {
            from: word >> 33,
            to: (word >> 1) & u64::from(u32::MAX),
            writes: word & 1 == 1,
        }
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let disjoint = self.to <= other.from || other.to <= self.from;
        !disjoint && (self.writes || other.writes)
    }
}

impl By {
    /// Whether both are work of the same stream, of the same table, or of the same stream in the same graph.
    fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Home(_), Self::Home(_)) => true,
            (Self::Stream(one, _), Self::Stream(two, _)) => one.uid == two.uid,
            (Self::Table(one), Self::Table(two)) => Arc::ptr_eq(one, two),
            (Self::Graph(one, on), Self::Graph(two, at)) => {
                Arc::ptr_eq(one, two) && on.uid == at.uid
            }
            (Self::Launches(one), Self::Launches(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }

    pub(super) fn tick(&self) -> u64 {
        match self {
            Self::Home(tick) | Self::Stream(_, tick) => *tick,
            Self::Table(_) | Self::Graph(..) | Self::Launches(_) => 0,
        }
    }

    /// The last of its work, if there was any; `None` if more may follow.
    fn last(&self, home: &Arc<Timeline>) -> Option<Option<(Arc<Timeline>, u64)>> {
        match self {
            Self::Home(tick) => Some(Some((Arc::clone(home), *tick))),
            Self::Stream(timeline, tick) => Some(Some((Arc::clone(timeline), *tick))),
            Self::Table(table) => table.is_over().then(|| table.last()),
            Self::Graph(graph, _) | Self::Launches(graph) => graph.is_over().then(|| graph.last()),
        }
    }

    fn raise(&mut self, other: &Self) {
        if let Self::Home(tick) | Self::Stream(_, tick) = self {
            *tick = other.tick().max(*tick);
        }
    }

    /// The stream's uid, for work of a stream up to a tick.
    pub(super) fn uid(&self, home: u64) -> Option<u64> {
        match self {
            Self::Home(_) => Some(home),
            Self::Stream(timeline, _) => Some(timeline.uid),
            Self::Table(_) | Self::Graph(..) | Self::Launches(_) => None,
        }
    }
}

impl Entry {
    /// Whether this entry already includes `new`.
    fn says(&self, new: &Self) -> bool {
        self.by.is_beside(&new.by) && self.by.tick() >= new.by.tick() && self.span.has(&new.span)
    }

    /// Whether both are the same use of adjacent bytes.
    fn continues(&self, new: &Self) -> bool {
        self.is_kin(new)
            && self.by.uid(0).is_some()
            && self.by.tick() == new.by.tick()
            && self.span.from <= new.span.to
            && new.span.from <= self.span.to
    }

    /// Whether a wait for `self` includes a wait for `old`. With `waited`, the work of `self` is queued after
    /// everything that it conflicts with.
    fn replaces(&self, old: &Self, waited: bool) -> bool {
        if !self.span.surrounds(&old.span) || old.held {
            return false;
        }
        if self.by.is_beside(&old.by) {
            let later = self.by.tick() >= old.by.tick();
            return self.span.writes >= old.span.writes && later;
        }
        let behind = waited && self.span.writes;
        behind
            && match (&self.by, &old.by) {
                (By::Graph(one, _), By::Graph(two, _)) => Arc::ptr_eq(one, two),
                (By::Home(_) | By::Stream(..), By::Graph(graph, _) | By::Launches(graph)) => {
                    graph.is_over()
                }
                (By::Home(_) | By::Stream(..), _) => true,
                _ => false,
            }
    }
}

impl Entries {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.few.iter().flatten().chain(&self.more)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.few.iter_mut().flatten().chain(&mut self.more)
    }

    fn retain(&mut self, keeps: impl Fn(&Entry) -> bool) {
        for few in &mut self.few {
            few.take_if(|entry| !keeps(entry));
        }
        self.more.retain(|entry| keeps(entry));
    }

    /// The entries of a buffer with a single entry.
    pub(super) fn of(first: Entry) -> Self {
        Self {
            few: [Some(first), None],
            ..Self::default()
        }
    }

    /// Adds an entry and removes those that it replaces. With `waited`, its work is queued after everything
    /// that it conflicts with. Entries of one stream for adjacent bytes and the same tick become one with the
    /// same meaning. So a buffer that is used part by part has few entries, and no work waits for more
    /// because of the merge.
    pub(super) fn add(&mut self, mut new: Entry, waited: bool) {
        if self.iter().any(|entry| entry.says(&new)) {
            return;
        }
        self.retain(|old| !new.replaces(old, waited));
        let beside = self.iter().filter(|old| old.continues(&new));
        new.span = beside.fold(new.span, |span, old| span.joined(&old.span));
        self.retain(|old| !new.replaces(old, false));
        self.put(new);
    }

    /// The work that is not known to be done, if there are too many entries.
    pub(super) fn too_many(&self, home: &Arc<Timeline>) -> Option<Vec<(Arc<Timeline>, u64)>> {
        let is_open = |(on, tick): &(Arc<Timeline>, u64)| on.done() < *tick;
        let each = self.iter().filter_map(|it| it.by.last(home)?);
        (self.len() > self.many.max(MANY)).then(|| each.filter(is_open).collect())
    }

    fn put(&mut self, new: Entry) {
        if let Some(free) = self.few.iter_mut().find(|few| few.is_none()) {
            *free = Some(new);
            return;
        }
        // A buffer that only its home stream uses allocates no memory here.
        if self.more.capacity() == 0
            && matches!(new.by, By::Home(_))
            && let Some(same) = self.few.iter_mut().flatten().next_back()
            && matches!(same.by, By::Home(_))
        {
            same.widen(&new);
            return;
        }
        self.more.push(new);
    }

    pub(super) fn len(&self) -> usize {
        self.few.iter().flatten().count() + self.more.len()
    }

    /// Merges entries: each stream with many of them gets one, and finished work is removed. A stream with
    /// few keeps them, because its last tick would make others wait for unrelated work. If the driver was not `asked`
    /// what is finished, few more entries are too many again.
    pub(super) fn shorten(&mut self, home: &Arc<Timeline>, asked: bool) {
        let mut all: Vec<Entry> = self.few.iter_mut().filter_map(Option::take).collect();
        all.append(&mut self.more);
        let mut kept: Vec<Entry> = Vec::new();
        for mut entry in all {
            let Some(last) = entry.by.last(home) else {
                kept.push(entry);
                continue;
            };
            if let Some((timeline, tick)) = last.filter(|(on, tick)| on.done() < *tick) {
                if !matches!(entry.by, By::Home(_)) {
                    entry.by = By::Stream(timeline, tick);
                }
                entry.held = false;
                kept.push(entry);
            }
        }
        self.more = joined(kept);
        self.many = match asked {
            true => MANY.max(2 * self.more.len()),
            false => MANY + self.more.len(),
        };
    }
}

/// Merges the entries of each kind of work that has more than [`FEW`] of them.
fn joined(entries: Vec<Entry>) -> Vec<Entry> {
    let kin = |entry: &Entry| entries.iter().filter(|it| it.is_kin(entry)).count();
    let many: Vec<bool> = entries.iter().map(|entry| kin(entry) > FEW).collect();
    let mut kept: Vec<Entry> = Vec::new();
    for (entry, many) in entries.into_iter().zip(many) {
        match kept.iter_mut().find(|it| many && it.is_kin(&entry)) {
            Some(same) => same.widen(&entry),
            None => kept.push(entry),
        }
    }
    kept
}

impl Entry {
    /// Whether both do the same to the buffer, by the same work.
    fn is_kin(&self, other: &Self) -> bool {
        self.by.is_beside(&other.by)
            && self.span.writes == other.span.writes
            && self.held == other.held
    }

    /// Extends this entry by the bytes of `other`, which is of the same stream.
    fn widen(&mut self, other: &Self) {
        self.span = self.span.joined(&other.span);
        self.by.raise(&other.by);
    }
}
