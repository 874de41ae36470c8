//! The queues of a simulated device, and the steps that run them.
//!
//! Nothing runs by itself. A caller that waits for something runs steps until it is done; a query
//! may run a few. A step runs the next operation of one stream that can run, which the chooser
//! picks. A wait is not a step: it ends as soon as the place it waits for is passed.
//!
//! There is no deadlock: a wait refers to a place that was already queued, so some stream can
//! always run while anything is queued.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use super::choose::Chooser;
use crate::device::Launch;
use crate::device::host::{CapturedOp, Transfer};
use crate::error::{Error, Result};

/// A point in a stream: passed once the stream's operation `number` is done, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) queue: usize,
    pub(super) number: u64,
}

/// Work in a queue.
pub(super) enum Op {
    Launch(Launch),
    Transfer(Transfer),
    Call(Box<dyn FnOnce() + Send>),
    /// Stores the number of steps run so far.
    Stamp(Arc<OnceLock<u64>>),
    Wait(Place),
}

impl From<CapturedOp> for Op {
    fn from(op: CapturedOp) -> Self {
        match op {
            CapturedOp::Launch(launch) => Self::Launch(launch),
            CapturedOp::Transfer(transfer) => Self::Transfer(transfer),
            CapturedOp::Call(work) => Self::Call(Box::new(move || work())),
        }
    }
}

/// One stream's work. It outlives the stream: queued work still runs.
#[derive(Default)]
pub(super) struct Queue {
    /// A number that is unique among the simulated streams of this process.
    pub(super) id: u64,
    ops: VecDeque<Op>,
    queued: u64,
    done: u64,
    /// The first error of its work, and the number of its operation.
    failed: Option<(u64, Error)>,
    /// Whether one of its operations is running, perhaps a host call without the device's lock.
    calling: bool,
    /// Whether its stream is gone.
    closed: bool,
}

/// The result of choosing a step.
pub(super) enum Step {
    /// Nothing is queued that can run now.
    Nothing,
    /// The queue and its operation to run; call [`Schedule::ran`] afterwards.
    Run(usize, Op),
}

/// The queues and the chooser; see the module documentation.
pub(super) struct Schedule {
    chooser: Chooser,
    /// By number.
    queues: BTreeMap<usize, Queue>,
    /// Number of queues ever made.
    made: usize,
    /// Queues with work, by number, ascending.
    active: Vec<usize>,
    /// Those of them that can run now; a field only to save allocations.
    runnable: Vec<usize>,
    steps: u64,
}

impl Schedule {
    pub(super) fn new(chooser: Chooser) -> Self {
        Self {
            chooser,
            queues: BTreeMap::new(),
            made: 0,
            active: Vec::new(),
            runnable: Vec::new(),
            steps: 0,
        }
    }

    /// Adds a queue and returns its number, which is never reused.
    pub(super) fn add(&mut self, id: u64) -> usize {
        let queue = self.made;
        self.made += 1;
        self.queue(queue).id = id;
        queue
    }

    fn queue(&mut self, queue: usize) -> &mut Queue {
        self.queues.entry(queue).or_default()
    }

    /// The stream of this queue is gone: nothing more is queued there.
    pub(super) fn close(&mut self, queue: usize) {
        self.queue(queue).closed = true;
        if self.active.binary_search(&queue).is_err() {
            self.drained(queue);
        }
    }

    /// All work of the queue is done. If its stream is gone, the queue goes too, unless its error may be asked for.
    fn drained(&mut self, queue: usize) {
        let its = self.queue(queue);
        if its.closed && its.failed.is_none() {
            self.queues.remove(&queue);
        }
    }

    pub(super) fn id(&self, queue: usize) -> u64 {
        self.queues[&queue].id
    }

    /// Operations run so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Queues an operation; returns the place after it.
    pub(super) fn push(&mut self, queue: usize, op: Op) -> Place {
        if let Err(at) = self.active.binary_search(&queue) {
            self.active.insert(at, queue);
        }
        let its = self.queue(queue);
        its.ops.push_back(op);
        its.queued += 1;
        Place {
            queue,
            number: its.queued,
        }
    }

    /// The place after everything queued so far.
    pub(super) fn here(&self, queue: usize) -> Place {
        Place {
            queue,
            number: self.queues[&queue].queued,
        }
    }

    fn is_done(&self, place: Place) -> bool {
        let its = self.queues.get(&place.queue);
        its.is_none_or(|its| its.done >= place.number)
    }

    /// Whether `place` is passed; an error if work before it failed.
    pub(super) fn passed(&mut self, place: Place) -> Result<bool> {
        if !self.is_done(place) {
            self.end_waits();
        }
        if !self.is_done(place) {
            return Ok(false);
        }
        let its = self.queues.get(&place.queue);
        match its.and_then(|its| its.failed.as_ref()) {
            Some((number, error)) if *number <= place.number => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Ends every wait at the head of a queue whose place is passed, and lists the queues that can
    /// run.
    fn end_waits(&mut self) {
        let mut ended = true;
        while std::mem::take(&mut ended) {
            self.runnable.clear();
            let mut at = 0;
            while at < self.active.len() {
                let queue = self.active[at];
                // Not past a call that is running.
                while !self.queues[&queue].calling
                    && let Some(&Op::Wait(place)) = self.queues[&queue].ops.front()
                    && self.is_done(place)
                {
                    let its = self.queue(queue);
                    its.ops.pop_front();
                    its.done += 1;
                    ended = true;
                }
                let its = &self.queues[&queue];
                match its.ops.front() {
                    _ if its.calling => {}
                    None => {
                        self.active.remove(at);
                        self.drained(queue);
                        continue;
                    }
                    Some(Op::Wait(_)) => {}
                    Some(_) => self.runnable.push(queue),
                }
                at += 1;
            }
        }
    }

    /// Chooses the next operation and removes it from its queue. Without `calls`, a host call only if nothing else
    /// can run.
    pub(super) fn step(&mut self, calls: bool) -> Step {
        self.end_waits();
        let is_call = |queue: &usize| matches!(self.queues[queue].ops.front(), Some(Op::Call(_)));
        if !calls && !self.runnable.iter().all(is_call) {
            self.runnable.retain(|queue| !is_call(queue));
        }
        if self.runnable.is_empty() {
            return Step::Nothing;
        }
        let queue = self.chooser.pick(&self.runnable);
        self.steps += 1;
        let its = self.queue(queue);
        its.calling = true;
        match its.ops.pop_front() {
            Some(op) => Step::Run(queue, op),
            None => Step::Nothing,
        }
    }

    /// Records that the operation of the last step of `queue` is done.
    pub(super) fn ran(&mut self, queue: usize, outcome: Result<()>) {
        let its = self.queue(queue);
        its.calling = false;
        its.done += 1;
        if let (Err(error), None) = (outcome, &its.failed) {
            its.failed = Some((its.done, error));
        }
    }

    /// Whether a step runs before a query is answered.
    pub(super) fn goes_on(&mut self) -> bool {
        self.chooser.goes_on()
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::Strategy;

    #[test]
    fn queues_go_with_their_streams_once_all_their_work_is_done() {
        let mut schedule = Schedule::new(Chooser::new(Strategy::Random, 0));
        let kept = schedule.add(1);
        for id in 2..50 {
            let queue = schedule.add(id);
            let place = schedule.push(queue, Op::Call(Box::new(|| ())));
            schedule.push(kept, Op::Wait(place));
            schedule.close(queue);
            assert!(!schedule.passed(place).unwrap(), "it still runs");
            assert!(matches!(schedule.step(true), Step::Run(..)));
            schedule.ran(queue, Ok(()));
            let all = schedule.here(kept);
            assert!(schedule.passed(place).unwrap() && schedule.passed(all).unwrap());
        }
        assert_eq!(schedule.queues.len(), 1);
    }

    #[test]
    fn a_call_under_way_is_not_over_because_a_wait_behind_it_may_end() {
        let mut schedule = Schedule::new(Chooser::new(Strategy::Random, 0));
        let [calls, other] = [1, 2].map(|id| schedule.add(id));
        let call = schedule.push(calls, Op::Call(Box::new(|| ())));
        let there = schedule.here(other);
        let behind = schedule.push(calls, Op::Wait(there));
        assert!(matches!(schedule.step(true), Step::Run(..)));
        assert!(!schedule.passed(call).unwrap(), "it is under way");
        schedule.ran(calls, Ok(()));
        assert!(schedule.passed(call).unwrap() && schedule.passed(behind).unwrap());
    }
}
