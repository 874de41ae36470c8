//! The pool against a naive model, on a real device.
use proptest::prelude::*;
use warpool::device::HostConfig;
use warpool::{Device, Pool, PoolConfig};

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, u64),
    Free(usize),
    FreeOn(usize, usize),
    Trim,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..3usize, prop_oneof![1u64..4096, 1u64..(1<<20), (1u64<<20)..(9<<20)]).prop_map(|(s, b)| Op::Alloc(s, b)),
        5 => any::<usize>().prop_map(Op::Free),
        1 => (any::<usize>(), 0..3usize).prop_map(|(i, s)| Op::FreeOn(i, s)),
        1 => Just(Op::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn blocks_never_overlap_and_the_books_stay_whole(ops in prop::collection::vec(op(), 1..200)) {
        let mut config = HostConfig::default();
        config.capacity = Some(64 << 20);
        let device = Device::host_with(config).unwrap();
        {
            let pool = Pool::new(&device, PoolConfig::default()).unwrap();
            let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
            let mut live = Vec::new();
            for op in ops {
                match op {
                    Op::Alloc(s, bytes) => match pool.alloc(&streams[s], bytes) {
                        Ok(block) => live.push(block),
                        Err(error) => prop_assert!(error.is_out_of_memory(), "{error}"),
                    },
                    Op::Free(at) if !live.is_empty() => { live.swap_remove(at % live.len()); }
                    Op::FreeOn(at, s) if !live.is_empty() => { live.swap_remove(at % live.len()).free_on(&streams[s]).unwrap(); }
                    Op::Trim => { pool.trim(0).unwrap(); }
                    _ => {}
                }
                if let Err(why) = pool.check_invariants() { prop_assert!(false, "{why}"); }
                let mut ranges: Vec<_> = live.iter().map(|b| (b.addr(), b.addr() + b.capacity())).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
                let sum: u64 = live.iter().map(|b| b.capacity()).sum();
                prop_assert_eq!(pool.stats().allocated.current, sum);
            }
        }
        let counts = device.backend().counts();
        prop_assert_eq!((counts.handles, counts.mappings, counts.ranges, counts.streams), (0, 0, 0, 0));
    }
}

#[test]
fn a_trim_gives_back_a_handle_that_two_streams_shared() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = (
        pool.alloc(&a, 1 << 20).unwrap(),
        pool.alloc(&b, 1 << 20).unwrap(),
    );
    drop(blocks);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}
