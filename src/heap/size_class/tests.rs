use std::collections::BTreeSet;

use super::{CLASSES, MOST, STEP, UNIT, batch, class_of, is_slot, rounded};

#[test]
fn every_size_from_128_bytes_on_gets_an_eighth_more_at_most() {
    for bytes in 1..=MOST {
        let got = rounded(bytes, true);
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
        assert_eq!(rounded(bytes, true), bytes);
    }
    for bytes in 1..=2 * MOST {
        assert!(!is_slot(rounded(bytes, false)));
        assert!(bytes <= MOST || !is_slot(rounded(bytes, true)));
    }
}

#[test]
fn a_slot_keeps_every_alignment_that_the_request_has() {
    for bytes in 1..=2 * MOST {
        let wanted = 1u64 << bytes.trailing_zeros().min(UNIT.trailing_zeros());
        let got = rounded(bytes, true);
        assert!(got.is_multiple_of(wanted.max(STEP)), "{bytes}: {got}");
    }
}

#[test]
fn each_class_has_a_number_and_fills_whole_units() {
    let slots: BTreeSet<u64> = (1..=MOST).map(|bytes| rounded(bytes, true)).collect();
    let slots: Vec<u64> = slots.into_iter().filter(|&b| is_slot(b)).collect();
    let mut classes = BTreeSet::new();
    for slot in slots {
        assert!(class_of(slot) < CLASSES && classes.insert(class_of(slot)));
        assert!((batch(slot) * slot).is_multiple_of(UNIT));
    }
}
