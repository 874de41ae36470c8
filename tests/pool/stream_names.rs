//! Reports speak of streams that the program made, by the names it gave them.

use warpool::compact::Goal;
use warpool::pool::PieceState;
use warpool::{Device, Error, Movable, Pool, PoolConfig, Stream};

use super::common::on_every_device;

on_every_device! {
    moved_blocks_are_said_of_the_stream_they_were_allocated_on,
    memory_that_compaction_used_is_said_of_compaction,
    a_name_shows_in_every_report,
    a_stream_that_is_gone_takes_its_name_along,
}

const BYTES: usize = 2 << 20;

/// A pool where every second of eight movable blocks was dropped, and the rest moved together.
fn compacted(device: &Device, config: PoolConfig) -> (Pool, Stream, Vec<Movable<u8>>) {
    let pool = Pool::new(device, config.limit(8 * BYTES as u64)).unwrap();
    let stream = device.stream().unwrap();
    let blocks: Vec<Movable<u8>> = (0..8)
        .map(|_| pool.alloc_movable(&stream, BYTES).unwrap())
        .collect();
    let every_second = |(at, block)| (at % 2 == 1).then_some(block);
    let kept = blocks.into_iter().enumerate().filter_map(every_second);
    let kept = kept.collect();
    let moved = pool.compact(&Goal::Full).unwrap();
    assert!(moved.blocks > 0, "nothing was moved");
    (pool, stream, kept)
}

/// What asking for more than the pool may hold says.
fn out_of_memory(pool: &Pool, stream: &Stream) -> String {
    let error = pool.alloc(stream, 9 * BYTES as u64).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    error.to_string()
}

fn moved_blocks_are_said_of_the_stream_they_were_allocated_on(device: &Device) {
    for config in [PoolConfig::default(), PoolConfig::default().track(true)] {
        let (pool, stream, kept) = compacted(device, config);
        let report = pool.leak_report();
        assert_eq!(report.blocks.len(), kept.len());
        for block in &report.blocks {
            assert_eq!((block.stream, &block.stream_name), (stream.id(), &None));
        }
        for piece in &pool.snapshot().pieces {
            if piece.state == PieceState::Live {
                assert_eq!(piece.stream, Some(stream.id()));
            }
        }
        let text = out_of_memory(&pool, &stream);
        assert!(!text.contains("compaction holds"), "{text}");
    }
}

fn memory_that_compaction_used_is_said_of_compaction(device: &Device) {
    let (pool, stream, kept) = compacted(device, PoolConfig::default());
    let snapshot = pool.snapshot();
    let others: Vec<_> = (snapshot.pieces.iter())
        .filter(|piece| piece.stream.is_some_and(|id| id != stream.id()))
        .collect();
    for piece in &others {
        assert_eq!(piece.stream_name.as_deref(), Some("compaction"));
    }
    let named = snapshot.to_string().matches("(compaction)").count();
    assert_eq!(named, others.len());
    drop(kept);
}

fn a_name_shows_in_every_report(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default().limit(8 << 20)).unwrap();
    let stream = device.stream().unwrap();
    assert_eq!(stream.name(), None);
    stream.set_name("first");
    stream.set_name("loader");
    assert_eq!(stream.clone().name().as_deref(), Some("loader"));
    let block = pool.alloc(&stream, 4 << 20).unwrap();
    let named = format!("stream {} (loader)", stream.id());
    for text in [
        pool.leak_report().to_string(),
        pool.snapshot().to_string(),
        pool.stats().to_string(),
        out_of_memory_of(&pool, &stream),
        format!("{stream:?}"),
        format!("{block:?}"),
    ] {
        assert!(text.contains(&named), "{text}");
    }
    let name = Some("loader");
    assert_eq!(pool.stats().streams[0].stream_name.as_deref(), name);
    #[cfg(feature = "cli")]
    for json in [pool.stats().to_json(), pool.snapshot().to_json()] {
        assert!(json.contains("\"stream_name\":\"loader\""), "{json}");
    }
    let tracked = Pool::new(device, PoolConfig::default().track(true)).unwrap();
    let other = crate::tagged(&tracked, &stream, 100, "batch").unwrap();
    let report = tracked.leak_report().to_string();
    assert!(
        report.contains(&named) && report.contains("batch"),
        "{report}"
    );
    drop(other);
}

fn out_of_memory_of(pool: &Pool, stream: &Stream) -> String {
    pool.alloc(stream, 6 << 20).unwrap_err().to_string()
}

fn a_stream_that_is_gone_takes_its_name_along(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    stream.set_name("passing");
    let block = pool.alloc(&stream, 1 << 20).unwrap();
    drop(stream);
    // The block keeps it.
    assert!(format!("{block:?}").contains("(passing)"));
    drop(block);
    let text = pool.snapshot().to_string();
    assert!(!text.contains("passing"), "{text}");
}
