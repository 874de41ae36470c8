//! Which rows exist, and which of them slides.

use super::super::layout::extents_from;
use super::*;
use crate::device::sim::Rng;

#[test]
fn the_lowest_cheap_row_is_taken_before_the_cheapest() {
    let extents = extents_from(0, "m.m.m.m.", &[9, 5, 3, 5, 9, 6, 1, 6]);
    let of = |first, last, live| Some(Row { first, last, live });
    assert_eq!(row(&extents, 10, 3), of(1, 3, 3));
    assert_eq!(row(&extents, 10, 2), of(5, 7, 1));
    assert_eq!(row(&extents, 10, 0), of(5, 7, 1));
    assert_eq!(row(&extents, 22, 0), of(1, 7, 13));
    assert_eq!(row(&extents, 23, 99), None);
}

/// A random layout of a few extents, some of them not adjacent.
pub(in crate::compact) fn drawn(random: &mut Rng) -> Vec<Extent> {
    let mut addr = 0;
    let mut drawn = |_| {
        addr += random.below(6) / 5;
        let kind = [Kind::Hole, Kind::Movable, Kind::Movable, Kind::Fixed];
        let kind = kind[(random.below(10) / 3) as usize];
        // Blocks are larger than holes, so that some are too expensive to bring along.
        let bytes = 1 + random.below(if kind == Kind::Movable { 30 } else { 6 });
        addr += bytes;
        Extent {
            addr: addr - bytes,
            bytes,
            kind,
        }
    };
    (0..14).map(&mut drawn).collect()
}

/// Bytes of the holes and of the blocks of `extents[from..to]`; `None` if they are not adjacent or
/// one is fixed.
pub(in crate::compact) fn sums(extents: &[Extent], from: usize, to: usize) -> Option<(u64, u64)> {
    let row = &extents[from..to];
    let together = row.windows(2).all(|two| two[0].end() == two[1].addr);
    let fixed = row.iter().any(|e| e.kind == Kind::Fixed);
    let of = |kind| row.iter().filter(|e| e.kind == kind).map(|e| e.bytes).sum();
    (together && !fixed).then(|| (of(Kind::Hole), of(Kind::Movable)))
}

/// For each hole, the shortest row from it with `bytes` free; ordered by the row's end.
fn rows(extents: &[Extent], bytes: u64) -> Vec<Row> {
    let holes = (0..extents.len()).filter(|&at| extents[at].kind == Kind::Hole);
    let ending = |first| {
        let enough = (first..extents.len()).map(|last| (last, sums(extents, first, last + 1)));
        let mut enough = enough.map_while(|(last, sums)| Some((last, sums?)));
        let (last, (_, live)) = enough.find(|(_, (free, _))| *free >= bytes)?;
        Some(Row { first, last, live })
    };
    let mut rows: Vec<Row> = holes.filter_map(ending).collect();
    rows.sort_by_key(|row| (row.last, row.first));
    rows
}

#[test]
fn the_row_is_the_first_that_is_cheap_or_the_cheapest_of_all() {
    let mut random = Rng::new(17);
    for _ in 0..4000 {
        let extents = drawn(&mut random);
        let (bytes, cheap) = (1 + random.below(12), random.below(60));
        let rows = rows(&extents, bytes);
        let lowest = rows.iter().find(|row| row.live <= cheap);
        let said = lowest.or_else(|| rows.iter().min_by_key(|row| row.live));
        assert_eq!(row(&extents, bytes, cheap), said.copied(), "{extents:?}");
    }
}

#[test]
fn a_row_ends_at_a_fixed_block_and_where_nothing_is_mapped() {
    let mut extents = extents_from(0, ".mf.m.m.", &[5, 1, 1, 5, 1, 5, 1, 5]);
    assert_eq!(row(&extents, 15, 99).map(|row| row.first), Some(3));
    assert_eq!(row(&extents, 16, 99), None);
    for extent in &mut extents[6..] {
        extent.addr += 100;
    }
    assert_eq!(row(&extents, 10, 99).map(|row| row.last), Some(5));
    assert_eq!(row(&extents, 11, 99), None);
}
