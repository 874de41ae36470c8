//! Any steps on a cache against plain lists.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{ALL_BINS, BINS, Cache, Cached, LARGE_BINS, MOST_BLOCKS};
use crate::heap::UNIT;
use crate::heap::size_class::{MOST, STEP, is_slot, rounded};

/// The largest size that has a bin of its own.
const LISTED: u64 = BINS as u64 * UNIT;

/// The sizes that are used: slots, small and large ones, some of which share a bin.
fn sizes() -> Vec<u64> {
    let slots = [16, 48, 320, 3968];
    let small = [1, 2, 63, 64, 65, 4031, 4032].map(|units| units * UNIT);
    let large = [4033, 4034, 5000, 70_000, 70_001, 1 << 20].map(|units| units * UNIT);
    let last = *large.last().unwrap();
    // And one of the last one's bin.
    let shares = (last / UNIT + 1..).map(|units| units * UNIT);
    let shares = shares
        .take(2000)
        .find(|&b| Cache::bin(b) == Cache::bin(last));
    [&slots[..], &small, &large, &[shares.unwrap()]].concat()
}

#[test]
fn sizes_up_to_the_bins_have_one_each_and_larger_ones_share_some() {
    let mut seen = BTreeSet::new();
    for units in 1..=BINS as u64 {
        assert!(seen.insert(Cache::bin(units * UNIT)));
    }
    for bytes in (STEP..MOST).step_by(STEP as usize) {
        if is_slot(bytes) && rounded(bytes, true) == bytes {
            assert!(seen.insert(Cache::bin(bytes)));
        }
    }
    let large: BTreeSet<usize> = (1..5000).map(|at| Cache::bin(LISTED + at * UNIT)).collect();
    assert!(large.is_disjoint(&seen) && (48..=64).contains(&large.len()));
    assert!(large.iter().chain(&seen).all(|&bin| bin < super::ALL));
}

/// The lists of the bins, what was kept last at the end of each.
type Lists = BTreeMap<usize, Vec<Cached>>;

fn key(block: &Cached) -> (u64, u64, u64, u32) {
    (block.addr, block.bytes, block.tick, block.id)
}

fn agree(cache: &Cache, lists: &Lists) {
    let all = || lists.values().flatten();
    assert_eq!(cache.bytes, all().map(|it| it.bytes).sum::<u64>());
    assert_eq!(cache.bytes == 0, all().next().is_none());
    let mut seen = Vec::new();
    cache.each(|block| seen.push(key(block)));
    let said: Vec<_> = lists
        .values()
        .flat_map(|list| list.iter().rev().map(key))
        .collect();
    assert_eq!(seen, said);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_steps_on_a_cache_leave_what_they_leave_of_plain_lists(
        steps in vec((0u8..14, any::<[u8; 3]>()), 1..120),
    ) {
        let sizes = sizes();
        let (mut cache, mut lists) = (Cache::default(), Lists::new());
        let (mut most, mut id) = (0, 0);
        for (kind, [a, b, c]) in steps {
            let bytes = sizes[a as usize % sizes.len()];
            let list = lists.entry(Cache::bin(bytes)).or_default();
            match kind {
                0..=5 => {
                    id += 1;
                    let (addr, tick) = (u64::from(id) << 30, u64::from(b % 8));
                    let block = Cached::new(id, addr, bytes, tick);
                    cache.push(block);
                    list.push(block);
                }
                6 | 7 => {
                    let popped = list.pop_if(|it| it.bytes == bytes);
                    let seen = cache.pop(bytes);
                    assert_eq!(seen.as_ref().map(key), popped.as_ref().map(key));
                }
                8 | 9 => {
                    let many = 1 + usize::from(c % 3);
                    let taken: Vec<_> =
                        std::iter::from_fn(|| cache.pop(bytes)).take(many).collect();
                    let mut said = Vec::new();
                    while said.len() < many && list.last().is_some_and(|it| it.bytes == bytes) {
                        said.extend(list.pop());
                    }
                    let keys = |of: &[Cached]| of.iter().map(key).collect::<Vec<_>>();
                    assert_eq!(keys(&taken), keys(&said));
                }
                10 if b % 3 == 0 => {
                    let mut drained = Vec::new();
                    cache.drain(ALL_BINS, |block| drained.push(key(&block)));
                    let said: Vec<_> =
                        lists.values().flat_map(|list| list.iter().rev().map(key)).collect();
                    assert_eq!(drained, said);
                    lists.clear();
                }
                11 => {
                    let mut drained = Vec::new();
                    cache.drain(LARGE_BINS, |block| drained.push(key(&block)));
                    let is_large = |it: &Cached| !is_slot(it.bytes) && it.bytes > LISTED;
                    let said: Vec<_> = (lists.values())
                        .flat_map(|list| list.iter().rev())
                        .filter(|it| is_large(it))
                        .map(key)
                        .collect();
                    assert_eq!(drained, said);
                    lists.values_mut().for_each(|list| list.retain(|it| !is_large(it)));
                }
                12 | 13 if !is_slot(bytes) => {
                    let most = [bytes, bytes + bytes / 8, 64 * bytes][usize::from(b % 3)];
                    let near = (lists.values_mut())
                        .filter(|list| {
                            let head = list.last().map_or(0, |it| it.bytes);
                            !is_slot(head) && (bytes..=most).contains(&head)
                        })
                        .min_by_key(|list| list.last().map(|it| it.bytes));
                    let said = near.and_then(Vec::pop);
                    let seen = cache.pop_near(bytes, most);
                    assert_eq!(seen.as_ref().map(key), said.as_ref().map(key));
                }
                _ => {}
            }
            // A place that is spare is used again before there are more.
            most = most.max(lists.values().map(Vec::len).sum());
            assert_eq!(cache.entries.len(), most);
            agree(&cache, &lists);
        }
    }
}

#[test]
fn a_cache_is_full_when_no_place_is_spare_nor_left() {
    let mut cache = Cache::default();
    let block = |id| Cached::new(id, 0, UNIT, 0);
    for id in 0..MOST_BLOCKS as u32 {
        assert!(!cache.is_full());
        cache.push(block(id));
    }
    assert!(cache.is_full());
    cache.pop(UNIT);
    assert!(!cache.is_full() && cache.entries.len() == MOST_BLOCKS);
    cache.push(block(0));
    assert!(cache.is_full());
}
