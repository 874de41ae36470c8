//! Every owner of an address learns of a move: the device's address table, arrays of pointers in
//! device memory, and callbacks, checked after each step against a model on the CPU.

use crate::common;

use std::sync::{Arc, Mutex};

use common::watched::Watched;
use common::{Memory, on_every_device, on_the_simulated_device, read, write};
use proptest::prelude::*;
use warpool::compact::{Budget, Goal};
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::movable::{AddressTable, Movable, PointerArray, Relocation};
use warpool::{Device, Pool, PoolConfig, Stream};

on_every_device! {
    the_address_table_names_every_block_after_each_step,
    pointers_follow_their_blocks_and_nothing_else_changes,
    an_array_of_pointers_in_a_movable_block_moves_and_is_rewritten,
    while_an_array_is_pinned_nothing_moves,
    an_array_lets_go_of_its_block_though_that_was_freed_meanwhile,
    an_array_that_is_held_keeps_all_blocks_though_its_own_was_freed,
    an_array_whose_hold_ends_in_a_capture_keeps_nobody_from_moving,
    an_array_that_is_refused_under_capture_keeps_nobody_from_moving,
    the_block_of_an_array_stays_under_a_graph_that_was_captured_under_its_hold,
    an_array_that_is_unregistered_is_left_alone,
    a_pointer_that_is_registered_is_not_registered_again,
    a_callback_is_told_old_and_new_address_of_each_move,
    a_callback_may_pin_and_allocate,
    any_layout_keeps_every_owner_right_after_each_step,
}

on_the_simulated_device! {
    the_address_table_names_every_block_after_each_step,
    pointers_follow_their_blocks_and_nothing_else_changes,
    an_array_of_pointers_in_a_movable_block_moves_and_is_rewritten,
    an_array_that_is_unregistered_is_left_alone,
    any_layout_keeps_every_owner_right_after_each_step,
}

fn pool(device: &Device, limit: u64) -> Pool {
    Pool::new(device, PoolConfig::default().limit(limit)).unwrap()
}

/// Every second of `count` blocks of `words` words; each holds its number and its word's place.
fn fragmented(pool: &Pool, stream: &Stream, count: u64, words: usize) -> Vec<Movable<u64>> {
    let all: Vec<_> = (0..count)
        .map(|seed| {
            let mut block = pool.alloc_movable::<u64>(stream, words).unwrap();
            block.upload(stream, &contents(seed, words)).unwrap();
            block
        })
        .collect();
    all.into_iter().step_by(2).collect()
}

fn contents(seed: u64, words: usize) -> Vec<u64> {
    (0..words as u64).map(|word| seed << 32 | word).collect()
}

fn addr_of(block: &Movable<u64>, stream: &Stream) -> u64 {
    block.hold(stream).unwrap().addr()
}

fn words_at(stream: &Stream, addr: u64, count: usize) -> Vec<u64> {
    let bytes = read(stream, addr, count * 8);
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word)).collect()
}

/// The table as read on `stream` under a pin of each block says where each is.
fn check_table(table: &AddressTable, blocks: &[Movable<u64>], stream: &Stream) {
    for block in blocks {
        let pinned = block.hold(stream).unwrap();
        assert_eq!(
            words_at(stream, table.entry(block.id()), 1),
            [pinned.addr()]
        );
    }
}

fn the_address_table_names_every_block_after_each_step(device: &Device) {
    let pool = pool(device, 32 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut blocks = fragmented(&pool, &stream, 64, 25_000);
    let table = pool.address_table().unwrap();
    check_table(&table, &blocks, &other);
    let mut pass = pool
        .begin_compaction(Goal::Full, Budget::bytes(900_000))
        .unwrap();
    let mut round = 0;
    while !pass.step().unwrap().finished {
        check_table(&table, &blocks, &other);
        // A place of the table that is used again names the new block.
        drop(blocks.swap_remove(round % blocks.len()));
        blocks.push(pool.alloc_movable(&stream, 5_000).unwrap());
        check_table(&table, &blocks, &other);
        round += 1;
    }
    assert!(round > 2);
    assert!(table.entries() >= blocks.len() as u64);
    assert_eq!(pool.address_table().unwrap().addr(), table.addr());
}

/// Slots with null, a foreign address, and first, inner, last and one-past-last bytes of blocks.
struct Slots {
    /// (block, offset in it), or a word that is none.
    model: Vec<Result<(usize, u64), u64>>,
}

impl Slots {
    fn of(blocks: &[Movable<u64>], foreign: u64) -> Self {
        let mut model = vec![Err(0), Err(foreign), Err(u64::MAX), Err(1)];
        for (index, block) in blocks.iter().enumerate() {
            let bytes = block.len() as u64 * 8;
            model.extend([0, 1, bytes / 2, bytes - 1].map(|at| Ok((index, at))));
        }
        Self { model }
    }

    fn words(&self, blocks: &[Movable<u64>], stream: &Stream) -> Vec<u64> {
        let addrs: Vec<u64> = blocks.iter().map(|block| addr_of(block, stream)).collect();
        let word = |slot: &Result<(usize, u64), u64>| match *slot {
            Ok((block, at)) => addrs[block] + at,
            Err(word) => word,
        };
        self.model.iter().map(word).collect()
    }
}

fn pointers_follow_their_blocks_and_nothing_else_changes(device: &Device) {
    let pool = pool(device, 32 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = fragmented(&pool, &stream, 64, 25_000);
    let memory = Memory::new(device, 1 << 20);
    let slots = Slots::of(&blocks, memory.addr);
    let words = slots.words(&blocks, &stream);
    write(&stream, memory.addr, bytemuck::cast_slice(&words));
    // SAFETY: the memory outlives the array, and is read under its pin.
    let array = unsafe { pool.register_pointers(&stream, memory.addr, words.len()) }.unwrap();
    let mut pass = pool
        .begin_compaction(Goal::Full, Budget::bytes(900_000))
        .unwrap();
    let mut steps = 0;
    loop {
        let finished = pass.step().unwrap().finished;
        let pinned = array.hold(&other).unwrap();
        assert_eq!(
            words_at(&other, pinned.addr(), words.len()),
            slots.words(&blocks, &other)
        );
        steps += 1;
        if finished {
            break;
        }
    }
    assert!(steps > 2);
    assert_ne!(slots.words(&blocks, &stream), words);
    array.unregister(&stream).unwrap();
    stream.synchronize().unwrap();
}

fn an_array_of_pointers_in_a_movable_block_moves_and_is_rewritten(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let mut blocks = fragmented(&pool, &stream, 64, 25_000);
    // A block that has to move holds the pointers.
    let mut holder = blocks.pop().unwrap();
    let slots = Slots::of(&blocks, 4096);
    let mut words = slots.words(&blocks, &stream);
    words.resize(holder.len(), 0);
    holder.upload(&stream, &words).unwrap();
    let array = holder.register_pointers().unwrap();
    let before = addr_of(&holder, &stream);
    assert!(pool.compact(&Goal::Full).unwrap().reached);
    assert_ne!(addr_of(&holder, &stream), before);
    let expected = slots.words(&blocks, &stream);
    let pinned = array.hold(&stream).unwrap();
    assert_eq!(pinned.addr(), addr_of(&holder, &stream));
    assert_eq!(words_at(&stream, pinned.addr(), expected.len()), expected);
    drop(pinned);
    // Freed under its array: the array is gone, and moves go on.
    drop(holder);
    drop(blocks.swap_remove(0));
    pool.compact(&Goal::Full).unwrap();
    assert!(array.hold(&stream).is_err());
}

fn an_array_lets_go_of_its_block_though_that_was_freed_meanwhile(device: &Device) {
    let pool = pool(device, 16 << 20);
    let stream = device.stream().unwrap();
    let list = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
    let pointers = list.register_pointers().unwrap();
    let held = pointers.hold(&stream).unwrap();
    drop(list);
    assert_eq!(pool.stats().blocks.current, 1);
    drop(held);
    assert_eq!(pool.stats().blocks.current, 0);
    assert!(pointers.hold(&stream).is_err());
}

fn an_array_that_is_held_keeps_all_blocks_though_its_own_was_freed(device: &Device) {
    let pool = pool(device, 16 << 20);
    let stream = device.stream().unwrap();
    let list = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
    let blocks = fragmented(&pool, &stream, 8, 1000);
    let pointers = list.register_pointers().unwrap();
    let held = pointers.hold(&stream).unwrap();
    drop(list);
    assert_eq!(pool.compact(&Goal::Full).unwrap().blocks, 0);
    drop(held);
    assert!(pool.compact(&Goal::Full).unwrap().blocks > 0);
    drop(blocks);
}

fn an_array_whose_hold_ends_in_a_capture_keeps_nobody_from_moving(device: &Device) {
    let pool = pool(device, 16 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = Memory::new(device, 8 * 4);
    let blocks = fragmented(&pool, &stream, 8, 1000);
    let words: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    write(&stream, memory.addr, bytemuck::cast_slice(&words));
    // SAFETY: the memory outlives the array.
    let pointers = unsafe { pool.register_pointers(&stream, memory.addr, 4) }.unwrap();
    let held = pointers.hold(&stream).unwrap();
    let capture = stream.begin_capture().unwrap();
    drop(held);
    assert!(pool.compact(&Goal::Full).unwrap().blocks > 0);
    let now: Vec<u64> = blocks.iter().map(|block| addr_of(block, &other)).collect();
    drop(capture);
    let held = pointers.hold(&other).unwrap();
    assert_eq!(words_at(&other, held.addr(), 4), now);
    drop(held);
    pointers.unregister(&other).unwrap();
}

fn an_array_that_is_refused_under_capture_keeps_nobody_from_moving(device: &Device) {
    let pool = pool(device, 16 << 20);
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 8);
    let blocks = fragmented(&pool, &stream, 8, 1000);
    write(
        &stream,
        memory.addr,
        &addr_of(&blocks[3], &stream).to_le_bytes(),
    );
    // SAFETY: the memory outlives the array.
    let fixed = unsafe { pool.register_pointers(&stream, memory.addr, 1) }.unwrap();
    let list = pool.alloc_movable::<u64>(&stream, 10).unwrap();
    let pointers = list.register_pointers().unwrap();
    let capture = stream.begin_capture().unwrap();
    for array in [&fixed, &pointers] {
        let error = array.hold(&stream).unwrap_err().to_string();
        assert!(error.contains("captured"), "{error}");
    }
    assert!(pool.compact(&Goal::Full).unwrap().blocks > 0);
    drop(capture);
    let held = fixed.hold(&stream).unwrap();
    assert_eq!(
        words_at(&stream, held.addr(), 1),
        [addr_of(&blocks[3], &stream)]
    );
    drop(held);
    drop(pointers.hold(&stream).unwrap());
}

fn the_block_of_an_array_stays_under_a_graph_that_was_captured_under_its_hold(device: &Device) {
    for late in [false, true] {
        let pool = pool(device, 16 << 20);
        let stream = device.stream().unwrap();
        let low = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
        let list = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
        let target = pool.alloc_zeroed::<u8>(&stream, 400).unwrap();
        let pointers = list.register_pointers().unwrap();
        let mut held = Some(pointers.hold(&stream).unwrap());
        let at = addr_of(&list, &stream);
        let capture = stream.begin_capture().unwrap();
        common::copy(&stream, target.addr(), at, 400);
        held = held.filter(|_| late);
        let graph = capture.end().unwrap();
        drop((held, low));
        pool.compact(&Goal::Full).unwrap();
        assert_eq!(addr_of(&list, &stream), at, "late: {late}");
        drop(graph);
        pool.compact(&Goal::Full).unwrap();
        assert_ne!(addr_of(&list, &stream), at, "late: {late}");
    }
}

fn while_an_array_is_pinned_nothing_moves(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let mut blocks = fragmented(&pool, &stream, 16, 25_000);
    let holder = blocks.pop().unwrap();
    let array = holder.register_pointers().unwrap();
    let pinned = array.hold(&stream).unwrap();
    let moved = pool.compact(&Goal::Full).unwrap();
    assert_eq!(
        (moved.bytes, moved.finished, moved.reached),
        (0, true, false)
    );
    drop(pinned);
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
}

fn an_array_that_is_unregistered_is_left_alone(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream, 16, 25_000);
    let memory = Memory::new(device, 4096);
    let words: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    write(&stream, memory.addr, bytemuck::cast_slice(&words));
    let register = || {
        // SAFETY: the memory outlives the array.
        unsafe { pool.register_pointers(&stream, memory.addr, words.len()) }.unwrap()
    };
    drop(register());
    register().unregister(&stream).unwrap();
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    assert_eq!(words_at(&stream, memory.addr, words.len()), words);
    // There the waits would be its launches'.
    let capture = stream.begin_capture().unwrap();
    let refused = register().unregister(&stream).unwrap_err().to_string();
    assert!(refused.contains("captured"), "{refused}");
    drop(capture);
    // SAFETY: nothing is registered.
    let odd = unsafe { pool.register_pointers(&stream, memory.addr + 4, 1) };
    assert!(odd.unwrap_err().to_string().contains("multiple of 8"));
}

fn a_pointer_that_is_registered_is_not_registered_again(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream, 16, 1000);
    let memory = Memory::new(device, 4096);
    let words: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    write(&stream, memory.addr, bytemuck::cast_slice(&words));
    let register = |word: u64, slots| {
        // SAFETY: the memory outlives the array.
        unsafe { pool.register_pointers(&stream, memory.addr + 8 * word, slots) }
    };
    let array = register(2, 4).unwrap();
    for (word, slots) in [(2, 4), (0, 8), (0, 3), (5, 1), (3, 2), (4, 9)] {
        let error = register(word, slots).unwrap_err().to_string();
        assert!(error.contains("registered"), "{error}");
    }
    let beside = [(0, 2), (6, 2), (3, 0)].map(|(word, slots)| register(word, slots).unwrap());
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    let now: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    for array in [&array].into_iter().chain(&beside) {
        drop(array.hold(&stream).unwrap());
    }
    assert_eq!(words_at(&stream, memory.addr, words.len()), now);
    drop((array, beside));
    register(0, 8).unwrap();
    let list = pool.alloc_movable::<u64>(&stream, 4).unwrap();
    let array = list.register_pointers().unwrap();
    let error = list.register_pointers().unwrap_err().to_string();
    assert!(error.contains("registered"), "{error}");
    array.unregister(&stream).unwrap();
    list.register_pointers().unwrap();
}

fn a_callback_is_told_old_and_new_address_of_each_move(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream, 64, 25_000);
    let told: Arc<Mutex<Vec<Relocation>>> = Arc::default();
    for block in &blocks {
        let told = Arc::clone(&told);
        block.on_move(move |relocation| told.lock().unwrap().push(*relocation));
    }
    blocks[3].on_move(|_| ());
    let before: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    pool.compact(&Goal::Full).unwrap();
    let told = told.lock().unwrap();
    assert!(told.windows(2).all(|two| two[0].number < two[1].number));
    for (index, block) in blocks.iter().enumerate() {
        let mine: Vec<&Relocation> = told.iter().filter(|one| one.id == block.id()).collect();
        let (from, to) = (before[index], addr_of(block, &stream));
        match mine.as_slice() {
            [] => assert!(from == to || index == 3),
            [one] => assert_eq!((one.from, one.to, one.bytes), (from, to, 200_192)),
            _ => panic!("{mine:?}"),
        }
    }
    assert!(told.len() > 20);
}

fn a_callback_may_pin_and_allocate(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream, 16, 25_000);
    let made: Arc<Mutex<Vec<Movable<u64>>>> = Arc::default();
    let (kept, ids) = (Arc::clone(&made), Arc::new(Mutex::new(Vec::new())));
    let (weak, pinned) = (pool.clone(), Arc::clone(&ids));
    let on = stream.clone();
    blocks[5].on_move(move |relocation| {
        let held = weak.hold_id(relocation.id, &on).unwrap();
        assert_eq!(held.addr(), relocation.to);
        pinned.lock().unwrap().push(held.id());
        kept.lock()
            .unwrap()
            .push(weak.alloc_movable(&on, 10).unwrap());
    });
    pool.compact(&Goal::Full).unwrap();
    assert_eq!(*ids.lock().unwrap(), [blocks[5].id()]);
    assert_eq!(made.lock().unwrap().len(), 1);
    // The callback holds the pool, and the pool's registry the callback.
    blocks[5].on_move(|_| ());
    made.lock().unwrap().clear();
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, usize),
    Free(usize),
    Resize(usize, usize),
    Point(usize, usize, u64),
    Compact(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..2usize, 1..40_000usize).prop_map(|(stream, len)| Op::Alloc(stream, len)),
        3 => any::<usize>().prop_map(Op::Free),
        1 => (any::<usize>(), 1..40_000usize).prop_map(|(at, len)| Op::Resize(at, len)),
        3 => (0..SLOTS, any::<usize>(), any::<u64>()).prop_map(|(s, b, at)| Op::Point(s, b, at)),
        2 => (0..4_000_000u64, 1..2_000_000u64).prop_map(|(hole, budget)| Op::Compact(hole, budget)),
    ]
}

const SLOTS: usize = 64;

/// A pool with blocks, an address table and an array of pointers, and what each has to hold.
struct World {
    pool: Pool,
    streams: [Stream; 2],
    live: Vec<(u64, Movable<u64>)>,
    table: AddressTable,
    array: PointerArray,
    /// Of each slot: the seed of the block it points into and the offset, or the word it holds.
    slots: Vec<Result<(u64, u64), u64>>,
}

impl World {
    fn new(device: &Device, memory: &Memory) -> Self {
        let pool = pool(device, 8 << 20);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        write(&streams[0], memory.addr, &[0; SLOTS * 8]);
        // SAFETY: the memory outlives the array and is used under its pin.
        let array = unsafe { pool.register_pointers(&streams[0], memory.addr, SLOTS) };
        Self {
            table: pool.address_table().unwrap(),
            array: array.unwrap(),
            pool,
            streams,
            live: Vec::new(),
            slots: vec![Err(0); SLOTS],
        }
    }

    fn apply(&mut self, seed: u64, op: Op) {
        match op {
            Op::Alloc(stream, len) => {
                let stream = &self.streams[stream];
                if let Ok(mut block) = self.pool.alloc_movable::<u64>(stream, len) {
                    block.upload(stream, &contents(seed, len)).unwrap();
                    self.live.push((seed, block));
                }
            }
            Op::Free(at) if !self.live.is_empty() => {
                let (gone, block) = self.live.swap_remove(at % self.live.len());
                let addr = addr_of(&block, &self.streams[0]);
                drop(block);
                // What pointed there is foreign now, and may come to point into another block.
                for slot in &mut self.slots {
                    if let Ok((seed, at)) = *slot
                        && seed == gone
                    {
                        *slot = Err(addr + at);
                    }
                }
                self.clear_foreign();
            }
            Op::Resize(at, len) if !self.live.is_empty() => {
                let at = at % self.live.len();
                let (seed, block) = &mut self.live[at];
                let (seed, before) = (*seed, block.len());
                if block.resize(&self.streams[1], len).is_ok() {
                    // What a block has grown by was never written, and is not read.
                    let (kept, on) = (len.min(before), &self.streams[1]);
                    let pinned = block.hold(on).unwrap();
                    let bytes = read(on, pinned.addr(), kept * 8);
                    drop(pinned);
                    assert!(bytes == bytemuck::cast_slice::<u64, u8>(&contents(seed, kept)));
                    block.upload(on, &contents(seed, len)).unwrap();
                    self.forget_beyond(seed, len as u64 * 8);
                }
            }
            Op::Point(slot, at, offset) if !self.live.is_empty() => {
                let (seed, block) = &self.live[at % self.live.len()];
                let offset = offset % (block.len() as u64 * 8);
                self.slots[slot] = Ok((*seed, offset));
                let word = addr_of(block, &self.streams[0]) + offset;
                self.store(slot, word);
            }
            Op::Compact(hole, budget) => {
                let goal = match hole {
                    0..1000 => Goal::Full,
                    hole => Goal::Hole(hole),
                };
                let mut pass = self
                    .pool
                    .begin_compaction(goal, Budget::bytes(budget))
                    .unwrap();
                while !pass.step().unwrap().finished {
                    self.check();
                }
            }
            _ => {}
        }
        self.check();
    }

    fn store(&self, slot: usize, word: u64) {
        let pinned = self.array.hold(&self.streams[0]).unwrap();
        let addr = pinned.addr() + slot as u64 * 8;
        write(&self.streams[0], addr, &word.to_le_bytes());
    }

    /// Slots that point into no block are set to null: whose memory that is next is not theirs.
    fn clear_foreign(&mut self) {
        for slot in 0..SLOTS {
            if self.slots[slot].is_err() {
                self.slots[slot] = Err(0);
                self.store(slot, 0);
            }
        }
    }

    fn forget_beyond(&mut self, of: u64, bytes: u64) {
        for slot in &mut self.slots {
            if slot.is_ok_and(|(seed, at)| seed == of && at >= bytes) {
                *slot = Err(0);
            }
        }
        self.clear_foreign();
    }

    fn check(&self) {
        self.pool.check_invariants().unwrap();
        let stream = &self.streams[1];
        let addrs: Vec<(u64, u64)> = self
            .live
            .iter()
            .map(|(seed, block)| (*seed, addr_of(block, stream)))
            .collect();
        for (_, block) in &self.live {
            check_table(&self.table, std::slice::from_ref(block), stream);
        }
        let pinned = self.array.hold(stream).unwrap();
        let words = words_at(stream, pinned.addr(), SLOTS);
        for (slot, word) in self.slots.iter().zip(words) {
            let expected = match *slot {
                Err(word) => word,
                Ok((of, at)) => addrs.iter().find(|(seed, _)| *seed == of).unwrap().1 + at,
            };
            assert_eq!(word, expected);
        }
    }
}

fn any_layout_keeps_every_owner_right_after_each_step(device: &Device) {
    let memory = Memory::new(device, SLOTS as u64 * 8);
    let cases = ProptestConfig::with_cases(common::rounds(24) as u32);
    proptest!(cases, |(ops in prop::collection::vec(op(), 1..60))| {
        let mut world = World::new(device, &memory);
        for (seed, op) in ops.into_iter().enumerate() {
            world.apply(seed as u64 + 1, op);
        }
        for (seed, block) in &world.live {
            let words = block.download(&world.streams[0]).unwrap();
            prop_assert!(words == contents(*seed, block.len()));
        }
    });
}

#[test]
fn a_patch_that_is_owed_waits_for_its_pool_to_wake() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let mut list = pool.alloc_movable::<u64>(&stream, 4).unwrap();
    let blocks = fragmented(&pool, &stream, 8, 1000);
    let words: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    list.upload(&stream, &words).unwrap();
    let pointers = list.register_pointers().unwrap();
    watched.fail("launch", 2, false);
    assert!(
        pool.compact(&Goal::Full).is_err(),
        "the patch after the moves failed"
    );
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    let before = watched.calls("launch");
    assert!(pointers.hold(&stream).is_err());
    assert_eq!(watched.calls("launch"), before);
    pool.wake(&[]).unwrap();
    let held = pointers.hold(&stream).unwrap();
    let now: Vec<u64> = blocks.iter().map(|block| addr_of(block, &stream)).collect();
    assert_ne!(now, words);
    assert_eq!(words_at(&stream, held.addr(), 4), now);
}
