//! The end of the process, and its children by `fork`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use super::{AT_EXIT, Shared};
use crate::sync::plain::lock;

/// How often this process's ancestors and itself came out of a `fork` as the child.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The recordings that are not over.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Another number in a child of `fork` than in its parent.
#[inline]
pub(super) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Has the recording flushed when the process ends by itself.
pub(super) fn watch(recording: &Arc<Shared>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: both take functions that live as long as the process, and unwind from neither. Where
        // there is no room for another one, the end of the process loses what a crash would.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
    let mut open = lock(&OPEN);
    open.retain(|other| other.strong_count() > 0);
    open.push(Arc::downgrade(recording));
}

extern "C" fn at_exit() {
    // In a child of `fork` another thread of the parent's may have had the lock.
    let Ok(mut open) = OPEN.try_lock() else {
        return;
    };
    let open = std::mem::take(&mut *open);
    let until = std::time::Instant::now() + AT_EXIT;
    for recording in open.iter().filter_map(Weak::upgrade) {
        // Its error was told when it happened.
        let _ = recording.flush(Some(until));
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
