//! A bounded queue from one thread to another, cheap enough not to be what is measured.
//!
//! Places are published and taken back in batches, so that the two threads share a cache line once
//! a batch.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Places in the ring; a power of two.
const PLACES: usize = 1024;

/// Keeps what two threads write on lines of their own.
#[repr(align(128))]
struct Apart<T>(T);

pub struct Ring<T> {
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
    written: Apart<AtomicUsize>,
    read: Apart<AtomicUsize>,
}

// SAFETY: a place belongs to the writer until published, then to the reader until taken back.
unsafe impl<T: Send> Sync for Ring<T> {}

/// The one writer.
pub struct Writer<'r, T> {
    ring: &'r Ring<T>,
    at: usize,
    free_until: usize,
}

/// The one reader.
pub struct Reader<'r, T> {
    ring: &'r Ring<T>,
    at: usize,
}

/// Spins, and now and then lets another thread have the core.
fn wait_until(mut ready: impl FnMut() -> bool) {
    let mut turns = 0u32;
    while !ready() {
        turns += 1;
        if turns.is_multiple_of(128) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl<T> Ring<T> {
    pub fn new() -> Self {
        Self {
            places: (0..PLACES)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
            written: Apart(AtomicUsize::new(0)),
            read: Apart(AtomicUsize::new(0)),
        }
    }

    /// The two ends; the exclusive borrow makes them the only ones.
    pub fn split(&mut self) -> (Writer<'_, T>, Reader<'_, T>) {
        let ring = &*self;
        let writer = Writer {
            ring,
            at: ring.written.0.load(Ordering::Relaxed),
            free_until: ring.read.0.load(Ordering::Relaxed) + PLACES,
        };
        let at = ring.read.0.load(Ordering::Relaxed);
        (writer, Reader { ring, at })
    }
}

impl<T> Writer<'_, T> {
    /// Waits for a free place and fills it; the reader sees it after `publish`.
    pub fn push(&mut self, value: T) {
        if self.at == self.free_until {
            self.publish();
            let read = &self.ring.read.0;
            wait_until(|| {
                self.free_until = read.load(Ordering::Acquire) + PLACES;
                self.free_until != self.at
            });
        }
        // SAFETY: the reader has taken this place back and does not look before it is published.
        unsafe { (*self.ring.places[self.at % PLACES].get()).write(value) };
        self.at += 1;
    }

    /// Shows the reader what was pushed.
    pub fn publish(&mut self) {
        self.ring.written.0.store(self.at, Ordering::Release);
    }
}

impl<T> Reader<'_, T> {
    /// Waits for values and hands each to `take`; gives their number.
    pub fn drain(&mut self, mut take: impl FnMut(T), before: impl FnOnce()) -> usize {
        let mut until = self.at;
        wait_until(|| {
            until = self.ring.written.0.load(Ordering::Acquire);
            until != self.at
        });
        before();
        let taken = until - self.at;
        while self.at != until {
            // SAFETY: published and not yet taken back, so it holds a value that is read once.
            take(unsafe { (*self.ring.places[self.at % PLACES].get()).assume_init_read() });
            self.at += 1;
        }
        self.ring.read.0.store(until, Ordering::Release);
        taken
    }
}
