//! What a lane counts of its blocks, under its latch.
//!
//! For peaks a lane uses the frees elsewhere that it saw last, so it counts too many live blocks, never too few. It
//! looks again only when a peak seems new.

use super::counters::{Blocks, Elsewhere, Noted, Sums, Totals, class};
use crate::pool::structure::LaneState;

impl LaneState {
    #[inline(always)]
    pub(crate) fn count(&mut self, bytes: u64, requested: u64, elsewhere: &Elsewhere) {
        if (self.counts).allocate(class(bytes), Sums::block(bytes, requested)) {
            self.look_again(elsewhere);
        }
    }

    #[inline]
    pub(crate) fn count_free(&mut self, bytes: u64, requested: u64) {
        (self.counts).free(class(bytes), Sums::block(bytes, requested));
    }

    /// Counts that a live block of the first size now has the second.
    pub(crate) fn resize(&mut self, sizes: [Blocks; 2], elsewhere: &Elsewhere) {
        (self.counts).resize(sizes.map(|it| (class(it.bytes()), it)));
        self.look_again(elsewhere);
    }

    #[cold]
    fn look_again(&mut self, elsewhere: &Elsewhere) {
        self.with_totals(elsewhere, Totals::note_peak);
    }

    pub(super) fn with_totals(&mut self, elsewhere: &Elsewhere, change: fn(&mut Totals<3>)) {
        let mut totals = self.totals(elsewhere);
        change(&mut totals);
        (self.counts, self.noted.peaks) = (totals.counts, totals.peaks);
    }

    /// The totals, with all frees elsewhere until now.
    pub(super) fn totals(&mut self, elsewhere: &Elsewhere) -> Totals<3> {
        let gone = elsewhere.sums();
        for class in [0, 1] {
            (self.counts).free(class, gone[class] - self.noted.gone[class]);
        }
        self.noted.gone = gone;
        Totals {
            counts: self.counts,
            peaks: self.noted.peaks,
        }
    }

    pub(crate) fn live_bytes(&mut self, elsewhere: &Elsewhere) -> u64 {
        self.totals(elsewhere).live()[2].bytes()
    }

    /// Blocks allocated, less those freed on this lane.
    pub(crate) fn blocks(&self) -> i64 {
        let Noted { peaks, gone } = &self.noted;
        (peaks[2] - self.counts.below[2] + gone[0] + gone[1]).0[0] as i64
    }
}
