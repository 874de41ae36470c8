use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::compact::{Aim, Budget, Goal, Moved};
use crate::device::lock;
use crate::device::sim::Rng;
use crate::heap::{Epoch, State};
use crate::movable::block_table::Entry;
use crate::movable::registry::Registry;
use crate::{Device, Movable, Pool, PoolConfig, Result, Stream};

/// A pool of `blocks` blocks of which every second is freed, and the contents of the others.
struct Lab {
    pool: Pool,
    stream: Stream,
    blocks: Vec<(Movable<u8>, u8)>,
    next: u8,
}

impl Lab {
    const BLOCK: usize = 64 << 10;

    fn new(blocks: usize) -> Result<Self> {
        let device = Device::host()?;
        // Dropped blocks stay where they are.
        let config =
            (PoolConfig::default().cache_bytes(1 << 20)).limit((blocks * Self::BLOCK) as u64);
        let pool = Pool::new(&device, config)?;
        let stream = device.stream()?;
        let (blocks_left, next) = (Vec::new(), 0);
        let mut lab = Self {
            pool,
            stream,
            blocks: blocks_left,
            next,
        };
        for _ in 0..blocks {
            lab.alloc(Self::BLOCK)?;
        }
        let mut at = 0;
        lab.blocks.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        Ok(lab)
    }

    /// Allocates a block and fills it; a full pool is no error.
    fn alloc(&mut self, bytes: usize) -> Result<()> {
        self.next = self.next.wrapping_add(1);
        let Ok(mut block) = self.pool.alloc_movable::<u8>(&self.stream, bytes) else {
            return Ok(());
        };
        block.upload(&self.stream, &vec![self.next; bytes])?;
        self.blocks.push((block, self.next));
        Ok(())
    }

    fn registry(&self) -> Result<std::sync::Arc<Registry>> {
        Registry::of(&self.pool)
    }

    fn check(&self) -> Result<()> {
        self.pool.check_invariants().expect("invariants hold");
        for (block, fill) in &self.blocks {
            let there = block.download(&self.stream)?;
            assert!(there.iter().all(|byte| byte == fill), "block {fill}");
        }
        Ok(())
    }

    /// A step towards a hole of `hole` bytes. Calls `between` between the search and the moves.
    /// Returns the bytes moved, and whether it was the last step.
    fn step(
        &mut self,
        hole: u64,
        between: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(u64, bool)> {
        let (goal, budget) = (Goal::Hole(hole), Budget::default());
        let speculative = self.registry()?.propose(Aim::Goal(&goal), &budget)?;
        assert!(speculative.is_some(), "a hole is searched");
        between(self)?;
        let aim = Aim::Goal(&goal);
        let (plan, mut moved) = ((speculative, Instant::now()), Moved::default());
        (self.registry()?).make(aim, &budget, plan, &mut moved)?;
        self.check()?;
        Ok((moved.bytes, moved.finished))
    }
}

#[test]
fn what_was_searched_is_made_where_nothing_changed() -> Result<()> {
    let mut lab = Lab::new(32)?;
    let (bytes, finished) = lab.step(4 * Lab::BLOCK as u64, |_| Ok(()))?;
    assert!(bytes > 0 && finished);
    assert!(lab.pool.stats().largest_hole >= 4 * Lab::BLOCK as u64);
    Ok(())
}

#[test]
fn nothing_moves_for_a_hole_that_was_made_or_cannot_be_made_since_it_was_searched() -> Result<()> {
    let hole = 4 * Lab::BLOCK as u64;
    let mut lab = Lab::new(32)?;
    let free = |lab: &mut Lab| {
        lab.blocks.truncate(4);
        Ok(())
    };
    assert_eq!(lab.step(hole, free)?, (0, true));
    let mut lab = Lab::new(32)?;
    let fill = |lab: &mut Lab| (0..16).try_for_each(|_| lab.alloc(Lab::BLOCK));
    assert_eq!(lab.step(hole, fill)?.0, 0);
    Ok(())
}

#[test]
fn another_plan_is_made_where_other_blocks_stand_than_were_searched() -> Result<()> {
    let mut lab = Lab::new(32)?;
    let swap = |lab: &mut Lab| {
        lab.blocks.drain(..8);
        (0..20).try_for_each(|_| lab.alloc(Lab::BLOCK / 2))
    };
    assert!(lab.step(4 * Lab::BLOCK as u64, swap)?.0 > 0);
    Ok(())
}

#[test]
fn nothing_is_searched_for_a_goal_without_a_search_nor_while_a_plan_is_left() -> Result<()> {
    let lab = Lab::new(32)?;
    let registry = lab.registry()?;
    let goal = Goal::Hole(4 * Lab::BLOCK as u64);
    let (full, hole) = (Aim::Goal(&Goal::Full), Aim::Goal(&goal));
    let one_by_one = Budget::bytes(1);
    assert!(registry.propose(full, &one_by_one)?.is_none());
    let speculative = registry.propose(hole, &one_by_one)?;
    let (plan, mut moved) = ((speculative, Instant::now()), Moved::default());
    registry.make(hole, &one_by_one, plan, &mut moved)?;
    assert!(moved.bytes > 0 && !moved.finished);
    assert!(registry.propose(hole, &one_by_one)?.is_none());
    Ok(())
}

#[test]
fn a_block_held_since_the_search_stays_where_it_is() -> Result<()> {
    let lab = Lab::new(32)?;
    let (goal, budget) = (Goal::Hole(4 * Lab::BLOCK as u64), Budget::default());
    let speculative = lab.registry()?.propose(Aim::Goal(&goal), &budget)?;
    let holds: Result<Vec<_>> = lab.blocks.iter().map(|b| b.0.hold(&lab.stream)).collect();
    let holds = holds?;
    let addresses = |lab: &Lab| -> Result<Vec<u64>> {
        let hold = |(block, _): &(Movable<u8>, u8)| Ok(block.hold(&lab.stream)?.addr());
        lab.blocks.iter().map(hold).collect()
    };
    let before = addresses(&lab)?;
    let aim = Aim::Goal(&goal);
    let (plan, mut moved) = ((speculative, Instant::now()), Moved::default());
    (lab.registry()?).make(aim, &budget, plan, &mut moved)?;
    assert_eq!((moved.bytes, moved.reached), (0, false));
    assert_eq!(addresses(&lab)?, before);
    drop(holds);
    lab.check()
}

#[test]
fn steps_keep_every_byte_whatever_is_done_between_search_and_moves() -> Result<()> {
    let mut random = Rng::new(5);
    let mut moved_since_changed = 0;
    for _ in 0..6 {
        let mut lab = Lab::new(48)?;
        for _ in 0..25 {
            let hole = 256 * (1 + random.below(6 * Lab::BLOCK as u64 / 256));
            let calls = random.below(4);
            let (bytes, _) = lab.step(hole, |lab| {
                for _ in 0..calls {
                    let left = lab.blocks.len() as u64;
                    match random.chance(1, 2) && left > 0 {
                        true => drop(lab.blocks.swap_remove(random.below(left) as usize)),
                        false => lab.alloc(1 + random.below(2 * Lab::BLOCK as u64) as usize)?,
                    }
                }
                Ok(())
            })?;
            moved_since_changed += u64::from(calls > 0 && bytes > 0);
        }
    }
    assert!(moved_since_changed > 10, "{moved_since_changed}");
    Ok(())
}

#[test]
fn whoever_waits_for_the_records_of_steps_keeps_nobody_from_the_blocks() -> Result<()> {
    let lab = Lab::new(32)?;
    let other = lab.pool.device().stream()?;
    lab.pool.record_steps(true)?;
    let (release, held) = mpsc::channel::<()>();
    let work = Box::new(move || _ = held.recv());
    (lab.pool.device().backend()).host_call(lab.stream.raw(), work)?;
    for (block, _) in &lab.blocks {
        drop(block.hold(&lab.stream)?);
    }
    assert!(lab.pool.compact(&Goal::Full)?.blocks > 0);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| lab.pool.take_steps());
        std::thread::sleep(Duration::from_millis(100));
        let (tell, told) = mpsc::channel();
        let (block, other) = (&lab.blocks[0].0, &other);
        scope.spawn(move || tell.send(block.hold(other).map(drop)));
        let seen = told.recv_timeout(Duration::from_secs(10));
        let waits = !taken.is_finished();
        drop(release);
        seen.expect("the block is there")?;
        let steps = taken.join().expect("no panic")?;
        assert!(waits && !steps.is_empty());
        assert!(steps.iter().all(|step| step.device_ns >= 0.0));
        Ok(())
    })?;
    assert!(lab.pool.take_steps()?.is_empty());
    lab.check()
}

#[test]
fn a_compaction_goes_past_what_a_stream_used_as_its_capture_began() -> Result<()> {
    let lab = Lab::new(32)?;
    let (registry, shared) = (lab.registry()?, lab.pool.shared());
    let other = lab.pool.device().stream()?;
    let (lane, theirs) = (shared.open_lane(&other)?, &other.core().timeline);
    let capture = other.begin_capture()?;
    let open = Epoch::new(lane.slot, theirs.open_tick());
    let mut core = shared.lock_drained();
    let mut holes = core
        .extents
        .iter()
        .filter(|(_, it)| it.state == State::Free);
    let (id, at) = holes.nth(8).map(|(id, it)| (id, it.start)).expect("a hole");
    drop(holes);
    core.extents.set_epoch(id, open);
    drop(core);
    let used = &lab.blocks[4].0;
    let address = || Ok(used.hold(&lab.stream)?.addr());
    let before = address()?;
    let noted = |entry: &mut Entry| entry.uses.note(theirs, open.tick);
    lock(&registry.state).table.entry(used.id()).map(noted)?;
    let moved = lab.pool.compact(&Goal::Full)?;
    assert!(moved.blocks > 4 && moved.reached, "{moved:?}");
    assert_eq!(address()?, before);
    let core = shared.core.lock();
    let hole = core
        .extents
        .get(core.extents.seek(core.extents.first(), at));
    assert_eq!((hole.start, hole.bytes), (at, Lab::BLOCK as u64));
    assert_eq!((hole.state, hole.epoch), (State::Free, open));
    drop(core);
    lab.check()?;
    drop(capture);
    assert!(lab.pool.compact(&Goal::Full)?.blocks > 0);
    assert_ne!(address()?, before);
    lab.check()
}

#[test]
fn a_block_freed_under_the_capture_it_was_allocated_in_keeps_no_other_from_the_address_table()
-> Result<()> {
    let mut lab = Lab::new(32)?;
    let _table = lab.pool.address_table()?;
    let other = lab.pool.device().stream()?;
    let capture = other.begin_capture()?;
    drop(lab.pool.alloc_movable::<u8>(&other, 1000)?);
    let moved = lab.pool.compact(&Goal::Full)?;
    assert!(moved.blocks > 4 && moved.reached, "{moved:?}");
    lab.alloc(1000)?;
    lab.check()?;
    drop(capture);
    lab.check()
}

#[test]
fn a_word_that_a_stream_read_as_its_capture_began_keeps_no_other_from_the_address_table()
-> Result<()> {
    let mut lab = Lab::new(32)?;
    let _table = lab.pool.address_table()?;
    let other = lab.pool.device().stream()?;
    let theirs = &other.core().timeline;
    let capture = other.begin_capture()?;
    let (read, _) = lab.blocks.remove(4);
    let noted = |entry: &mut Entry| entry.uses.note(theirs, theirs.open_tick());
    lock(&lab.registry()?.state)
        .table
        .entry(read.id())
        .map(noted)?;
    drop(read);
    let moved = lab.pool.compact(&Goal::Full)?;
    assert!(moved.blocks > 4, "{moved:?}");
    lab.alloc(1000)?;
    lab.check()?;
    drop(capture);
    lab.check()
}

#[test]
fn nothing_moves_while_an_array_of_pointers_is_in_a_captures_memory() -> Result<()> {
    let lab = Lab::new(32)?;
    let other = lab.pool.device().stream()?;
    let capture = other.begin_capture()?;
    let list = lab.pool.alloc_movable::<u64>(&other, 1000)?;
    let array = list.register_pointers()?;
    let moved = lab.pool.compact(&Goal::Full)?;
    assert!(moved.blocks == 0 && moved.finished, "{moved:?}");
    lab.check()?;
    drop(capture);
    assert!(lab.pool.compact(&Goal::Full)?.blocks > 4);
    drop((array, list));
    lab.check()
}
