//! How much the moving stream has to do.
//!
//! A driver keeps a thread that queues on a full stream until the stream has room. Compaction queues under locks that a
//! host call may ask for, for which the stream waits. So its callers wait first, without a lock, if much is queued.
//!
//! On an H200 a stream had room for 1,020 launches, fills or copies of any size, and for some 4 MiB of uploads from
//! pageable memory: 964 of 4 KiB, 62 of 64 KiB. Records, waits and host calls had no limit, but a host call or a new event
//! of any thread waits while one thread is kept (`benches/probes/stream_room.cu`).
//!
//! A step moves no more than its tables have room for, so only a block or a cycle of more than 64 GiB may be kept.

use std::sync::Arc;

use crate::device::{Device, Event, Stream};
use crate::error::Result;

/// Bytes of an upload that count as one launch.
const COPIED: u64 = 4 << 10;

/// Launches between two records: a quarter of what a stream has room for. Up to twice as many are queued before a step,
/// which adds its own; as many are queued at once under a lock.
pub(crate) const BETWEEN: u64 = 250;

/// The last two records on the moving stream, the older one first, each with its tick; and the launches since.
pub(crate) struct Backlog {
    records: [(u64, Arc<Event>); 2],
    launches: u64,
}

impl Backlog {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let record = || Ok((0, Arc::new(device.event()?)));
        Ok(Self {
            records: [record()?, record()?],
            launches: 0,
        })
    }

    pub(crate) fn add_launch(&mut self) {
        self.launches += 1;
    }

    pub(super) fn add_copy(&mut self, bytes: u64) {
        self.launches += bytes.div_ceil(COPIED);
    }

    /// What a caller waits for, without a lock, before it queues more on `stream`.
    pub(crate) fn record_to_wait_for(&mut self, stream: &Stream) -> Option<Arc<Event>> {
        let timeline = &stream.core().timeline;
        let (open, (tick, event)) = (timeline.open_tick(), &mut self.records[0]);
        // An error comes again from what the caller queues.
        if self.launches >= BETWEEN && *tick <= timeline.done() && event.record(stream).is_ok() {
            *tick = open;
            self.launches = 0;
            self.records.reverse();
        }
        let (tick, event) = &self.records[0];
        (*tick > timeline.done()).then(|| Arc::clone(event))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn callers_wait_for_the_record_before_the_last_and_for_none_that_is_done() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let (open, gate) = mpsc::channel::<()>();
        let closed = Box::new(move || _ = gate.recv());
        device.backend().host_call(stream.raw(), closed).unwrap();
        let mut backlog = Backlog::new(&device).unwrap();
        let mut behind = |launches| {
            (0..launches).for_each(|_| backlog.add_launch());
            backlog.record_to_wait_for(&stream)
        };
        for launches in [BETWEEN - 1, 1, BETWEEN - 1] {
            assert!(behind(launches).is_none());
        }
        let first = behind(1).unwrap();
        // It is not made again before it is done.
        assert!(Arc::ptr_eq(&first, &behind(3 * BETWEEN).unwrap()));
        drop(open);
        stream.synchronize().unwrap();
        assert!(behind(0).is_none());
    }
}
