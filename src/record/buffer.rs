//! Where threads put events: a buffer each, and one counter for the order of all.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::device::Addr;
use crate::sync::plain::lock;

/// Events after which a thread asks for its buffer to be emptied,
const WAKE: usize = 1 << 13;
/// and after which it waits until it is.
const FULL: usize = 1 << 16;

/// What happened.
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
    /// A block leaves its place; the next `Put` says where it went.
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
    /// Its place in the order of all.
    pub(super) number: u64,
    pub(super) what: What,
    pub(super) stream: u64,
    /// Microseconds since 1970.
    pub(super) micros: u64,
    pub(super) thread: u32,
}

/// A thread's events that were not collected yet.
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
    /// Events that came after the last horizon.
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

    /// Puts an event into the calling thread's buffer; whether that wants to be emptied.
    #[inline]
    pub(super) fn push(&self, what: What, stream: u64) -> bool {
        self.with_own(|buffer| {
            let micros = SystemTime::now().duration_since(UNIX_EPOCH);
            let micros = micros.map_or(0, |since| since.as_micros() as u64);
            let mut events = lock(&buffer.events);
            events.push(Event {
                // Under the lock: see the module documentation of `record`.
                number: self.next.fetch_add(1, Ordering::AcqRel),
                what,
                stream,
                micros,
                thread: buffer.thread,
            });
            events.len() % WAKE == 0
        })
    }

    /// Whether the calling thread is to wait.
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
            // Those of recordings that are gone have no other holder.
            own.retain(|(_, buffer)| Arc::strong_count(buffer) > 1);
            own.push((self.uid, Arc::clone(&buffer)));
            Some(work(&buffer))
        });
        // A thread that is about to end has no variables any more.
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

    /// Takes what has happened up to now, in order; what other threads add meanwhile comes with the next
    /// call.
    pub(super) fn collect(&self) -> Vec<Event> {
        let horizon = self.next.load(Ordering::Acquire);
        let mut known = lock(&self.all);
        let mut events = std::mem::take(&mut known.early);
        known.list.retain(|buffer| {
            // A thread that has ended adds nothing any more: asked before its last events are taken.
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
