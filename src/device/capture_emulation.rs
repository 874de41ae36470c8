//! Captures on devices without a driver: operations are recorded instead of run.
//!
//! A capture has branches: the stream it began on, and every stream that waited for an event
//! recorded in it. Operations are kept in the order of the calls, across all branches. A wait can
//! only refer to an earlier record, so that order satisfies all waits, and replaying it from front
//! to back is a correct run of the graph.
//!
//! As on a GPU, an operation that a capture cannot contain invalidates the capture. The end of a
//! capture fails if its first stream does not wait for the work of some branch; a branch without
//! work need not be waited for. Error codes are those of the driver.

use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(super) const UNSUPPORTED: i32 = 900;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
const INVALIDATED: i32 = 901;
/// `CUDA_ERROR_STREAM_CAPTURE_MERGE`.
const MERGE: i32 = 902;
/// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`.
const UNMATCHED: i32 = 903;
/// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`.
const UNJOINED: i32 = 904;
/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`.
const ISOLATION: i32 = 905;
/// `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURED_EVENT: i32 = 907;

fn refusal(call: &'static str, code: i32, words: &str) -> Error {
    Error::Driver {
        call,
        code,
        words: words.to_owned(),
    }
}

/// The error of a call that a stream under capture refuses.
pub(super) fn unsupported(call: &'static str) -> Error {
    refusal(
        call,
        UNSUPPORTED,
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream is being captured",
    )
}

/// The error of ending a capture that did not begin.
pub(super) fn not_capturing() -> Error {
    const ILLEGAL_STATE: i32 = 401;
    refusal(
        "capture_end",
        ILLEGAL_STATE,
        "CUDA_ERROR_ILLEGAL_STATE: the stream is not being captured",
    )
}

/// The error of a query of an event that was recorded in a capture.
pub(super) fn captured_event(call: &'static str) -> Error {
    refusal(
        call,
        CAPTURED_EVENT,
        "CUDA_ERROR_CAPTURED_EVENT: the event was recorded in a capture, which runs no work",
    )
}

/// For each branch, the number of its operations that are waited for.
type Clock = Vec<u64>;

struct State<T> {
    ops: Vec<T>,
    /// By branch: what its next operation runs after, its own operations included.
    branches: Vec<Clock>,
    broken: bool,
    ended: bool,
}

/// The operations of one capture; see the module documentation.
pub(super) struct EmulatedCapture<T>(Mutex<State<T>>);

/// A stream that takes part in a capture.
pub(super) struct Branch<T> {
    capture: Arc<EmulatedCapture<T>>,
    number: usize,
}

impl<T> Clone for Branch<T> {
    fn clone(&self) -> Self {
        Self {
            capture: Arc::clone(&self.capture),
            number: self.number,
        }
    }
}

/// The work that an event recorded in a capture stands for.
pub(super) struct CapturedMark<T> {
    capture: Arc<EmulatedCapture<T>>,
    clock: Clock,
}

impl<T> Clone for CapturedMark<T> {
    fn clone(&self) -> Self {
        Self {
            capture: Arc::clone(&self.capture),
            clock: self.clock.clone(),
        }
    }
}

impl<T> State<T> {
    /// Counts one more operation of `branch`.
    fn count(&mut self, branch: usize) {
        let clock = &mut self.branches[branch];
        if clock.len() <= branch {
            clock.resize(branch + 1, 0);
        }
        clock[branch] += 1;
    }

    /// Makes `branch` wait for `clock`.
    fn merge(&mut self, branch: usize, clock: &[u64]) {
        let own = &mut self.branches[branch];
        if own.len() < clock.len() {
            own.resize(clock.len(), 0);
        }
        for (own, other) in own.iter_mut().zip(clock) {
            *own = (*own).max(*other);
        }
    }
}

impl<T> Branch<T> {
    /// The first branch of a new capture.
    pub(super) fn begin() -> Self {
        let state = State {
            ops: Vec::new(),
            branches: vec![Clock::new()],
            broken: false,
            ended: false,
        };
        Self {
            capture: Arc::new(EmulatedCapture(Mutex::new(state))),
            number: 0,
        }
    }

    /// Whether the capture has not ended.
    pub(super) fn is_open(&self) -> bool {
        !lock(&self.capture.0).ended
    }

    /// Records an operation.
    pub(super) fn push(&self, op: T) {
        let mut state = lock(&self.capture.0);
        state.count(self.number);
        state.ops.push(op);
    }

    /// Returns the work so far, for an event recorded here.
    pub(super) fn mark(&self) -> CapturedMark<T> {
        CapturedMark {
            capture: Arc::clone(&self.capture),
            clock: lock(&self.capture.0).branches[self.number].clone(),
        }
    }

    /// Makes the branch wait for an event recorded in a capture.
    pub(super) fn wait(&self, mark: &CapturedMark<T>) -> Result<()> {
        if !Arc::ptr_eq(&self.capture, &mark.capture) {
            self.break_off();
            let words = "CUDA_ERROR_STREAM_CAPTURE_MERGE: the event is of another capture";
            return Err(refusal("event_wait", MERGE, words));
        }
        lock(&self.capture.0).merge(self.number, &mark.clock);
        Ok(())
    }

    /// The error of a wait for an event recorded outside the capture; invalidates the capture.
    pub(super) fn isolated(&self) -> Error {
        self.break_off();
        let words =
            "CUDA_ERROR_STREAM_CAPTURE_ISOLATION: the event was recorded outside the capture";
        refusal("event_wait", ISOLATION, words)
    }

    /// Invalidates the capture: it was given an operation that it cannot contain.
    pub(super) fn break_off(&self) {
        lock(&self.capture.0).broken = true;
    }

    /// Ends the capture and returns its operations.
    pub(super) fn end(&self) -> Result<Vec<T>> {
        let mut state = lock(&self.capture.0);
        if self.number != 0 {
            let words = "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: the capture began on another stream";
            return Err(refusal("capture_end", UNMATCHED, words));
        }
        state.ended = true;
        let ops = std::mem::take(&mut state.ops);
        if state.broken {
            let words = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: an earlier call broke the capture";
            return Err(refusal("capture_end", INVALIDATED, words));
        }
        let first = &state.branches[0];
        let mut branches = state.branches.iter().enumerate();
        let own = |clock: &Clock, at: usize| clock.get(at).copied().unwrap_or(0);
        let joined = branches.all(|(at, clock)| own(first, at) == own(clock, at));
        if !joined {
            let words =
                "CUDA_ERROR_STREAM_CAPTURE_UNJOINED: the first stream does not wait for all";
            return Err(refusal("capture_end", UNJOINED, words));
        }
        Ok(ops)
    }
}

impl<T> CapturedMark<T> {
    /// Lets a stream join the capture, ordered after the mark. `None` if the capture has ended.
    pub(super) fn join(&self) -> Option<Branch<T>> {
        let mut state = lock(&self.capture.0);
        if state.ended {
            return None;
        }
        state.branches.push(Clock::new());
        let number = state.branches.len() - 1;
        state.merge(number, &self.clock);
        Some(Branch {
            capture: Arc::clone(&self.capture),
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: std::fmt::Debug>(outcome: Result<T>) -> i32 {
        match outcome {
            Err(Error::Driver { code, .. }) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn operations_of_all_branches_come_back_in_the_order_given() {
        let first = Branch::begin();
        first.push(1);
        let second = first.mark().join().unwrap();
        second.push(2);
        first.push(3);
        first.wait(&second.mark()).unwrap();
        assert_eq!(first.end().unwrap(), [1, 2, 3]);
        assert!(!first.is_open() && !second.is_open());
    }

    #[test]
    fn a_branch_with_work_that_is_not_joined_is_an_error() {
        let first = Branch::begin();
        let second = first.mark().join().unwrap();
        second.push(0);
        assert_eq!(code(second.end()), UNMATCHED);
        assert_eq!(code(first.end()), UNJOINED);
        let first = Branch::<i32>::begin();
        let _without_work = first.mark().join().unwrap();
        first.end().unwrap();
        let first = Branch::begin();
        let second = first.mark().join().unwrap();
        first.wait(&second.mark()).unwrap();
        second.push(1);
        assert_eq!(code(first.end()), UNJOINED, "joined before its last work");
    }

    #[test]
    fn a_branch_joined_through_another_is_joined() {
        let first = Branch::begin();
        let second = first.mark().join().unwrap();
        let third = second.mark().join().unwrap();
        third.push(1);
        second.wait(&third.mark()).unwrap();
        first.wait(&second.mark()).unwrap();
        assert_eq!(first.end().unwrap(), [1]);
    }

    #[test]
    fn what_a_capture_cannot_hold_breaks_it() {
        let first = Branch::<i32>::begin();
        assert_eq!(code::<()>(Err(first.isolated())), ISOLATION);
        assert_eq!(code(first.end()), INVALIDATED);
        let (one, two) = (Branch::<i32>::begin(), Branch::<i32>::begin());
        assert_eq!(code(one.wait(&two.mark())), MERGE);
        assert_eq!(code(one.end()), INVALIDATED);
        two.end().unwrap();
        assert!(two.mark().join().is_none());
    }
}
