//! Moving live blocks: one step of a compaction, from plan to booked outcome.
//!
//! # A step
//!
//! Under the pool's lock, so that what was planned is what is there: take the layout, plan, cut the
//! plan at the budget, make the moving stream wait for everything that used the memory involved,
//! queue the moves, and book where the blocks are now. A source is then a hole whose history is the
//! moving stream; a block is ready behind the same tick. Nothing waits on the host, and after any
//! step, or between any two, every block is valid.
//!
//! The next step plans anew from what it finds: blocks freed, pinned or allocated meanwhile are
//! simply part of its layout.
//!
//! # Tables
//!
//! A step's moves go to the device as a table. It is uploaded on a stream of its own, which no
//! queued work holds up, into one of a few places used in turn.

use std::collections::BTreeMap;

use super::layout::{Extent, Kind, Layout};
use super::plan::{Batch, Goal, Move, Plan, Planner};
use super::table::{MoveTable, SlideTable};
use crate::device::{Launch, Timeline, lock};
use crate::error::Result;
use crate::pool::{Block, Core, Shared};
use crate::seeded::seeded;

/// How much one step may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// Bytes; a block is moved whole, so a step moves at least one.
    pub bytes: u64,
    /// Thread blocks the moves may occupy at once, 0 for as many as the device takes.
    pub thread_blocks: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            thread_blocks: 0,
        }
    }
}

impl Budget {
    /// At most `bytes` a step.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// As many bytes as `planner`'s model moves in `micros` microseconds.
    #[must_use]
    pub fn micros(micros: f64, model: &super::CostModel) -> Self {
        Self::bytes(((micros * 1e3 - model.launch_ns).max(0.0) * model.bytes_per_ns) as u64)
    }

    /// In the background: at most `blocks` thread blocks at once.
    #[must_use]
    pub fn in_background(mut self, blocks: u32) -> Self {
        self.thread_blocks = blocks;
        self
    }
}

/// What a step, or all steps of a compaction, did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Moved {
    /// Bytes moved.
    pub bytes: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// Steps made.
    pub steps: u64,
    /// Nanoseconds the planner expects the moves to take on the device.
    pub predicted_ns: f64,
    /// Whether the goal is reached, or no plan reaches it any more: nothing is left to do.
    pub finished: bool,
    /// Whether the goal is reached.
    pub reached: bool,
}

/// Who owns the blocks that may move.
pub(crate) trait Owners {
    /// Whether the block at offset `at` may move now.
    fn may_move(&self, at: u64) -> bool;
    /// Gives each use of the block at offset `at` that a move has to wait for.
    fn uses(&self, at: u64, each: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()>;
    /// The blocks named moved, (from, to) offsets, behind `tick` of the moving stream.
    fn moved(&mut self, moves: &[(u64, u64)], ids: &[u32], base: u64, tick: u64);
}

/// Device memory for tables and the streams that work on them.
pub(crate) struct Mover {
    /// The stream that moves.
    pub(crate) stream: crate::Stream,
    upload: crate::Stream,
    places: Vec<Block>,
    next: usize,
}

/// Places for tables, used in turn so that an upload waits for the step four before.
const PLACES: usize = 4;

/// Bytes of a place.
const PLACE_BYTES: u64 = 256 << 10;

/// Bytes of a place kept for a slide's flags; the rest holds the table.
const FLAGS_BYTES: u64 = PLACE_BYTES / 2;

/// Most moves a launch takes, by what a place holds.
const MOST_MOVES: usize = ((PLACE_BYTES - FLAGS_BYTES) / 24) as usize;

/// Bytes of source addresses one slide may span, by the flags a place holds.
const MOST_SPAN: u64 = FLAGS_BYTES / 8 * crate::driver::abi::WP_SLIDE_TILE as u64;

impl Mover {
    pub(crate) fn new(pool: &crate::Pool) -> Result<Self> {
        let upload = pool.device().stream()?;
        let places = (0..PLACES).map(|_| pool.alloc(&upload, PLACE_BYTES));
        Ok(Self {
            places: places.collect::<Result<_>>()?,
            stream: pool.device().stream()?,
            upload,
            next: 0,
        })
    }

    /// Puts `image` into the next place, ready for the moving stream; gives its address.
    fn upload(&mut self, image: Vec<u8>) -> Result<u64> {
        let addr = self.places[self.next].addr();
        self.next = (self.next + 1) % PLACES;
        let backend = self.upload.device().backend();
        // The step that used this place last is long queued; its tick covers all until now.
        if self.next == 0 && !seeded!("table-overwritten-while-in-use") {
            self.upload.wait_stream(&self.stream)?;
        }
        // SAFETY: the place has room for a table; the image lives until the copy is done, because
        // the call queued behind it owns it.
        unsafe { backend.copy_in(addr, image.as_ptr(), image.len() as u64, self.upload.raw())? };
        backend.host_call(self.upload.raw(), Box::new(move || drop(image)))?;
        if !seeded!("moves-before-their-table") {
            self.stream.wait_stream(&self.upload)?;
        }
        Ok(addr)
    }

    fn disjoint(&mut self, moves: &[Move], thread_blocks: u32) -> Result<()> {
        for part in moves.chunks(MOST_MOVES) {
            let table = MoveTable::new(part)?;
            let at = self.upload(table.image())?;
            let launch = Launch::Relocate(table.args(at, thread_blocks));
            // SAFETY: sources and destinations are mapped memory of the pool that the stream runs
            // behind, and the table is in place.
            unsafe {
                self.stream
                    .device()
                    .backend()
                    .launch(&launch, self.stream.raw())?
            };
        }
        Ok(())
    }

    fn slide(&mut self, moves: &[Move], upward: bool, thread_blocks: u32) -> Result<()> {
        let moves: Vec<Move> = moves.iter().flat_map(pieces).collect();
        let mut parts: Vec<&[Move]> = Vec::new();
        let mut rest = &moves[..];
        while let Some(first) = rest.first() {
            let fits = |m: &Move| m.src + m.bytes <= first.src + MOST_SPAN;
            let most = rest.len().min(MOST_MOVES);
            // A piece alone always fits.
            let count = rest[..most].iter().take_while(|m| fits(m)).count().max(1);
            let (part, after) = rest.split_at(count);
            parts.push(part);
            rest = after;
        }
        // A part's destinations may lie over the sources of those it moves towards.
        if upward {
            parts.reverse();
        }
        for part in parts {
            let table = SlideTable::new(part, upward)?;
            let at = self.upload(table.image().to_vec())?;
            let flags = at + PLACE_BYTES - FLAGS_BYTES;
            let launch = Launch::Slide(table.args(at, flags, thread_blocks)?);
            // SAFETY: as for disjoint moves; the flags have the room the table asks for, as the
            // part was cut to it.
            unsafe {
                self.stream
                    .device()
                    .backend()
                    .launch(&launch, self.stream.raw())?
            };
        }
        Ok(())
    }
}

/// A move in pieces of at most half the span of a slide, lowest first. In the order of the slide's
/// direction no piece lands on the source of one that is still to come.
fn pieces(m: &Move) -> impl Iterator<Item = Move> + use<> {
    let m = *m;
    (0..m.bytes)
        .step_by((MOST_SPAN / 2) as usize)
        .map(move |at| Move {
            src: m.src + at,
            dst: m.dst + at,
            bytes: (m.bytes - at).min(MOST_SPAN / 2),
        })
}

/// The layout as a planner sees it, offsets for addresses.
pub(crate) fn layout_of(core: &Core, owners: &dyn Owners) -> Layout {
    let extents = core.mapped_extents().map(|(addr, bytes, taken)| Extent {
        addr,
        bytes,
        kind: match taken {
            true if owners.may_move(addr) => Kind::Movable,
            true => Kind::Fixed,
            false => Kind::Hole,
        },
    });
    Layout::from_extents(extents).unwrap_or_default()
}

/// The part of `plan` that one step makes: whole moves up to the budget, in the plan's order.
fn cut(plan: &Plan, budget: &Budget) -> Vec<Batch> {
    let mut left = budget.bytes;
    let mut batches = Vec::new();
    for batch in &plan.batches {
        let take = |moves: &mut dyn Iterator<Item = &Move>| -> Vec<Move> {
            let mut taken = Vec::new();
            for &m in moves {
                if m.bytes > left && !(taken.is_empty() && batches.is_empty()) {
                    break;
                }
                left = left.saturating_sub(m.bytes);
                taken.push(m);
            }
            taken
        };
        let mut take = take;
        let part = match batch {
            Batch::Disjoint(moves) => Batch::Disjoint(take(&mut moves.iter())),
            Batch::Slide {
                upward: false,
                moves,
            } => Batch::Slide {
                upward: false,
                moves: take(&mut moves.iter()),
            },
            // The highest goes first: nothing lies where it goes.
            Batch::Slide {
                upward: true,
                moves,
            } => {
                let mut taken = match seeded!("upward-slide-cut-from-below") {
                    true => take(&mut moves.iter()),
                    false => take(&mut moves.iter().rev()),
                };
                taken.sort_unstable_by_key(|m| m.src);
                Batch::Slide {
                    upward: true,
                    moves: taken,
                }
            }
        };
        let whole = part.moves().len() == batch.moves().len();
        if !part.moves().is_empty() {
            batches.push(part);
        }
        if !whole {
            break;
        }
    }
    batches
}

/// Where a block comes from, where it ends, and its bytes.
pub(super) type Way = (u64, u64, u64);

/// Where each block that `batches` move comes from and ends, ascending: (from, to, bytes).
fn ways(batches: &[Batch]) -> Vec<Way> {
    let mut origin: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for batch in batches {
        let hops: Vec<_> = batch
            .moves()
            .iter()
            .map(|m| {
                let hop = origin
                    .remove(&m.src)
                    .filter(|_| !seeded!("first-hop-forgotten"));
                (hop.map_or(m.src, |(from, _)| from), m)
            })
            .collect();
        origin.extend(hops.into_iter().map(|(from, m)| (m.dst, (from, m.bytes))));
    }
    origin
        .into_iter()
        .map(|(to, (from, bytes))| (from, to, bytes))
        .collect()
}

/// One step towards `goal`.
pub(crate) fn step(
    shared: &std::sync::Arc<Shared>,
    mover: &mut Mover,
    owners: &mut dyn Owners,
    planner: &Planner,
    goal: &Goal,
    budget: &Budget,
) -> Result<Moved> {
    let lane = shared.open_lane(&mover.stream)?;
    shared.drain_all();
    let mut core = lock(&shared.core);
    let layout = layout_of(&core, owners);
    let Some(plan) = planner.plan(&layout, goal) else {
        return Ok(Moved {
            finished: true,
            ..Moved::default()
        });
    };
    let batches = cut(&plan, budget);
    if seeded!("free-during-plan") {
        drop(core);
        std::thread::sleep(std::time::Duration::from_micros(200));
        core = lock(&shared.core);
    }
    if batches.is_empty() {
        return Ok(Moved {
            finished: true,
            reached: true,
            ..Moved::default()
        });
    }
    let ways = ways(&batches);
    if !seeded!("moves-do-not-wait-for-holes") {
        core.wait_for_holes(lane.slot)?;
    }
    let timeline = &lane.stream.timeline;
    for &(from, _, _) in &ways {
        if seeded!("moves-do-not-wait-for-uses") {
            break;
        }
        owners.uses(from, &mut |theirs, tick| {
            timeline.wait_for(theirs, tick).map(|_| ())
        })?;
    }
    #[cfg(feature = "sanitize")]
    let tell = super::tell::Tell::of(&batches, &ways);
    #[cfg(feature = "sanitize")]
    tell.before(&shared.device, shared.base, mover.stream.raw());
    for batch in &batches {
        match batch {
            Batch::Disjoint(moves) => {
                mover.disjoint(&based(moves, shared.base), budget.thread_blocks)?
            }
            Batch::Slide { upward, moves } => {
                mover.slide(&based(moves, shared.base), *upward, budget.thread_blocks)?;
            }
        }
    }
    #[cfg(feature = "sanitize")]
    tell.after(&shared.device, shared.base, mover.stream.raw());
    let tick = timeline.open_tick() - u64::from(seeded!("moved-block-ready-a-record-early"));
    let ids = core.book_moves(&ways, lane.slot, tick);
    let pairs: Vec<(u64, u64)> = ways.iter().map(|&(from, to, _)| (from, to)).collect();
    owners.moved(&pairs, &ids, shared.base, tick);
    let whole = batches.len() == plan.batches.len()
        && batches.iter().map(|b| b.moves().len()).sum::<usize>() == plan.moves;
    let bytes: u64 = batches.iter().map(Batch::bytes).sum();
    core.count_moves(bytes);
    Ok(Moved {
        bytes,
        blocks: ways.len() as u64,
        steps: 1,
        predicted_ns: plan.predicted_ns * bytes as f64 / plan.bytes.max(1) as f64,
        finished: whole,
        reached: whole,
    })
}

fn based(moves: &[Move], base: u64) -> Vec<Move> {
    let at = |m: &Move| Move {
        src: base + m.src,
        dst: base + m.dst,
        bytes: m.bytes,
    };
    moves.iter().map(at).collect()
}
