//! One buffer of events per thread, and one counter for the order of all events.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::device::Addr;
use crate::sync::plain::lock;

/// Number of events after which a thread requests that its buffer be emptied,
const WAKE: usize = 1 << 13;
/// and after which it waits until it is.
const FULL: usize = 1 << 16;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Alloc {
        addr: Addr,
        bytes: u64,
    },
    Free {
        addr: Addr,
    },
    Resize {
        addr: Addr,
        bytes: u64,
    },
    Failure {
        bytes: u64,
    },
    /// A block leaves its address; the next `Put` has the new one.
    Lift {
        addr: Addr,
    },
    Put {
        addr: Addr,
    },
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    /// Its number in the order of all events.
    pub(super) number: u64,
    pub(super) what: What,
    pub(super) stream: u64,
    /// Microseconds since 1970.
    pub(super) micros: u64,
    pub(super) thread: u32,
}

/// A thread's events that have not been collected.
struct Buffer {
    /// The thread, counted from 1.
    thread: u32,
    events: Mutex<Vec<Event>>,
}

/// The buffers of one recording.
pub(super) struct Buffers {
    uid: u64,
    next: AtomicU64,
    all: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    threads: u32,
    list: Vec<Arc<Buffer>>,
    /// Collected events whose number lies beyond the last horizon.
    early: Vec<Event>,
}

thread_local! {
    /// The buffers of this thread, by recording.
    static OWN: RefCell<Vec<(u64, Arc<Buffer>)>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    pub(super) fn new() -> Self {
        static NEXT_UID: AtomicU64 = AtomicU64::new(1);
        Self {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            next: AtomicU64::new(0),
            all: Mutex::default(),
        }
    }

    /// Adds an event to the calling thread's buffer; returns whether the buffer should be emptied.
    #[inline]
    pub(super) fn push(&self, what: What, stream: u64) -> bool {
        self.with_own(|buffer| {
            let micros = SystemTime::now().duration_since(UNIX_EPOCH);
            let micros = micros.map_or(0, |since| since.as_micros() as u64);
            let mut events = lock(&buffer.events);
            events.push(Event {
                // Taken under the lock: see the module documentation of `record`.
                number: self.next.fetch_add(1, Ordering::AcqRel),
                what,
                stream,
                micros,
                thread: buffer.thread,
            });
            events.len() % WAKE == 0
        })
    }

    /// Whether the calling thread has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.with_own(|buffer| lock(&buffer.events).len() >= FULL)
    }

    #[inline]
    fn with_own<R>(&self, work: impl Fn(&Buffer) -> R) -> R {
        let own = OWN.try_with(|own| {
            let Ok(mut own) = own.try_borrow_mut() else {
                return None;
            };
            if let Some((_, buffer)) = own.iter().find(|(uid, _)| *uid == self.uid) {
                return Some(work(buffer));
            }
            let buffer = self.add();
            // Buffers of recordings that have ended have no other holder.
            own.retain(|(_, buffer)| Arc::strong_count(buffer) > 1);
            own.push((self.uid, Arc::clone(&buffer)));
            Some(work(&buffer))
        });
        // A thread that is ending has no thread-local variables any more.
        own.ok().flatten().unwrap_or_else(|| work(&self.add()))
    }

    #[cold]
    fn add(&self) -> Arc<Buffer> {
        let mut known = lock(&self.all);
        known.threads += 1;
        let buffer = Arc::new(Buffer {
            thread: known.threads,
            events: Mutex::default(),
        });
        known.list.push(Arc::clone(&buffer));
        buffer
    }

    /// Takes the events so far, in order; events that other threads add meanwhile come with the next
    /// call.
    pub(super) fn collect(&self) -> Vec<Event> {
        let horizon = self.next.load(Ordering::Acquire);
        let mut known = lock(&self.all);
        let mut events = std::mem::take(&mut known.early);
        known.list.retain(|buffer| {
            // A thread that has ended adds no more events. Checked before its last events are taken.
            let ended = Arc::strong_count(buffer) == 1;
            events.append(&mut lock(&buffer.events));
            !ended
        });
        events.sort_unstable_by_key(|event| event.number);
        let past = events.partition_point(|event| event.number < horizon);
        known.early = events.split_off(past);
        events
    }
}
