//! Several threads at once.

use crate::common::BackendOf;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::common::stamps::Stamps;
use super::common::{for_threads, on_every_device};
use super::{MIB, small_handles, whole};
use warpool::device::HandleCounts;
use warpool::{Block, Device, Pool, Stream};

on_every_device! {
    threads_that_share_a_stream_never_share_memory,
    threads_sharing_one_stream_find_all_that_any_of_them_freed,
    a_block_is_freed_elsewhere_by_a_thread_that_did_so_before_its_pool_was_dropped,
    threads_with_a_stream_each_never_share_memory,
    threads_that_find_the_pools_lock_taken_never_share_memory,
    a_producer_and_a_consumer_hand_blocks_over,
    figures_may_be_read_and_memory_trimmed_while_threads_allocate,
}

/// Sizes in a fixed, mixed order: a few bytes to 3 MiB.
fn size(at: u64) -> u64 {
    let mixed = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    match at % 3 {
        0 => 1 + mixed % 5000,
        1 => 1 + mixed % 100_000,
        _ => 1 + mixed % (3 * MIB),
    }
}

const THREADS: u64 = 4;
const ROUNDS: u64 = 60;
/// Blocks a thread holds at once.
const HELD: usize = 5;

/// Allocates, stamps, holds, verifies and frees; gives the bytes it verified.
fn work(pool: &Pool, stream: &Stream, stamps: &Stamps, thread: u64, size: fn(u64) -> u64) -> u64 {
    let mut held: Vec<(Block, u64)> = Vec::new();
    let mut verified = 0;
    let mut release = |(block, seed): (Block, u64)| {
        stamps.verify(stream, &block, seed);
        verified += block.bytes();
    };
    for round in 0..ROUNDS {
        let seed = (thread << 32) + round;
        let block = pool.alloc(stream, size(seed)).unwrap();
        stamps.stamp(stream, &block, seed);
        held.push((block, seed));
        if held.len() > HELD {
            release(held.swap_remove(round as usize % HELD));
        }
    }
    held.into_iter().for_each(release);
    verified
}

fn run(device: &Device, pool: &Pool, streams: &[Stream]) {
    run_sizes(device, pool, streams, size);
}

fn run_sizes(device: &Device, pool: &Pool, streams: &[Stream], size: fn(u64) -> u64) {
    let stamps = Stamps::new(device);
    let verified = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let stream = &streams[number as usize % streams.len()];
                let (pool, stamps) = (&pool, &stamps);
                scope.spawn(move || work(pool, stream, stamps, number, size))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    for stream in streams {
        stream.synchronize().unwrap();
    }
    stamps.assert_clean(device, verified);
    whole(pool);
    assert_eq!(pool.stats().allocated.current, 0);
    assert_eq!(pool.stats().requested.current, 0);
    assert_eq!(pool.stats().blocks.allocated % (THREADS * ROUNDS), 0);
}

fn threads_that_share_a_stream_never_share_memory(device: &Device) {
    let device = &for_threads(device);
    let pool = Pool::new(device, small_handles()).unwrap();
    run(device, &pool, &[device.stream().unwrap()]);
}

fn threads_with_a_stream_each_never_share_memory(device: &Device) {
    let device = &for_threads(device);
    // Room for what all hold at once and little more, so that memory goes from stream to stream.
    let limit = THREADS * (HELD as u64 + 1) * 3 * MIB;
    let config = small_handles().limit(limit).cache_bytes(4 * MIB);
    let pool = Pool::new(device, config).unwrap();
    let streams: Vec<_> = (0..THREADS).map(|_| device.stream().unwrap()).collect();
    run(device, &pool, &streams);
}

fn threads_that_find_the_pools_lock_taken_never_share_memory(device: &Device) {
    let device = &for_threads(device);
    // Sizes that are near each other, and little that is kept otherwise.
    let near = |at| 256 * 1024 + size(3 * at) % (32 * 1024);
    let pool = Pool::new(device, small_handles().cache_bytes(MIB)).unwrap();
    let streams: Vec<_> = (0..THREADS).map(|_| device.stream().unwrap()).collect();
    let (stop, stopped) = sync_channel::<()>(0);
    thread::scope(|scope| {
        let watched = &pool;
        scope.spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                whole(watched);
                // Else it has the lock again before any of those that wait on two cores.
                thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        for _ in 0..crate::common::rounds(10) {
            run_sizes(device, &pool, &streams, near);
        }
        drop(stop);
    });
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

fn a_producer_and_a_consumer_hand_blocks_over(device: &Device) {
    let device = &for_threads(device);
    let stamps = Stamps::new(device);
    let pool = Pool::new(device, small_handles()).unwrap();
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let (give, take) = sync_channel::<(Block, u64)>(8);
    let verified = thread::scope(|scope| {
        let (stamps, producer, consumer) = (&stamps, &producer, &consumer);
        let consuming = scope.spawn(move || {
            let mut verified = 0;
            for (block, seed) in take {
                consumer.wait_stream(producer).unwrap();
                stamps.verify(consumer, &block, seed);
                verified += block.bytes();
                block.free_on(consumer).unwrap();
            }
            verified
        });
        for seed in 0..crate::common::rounds(200) as u64 {
            let block = pool.alloc(producer, size(seed)).unwrap();
            stamps.stamp(producer, &block, seed);
            give.send((block, seed)).unwrap();
        }
        drop(give);
        consuming.join().unwrap()
    });
    consumer.synchronize().unwrap();
    stamps.assert_clean(device, verified);
    whole(&pool);
}

fn figures_may_be_read_and_memory_trimmed_while_threads_allocate(device: &Device) {
    let device = &for_threads(device);
    let pool = Pool::new(device, small_handles()).unwrap();
    let streams: Vec<_> = (0..THREADS).map(|_| device.stream().unwrap()).collect();
    let (stop, stopped) = sync_channel::<()>(0);
    thread::scope(|scope| {
        let watched = &pool;
        scope.spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                whole(watched);
                let stats = watched.stats();
                assert!(stats.largest_hole <= stats.reserved.current);
                watched.trim(MIB).unwrap();
            }
        });
        run(device, &pool, &streams);
        drop(stop);
    });
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
    let counts = device.backend().counts();
    assert_eq!(
        HandleCounts {
            handles: 0,
            mappings: 0,
            bytes: 0,
            ..counts
        },
        counts
    );
}

/// Pairs of each thread, enough that threads on one stream meet at it.
const PAIRS: u64 = 50_000;

fn threads_sharing_one_stream_find_all_that_any_of_them_freed(device: &Device) {
    let limit = 64 * MIB;
    let pool = Pool::new(device, small_handles().limit(limit)).unwrap();
    let stream = device.stream().unwrap();
    thread::scope(|scope| {
        for number in 1..=THREADS {
            let (pool, stream) = (&pool, &stream);
            scope.spawn(move || {
                for _ in 0..PAIRS {
                    drop(pool.alloc(stream, 4096).unwrap());
                }
                drop(pool.alloc(stream, number * 3 * MIB).unwrap());
            });
        }
    });
    // A lane that threads met on may grow the pool before it looks into the caches of others; here it cannot.
    pool.set_limit(pool.stats().reserved.current);
    drop(pool.alloc(&stream, 3 * MIB).unwrap());
    pool.set_limit(limit);
    let all = pool.alloc(&stream, limit).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.allocated.current, all.capacity());
    assert_eq!(stats.streams.len(), 1, "one stream, whatever its threads");
    assert_eq!(stats.streams[0].blocks.allocated, THREADS * (PAIRS + 1) + 2);
    drop(all);
    whole(&pool);
}

fn a_block_is_freed_elsewhere_by_a_thread_that_did_so_before_its_pool_was_dropped(device: &Device) {
    let before = device.backend().counts();
    let pool = Pool::new(device, small_handles()).unwrap();
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut blocks: Vec<Block> = (0..3).map(|_| pool.alloc(&home, MIB).unwrap()).collect();
    let last = blocks.pop();
    other.wait_stream(&home).unwrap();
    for block in blocks {
        block.free_on(&other).unwrap();
    }
    drop(pool);
    drop(home);
    last.unwrap().free_on(&other).unwrap();
    other.synchronize().unwrap();
    drop(other);
    let after = device.backend().counts();
    let live = |counts: HandleCounts| (counts.ranges, counts.handles, counts.streams);
    assert_eq!(live(after), live(before));
}
