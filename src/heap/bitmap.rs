//! Which bins are not empty. Finds the first from any bin on in a few instructions.

use std::hint::select_unpredictable;

pub(crate) const MOST: usize = GROUPS * 64 * 64;

/// Words of 64 bins, and groups of 64 words.
const WORDS: usize = MOST / 64;
const GROUPS: usize = 2;

/// A bit for each bin, and a bit for each word of bins.
#[repr(C)]
pub(crate) struct Bitmap {
    words: [u64; GROUPS],
    bits: [u64; WORDS],
}

impl Bitmap {
    pub(crate) const EMPTY: Self = Self {
        words: [0; GROUPS],
        bits: [0; WORDS],
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.words == [0; GROUPS]
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, bin: usize) {
        let word = bin / 64 % WORDS;
        self.bits[word] |= 1 << (bin % 64);
        self.words[word / 64] |= 1 << (word % 64);
    }

    /// Clears the bit if `empty`. Without a branch: nothing predicts its outcome.
    #[inline(always)]
    pub(crate) fn clear_if(&mut self, bin: usize, empty: bool) {
        let word = bin / 64 % WORDS;
        let bits = self.bits[word] & !(u64::from(empty) << (bin % 64));
        self.bits[word] = bits;
        self.words[word / 64] &= !(u64::from(bits == 0) << (word % 64));
    }

    /// The first bit set from `from` on, which is below [`MOST`]. Reads both words where it may be, without a branch.
    #[inline(always)]
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        debug_assert!(from < MOST);
        let word = from / 64 % WORDS;
        let here = self.bits[word] & (!0 << (from % 64));
        // Two shifts, as a shift by 64 overflows.
        let beside = self.words[word / 64] & (!0 << (word % 64) << 1);
        if here | beside == 0 {
            let group = (word / 64 + 1) * 64 * 64;
            return (group < MOST).then(|| self.next(group))?;
        }
        // For an empty word bit 63: it is in bounds, and not selected then.
        let later = word / 64 * 64 + (beside | 1 << 63).trailing_zeros() as usize;
        let (at, bits) = select_unpredictable(here != 0, (word, here), (later, self.bits[later]));
        Some(at * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests;
