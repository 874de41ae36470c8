//! Host calls: application code that a device runs in stream order. The thread that runs one must not wait
//! for device work.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::sync::plain::lock;

thread_local! {
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
    static RUNS_NONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a host call on the calling thread; returns a panic as an error.
pub(super) fn run(work: impl FnOnce()) -> Result<()> {
    let before = IS_RUNNING.replace(true);
    let outcome =
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked("host call", panic));
    IS_RUNNING.set(before);
    outcome
}

/// Whether the calling thread runs a host call.
pub(crate) fn is_running() -> bool {
    IS_RUNNING.get()
}

/// Runs `ask`, in which this thread runs no host call, as it may hold locks that one asks for. A device that runs work
/// when it is asked runs none then; while it waits, only work that the wait cannot end without.
pub(crate) fn without_any<R>(ask: impl FnOnce() -> R) -> R {
    /// What it was before, to be set again even after a panic.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            RUNS_NONE.set(self.0);
        }
    }
    let _before = Before(RUNS_NONE.replace(true));
    ask()
}

/// Whether the calling thread runs a host call, or may run none.
pub(super) fn may_run_none() -> bool {
    is_running() || RUNS_NONE.get()
}

/// Returns an error on a thread that runs a host call.
pub(crate) fn may_wait() -> Result<()> {
    if !is_running() {
        return Ok(());
    }
    Err(Error::invalid(
        "thread",
        "a host call may not wait for device work",
    ))
}

/// The error for application code that panicked in `call`.
pub(crate) fn panicked(call: &'static str, panic: Box<dyn Any + Send>) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let error = Error::Os {
        call,
        words: format!("it panicked: {message}"),
    };
    // The panic's value is the application's too, and its drop may panic.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
    error
}

/// Most threads for the work of host calls. It is many, as some of it waits for other such work: the ends of a
/// communicator wait for each other.
const MOST_THREADS: usize = 64;

type Work = Box<dyn FnOnce() + Send>;

/// Work that host calls left to other threads, and the number of those threads.
struct Left {
    work: VecDeque<Work>,
    threads: usize,
}

static LEFT: Mutex<Left> = Mutex::new(Left {
    work: VecDeque::new(),
    threads: 0,
});

/// Runs `work`, which waits for device work or calls the driver. Runs it here, or on another thread if this thread runs
/// a host call and so may do neither.
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    if !is_running() {
        return work();
    }
    let mut left = lock(&LEFT);
    left.work.push_back(Box::new(work));
    if left.threads == MOST_THREADS {
        return;
    }
    left.threads += 1;
    drop(left);
    let begun = std::thread::Builder::new()
        .name(String::from("warpool-late-drop"))
        .spawn(run_what_is_left);
    if let Err(error) = begun {
        // The work stays for the next thread: dropping it would free memory while queued work still uses it.
        lock(&LEFT).threads -= 1;
        // `eprintln` panics if nobody reads the output, and this may run in a drop.
        let _ = writeln!(
            std::io::stderr(),
            "warpool: memory dropped in a host call is kept until another is: {error}"
        );
    }
}

fn run_what_is_left() {
    loop {
        let work = {
            let mut left = lock(&LEFT);
            let Some(work) = left.work.pop_front() else {
                left.threads -= 1;
                return;
            };
            work
        };
        // The application's code may panic in a drop; the thread's other work is done all the same.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let _ = panicked("late drop", panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, RwLock};
    use std::time::{Duration, Instant};

    use super::*;

    /// Panics when it is dropped, unless that is while a thread panics.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "dropped");
        }
    }

    #[test]
    fn a_panic_is_an_error_whatever_it_was_thrown_with() {
        for thrown in [true, false] {
            let words = run(|| match thrown {
                true => std::panic::panic_any(Bomb),
                false => panic!("in words"),
            })
            .unwrap_err()
            .to_string();
            assert!(
                words.contains(if thrown { "no message" } else { "in words" }),
                "{words}"
            );
        }
        assert!(!is_running());
    }

    #[test]
    fn host_calls_run_again_after_a_panic_where_none_may_run() {
        let outcome = catch_unwind(|| without_any(|| panic!("a device's")));
        assert!(outcome.is_err() && !may_run_none());
    }

    #[test]
    fn however_much_is_done_by_other_threads_they_are_few() {
        const ALL: usize = 300;
        let begun = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        run(|| {
            for _ in 0..ALL {
                let (begun, gate, tell) = (Arc::clone(&begun), Arc::clone(&gate), tell.clone());
                beside(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    drop(gate.read().unwrap());
                    tell.send(()).unwrap();
                });
            }
        })
        .unwrap();
        let deadline = Instant::now() + Duration::from_millis(200);
        while begun.load(Ordering::Relaxed) <= MOST_THREADS && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let seen = begun.load(Ordering::Relaxed);
        drop(closed);
        for _ in 0..ALL {
            told.recv_timeout(Duration::from_secs(60))
                .expect("all is done");
        }
        assert!(seen <= MOST_THREADS, "{seen} threads");
    }

    #[test]
    fn what_waits_is_done_here_unless_a_host_call_runs_here() {
        let here = std::thread::current().id();
        let (tell, told) = std::sync::mpsc::channel();
        let say = tell.clone();
        beside(move || say.send(std::thread::current().id()).unwrap());
        assert_eq!(told.recv().unwrap(), here);
        run(|| beside(move || tell.send(std::thread::current().id()).unwrap())).unwrap();
        assert_ne!(told.recv().unwrap(), here);
    }
}
