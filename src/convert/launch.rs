//! Launches from checked arguments.

use super::{Conversion, Element};
use crate::device::{Addr, Launch, Stream, Use, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};

/// The bytes of a view, whether a launch writes them, and their place in the log of their buffer.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) is_written: bool,
    pub(super) used: Option<Use<'a>>,
}

/// Bytes from one row to the next. A single row may have any pitch, even one whose bytes overflow.
pub(super) fn pitch_bytes<T>(rows: u64, cols: u64, pitch: u64) -> u64 {
    let elements = match rows {
        0 => 0,
        1 => cols,
        _ => pitch,
    };
    elements * size_of::<T>() as u64
}

/// Arguments of a plain conversion from `S` to `D`, without ranges.
pub(super) fn arguments<S: Element, D: Element>(how: Conversion) -> abi::wp_convert {
    let (rounding, seed) = how.rounding_and_seed();
    abi::wp_convert {
        src: 0,
        dst: 0,
        count: 0,
        rows: 0,
        src_pitch: 0,
        dst_pitch: 0,
        first: 0,
        seed,
        tiles: 0,
        flag: 0,
        amax: 0,
        block_amax: 0,
        scale_at: 0,
        scale: 1.0,
        bias: -0.0,
        fused: 0,
        src_type: S::TYPE,
        dst_type: D::TYPE,
        rounding,
        overflow: how.overflow_number(),
        pad: 0,
    }
}

/// Queues a conversion.
///
/// # Safety
/// The same as for [`Backend::launch`](crate::device::Backend::launch).
pub(super) unsafe fn launch(stream: &Stream, args: abi::wp_convert) -> Result<()> {
    // SAFETY: the caller's requirement.
    (stream.core()).queue(|backend, on| unsafe { backend.launch(&Launch::Convert(args), on) })
}

/// Queues a launch in the order that its ranges require.
///
/// # Errors
/// [`Error::Invalid`] if a range that it writes overlaps another one, or memory is of another device than the
/// stream; any error of the launch.
///
/// # Safety
/// The same as for [`Backend::launch`](crate::device::Backend::launch).
pub(super) unsafe fn queue_with<const N: usize>(
    stream: &Stream,
    ranges: [Option<Part<'_>>; N],
    launch: &Launch,
) -> Result<()> {
    for (at, part) in ranges.iter().enumerate() {
        let Some(part) = part else { continue };
        for other in ranges[..at].iter().flatten() {
            apart(other, part)?;
        }
    }
    let uses = ranges.map(|part| part.and_then(|part| part.used));
    // SAFETY: the caller's requirement.
    let queue = || (stream.core()).queue(|backend, on| unsafe { backend.launch(launch, on) });
    ordered(stream.core(), &uses, queue)?
}

/// Checks that two ranges do not overlap, unless both are only read.
fn apart(one: &Part<'_>, other: &Part<'_>) -> Result<()> {
    match (one.is_written, other.is_written) {
        (false, false) => Ok(()),
        (true, false) => disjoint(other.addr, other.bytes, one.addr, one.bytes),
        (_, true) => disjoint(one.addr, one.bytes, other.addr, other.bytes),
    }
}

/// Checks that two ranges of bytes do not overlap.
pub(super) fn disjoint(src: u64, src_bytes: u64, dst: u64, dst_bytes: u64) -> Result<()> {
    if src_bytes != 0 && dst_bytes != 0 && src < dst + dst_bytes && dst < src + src_bytes {
        let why = format!("{dst:#x} + {dst_bytes} overlaps the source at {src:#x} + {src_bytes}");
        return Err(Error::invalid("dst", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::disjoint;

    #[test]
    fn ranges_that_share_a_byte_overlap_and_neighbours_do_not() {
        assert!(disjoint(100, 10, 110, 5).is_ok());
        assert!(disjoint(110, 5, 100, 10).is_ok());
        assert!(disjoint(100, 11, 110, 5).is_err());
        assert!(disjoint(112, 1, 110, 5).is_err());
        assert!(disjoint(100, 0, 100, 5).is_ok());
    }
}
