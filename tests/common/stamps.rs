//! Patterns written into blocks and compared later, by kernels in stream order.

use super::{Memory, fill, read};
use crate::common::BackendOf;
use warpool::device::Launch;
use warpool::driver::abi::{self, wp_pattern, wp_pattern_report};
use warpool::{Block, Device, Stream};

/// What all comparisons on a device found, in memory apart from any pool.
pub struct Stamps {
    report: Memory,
}

impl Stamps {
    pub fn new(device: &Device) -> Self {
        let report = Memory::new(device, size_of::<wp_pattern_report>() as u64);
        let stream = device.stream().unwrap();
        fill(&stream, report.addr, 0, report.bytes);
        stream.synchronize().unwrap();
        Self { report }
    }

    /// Queues a stamp or a comparison of any memory.
    pub fn launch(
        &self,
        stream: &Stream,
        (addr, bytes): (u64, u64),
        seed: u64,
        op: abi::wp_pattern_op,
    ) {
        let pattern = wp_pattern {
            addr,
            bytes,
            seed,
            edge: 0,
            report: self.report.addr,
            op,
            pad: 0,
        };
        let backend = stream.device().backend();
        // SAFETY: callers name memory that is theirs at this point of the stream; the report is
        // memory for longer.
        unsafe { backend.launch(&Launch::Pattern(pattern), stream.raw()) }.unwrap();
    }

    /// Queues the writing of the block's bytes with the pattern of `seed`.
    pub fn stamp(&self, stream: &Stream, block: &Block, seed: u64) {
        self.launch(stream, (block.addr(), block.bytes()), seed, abi::WP_STAMP);
    }

    /// Queues the comparison of the block's bytes with the pattern of `seed`.
    pub fn verify(&self, stream: &Stream, block: &Block, seed: u64) {
        self.launch(stream, (block.addr(), block.bytes()), seed, abi::WP_VERIFY);
    }

    /// Checks that every comparison so far, on streams all waited for, found nothing wrong, and
    /// that `verified` bytes have been compared.
    pub fn assert_clean(&self, device: &Device, verified: u64) {
        let found = read(
            &device.stream().unwrap(),
            self.report.addr,
            size_of::<wp_pattern_report>(),
        );
        let word = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        assert_eq!(word(8), 0, "corrupt bytes, one at {:#x}", word(16));
        assert_eq!(word(0), verified, "bytes compared");
    }
}
