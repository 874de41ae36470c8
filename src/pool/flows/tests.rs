//! Any blocks that come and go, one by one, against sums of what there is.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Away, Aways, Flows};
use crate::pool::stats::SMALL_BYTES;
use crate::pool::tally::{Sums, class};

/// A block, and the bytes that were asked for.
type Held = (u64, u64);

/// A lane, and what it has: sums by class, and the most there was of each and of both.
#[derive(Default)]
struct Lane {
    flows: Arc<Flows>,
    /// What others count of its blocks.
    away: Arc<Away>,
    live: Vec<Held>,
    cached: Vec<u64>,
    most: [(Sums, u64); 3],
    allocated: [Sums; 2],
    freed: [Sums; 2],
    /// Blocks that the cache served less those that it took in.
    served: i64,
}

fn sums(blocks: &[Held], of: usize) -> Sums {
    let blocks = blocks.iter().filter(|held| class(held.0) == of);
    blocks.fold(Sums::default(), |all, held| {
        all + Sums::block(held.0, held.1)
    })
}

impl Lane {
    fn new() -> Self {
        let lane = Self::default();
        lane.flows.add_away(&lane.away);
        lane
    }

    fn now(&self) -> [(Sums, u64); 3] {
        let of = [0, 1].map(|of| {
            let live = sums(&self.live, of);
            let cached = self.cached.iter().filter(|&&bytes| class(bytes) == of);
            (live, live.bytes + cached.sum::<u64>())
        });
        [of[0], of[1], (of[0].0 + of[1].0, of[0].1 + of[1].1)]
    }

    fn allocate(&mut self, held: Held) {
        self.live.push(held);
        let of = class(held.0);
        self.allocated[of] = self.allocated[of] + Sums::block(held.0, held.1);
    }

    fn free(&mut self, at: u64) -> Held {
        let held = self
            .live
            .swap_remove((at % self.live.len() as u64) as usize);
        let of = class(held.0);
        self.freed[of] = self.freed[of] + Sums::block(held.0, held.1);
        held
    }

    /// A live block has more bytes, and no fewer were asked for, or the other way round.
    fn resize(&mut self, at: u64, mut after: Held) {
        let at = (at % self.live.len() as u64) as usize;
        let before = self.live[at];
        after.1 = if after.0 < before.0 {
            after.1.min(before.1)
        } else {
            after.1.max(before.1)
        };
        self.live[at] = after;
        let pair = [before, after].map(|held| Sums::block(held.0, held.1));
        self.flows.resized(pair[0], pair[1]);
        let (from, to) = (class(before.0), class(after.0));
        if from != to {
            self.freed[from] = self.freed[from] + pair[0];
            self.allocated[to] = self.allocated[to] + pair[1];
        } else if after.0 < before.0 || after.1 < before.1 {
            self.freed[from] = self.freed[from] + (pair[0] - pair[1]);
        } else {
            self.allocated[from] = self.allocated[from] + (pair[1] - pair[0]);
        }
    }

    fn step(&mut self, kind: u8, at: u64, held: Held) {
        match kind {
            0 | 1 => {
                self.allocate(held);
                self.flows.served_by_core(held.0, held.1);
            }
            2 | 3 if !self.cached.is_empty() => {
                let bytes = self.cached.swap_remove(at as usize % self.cached.len());
                self.allocate((bytes, bytes - at % 9));
                self.flows.served_by_cache(bytes, bytes - at % 9);
                self.served += 1;
            }
            4 | 5 if !self.live.is_empty() => {
                let (bytes, requested) = self.free(at);
                self.cached.push(bytes);
                self.flows.kept_in_cache(bytes, requested);
                self.served -= 1;
            }
            6 if !self.live.is_empty() => {
                let (bytes, requested) = self.free(at);
                self.flows.given_to_core(bytes, requested);
            }
            7 if !self.live.is_empty() => {
                let (bytes, requested) = {
                    let at = (at % self.live.len() as u64) as usize;
                    self.live.swap_remove(at)
                };
                self.away.add(bytes, requested);
            }
            8 if !self.live.is_empty() => self.resize(at, held),
            9 if !self.cached.is_empty() => {
                let bytes = self.cached.swap_remove(at as usize % self.cached.len());
                let mut left = [0; 2];
                left[class(bytes)] = bytes;
                self.flows.left_cache(left);
            }
            10 => {
                self.cached.push(held.0);
                self.flows.came_to_cache(held.0);
            }
            11 => {
                self.cached.push(held.0);
                self.flows.took_foreign(held.0);
            }
            12 if at.is_multiple_of(4) => {
                self.flows.reset_peaks();
                self.most = self.now();
            }
            _ => {}
        }
    }

    fn agree(&mut self) {
        let now = self.now();
        for (most, now) in self.most.iter_mut().zip(now) {
            *most = (most.0.most(now.0), most.1.max(now.1));
        }
        assert_eq!(self.flows.peaks(), self.most);
        assert_eq!(self.flows.allocated(), self.allocated);
        assert_eq!(self.flows.freed(), self.freed);
        assert_eq!(self.flows.served_less_kept(), self.served);
        let away = self.away.sums();
        let cached = [0, 1].map(|of| {
            let cached = self.cached.iter().filter(|&&bytes| class(bytes) == of);
            cached.sum::<u64>()
        });
        assert_eq!(self.flows.cached(), cached);
        for (of, (added, removed)) in self.flows.active_flows().into_iter().enumerate() {
            let active = added - removed - away[of].bytes;
            assert_eq!(active, now[of].1);
            let live = self.allocated[of] - self.freed[of] - away[of];
            assert_eq!(live, now[of].0);
        }
    }
}

/// A size of either class, now and then one at the bound.
fn size() -> impl Strategy<Value = Held> {
    let bytes = prop_oneof![
        16..5000u64,
        SMALL_BYTES - 3..SMALL_BYTES + 4,
        SMALL_BYTES..3 * SMALL_BYTES,
    ];
    (bytes, 0..16u64).prop_map(|(bytes, less)| (bytes, bytes - less))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn what_a_lane_counts_is_what_comes_and_goes(
        steps in vec((0u8..13, any::<u32>(), size()), 1..120),
    ) {
        let mut lane = Lane::new();
        for (kind, at, held) in steps {
            lane.step(kind, u64::from(at), held);
            lane.agree();
        }
    }
}

#[test]
fn blocks_of_others_are_counted_for_each_by_itself_until_it_is_gone() {
    let homes: Vec<Arc<Flows>> = (0..4).map(|_| Arc::default()).collect();
    // Lanes in use are held where figures are read as well.
    let read = homes.clone();
    let mut aways = Aways::default();
    let mut made = Vec::new();
    for round in 0..3u64 {
        for (at, home) in homes.iter().enumerate() {
            let mut new = None;
            aways
                .of(home, |away| new = Some(Arc::clone(away)))
                .add(1 + at as u64, round);
            assert_eq!(new.is_some(), round == 0);
            made.extend(new);
        }
    }
    for (at, away) in made.iter().enumerate() {
        let [small, large] = away.sums();
        let bytes = 3 * (1 + at as u64);
        assert_eq!((small.blocks, small.bytes, small.requested), (3, bytes, 3));
        assert_eq!(large, Sums::default());
    }
    // Another that is new has those of lanes that are gone left out: their only holder is who asks.
    drop(read);
    let home = Arc::default();
    aways.of(&home, |_| ());
    assert_eq!(aways.of.len(), 1);
}

#[test]
fn what_went_away_is_counted_on_once_nobody_counts_there_any_more() {
    let flows = Flows::default();
    let away: Arc<Away> = Arc::default();
    flows.add_away(&away);
    for bytes in [100, 2 * SMALL_BYTES] {
        flows.served_by_core(bytes, bytes);
        away.add(bytes, bytes);
    }
    drop(away);
    // Seen when the next one comes, and when a peak is.
    for _ in 0..3 {
        let next: Arc<Away> = Arc::default();
        flows.add_away(&next);
        flows.served_by_core(100, 100);
        next.add(100, 100);
    }
    assert_eq!(super::lock(&flows.elsewhere).aways.len(), 1);
    flows.reset_peaks();
    assert_eq!(flows.peaks(), <[(Sums, u64); 3]>::default());
}

#[test]
fn a_peak_is_looked_at_again_only_once_more_is_live_than_it_has() {
    for cold in [false, true] {
        let flows = Flows::default();
        let allocate = |bytes| match cold {
            true => flows.served_by_core(bytes, bytes),
            false => flows.served_by_cache(bytes, bytes),
        };
        let free = |bytes| match cold {
            true => flows.given_to_core(bytes, bytes),
            false => flows.kept_in_cache(bytes, bytes),
        };
        let flow = if cold { &flows.cold.flow } else { &flows.hot };
        let bar = || flow.bars[0].at.get();
        (0..8).for_each(|_| allocate(100));
        let block = Sums::block(100, 100);
        let most = (0..8).fold(Sums::default(), |sum, _| sum + block);
        assert_eq!((bar(), flows.peaks()[0].0), (most, most));
        (0..5).for_each(|_| free(100));
        // A look far below the peak: the bar stands at it, where none below has anything to say.
        flow.bars[0].other.set(super::UNSET);
        allocate(100);
        assert_eq!(bar(), most);
        (0..4).for_each(|_| allocate(100));
        assert_eq!((bar(), flows.peaks()[0].0), (most, most));
        allocate(100);
        assert_eq!((bar(), flows.peaks()[0].0), (most + block, most + block));
    }
}
