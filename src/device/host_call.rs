//! Host calls: application code that a device runs in stream order. The thread that runs one must not wait
//! for device work.

use std::any::Any;
use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::seeded::seeded;
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
    let before = RUNS_NONE.replace(true);
    let answer = ask();
    RUNS_NONE.set(before);
    answer
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

/// Runs `work`, which waits for device work or calls the driver. Runs it here, or on a new thread if this thread runs a
/// host call and so may do neither.
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    if !is_running() || seeded!("a-host-call-drops-without-a-wait") {
        return work();
    }
    let work = Arc::new(Mutex::new(Some(work)));
    let its = Arc::clone(&work);
    let begun = std::thread::Builder::new()
        .name(String::from("warpool-late-drop"))
        .spawn(move || {
            let work = lock(&its).take();
            if let Some(work) = work {
                work();
            }
        });
    if let Err(error) = begun {
        // Dropping it would free memory while queued work still uses it.
        std::mem::forget(work);
        // `eprintln` panics if nobody reads the output, and this may run in a drop.
        let _ = writeln!(
            std::io::stderr(),
            "warpool: memory dropped in a host call is kept for good: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
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
