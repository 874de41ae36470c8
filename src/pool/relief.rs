//! Asking for help before a request fails, and the error if there is none.

use std::sync::atomic::Ordering;

use super::pressure::{Asked, Left, MovesFirst, Pressure, Relief, ReliefStep};
use super::stats::Told;
use super::structure::Shared;
use crate::device::lock;
use crate::error::{Error, OutOfMemory};
use crate::seeded::seeded;

/// Rank of what moves memory before handles are mapped elsewhere; below all steps.
const MOVES_FIRST_RANK: u8 = 0;

impl Shared {
    /// Registers a step; lower ranks come first.
    pub(crate) fn add_relief(&self, rank: u8, step: ReliefStep) {
        let mut relief = lock(&self.relief);
        let at = relief.partition_point(|(other, _)| *other <= rank);
        relief.insert(at, (rank, step));
    }

    /// Registers who may move memory before handles are mapped elsewhere; the first counts.
    pub(crate) fn moves_first(&self, moves: MovesFirst) {
        let _ = self.moves_first.set(moves);
    }

    /// Asks who moves memory before so many handles are mapped elsewhere; whether it moved any.
    pub(super) fn ask_to_move(&self, bytes: u64, handles: u64) -> bool {
        let asked = Asked::of(self.uid, MOVES_FIRST_RANK);
        let moves = self.moves_first.get().filter(|_| asked.is_some());
        moves.is_some_and(|moves| moves(bytes, handles))
    }

    /// Asks the registered steps, from where it came to the last time; whether one says to try the request again.
    pub(super) fn relieve(&self, stream: u64, bytes: u64, left: &mut Left) -> bool {
        // What growing buffers no longer use goes ahead of all that moves memory.
        if !seeded!("pressure-forgets-growing-buffers") && self.settle_all(true) > 0 {
            self.retries.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let steps = left.get_or_insert_with(|| lock(&self.relief).clone().into_iter().peekable());
        while let Some((rank, step)) = steps.peek() {
            let Some(_asked) = Asked::of(self.uid, *rank) else {
                return false;
            };
            let pressure = Pressure {
                requested: bytes,
                stream,
                figures: self.figures(bytes),
            };
            if step(&pressure) == Relief::Retry {
                self.retries.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            steps.next();
        }
        false
    }

    fn figures(&self, bytes: u64) -> OutOfMemory {
        let holders = self.leak_report().holders();
        let after_compaction = self.snapshot().after_compaction();
        let core = self.core.lock();
        let free_slots = core.slabs.free_bytes();
        OutOfMemory {
            requested: bytes,
            live: core.live() + core.grown()
                - free_slots * u64::from(!seeded!("free-slots-counted-as-live")),
            reserved: core.reserved(),
            limit: core.limit(),
            device_free: self.device.backend().free_bytes().ok(),
            largest_hole: core.extents.largest_hole(),
            after_compaction,
            holders,
        }
    }

    /// Counts a request that failed; gives its error.
    pub(crate) fn out_of_memory(&self, bytes: u64) -> Error {
        let figures = self.figures(bytes);
        self.core.lock().count(Told::OutOfMemory(bytes));
        Error::OutOfMemory(Box::new(figures))
    }
}
