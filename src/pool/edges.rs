//! Blocks whose edge lies in a handle that other blocks use.
//!
//! A handle is mapped whole, so the free part of a handle that also holds a live block is of use only
//! to requests that fit beside that block, or that can go on into addresses next to it. Where those
//! are taken it is lost: over programs whose blocks have a few granules each, such parts add up to
//! several hundredths of the pool.
//!
//! Physical memory may be mapped at two addresses. A request that would make the pool grow is put
//! where nothing is mapped: its middle into whole handles, and its lower or upper *edge* into the free
//! part of a handle in use, which is mapped there a second time. The bytes of the edge are **away** at
//! the handle's own place, and the bytes of the handle's other blocks are away in the second
//! mapping. When the block is freed, the edge is a hole again at the handle's own place, and the second
//! mapping goes as that of a stolen handle does, when the work that may use it is done.
//!
//! No byte is in two blocks at once, and no two blocks share a cache line, so two addresses of one
//! handle never name the same data.
//!
//! Blocks that may move have no such edges: a pool that serves any makes none.

use std::collections::BTreeMap;

use super::core::{Core, Grant, is_done};
use super::extents::{Extent, FRESH, Id, NONE, Slot, State};
use super::mapping::total;
use super::parts::{Fragment, Parts};
use super::told::Told;
use super::windows::Window;
use crate::error::Result;

/// The second mapping of a handle, at the edge of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    /// Bytes of the handle.
    bytes: u64,
    /// Offset of the handle's own place.
    home: u64,
    /// What of it the block has.
    away: Id,
    /// Sequence number of the latest free when it was made.
    born: u32,
}

/// What a request may cost that is put together from parts, at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Bytes in new handles.
    pub(super) created: u64,
    /// Bytes in whole handles, idle or new.
    pub(super) whole: u64,
    /// Handles mapped elsewhere or a second time.
    pub(super) calls: u64,
}

/// Where a request's parts go.
pub(super) struct Place {
    /// Offset of the whole granules.
    pub(super) base: u64,
    /// Whether the lower edge is mapped a second time, or is where it should be already.
    pub(super) map_lower: bool,
    pub(super) map_upper: bool,
    /// What of the whole granules is to be mapped, from and to; the rest is in place.
    pub(super) lacks: (u64, u64),
    /// The hole that the rest is in.
    pub(super) core: Id,
}

impl Place {
    /// The whole granules, of which there are `whole` bytes.
    fn middle(&self, whole: u64) -> Window {
        Window {
            first: self.core,
            map_from: self.lacks.0,
            to_map: self.lacks.1 - self.lacks.0,
            ..Window::of_gap(self.base, whole)
        }
    }

    /// Second mappings that it takes.
    pub(super) fn edges(&self) -> u64 {
        u64::from(self.map_lower) + u64::from(self.map_upper)
    }
}

impl Core {
    /// The second mapping that contains `offset`, and where it begins.
    fn edge_at(&self, offset: u64) -> Option<(u64, Edge)> {
        let (&at, &edge) = self.edges.range(..=offset).next_back()?;
        (offset < at + edge.bytes).then_some((at, edge))
    }

    /// Whether an end of the block at `start` lies in a second mapping.
    pub(crate) fn has_edge(&self, start: u64, bytes: u64) -> bool {
        !self.edges.is_empty()
            && (self.edge_at(start).is_some() || self.edge_at(start + bytes - 1).is_some())
    }

    /// Takes `bytes` with edges in handles in use, if that can be had on the `terms`.
    pub(super) fn take_with_edges(
        &mut self,
        slot: Slot,
        bytes: u64,
        terms: Terms,
        usable: impl Fn(&Self, &Extent) -> bool,
    ) -> Result<Option<Grant>> {
        if self.may_move || !self.config.remap {
            return Ok(None);
        }
        let parts = self.parts(bytes, |extent| usable(self, extent));
        // What fits into one hole has no edge.
        let Some(parts) = parts
            .filter(|it| it.whole > 0 || it.lower.bytes.min(it.upper.bytes) > 0)
            .filter(|it| it.whole <= terms.whole)
        else {
            return Ok(None);
        };
        let parts = parts.trimmed(bytes);
        let Some(place) = self.place(&parts, bytes, |extent| usable(self, extent)) else {
            return Ok(None);
        };
        let middle = place.middle(parts.whole);
        let idle = self.idle(Some(&middle), middle.to_map, |extent| usable(self, extent));
        let created = middle.to_map - total(&idle);
        if created > terms.created || idle.len() as u64 + place.edges() > terms.calls {
            return Ok(None);
        }
        for fragment in [parts.lower, parts.upper] {
            if fragment.bytes > 0 {
                let extent = *self.extents.get(fragment.hole);
                self.wait_for(slot, &extent)?;
            }
        }
        let above = place.base + parts.whole;
        if place.map_lower {
            let at = place.base - parts.lower.frame_bytes;
            self.arena.map_again(parts.lower.frame, at)?;
        }
        if place.map_upper
            && let Err(error) = self.arena.map_again(parts.upper.frame, above)
        {
            self.undo_edges(&place, &parts, false);
            return Err(error);
        }
        let mut first = parts.lower.hole;
        if parts.whole > 0 {
            match self.fill(slot, &middle, &idle) {
                Ok(whole) if first == NONE => first = whole,
                Ok(_) => {}
                Err(error) => {
                    self.undo_edges(&place, &parts, true);
                    return Err(error);
                }
            }
        }
        self.book(slot, bytes, &parts, &place, first).map(Some)
    }

    /// Takes down second mappings that nothing was told of.
    fn undo_edges(&mut self, place: &Place, parts: &Parts, both: bool) {
        if place.map_lower {
            let bytes = parts.lower.frame_bytes;
            self.retire_again(place.base - bytes, bytes);
        }
        if place.map_upper && both {
            self.retire_again(place.base + parts.whole, parts.upper.frame_bytes);
        }
    }

    /// Books the parts, which are mapped, as one block; `first` is the hole that the lowest is in.
    fn book(
        &mut self,
        slot: Slot,
        bytes: u64,
        parts: &Parts,
        place: &Place,
        mut first: Id,
    ) -> Result<Grant> {
        let lowest = place.base - parts.lower.bytes;
        let start = lowest + parts.skipped;
        let above = place.base + parts.whole;
        if place.map_lower {
            let at = place.base - parts.lower.frame_bytes;
            first = self.book_edge(at, &parts.lower, at..lowest);
        }
        if place.map_upper {
            let end = above + parts.upper.frame_bytes;
            self.book_edge(above, &parts.upper, above + parts.upper.bytes..end);
        }
        let window = Window {
            start,
            bytes,
            ..Window::of_gap(place.base, parts.whole)
        };
        let first = self.extents.seek(first, start);
        let grant = self.take_window(slot, &window, first)?;
        self.extents.get_mut(grant.id).edged = true;
        Ok(grant)
    }

    /// Books the second mapping at `at` for the edge in `fragment`: `others` of it are the handle's
    /// other blocks, the rest is a hole. Gives its lowest extent.
    fn book_edge(&mut self, at: u64, fragment: &Fragment, others: std::ops::Range<u64>) -> Id {
        self.steps.steal += 1;
        self.told.note(Told::Steal(fragment.bytes));
        let hole = self.extents.seek(fragment.hole, fragment.start);
        let away = self
            .extents
            .lend(hole, fragment.start, fragment.start + fragment.bytes);
        let edge = Edge {
            bytes: fragment.frame_bytes,
            home: fragment.frame_start,
            away,
            born: self.extents.stamp(),
        };
        self.edges.insert(at, edge);
        let Some(hole) = self.map(at, fragment.frame_bytes, FRESH, 0) else {
            return NONE;
        };
        let shadow = self.extents.lend(hole, others.start, others.end);
        if others.start == at { shadow } else { hole }
    }

    /// Gives back the edges of the block `id`, which is being freed; gives the rest of it.
    pub(super) fn give_edges(&mut self, mut id: Id, slot: Slot, tick: u64) -> Option<Id> {
        let Extent { start, bytes, .. } = *self.extents.get(id);
        let end = start + bytes;
        if let Some((_, edge)) = self.edge_at(start).or_else(|| self.edge_at(end - 1)) {
            let frees = self.extents.stamp().wrapping_sub(edge.born);
            self.recurring.note(bytes, frees);
        }
        if let Some((at, edge)) = self.edge_at(start) {
            let above = end.saturating_sub(at + edge.bytes);
            let rest = (above > 0).then(|| self.extents.split_taken(id, above));
            self.give_edge(id, at, slot, tick);
            id = rest?;
        }
        if let Some((at, _)) = self.edge_at(end - 1) {
            let whole = self.extents.get(id).start >= at;
            let edge = match whole {
                true => id,
                false => self.extents.split_taken(id, end - at),
            };
            self.give_edge(edge, at, slot, tick);
            return (!whole).then_some(id);
        }
        Some(id)
    }

    /// Gives the part `id` of a block, which lies in the second mapping at `at`, back to the handle's
    /// own place; the second mapping retires with the last of its block.
    fn give_edge(&mut self, id: Id, at: u64, slot: Slot, tick: u64) {
        let Some(&Edge {
            bytes, home, away, ..
        }) = self.edges.get(&at)
        else {
            return;
        };
        let start = self.extents.get(id).start;
        let own = self.extents.cut_away(away, home + (start - at));
        self.merge_given(own, slot, tick);
        let mut shadow = self.extents.put_away(id);
        let Extent { prev, next, .. } = *self.extents.get(shadow);
        let end = at + bytes;
        if next != NONE && self.is_away(next) && self.extents.get(next).end() <= end {
            self.extents.join_away(shadow);
        }
        if prev != NONE && self.is_away(prev) && self.extents.get(prev).start >= at {
            self.extents.join_away(prev);
            shadow = prev;
        }
        if self.extents.get(shadow).bytes == bytes {
            self.edges.remove(&at);
            self.extents.retire_away(shadow, slot, tick);
            self.retiring.push_back(shadow);
        }
    }

    fn is_away(&self, id: Id) -> bool {
        self.extents.get(id).state == State::Away
    }

    /// Makes the bytes `id`, away until now, a hole with the history (`slot`, `tick`).
    fn merge_given(&mut self, id: Id, slot: Slot, tick: u64) {
        let Self {
            extents, streams, ..
        } = self;
        extents.give_back(id, slot, tick, |extent| is_done(streams, extent));
    }

    /// Whether the memory at `offset` has its own place there; for checks.
    pub(super) fn is_home(&self, offset: u64) -> bool {
        self.edge_at(offset).is_none()
    }

    /// Whether every second mapping has as many bytes of a block as are away at the handle's place.
    pub(super) fn check_edges(&self) -> std::result::Result<(), String> {
        let mut shown: BTreeMap<u64, u64> = BTreeMap::new();
        for (id, extent) in self
            .extents
            .iter()
            .filter(|(_, it)| it.state == State::Taken)
        {
            if self.has_edge(extent.start, extent.bytes) && !extent.edged {
                return Err(format!(
                    "block {id} {extent:?} has an edge and is not marked"
                ));
            }
            let (start, end) = (extent.start, extent.end());
            let lower = self.edge_at(start);
            let upper = self.edge_at(end - 1).filter(|(at, _)| *at > start);
            for (at, edge) in lower.into_iter().chain(upper) {
                *shown.entry(at).or_default() += end.min(at + edge.bytes) - start.max(at);
            }
        }
        for (at, edge) in &self.edges {
            let away = self.extents.get(edge.away);
            if away.state != State::Away || shown.get(at) != Some(&away.bytes) {
                return Err(format!(
                    "the edge at {at:#x} shows {:?} bytes of {edge:?}, {away:?}",
                    shown.get(at)
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
