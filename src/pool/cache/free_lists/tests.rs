use super::{ALL_BINS, BINS, Cache, Cached, LARGE_BINS, MOST_BLOCKS, UNIT};

fn block(id: u32, bytes: u64, tick: u64) -> Cached {
    Cached::new(id, u64::from(id) << 20, bytes, tick)
}

fn ids(blocks: &[Cached]) -> Vec<u32> {
    blocks.iter().map(|block| block.id).collect()
}

#[test]
fn the_block_of_a_size_freed_last_comes_first() {
    let mut cache = Cache::default();
    // The last two sizes share a bin with others of theirs.
    for bytes in [512, 1 << 20, (1 << 20) + 512, 64 << 20] {
        cache.push(block(1, bytes, 1));
        cache.push(block(2, bytes, 2));
        assert_eq!(cache.pop(bytes).map(|block| block.id), Some(2));
        assert_eq!(cache.pop(bytes).map(|block| block.id), Some(1));
        assert!(cache.pop(bytes).is_none() && cache.bytes == 0);
    }
}

#[test]
fn only_blocks_that_share_bins_are_large() {
    // The largest that has a bin of its own, and the smallest slot, whose bin follows the shared ones.
    for (bytes, is_large) in [(BINS as u64 * UNIT, false), (16, false), (1 << 20, true)] {
        let mut cache = Cache::default();
        cache.push(block(1, bytes, 1));
        let has_large = |cache: &mut Cache| cache.first_of(LARGE_BINS).is_some();
        assert_eq!(has_large(&mut cache), is_large, "{bytes}");
        // A drain of the others leaves it.
        cache.drain(0..BINS, |_| ());
        assert_eq!(has_large(&mut cache), is_large, "{bytes}");
        cache.drain(LARGE_BINS, |_| ());
        assert!(!has_large(&mut cache), "{bytes}");
    }
}

#[test]
fn blocks_are_taken_together_down_to_one_of_another_size() {
    // Sizes that share a bin.
    let bin = Cache::bin(64 << 20);
    let shares = (1..).map(|at| (64 << 20) + at * 256);
    let [other, bytes] = [
        64 << 20,
        shares.into_iter().find(|&b| Cache::bin(b) == bin).unwrap(),
    ];
    let mut cache = Cache::default();
    for (id, bytes) in [(1, bytes), (2, other), (3, bytes), (4, bytes), (5, bytes)] {
        cache.push(block(id, bytes, 1));
    }
    for said in [vec![5, 4], vec![3], vec![]] {
        let taken: Vec<_> = std::iter::from_fn(|| cache.pop(bytes)).take(2).collect();
        assert_eq!(ids(&taken), said);
    }
    assert_eq!(cache.bytes, other + bytes);
}

#[test]
fn a_full_cache_says_so_and_asks_the_heap_for_nothing() {
    let mut cache = Cache::default();
    let places = cache.entries.as_ptr();
    for id in 0..MOST_BLOCKS as u32 {
        assert!(!cache.is_full());
        cache.push(block(id, 512 * (1 + u64::from(id) % 3000), 1));
    }
    assert!(cache.is_full());
    assert!(cache.pop(512).is_some() && !cache.is_full());
    let mut left = MOST_BLOCKS - 1;
    cache.drain(ALL_BINS, |_| left -= 1);
    assert_eq!((left, cache.bytes), (0, 0));
    assert!(!cache.is_full());
    assert_eq!(places, cache.entries.as_ptr());
}
