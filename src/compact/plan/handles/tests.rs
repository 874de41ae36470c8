//! Which handles are emptied, and where their blocks go.

use super::super::layout::{Extent, Kind, Layout, extents_from};
use super::{Range, empty};
use crate::compact::plan::Move;
use crate::device::sim::Rng;

const HANDLE: u64 = 8;

/// Adjacent handles with random extents in them, some of which span two handles.
fn drawn(random: &mut Rng) -> (Layout, Vec<Range>) {
    let handles = 2 + random.below(5);
    let (mut kinds, mut sizes, mut left) = (String::new(), Vec::new(), handles * HANDLE);
    while left > 0 {
        kinds.push(['m', '.', 'm', '.', '.', 'm', 'f'][random.below(7) as usize]);
        let bytes = (1 + random.below(5)).min(left);
        sizes.push(bytes);
        left -= bytes;
    }
    let layout = Layout::from_extents(extents_from(64, &kinds, &sizes)).expect("ascends");
    let handles = (0..handles).map(|at| (64 + at * HANDLE, HANDLE)).collect();
    (layout, handles)
}

fn meets(extent: &Extent, (addr, bytes): Range) -> bool {
    extent.addr < addr + bytes && extent.end() > addr
}

/// The handles that may be emptied, the emptiest first.
fn ranked(layout: &Layout, handles: &[Range]) -> Vec<Range> {
    let live = |handle: Range| {
        let inside = layout.extents().filter(move |e| meets(e, handle));
        inside.filter(|e| e.kind != Kind::Hole)
    };
    let mut ranked: Vec<(u64, Range)> = handles
        .iter()
        .filter(|&&handle| live(handle).all(|e| e.kind == Kind::Movable))
        .map(|&handle| (live(handle).map(|e| e.bytes).sum(), handle))
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, handle)| handle).collect()
}

/// Moves of all blocks of `emptied`, the largest first, each to the tightest hole outside.
fn moved(layout: &Layout, emptied: &[Range]) -> Option<Vec<Move>> {
    let outside = |at: u64| {
        !emptied
            .iter()
            .any(|&(addr, bytes)| (addr..addr + bytes).contains(&at))
    };
    let mut free: Vec<u64> = (layout.extents().filter(|e| e.kind == Kind::Hole))
        .flat_map(|e| e.addr..e.end())
        .filter(|&at| outside(at))
        .collect();
    let mut blocks: Vec<Extent> = (layout.extents())
        .filter(|e| e.kind != Kind::Hole && emptied.iter().any(|&it| meets(e, it)))
        .collect();
    blocks.sort_by_key(|e| (std::cmp::Reverse(e.bytes), e.addr));
    let mut moves = Vec::new();
    for Extent { addr, bytes, .. } in blocks {
        // (bytes, start) of each run of free bytes.
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &at in &free {
            match runs.last_mut().filter(|(bytes, start)| start + bytes == at) {
                Some(run) => run.0 += 1,
                None => runs.push((1, at)),
            }
        }
        let &(_, dst) = runs.iter().filter(|run| run.0 >= bytes).min()?;
        free.retain(|at| !(dst..dst + bytes).contains(at));
        moves.push(Move {
            src: addr,
            dst,
            bytes,
        });
    }
    Some(moves)
}

#[test]
fn the_emptiest_handles_are_emptied_as_many_as_find_room() {
    let mut random = Rng::new(3);
    let (mut fewer, mut all) = (0, 0);
    for _ in 0..3000 {
        let (layout, handles) = drawn(&mut random);
        let bytes = 1 + random.below(30);
        let ranked = ranked(&layout, &handles);
        let wanted = ranked.len().min(bytes.div_ceil(HANDLE) as usize);
        let (moves, emptied) = empty(&layout, &handles, bytes);
        assert_eq!(emptied, ranked[..emptied.len()]);
        assert_eq!(Some(moves), moved(&layout, &emptied));
        assert!(emptied.len() <= wanted);
        // The blocks of one more handle do not all fit elsewhere.
        if emptied.len() < wanted {
            let next = moved(&layout, &ranked[..emptied.len() + 1]);
            assert_eq!(next, None, "{layout:?}, {emptied:?}");
            fewer += 1;
        } else {
            all += 1;
        }
    }
    assert!(fewer > 300 && all > 300, "{fewer} {all}");
    let (layout, handles) = drawn(&mut random);
    assert_eq!(empty(&layout, &handles, 0), (Vec::new(), Vec::new()));
}

#[test]
fn a_handle_that_is_named_twice_or_in_any_order_counts_once() {
    let layout =
        Layout::from_extents(extents_from(0, "m.m.m..", &[1, 7, 2, 6, 3, 5, 8])).expect("ascends");
    let twice = [(0, 8), (8, 8), (0, 8), (16, 8), (8, 8), (4, 8)];
    for bytes in [8, 16, 24] {
        let once = empty(&layout, &[(0, 8), (8, 8), (16, 8)], bytes);
        assert_eq!(once.1.len() as u64 * 8, bytes);
        assert_eq!(empty(&layout, &twice, bytes), once);
        let falling = [(20, 8), (16, 8), (8, 8), (4, 8), (0, 8)];
        assert_eq!(empty(&layout, &falling, bytes), once);
    }
}

#[test]
fn handles_without_end_that_overlap_take_no_more_time_than_one() {
    let blocks = 60_000;
    let kinds = "m.".repeat(blocks);
    let layout =
        Layout::from_extents(extents_from(0, &kinds, &vec![1; 2 * blocks])).expect("ascends");
    let handles: Vec<Range> = (0..60_000).map(|at| (at, u64::MAX)).collect();
    let began = std::time::Instant::now();
    assert_eq!(empty(&layout, &handles, u64::MAX), (Vec::new(), Vec::new()));
    assert!(began.elapsed() < std::time::Duration::from_secs(20));
}
