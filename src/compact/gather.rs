//! Collecting free memory at the end of stretches, as whole physical handles that can be remapped.
//!
//! A stretch is a run of extents with nothing fixed or unmapped in between. If no stretch has enough free
//! bytes for a request, handles of several stretches have to come together. A handle with a block in it
//! cannot be remapped. Sliding the upper part of a stretch downwards collects its free memory at the upper
//! end, as handles without blocks. The slid parts grow by one hole at a time, the hole with the fewest live
//! bytes per free byte first, until the idle handles make up the request. This pays because copying a
//! handle's worth of blocks costs a tenth of mapping the handle again.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::plan::layout::{Extent, Kind};
use super::plan::rows::{slide_down, stretches};
use super::plan::{Batch, CostModel, Move, Plan};

/// What the plan has to know of the pool in addition to its extents.
pub(super) struct Handles<'a> {
    /// Bytes of the smallest physical handle; all handles are multiples of it.
    pub(super) granule: u64,
    /// Bytes the pool may still grow by.
    pub(super) room: u64,
    /// Bytes of the handles that lie wholly between two addresses.
    pub(super) whole: &'a dyn Fn(u64, u64) -> u64,
    /// Unmapped address space, in bytes, that handles can be mapped to from an address on.
    pub(super) gap: &'a dyn Fn(u64) -> u64,
}

/// A stretch whose upper part is slid down.
#[derive(Debug, Clone, Copy)]
struct Stretch<'e> {
    extents: &'e [Extent],
    /// The first extent of the part that slides.
    cut: usize,
    /// Bytes of the holes in that part, which become one hole.
    free: u64,
    /// Bytes of whole handles in that hole.
    whole: u64,
    /// Unmapped bytes after the stretch, by which its last hole can grow.
    gap: u64,
}

impl<'e> Stretch<'e> {
    /// Nothing slides yet.
    fn new(extents: &'e [Extent], gap: &dyn Fn(u64) -> u64) -> Self {
        Self {
            extents,
            cut: extents.len(),
            free: 0,
            whole: 0,
            gap: extents.last().map_or(0, |last| gap(last.end())),
        }
    }

    /// Has the part that slides begin at the hole `cut`, the next one below it.
    fn extend(&mut self, cut: usize, whole: &dyn Fn(u64, u64) -> u64) {
        let end = self.extents[self.extents.len() - 1].end();
        self.cut = cut;
        self.free += self.extents[cut].bytes;
        self.whole = whole(end - self.free, end);
    }

    /// The next hole below the part that slides: its index, its bytes, and the live bytes in between.
    fn next(&self) -> Option<(usize, u64, u64)> {
        let mut live = 0;
        for (at, extent) in self.extents[..self.cut].iter().enumerate().rev() {
            match extent.kind {
                Kind::Hole => return Some((at, extent.bytes, live)),
                Kind::Movable | Kind::Fixed => live += extent.bytes,
            }
        }
        None
    }

    /// Bytes of idle and new handles, its own included, with which its last hole makes up `bytes`; `None` if
    /// they do not fit behind it.
    fn needs(&self, granule: u64, bytes: u64) -> Option<u64> {
        let lacking = bytes.saturating_sub(self.free).next_multiple_of(granule);
        (self.gap > 0 && lacking <= self.gap).then_some(lacking + self.whole)
    }
}

/// The moves after which idle handles from elsewhere extend a hole at the end of a stretch to `bytes`. `None`
/// if nothing has to move, or if no moves suffice.
pub(super) fn plan(
    model: &CostModel,
    extents: &[Extent],
    handles: &Handles<'_>,
    bytes: u64,
) -> Option<Plan> {
    let all = stretches(extents).map(|extents| Stretch::new(extents, handles.gap));
    let mut stretches: Vec<Stretch<'_>> = all.collect();
    let whole = |e: &Extent| (handles.whole)(e.addr, e.end());
    let holes = extents.iter().filter(|e| e.kind == Kind::Hole);
    let mut idle: u64 = holes.map(whole).sum();
    // Each round changes one stretch: the others keep their place in both orders.
    let needs = |at: usize, it: &Stretch| Some((it.needs(handles.granule, bytes)?, at));
    let price = |at: usize, it: &Stretch| {
        let (cut, free, live) = it.next()?;
        // The bits of numbers from zero on are in the order of the numbers.
        Some(Reverse(((live as f64 / free as f64).to_bits(), at, cut)))
    };
    let each = || stretches.iter().enumerate();
    let mut least: BTreeSet<_> = each().filter_map(|(at, it)| needs(at, it)).collect();
    let mut nexts: BinaryHeap<_> = each().filter_map(|(at, it)| price(at, it)).collect();
    while (least.first()).is_none_or(|&(needed, _)| needed > idle.saturating_add(handles.room)) {
        let Reverse((_, at, cut)) = nexts.pop()?;
        let stretch = &mut stretches[at];
        needs(at, stretch).map(|needed| least.remove(&needed));
        idle -= stretch.whole + whole(&stretch.extents[cut]);
        stretch.extend(cut, handles.whole);
        idle += stretch.whole;
        least.extend(needs(at, stretch));
        nexts.extend(price(at, stretch));
    }
    let slid = |stretch: &Stretch| slide_down(&stretch.extents[stretch.cut..]);
    let moves: Vec<Move> = stretches.iter().flat_map(slid).collect();
    (!moves.is_empty()).then(|| slid_down(moves, model))
}

/// A plan that slides `moves` downwards; `moves` ascend.
pub(super) fn slid_down(moves: Vec<Move>, model: &CostModel) -> Plan {
    let slide = Batch::Slide {
        upward: false,
        moves,
    };
    Plan::of(vec![slide], model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::plan::layout::{Layout, extents_from};
    use crate::device::sim::Rng;

    /// Handles of 10 bytes.
    fn whole(from: u64, to: u64) -> u64 {
        (to / 10 * 10).saturating_sub(from.next_multiple_of(10))
    }

    fn planned(extents: &[Extent], room: u64, bytes: u64) -> Option<Plan> {
        let handles = Handles {
            granule: 10,
            room,
            whole: &whole,
            gap: &|end| {
                let next = extents.iter().find(|e| e.addr >= end);
                next.map_or(1000, |e| e.addr - end)
            },
        };
        plan(&CostModel::default(), extents, &handles, bytes)
    }

    #[test]
    fn a_stretch_is_what_lies_together_and_nothing_of_it_is_slid_at_first() {
        let mut extents = extents_from(0, "m.f.m", &[10, 20, 10, 5, 5]);
        extents.extend(extents_from(100, ".ff.", &[10, 5, 5, 20]));
        let all: Vec<Stretch> = stretches(&extents)
            .map(|it| Stretch::new(it, &|end| end))
            .collect();
        let seen = all
            .iter()
            .map(|it| (it.extents.len(), it.cut, it.free, it.whole, it.gap));
        let of = |count, gap| (count, count, 0, 0, gap);
        assert!(seen.eq([of(2, 30), of(2, 50), of(1, 110), of(1, 140)]));
        let mut stretch = all[0];
        assert_eq!(stretch.next(), Some((1, 20, 0)));
        stretch.extend(1, &whole);
        assert_eq!(
            (stretch.next(), stretch.free, stretch.whole),
            (None, 20, 20)
        );
        assert_eq!(all[1].next(), Some((0, 5, 5)));
    }

    #[test]
    fn what_is_idle_elsewhere_and_new_has_to_fit_behind_a_stretch() {
        let home = Stretch {
            extents: &[],
            cut: 0,
            free: 15,
            whole: 10,
            gap: 30,
        };
        let enough =
            |idle: u64, room, bytes| home.needs(10, bytes).is_some_and(|it| it <= idle + room);
        // Its own whole handle of 10 bytes counts as idle.
        assert!(enough(10, 0, 15) && !enough(10, 0, 16));
        assert!(enough(20, 0, 25) && !enough(20, 0, 26));
        assert!(enough(20, 10, 35) && !enough(20, 10, 36));
        assert!(enough(90, 90, 45) && !enough(90, 90, 46), "no room behind");
        let none = Stretch { gap: 0, ..home };
        assert_eq!([none, home].map(|it| it.needs(10, 5)), [None, Some(10)]);
    }

    /// Whether the free bytes at the end of one stretch, idle handles elsewhere and `room` for new
    /// ones make up `bytes`, with enough unmapped space after the stretch.
    fn made_up(extents: &[Extent], room: u64, bytes: u64) -> bool {
        let idle = |e: &Extent| match e.kind {
            Kind::Hole => whole(e.addr, e.end()),
            Kind::Movable | Kind::Fixed => 0,
        };
        let all: u64 = extents.iter().map(idle).sum();
        extents.iter().enumerate().any(|(at, last)| {
            let next = extents.get(at + 1);
            let gap = next.map_or(1000, |next| next.addr - last.end());
            let free = if last.kind == Kind::Hole {
                last.bytes
            } else {
                0
            };
            let lacking = bytes.saturating_sub(free).next_multiple_of(10);
            let stretch = gap > 0 && last.kind != Kind::Fixed;
            stretch && lacking <= gap && lacking <= all - idle(last) + room
        })
    }

    #[test]
    fn parts_are_slid_until_what_is_idle_makes_up_the_request_or_there_is_no_more() {
        let (mut random, mut seen) = (Rng::new(27), [0; 2]);
        for _ in 0..6000 {
            let (mut addr, mut extents) = (0u64, Vec::<Extent>::new());
            for _ in 0..12 {
                let apart = random.below(8) == 0;
                addr = if apart {
                    (addr + 20).next_multiple_of(10)
                } else {
                    addr
                };
                let kind = [Kind::Hole, Kind::Movable, Kind::Movable, Kind::Fixed];
                let kind = kind[(random.below(10) / 3) as usize];
                if !apart && kind == Kind::Hole && extents.last().is_some_and(|e| e.kind == kind) {
                    continue;
                }
                let bytes = 1 + random.below(24);
                extents.push(Extent { addr, bytes, kind });
                addr += bytes;
            }
            let (room, bytes) = (10 * random.below(3), 1 + random.below(90));
            let layout = Layout::from_extents(extents.iter().copied()).expect("ascends");
            let played = |moves: &[Move]| {
                let mut layout = layout.clone();
                assert!(moves.iter().all(|m| layout.free(m.src)));
                assert!(
                    moves
                        .iter()
                        .all(|m| layout.place(m.dst, m.bytes, Kind::Movable))
                );
                layout.extents().collect::<Vec<Extent>>()
            };
            match planned(&extents, room, bytes) {
                Some(plan) => {
                    let moves: Vec<Move> = plan
                        .batches
                        .iter()
                        .flat_map(Batch::moves)
                        .copied()
                        .collect();
                    assert!(
                        made_up(&played(&moves), room, bytes),
                        "{bytes} of {extents:?}"
                    );
                    assert!(plan.bytes > 0);
                    seen[0] += 1;
                }
                None if !made_up(&extents, room, bytes) => {
                    let all = stretches(&extents).flat_map(slide_down);
                    let all = played(&all.collect::<Vec<Move>>());
                    assert!(!made_up(&all, room, bytes), "{bytes} of {extents:?}");
                    seen[1] += 1;
                }
                None => {}
            }
        }
        assert!(seen.iter().all(|&count| count > 300), "{seen:?}");
    }

    #[test]
    fn stretches_by_the_ten_thousand_are_slid_in_one_pass() {
        let count = 60_000;
        let stretch = |at| extents_from(1000 * at, "m.m.", &[5; 4]);
        let extents: Vec<Extent> = (0..count).flat_map(stretch).collect();
        let handles = Handles {
            granule: 10,
            room: 0,
            whole: &whole,
            gap: &|_| u64::MAX / 2,
        };
        let began = std::time::Instant::now();
        let plan = plan(&CostModel::default(), &extents, &handles, 10 * count).expect("as much");
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
        assert_eq!((plan.moves as u64, plan.bytes), (count, 5 * count));
    }

    #[test]
    fn only_the_upper_part_that_is_needed_is_slid() {
        let mut extents = extents_from(0, "m.m.m.m", &[15, 10, 35, 6, 4, 4, 6]);
        extents.extend(extents_from(200, "m.", &[10, 20]));
        // One handle of 10 bytes of the first stretch joins the 20 bytes at the end of the second.
        let made = planned(&extents, 0, 30).expect("a plan");
        assert_eq!(made.batches[0].moves(), slide_down(&extents[3..7]));
        assert_eq!(made.bytes, 10);
        let made = planned(&extents, 0, 40).expect("a plan");
        assert_eq!(made.batches[0].moves(), slide_down(&extents[1..7]));
        assert!(planned(&extents, 0, 41).is_none());
        assert!(planned(&extents, 10, 50).is_some());
    }

    #[test]
    fn the_stretch_with_the_fewest_live_bytes_for_its_free_ones_is_slid_first() {
        let mut extents = extents_from(0, ".m", &[15, 45]);
        extents.extend(extents_from(100, ".m", &[15, 25]));
        // Either slide makes a hole of 15 bytes, which the other's idle handle extends to 25.
        let made = planned(&extents, 0, 25).expect("a plan");
        assert_eq!(made.batches[0].moves(), slide_down(&extents[2..]));
        assert_eq!(made.bytes, 25);
    }

    #[test]
    fn nothing_is_moved_where_idle_handles_suffice_or_blocks_are_fixed() {
        let mut extents = extents_from(0, "m.m", &[10, 20, 10]);
        extents.extend(extents_from(200, "m.", &[10, 20]));
        assert!(planned(&extents, 0, 40).is_none());
        let mut extents = extents_from(0, "f.f.f", &[10, 5, 10, 5, 10]);
        extents.extend(extents_from(200, "m.", &[10, 20]));
        assert!(planned(&extents, 0, 30).is_none());
    }

    #[test]
    fn a_hole_before_a_fixed_block_is_no_place_for_more_handles() {
        let mut extents = extents_from(0, ".mf", &[20, 10, 10]);
        extents.extend(extents_from(200, "f.f", &[10, 20, 10]));
        assert!(planned(&extents, 0, 45).is_none());
        extents.extend(extents_from(300, ".m", &[5, 5]));
        assert!(planned(&extents, 0, 45).is_some());
    }
}
