//! Making a circle: blocks that move in pieces, all of them or none.
//!
//! While the pieces are on their way no block of the circle is whole anywhere, so the books change
//! once all are queued. If one cannot be queued, those before it are taken back in the opposite
//! order: by launches or, where the device refuses those too, by plain copies. The blocks are then
//! where they were, behind what brought them back. A device that refuses both has lost what they
//! held; it has failed.

use super::execute::{Step, Task};
use super::mover::Part;
#[cfg(feature = "sanitize")]
use super::notes::Notes;
use super::plan::{Batch, Move};
use super::plan_order::difference;
use crate::error::Result;

/// A launch that was queued, and which way it slides, if it does.
type Queued = (Vec<Move>, Option<bool>);

impl Step<'_> {
    /// Queues `pieces` and books `moves`, which they come to.
    pub(super) fn circle(
        &mut self,
        moves: &[Move],
        pieces: &[Batch],
        task: &Task<'_>,
    ) -> Result<()> {
        #[cfg(feature = "sanitize")]
        let notes = Notes::around(&self.mover.stream, moves, pieces, self.shared.base);
        let before = self.before();
        let mut queued = Vec::new();
        let outcome = self.queue_pieces(pieces, task, &mut queued);
        if outcome.is_err() {
            for (part, slide) in queued.iter().rev() {
                self.take_back(part, *slide, task);
            }
        }
        #[cfg(feature = "sanitize")]
        notes.after(&self.mover.stream, outcome.is_ok());
        if outcome.is_ok() {
            self.made(moves, pieces.iter().map(Batch::bytes).sum(), before);
        } else if !queued.is_empty() {
            let stay = moves.iter().map(|m| Move { dst: m.src, ..*m });
            self.book(&stay.collect::<Vec<_>>(), before);
        }
        self.book_written(moves, &queued, outcome.is_ok(), before);
        outcome
    }

    fn queue_pieces(
        &mut self,
        pieces: &[Batch],
        task: &Task<'_>,
        queued: &mut Vec<Queued>,
    ) -> Result<()> {
        let reserved = self.core.arena.reserved();
        for piece in pieces {
            for part in self.mover.parts(piece, reserved) {
                self.launch(part, task)?;
                queued.push((part.moves.to_vec(), part.slide));
            }
        }
        Ok(())
    }

    /// Queues the way back of one launch.
    fn take_back(&mut self, part: &[Move], slide: Option<bool>, task: &Task<'_>) {
        let mut back: Vec<Move> = part.iter().map(reversed).collect();
        back.sort_unstable_by_key(|m| m.src);
        let slide = slide.map(|upward| !upward);
        let part = Part {
            slide,
            moves: &back,
        };
        if self.launch(part, task).is_err() {
            if slide == Some(true) {
                back.reverse();
            }
            for m in &back {
                self.copy(m);
            }
        }
    }

    /// Queues copies that make one move, which may overlap itself, without a table.
    fn copy(&mut self, m: &Move) {
        let (base, stream) = (self.shared.base, &self.mover.stream);
        let reach = m.src.abs_diff(m.dst).min(m.bytes).max(1);
        let parts = m.bytes.div_ceil(reach);
        for nth in 0..parts {
            let at = reach * if m.dst > m.src { parts - 1 - nth } else { nth };
            let bytes = reach.min(m.bytes - at);
            let (to, from) = (base + m.dst + at, base + m.src + at);
            // SAFETY: both are mapped memory of the pool that the stream runs behind, and they do
            // not overlap.
            let copied = unsafe {
                let backend = stream.device().backend();
                backend.copy_within(to, from, bytes, stream.raw())
            };
            if copied.is_err() {
                return;
            }
        }
    }

    /// Books that what the launches wrote and what no block stands in is free behind them.
    fn book_written(&mut self, moves: &[Move], queued: &[Queued], arrived: bool, before: u64) {
        let stand = |m: &Move| match arrived {
            true => (m.dst, m.dst + m.bytes),
            false => (m.src, m.src + m.bytes),
        };
        let written = queued.iter().flat_map(|(part, _)| part);
        let written = written.map(|m| (m.dst, m.dst + m.bytes)).collect();
        let holes = difference(written, moves.iter().map(stand).collect());
        let tick = self.tick(before);
        self.core.book_written(&holes, self.slot, tick);
    }
}

fn reversed(m: &Move) -> Move {
    Move {
        src: m.dst,
        dst: m.src,
        bytes: m.bytes,
    }
}
