//! Whether the core's books being wrong is found; and a core by itself, for tests of its parts.

use std::time::{Duration, Instant};

use super::{Core, Extent, Hold, PoolConfig, State};
use crate::device::{Device, Stream};
use crate::error::Result;
use crate::heap::{Epoch, FRESH, Grant, Id, StreamIndex, UNIT};
use crate::pool::job::Job;
use crate::pool::{Pool, ask};

mod several;

/// A core of a few granules that are mapped, and a stream of it.
pub(in crate::pool) struct Made {
    pub(in crate::pool) core: Core,
    pub(in crate::pool) slot: StreamIndex,
    _hold: Hold,
    _stream: Stream,
}

pub(in crate::pool) fn core(config: PoolConfig, granules: u64) -> Made {
    core_of(&Device::host().unwrap(), config, granules)
}

/// The same of a device that has no memory beside it.
pub(in crate::pool) fn all_of_a_device(config: PoolConfig, granules: u64) -> Made {
    let granule = Device::host().unwrap().info().granule;
    let all = granules * granule;
    core_of(&Device::host_with_capacity(all).unwrap(), config, granules)
}

pub(in crate::pool) fn core_of(device: &Device, config: PoolConfig, granules: u64) -> Made {
    let stream = device.stream().unwrap();
    let mut core = Core::new(device, config).unwrap();
    let hold = core.add_stream(&stream.core().timeline, false);
    let bytes = granules * core.arena.granule();
    core.create_frames(0, bytes).unwrap();
    Made {
        core,
        slot: *hold,
        _hold: hold,
        _stream: stream,
    }
}

impl Core {
    /// Takes the bytes at `start`, which are free, as a block; for tests of layers above too.
    pub(crate) fn take_at(&mut self, start: u64, bytes: u64, slot: StreamIndex) -> Id {
        let hole = self.extents.seek(self.extents.first(), start);
        self.extents.take_window(hole, start, bytes, slot)
    }

    /// Has `slot`'s stream wait for `epoch`.
    pub(in crate::pool) fn wait_for(&mut self, slot: StreamIndex, epoch: Epoch) {
        ask::put(&self.waits_for(slot, [epoch]), &mut self.steps.waits).unwrap();
    }
}

impl Made {
    /// A block of `bytes` at `start`, which lies in holes.
    pub(in crate::pool) fn block(&mut self, start: u64, bytes: u64) -> Id {
        let id = self.core.take_at(start, bytes, self.slot);
        self.core.active.add(bytes);
        id
    }

    /// Frees the block, ready for all.
    pub(in crate::pool) fn free(&mut self, id: Id) {
        self.core.active.sub(self.core.extents.get(id).bytes);
        self.core.give(id, Epoch::new(self.slot, 0));
    }

    /// Runs a job and books what came of it, if there is one.
    pub(in crate::pool) fn run(&mut self, job: Option<Job>) -> Result<Option<Grant>> {
        job.map_or(Ok(None), |job| self.core.end(job.run()))
    }

    /// A handle of a granule at `at` that the books know nothing of.
    pub(in crate::pool) fn unknown_at(&self, at: u64) {
        let unknown = self.core.arena.site().make(at, self.core.arena.granule());
        std::mem::forget(unknown.unwrap());
    }

    /// Counts what a request was granted as a block; returns its offset.
    pub(in crate::pool) fn granted(&mut self, grant: Grant) -> u64 {
        self.core.active.add(self.core.extents.get(grant.id).bytes);
        self.core.peak_taken = self.core.peak_taken.max(self.core.live());
        self.core.check().unwrap();
        grant.offset
    }

    /// One more stream, and what keeps it.
    pub(in crate::pool) fn stream(&mut self) -> (StreamIndex, (Stream, Hold)) {
        let stream = self._stream.device().stream().unwrap();
        let hold = self.core.add_stream(&stream.core().timeline, false);
        (*hold, (stream, hold))
    }

    /// The extent that has `offset`.
    pub(in crate::pool) fn at(&self, offset: u64) -> Extent {
        let extents = &self.core.extents;
        *extents.get(extents.seek(extents.first(), offset))
    }
}

/// A few granules with a block in the middle.
fn made() -> Made {
    let mut made = core(PoolConfig::default(), 6);
    let granule = made.core.arena.granule();
    made.block(2 * granule, granule);
    made.core.check().unwrap();
    made
}

#[test]
fn memory_that_is_a_hole_and_not_mapped_or_mapped_and_no_hole_is_found() {
    let granule = made().core.arena.granule();
    // All of a hole, its end, its start, and what lies between.
    for (from, to, join) in [(6, 7, false), (6, 7, true), (3, 6, false)] {
        let mut made = made();
        let core = &mut made.core;
        if join {
            core.create_frames(8 * granule, 9 * granule).unwrap();
        }
        if to > 6 {
            (core.extents).map_gap(from * granule, to * granule, Epoch::PAST);
        } else {
            let hole = core.extents.seek(core.extents.first(), from * granule);
            let part = core.extents.retire(hole, from * granule, to * granule);
            core.extents.retired(part);
        }
        assert!(core.check().is_err(), "{from} to {to}");
    }
    for last in [7, 8] {
        let mut made = made();
        let core = &mut made.core;
        core.create_frames(7 * granule, 8 * granule).unwrap();
        (core.extents).map_gap(6 * granule, 7 * granule, Epoch::PAST);
        let first = core
            .extents
            .seek(core.extents.first(), (last - 2) * granule);
        core.extents.merge_up(first, |_| true);
        // From 5 on the one not mapped lies between, from 6 on it comes first.
        assert!(core.check().is_err(), "up to {last}");
    }
}

#[test]
fn a_hole_that_waits_for_a_tick_that_no_record_will_make_is_found() {
    let mut made = made();
    let open = made.core.open_tick(made.slot);
    let core = &mut made.core;
    let block = core
        .extents
        .seek(core.extents.first(), 2 * core.arena.granule());
    // Of a block any tick is one.
    core.extents.spoil(block).epoch.tick = open + 1;
    core.check().unwrap();
    core.extents.spoil(block).epoch.tick = 0;
    let bytes = core.extents.get(block).bytes;
    core.active.sub(bytes);
    core.extents
        .give(block, Epoch::new(made.slot, open), |_| false);
    core.check().unwrap();
    core.extents.spoil(block).epoch.tick = open + 1;
    assert!(core.check().is_err());
}

#[test]
fn blocks_that_are_not_counted_and_books_that_are_wrong_anywhere_are_found() {
    let mut made = made();
    let core = &mut made.core;
    core.active.add(UNIT);
    assert!(core.check().is_err());
    core.active.sub(UNIT);
    core.check().unwrap();
    let block = core
        .extents
        .seek(core.extents.first(), 2 * core.arena.granule());
    core.extents.spoil(block).state = State::Unused;
    assert!(core.check().is_err());
    core.extents.spoil(block).state = State::Allocated;
    core.check().unwrap();
    // Nothing is mapped in the middle of a hole.
    let (frame, _) = core.arena.frame_at(4 * core.arena.granule()).unwrap();
    let granule = core.arena.granule();
    core.arena.site().unmap(4 * granule, granule).unwrap();
    core.arena.frame_gone(frame, false);
    core.check().unwrap_err();
}

#[test]
fn pools_of_a_device_of_much_memory_leave_addresses_to_others() {
    let device = Device::host_with_capacity(1 << 43).unwrap();
    // With 2^46 addresses each, as many as eight times its memory, there was room for one.
    let pools = [(); 4].map(|()| Pool::new(&device, PoolConfig::default()));
    assert!(pools.iter().all(Result::is_ok));
}
