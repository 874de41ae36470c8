//! The pool's protocol under schedules of shuttle's choosing: allocate, free, free elsewhere, take
//! across streams, trim, compact, destroy.
//!
//! Empty in a normal build; scripts/interleavings.sh runs it. `WARPOOL_SCHEDULES` sets how many schedules
//! each test runs, half of them random, half by priorities that change few times (PCT). A failure
//! prints its schedule, which shuttle replays.
//!
//! The device keeps books only and checks that every use of memory is ordered behind the uses
//! before it, and that nothing is unmapped under a use.
#![cfg(shuttle)]

mod common;

use crate::common::BackendOf;
use std::sync::Arc;

use common::fill;
use common::ordered::Ordered;
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use warpool::compact::Goal;
use warpool::device::HandleCounts;
use warpool::pool::HandleSize;
use warpool::{Block, Device, Movable, Pool, PoolConfig, Stream};

const GRANULE: u64 = 64 << 10;

fn explore(test: impl Fn(&Device) + Send + Sync + 'static) {
    let schedules = common::variables::number("WARPOOL_SCHEDULES", 2_000) as usize;
    let test = Arc::new(move || {
        let choose = || shuttle::rand::thread_rng().gen_bool(0.5);
        let device = Ordered::device(64 * GRANULE, GRANULE, thread::yield_now, choose);
        let backend = Arc::clone(device.backend());
        test(&device);
        drop(device);
        assert_eq!(
            backend.counts(),
            HandleCounts::default(),
            "something leaked"
        );
    });
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    let (random, pct) = (Arc::clone(&test), test);
    Runner::new(RandomScheduler::new(schedules / 2), config.clone()).run(move || random());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(move || pct());
}

/// Uses all of the block on `stream`.
fn use_on(stream: &Stream, block: &Block) {
    fill(stream, block.addr(), 1, block.capacity());
}

fn pool(device: &Device, granules: u64) -> Pool {
    Pool::new(device, PoolConfig::default().limit(granules * GRANULE)).unwrap()
}

fn whole(pool: &Pool) {
    pool.check_invariants().unwrap();
}

#[test]
fn streams_that_share_too_little_memory_take_it_from_each_other_in_order_and_never_fail() {
    explore(|device| {
        let pool = pool(device, 3);
        let threads: Vec<_> = [GRANULE, 2 * GRANULE]
            .map(|bytes| {
                let (pool, stream) = (pool.clone(), device.stream().unwrap());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let block = pool.alloc(&stream, bytes).unwrap();
                        use_on(&stream, &block);
                    }
                })
            })
            .into();
        for thread in threads {
            thread.join().unwrap();
        }
        whole(&pool);
    });
}

#[test]
fn memory_freed_on_a_stream_that_is_then_dropped_is_never_missing_elsewhere() {
    explore(|device| {
        let pool = pool(device, 1);
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let block = pool.alloc(&first, GRANULE).unwrap();
        use_on(&first, &block);
        drop(block);
        let dropper = thread::spawn(move || drop(first));
        let block = pool.alloc(&second, GRANULE).unwrap();
        use_on(&second, &block);
        dropper.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn memory_that_leaves_a_full_cache_is_never_missing_elsewhere() {
    explore(|device| {
        let config = PoolConfig::default().limit(2 * GRANULE).cache_bytes(0);
        let pool = Pool::new(device, config).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let (one, two) = (
            pool.alloc(&first, GRANULE).unwrap(),
            pool.alloc(&first, GRANULE).unwrap(),
        );
        use_on(&first, &one);
        drop(one);
        // Fills the cache again, so that the first block moves out of it meanwhile.
        let freeing = thread::spawn(move || drop(two));
        let block = pool.alloc(&second, GRANULE).unwrap();
        use_on(&second, &block);
        freeing.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn blocks_that_leave_a_consumers_cache_together_are_never_missing_and_reach_others_in_order() {
    const BYTES: u64 = GRANULE / 8;
    explore(|device| {
        let config = PoolConfig::default()
            .limit(2 * GRANULE)
            .cache_bytes(8 * BYTES);
        let pool = Pool::new(device, config).unwrap();
        let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
        let mut blocks: Vec<Block> = (0..16)
            .map(|_| pool.alloc(&producer, BYTES).unwrap())
            .collect();
        consumer.wait_stream(&producer).unwrap();
        for block in blocks.drain(..8) {
            use_on(&consumer, &block);
            block.free_on(&consumer).unwrap();
        }
        // The first of these finds the cache full.
        let consuming = thread::spawn(move || {
            for block in blocks.drain(..) {
                use_on(&consumer, &block);
                block.free_on(&consumer).unwrap();
            }
        });
        let third = device.stream().unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let block = pool.alloc(&third, 2 * BYTES).unwrap();
                use_on(&third, &block);
            })
        };
        for _ in 0..2 {
            let made = [(); 3].map(|()| pool.alloc(&producer, BYTES).unwrap());
            made.iter().for_each(|block| use_on(&producer, block));
        }
        consuming.join().unwrap();
        other.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn threads_that_share_a_stream_get_memory_apart() {
    explore(|device| {
        let pool = pool(device, 2);
        let stream = device.stream().unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, stream) = (pool.clone(), stream.clone());
                thread::spawn(move || {
                    let mut addr = 0;
                    for _ in 0..2 {
                        let block = pool.alloc(&stream, GRANULE).unwrap();
                        use_on(&stream, &block);
                        addr = block.addr();
                    }
                    (pool.alloc(&stream, GRANULE).unwrap(), addr)
                })
            })
            .collect();
        let blocks: Vec<_> = threads.into_iter().map(|t| t.join().unwrap().0).collect();
        assert_ne!(blocks[0].addr(), blocks[1].addr());
        whole(&pool);
    });
}

#[test]
fn a_block_handed_to_a_consumer_is_freed_in_the_consumers_order() {
    explore(|device| {
        let pool = pool(device, 2);
        let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
        let (give, take) = shuttle::sync::mpsc::channel::<Block>();
        let its = producer.clone();
        let consuming = thread::spawn(move || {
            for block in take {
                consumer.wait_stream(&its).unwrap();
                use_on(&consumer, &block);
                block.free_on(&consumer).unwrap();
            }
        });
        for _ in 0..3 {
            // Two blocks exist at most once the consumer is behind; so a failure is possible.
            if let Ok(block) = pool.alloc(&producer, GRANULE) {
                use_on(&producer, &block);
                give.send(block).unwrap();
            }
        }
        drop(give);
        consuming.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn a_declared_use_on_another_stream_is_waited_for() {
    explore(|device| {
        let pool = pool(device, 1);
        let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut block = pool.alloc(&home, GRANULE).unwrap();
        use_on(&home, &block);
        other.wait_stream(&home).unwrap();
        use_on(&other, &block);
        block.record_use(&other).unwrap();
        let freeing = thread::spawn(move || drop(block));
        let its = pool.clone();
        let taking = thread::spawn(move || {
            let third = its.device().stream().unwrap();
            if let Ok(block) = its.alloc(&third, GRANULE) {
                use_on(&third, &block);
            }
        });
        freeing.join().unwrap();
        taking.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn a_trim_takes_nothing_that_is_in_use() {
    explore(|device| {
        let pool = pool(device, 2);
        let (its, stream) = (pool.clone(), device.stream().unwrap());
        let working = thread::spawn(move || {
            for _ in 0..2 {
                let block = its.alloc(&stream, GRANULE).unwrap();
                use_on(&stream, &block);
            }
        });
        let other = device.stream().unwrap();
        let block = pool.alloc(&other, GRANULE).unwrap();
        use_on(&other, &block);
        drop(block);
        pool.trim(0).unwrap();
        working.join().unwrap();
        whole(&pool);
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().reserved.current, 0);
    });
}

#[test]
fn blocks_streams_and_pools_may_be_dropped_by_any_thread_in_any_order() {
    for cache_bytes in [0, 64 << 20] {
        explore(move |device| {
            let config = PoolConfig::default().cache_bytes(cache_bytes);
            let pool = Pool::new(device, config).unwrap();
            let stream = device.stream().unwrap();
            let blocks: Vec<_> = (0..3)
                .map(|_| pool.alloc(&stream, GRANULE).unwrap())
                .collect();
            for block in &blocks {
                use_on(&stream, block);
            }
            let mut threads: Vec<_> = blocks
                .into_iter()
                .map(|block| thread::spawn(move || drop(block)))
                .collect();
            threads.push(thread::spawn(move || drop(stream)));
            threads.push(thread::spawn(move || drop(pool)));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}

#[test]
fn a_block_may_be_freed_elsewhere_while_its_pool_and_stream_are_dropped() {
    for cache_bytes in [0, 64 << 20] {
        explore(move |device| {
            let config = PoolConfig::default().cache_bytes(cache_bytes);
            let pool = Pool::new(device, config).unwrap();
            let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
            // So that the other stream's lane exists.
            let first = pool.alloc(&other, GRANULE).unwrap();
            use_on(&other, &first);
            drop(first);
            let block = pool.alloc(&home, 2 * GRANULE).unwrap();
            use_on(&home, &block);
            let freeing = thread::spawn(move || {
                other.wait_stream(&home).unwrap();
                use_on(&other, &block);
                drop(home);
                block.free_on(&other).unwrap();
            });
            let dropping = thread::spawn(move || drop(pool));
            freeing.join().unwrap();
            dropping.join().unwrap();
        });
    }
}

#[test]
fn a_stream_takes_over_only_what_its_wait_covers() {
    explore(|device| {
        let pool = pool(device, 2);
        let shared = device.stream().unwrap();
        let [one, two] = [(); 2].map(|()| pool.alloc(&shared, GRANULE).unwrap());
        let its = shared.clone();
        let freeing = thread::spawn(move || {
            use_on(&its, &one);
            drop(one);
        });
        let other = device.stream().unwrap();
        let recording = thread::spawn(move || {
            // A record that may come between the other thread's look at the stream's tick and its
            // free, and before this use.
            other.wait_stream(&shared).unwrap();
            use_on(&shared, &two);
            drop(two);
            // The stream lives until its memory was taken.
            shared
        });
        let taker = device.stream().unwrap();
        let taken: Vec<_> = (0..2).map(|_| pool.alloc(&taker, GRANULE)).collect();
        for block in taken.iter().flatten() {
            use_on(&taker, block);
        }
        freeing.join().unwrap();
        recording.join().unwrap();
        whole(&pool);
    });
}

#[test]
fn threads_that_parted_on_a_stream_find_what_the_others_freed() {
    explore(|device| {
        let pool = pool(device, 2);
        let stream = device.stream().unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, stream) = (pool.clone(), stream.clone());
                thread::spawn(move || {
                    for _ in 0..3 {
                        let block = pool.alloc(&stream, GRANULE).unwrap();
                        use_on(&stream, &block);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // All of the pool, wherever it was freed.
        let all = pool.alloc(&stream, 2 * GRANULE).unwrap();
        use_on(&stream, &all);
        drop(stream);
        whole(&pool);
    });
}

/// Every second of eight movable blocks of a quarter granule, used on `stream`.
fn apart(pool: &Pool, stream: &Stream) -> Vec<Movable<u8>> {
    let bytes = GRANULE as usize / 4;
    let blocks = (0..8).map(|_| pool.alloc_movable::<u8>(stream, bytes).unwrap());
    let mut blocks: Vec<Movable<u8>> = blocks.collect();
    blocks.iter().for_each(|block| pin_on(stream, block));
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    blocks
}

/// Uses all of the block where it is now.
fn pin_on(stream: &Stream, block: &Movable<u8>) {
    let pinned = block.hold(stream).unwrap();
    fill(stream, pinned.addr(), 1, block.len() as u64);
}

#[test]
fn a_compaction_moves_behind_every_use_whatever_others_do_between_its_search_and_its_moves() {
    explore(|device| {
        let pool = pool(device, 3);
        let (stream, reading) = (device.stream().unwrap(), device.stream().unwrap());
        let mut blocks = apart(&pool, &stream);
        let freed = blocks.split_off(3);
        let compacting = {
            let pool = pool.clone();
            thread::spawn(move || pool.compact(&Goal::Hole(GRANULE)).map(|moved| moved.bytes))
        };
        let others = {
            let (pool, stream) = (pool.clone(), device.stream().unwrap());
            thread::spawn(move || {
                drop(freed);
                let block = pool.alloc(&stream, GRANULE / 2).unwrap();
                use_on(&stream, &block);
                drop(block);
                pool.trim(0).unwrap();
            })
        };
        // One stream uses them from now on: their owner orders its own.
        reading.wait_stream(&stream).unwrap();
        blocks.iter().for_each(|block| pin_on(&reading, block));
        compacting.join().unwrap().unwrap();
        others.join().unwrap();
        whole(&pool);
        blocks.iter().for_each(|block| pin_on(&reading, block));
    });
}

#[test]
fn two_compactions_and_a_request_at_the_limit_leave_every_block_ready_where_it_is() {
    explore(|device| {
        let pool = pool(device, 2);
        let stream = device.stream().unwrap();
        let blocks = apart(&pool, &stream);
        let goals = [Goal::Full, Goal::Hole(GRANULE)];
        let threads: Vec<_> = goals
            .into_iter()
            .map(|goal| {
                let pool = pool.clone();
                thread::spawn(move || pool.compact(&goal).map(|moved| moved.bytes))
            })
            .collect();
        // One granule is live and one free: it fits once the blocks are together.
        let other = device.stream().unwrap();
        let block = pool.alloc(&other, GRANULE).unwrap();
        use_on(&other, &block);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        blocks.iter().for_each(|block| pin_on(&stream, block));
        whole(&pool);
    });
}

#[test]
fn threads_that_map_handles_elsewhere_and_one_that_trims_never_fail_within_the_limit() {
    explore(|device| {
        let config = PoolConfig::default()
            .limit(4 * GRANULE)
            .handles(HandleSize::Granule);
        let pool = Pool::new(device, config).unwrap();
        let streams = [(); 2].map(|()| device.stream().unwrap());
        let mut blocks: Vec<Block> = (0..4)
            .map(|_| pool.alloc(&streams[0], GRANULE).unwrap())
            .collect();
        // Two handles that lie apart are free, and two more will be.
        blocks.iter().for_each(|block| use_on(&streams[0], block));
        drop([blocks.remove(2), blocks.remove(0)]);
        let trims = {
            let pool = pool.clone();
            thread::spawn(move || pool.trim(2 * GRANULE).unwrap())
        };
        let [first, second] = streams;
        let takes = {
            let pool = pool.clone();
            thread::spawn(move || {
                let block = pool.alloc(&second, 2 * GRANULE).unwrap();
                use_on(&second, &block);
                block
            })
        };
        drop(blocks);
        let block = pool.alloc(&first, 2 * GRANULE).unwrap();
        use_on(&first, &block);
        trims.join().unwrap();
        let other = takes.join().unwrap();
        whole(&pool);
        assert!(pool.stats().reserved.current <= 4 * GRANULE);
        drop((block, other));
        pool.trim(0).unwrap();
        whole(&pool);
        assert_eq!(pool.stats().reserved.current, 0);
    });
}

/// The device of books panics where two calls use one graph.
#[test]
fn threads_record_into_a_graph_one_at_a_time_and_none_as_it_ends() {
    explore(|device| {
        let pool = pool(device, 4);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut threads = Vec::new();
        for _ in 0..2 {
            let mut buffer = pool.alloc_typed::<u8>(&stream, 100).unwrap();
            let stream = stream.clone();
            threads.push(thread::spawn(move || {
                for value in 0..2 {
                    // An error where the capture has just ended.
                    let _ = buffer.view_mut().fill(&stream, value);
                }
            }));
        }
        let (from, to) = (stream.clone(), other.clone());
        threads.push(thread::spawn(move || {
            let event = from.device().event().unwrap();
            let _ = event.record(&from).and_then(|()| to.wait(&event));
            let _ = event.record(&to);
            let _ = to.wait_stream(&from);
        }));
        for _ in 0..2 {
            let capture = stream.begin_capture().unwrap();
            let _ = other.wait_stream(&stream);
            drop(capture.end());
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!stream.is_capturing().unwrap());
        whole(&pool);
    });
}
