//! Compactions under the checker of stream order: moves, rewritten pointers and the address table
//! are ordered with every use, and nothing that is right is reported.

use crate::common;

use crate::common::BackendOf;
use common::watched::Watched;
use common::{Memory, read, write};
use warpool::compact::{Budget, Goal};
use warpool::device::Access;
use warpool::device::sim::SimConfig;
use warpool::movable::Movable;
use warpool::sanitize::{Fault, Sanitizer};
use warpool::{Device, Pool, PoolConfig, Stream};

const WORDS: usize = 25_000;

fn fragmented(pool: &Pool, stream: &Stream) -> Vec<Movable<u64>> {
    let all: Vec<_> = (0..40u64)
        .map(|seed| {
            let mut block = pool.alloc_movable::<u64>(stream, WORDS).unwrap();
            block.upload(stream, &vec![seed; WORDS]).unwrap();
            block
        })
        .collect();
    all.into_iter().step_by(2).collect()
}

/// Blocks used on two streams, named by an array and a table, moved, resized, freed and used again.
fn program(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default().limit(16 << 20)).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut blocks = fragmented(&pool, &stream);
    let memory = Memory::new(device, 4096);
    let addrs: Vec<u64> = blocks
        .iter()
        .map(|b| b.hold(&stream).unwrap().addr())
        .collect();
    write(&stream, memory.addr, bytemuck::cast_slice(&addrs));
    // SAFETY: the memory outlives the array and is used under its pin.
    let array = unsafe { pool.register_pointers(&stream, memory.addr, addrs.len()) }.unwrap();
    let table = pool.address_table().unwrap();
    let mut pass = pool
        .begin_compaction(Goal::Full, Budget::bytes(1_000_000))
        .unwrap();
    while !pass.step().unwrap().finished {
        for block in &blocks {
            let pinned = block.hold(&other).unwrap();
            read(&other, table.entry(block.id()), 8);
            read(&other, pinned.addr(), 1000);
        }
        let pinned = array.hold(&other).unwrap();
        read(&other, pinned.addr(), addrs.len() * 8);
        drop(pinned);
        drop(blocks.swap_remove(1));
        let words = WORDS + 100 * blocks.len();
        blocks[0].resize(&stream, words).unwrap();
        drop(pool.alloc(&other, 300_000).unwrap());
    }
    // Behind the pass other streams get the memory that it vacated.
    let used = pool.stats().allocated.current;
    let large = pool.alloc(&other, (16 << 20) - used).unwrap();
    write(&other, large.addr(), &[7; 1000]);
    drop((large, array, blocks));
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
}

#[test]
fn a_program_with_compactions_has_nothing_reported() {
    let devices = [
        Device::host().unwrap(),
        Device::sim(&SimConfig::default()).unwrap(),
    ];
    for device in devices {
        let (watched, sanitizer) = Sanitizer::over(&device);
        program(&watched);
        if let Err(report) = sanitizer.check() {
            panic!("{report}");
        }
    }
}

#[test]
fn the_address_table_outlives_the_stores_to_it() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    {
        let pool = Pool::new(&watched, PoolConfig::default().limit(16 << 20)).unwrap();
        let (stream, other) = (watched.stream().unwrap(), watched.stream().unwrap());
        let blocks = fragmented(&pool, &stream);
        let table = pool.address_table().unwrap();
        let slow = Box::new(|| std::thread::sleep(std::time::Duration::from_millis(20)));
        let backend = watched.backend();
        backend.host_call(other.raw(), slow).unwrap();
        blocks.iter().for_each(|b| drop(b.hold(&other).unwrap()));
        // The moves and the stores wait for the other stream; everything goes meanwhile.
        pool.compact(&Goal::Full).unwrap();
        drop(table);
        drop((blocks, pool));
    }
    if let Err(report) = sanitizer.check() {
        panic!("{report}");
    }
}

#[test]
fn a_word_of_the_address_table_is_stored_behind_those_who_read_it() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let pool = Pool::new(&watched, PoolConfig::default().limit(16 << 20)).unwrap();
    let (stream, other) = (watched.stream().unwrap(), watched.stream().unwrap());
    let table = pool.address_table().unwrap();
    let first = pool.alloc_movable::<u64>(&stream, WORDS).unwrap();
    let id = first.id();
    // What the host has seen done orders the store too: the reader is not done before it is queued.
    let (open, wait) = std::sync::mpsc::channel::<()>();
    let held = Box::new(move || {
        // Ends when the sender is gone.
        let _ = wait.recv();
    });
    {
        let _pinned = first.hold(&other).unwrap();
        watched.backend().host_call(other.raw(), held).unwrap();
        common::declare(
            &other,
            "a reader of the table",
            &[Access::read(table.entry(id), 8)],
        );
    }
    drop(first);
    // The next block gets the place, and its pin has the word stored.
    let next = pool.alloc_movable::<u64>(&stream, WORDS).unwrap();
    assert_eq!(next.id().index, id.index);
    drop(next.hold(&stream).unwrap());
    drop(open);
    // Behind the store, whose table of words is then known.
    stream.synchronize().unwrap();
    if let Err(report) = sanitizer.check() {
        panic!("{report}");
    }
}

#[test]
fn a_use_that_no_pin_covers_is_reported_once_the_block_moves() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let pool = Pool::new(&watched, PoolConfig::default().limit(16 << 20)).unwrap();
    let stream = watched.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    let stale: Vec<u64> = blocks
        .iter()
        .map(|b| b.hold(&stream).unwrap().addr())
        .collect();
    pool.compact(&Goal::Full).unwrap();
    sanitizer.check().unwrap();
    // The address outlived its guard.
    let last = blocks.len() - 1;
    assert_ne!(blocks[last].hold(&stream).unwrap().addr(), stale[last]);
    read(&stream, stale[last], 8);
    assert_eq!(sanitizer.check().unwrap_err().fault, Fault::UseAfterFree);
}

#[test]
fn a_use_of_a_moved_block_that_no_wait_orders_behind_the_move_is_reported() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let pool = Pool::new(&watched, PoolConfig::default().limit(16 << 20)).unwrap();
    let (stream, other) = (watched.stream().unwrap(), watched.stream().unwrap());
    let blocks = fragmented(&pool, &stream);
    let last = blocks.last().unwrap();
    let before = last.hold(&stream).unwrap().addr();
    pool.compact(&Goal::Full).unwrap();
    let pinned = last.hold(&stream).unwrap();
    assert_ne!(pinned.addr(), before);
    sanitizer.check().unwrap();
    // The pin made one stream wait for the move, and not this one; nor has the host waited.
    common::declare(&other, "a reader", &[Access::read(pinned.addr(), 8)]);
    let report = sanitizer.check().unwrap_err();
    assert_eq!(report.fault, Fault::Race);
}

#[test]
fn blocks_that_the_device_refused_to_move_are_their_users_as_before() {
    let (watched, watch) = Watched::over(&Device::host().unwrap());
    let (device, sanitizer) = Sanitizer::over(&watched);
    for use_number in 1..4 {
        let pool = Pool::new(&device, PoolConfig::default().limit(16 << 20)).unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let blocks = fragmented(&pool, &stream);
        let budget = Budget::bytes(1_000_000);
        let mut pass = pool.begin_compaction(Goal::Full, budget).unwrap();
        watch.fail("launch", use_number, true);
        while pass.step().is_ok() {}
        watch.heal();
        for block in &blocks {
            for stream in [&other, &stream] {
                let pinned = block.hold(stream).unwrap();
                read(stream, pinned.addr(), 1000);
            }
        }
        if let Err(report) = sanitizer.check() {
            panic!("{use_number}: {report}");
        }
    }
}
