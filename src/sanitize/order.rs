//! The order of operations: one vector clock per stream, and one for the host.
//!
//! Every operation has an *epoch*, its number in its stream, and a copy of what its stream had
//! *seen*: for every other stream, the epoch that it is ordered after. `a` runs before `b` if `b`'s
//! stream had seen `a`'s epoch when `b` was queued. A stream sees more when it waits for an event,
//! and when the host, which has seen something, queues work on it. The host sees more when it
//! waits, and when a query tells it that work is done.
//!
//! All host threads share one clock: what one thread has learnt counts for all. So order that
//! threads create among themselves is never missed, and never causes a false report; but a race
//! between two threads that are ordered only by chance may be missed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::device::{RawEvent, RawStream};

/// Up to this number of adopted streams, none is forgotten.
const FEW: usize = 64;

/// Epochs by stream number; missing entries are 0.
pub(super) type Clock = Vec<u64>;

fn seen_in(clock: &Clock, stream: usize) -> u64 {
    clock.get(stream).copied().unwrap_or(0)
}

/// Raises one entry; returns whether it rose.
fn raise(clock: &mut Clock, stream: usize, epoch: u64) -> bool {
    if seen_in(clock, stream) >= epoch {
        return false;
    }
    if clock.len() <= stream {
        clock.resize(stream + 1, 0);
    }
    clock[stream] = epoch;
    true
}

/// Raises every entry to that of `other`; returns whether one rose.
fn join(clock: &mut Clock, other: &Clock) -> bool {
    let mut rose = false;
    for (stream, &epoch) in other.iter().enumerate() {
        rose |= raise(clock, stream, epoch);
    }
    rose
}

/// Raises a clock to what is known once the mark is reached; returns whether an entry rose.
fn join_mark(clock: &mut Clock, mark: &Mark) -> bool {
    let rose = join(clock, &mark.seen);
    raise(clock, mark.stream, mark.epoch) || rose
}

/// A queued operation.
#[derive(Debug)]
pub(super) struct Op {
    /// Its number among all operations of the device, from 1.
    pub(super) number: u64,
    pub(super) stream: usize,
    pub(super) raw: RawStream,
    epoch: u64,
    seen: Arc<Clock>,
    pub(super) what: Cow<'static, str>,
}

impl Op {
    /// Whether this always runs before `other`.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        if self.stream == other.stream {
            self.epoch < other.epoch
        } else {
            seen_in(&other.seen, self.stream) >= self.epoch
        }
    }

    /// Whether nothing orders the two.
    pub(super) fn races(&self, other: &Self) -> bool {
        self.number != other.number && !self.is_before(other) && !other.is_before(self)
    }
}

/// A point in a stream, and what the stream had seen by then.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    stream: usize,
    epoch: u64,
    seen: Arc<Clock>,
}

#[derive(Debug, Default)]
struct StreamOrder {
    epoch: u64,
    seen: Arc<Clock>,
    /// Version of the host's clock that `seen` contains.
    host_version: u64,
    name: Option<String>,
}

/// The order of all operations; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Order {
    streams: Vec<StreamOrder>,
    /// Streams made through the device.
    by_raw: HashMap<RawStream, usize>,
    /// Streams made elsewhere, by the driver's id, because their handles may be reused without
    /// notice.
    by_id: HashMap<u64, usize>,
    /// The last id of each handle of those.
    ids: HashMap<RawStream, u64>,
    /// The number of adopted streams from which idle ones are forgotten.
    most: usize,
    /// Numbers of destroyed or forgotten streams.
    gone: Vec<usize>,
    events: HashMap<RawEvent, Mark>,
    host: Clock,
    host_version: u64,
    /// What other devices may have waited for.
    elsewhere: Clock,
    ops: u64,
}

impl Order {
    /// Adds a stream made through the device.
    pub(super) fn add(&mut self, raw: RawStream) {
        let number = self.new_number();
        self.by_raw.insert(raw, number);
    }

    /// A number for a stream. Reuses that of a destroyed stream whose work is known to be done, so
    /// that clocks stay short.
    fn new_number(&mut self) -> usize {
        let host = &self.host;
        let streams = &self.streams;
        let done = |&number: &usize| seen_in(host, number) >= streams[number].epoch;
        if let Some(at) = self.gone.iter().position(done) {
            let number = self.gone.swap_remove(at);
            // What the stream before had waited for is not known to this one.
            self.streams[number] = StreamOrder {
                epoch: self.streams[number].epoch,
                ..StreamOrder::default()
            };
            return number;
        }
        self.streams.push(StreamOrder::default());
        self.streams.len() - 1
    }

    pub(super) fn remove(&mut self, raw: RawStream) {
        self.gone.extend(self.by_raw.remove(&raw));
    }

    /// The number of a stream; calls `id` for the driver's id if the stream was made elsewhere.
    pub(super) fn number(&mut self, raw: RawStream, id: impl FnOnce() -> u64) -> usize {
        if let Some(&number) = self.by_raw.get(&raw) {
            return number;
        }
        let id = id();
        if let Some(&number) = self.by_id.get(&id) {
            self.ids.insert(raw, id);
            return number;
        }
        if self.by_id.len() >= self.most.max(FEW) {
            self.forget_idle();
        }
        let number = self.new_number();
        self.by_id.insert(id, number);
        self.ids.insert(raw, id);
        number
    }

    /// The driver's last id of the handle of a stream made elsewhere.
    pub(super) fn last_id(&self, raw: RawStream) -> Option<u64> {
        self.ids.get(&raw).copied()
    }

    /// Forgets idle adopted streams, because nothing reports when they are destroyed. A stream is idle if the host
    /// knows as much as it does. If it is used again, only its name is lost.
    fn forget_idle(&mut self) {
        let (host, streams, gone) = (&self.host, &self.streams, &mut self.gone);
        self.by_id.retain(|_, &mut number| {
            let stream = &streams[number];
            let mut seen = stream.seen.iter().enumerate();
            let idle = seen_in(host, number) >= stream.epoch
                && seen.all(|(other, &epoch)| seen_in(host, other) >= epoch);
            gone.extend(idle.then_some(number));
            !idle
        });
        self.ids.retain(|_, id| self.by_id.contains_key(id));
        self.most = 2 * self.by_id.len();
    }

    pub(super) fn set_name(&mut self, number: usize, name: &str) {
        self.streams[number].name = Some(name.to_owned());
    }

    pub(super) fn name(&self, number: usize) -> Option<&str> {
        self.streams[number].name.as_deref()
    }

    /// Adds an operation that is queued now.
    pub(super) fn queue(
        &mut self,
        number: usize,
        raw: RawStream,
        what: Cow<'static, str>,
    ) -> Arc<Op> {
        let stream = &mut self.streams[number];
        if stream.host_version != self.host_version {
            stream.host_version = self.host_version;
            join(Arc::make_mut(&mut stream.seen), &self.host);
        }
        stream.epoch += 1;
        self.ops += 1;
        Arc::new(Op {
            number: self.ops,
            stream: number,
            raw,
            epoch: stream.epoch,
            seen: Arc::clone(&stream.seen),
            what,
        })
    }

    /// The point after everything queued on a stream so far.
    pub(super) fn here(&self, number: usize) -> Mark {
        let stream = &self.streams[number];
        Mark {
            stream: number,
            epoch: stream.epoch,
            seen: Arc::clone(&stream.seen),
        }
    }

    pub(super) fn record(&mut self, event: RawEvent, number: usize) {
        self.events.insert(event, self.here(number));
    }

    pub(super) fn forget(&mut self, event: RawEvent) {
        self.events.remove(&event);
    }

    pub(super) fn marked(&self, event: RawEvent) -> Option<Mark> {
        self.events.get(&event).cloned()
    }

    /// Orders work queued on the stream from now on after the event's mark.
    pub(super) fn wait(&mut self, number: usize, event: RawEvent) {
        if let Some(mark) = self.events.get(&event) {
            join_mark(Arc::make_mut(&mut self.streams[number].seen), mark);
        }
    }

    /// Records that another device may wait for the event's mark.
    pub(super) fn lend(&mut self, event: RawEvent) {
        if let Some(mark) = self.events.get(&event) {
            join_mark(&mut self.elsewhere, mark);
        }
    }

    /// Orders work queued on the stream from now on after work of another device, which may have waited for
    /// all that was lent.
    pub(super) fn wait_elsewhere(&mut self, number: usize) {
        let seen = Arc::make_mut(&mut self.streams[number].seen);
        join(seen, &self.elsewhere);
    }

    /// Records that the host knows that the mark is reached.
    pub(super) fn reached(&mut self, mark: &Mark) {
        self.host_version += u64::from(join_mark(&mut self.host, mark));
    }

    /// Whether the host knows that the operation is done.
    pub(super) fn is_done(&self, op: &Op) -> bool {
        seen_in(&self.host, op.stream) >= op.epoch
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_are_adopted_again_and_again_take_no_more_and_more_memory() {
        let mut order = Order::default();
        let (waiting, worker) = (RawStream(1), RawStream(2));
        let [waits, works] = [waiting, worker].map(|raw| order.number(raw, || raw.0));
        let first = order.queue(works, worker, "work".into());
        let event = RawEvent(1);
        order.record(event, works);
        order.wait(waits, event);
        order.set_name(works, "worker");
        for id in 3..10_000 {
            // The driver reuses the handle.
            let raw = RawStream(3);
            let number = order.number(raw, || id);
            order.queue(number, raw, "work".into());
            let here = order.here(number);
            order.reached(&here);
        }
        assert!(order.by_id.len() < 4 * FEW && order.streams.len() < 4 * FEW);
        // Streams that the host knows less than are kept.
        let [waits, still] = [waiting, worker].map(|raw| order.number(raw, || raw.0));
        assert_eq!((still, order.name(still)), (works, Some("worker")));
        assert!(first.is_before(&order.queue(waits, waiting, "work".into())));
    }
}
