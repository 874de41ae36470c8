//! Joining memory from separate address ranges by remapping its handles, without copying.

use std::cmp::Reverse;
use std::sync::Arc;

use super::mover::Mover;
use super::plan::Move;
use super::task::Owners;
use crate::error::{Error, Result};
use crate::pool::{Epoch, Run, Shared};

/// The result of joining.
#[derive(Default)]
pub(crate) struct Joined {
    /// The blocks whose address changed, as offsets, ascending by the old one.
    pub(crate) ways: Vec<Move>,
    /// Whether anything was done.
    pub(crate) changed: bool,
    /// The error that ended it; the other fields say what was done before.
    pub(crate) error: Option<Error>,
}

/// Limit on the runs inspected for the cheapest choice, which is made under the pool's lock. Some thousand runs
/// are inspected completely.
const LOOKS: usize = 1 << 20;

/// Free bytes that a run itself brings where it stays.
fn own(home: &Run) -> u64 {
    if home.movable { home.free } else { 0 }
}

/// A run that stays, and the runs to be remapped directly after it.
struct Gathering<'r> {
    home: &'r Run,
    carried: Vec<&'r Run>,
}

impl<'r> Gathering<'r> {
    /// The choice that brings `bytes` of free memory together for the fewest remapped bytes, and
    /// leaves `lacking` bytes of unmapped space after them. The cost counts remapped bytes because
    /// mapping is paid per handle. Runs with the largest free fraction are remapped first.
    fn least(runs: &'r [Run], bytes: u64, lacking: u64) -> Option<Self> {
        let part = |run: &Run| run.free as f64 / run.bytes().max(1) as f64;
        let mut order: Vec<&Run> = runs.iter().filter(|r| r.movable && r.free != 0).collect();
        order.sort_by(|a, b| part(b).total_cmp(&part(a)).then(a.start.cmp(&b.start)));
        let mut homes: Vec<&Run> = runs.iter().filter(|run| run.gap > lacking).collect();
        // Homes with the most free bytes come first, since the limit may leave the others
        // uninspected.
        homes.sort_by_key(|home| Reverse(own(home)));
        let all: u64 = order.iter().map(|run| run.free).sum();
        let mut looks = if all < bytes { 0 } else { LOOKS };
        let homes = homes.into_iter();
        let made = homes.map_while(|home| Self::behind(home, &order, bytes, lacking, &mut looks));
        made.flatten().min_by_key(Self::price)
    }

    /// Bytes to remap.
    fn price(&self) -> u64 {
        self.carried.iter().map(|run| run.bytes()).sum()
    }

    /// The cheapest choice in which `home` stays; the inner `None` if there is none, the outer if
    /// `looks` ran out.
    fn behind(
        home: &'r Run,
        order: &[&'r Run],
        bytes: u64,
        lacking: u64,
        looks: &mut usize,
    ) -> Option<Option<Self>> {
        let mut free = own(home);
        let (mut gap, mut carried) = (home.gap - lacking, Vec::new());
        // A remapped run brings no more free bytes than the unmapped space it fills.
        if free + gap < bytes {
            return Some(None);
        }
        for run in order.iter().filter(|&&run| run != home) {
            if free >= bytes {
                break;
            }
            *looks = looks.checked_sub(1)?;
            if run.bytes() <= gap {
                gap -= run.bytes();
                free += run.free;
                carried.push(*run);
            }
        }
        Some((free >= bytes).then_some(Self { home, carried }))
    }

    /// The choice that remaps all movable runs after one that stays. Among the homes with enough
    /// unmapped space it takes the cheapest. If none has enough, it takes the home with the most
    /// space, and as many runs as fit.
    fn all(runs: &'r [Run]) -> Option<Self> {
        let moved = |run: &Run| if run.movable { run.bytes() } else { 0 };
        let all: u64 = runs.iter().map(moved).sum();
        let price = |home: &&Run| all - moved(home);
        let roomy = |home: &&Run| (1..=home.gap).contains(&price(home));
        let home = runs.iter().filter(roomy).min_by_key(price);
        let home = home.or_else(|| runs.iter().max_by_key(|run| run.gap))?;
        let mut gap = home.gap;
        let fits = |run: &&Run| {
            let fits = *run != home && run.movable && run.bytes() <= gap;
            gap -= if fits { run.bytes() } else { 0 };
            fits
        };
        let carried = runs.iter().filter(fits).collect();
        Some(Self { home, carried })
    }

    /// Unmapped bytes left after the remapped runs.
    fn room_left(&self) -> u64 {
        self.home.gap - self.price()
    }
}

/// Remaps runs of the pool's memory, all of whose blocks may move, directly after another run.
/// Takes as few runs as make up a request of `bytes`; if no such choice exists, all of them, and
/// grows the pool by the bytes that are missing. Does nothing if free memory and growth together
/// are too small for the request, or if the pool does not remap handles.
///
/// # Errors
/// The driver's, before any run is remapped.
///
/// The host waits for nothing.
pub(crate) fn join(
    shared: &Arc<Shared>,
    mover: &Mover,
    owners: &mut dyn Owners,
    bytes: u64,
) -> Result<Joined> {
    let lane = shared.open_lane(&mover.stream)?;
    let mut guard = shared.lock_for_moves();
    let core = &mut *guard.0;
    let mut joined = Joined::default();
    let Some(lacking) = core.lacks(bytes).filter(|_| core.config.remap) else {
        return Ok(joined);
    };
    let runs = core.runs(&|at| owners.may_move(at));
    let Some(gathering) = Gathering::least(&runs, bytes.saturating_sub(lacking), lacking)
        .or_else(|| Gathering::all(&runs))
    else {
        return Ok(joined);
    };
    let mut end = gathering.home.end;
    core.wait_for_holes(lane.slot)?;
    // First: without that memory the request cannot be served, and a run mapped again would seem to bring it nearer.
    if lacking > 0 && lacking <= gathering.room_left() {
        let behind = end + gathering.price();
        core.create_frames(behind, behind + lacking)?;
        joined.changed = true;
    }
    let timeline = &lane.stream.timeline;
    for run in gathering.carried {
        let epoch = || Epoch::new(lane.slot, timeline.open_tick());
        let waited = wait_for_uses(&*owners, run, core, timeline);
        let (ways, ids) = match waited.and_then(|()| core.carry(run, end, epoch())) {
            Ok(carried) => carried,
            Err(error) => {
                joined.error = Some(error);
                break;
            }
        };
        let way = |(src, dst, bytes)| Move { src, dst, bytes };
        let ways: Vec<Move> = ways.into_iter().map(way).collect();
        #[cfg(feature = "sanitize")]
        super::sanitizer_hooks::SanitizerHooks::before(&mover.stream, &ways, shared.base)
            .after(&mover.stream, true);
        owners.moved(&ways, &ids, timeline.open_tick());
        joined.ways.extend(ways);
        joined.changed = true;
        end += run.bytes();
    }
    joined.ways.sort_unstable_by_key(|way| way.src);
    Ok(joined)
}

/// Makes the moving stream wait for the uses of all blocks in `run`.
fn wait_for_uses(
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

#[cfg(test)]
mod tests;
