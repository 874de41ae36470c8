//! Stamps blocks and verifies them on the device, in stream order.

use std::sync::atomic::{AtomicU64, Ordering};

use super::verify::{EDGE_BYTES, Verify};
use crate::device::{Device, Launch, Scratch, Stream};
use crate::driver::abi;
use crate::error::Result;

/// Bytes between two reports, so that no two streams share one.
const REPORT_STRIDE: usize = 32;

const _: () = assert!(size_of::<abi::wp_pattern_report>() <= REPORT_STRIDE);

/// The result of the verification, summed over all streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) verified_bytes: u64,
    pub(super) corrupt_bytes: u64,
    /// Address of a corrupt byte; 0 if there is none.
    pub(super) first_corrupt: u64,
}

/// Stamps and verifies blocks. One report per stream, in separate device memory, read once at the
/// end.
pub(super) struct Checker {
    device: Device,
    edge: u64,
    reports: Option<Scratch>,
    streams: usize,
    /// The number of this checker in the process; its patterns differ from those of all others.
    number: u64,
}

impl Checker {
    pub(super) fn new(device: &Device, verify: Verify, streams: usize) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let edge = if verify == Verify::Edges {
            EDGE_BYTES
        } else {
            0
        };
        let reports = match verify {
            Verify::Off => None,
            _ => Some(Scratch::zeroed(device, (streams * REPORT_STRIDE) as u64)?),
        };
        Ok(Self {
            device: device.clone(),
            edge,
            reports,
            streams,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Queues a kernel that writes `block`'s pattern.
    ///
    /// # Safety
    /// `addr..addr + bytes` is device memory until the work queued here is done.
    pub(super) unsafe fn stamp(
        &self,
        on: &Stream,
        addr: u64,
        bytes: u64,
        block: u32,
    ) -> Result<()> {
        // SAFETY: this function has the same requirements.
        unsafe { self.launch(on, abi::WP_STAMP, addr, bytes, block, 0) }
    }

    /// Queues a kernel that compares a block with its pattern; `stream` is the index of `on` in the
    /// trace.
    ///
    /// # Safety
    /// The same as for [`Checker::stamp`].
    pub(super) unsafe fn verify(
        &self,
        (on, stream): (&Stream, u16),
        addr: u64,
        bytes: u64,
        block: u32,
    ) -> Result<()> {
        let offset = usize::from(stream) * REPORT_STRIDE;
        // SAFETY: this function has the same requirements.
        unsafe { self.launch(on, abi::WP_VERIFY, addr, bytes, block, offset as u64) }
    }

    unsafe fn launch(
        &self,
        on: &Stream,
        op: abi::wp_pattern_op,
        addr: u64,
        bytes: u64,
        block: u32,
        report_at: u64,
    ) -> Result<()> {
        let Some(reports) = &self.reports else {
            return Ok(());
        };
        let pattern = abi::wp_pattern {
            addr,
            bytes,
            seed: seed(self.number, block),
            edge: self.edge,
            report: reports.addr() + report_at,
            op,
            pad: 0,
        };
        // SAFETY: the caller guarantees the block, and the reports live until `self` is dropped,
        // after all streams were waited for.
        unsafe {
            self.device
                .backend()
                .launch(&Launch::Pattern(pattern), on.raw())
        }
    }

    /// The sum of all reports. The caller has waited for every stream.
    pub(super) fn findings(&self) -> Result<Findings> {
        let mut sum = Findings::default();
        let Some(reports) = &self.reports else {
            return Ok(sum);
        };
        let bytes = reports.read(self.streams * REPORT_STRIDE)?;
        for slot in bytes.chunks_exact(REPORT_STRIDE) {
            let word = |at: usize| {
                slot[at * 8..]
                    .first_chunk::<8>()
                    .map_or(0, |bytes| u64::from_le_bytes(*bytes))
            };
            sum.verified_bytes += word(0);
            sum.corrupt_bytes += word(1);
            if sum.first_corrupt == 0 {
                sum.first_corrupt = word(2);
            }
        }
        Ok(sum)
    }
}

/// The start of a block's pattern, from the block's number. It is spread so that no two blocks
/// share words of the pattern at any shift (the pattern itself increases by 1 per word). It also
/// depends on the checker, so that a pattern which an earlier replay left in the same place counts
/// as corrupt.
fn seed(checker: u64, block: u32) -> u64 {
    ((checker << 32 | u64::from(block)) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stamps one block, lets `spoil` write to it, verifies it.
    fn findings_after(verify: Verify, bytes: u64, spoil: &[u64]) -> Findings {
        let device = Device::host().expect("the host device");
        let backend = device.backend().clone();
        let found = {
            let block = Scratch::zeroed(&device, bytes).expect("memory");
            let checker = Checker::new(&device, verify, 2).expect("reports");
            let stream = device.stream().expect("a stream");
            // SAFETY: the block outlives the stream's work, which is waited for below.
            unsafe {
                checker
                    .stamp(&stream, block.addr(), bytes, 7)
                    .expect("stamps");
                for at in spoil {
                    let one = block.addr() + at;
                    backend.fill(one, 0x55, 1, stream.raw()).expect("fills");
                }
                checker
                    .verify((&stream, 1), block.addr(), bytes, 7)
                    .expect("verifies");
            }
            stream.synchronize().expect("done");
            let first = spoil.first().map_or(0, |at| block.addr() + at);
            let found = checker.findings().expect("findings");
            assert_eq!(
                found.first_corrupt,
                if found.corrupt_bytes == 0 { 0 } else { first }
            );
            found
        };
        drop(device);
        assert_eq!(
            backend.counts(),
            crate::device::HandleCounts::default(),
            "nothing leaks"
        );
        found
    }

    #[test]
    fn an_untouched_block_verifies_whole() {
        let found = findings_after(Verify::Full, 100_001, &[]);
        assert_eq!((found.verified_bytes, found.corrupt_bytes), (100_001, 0));
    }

    #[test]
    fn what_an_earlier_checker_wrote_is_corrupt() {
        let device = Device::host().expect("the host device");
        let (one, two) = (checker(&device), checker(&device));
        let stream = device.stream().expect("a stream");
        let block = Scratch::zeroed(&device, 4096).expect("memory");
        // SAFETY: the block outlives the stream's work, which is waited for below.
        unsafe {
            one.stamp(&stream, block.addr(), 4096, 7).expect("stamps");
            two.verify((&stream, 0), block.addr(), 4096, 7)
                .expect("verifies");
        }
        stream.synchronize().expect("done");
        let found = two.findings().expect("findings");
        // One byte in 256 is equal by chance.
        assert!(found.corrupt_bytes > 4000, "{found:?}");
    }

    fn checker(device: &Device) -> Checker {
        Checker::new(device, Verify::Full, 1).expect("reports")
    }

    #[test]
    fn one_byte_written_over_is_found_with_its_address() {
        let found = findings_after(Verify::Full, 100_001, &[54_321]);
        assert_eq!((found.verified_bytes, found.corrupt_bytes), (100_001, 1));
    }

    #[test]
    fn edges_cover_the_first_and_last_4_kib_and_nothing_between() {
        assert_eq!(
            findings_after(Verify::Edges, 100_001, &[4_095]).corrupt_bytes,
            1
        );
        assert_eq!(
            findings_after(Verify::Edges, 100_001, &[100_000]).corrupt_bytes,
            1
        );
        let found = findings_after(Verify::Edges, 100_001, &[4_096, 50_000]);
        assert_eq!((found.verified_bytes, found.corrupt_bytes), (8_192, 0));
    }

    #[test]
    fn verification_off_touches_nothing() {
        assert_eq!(
            findings_after(Verify::Off, 4_096, &[1]),
            Findings::default()
        );
    }

    #[test]
    fn no_two_blocks_share_words_of_their_patterns_within_a_terabyte() {
        for checker in [0, 1, 77] {
            let mut seeds: Vec<u64> = (0..200_000).map(|block| seed(checker, block)).collect();
            seeds.sort_unstable();
            let words = (1u64 << 40) / 8;
            assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > 0));
            let near = seeds
                .windows(2)
                .filter(|pair| pair[1] - pair[0] < words)
                .count();
            assert_eq!(near, 0);
        }
    }
}
