//! Executing a cycle: blocks that wait for each other's places. They move in pieces, all of them or
//! none.
//!
//! While the pieces are being copied, no block of the cycle is whole anywhere. So the heap is
//! updated only after every piece is queued. If one piece cannot be queued, the pieces before it
//! are undone in reverse order: by launches or, where the device refuses those too, by plain
//! copies. The blocks are then back at their old addresses, ready after the copies that undid the
//! moves. If the device refuses plain copies too, the data is lost; such a device has failed.

use super::execute::Step;
use super::mover::Part;
use super::plan::ranges::difference;
use super::plan::{Batch, Move};
#[cfg(feature = "sanitize")]
use super::sanitizer_hooks::SanitizerHooks;
use super::task::Task;
use crate::error::Result;
use crate::pool::Epoch;

/// The moves of a queued launch, and the direction if it is a slide (`true`: upward).
type Queued = (Vec<Move>, Option<bool>);

impl Step<'_> {
    /// Queues `pieces`, and records in the heap that the blocks made `moves`, which is what all
    /// pieces together do.
    pub(super) fn cycle(
        &mut self,
        moves: &[Move],
        pieces: &[Batch],
        task: &Task<'_>,
    ) -> Result<()> {
        #[cfg(feature = "sanitize")]
        let hooks = SanitizerHooks::around(&self.mover.stream, moves, pieces, self.shared.base);
        let mut queued = Vec::new();
        let outcome = self.queue_pieces(pieces, task, &mut queued);
        if outcome.is_err() {
            for (part, slide) in queued.iter().rev() {
                self.take_back(part, *slide, task);
            }
        }
        #[cfg(feature = "sanitize")]
        hooks.after(&self.mover.stream, outcome.is_ok());
        if outcome.is_ok() {
            self.made(moves, pieces.iter().map(Batch::bytes).sum());
        } else if !queued.is_empty() {
            let stay = moves.iter().map(|m| Move { dst: m.src, ..*m });
            self.book(&stay.collect::<Vec<_>>());
        }
        self.book_written(moves, &queued, outcome.is_ok());
        outcome
    }

    fn queue_pieces(
        &mut self,
        pieces: &[Batch],
        task: &Task<'_>,
        queued: &mut Vec<Queued>,
    ) -> Result<()> {
        let reserved = self.core.in_arena();
        for piece in pieces {
            for part in self.mover.parts(piece, reserved) {
                self.launch(part, task)?;
                queued.push((part.moves.to_vec(), part.slide));
            }
        }
        Ok(())
    }

    /// Queues the reverse of one launch.
    fn take_back(&mut self, part: &[Move], slide: Option<bool>, task: &Task<'_>) {
        let mut back: Vec<Move> = part.iter().map(reversed).collect();
        back.sort_unstable_by_key(|m| m.src);
        let slide = slide.map(|upward| !upward);
        let part = Part {
            slide,
            moves: &back,
        };
        if self.launch(part, task).is_err() {
            self.copy(one_by_one(back, slide));
        }
    }

    /// Queues `moves` as plain copies, without a table. No move overlaps itself.
    fn copy(&self, moves: impl Iterator<Item = Move>) {
        let (base, stream) = (self.shared.base, &self.mover.stream);
        for m in moves {
            // SAFETY: both ranges are mapped memory of the pool, the stream is ordered after all
            // their uses, and they do not overlap.
            let copied = unsafe {
                let backend = stream.device().backend();
                backend.copy_within(base + m.dst, base + m.src, m.bytes, stream.raw())
            };
            if copied.is_err() {
                return;
            }
        }
    }

    /// Records as free in the heap what the launches wrote where no block ends up, after the
    /// launches.
    fn book_written(&mut self, moves: &[Move], queued: &[Queued], arrived: bool) {
        let parts = queued.iter().flat_map(|(part, _)| part);
        let holes = written_free(moves, parts, arrived);
        let tick = self.tick();
        self.core.book_written(&holes, Epoch::new(self.slot, tick));
    }
}

/// The ranges (begin, end) that `parts` write and that hold no block afterwards: with `arrived`,
/// the blocks are at the destinations of `moves`, otherwise still at the sources.
fn written_free<'a>(
    moves: &[Move],
    parts: impl Iterator<Item = &'a Move>,
    arrived: bool,
) -> Vec<(u64, u64)> {
    let place = |m: &Move| (m.dst, m.dst + m.bytes);
    let stand = |m: &Move| match arrived {
        true => place(m),
        false => place(&reversed(m)),
    };
    difference(
        parts.map(place).collect(),
        moves.iter().map(stand).collect(),
    )
}

fn reversed(m: &Move) -> Move {
    Move {
        src: m.dst,
        dst: m.src,
        bytes: m.bytes,
    }
}

/// Splits the moves of one launch, in ascending order, into copies that can be made one after the
/// other. No copy overlaps itself.
fn one_by_one(mut moves: Vec<Move>, slide: Option<bool>) -> impl Iterator<Item = Move> {
    if slide == Some(true) {
        moves.reverse();
    }
    moves.into_iter().flat_map(|m| {
        let reach = m.src.abs_diff(m.dst).min(m.bytes).max(1);
        let parts = m.bytes.div_ceil(reach);
        (0..parts).map(move |nth| {
            let at = reach * if m.dst > m.src { parts - 1 - nth } else { nth };
            Move {
                src: m.src + at,
                dst: m.dst + at,
                bytes: reach.min(m.bytes - at),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Moves of blocks that are given as (bytes before the block, its bytes). All move in one
    /// direction by at most `by` bytes. Sources and destinations ascend, like those of a slide.
    fn slide(blocks: &[(u64, u64)], upward: bool, by: u64) -> Vec<Move> {
        let (mut src, mut least, mut moves) = (by, 0, Vec::new());
        for &(before, bytes) in blocks {
            src += before;
            let dst = if upward {
                src + by
            } else {
                least.max(src - by)
            };
            moves.push(Move { src, dst, bytes });
            (src, least) = (src + bytes, dst + bytes);
        }
        moves
    }

    proptest! {
        #[test]
        fn moves_made_one_by_one_come_to_what_their_launch_does(
            blocks in vec((0u64..6, 1u64..12), 1..8),
            upward in any::<bool>(),
            by in 1u64..20,
        ) {
            let moves = slide(&blocks, upward, by);
            let memory: Vec<u64> = (0..200).collect();
            let of = |at: u64, bytes: u64| at as usize..(at + bytes) as usize;
            // A launch reads before it writes.
            let mut said = memory.clone();
            for m in &moves {
                said[of(m.dst, m.bytes)].copy_from_slice(&memory[of(m.src, m.bytes)]);
            }
            let mut seen = memory;
            for m in one_by_one(moves.clone(), Some(upward)) {
                prop_assert!(m.bytes > 0 && m.src.abs_diff(m.dst) >= m.bytes, "{m:?}");
                seen.copy_within(of(m.src, m.bytes), m.dst as usize);
            }
            prop_assert_eq!(seen, said);
            // At most as many copies as the distance requires; disjoint moves stay in their order.
            let most = moves.iter().map(|m| m.bytes.div_ceil(m.src.abs_diff(m.dst).max(1)));
            prop_assert!(one_by_one(moves.clone(), Some(upward)).count() as u64 <= most.sum());
        }
    }

    #[test]
    fn what_a_cycle_wrote_where_no_block_ends_up_is_free() {
        let mv = |src, dst, bytes| Move { src, dst, bytes };
        // Two blocks swap places; the first passes through 500.
        let moves = [mv(100, 220, 40), mv(220, 100, 60)];
        let parts = [mv(100, 500, 40), mv(220, 100, 60), mv(500, 220, 40)];
        let free = |count: usize, arrived| written_free(&moves, parts[..count].iter(), arrived);
        assert_eq!(free(3, true), [(500, 540)]);
        assert_eq!(free(0, false), []);
        assert_eq!(free(1, false), [(500, 540)]);
        assert_eq!(free(2, false), [(140, 160), (500, 540)]);
        assert_eq!(free(3, false), [(140, 160), (500, 540)]);
    }

    #[test]
    fn moves_that_stay_apart_are_made_in_one_piece_each() {
        let moves: Vec<Move> = [(0, 100), (40, 140), (20, 160)]
            .map(|(src, dst)| Move {
                src,
                dst,
                bytes: 20,
            })
            .to_vec();
        assert!(one_by_one(moves.clone(), None).eq(moves.iter().copied()));
        let back = moves.iter().map(reversed);
        assert!(
            back.eq([(100, 0), (140, 40), (160, 20)].map(|(src, dst)| Move {
                src,
                dst,
                bytes: 20
            }))
        );
    }
}
