//! Random steps on a layout, compared with a plain list of the state of each byte.

use super::{Extent, Kind, Layout};
use crate::device::sim::Rng;

/// Bytes that may be mapped.
const ALL: usize = 48;

/// One letter per byte: `.` for a hole, `-` for not mapped. A block has a capital letter at its
/// first byte.
type Bytes = Vec<u8>;

fn kind(letter: u8) -> Option<Kind> {
    match letter.to_ascii_lowercase() {
        b'm' => Some(Kind::Movable),
        b'f' => Some(Kind::Fixed),
        b'.' => Some(Kind::Hole),
        _ => None,
    }
}

fn extents(bytes: &Bytes) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut before = b'-';
    for (addr, &letter) in (0..).zip(bytes) {
        let goes_on = letter == before.to_ascii_lowercase() && letter.is_ascii_lowercase();
        if let Some(kind) = kind(letter) {
            match extents.last_mut() {
                Some(last) if goes_on || (letter == b'.' && before == b'.') => last.bytes += 1,
                _ => extents.push(Extent {
                    addr,
                    bytes: 1,
                    kind,
                }),
            }
        }
        before = letter;
    }
    extents
}

/// The range of the block that begins at `at`.
fn block(bytes: &Bytes, at: usize) -> Option<std::ops::Range<usize>> {
    let first = *bytes.get(at)?;
    first.is_ascii_uppercase().then(|| {
        let rest = bytes[at + 1..].iter();
        let length = rest
            .take_while(|&&b| b == first.to_ascii_lowercase())
            .count();
        at..at + 1 + length
    })
}

fn step(random: &mut Rng, layout: &mut Layout, bytes: &mut Bytes) {
    let at = random.below(ALL as u64) as usize;
    let long = random.below(9) as usize;
    let range = at..(at + long).min(ALL);
    let all = |letter: u8| !range.is_empty() && bytes[range.clone()].iter().all(|&b| b == letter);
    let (addr, length) = (at as u64, range.len() as u64);
    let kind = [Kind::Movable, Kind::Fixed][random.below(2) as usize];
    let letter = if kind == Kind::Movable { b'm' } else { b'f' };
    match random.below(2) {
        0 => {
            let clear = all(b'.');
            assert_eq!(layout.place(addr, length, kind), clear);
            if clear {
                bytes[range].fill(letter);
                bytes[at] = letter.to_ascii_uppercase();
            }
        }
        _ => {
            let there = block(bytes, at);
            assert_eq!(layout.free(addr), there.is_some());
            there.into_iter().for_each(|it| bytes[it].fill(b'.'));
        }
    }
}

#[test]
fn any_steps_on_a_layout_leave_what_they_leave_of_a_plain_list() {
    let mut random = Rng::new(5);
    for _ in 0..200 {
        let mapped = |_| [b'-', b'.'][usize::from(random.below(8) > 0)];
        let mut bytes: Bytes = (0..ALL).map(mapped).collect();
        let mut layout = Layout::from_extents(extents(&bytes)).expect("ascends");
        for _ in 0..60 {
            step(&mut random, &mut layout, &mut bytes);
            let said = extents(&bytes);
            let seen: Vec<Extent> = layout.extents().collect();
            assert_eq!(seen, said);
            // A layout built at once is the same, also from holes in parts and in any order.
            let mut parts: Vec<Extent> = said.iter().copied().flat_map(in_parts).collect();
            parts.reverse();
            assert_eq!(Layout::from_extents(parts).as_ref(), Some(&layout));
            figures_agree(&layout, &said);
            let at = random.below(ALL as u64 + 1);
            let from: Vec<Extent> = layout.from(at).collect();
            assert!(said.ends_with(&from) && from.iter().all(|e| e.addr >= at));
            let mut below: Vec<Extent> = layout.below(at).collect();
            below.reverse();
            assert_eq!([below, from].concat(), said);
            let there = said.iter().find(|e| e.addr == at).copied();
            assert_eq!(layout.get(at), there);
        }
    }
}

/// Splits a hole in two.
fn in_parts(extent: Extent) -> Vec<Extent> {
    if extent.kind != Kind::Hole || extent.bytes < 2 {
        return vec![extent];
    }
    let half = extent.bytes / 2;
    let lower = Extent {
        bytes: half,
        ..extent
    };
    let upper = Extent {
        addr: extent.addr + half,
        bytes: extent.bytes - half,
        ..extent
    };
    vec![lower, upper]
}

fn figures_agree(layout: &Layout, extents: &[Extent]) {
    let holes = extents.iter().filter(|e| e.kind == Kind::Hole);
    assert_eq!(layout.free_bytes(), holes.map(|e| e.bytes).sum::<u64>());
    let movable = extents.iter().filter(|e| e.kind == Kind::Movable);
    assert_eq!(layout.movable_blocks(), movable.count());
    let mut holes: Vec<Extent> = extents
        .iter()
        .copied()
        .filter(|e| e.kind == Kind::Hole)
        .collect();
    holes.sort_by_key(|e| (e.bytes, e.addr));
    assert_eq!(layout.largest_hole(), holes.last().map_or(0, |e| e.bytes));
    for bytes in 0..9 {
        let fits: Vec<Extent> = layout.holes_of(bytes).collect();
        assert_eq!(fits, holes[holes.partition_point(|e| e.bytes < bytes)..]);
    }
    let largest: Vec<Extent> = layout.largest_holes().collect();
    holes.reverse();
    assert_eq!(largest, holes);
}

#[test]
fn extents_that_overlap_are_empty_or_wrap_around_are_no_layout() {
    let extent = |addr, bytes| Extent {
        addr,
        bytes,
        kind: Kind::Movable,
    };
    let is = |extents: &[Extent]| Layout::from_extents(extents.iter().copied()).is_some();
    assert!(is(&[]) && is(&[extent(0, 4), extent(4, 1)]) && is(&[extent(9, 4), extent(0, 9)]));
    assert!(!is(&[extent(0, 5), extent(4, 1)]) && !is(&[extent(9, 4), extent(0, 10)]));
    assert!(!is(&[extent(3, 0)]) && !is(&[extent(u64::MAX, 1)]));
    assert!(is(&[extent(u64::MAX - 1, 1)]));
    let hole = Extent {
        kind: Kind::Hole,
        ..extent(0, 8)
    };
    let mut layout = Layout::from_extents([hole]).expect("a hole");
    assert!(!layout.place(0, 0, Kind::Fixed));
    assert!(!layout.place(4, u64::MAX, Kind::Fixed) && !layout.place(20, 1, Kind::Fixed));
}
