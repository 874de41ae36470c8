//! Size classes of slots, for small requests that waste too much of a block of their own.
//!
//! Classes are [`STEP`] bytes apart up to 512 bytes, 32 up to 1024, 64 up to 2048, 128 up to [`MOST`]. Multiples
//! of [`UNIT`] are blocks and no slots. So the size alone tells a slot from a block.
//!
//! A request becomes a slot if a block wastes more than a sixteenth of the request. A slot wastes at most that from
//! 256 bytes on, and less than a step below.
//!
//! # Alignment
//!
//! The class of a request is a multiple of every power of two up to [`UNIT`] that divides the request: each class is
//! a multiple of the spacing of its range, and each multiple of the spacing is a class. A slab starts at a multiple
//! of [`UNIT`]. So a slot's address is a multiple of the same powers of two, and of [`STEP`].

use super::bins::UNIT;

/// Distance of the smallest classes, and alignment of every slot.
pub(crate) const STEP: u64 = 16;

/// Largest request that may become a slot.
pub(crate) const MOST: u64 = 4096;

/// Numbers of classes: of multiples of [`STEP`], as a table of those that there are is one more look.
pub(crate) const CLASSES: usize = (MOST / STEP) as usize;

/// Whether a rounded size is that of a slot.
#[inline(always)]
pub(crate) const fn is_slot(bytes: u64) -> bool {
    !bytes.is_multiple_of(UNIT)
}

/// Size for a request of `bytes`, up to [`MOST`].
const fn of(bytes: u64) -> u64 {
    let block = bytes.next_multiple_of(UNIT);
    let part = bytes.next_power_of_two() / 32;
    let slot = bytes.next_multiple_of(if part > STEP { part } else { STEP });
    // The smallest request of this table entry.
    let asked = bytes - (STEP - 1);
    if (block - asked) * 16 > asked {
        slot
    } else {
        block
    }
}

/// Sizes by request, both in steps.
static ROUNDED: [u16; CLASSES + 1] = {
    let mut table = [0; CLASSES + 1];
    let mut at = 1;
    while at <= CLASSES {
        table[at] = (of(at as u64 * STEP) / STEP) as u16;
        at += 1;
    }
    table
};

/// `bytes` as the pool rounds them; with `slots`, up to [`MOST`] they may become a slot.
#[inline(always)]
pub(crate) fn rounded(bytes: u64, slots: bool) -> u64 {
    if slots && bytes <= MOST {
        // No panic: the index is below the table's length for every request up to `MOST`.
        let at = bytes.div_ceil(STEP) as usize;
        ROUNDED.get(at).map_or(0, |&steps| u64::from(steps) * STEP)
    } else {
        bytes.next_multiple_of(UNIT)
    }
}

#[inline(always)]
pub(crate) fn class_of(slot: u64) -> usize {
    (slot / STEP) as usize
}

/// Fewest slots that fill whole units: a slab has a multiple of that.
pub(crate) fn batch(slot: u64) -> u64 {
    UNIT >> slot.trailing_zeros().min(UNIT.trailing_zeros())
}

#[cfg(test)]
mod tests;
