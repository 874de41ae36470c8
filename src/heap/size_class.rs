//! Sizes of slots: the classes that small blocks are rounded to, where a block of their own would
//! cost too much.
//!
//! Classes are [`STEP`] apart up to 512 bytes, and from there sixteen a doubling: 32 apart up to
//! 1024, 64 up to 2048, 128 up to [`MOST`]. Those that are multiples of [`UNIT`] are blocks and no
//! slots, which leaves [`CLASSES`]. So whether a size is a slot's can be told from the size alone.
//!
//! A request becomes a slot where a block would have more than a sixteenth beyond what was asked for;
//! a slot has no more than that from 256 bytes on, and a step below.
//!
//! # Alignment
//!
//! The class of a request is a multiple of every power of two up to [`UNIT`] that divides the
//! request: classes of a range are multiples of the range's spacing, and what is itself a multiple of
//! the spacing is a class. A slab begins on a multiple of [`UNIT`], so a slot's address is such a
//! multiple too, and of [`STEP`] at least.

use super::bins::UNIT;

/// Distance of the smallest classes, and what every slot is aligned to.
pub(crate) const STEP: u64 = 16;

/// Largest request that may become a slot.
pub(crate) const MOST: u64 = 4096;

pub(crate) const CLASSES: usize = 64;

const ENTRIES: usize = (MOST / STEP) as usize + 1;

/// Whether a block of so many bytes, as rounded, is a slot.
#[inline(always)]
pub(crate) const fn is_slot(bytes: u64) -> bool {
    !bytes.is_multiple_of(UNIT)
}

/// Distance of the classes around `bytes`.
const fn spacing(bytes: u64) -> u64 {
    match bytes {
        0..=512 => STEP,
        513..=1024 => 2 * STEP,
        1025..=2048 => 4 * STEP,
        _ => 8 * STEP,
    }
}

/// What a request of `bytes`, up to [`MOST`], gets.
const fn of(bytes: u64) -> u64 {
    let block = bytes.next_multiple_of(UNIT);
    let slot = bytes.next_multiple_of(spacing(bytes));
    // Of the requests that are looked up here, the smallest.
    let asked = bytes - (STEP - 1);
    if (block - asked) * 16 > asked {
        slot
    } else {
        block
    }
}

/// By request in steps, rounded up: what it gets, in steps.
static ROUNDED: [u16; ENTRIES] = {
    let mut table = [0; ENTRIES];
    let mut at = 1;
    while at < ENTRIES {
        table[at] = (of(at as u64 * STEP) / STEP) as u16;
        at += 1;
    }
    table
};

/// By slot in steps: its class.
static CLASS: [u8; ENTRIES] = {
    let mut table = [0; ENTRIES];
    let (mut at, mut class) = (1, 0);
    while at < ENTRIES {
        let bytes = at as u64 * STEP;
        if is_slot(bytes) && bytes.is_multiple_of(spacing(bytes)) {
            table[at] = class;
            class += 1;
        }
        at += 1;
    }
    assert!(class as usize == CLASSES);
    table
};

/// `bytes` as the pool rounds them; those of up to `most`, which is [`MOST`] or 0, may become slots.
#[inline(always)]
pub(crate) fn rounded(bytes: u64, most: u64) -> u64 {
    if bytes <= most {
        // No panic: the index is below the table's length for every request up to `MOST`.
        let at = bytes.div_ceil(STEP) as usize;
        ROUNDED.get(at).map_or(0, |&steps| u64::from(steps) * STEP)
    } else {
        bytes.next_multiple_of(UNIT)
    }
}

#[inline(always)]
pub(crate) fn class_of(slot: u64) -> usize {
    (CLASS.get((slot / STEP) as usize)).map_or(0, |&class| class as usize)
}

/// Fewest slots that fill whole units: a slab has a multiple of as many.
pub(crate) fn batch(slot: u64) -> u64 {
    UNIT >> slot.trailing_zeros().min(UNIT.trailing_zeros())
}

#[cfg(test)]
mod tests;
