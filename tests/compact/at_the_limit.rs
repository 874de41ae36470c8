//! Requests that only compaction can serve, up to a pool that is full.

use crate::common;

#[path = "../common/churn.rs"]
mod churn;

use churn::{CARD, Churned};
use common::watched::Watched;
use common::{Memory, on_every_device, read, write};
use warpool::compact::{Budget, Goal};
use warpool::device::DeviceKind;
use warpool::pool::HandleSize;
use warpool::{Device, Pool, PoolConfig};

on_every_device! {
    requests_succeed_until_97_percent_of_the_card_are_live,
    a_full_compaction_leaves_the_churned_card_with_one_hole,
    a_pool_full_of_movable_blocks_serves_every_free_byte_as_one_block,
    memory_that_lies_apart_is_brought_together_without_copying,
    a_growing_buffer_gets_what_is_free_beside_movable_blocks_that_lie_apart,
    nothing_is_brought_together_under_an_array_of_pointers_that_is_held,
    a_pass_goes_on_with_its_plan_and_makes_another_after_a_change,
}

/// The card of the report on a GPU that has it, a small one elsewhere and a smaller one under a
/// sanitizer, which has no time for tens of gigabytes and other suites beside this one.
fn cap(device: &Device) -> u64 {
    let info = device.info();
    let whole = info.kind == DeviceKind::Cuda && info.total_bytes > CARD + CARD / 4;
    match (common::under_sanitizer(), whole) {
        (true, _) => 64 << 20,
        (false, true) => CARD,
        (false, false) => 256 << 20,
    }
}

fn churned(device: &Device) -> Churned {
    let cap = cap(device);
    let pool = Pool::new(device, PoolConfig::default().limit(cap)).unwrap();
    // A sanitizer takes its time over each launch, and each block has some.
    let coarser = if common::under_sanitizer() { 3 } else { 0 };
    Churned::coarser(device, pool, cap, coarser)
}

fn requests_succeed_until_97_percent_of_the_card_are_live(device: &Device) {
    let mut card = churned(device);
    let mut served = 0;
    let refused = loop {
        match card.alloc(card.request()) {
            Ok(()) => served += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.is_out_of_memory(), "{refused}");
    let live = card.live_bytes() as f64 / card.cap as f64;
    assert!(live >= 0.97, "{live} live after {served}: {refused}");
    assert!(card.pool.stats().steps.relieved > 0);
    card.pool.check_invariants().unwrap();
    card.verify();
}

fn a_full_compaction_leaves_the_churned_card_with_one_hole(device: &Device) {
    let card = churned(device);
    let before = card.pool.stats();
    let moved = card.pool.compact(&Goal::Full).unwrap();
    assert!(moved.reached && moved.bytes > card.cap / 4);
    let after = card.pool.stats();
    assert!(after.largest_hole > 10 * before.largest_hole);
    let free = after.reserved.current - after.allocated.current;
    assert!(
        after.largest_hole > free / 10 * 9,
        "{} of {free}",
        after.largest_hole
    );
    card.pool.check_invariants().unwrap();
    card.verify();
}

fn a_pool_full_of_movable_blocks_serves_every_free_byte_as_one_block(device: &Device) {
    let mut card = churned(device);
    // What the pool may hold, in handles.
    let granule = device.info().granule;
    let free = card.cap / granule * granule - card.live_bytes();
    card.alloc(free).unwrap();
    card.pool.check_invariants().unwrap();
    assert!(card.alloc(1).unwrap_err().is_out_of_memory());
    card.verify();
}

fn memory_that_lies_apart_is_brought_together_without_copying(device: &Device) {
    const MIB: u64 = 1 << 20;
    let pool = Pool::new(device, PoolConfig::default().limit(24 * MIB)).unwrap();
    let stream = device.stream().unwrap();
    let low = pool
        .alloc_movable::<u64>(&stream, (2 * MIB / 8) as usize)
        .unwrap();
    let middle = pool.alloc(&stream, 8 * MIB).unwrap();
    let mut high = pool
        .alloc_movable::<u64>(&stream, (6 * MIB / 8) as usize)
        .unwrap();
    let words: Vec<u64> = (0..high.len() as u64).collect();
    high.upload(&stream, &words).unwrap();
    // The middle's handles go to a larger request behind it all, which leaves a gap.
    drop(middle);
    let large = pool.alloc(&stream, 14 * MIB).unwrap();
    assert!(pool.stats().steps.steal > 0);
    drop((large, low));
    let moved = pool.stats().bytes_moved;
    let all = pool
        .alloc_movable::<u8>(&stream, (18 * MIB) as usize)
        .unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(high.download(&stream).unwrap(), words);
    assert!(pool.stats().bytes_moved - moved <= 6 * MIB);
    drop(all);
}

fn a_growing_buffer_gets_what_is_free_beside_movable_blocks_that_lie_apart(device: &Device) {
    let granule = device.info().granule as usize;
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let pool = Pool::new(device, config.limit(4 * granule as u64)).unwrap();
    let stream = device.stream().unwrap();
    let movable = |bytes| pool.alloc_movable::<u8>(&stream, bytes).unwrap();
    let between = [granule / 2, 3 * granule, granule / 2].map(movable);
    let [mut low, between, mut high] = between;
    low.upload(&stream, &vec![1; low.len()]).unwrap();
    high.upload(&stream, &vec![2; high.len()]).unwrap();
    drop(between);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 2 * granule as u64, "apart");
    let mut buffer = pool.grow_buf::<u8>(&stream, 3 * granule).unwrap();
    buffer.resize(3 * granule).unwrap();
    buffer.view_mut().fill(&stream, 3).unwrap();
    assert!(low.download(&stream).unwrap().iter().all(|it| *it == 1));
    assert!(high.download(&stream).unwrap().iter().all(|it| *it == 2));
    pool.check_invariants().unwrap();
}

fn nothing_is_brought_together_under_an_array_of_pointers_that_is_held(device: &Device) {
    const MIB: usize = 1 << 20;
    let config = PoolConfig::default().limit(24 * MIB as u64);
    let (pool, stream) = (Pool::new(device, config).unwrap(), device.stream().unwrap());
    let alloc = |mib: usize| pool.alloc_movable::<u8>(&stream, mib * MIB);
    let (mut low, middle, high) = (alloc(1).unwrap(), alloc(8).unwrap(), alloc(6).unwrap());
    low.upload(&stream, &[7; MIB]).unwrap();
    // Memory of the first and the last is in handles of their own, with a gap between them.
    drop(middle);
    drop(alloc(14).unwrap());
    assert!(pool.stats().steps.steal > 0);
    let addr = low.hold(&stream).unwrap().addr();
    let memory = Memory::new(device, 8);
    write(&stream, memory.addr, &addr.to_le_bytes());
    // SAFETY: the memory outlives the array, and nothing else uses it.
    let array = unsafe { pool.register_pointers(&stream, memory.addr, 1) }.unwrap();
    let held = array.hold(&stream).unwrap();
    assert!(alloc(17).unwrap_err().is_out_of_memory());
    let reads = || read(&stream, memory.addr, 8);
    assert_eq!(reads(), addr.to_le_bytes(), "rewritten under the hold");
    assert_eq!(low.hold(&stream).unwrap().addr(), addr);
    drop(held);
    drop(alloc(17).unwrap());
    let now = low.hold(&stream).unwrap().addr();
    assert_eq!(reads(), now.to_le_bytes());
    assert!(low.download(&stream).unwrap() == [7; MIB]);
    drop((array, high));
    pool.check_invariants().unwrap();
}

/// What requests of the report's size took until one was refused.
#[derive(Default)]
struct Counted {
    requests: u64,
    served_by_moves: u64,
    /// Most bytes moved, launches made and handles mapped for one request.
    bytes: u64,
    launches: u64,
    maps: u64,
    all_bytes: u64,
}

/// Room is made at the report's own scale, on a device that hands memory out and copies nothing.
#[test]
fn room_for_one_request_is_made_by_few_copies_and_without_mapping_anything() {
    let config = 2 * CARD;
    let (device, watched) = Watched::hollow_over(&Device::host_with_capacity(config).unwrap());
    let pool = Pool::new(&device, PoolConfig::default().limit(CARD)).unwrap();
    let mut card = Churned::new(&device, pool, CARD);
    let request = card.request();
    let mut counted = Counted::default();
    while (card.live_bytes() + request) as f64 <= 0.97 * CARD as f64 {
        let before = card.pool.stats();
        let launches = watched.calls("launch");
        card.alloc(request).unwrap();
        let after = card.pool.stats();
        let bytes = after.bytes_moved - before.bytes_moved;
        counted.requests += 1;
        counted.all_bytes += bytes;
        if bytes == 0 {
            continue;
        }
        counted.served_by_moves += 1;
        counted.bytes = counted.bytes.max(bytes);
        // The block's pattern is a launch too.
        counted.launches = counted.launches.max(watched.calls("launch") - launches - 1);
        counted.maps = counted.maps.max(after.calls.mapped - before.calls.mapped);
    }
    assert_eq!(card.pool.stats().steps.steal, 0);
    assert!(counted.requests > 150, "{}", counted.requests);
    assert!(counted.served_by_moves > 100, "{}", counted.served_by_moves);
    assert_eq!(counted.maps, 0);
    // Half a millisecond at what an H200 copies.
    assert!(
        counted.bytes <= 8 * request + (64 << 20),
        "{}",
        counted.bytes
    );
    assert!(counted.launches <= 4, "{}", counted.launches);
    // Every live byte moves about once in all, not once a request.
    let per_byte = counted.all_bytes as f64 / (counted.requests * request) as f64;
    assert!(per_byte < 4.0, "{per_byte}");
    card.pool.check_invariants().unwrap();
}

/// Up to the last thousandth no run of live memory is mapped again.
#[test]
fn the_last_requests_of_a_full_card_map_only_what_is_idle() {
    let config = 2 * CARD;
    let (device, _) = Watched::hollow_over(&Device::host_with_capacity(config).unwrap());
    let pool = Pool::new(&device, PoolConfig::default().limit(CARD)).unwrap();
    let mut card = Churned::new(&device, pool, CARD);
    let most = card.request().div_ceil(device.info().granule);
    loop {
        let before = card.pool.stats();
        let served = card.alloc(card.request()).is_ok();
        let after = card.pool.stats();
        let mapped = after.calls.mapped - before.calls.mapped;
        let live = card.live_bytes() as f64 / card.cap as f64;
        assert!(
            mapped <= most || live > 0.999,
            "{mapped} of {most} at {live}"
        );
        if !served {
            // A request that nothing can serve moves nothing.
            assert_eq!(after.bytes_moved, before.bytes_moved);
            break;
        }
    }
    let live = card.live_bytes() as f64 / card.cap as f64;
    assert!(live > 0.999, "{live}");
    card.pool.check_invariants().unwrap();
}

fn a_pass_goes_on_with_its_plan_and_makes_another_after_a_change(device: &Device) {
    let mut card = churned(device);
    let budget = Budget::bytes(card.cap / 16);
    let mut pass = card.pool.begin_compaction(Goal::Full, budget).unwrap();
    let mut steps = 0;
    loop {
        let moved = pass.step().unwrap();
        card.pool.check_invariants().unwrap();
        steps += 1;
        if moved.finished {
            break;
        }
        if steps == 3 {
            card.thin_by(card.cap / 16);
        }
        if steps == 5 {
            card.alloc(card.cap / 64).unwrap();
        }
    }
    assert!(steps > 6, "{steps}");
    assert_eq!(
        card.pool
            .plan_compaction(&Goal::Full)
            .unwrap()
            .unwrap()
            .moves,
        0
    );
    card.verify();
}

#[test]
fn the_first_movable_block_takes_little_memory_of_the_machine_however_much_its_device_has() {
    let used = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssShmem:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    };
    // A GiB of tables, and 128.
    for capacity in [1 << 43, 1 << 50] {
        let device = Device::host_with_capacity(capacity).unwrap();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let before = used();
        let block = pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap();
        let more = used().saturating_sub(before);
        assert!(pool.stats().overhead >= 1 << 30);
        assert!(more < 512 << 20, "{more}");
        drop(block);
    }
}
