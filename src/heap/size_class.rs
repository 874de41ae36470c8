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
mod tests {
    use std::collections::BTreeSet;

    use super::{CLASSES, MOST, STEP, UNIT, batch, class_of, is_slot, rounded};

    #[test]
    fn every_size_from_128_bytes_on_gets_an_eighth_more_at_most() {
        for bytes in 1..=MOST {
            let got = rounded(bytes, MOST);
            assert!(got >= bytes && got < bytes + UNIT, "{bytes}: {got}");
            let most = if bytes < 128 { STEP - 1 } else { bytes / 8 };
            assert!(got - bytes <= most, "{bytes}: {got}");
            if bytes > 256 {
                assert!((got - bytes) * 16 <= bytes, "{bytes}: {got}");
            }
        }
    }

    #[test]
    fn multiples_of_a_unit_and_what_is_above_the_slots_are_blocks() {
        for bytes in (UNIT..4 * MOST).step_by(UNIT as usize) {
            assert_eq!(rounded(bytes, MOST), bytes);
        }
        for bytes in 1..=2 * MOST {
            assert!(!is_slot(rounded(bytes, 0)));
            assert!(bytes <= MOST || !is_slot(rounded(bytes, MOST)));
        }
    }

    #[test]
    fn a_slot_keeps_every_alignment_that_the_request_has() {
        for bytes in 1..=2 * MOST {
            let wanted = 1u64 << bytes.trailing_zeros().min(UNIT.trailing_zeros());
            let got = rounded(bytes, MOST);
            assert!(got.is_multiple_of(wanted.max(STEP)), "{bytes}: {got}");
        }
    }

    #[test]
    fn classes_are_numbered_without_a_gap_and_fill_whole_units() {
        let slots: BTreeSet<u64> = (1..=MOST).map(|bytes| rounded(bytes, MOST)).collect();
        let slots: Vec<u64> = slots.into_iter().filter(|&b| is_slot(b)).collect();
        let mut classes = BTreeSet::new();
        for slot in slots {
            assert!(class_of(slot) < CLASSES && classes.insert(class_of(slot)));
            assert!((batch(slot) * slot).is_multiple_of(UNIT));
        }
    }
}
