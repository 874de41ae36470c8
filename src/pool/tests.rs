//! What is printed of a pool and of what it gave out.

use super::stats::leaks::{LiveBlock, holders, tag_scope};
use super::{PieceState, Pool, PoolConfig, Snapshot};
use crate::device::Device;

fn pool() -> (Device, Pool) {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    (device, pool)
}

#[test]
fn a_pool_and_its_blocks_say_what_they_are() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 5000).unwrap();
    let text = format!(
        "Block({:#x}, 5000 bytes, stream {})",
        block.addr(),
        stream.id()
    );
    assert_eq!(format!("{block:?}"), text);
    let buffer = pool.alloc_typed::<u32>(&stream, 7).unwrap();
    let text = format!(
        "PoolBuf<u32>(7 elements, Block({:#x}, 28 bytes",
        buffer.addr()
    );
    assert!(format!("{buffer:?}").starts_with(&text), "{buffer:?}");
    let mapped = device.info().granule as usize / 4;
    let mut growing = pool.grow_buf::<u32>(&stream, mapped + 1).unwrap();
    growing.resize(7).unwrap();
    let (most, at) = (mapped + 1, growing.addr());
    let text = format!("GrowBuf<u32>(7 of {most} elements at {at:#x}, {mapped} mapped)");
    assert_eq!(format!("{growing:?}"), text);
    let text = format!("Pool({} on {device:?})", pool.shared().uid);
    assert_eq!(format!("{pool:?}"), text);
}

#[test]
fn a_report_shows_as_many_blocks_as_it_is_asked_for_and_how_many_follow() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let _tag = tag_scope("weights");
    let blocks = [300, 100, 200].map(|kib| pool.alloc(&stream, kib << 10).unwrap());
    let report = pool.leak_report();
    let line = |block: &super::Block| {
        let (addr, bytes, id) = (block.addr(), block.bytes(), stream.id());
        format!("\n  {addr:#x}: {bytes} bytes on stream {id}, weights")
    };
    let lines = [0, 2, 1].map(|at| line(&blocks[at]));
    let head = format!("3 live blocks, {}", crate::error::Bytes(600 << 10));
    assert_eq!(report.to_string(), head.clone() + &lines.concat());
    let of_two = head.clone() + &lines[..2].concat() + "\n  and 1 more";
    assert_eq!(format!("{report:.2}"), of_two);
    assert_eq!(format!("{report:.0}"), head.clone() + "\n  and 3 more");
    assert_eq!(format!("{report:.9}"), head + &lines.concat());
    let holders = holders(&report.blocks, |id| format!("stream {id}"));
    assert_eq!(holders, [("weights".to_string(), 600 << 10, 3)]);
}

#[test]
fn holders_are_named_by_tag_or_by_stream_and_those_with_most_come_first() {
    let block = |tag, stream, bytes| LiveBlock {
        addr: 0,
        bytes,
        stream,
        stream_name: None,
        tag,
        backtrace: None,
    };
    let report = super::LeakReport {
        blocks: vec![
            block(Some("b"), 1, 10),
            block(None, 7, 30),
            block(Some("a"), 2, 10),
            block(Some("b"), 3, 25),
            block(Some("c"), 3, 10),
        ],
    };
    let holders = holders(&report.blocks, |id| format!("stream {id}"));
    let of = |name: &str, bytes, blocks| (name.to_string(), bytes, blocks);
    let said = [
        of("b", 35, 2),
        of("stream 7", 30, 1),
        of("a", 10, 1),
        of("c", 10, 1),
    ];
    assert_eq!(holders, said);
    assert!(report.to_string().starts_with("5 live blocks, 85 B\n"));
}

#[test]
fn statistics_are_a_table_of_what_has_a_history_and_a_line_for_each_other_figure() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let blocks = [4096u64, 8 << 20].map(|bytes| pool.alloc(&stream, bytes).unwrap());
    drop(pool.alloc(&stream, 3 << 10).unwrap());
    let stats = pool.stats();
    let text = stats.to_string();
    let row = |name: &str, values: [u64; 4]| {
        let values = values.map(|value| format!("{:>13}", crate::error::Bytes(value).to_string()));
        format!("\n  {name:22}{}", values.concat())
    };
    let small = row("allocated, small", [4096, 7168, 7168, 3072]);
    let large = row("allocated, large", [8 << 20, 8 << 20, 8 << 20, 0]);
    assert_eq!(text.matches(&small).count(), 2, "pool and stream\n{text}");
    assert_eq!(text.matches(&large).count(), 2);
    assert!(text.contains(&format!("\n  {:22}{:>13}", "holes", stats.holes)));
    let title = format!("\nstream {}", stream.id());
    assert!(text.starts_with("pool ") && text.contains(&title));
    let cached = crate::error::Bytes(stats.streams[0].cached_bytes).to_string();
    assert!(text.ends_with(&format!("\n  {:22}{cached:>13}", "cached")));
    assert_eq!(text.lines().count(), 1 + 21 + 9 + 1 + 9 + 1);
    drop(blocks);
}

#[test]
fn a_snapshot_is_a_line_a_piece_and_sums_by_what_pieces_are() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let _tag = tag_scope("weights");
    let block = pool.alloc(&stream, 1 << 20).unwrap();
    let snapshot = pool.snapshot();
    let text = snapshot.to_string();
    let (id, addr) = (stream.id(), block.addr());
    let count = snapshot.pieces.len();
    let head = format!(
        "{count} pieces, {} reserved",
        crate::error::Bytes(snapshot.reserved)
    );
    assert!(text.starts_with(&head) && text.lines().count() == 1 + count);
    let line = format!("\n  {addr:#x}: 1048576 bytes live, stream {id}, weights");
    assert!(text.contains(&line), "{text}");
    assert_eq!(snapshot.bytes(PieceState::Live), 1 << 20);
    let free = snapshot.bytes(PieceState::Hole);
    assert_eq!(free, snapshot.reserved - (1 << 20));
    assert_eq!(snapshot.bytes(PieceState::Retiring), 0);
    assert_eq!(Snapshot::default().to_string(), "0 pieces, 0 B reserved");
}

#[test]
fn slots_of_a_snapshot_are_live_cached_or_free_to_all() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let _tag = tag_scope("small");
    let blocks = [(); 3].map(|()| pool.alloc(&stream, 40).unwrap());
    let addrs = blocks.each_ref().map(super::Block::addr);
    let [one, two, three] = blocks;
    drop((one, three));
    let snapshot = pool.snapshot();
    let of = |addr| {
        snapshot
            .pieces
            .iter()
            .find(|piece| piece.addr == addr)
            .unwrap()
    };
    let seen = addrs.map(|addr| (of(addr).state, of(addr).bytes, of(addr).tag));
    let (live, cached) = (PieceState::Live, PieceState::Cached);
    let said = [
        (cached, 48, None),
        (live, 48, Some("small")),
        (cached, 48, None),
    ];
    assert_eq!(seen, said);
    assert_eq!(snapshot.bytes(live), 48);
    let free = snapshot
        .pieces
        .iter()
        .filter(|piece| piece.state == PieceState::Slot);
    assert!(free.clone().count() > 0 && free.clone().all(|piece| piece.bytes == 48));
    drop(two);
}

#[test]
fn a_block_that_moved_or_grew_is_reported_where_and_as_it_is() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let _tag = tag_scope("moves");
    let first = pool.alloc(&stream, 1 << 20).unwrap();
    let block = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
    let at = || block.hold(&stream).unwrap().addr();
    let before = at();
    let reported = || {
        let report = pool.leak_report();
        report
            .blocks
            .last()
            .map(|block| (block.addr, block.bytes))
            .unwrap()
    };
    assert_eq!(reported(), (before, 8000));
    drop(first);
    pool.compact(&crate::compact::Goal::Full).unwrap();
    assert_ne!(at(), before);
    assert_eq!(reported(), (at(), 8000));
}

#[test]
fn blocks_go_the_short_way_unless_somebody_listens() {
    let device = Device::host().unwrap();
    let is_observed = |device: &Device, config| {
        let (pool, stream) = (Pool::new(device, config).unwrap(), device.stream().unwrap());
        pool.lane(&stream).unwrap().is_observed
    };
    assert!(!is_observed(&device, PoolConfig::default()));
    assert!(is_observed(&device, PoolConfig::default().track(true)));
    #[cfg(feature = "sanitize")]
    {
        let (watched, _sanitizer) = crate::sanitize::Sanitizer::over(&device);
        assert!(is_observed(&watched, PoolConfig::default()));
    }
}

#[test]
fn neighbours_are_one_range_for_a_pool_that_falls_asleep_and_a_hole_parts_them() {
    let (device, pool) = pool();
    let stream = device.stream().unwrap();
    let mut blocks: Vec<_> = (0..4).map(|_| pool.alloc(&stream, 8192).unwrap()).collect();
    let base = blocks[0].addr();
    assert_eq!(pool.shared().live_ranges(), [(base, 4 * 8192)]);
    drop(blocks.remove(1));
    let two = [(base, 8192), (base + 2 * 8192, 2 * 8192)];
    assert_eq!(pool.shared().live_ranges(), two);
}

#[test]
fn a_refused_fraction_leaves_the_limit_as_it_was() {
    let (_device, pool) = pool();
    for limit in [None, Some(1 << 20), Some(u64::MAX)] {
        pool.set_limit(limit);
        for part in [0.0, -0.5, 1.5, f64::NAN, f64::INFINITY, -f64::INFINITY] {
            assert!(pool.set_fraction(part).is_err(), "{part}");
            assert_eq!(pool.limit(), limit, "{part}");
        }
    }
}

#[test]
fn the_tail_of_a_retyped_buffer_is_free_behind_a_launch_of_a_graph_that_is_gone() {
    const LEN: usize = 1 << 14;
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let mut wide = pool.alloc_filled(&home, LEN, 1u32).unwrap();
    let capture = other.begin_capture().unwrap();
    wide.view_mut().fill(&other, 0x0202_0202).unwrap();
    let graph = capture.end().unwrap();
    // A conversion, and then another thread's launch.
    wide.view_mut().fill(&home, 0x0303_0303).unwrap();
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || _ = closed.recv());
    (device.backend().host_call(other.raw(), work)).unwrap();
    graph.launch(&other).unwrap();
    drop(graph);
    let tail = wide.addr() + LEN as u64;
    let narrow = wide.retyped::<u8>(LEN as u64).unwrap();
    let next = pool.alloc_filled(&home, 3 * LEN, 4u8).unwrap();
    assert_eq!(next.addr(), tail);
    std::thread::sleep(std::time::Duration::from_millis(50));
    drop(open);
    other.synchronize().unwrap();
    let found = next.download().unwrap();
    assert!(found == [4; 3 * LEN], "the graph wrote there");
    drop(narrow);
}

/// As in a server with a stream for each request. Its own hole serves each, so that nobody asks how far the others are.
#[test]
fn streams_that_come_and_go_leave_few_places_in_the_heap() {
    let device = Device::sim(&Default::default()).unwrap();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
    let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
    drop(pool.alloc(&stream, 16 << 20).unwrap());
    let mut kept = Vec::new();
    for round in 0..1000 {
        let request = device.stream().unwrap();
        let block = pool.alloc(&stream, 3000).unwrap();
        block.free_on(&request).unwrap();
        if round % 100 == 0 {
            kept.push(pool.alloc(&stream, 3000).unwrap());
        }
        other.wait_stream(&request).unwrap();
        drop(request);
        other.synchronize().unwrap();
    }
    let slots = pool.shared().core.lock().extents.slots();
    assert!(slots < 200, "{slots} places");
    pool.check_invariants().unwrap();
}
