//! New handles, one behind the other.

use crate::arena::{Made, Site};
use crate::error::Result;

/// Makes handles of up to `largest` bytes for all `bytes` from the offset `at` on, up to one that the driver would
/// not map. All of `made` is for the arena to adopt.
///
/// # Errors
/// What the driver said where it would not make one.
pub(super) fn make_handles(
    site: &Site,
    (at, bytes): (u64, u64),
    mut largest: u64,
    made: &mut Vec<Made>,
) -> Result<()> {
    let (granule, mut left) = (site.granule(), bytes);
    while left > 0 {
        let size = piece(left, largest, granule);
        match site.make(at.wrapping_add(bytes - left), size) {
            Ok(handle) => {
                let is_mapped = handle.is_mapped();
                made.push(handle);
                if !is_mapped {
                    return Ok(());
                }
                left -= size;
            }
            // The device may still have smaller pieces.
            Err(error) if error.is_device_exhausted() && size > granule => largest = size / 2,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of the next handle: a power of two of granules, so that the last pieces of a block are small.
pub(super) fn piece(left: u64, most: u64, granule: u64) -> u64 {
    let granules = (most.min(left) / granule).max(1);
    (1 << granules.ilog2()) * granule
}
