//! Waits for a stream's ticks, by other streams on the device and by the host.
//!
//! # The vector clock
//!
//! `seen` holds, for other streams, the highest tick that this stream waits for. A record carries a copy of
//! it, and a wait merges that copy: if A waits for B, and B had waited for C, A waits for C.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{gone, stuck, under_capture};
use crate::device::raw::RawStream;
use crate::device::structure::{Clock, GraphRecord, Order, Recorder, Timeline};
use crate::device::{host_call, lock};
use crate::error::{Error, Result};

/// Clocks with fewer entries are not searched for streams that are gone.
pub(super) const SHORT_CLOCK: usize = 32;

/// Raises `clock`'s entry for `uid` to `tick`; its place is not before `from`. Returns the next place.
fn raise(clock: &mut Clock, from: usize, uid: u64, tick: u64) -> usize {
    let at = match clock.get(from) {
        Some(next) if next.0 < uid => from + clock[from..].partition_point(|it| it.0 < uid),
        // Clocks of many streams are often alike.
        _ => from,
    };
    match clock.get_mut(at) {
        Some(known) if known.0 == uid => known.1 = known.1.max(tick),
        _ => clock.insert(at, (uid, tick)),
    }
    at + 1
}

fn seen_in(clock: &Clock, uid: u64) -> u64 {
    clock
        .binary_search_by_key(&uid, |entry| entry.0)
        .map_or(0, |at| clock[at].1)
}

impl Timeline {
    /// Whether this stream is already ordered after `tick` of `other`, as far as is known without a driver
    /// call.
    pub(crate) fn is_behind(&self, other: &Self, tick: u64) -> bool {
        other.done() >= tick || self.waited(other.uid) >= tick
    }

    /// The highest tick of stream `uid` that this stream has been made to wait for; of itself it runs behind all.
    pub(crate) fn waited(&self, uid: u64) -> u64 {
        if uid == self.uid {
            return u64::MAX;
        }
        seen_in(&lock(&self.order).seen, uid)
    }

    /// Makes this stream wait for `tick` of `other`, on the device. Returns true if a wait was queued, false
    /// if none was needed.
    pub(crate) fn wait_for(&self, other: &Self, tick: u64) -> Result<bool> {
        self.wait_in(None, other, tick)
    }

    /// The same for work that `graph` counts as under way, if any: its capture looks at that count as it ends.
    pub(in crate::device) fn wait_in(
        &self,
        graph: Option<&Arc<GraphRecord>>,
        other: &Self,
        tick: u64,
    ) -> Result<bool> {
        if self.is_behind(other, tick) {
            return Ok(false);
        }
        if let Some(recorder) = self.recorder_under_way() {
            let waited = recorder.wait_for(self, other, tick);
            // Another thread may have begun it, and may end it before the caller goes on.
            if !graph.is_some_and(|graph| Arc::ptr_eq(graph, recorder.record())) {
                recorder.stand_in();
            }
            // What the gate was made to wait for by then, the stream waits for as it leaves.
            if self.wait_for_gate(&recorder)? {
                return waited;
            }
        }
        let Some(mark) = other.mark(tick)? else {
            return Ok(false);
        };
        {
            let raw = lock(&self.raw);
            let stream = raw.ok_or_else(gone)?;
            // The capture may have begun since the first look.
            if self.recorder_under_way().is_some() {
                drop(raw);
                return self.wait_in(graph, other, tick);
            }
            self.device.backend().event_wait(stream, mark.event.raw)?;
        }
        self.learn(other.uid, mark.tick, &mark.clock);
        Ok(true)
    }

    /// Makes the stream wait for the gate of its capture if the driver has not begun that yet: work queued before runs, and
    /// may need what the gate was made to wait for. False once the stream is not under the capture.
    pub(in crate::device) fn wait_for_gate(&self, recorder: &Arc<Recorder>) -> Result<bool> {
        let backend = self.device.backend();
        let has_begun = |raw: &Option<RawStream>| {
            let stream = raw.ok_or_else(gone)?;
            let begun = host_call::without_any(|| backend.stream_capturing(stream))?;
            Ok((stream, begun))
        };
        if has_begun(&lock(&self.raw))?.1 {
            return Ok(self.is_under(recorder));
        }
        let gate = &recorder.gate().core().timeline;
        let mark = gate.mark(gate.open_tick())?;
        // It does not begin meanwhile.
        let _recording = recorder.recording();
        let raw = lock(&self.raw);
        let is_under = self.is_under(recorder);
        let (stream, begun) = has_begun(&raw)?;
        if let Some(mark) = mark
            && is_under
            && !begun
        {
            host_call::without_any(|| backend.event_wait(stream, mark.event.raw))?;
        }
        Ok(is_under)
    }

    /// Makes this stream wait for `tick` of `other`; if the driver refuses, the host waits. If a capture of `other` has
    /// begun meanwhile, for what that was given before.
    pub(crate) fn wait_surely(&self, other: &Self, tick: u64) -> Result<()> {
        let wait = |tick| {
            let waited = self.wait_for(other, tick).map(drop);
            waited.or_else(|error| other.sync_to(tick).and(Err(error)))
        };
        wait(tick).or_else(|error| match other.queued_tick() {
            queued if queued < tick => wait(queued),
            _ => Err(error),
        })
    }

    /// Records that this stream waits for `tick` of stream `uid`, and for all of `clock` with it.
    pub(crate) fn learn(&self, uid: u64, tick: u64, clock: &Clock) {
        let mut order = lock(&self.order);
        if order.seen.is_empty() {
            // The other stream has pruned it.
            order.prune_at = 2 * clock.len();
        }
        let (mut at, others) = (0, clock.iter().filter(|it| it.0 != self.uid));
        for &(other, other_tick) in others {
            at = raise(&mut order.seen, at, other, other_tick);
        }
        self.prune(&mut order);
        raise(&mut order.seen, 0, uid, tick);
    }

    /// Removes streams that are gone and that nothing refers to any more. Runs each time the clock has
    /// doubled, so that the cost per wait stays constant.
    fn prune(&self, order: &mut Order) {
        if order.seen.len() < order.prune_at.max(SHORT_CLOCK) {
            return;
        }
        let alive = self.device.timelines();
        order.seen.retain(|(uid, _)| alive.contains_key(uid));
        order.prune_at = 2 * order.seen.len();
    }

    /// Blocks the calling thread until `tick` is done.
    pub(crate) fn sync_to(&self, tick: u64) -> Result<()> {
        if self.done() >= tick {
            return Ok(());
        }
        let by_mark = self.mark(tick).and_then(|mark| match mark {
            Some(mark) => {
                self.device.backend().event_sync(mark.event.raw)?;
                self.reached(mark.tick);
                Ok(())
            }
            None => Ok(()),
        });
        by_mark.or_else(|error| self.sync_stream().or(Err(error)))
    }

    /// Blocks the calling thread until everything queued on the stream so far is done, for cases where no
    /// mark can be made.
    fn sync_stream(&self) -> Result<()> {
        if self.is_captured() {
            // The driver's wait would break the capture, and nothing of it runs.
            return Err(under_capture());
        }
        let raw = self.raw();
        let stream = raw.ok_or_else(|| Error::invalid("stream", "the stream is gone"))?;
        let covered = self.close_tick();
        self.sync_raw(stream)?;
        self.reached(covered);
        Ok(())
    }

    /// Waits on the host for all work of the driver's stream. Refuses during a capture that the driver failed
    /// to end: the wait would fail, and the capture could never be ended.
    pub(in crate::device) fn sync_raw(&self, stream: RawStream) -> Result<()> {
        let backend = self.device.backend();
        if self.stuck.load(Ordering::Acquire) > 0 && backend.stream_capturing(stream)? {
            return Err(stuck());
        }
        backend.stream_sync(stream)
    }
}
