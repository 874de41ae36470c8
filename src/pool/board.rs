//! A notice board: numbers that one thread at a time posts, and that any thread reads at any time
//! without holding anyone up.
//!
//! A sequence number is odd while numbers are being posted. A reader that sees it change looks
//! again, a few times; after that it takes what is there, where each number is whole but some are
//! of one posting and some of the next.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, fence};

/// Looks before a reader takes numbers of several postings.
const LOOKS: usize = if cfg!(loom) { 2 } else { 64 };

/// See the module documentation.
pub(super) struct Board<const N: usize> {
    sequence: AtomicU64,
    words: [Word; N],
}

/// A number on the board.
pub(super) struct Word(AtomicU64);

impl Word {
    #[inline(always)]
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl<const N: usize> Board<N> {
    pub(super) fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            words: std::array::from_fn(|_| Word(AtomicU64::new(0))),
        }
    }

    /// Has `write` post words, any of them, as the only one who does so now.
    #[inline(always)]
    pub(super) fn post(&self, write: impl FnOnce(&[Word; N])) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // No word is seen before the odd number is.
        fence(Ordering::Release);
        write(&self.words);
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// What was posted last, and whether it is all of one posting.
    pub(super) fn read(&self) -> ([u64; N], bool) {
        let mut looks = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let words = std::array::from_fn(|at| self.words[at].0.load(Ordering::Relaxed));
            // The number is looked at after the words.
            fence(Ordering::Acquire);
            let whole = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
            looks += 1;
            if whole || looks == LOOKS {
                return (words, whole);
            }
            std::hint::spin_loop();
        }
    }
}

/// Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::Board;

    #[test]
    fn what_is_read_as_whole_is_of_one_posting() {
        loom::model(|| {
            let board = Arc::new(Board::<2>::new());
            let its = Arc::clone(&board);
            let poster = thread::spawn(move || {
                its.post(|words| words.iter().for_each(|word| word.set(1)));
                its.post(|words| words.iter().for_each(|word| word.set(2)));
            });
            let ([first, second], whole) = board.read();
            assert!(!whole || first == second, "{first} beside {second}");
            poster.join().unwrap();
            assert_eq!(board.read(), ([2, 2], true));
        });
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::Board;

    #[test]
    fn who_reads_amid_a_posting_has_what_is_there_and_knows_that_it_is_not_whole() {
        let board = Board::<2>::new();
        assert_eq!(board.read(), ([0, 0], true));
        board.post(|words| {
            words[0].set(7);
            assert_eq!(board.read(), ([7, 0], false));
            words[1].set(8);
        });
        assert_eq!(board.read(), ([7, 8], true));
        board.post(|_| {});
        assert_eq!(board.read(), ([7, 8], true));
    }

    #[test]
    fn no_two_postings_have_one_number() {
        let board = Board::<1>::new();
        let number = || board.sequence.load(super::Ordering::Relaxed);
        for posting in 0..5 {
            assert_eq!(number(), 2 * posting);
            board.post(|_| assert_eq!(number(), 2 * posting + 1));
        }
    }
}
