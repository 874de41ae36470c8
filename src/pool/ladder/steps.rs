//! The steps of the ladder, in its order.

use super::{Climb, Turn, wait};
use crate::device::is_running;
use crate::heap::size_class::is_slot;
use crate::pool::core::Core;
use crate::pool::job::{Job, Part};
use crate::pool::mapping::total;
use crate::pool::stats::Told;
use crate::pool::tuning::LOOKS_AGAIN;

/// Takes what is ready: a hole or slot of any stream, a batch, or a block in another lane of the stream.
pub(super) fn ready(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let (lane, bytes) = (climb.lane, climb.bytes);
    lane.shared.give_used(core);
    let grant = lane.take_ready(bytes, core);
    let grant = grant.or_else(|| lane.take_over(bytes, false, false, core));
    grant.map(Turn::Served)
}

/// As [`ready`]; in a pool that is to spare its idle handles, as `sparing` has it.
pub(super) fn first(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let (slot, bytes) = (climb.lane.slot, climb.bytes);
    if !is_slot(bytes) && core.spares(slot, bytes) {
        climb.lane.drain_large(core);
        if let Some(end) = core.sparing_end(slot, bytes) {
            let job = (!is_running()).then(|| core.begin_sparing(slot, bytes, climb.terms, end));
            let served = |core: &mut Core| Turn::Served(core.take_end(slot, bytes, end));
            return Some(
                job.flatten()
                    .map_or_else(|| served(core), |job| Turn::Work(job, false)),
            );
        }
    }
    ready(climb, core)
}

pub(super) fn how_far(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let mut questions = core.ask_how_far(climb.lane.slot, climb.bytes);
    let transfer = &climb.lane.shared.transfer;
    questions.append(&mut transfer.how_far_is_used(climb.bytes, climb.size));
    Some(Turn::Work(Job::asking(questions)?, false))
}

/// Grows the pool before a stream waits. A graph's gate waits at once: that delays only the graph's launches, and new
/// memory would be the graph's to its end.
pub(super) fn overlap(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    if core.is_refused(climb.terms) || climb.lane.stream.gate {
        return None;
    }
    let lane = climb.lane;
    let beside = (lane.is_crowded(), lane.shared.transfer.has_used());
    let job = core.begin_overlapping(climb.lane.slot, climb.size, beside)?;
    Some(Turn::Work(job, false))
}

/// Makes the stream of a used block that fits wait for its uses, if the request accepts such memory; if none fits, all
/// streams for all uses.
pub(super) fn used(climb: &mut Climb<'_>, _: &mut Core) -> Option<Turn> {
    let transfer = (climb.terms.pending).then_some(&climb.lane.shared.transfer)?;
    let waits = transfer.waits_for_used(climb.bytes, climb.size);
    Some(Turn::Work(Job::asking(waits)?, false))
}

/// Takes a batch, or blocks of another stream's cache, behind a wait. Otherwise empties all caches into the heap.
pub(super) fn caches(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let (lane, bytes) = (climb.lane, climb.bytes);
    if core.config.reuse.device_wait {
        if let Some(grant) = lane.take_over(bytes, true, climb.has_waited(), core) {
            return Some(Turn::Served(grant));
        }
        if let turn @ Some(_) = wait(lane.wait_for_batch(bytes), &mut climb.waits_left) {
            return turn;
        }
    }
    climb.drain(core);
    lane.shared.note_peak(core, true);
    None
}

/// For a large request: merges neighbouring holes of all streams, behind a wait for them, and takes one.
pub(super) fn merged(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    // A look at all holes is worth its cost only if enough have changed.
    let pays = climb.has_waited() || core.has_changed();
    if !(pays && core.is_merged_for(climb.size)) {
        return None;
    }
    let waits = core.unify(climb.lane.slot);
    if let turn @ Some(_) = wait(waits, &mut climb.waits_left) {
        return turn;
    }
    let id = core.ready(climb.lane.slot, climb.size)?;
    core.count(Told::StreamWait(climb.size));
    let block = core.extents.take(id, climb.size, climb.lane.slot);
    Some(Turn::Served(climb.cut(core, block)))
}

/// Takes a slot or the smallest hole of any stream, behind a wait for it, if the request accepts such memory. If the
/// driver refuses the wait, the memory is as it was.
pub(super) fn waiting(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    if !climb.terms.pending {
        return None;
    }
    let stream = climb.lane.slot;
    let slot = is_slot(climb.bytes).then(|| core.look_for_slot(stream, climb.bytes, true));
    let (grant, epoch) = if let Some((id, slot, history)) = slot.flatten() {
        climb.size = climb.bytes;
        (core.slabs.take(id, slot, stream), history)
    } else {
        let id = core.smallest_hole(climb.size)?;
        let epoch = core.extents.get(id).epoch;
        (core.extents.take(id, climb.size, stream), epoch)
    };
    let waits = core.waits_for(stream, [epoch]);
    let taken = vec![Part::Taken(grant, climb.size, epoch)];
    Some(Turn::Work(core.begin(waits, &[epoch], taken), false))
}

/// Maps new handles up to the slack over the peak, else idle ones; before idle ones, live memory may be moved.
pub(super) fn map(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let Some(plan) = core.plan(climb.lane.slot, climb.size, climb.terms) else {
        // No plan is made for a hole that suffices, which another thread may have freed meanwhile.
        return waiting(climb, core);
    };
    if plan.steals > 0 && std::mem::take(&mut climb.may_move) {
        return Some(Turn::Help(Some(plan.steals)));
    }
    // If the device has no memory, there may still be idle handles.
    let refused = core.is_refused(climb.terms);
    let has_all = plan.lacking == 0;
    let job = has_all.then(|| core.begin_mapping(climb.lane.slot, plan.placement, &plan.idle));
    Some(Turn::Work(job??, !refused))
}

/// Merges neighbouring holes of all streams, and frees slabs that several streams use, behind a wait for all.
pub(super) fn unify(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let waits = core.unify(climb.lane.slot);
    wait(waits, &mut climb.merges_left).or_else(|| ready(climb, core))
}

/// Unmaps stale mappings that hold released memory or addresses; the host waits for that.
pub(super) fn left_over(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let (stream, size, terms) = (climb.lane.slot, climb.size, climb.terms);
    let no_place = || !core.retiring.is_empty() && core.plan(stream, size, terms).is_none();
    if core.arena.left_over() == 0 && !no_place() {
        return None;
    }
    Some(Turn::Work(core.begin_trim(u64::MAX, true)?, false))
}

/// Releases idle handles that are too large, for new ones that fit; the host waits. If the handles outside the
/// cheapest placement do not suffice, releases all, provided that they and new ones suffice for the request.
pub(super) fn make_room(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    let plan = core.plan(climb.lane.slot, climb.size, climb.terms);
    let plan = plan.filter(|plan| plan.lacking != 0)?;
    let bytes = plan.lacking + total(&plan.idle);
    let beside = core.begin_giving_up(Some(&plan.placement), bytes, true);
    let job = beside.or_else(|| {
        let refused = core.is_refused(climb.terms);
        let room = if refused { 0 } else { core.room() };
        let all = total(&core.idle(|_| true)).saturating_add(room);
        let suffice = all >= climb.size.next_multiple_of(core.arena.granule());
        suffice.then(|| core.begin_trim(0, true))?
    });
    Some(Turn::Work(job?, false))
}

/// Looks for memory that other threads freed into caches, waits for their jobs, then calls the registered steps.
pub(super) fn others(climb: &mut Climb<'_>, core: &mut Core) -> Option<Turn> {
    if climb.drain(core) && climb.caches_looked_at < LOOKS_AGAIN {
        climb.caches_looked_at += 1;
        return Some(Turn::Restart);
    }
    if core.under_way.jobs > 0 && climb.turns > 0 {
        climb.turns -= 1;
        return Some(Turn::Wait);
    }
    (climb.helped.filter(|_| climb.looks < LOOKS_AGAIN)).map(|_| Turn::Help(None))
}
