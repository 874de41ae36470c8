//! What the pool says of itself, and what it refuses.

use super::common::on_every_device;
use super::{MIB, limited, small_handles, whole};
use crate::common::BackendOf;
use warpool::pool::{Counter, PieceState, StreamStats};
use warpool::{Device, Error, Pool};

on_every_device! {
    the_figures_are_exact_to_the_byte,
    the_figures_of_each_stream_are_its_own,
    a_stream_s_cached_bytes_are_all_that_is_free_in_its_order_and_no_hole,
    freed_bytes_that_only_their_own_stream_still_uses_are_a_hole_and_not_active,
    a_peak_is_the_most_there_was_until_it_is_reset,
    a_peak_that_was_looked_at_counts_all_streams_together,
    small_and_large_blocks_have_peaks_of_their_own,
    a_peak_does_not_count_what_another_stream_has_freed,
    a_peak_outlives_the_stream_that_reached_it,
    a_block_that_a_graph_kept_is_freed_with_it,
    free_memory_is_told_by_what_can_be_done_with_it,
    wrong_requests_are_errors_that_change_nothing,
    a_typed_buffer_reads_back_what_was_written,
}

fn the_figures_are_exact_to_the_byte(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let sizes = [1, 511, 513, 70_000, MIB, MIB + 1, 3 * MIB];
    let blocks: Vec<_> = sizes
        .iter()
        .map(|&b| pool.alloc(&stream, b).unwrap())
        .collect();
    let capacity = |large: bool| -> u64 {
        let of_size = blocks
            .iter()
            .filter(|block| (block.capacity() > MIB) == large);
        of_size.map(|block| block.capacity()).sum()
    };
    let (small, large) = (capacity(false), capacity(true));
    let asked: u64 = sizes.iter().sum();
    let stats = pool.stats();
    let live = (stats.small.allocated.current, stats.large.allocated.current);
    assert_eq!(live, (small, large));
    assert_eq!(stats.allocated.current, small + large);
    assert_eq!(stats.requested.current, asked);
    assert_eq!(stats.blocks.current, sizes.len() as u64);
    assert_eq!(
        stats.allocated.freed + stats.requested.freed + stats.blocks.freed,
        0
    );
    assert!(stats.active.current >= stats.allocated.current);
    assert!(stats.reserved.current >= stats.active.current);
    drop(blocks);
    let stats = pool.stats();
    assert_eq!(
        stats.allocated.current + stats.requested.current + stats.blocks.current,
        0
    );
    assert_eq!(
        (stats.allocated.allocated, stats.allocated.freed),
        (small + large, small + large)
    );
    assert_eq!(
        (stats.requested.allocated, stats.requested.freed),
        (asked, asked)
    );
    assert_eq!(
        (stats.allocated.peak, stats.requested.peak),
        (small + large, asked)
    );
}

fn the_figures_of_each_stream_are_its_own(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, 8192).unwrap();
    drop(pool.alloc(&second, 16_384).unwrap());
    block.free_on(&second).unwrap();
    let of = |stream| -> StreamStats {
        let stats = pool.stats();
        stats
            .streams
            .iter()
            .find(|of| of.stream == stream)
            .unwrap()
            .clone()
    };
    let (one, two) = (of(first.id()), of(second.id()));
    let flow = |counter: Counter| (counter.allocated, counter.freed, counter.peak);
    assert_eq!(
        flow(one.blocks),
        (1, 1, 1),
        "a block counts where it is from"
    );
    assert_eq!(flow(one.allocated), (8192, 8192, 8192));
    assert_eq!(flow(two.blocks), (1, 1, 1));
    assert_eq!(flow(two.allocated), (16_384, 16_384, 16_384));
    let cached = (one.cached_bytes, two.cached_bytes);
    assert_eq!(cached, (0, 24_576), "its memory is here");
    assert_eq!(pool.stats().allocated.current, 0);
}

fn a_stream_s_cached_bytes_are_all_that_is_free_in_its_order_and_no_hole(device: &Device) {
    const BYTES: u64 = 64 << 10;
    let pool = Pool::new(device, small_handles().cache_bytes(16 * BYTES)).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = [(); 64].map(|()| pool.alloc(&first, BYTES).unwrap());
    let mut used = pool.alloc(&first, 3 * BYTES).unwrap();
    let gate = crate::common::Gate::close(&second);
    used.record_use(&second).unwrap();
    drop(used);
    second.wait_stream(&first).unwrap();
    for block in blocks {
        // A full cache hands these on together.
        block.free_on(&second).unwrap();
    }
    let stats = pool.stats();
    let cached = |stream: &warpool::Stream| {
        let of = stats.streams.iter().find(|of| of.stream == stream.id());
        of.unwrap().cached_bytes
    };
    assert_eq!((cached(&first), cached(&second)), (3 * BYTES, 64 * BYTES));
    assert_eq!(stats.active.current, 67 * BYTES);
    gate.open();
    whole(&pool);
}

fn freed_bytes_that_only_their_own_stream_still_uses_are_a_hole_and_not_active(device: &Device) {
    let pool = Pool::new(device, small_handles().cache_bytes(0)).unwrap();
    let [own, other] = [(); 2].map(|()| device.stream().unwrap());
    let gates = [&own, &other].map(crate::common::Gate::close);
    let mut used = pool.alloc(&own, 16 * MIB).unwrap();
    used.record_use(&other).unwrap();
    // The last block freed stays in the cache.
    let blocks = [8 * MIB, 4 * MIB].map(|bytes| pool.alloc(&own, bytes).unwrap());
    drop(used);
    drop(blocks);
    let (active, holes) = (
        pool.stats().active.current,
        pool.snapshot().bytes(PieceState::Hole),
    );
    assert!((20 * MIB..24 * MIB).contains(&active), "{active}");
    assert!(holes >= 8 * MIB, "{holes}");
    gates.into_iter().for_each(crate::common::Gate::open);
    whole(&pool);
}

fn a_peak_is_the_most_there_was_until_it_is_reset(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 4 * MIB).unwrap());
    let block = pool.alloc(&stream, MIB).unwrap();
    let stats = pool.stats();
    assert_eq!(
        (stats.allocated.current, stats.allocated.peak),
        (MIB, 4 * MIB)
    );
    assert_eq!(stats.requested.peak, 4 * MIB);
    let reserved = stats.reserved.peak;
    assert!(reserved >= 4 * MIB && stats.active.peak >= 4 * MIB);
    pool.trim(0).unwrap();
    pool.reset_peaks();
    let stats = pool.stats();
    assert_eq!((stats.allocated.peak, stats.requested.peak), (MIB, MIB));
    assert_eq!(stats.reserved.peak, stats.reserved.current);
    assert_eq!(stats.active.peak, stats.active.current);
    let more = pool.alloc(&stream, 2 * MIB).unwrap();
    assert_eq!(pool.stats().allocated.peak, 3 * MIB);
    drop((block, more));
}

fn a_peak_outlives_the_stream_that_reached_it(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let early = device.stream().unwrap();
    drop(pool.alloc(&early, 4 * MIB).unwrap());
    drop(early);
    let late = device.stream().unwrap();
    let block = pool.alloc(&late, MIB).unwrap();
    let stats = pool.stats();
    let peaks = (stats.allocated.peak, stats.requested.peak);
    assert_eq!(peaks, (4 * MIB, 4 * MIB));
    assert_eq!(stats.large.blocks.peak, 1);
    drop(block);
}

fn a_peak_that_was_looked_at_counts_all_streams_together(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = (
        pool.alloc(&first, 4 * MIB).unwrap(),
        pool.alloc(&second, 3 * MIB).unwrap(),
    );
    assert_eq!(pool.stats().allocated.current, 7 * MIB);
    drop(blocks);
    let stats = pool.stats();
    assert_eq!(
        (stats.allocated.current, stats.allocated.peak),
        (0, 7 * MIB)
    );
    assert_eq!(stats.requested.peak, 7 * MIB);
}

fn small_and_large_blocks_have_peaks_of_their_own(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let peaks = || {
        let stats = pool.stats();
        (
            stats.small.allocated.peak,
            stats.large.allocated.peak,
            stats.blocks.peak,
        )
    };
    let small = [(); 3].map(|()| pool.alloc(&stream, MIB).unwrap());
    assert_eq!(peaks(), (3 * MIB, 0, 3), "{MIB} bytes are small");
    drop(small);
    let large = [(); 2].map(|()| pool.alloc(&stream, 4 * MIB).unwrap());
    assert_eq!(peaks(), (3 * MIB, 8 * MIB, 3));
    drop(large);
    let stats = pool.stats();
    let live = (stats.small.allocated.current, stats.large.allocated.current);
    assert_eq!(live, (0, 0));
    assert_eq!((stats.blocks.allocated, stats.blocks.freed), (5, 5));
    assert_eq!(peaks(), (3 * MIB, 8 * MIB, 3), "kept");
    pool.reset_peaks();
    assert_eq!(peaks(), (0, 0, 0));
}

fn free_memory_is_told_by_what_can_be_done_with_it(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let low = pool.alloc(&stream, granule).unwrap();
    let middle = pool.alloc(&stream, granule / 2).unwrap();
    let high = pool.alloc(&stream, 2 * granule).unwrap();
    drop((low, high));
    // Emptied into the arena by a request that nothing serves.
    assert!(pool.alloc(&stream, 5 * granule).is_err());
    let stats = pool.stats();
    let free = stats.reserved.current - stats.active.current;
    assert_eq!(free, stats.reserved.current - granule / 2);
    let inactive = stats.inactive_split.current;
    assert_eq!(inactive, granule / 2, "beside the live block");
    assert_eq!(stats.holes, 2);
    assert_eq!(stats.largest_hole, free - granule);
    let fragmentation = 1.0 - stats.largest_hole as f64 / free as f64;
    assert!((stats.fragmentation - fragmentation).abs() < 1e-9);
    let after = pool.snapshot().after_compaction();
    assert_eq!(after, stats.largest_hole, "nothing may be moved");
    drop(middle);
    assert!(pool.alloc(&stream, 5 * granule).is_err());
    let stats = pool.stats();
    assert_eq!((stats.holes, stats.inactive_split.current), (1, 0));
    assert_eq!(stats.largest_hole, stats.reserved.current);
}

fn wrong_requests_are_errors_that_change_nothing(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let elsewhere = Device::from_backend(std::sync::Arc::clone(device.backend()));
    let foreign = elsewhere.stream().unwrap();
    let mut block = pool.alloc(&stream, 1000).unwrap();
    let before = pool.stats();
    let invalid = |outcome: Result<(), Error>, what: &str| {
        assert!(
            matches!(outcome, Err(Error::Invalid { .. })),
            "{what}: {outcome:?}"
        );
    };
    for bytes in [0, (1 << 46) + 1, u64::MAX - 100, u64::MAX] {
        invalid(pool.alloc(&stream, bytes).map(|_| ()), "bytes");
    }
    invalid(
        pool.alloc_typed::<f64>(&stream, usize::MAX).map(|_| ()),
        "overflow",
    );
    invalid(pool.alloc(&foreign, 512).map(|_| ()), "a foreign stream");
    invalid(block.record_use(&foreign), "a foreign stream's use");
    let after = pool.stats();
    assert_eq!(after.allocated, before.allocated);
    assert_eq!((after.reserved, after.failures), (before.reserved, 0));
    invalid(block.free_on(&foreign), "freed on a foreign stream");
    assert_eq!(
        pool.stats().allocated.current,
        0,
        "freed on its own stream then"
    );
    whole(&pool);
}

fn a_typed_buffer_reads_back_what_was_written(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let data: Vec<f32> = (0..10_000).map(|i| i as f32 * 0.5).collect();
    let mut buffer = pool.alloc_typed::<f32>(&stream, data.len()).unwrap();
    buffer.upload(&data).unwrap();
    assert_eq!(buffer.download().unwrap(), data);
    assert!(matches!(
        buffer.upload(&data[1..]),
        Err(Error::Invalid { .. })
    ));
    assert_eq!(buffer.download().unwrap(), data, "unchanged by the refusal");
    assert_eq!((buffer.len(), buffer.block().bytes()), (10_000, 40_000));
}

fn a_peak_does_not_count_what_another_stream_has_freed(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    for _ in 0..100 {
        let block = pool.alloc(&producer, MIB).unwrap();
        consumer.wait_stream(&producer).unwrap();
        block.free_on(&consumer).unwrap();
    }
    let stats = pool.stats();
    assert_eq!(stats.blocks.current, 0);
    assert_eq!(stats.allocated.peak, MIB);
}

fn a_block_that_a_graph_kept_is_freed_with_it(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, MIB).unwrap();
    let capture = stream.begin_capture().unwrap();
    drop(block);
    let graph = capture.end().unwrap();
    assert_eq!(pool.stats().allocated.current, MIB, "the graph has it");
    drop(graph);
    stream.synchronize().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.blocks.current), (0, 0));
}
