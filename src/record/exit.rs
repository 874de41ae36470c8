//! The end of the process, and child processes of `fork`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use super::{AT_EXIT, Shared};
use crate::sync::plain::lock;

/// How often this process or an ancestor was the child of a `fork`.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The recordings that have not ended.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// A number that differs between a child of `fork` and its parent.
#[inline]
pub(super) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Flushes the recording at the normal end of the process.
pub(super) fn watch(recording: &Arc<Shared>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: both take functions that live as long as the process and do not unwind. If no
        // further function can be registered, the end of the process loses as much as a crash.
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
    // In a child of `fork`, another thread of the parent may have held the lock.
    let open = match forks() {
        0 => Some(lock(&OPEN)),
        _ => OPEN.try_lock().ok(),
    };
    let Some(mut open) = open else {
        return;
    };
    let open = std::mem::take(&mut *open);
    let until = std::time::Instant::now() + AT_EXIT;
    for recording in open.iter().filter_map(Weak::upgrade) {
        // Its error was reported when it happened.
        let _ = recording.flush(Some(until));
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::record::{Recording, What};

    #[test]
    fn a_process_that_ends_while_a_recording_begins_writes_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.csv");
        let recording = Recording::to("record", &path).expect("a recording");
        let (tell, told) = channel();
        let begins = std::thread::spawn(move || {
            let open = lock(&OPEN);
            let _ = tell.send(());
            std::thread::sleep(Duration::from_millis(50));
            drop(open);
        });
        told.recv().expect("it begins");
        recording.note(What::Failure { bytes: 77 }, 0);
        at_exit();
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.contains(",77,"), "{text}");
        begins.join().expect("it ends");
    }
}
