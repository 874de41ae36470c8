//! Blocks of one size that one stream allocates and another frees, more than a cache holds.

use crate::common::BackendOf;
use std::collections::BTreeSet;

use super::common::stamps::Stamps;
use super::common::{Gate, on_every_device};
use super::{small_handles, whole};
use warpool::pool::PieceState;
use warpool::{Block, Device, Pool, Stream};

on_every_device! {
    what_a_consumer_freed_reaches_the_producer_behind_a_wait_for_all_of_it,
    what_a_consumer_freed_is_there_for_a_request_of_another_size,
    what_a_dropped_consumer_freed_is_given_back,
    what_a_consumer_freed_is_given_back_when_the_pool_is_dropped_first,
    a_consumer_over_the_soft_limit_keeps_nothing_together,
}

const BYTES: u64 = 32 << 10;

/// Blocks that a cache has room for.
const CACHED: u64 = 16;

/// A pool full of blocks that `producer` stamped and `consumer` verified and freed, while what is
/// queued on the consumer is held up until the gate opens.
struct Freed {
    pool: Pool,
    producer: Stream,
    consumer: Stream,
    gate: Gate,
    blocks: u64,
}

impl Freed {
    fn new(device: &Device, stamps: &Stamps, handles: u64) -> Self {
        let limit = handles * device.info().granule;
        let config = small_handles().limit(limit).cache_bytes(CACHED * BYTES);
        let pool = Pool::new(device, config).unwrap();
        let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
        let blocks: Vec<Block> = (0..limit / BYTES)
            .map(|_| pool.alloc(&producer, BYTES).unwrap())
            .collect();
        for (block, seed) in blocks.iter().zip(0..) {
            stamps.stamp(&producer, block, seed);
        }
        consumer.wait_stream(&producer).unwrap();
        let gate = Gate::close(&consumer);
        for (block, seed) in blocks.into_iter().zip(0..) {
            stamps.verify(&consumer, &block, seed);
            block.free_on(&consumer).unwrap();
        }
        Self {
            pool,
            producer,
            consumer,
            gate,
            blocks: limit / BYTES,
        }
    }
}

fn what_a_consumer_freed_reaches_the_producer_behind_a_wait_for_all_of_it(device: &Device) {
    let stamps = Stamps::new(device);
    let Freed {
        pool,
        producer,
        consumer,
        gate,
        blocks: count,
    } = Freed::new(device, &stamps, 2);
    let kept = pool.snapshot().bytes(PieceState::Cached);
    assert_eq!(kept, count * BYTES, "nothing went into the arena");
    assert!(pool.leak_report().blocks.is_empty());
    whole(&pool);
    let before = pool.stats().steps;
    let blocks: Vec<Block> = (0..count)
        .map(|_| pool.alloc(&producer, BYTES).unwrap())
        .collect();
    let addrs: BTreeSet<u64> = blocks.iter().map(Block::addr).collect();
    assert_eq!(addrs.len() as u64, count);
    for (block, seed) in blocks.iter().zip(1000..) {
        stamps.stamp(&producer, block, seed);
        stamps.verify(&producer, block, seed);
    }
    assert!(!producer.is_idle().unwrap(), "the producer runs ahead");
    let steps = pool.stats().steps;
    // For those that left the consumer's cache, and so for those still in it.
    assert_eq!(steps.waits - before.waits, 1);
    assert_eq!(steps.drain, before.drain, "nothing went into the arena");
    gate.open();
    producer.synchronize().unwrap();
    consumer.synchronize().unwrap();
    stamps.assert_clean(device, 2 * count * BYTES);
    drop(blocks);
    whole(&pool);
}

fn what_a_consumer_freed_is_there_for_a_request_of_another_size(device: &Device) {
    let stamps = Stamps::new(device);
    let freed = Freed::new(device, &stamps, 2);
    let (pool, producer) = (&freed.pool, &freed.producer);
    let bytes = freed.blocks * BYTES;
    let before = pool.stats().steps.drain;
    let all = pool.alloc(producer, bytes).unwrap();
    assert_eq!(pool.stats().steps.drain - before, 1);
    stamps.stamp(producer, &all, 7);
    stamps.verify(producer, &all, 7);
    assert!(!producer.is_idle().unwrap(), "the producer runs ahead");
    assert_eq!(pool.snapshot().bytes(PieceState::Cached), 0);
    whole(pool);
    freed.gate.open();
    producer.synchronize().unwrap();
    stamps.assert_clean(device, 2 * bytes);
}

fn what_a_dropped_consumer_freed_is_given_back(device: &Device) {
    let stamps = Stamps::new(device);
    let freed = Freed::new(device, &stamps, 2);
    freed.gate.open();
    drop(freed.consumer);
    whole(&freed.pool);
    assert_eq!(freed.pool.snapshot().bytes(PieceState::Cached), 0);
    freed.pool.trim(0).unwrap();
    assert_eq!(freed.pool.stats().reserved.current, 0);
    stamps.assert_clean(device, freed.blocks * BYTES);
}

fn what_a_consumer_freed_is_given_back_when_the_pool_is_dropped_first(device: &Device) {
    let stamps = Stamps::new(device);
    let before = device.backend().counts();
    let freed = Freed::new(device, &stamps, 2);
    freed.gate.open();
    drop(freed.pool);
    let after = device.backend().counts();
    assert_eq!(
        (after.handles, after.mappings, after.ranges),
        (before.handles, before.mappings, before.ranges)
    );
    drop((freed.producer, freed.consumer));
    stamps.assert_clean(device, freed.blocks * BYTES);
}

fn a_consumer_over_the_soft_limit_keeps_nothing_together(device: &Device) {
    let granule = device.info().granule;
    let config = small_handles()
        .soft_limit(granule)
        .cache_bytes(CACHED * BYTES);
    let pool = Pool::new(device, config).unwrap();
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let count = 4 * granule / BYTES;
    let blocks: Vec<Block> = (0..count)
        .map(|_| pool.alloc(&producer, BYTES).unwrap())
        .collect();
    consumer.wait_stream(&producer).unwrap();
    for block in blocks {
        block.free_on(&consumer).unwrap();
    }
    assert!(pool.snapshot().bytes(PieceState::Cached) <= granule + CACHED * BYTES);
    consumer.synchronize().unwrap();
    whole(&pool);
}

#[test]
fn a_full_cache_that_hands_blocks_on_together_keeps_those_of_other_sizes() {
    let device = crate::common::host();
    let pool = Pool::new(&device, small_handles().cache_bytes(CACHED * BYTES)).unwrap();
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = [(); 16].map(|()| pool.alloc(&producer, BYTES).unwrap());
    drop(pool.alloc(&consumer, 2 * BYTES).unwrap());
    consumer.wait_stream(&producer).unwrap();
    // The fifteenth finds the cache full.
    for block in blocks {
        block.free_on(&consumer).unwrap();
    }
    let before = pool.stats().steps;
    drop(pool.alloc(&consumer, 2 * BYTES).unwrap());
    assert_eq!(pool.stats().steps, before, "it is in the cache");
    pool.check_invariants().unwrap();
}
