//! The steps of the ladder, in its order.

use super::{Climb, Then, Turn};
use crate::error::Result;
use crate::heap::Grant;
use crate::heap::size_class::is_slot;
use crate::pool::core::Core;
use crate::pool::job::Job;
use crate::pool::mapping::Plan;
use crate::pool::tuning::CACHES_LOOKED_AT_AGAIN;

fn next_or(grant: Option<Grant>) -> Result<Turn> {
    Ok(grant.map_or(Turn::Then(Then::Next), Turn::Served))
}

fn work_or_next(job: Option<impl Into<Job>>, then: Then) -> Result<Turn> {
    Ok(job.map_or(Turn::Then(Then::Next), |job| {
        Turn::Work(Box::new(job.into()), then)
    }))
}

/// Nothing that this step could do.
const NEXT: Result<Turn> = Ok(Turn::Then(Then::Next));

/// A hole or slot that is ready, the stream's own or another's; for a small request a handle
/// mapped at the high end.
pub(super) fn ready(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (lane, stream, may_map) = (climb.lane, climb.stream(), !climb.terms.refused);
    let grant = lane.take_ready(climb.bytes, may_map, core);
    if grant.is_some() || !may_map {
        return next_or(grant);
    }
    work_or_next(core.begin_high(stream, climb.size), Then::Again)
}

/// The caches of the stream's other lanes.
pub(super) fn siblings(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    next_or((climb.lane).take_over(&climb.siblings, climb.bytes, core)?)
}

/// The driver is asked how far the streams are.
pub(super) fn how_far(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    work_or_next(core.ask_how_far(climb.stream()), Then::Look)
}

/// What is ready since something changed: a batch, or what [`ready`] finds.
pub(super) fn ready_by_now(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    match climb.lane.take_over(&[], climb.bytes, core)? {
        Some(grant) => Ok(Turn::Served(grant)),
        None => ready(climb, core),
    }
}

/// New memory beside what is ready, while the pool is small.
pub(super) fn overlap(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let job = core.begin_overlapping(climb.stream(), climb.size);
    work_or_next(job, Then::Next)
}

/// A batch or another stream's cache, behind a wait; else all caches are emptied into the heap.
pub(super) fn caches(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let Some(lanes) = &climb.lanes else {
        return Ok(Turn::List);
    };
    if core.config.reuse.device_wait
        && let Some(grant) = climb.lane.take_over(lanes, climb.bytes, core)?
    {
        return Ok(Turn::Served(grant));
    }
    climb.drain(core);
    Ok(Turn::Then(Then::Look))
}

/// For a large request: what neighbouring holes of all streams make together, behind a wait for them.
pub(super) fn merged(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !core.is_merged_for(climb.size) {
        return NEXT;
    }
    let lacking = core.unify(climb.stream());
    if let Some(turn) = climb.wait_first(core, lacking) {
        return Ok(turn);
    }
    let grant = core.take_merged(climb.stream(), climb.size);
    next_or(climb.cut(core, grant))
}

/// A slot, or the smallest hole or run of holes, of any streams, behind a wait for them.
pub(super) fn waiting(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    match core.config.reuse.device_wait {
        true => take_waiting(climb, core),
        false => NEXT,
    }
}

fn take_waiting(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let stream = climb.stream();
    if is_slot(climb.bytes)
        && let Some(found) = core.look_for_slot(stream, climb.bytes, true)
    {
        if let Some(turn) = climb.wait_first(core, vec![found.2]) {
            return Ok(turn);
        }
        core.wait_for(stream, found.2)?;
        let grant = core.take_slot(stream, climb.bytes, found, true);
        return Ok(Turn::Served(grant));
    }
    let found = core.find_holes(stream, climb.size, true);
    let lacking = found.map_or(Vec::new(), |it| core.epochs_of(&it));
    if let Some(turn) = climb.wait_first(core, lacking) {
        return Ok(turn);
    }
    let grant = core.take_holes(stream, climb.size, true)?;
    next_or(climb.cut(core, grant))
}

/// New handles, up to the slack over the peak.
pub(super) fn grow(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let job = core.begin_growth(climb.stream(), climb.size, climb.terms);
    work_or_next(job, Then::Next)
}

/// Who moves live memory, where that may be cheaper than to map handles elsewhere.
pub(super) fn moves_first(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if !std::mem::take(&mut climb.may_move) {
        return NEXT;
    }
    match core.would_steal(climb.stream(), climb.bytes, climb.terms) {
        0 => NEXT,
        handles => Ok(Turn::Moves(handles)),
    }
}

/// The driver is asked which old mappings may go.
pub(super) fn ask_of_old(_: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    work_or_next(core.ask_of_old(), Then::Next)
}

/// Old mappings whose work is done are taken down.
pub(super) fn reap(_: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    work_or_next(core.begin_reaping(), Then::Next)
}

/// Idle handles mapped elsewhere, and new ones.
pub(super) fn map(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (stream, size, terms) = (climb.stream(), climb.size, climb.terms);
    let plan = core.plan(stream, size, terms);
    if plan.is_none() || !terms.pending {
        // Holes that suffice by themselves are in no placement.
        let grant = core.take_holes(stream, size, terms.pending)?;
        if let Some(grant) = climb.cut(core, grant) {
            return Ok(Turn::Served(grant));
        }
    }
    // Cheaper than a handle: holes that only their histories keep apart.
    let first_unify = terms.pending && !climb.unified && core.may_unify(size);
    let good = |plan: &Plan| plan.lacking == 0 && (!first_unify || plan.is_idle());
    let Some(plan) = plan.filter(good) else {
        return NEXT;
    };
    // Where the device has no memory there may be idle handles.
    let then = if terms.refused {
        Then::Next
    } else {
        Then::Again
    };
    work_or_next(core.begin_mapping(stream, plan.placement, &plan.idle), then)
}

/// Where device waits are switched off, pending memory is taken only instead of failing.
pub(super) fn pending_too(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if climb.terms.pending {
        return NEXT;
    }
    let turn = take_waiting(climb, core)?;
    if !matches!(turn, Turn::Then(_)) {
        return Ok(turn);
    }
    climb.terms.pending = true;
    Ok(Turn::Then(Then::Look))
}

/// Neighbouring holes of all streams are one, and slabs that several use are holes, behind a wait for all.
pub(super) fn unify(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let mut lacking = core.release_mixed(climb.stream());
    if core.may_unify(climb.size) {
        lacking.append(&mut core.unify(climb.stream()));
    }
    if let Some(turn) = climb.wait_first(core, lacking) {
        return Ok(turn);
    }
    climb.unified = true;
    match ready(climb, core)? {
        Turn::Then(_) => Ok(Turn::Then(Then::Look)),
        turn => Ok(turn),
    }
}

/// Placements that fill a gap may end inside a handle, which then cannot be mapped there; without them
/// idle memory that suffices in all suffices.
pub(super) fn whole_gaps(climb: &mut Climb<'_>, _: &mut Core) -> Result<Turn> {
    climb.terms.fill_gaps = false;
    Ok(Turn::Then(Then::Look))
}

/// All old mappings are taken down, which waits on the host, where they keep memory given up, or
/// addresses.
pub(super) fn left_over(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let (stream, size, terms) = (climb.stream(), climb.size, climb.terms);
    let no_place = || !core.retiring.is_empty() && core.plan(stream, size, terms).is_none();
    if core.arena.left_over() == 0 && !no_place() {
        return NEXT;
    }
    climb.terms.refused = false;
    work_or_next(core.begin_reaping_all(), Then::Look)
}

/// Idle handles too large for what is left are given up for new ones that fit, which waits on the host;
/// where the device refused memory before, it has as much again then.
pub(super) fn make_room(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    let terms = climb.terms;
    let plan = core.plan(climb.stream(), climb.size, terms);
    let job = plan.filter(|plan| plan.lacking > 0).and_then(|plan| {
        let bytes = plan.placement.to_map - core.room_for(terms);
        core.begin_making_room(&plan.placement, bytes)
    });
    climb.terms.refused &= job.is_none();
    work_or_next(job, Then::Look)
}

/// The lock was let go on the way: what others freed meanwhile may be in caches, and what they hold and do
/// not need in the end is free once they are done.
pub(super) fn others(climb: &mut Climb<'_>, core: &mut Core) -> Result<Turn> {
    if climb.caches_looked_at < CACHES_LOOKED_AT_AGAIN && climb.drain(core) {
        climb.caches_looked_at += 1;
        return Ok(Turn::Then(Then::Restart));
    }
    match core.under_way.jobs {
        0 => NEXT,
        _ => Ok(Turn::Wait),
    }
}

/// The registered steps, which may free or move memory.
pub(super) fn relief(climb: &mut Climb<'_>, _: &mut Core) -> Result<Turn> {
    match climb.helped {
        true => Ok(Turn::Relief),
        false => NEXT,
    }
}
