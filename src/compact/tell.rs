//! Tells a watcher of the device which bytes change their owner with a step's moves.
//!
//! Where a block goes is given out before the moves are queued, and where it came from is taken
//! back behind them. What is both, under a block that slides over itself or over the old place of
//! another, stays given out throughout.

use super::execute::Way;
use super::plan::Batch;
use crate::device::{Device, Note, RawStream};

/// (first byte, first byte beyond), ascending, apart.
type Ranges = Vec<(u64, u64)>;

fn joined(ranges: impl Iterator<Item = (u64, u64)>) -> Ranges {
    let mut sorted: Ranges = ranges.collect();
    sorted.sort_unstable();
    let mut joined: Ranges = Vec::new();
    for (from, to) in sorted {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// The bytes of `ranges` that are not in `others`.
fn without(ranges: &Ranges, others: &Ranges) -> Ranges {
    let mut rest = Vec::new();
    let mut others = others.iter().peekable();
    for &(from, to) in ranges {
        let mut at = from;
        while let Some(&&(start, end)) = others.peek().filter(|other| other.0 < to) {
            if start > at {
                rest.push((at, start));
            }
            at = at.max(end.min(to));
            if end >= to {
                break;
            }
            others.next();
        }
        if at < to {
            rest.push((at, to));
        }
    }
    rest
}

/// What a step's moves do to the owners of the bytes.
pub(super) struct Tell {
    given: Ranges,
    taken_back: Ranges,
}

impl Tell {
    /// Of `batches`, in the order they run; `ways` says where each block comes from and ends.
    pub(super) fn of(batches: &[Batch], ways: &[Way]) -> Self {
        let moves = batches.iter().flat_map(|batch| batch.moves());
        let through = joined(moves.map(|m| (m.dst, m.dst + m.bytes)));
        let before = joined(ways.iter().map(|&(from, _, bytes)| (from, from + bytes)));
        let after = joined(ways.iter().map(|&(_, to, bytes)| (to, to + bytes)));
        let all = joined(before.iter().chain(&through).copied());
        Self {
            given: without(&through, &before),
            taken_back: without(&all, &after),
        }
    }

    /// To be called when the stream waits for all it has to and before the moves are queued.
    pub(super) fn before(&self, device: &Device, base: u64, stream: RawStream) {
        for &(from, to) in &self.given {
            device.backend().observe(&Note::Alloc {
                addr: base + from,
                bytes: to - from,
                stream,
            });
        }
    }

    /// To be called when the moves are queued.
    pub(super) fn after(&self, device: &Device, base: u64, stream: RawStream) {
        for &(from, to) in &self.taken_back {
            device.backend().observe(&Note::Free {
                addr: base + from,
                bytes: to - from,
                stream,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Move;

    fn slide(src: u64, dst: u64, bytes: u64) -> (Vec<Batch>, Vec<Way>) {
        let moves = vec![Move { src, dst, bytes }];
        let upward = dst > src;
        (
            vec![Batch::Slide { upward, moves }],
            vec![(src, dst, bytes)],
        )
    }

    #[test]
    fn a_block_that_slides_over_itself_keeps_what_it_lies_on_before_and_after() {
        let (batches, ways) = slide(64, 16, 64);
        let tell = Tell::of(&batches, &ways);
        assert_eq!(tell.given, [(16, 64)]);
        assert_eq!(tell.taken_back, [(80, 128)]);
    }

    #[test]
    fn a_place_passed_through_is_given_out_and_taken_back() {
        let hop = |src, dst| {
            let moves = vec![Move {
                src,
                dst,
                bytes: 16,
            }];
            Batch::Disjoint(moves)
        };
        let tell = Tell::of(&[hop(0, 64), hop(64, 128)], &[(0, 128, 16)]);
        assert_eq!(tell.given, [(64, 80), (128, 144)]);
        assert_eq!(tell.taken_back, [(0, 16), (64, 80)]);
    }

    #[test]
    fn what_is_left_of_ranges_is_what_the_others_do_not_cover() {
        let left = without(&vec![(0, 10), (20, 30)], &vec![(2, 4), (8, 22), (24, 40)]);
        assert_eq!(left, [(0, 2), (4, 8), (22, 24)]);
        assert_eq!(without(&vec![(5, 6)], &vec![(0, 5), (6, 9)]), [(5, 6)]);
        assert_eq!(without(&vec![(5, 6), (7, 8)], &vec![(0, 9)]), []);
    }
}
