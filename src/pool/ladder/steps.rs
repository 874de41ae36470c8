//! The steps of the ladder, in its order.

use super::{Climb, Turn};
use crate::error::Result;
use crate::heap::Grant;
use crate::heap::size_class::is_slot;
use crate::pool::core::Core;
use crate::pool::job::Job;

use crate::pool::stats::Told;
use crate::pool::tuning::CACHES_LOOKED_AT_AGAIN;

fn next_or(grant: Option<Grant>) -> Turn {
    grant.map_or(Turn::Next, Turn::Served)
}

fn work_or_next(job: Option<impl Into<Job>>) -> Turn {
    job.map_or(Turn::Next, |job| Turn::Work(job.into()))
}

/// A hole or slot that is ready, the stream's own or another's; for a small request a handle
/// mapped at the high end.
pub(super) fn ready(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (lane, stream) = (climb.lane, climb.stream());
    if let Some(grant) = lane.take_ready(climb.bytes, climb.maps_high, core) {
        return Ok(Turn::Served(grant));
    }
    if std::mem::take(&mut climb.maps_high) {
        let job = core.begin_high(stream, climb.size);
        climb.maps_high = job.is_none();
        return Ok(job.map_or(Turn::Next, |job| Turn::WorkAgain(job.into())));
    }
    Ok(Turn::Next)
}

/// The caches of the stream's other lanes.
pub(super) fn siblings(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let found = (climb.lane).take_over(&climb.siblings, climb.bytes, core)?;
    Ok(next_or(found))
}

/// The driver is asked how far the streams are.
pub(super) fn how_far(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(work_or_next(core.ask_how_far(climb.stream())))
}

/// A batch that is ready, as the streams are further than they were.
pub(super) fn ready_batch(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(next_or(climb.lane.take_over(&[], climb.bytes, core)?))
}

/// New memory beside what is ready, while the pool is small.
pub(super) fn overlap(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(work_or_next(
        core.begin_overlapping(climb.stream(), climb.size),
    ))
}

pub(super) fn list_caches(_: &mut Climb<'_>, _: &mut Core) -> Result<Turn> {
    Ok(Turn::List)
}

/// A batch or another stream's cache, behind a wait.
pub(super) fn other_caches(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !core.config.reuse.device_wait {
        return Ok(Turn::Next);
    }
    let found = (climb.lane).take_over(&climb.lanes, climb.bytes, core)?;
    Ok(next_or(found))
}

/// All caches are emptied into the heap.
pub(super) fn drain(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if climb.lane.shared.drain(&climb.lanes, core) {
        core.count(Told::Drain(climb.bytes));
    }
    Ok(Turn::Next)
}

/// For a large request: what neighbouring holes of all streams make together, behind a wait for them.
pub(super) fn merged(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !core.is_merged_for(climb.size) {
        return Ok(Turn::Next);
    }
    let lacking = core.unify(climb.stream());
    if let Some(turn) = climb.wait_first(core, lacking) {
        return Ok(turn);
    }
    let grant = core.take_merged(climb.stream(), climb.size);
    Ok(climb.served(core, grant).unwrap_or(Turn::Next))
}

/// A slot, or the smallest hole or run of holes, of any streams, behind a wait for them.
pub(super) fn waiting(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    match core.config.reuse.device_wait {
        true => take_waiting(climb, core),
        false => Ok(Turn::Next),
    }
}

fn take_waiting(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let stream = climb.stream();
    if is_slot(climb.bytes)
        && let Some(epoch) = core.slot_waited_for(stream, climb.bytes)
    {
        if let Some(turn) = climb.wait_first(core, vec![epoch]) {
            return Ok(turn);
        }
        return Ok(next_or(core.take_slot_waiting(stream, climb.bytes)?));
    }
    let found = core.find_holes(stream, climb.size, true);
    let lacking = found.map_or(Vec::new(), |it| core.epochs_of(&it));
    if let Some(turn) = climb.wait_first(core, lacking) {
        return Ok(turn);
    }
    let grant = core.take_holes(stream, climb.size, true)?;
    Ok(climb.served(core, grant).unwrap_or(Turn::Next))
}

/// Slabs without a slot out that several streams still use, behind a wait for them.
pub(super) fn mixed_slabs(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    match core.config.reuse.device_wait {
        true => all_mixed_slabs(climb, core),
        false => Ok(Turn::Next),
    }
}

pub(super) fn all_mixed_slabs(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !core.has_mixed() {
        return Ok(Turn::Next);
    }
    let lacking = core.release_mixed(climb.stream());
    climb.changed = true;
    match climb.wait_first(core, lacking) {
        Some(turn) => Ok(turn),
        None => ready(climb, core),
    }
}

/// New handles, up to the slack over the peak.
pub(super) fn grow(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(work_or_next(core.begin_growth(
        climb.stream(),
        climb.size,
        climb.terms,
    )))
}

/// Who moves live memory, where that may be cheaper than to map handles elsewhere.
pub(super) fn moves_first(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !std::mem::take(&mut climb.may_move) {
        return Ok(Turn::Next);
    }
    Ok(
        match core.would_steal(climb.stream(), climb.bytes, climb.terms) {
            0 => Turn::Next,
            handles => Turn::Moves(handles),
        },
    )
}

/// The driver is asked which old mappings may go.
pub(super) fn ask_of_old(_: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(work_or_next(core.ask_of_old()))
}

/// Old mappings whose work is done are taken down.
pub(super) fn reap(_: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(work_or_next(core.begin_reaping()))
}

/// Idle handles mapped elsewhere, and new ones.
pub(super) fn map(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !std::mem::take(&mut climb.changed) {
        return Ok(Turn::Next);
    }
    let (stream, size, terms) = (climb.stream(), climb.size, climb.terms);
    let plan = core.plan(stream, size, terms);
    if plan.is_none() || !terms.pending {
        // Holes that suffice by themselves are in no placement.
        let grant = core.take_holes(stream, size, terms.pending)?;
        if let Some(turn) = climb.served(core, grant) {
            return Ok(turn);
        }
    }
    let Some(plan) = plan else {
        climb.no_place = true;
        return Ok(Turn::Next);
    };
    // Cheaper than a handle: holes that only their histories keep apart.
    let first_unify = terms.pending && !climb.unified && core.may_unify(size);
    if plan.lacking > 0 || (first_unify && !plan.is_idle()) {
        return Ok(Turn::Next);
    }
    // Where the device has no memory there may be idle handles.
    climb.changed = !terms.refused;
    let job = core.begin_mapping(stream, plan.placement, &plan.idle);
    Ok(job.map_or(Turn::Next, |job| Turn::WorkAgain(job.into())))
}

/// Neighbouring holes of all streams are one, behind a wait for all.
pub(super) fn unify(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !climb.terms.pending || climb.unified {
        return Ok(Turn::Next);
    }
    if core.may_unify(climb.size) {
        let lacking = core.unify(climb.stream());
        if let Some(turn) = climb.wait_first(core, lacking) {
            return Ok(turn);
        }
    }
    (climb.unified, climb.changed) = (true, true);
    ready(climb, core)
}

/// Where device waits are switched off, pending memory is taken only instead of failing.
pub(super) fn pending_too(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if climb.terms.pending {
        return Ok(Turn::Next);
    }
    let turn = take_waiting(climb, core)?;
    let waits = matches!(turn, Turn::WorkAgain(_));
    climb.terms.pending = !waits;
    climb.changed |= !waits;
    Ok(turn)
}

/// Placements that fill a gap may end inside a handle, which then cannot be mapped there; without them
/// idle memory that suffices in all suffices.
pub(super) fn whole_gaps(climb: &mut Climb<'_>, _: &mut Core) -> Result<Turn> {
    climb.changed |= std::mem::take(&mut climb.terms.fill_gaps);
    Ok(Turn::Next)
}

/// All old mappings are taken down, which waits on the host, where they keep memory given up, or
/// addresses.
pub(super) fn left_over(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let short_of_addresses = climb.no_place && !core.retiring.is_empty();
    if core.arena.left_over() == 0 && !short_of_addresses {
        return Ok(Turn::Next);
    }
    climb.terms.refused = false;
    Ok(work_or_next(core.begin_reaping_all()))
}

/// Idle handles too large for what is left are given up for new ones that fit, which waits on the host;
/// where the device refused memory before, it has as much again then.
pub(super) fn make_room(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (stream, terms) = (climb.stream(), climb.terms);
    let plan = core.plan(stream, climb.size, terms);
    let Some(plan) = plan.filter(|plan| plan.lacking > 0 && !climb.made_room) else {
        return Ok(Turn::Next);
    };
    let bytes = plan.placement.to_map - core.room_for(terms);
    let job = core.begin_making_room(&plan.placement, bytes);
    if job.is_some() {
        climb.made_room = terms.refused;
        climb.terms.refused = false;
    }
    Ok(work_or_next(job))
}

/// The lock was let go on the way: what others freed meanwhile may be in caches.
pub(super) fn caches_again(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let again = climb.caches_looked_at < CACHES_LOOKED_AT_AGAIN;
    if !again || !climb.lane.shared.drain(&climb.lanes, core) {
        return Ok(Turn::Next);
    }
    climb.caches_looked_at += 1;
    core.count(Told::Drain(climb.bytes));
    Ok(Turn::Restart)
}

/// What others hold, and do not need in the end, is free once they are done.
pub(super) fn others_under_way(_: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    Ok(match core.under_way.jobs {
        0 => Turn::Next,
        _ => Turn::Wait,
    })
}

/// For a slot a smaller slab will do than the one it is best in. Looked for last: one that lies where
/// memory is short holds a handle that is free otherwise.
pub(super) fn smaller_slab(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (_, least) = core.slab_bytes(climb.bytes);
    if !is_slot(climb.bytes) || climb.size <= least {
        return Ok(Turn::Next);
    }
    (climb.size, climb.is_short) = (least, true);
    Ok(Turn::Restart)
}

/// The registered steps, which may free or move memory.
pub(super) fn relief(_: &mut Climb<'_>, _: &mut Core) -> Result<Turn> {
    Ok(Turn::Relief)
}
