use proptest::prelude::*;

use super::*;
use crate::device::{Device, Stream};
use crate::pool::PoolConfig;

const MIB: u64 = 1 << 20;

fn pool(limit: u64) -> (Pool, Stream) {
    let device = Device::host_with_capacity(4 << 30).unwrap();
    let stream = device.stream().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(limit)).unwrap();
    (pool, stream)
}

/// A step that needs `fixed` bytes and `each` bytes per item, in blocks of up to 8 MiB.
fn step<'a>(
    pool: &'a Pool,
    stream: &'a Stream,
    fixed: u64,
    each: u64,
) -> impl FnMut(usize) -> Result<()> + 'a {
    move |size| {
        let mut left = fixed + each * size as u64;
        let mut blocks = Vec::new();
        while left > 0 {
            let bytes = left.min(8 * MIB);
            blocks.push(pool.alloc(stream, bytes)?);
            left -= bytes;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_largest_size_fits_and_the_next_does_not(
        limit in 8_u64..200, fixed in 0_u64..8, each in 1_u64..12, most in 1_usize..300, powers: bool
    ) {
        // In whole granules, so that bytes decide what fits.
        let (limit, fixed, each) = (limit * 2 * MIB, fixed * 2 * MIB, each * 2 * MIB);
        let (pool, stream) = pool(limit);
        let mut search = Search::up_to(most);
        if powers {
            search = search.powers_of_two();
        }
        let all = (0..search.count()).map(|at| search.size(at));
        let expected = all.filter(|&size| fixed + each * size as u64 <= limit).max();
        let found = largest(&pool, &search, step(&pool, &stream, fixed, each));
        match expected {
            Some(size) => {
                let found = found.unwrap();
                prop_assert_eq!(found.size, size);
                prop_assert_eq!(found.peak_bytes, fixed + each * size as u64);
                prop_assert!(found.reserved_bytes >= found.peak_bytes && found.reserved_bytes <= limit);
                let enough = 8 + 2 * search.count().ilog2() as usize;
                prop_assert!(found.runs.len() <= enough, "{:?}", found.runs);
            }
            None => prop_assert!(matches!(found, Err(Error::OutOfMemory(_)))),
        }
        prop_assert_eq!(pool.stats().reserved.current, 0);
        prop_assert_eq!(pool.limit(), Some(limit));
    }
}

#[test]
fn memory_that_an_application_keeps_counts_and_stays() {
    let (pool, stream) = pool(64 * MIB);
    let weights = pool.alloc(&stream, 20 * MIB).unwrap();
    let held = pool.stats().reserved.current;
    let mut state = None;
    let found = largest(&pool, &Search::up_to(100), |size| {
        if state.is_none() {
            state = Some(pool.alloc(&stream, 4 * MIB)?);
        }
        step(&pool, &stream, 0, 2 * MIB)(size)
    })
    .unwrap();
    assert_eq!((found.size, found.peak_bytes), (20, 64 * MIB));
    assert_eq!(found.accumulation_steps(41), 3);
    assert!((found.bytes_per_item - (2 * MIB) as f64).abs() < 1.0);
    assert!(pool.stats().reserved.current >= held);
    assert_eq!(pool.stats().allocated.current, 24 * MIB);
    drop((weights, state));
}

#[test]
fn a_limit_of_the_search_ends_with_it_even_by_a_panic() {
    let (pool, stream) = pool(64 * MIB);
    let search = Search::up_to(100).limit(16 * MIB);
    let found = largest(&pool, &search, step(&pool, &stream, 0, 2 * MIB)).unwrap();
    assert_eq!((found.size, pool.limit()), (8, Some(64 * MIB)));
    let panics = || _ = largest(&pool, &search, |_| panic!("the step's own"));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
    assert_eq!(pool.limit(), Some(64 * MIB));
    // A limit higher than the pool's has no effect.
    let search = Search::up_to(100).limit(640 * MIB);
    let found = largest(&pool, &search, step(&pool, &stream, 0, 2 * MIB)).unwrap();
    assert_eq!(found.size, 32);
}

#[test]
fn a_step_of_uneven_needs_is_measured_until_it_is_found() {
    let (pool, stream) = pool(200 * MIB);
    // Grows with the square of the size, like attention.
    let found = largest(&pool, &Search::up_to(1000), |size| {
        step(&pool, &stream, 0, 2 * MIB)(size * size)
    });
    let found = found.unwrap();
    assert_eq!(found.size, 10);
    assert!(found.runs.len() <= 30, "{:?}", found.runs);
}

#[test]
fn an_error_that_is_not_of_memory_ends_the_search_at_once() {
    let (pool, _stream) = pool(64 * MIB);
    let mut runs = 0;
    let found = largest(&pool, &Search::up_to(10), |_| {
        runs += 1;
        Err(Error::invalid("data", "the file is empty"))
    });
    assert!(matches!(found, Err(Error::Invalid { .. })) && runs == 1);
    assert!(largest(&pool, &Search::up_to(0), |_| Ok(())).is_err());
}

#[test]
fn a_step_that_no_memory_given_back_can_help_is_run_once() {
    let (pool, stream) = pool(8 * MIB);
    let mut runs = 0;
    let found = largest(&pool, &Search::up_to(10), |_| {
        runs += 1;
        pool.alloc(&stream, 16 * MIB).map(drop)
    });
    assert!(matches!(found, Err(Error::OutOfMemory(_))));
    assert_eq!(runs, 1);
}

#[test]
fn a_limit_that_is_set_while_a_search_lasts_stays() {
    let (pool, _stream) = pool(64 * MIB);
    for search in [Search::up_to(4), Search::up_to(4).limit(32 * MIB)] {
        pool.set_limit(64 * MIB);
        let found = largest(&pool, &search, |_| {
            pool.set_limit(48 * MIB);
            Ok(())
        });
        assert_eq!((found.unwrap().size, pool.limit()), (4, Some(48 * MIB)));
    }
}
