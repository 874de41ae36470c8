//! Any blocks that come and go, one by one, against sums of what there is.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn sums(of: [i64; 3]) -> Blocks {
    Sums(of.map(|it| it as u64))
}

#[test]
fn sums_are_compared_and_added_field_by_field() {
    let (a, b) = (sums([1, -20, 300]), sums([-4, 50, 60]));
    assert_eq!(a + b, sums([-3, 30, 360]));
    assert_eq!(a - b, sums([5, -70, 240]));
    assert_eq!(a.most(b), sums([1, 50, 300]));
    let bar = sums([1, 20, 300]);
    for at in 0..8u64 {
        // Which of the fields are more.
        let more = [0, 1, 2].map(|bit| (at >> bit & 1) as i64);
        let other = sums([1 + more[0], 20 + more[1], 300 + more[2]]);
        assert_eq!(other.exceeds(bar), at != 0, "{more:?}");
    }
    assert!(!sums([-1, 19, 299]).exceeds(bar));
    assert_eq!([1, SMALL_BYTES, SMALL_BYTES + 1].map(class), [0, 0, 1]);
}

/// Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.
#[cfg(loom)]
mod models {
    use super::*;

    #[test]
    fn a_block_freed_elsewhere_during_a_read_makes_no_more_bytes_live() {
        loom::model(|| {
            let elsewhere = Arc::new(Elsewhere::default());
            let theirs = Arc::clone(&elsewhere);
            let free = loom::thread::spawn(move || _ = theirs.add(100, 50));
            let [Sums(freed), _] = elsewhere.sums();
            assert!(freed.iter().all(|&freed| freed <= 100), "{freed:?}");
            free.join().unwrap();
        });
    }
}

/// A block, and the bytes that were asked for.
type Held = (u64, u64);

/// A stream cache's counters, what it has live, and the most there was of each class and of both.
struct Model {
    counters: Counters,
    elsewhere: Elsewhere,
    live: Vec<Held>,
    most: [Blocks; 3],
    allocated: [Blocks; 2],
    freed: [Blocks; 2],
    /// Blocks freed elsewhere.
    gone: u64,
}

impl Model {
    fn now(&self) -> [Blocks; 3] {
        let of = |of: usize| {
            let blocks = self.live.iter().filter(|held| class(held.0) == of);
            blocks.fold(Sums::default(), |all, held| {
                all + Sums::block(held.0, held.1)
            })
        };
        [of(0), of(1), of(0) + of(1)]
    }

    fn take(&mut self, at: u64) -> Held {
        self.live
            .swap_remove((at % self.live.len() as u64) as usize)
    }

    /// A live block has more bytes, and no fewer were asked for, or the other way round.
    fn resize(&mut self, at: u64, mut after: Held) {
        let before = self.take(at);
        after.1 = if after.0 < before.0 {
            after.1.min(before.1)
        } else {
            after.1.max(before.1)
        };
        self.live.push(after);
        let pair = [before, after].map(|held| Sums::block(held.0, held.1));
        self.counters.resize([before, after], &self.elsewhere);
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
            0..=3 => {
                self.live.push(held);
                let of = class(held.0);
                self.allocated[of] = self.allocated[of] + Sums::block(held.0, held.1);
                (self.counters).allocate(held.0, held.1, &self.elsewhere);
            }
            4 | 5 if !self.live.is_empty() => {
                let (bytes, requested) = self.take(at);
                let of = class(bytes);
                self.freed[of] = self.freed[of] + Sums::block(bytes, requested);
                self.counters.free(bytes, requested);
            }
            6 if !self.live.is_empty() => {
                let (bytes, requested) = self.take(at);
                self.gone += 1;
                self.elsewhere.add(bytes, requested);
            }
            7 if !self.live.is_empty() => self.resize(at, held),
            8 if at.is_multiple_of(4) => {
                self.counters.totals(&self.elsewhere).reset_peaks();
                self.most = self.now();
            }
            _ => {}
        }
    }

    fn agree(&mut self) {
        let now = self.now();
        for (most, now) in self.most.iter_mut().zip(now) {
            *most = most.most(now);
        }
        let (totals, seen) = (&self.counters.totals, self.counters.gone);
        assert_eq!(totals.peaks, self.most);
        assert_eq!(totals.allocated, self.allocated);
        let gone = self.elsewhere.sums();
        for of in [0, 1] {
            assert_eq!(totals.freed[of] - seen[of], self.freed[of]);
            assert_eq!(self.allocated[of] - self.freed[of] - gone[of], now[of]);
        }
        let blocks = self.live.len() as u64 + self.gone;
        assert_eq!(self.counters.blocks(), blocks as i64);
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
    fn what_a_stream_cache_counts_is_what_comes_and_goes(
        steps in vec((0u8..9, any::<u32>(), size()), 1..120),
    ) {
        let mut model = Model {
            counters: Counters::default(),
            elsewhere: Elsewhere::default(),
            live: Vec::new(),
            most: Default::default(),
            allocated: Default::default(),
            freed: Default::default(),
            gone: 0,
        };
        for (kind, at, held) in steps {
            model.step(kind, u64::from(at), held);
            model.agree();
        }
    }
}

#[test]
fn a_peak_is_looked_at_again_only_once_more_is_live_than_it_has() {
    let (mut counters, elsewhere) = (Counters::default(), Elsewhere::default());
    let block = Sums::block(100, 100);
    let most = (0..8).fold(Sums::default(), |sum, _| sum + block);
    (0..8).for_each(|_| counters.allocate(100, 100, &elsewhere));
    assert_eq!(counters.totals.peaks, [most, Sums::default(), most]);
    (0..5).for_each(|_| counters.free(100, 100));
    // Nobody looks below the peak: what was freed elsewhere is not seen.
    elsewhere.add(100, 100);
    (0..5).for_each(|_| counters.allocate(100, 100, &elsewhere));
    assert_eq!(counters.gone, <[Blocks; 2]>::default());
    counters.allocate(100, 100, &elsewhere);
    assert_eq!((counters.gone[0], counters.totals.peaks[0]), (block, most));
    counters.allocate(100, 100, &elsewhere);
    assert_eq!(counters.totals.peaks[0], most + block);
}

fn gauge(current: u64, peak: u64, allocated: u64) -> Counter {
    let freed = allocated - current;
    Counter {
        current,
        peak,
        allocated,
        freed,
    }
}

#[test]
fn a_gauge_has_its_sum_its_peak_and_all_that_was_ever_added() {
    let mut it = Gauges::default();
    it.add(10);
    assert_eq!(it.counters()[0], [gauge(10, 10, 10)]);
    for (value, peak, allocated) in [(20, 20, 20), (5, 20, 20), (9, 20, 24)] {
        it.set([value, 0]);
        let expected = [gauge(value, peak, allocated)];
        assert_eq!(it.counters(), [expected, [gauge(0, 0, 0)], expected]);
    }
}

#[test]
fn gauges_are_by_class_and_their_peak_is_of_both() {
    const LARGE: u64 = 2 * SMALL_BYTES;
    let mut it = Gauges::default();
    let classes = |it: &Gauges| {
        let [[small], [large], _] = it.counters();
        [small, large]
    };
    let peak = |it: &Gauges| it.counters()[2][0].peak;
    let state = |it: &Gauges| (classes(it), peak(it), it.bytes()[2]);
    it.add(100);
    it.add(LARGE);
    let (all, large) = (100 + LARGE, gauge(LARGE, LARGE, LARGE));
    assert_eq!(state(&it), ([gauge(100, 100, 100), large], all, all));
    it.sub(100);
    it.add(30);
    assert_eq!(state(&it), ([gauge(30, 100, 130), large], all, 30 + LARGE));
    // In its class by the difference, across by both.
    it.block_resized(30, 50);
    assert_eq!(classes(&it)[0], gauge(50, 100, 150));
    it.block_resized(50, 20);
    assert_eq!(classes(&it)[0], gauge(20, 100, 150));
    it.block_resized(LARGE, LARGE + 500);
    assert_eq!(peak(&it), LARGE + 520);
    it.block_resized(LARGE + 500, 40);
    let large = gauge(0, LARGE + 500, LARGE + 500);
    assert_eq!(state(&it), ([gauge(60, 100, 190), large], LARGE + 520, 60));
    it.set([70, LARGE]);
    let large = gauge(LARGE, LARGE + 500, 2 * LARGE + 500);
    assert_eq!(classes(&it), [gauge(70, 100, 200), large]);
    it.sub(70);
    it.reset_peaks();
    assert_eq!(peak(&it), LARGE);
    assert_eq!(classes(&it).map(|class| class.peak), [0, LARGE]);
}
