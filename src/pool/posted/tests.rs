//! When figures are posted, and when a walk is due.

use super::*;
use crate::device::Device;
use crate::heap::FRESH;
use crate::pool::{Pool, PoolConfig};

/// Of a pool with so many blocks: after how many changes a walk is due if nothing else is, after
/// a step that made room, and after one that goes over everything itself, in parts of what there
/// is to walk over; `None` for not within twice what pays for it.
fn due_after(blocks: usize) -> [Option<f64>; 3] {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let stream = device.stream().expect("a stream");
    let one = |_| pool.alloc(&stream, 4096).expect("memory");
    let held: Vec<_> = (0..blocks).map(one).collect();
    let mut core = pool.shared().core.lock();
    let extents = core.extents.records();
    let (steps, rare) = core.walked_steps();
    let since = [(steps, rare), (steps + 1, rare), (steps, rare + 1)];
    let due = since.map(|before| {
        core.walk(before.0, before.1);
        let mut looked = 0;
        let changes = (1..=2 * PAYS * extents).find(|&changes| {
            core.walked.changes = changes;
            let due = core.walk_if_due();
            looked = if due { looked } else { core.walked.look_at };
            due
        });
        if looked > 0 {
            assert_eq!(looked, changes.unwrap_or(u64::MAX), "looked at in time");
        }
        changes.map(|changes| changes as f64 / extents as f64)
    });
    drop(core);
    drop(held);
    due
}

#[test]
fn every_step_that_may_change_a_figure_counts_once() {
    let device = Device::host().expect("the host device");
    let mut core = Core::new(&device, PoolConfig::default()).expect("a core");
    let granule = core.arena.granule();
    core.create_frames(0, 2 * granule).expect("memory");
    let first = core.arena.frame_at(0).expect("a frame").0;
    core.arena.remap(first, 8 * granule).expect("a place");
    core.arena.unmap_stale(0).expect("nothing uses it");
    core.arena.release(first).expect("nothing uses it");
    let calls = core.arena.calls();
    assert!(calls.created > 0 && calls.mapped > 0 && calls.unmapped > 0 && calls.released > 0);
    let rare: [fn(&mut Core) -> &mut u64; 2] =
        [|it| &mut it.steps.out_of_memory, |it| &mut it.compactions];
    let made: [fn(&mut Core) -> &mut u64; 3] = [
        |it| &mut it.steps.drain,
        |it| &mut it.steps.steal,
        |it| &mut it.steps.grow,
    ];
    let waited: [fn(&mut Core) -> &mut u64; 3] = [
        |it| &mut it.steps.stream_wait,
        |it| &mut it.steps.waits,
        |it| &mut it.steps.relieved,
    ];
    let mut known = [0; 3];
    for round in 0..3 {
        for (kind, counts) in [made.as_slice(), &rare, &waited].into_iter().enumerate() {
            for (at, count) in counts.iter().enumerate() {
                let more = 1 + 2 * at as u64 + round;
                *count(&mut core) += more;
                known[kind] += more;
            }
        }
        let (steps, rare) = core.walked_steps();
        let grown = calls.created;
        assert_eq!(steps, known[0] + grown + calls.unmapped);
        assert_eq!(rare, known[1] + calls.released);
        let all = steps + rare + known[2] + calls.created + calls.mapped;
        assert_eq!(core.slow_steps(), all);
    }
}

/// Changes one thing that is posted; `draw` says which, and by how much.
fn change(core: &mut Core, draw: u64) {
    let (amount, steps) = (256 * (1 + draw % 5), draw % 3);
    match draw / 16 % 9 {
        0 => core.active.add(amount),
        1 => core.active.add(4096 * amount),
        2 => core.active.sub(core.active.classes[0].current.min(amount)),
        3 => core.active.sub(core.active.classes[1].current),
        4 => core.steps.own_stream += steps,
        5 => core.steps.waits += steps,
        6 => core.steps.steal += steps,
        7 => core.steps.out_of_memory += steps,
        _ => core.reset_peaks(),
    }
}

#[test]
fn what_is_posted_is_what_the_core_knows_after_any_change() {
    for due in [true, false] {
        posted_after_changes(due);
    }
}

/// The same where a walk is due after every change, or after none.
fn posted_after_changes(due: bool) {
    let device = Device::host().expect("the host device");
    let mut core = Core::new(&device, PoolConfig::default()).expect("a core");
    core.extend(0, 64 * core.arena.granule()).expect("memory");
    // So much that the small blocks are never more than there is.
    core.active.add(1 << 20);
    let lock = CoreLock::new(core);
    let mut random = crate::device::sim::Rng::new(5);
    let mut most = [0; 2];
    for _ in 0..3000 {
        let mut core = lock.lock();
        let draw = random.below(1 << 20);
        change(&mut core, draw);
        if !due {
            core.walked.look_at = u64::MAX;
        }
        let (active, steps, held) = (core.active, core.steps, core.held());
        let peaks_anew = draw / 16 % 9 > 7;
        drop(core);
        let posted = lock.figures();
        let gauges = |active: &Active| format!("{active:?}");
        assert_eq!(gauges(&posted.active), gauges(&active));
        assert_eq!(posted.steps, steps);
        let reserved = posted.reserved.map(|gauge| (gauge.current, gauge.peak));
        let now = [held.0, held.1];
        for class in [0, 1] {
            most[class] = if peaks_anew { 0 } else { most[class] }.max(now[class]);
            assert!(reserved[class].0 == now[class] && reserved[class].1 >= most[class]);
        }
    }
}

#[test]
fn the_more_there_is_to_walk_over_the_rarer_it_is_done() {
    let at_once = |due: Option<f64>| due.is_some_and(|due| due < 0.3);
    assert!(due_after(4).into_iter().all(at_once));
    let [unasked, stepped, rare] = due_after(100);
    assert_eq!(unasked, Some(PAYS as f64));
    assert!(at_once(stepped) && at_once(rare));
    let [unasked, stepped, rare] = due_after(MANY as usize + 100);
    assert!(unasked.is_none() && stepped.is_some_and(|due| (due - 0.5).abs() < 0.01));
    assert!(at_once(rare));
}

#[test]
fn of_few_extents_all_figures_are_those_of_now_after_every_change() {
    let device = Device::host().expect("the host device");
    let mut core = Core::new(&device, PoolConfig::default()).expect("a core");
    core.extend(0, 4 * core.arena.granule()).expect("memory");
    let lock = CoreLock::new(core);
    let mut random = crate::device::sim::Rng::new(6);
    let mut blocks = Vec::new();
    for _ in 0..500 {
        let mut core = lock.lock();
        let extents = &mut core.extents;
        let holes: Vec<_> = extents.each_hole().map(|(id, it)| (id, it.bytes)).collect();
        if random.below(2) == 0 && extents.records() < FEW && !holes.is_empty() {
            let (hole, room) = holes[random.below(holes.len() as u64) as usize];
            let bytes = 256 * (1 + random.below(room / 256));
            extents.take(hole, bytes, FRESH);
            blocks.push(hole);
            core.active.add(bytes);
        } else if !blocks.is_empty() {
            let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            let bytes = extents.get(block).bytes;
            extents.give(block, FRESH, 0, |_| true);
            core.active.sub(bytes);
        }
        let (inactive, after) = (core.inactive_split(), core.after_compaction());
        drop(core);
        let posted = lock.figures();
        assert_eq!(posted.after_compaction, after);
        assert_eq!(posted.inactive_split.map(|gauge| gauge.current), inactive);
    }
}

#[test]
fn a_walk_is_looked_at_with_the_change_that_it_is_due_at() {
    let device = Device::host().expect("the host device");
    let lock = CoreLock::new(Core::new(&device, PoolConfig::default()).expect("a core"));
    lock.lock().walked.look_at = 5;
    for changes in 1..5 {
        assert_eq!(lock.lock().walked.changes, changes);
    }
    // Of so few extents it is made at once.
    assert_eq!(lock.lock().walked.changes, 0);
}
