//! Bringing memory that lies apart together: mapped again, not copied.

use std::sync::Arc;

use super::execute::Owners;
use super::mover::Mover;
use super::plan::Move;
use crate::error::{Error, Result};
use crate::pool::{Run, Shared};

/// What joining came to.
#[derive(Default)]
pub(crate) struct Joined {
    /// Blocks that have another address, offsets, ascending by the old one.
    pub(crate) ways: Vec<Move>,
    /// Whether anything was done.
    pub(crate) changed: bool,
    /// What stopped it; the rest says what was done before.
    pub(crate) error: Option<Error>,
}

/// Maps every run of the pool's memory whose blocks may all move behind the one with the most room
/// behind it, and grows that by what a request of `bytes` lacks. Nothing is done if free memory and
/// growth together do not make up the request.
///
/// Nothing waits on the host.
pub(crate) fn join(
    shared: &Arc<Shared>,
    mover: &Mover,
    owners: &mut dyn Owners,
    bytes: u64,
) -> Result<Joined> {
    let lane = shared.open_lane(&mover.stream)?;
    shared.drain_all();
    let mut core = shared.core.lock();
    let mut joined = Joined::default();
    let Some(lacking) = core.lacks(bytes) else {
        return Ok(joined);
    };
    let runs = core.runs(&|at| owners.may_move(at));
    let Some(home) = runs.iter().max_by_key(|run| run.gap) else {
        return Ok(joined);
    };
    let (mut end, mut gap) = (home.end, home.gap);
    core.wait_for_holes(lane.slot)?;
    let timeline = &lane.stream.timeline;
    for run in runs.iter().filter(|&run| run != home && run.movable) {
        let length = run.end - run.start;
        if length > gap {
            continue;
        }
        let carried = uses_waited_for(&*owners, run, &core, timeline)
            .and_then(|()| core.carry(run, end, lane.slot, timeline.open_tick()));
        let carried = match carried {
            Ok(carried) => carried,
            Err(error) => {
                joined.error = Some(error);
                return Ok(joined);
            }
        };
        let ways: Vec<Move> = carried
            .iter()
            .map(|block| Move {
                src: block.from,
                dst: block.to,
                bytes: block.bytes,
            })
            .collect();
        #[cfg(feature = "sanitize")]
        super::notes::Notes::before(&mover.stream, &ways, shared.base).after(&mover.stream, true);
        let ids: Vec<u32> = carried.iter().map(|block| block.id).collect();
        owners.moved(&ways, &ids, timeline.open_tick());
        joined.ways.extend(ways);
        joined.changed = true;
        (end, gap) = (end + length, gap - length);
    }
    if lacking > 0 && lacking <= gap {
        joined.error = core.extend(end, lacking).err();
        joined.changed |= joined.error.is_none();
    }
    joined.ways.sort_unstable_by_key(|way| way.src);
    Ok(joined)
}

/// Makes the moving stream wait for the uses of the blocks of `run`.
fn uses_waited_for(
    owners: &dyn Owners,
    run: &Run,
    core: &crate::pool::Core,
    timeline: &crate::device::Timeline,
) -> Result<()> {
    let inside = |&(at, _, taken): &(u64, u64, bool)| taken && (run.start..run.end).contains(&at);
    for (at, _, _) in core.mapped_extents().filter(inside) {
        owners.uses(at, &mut |theirs, tick| {
            timeline.wait_for(theirs, tick).map(|_| ())
        })?;
    }
    Ok(())
}
