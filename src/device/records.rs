//! Work that is launched repeatedly: of a table of many tensors, and of a graph.
//!
//! # Tables
//!
//! A table borrows its tensors for as long as it may be launched, so the work that its launches have to wait
//! for is known when it is made. Each tensor's log has one entry that points to the table's record; a launch
//! updates only that record.
//!
//! # Graphs
//!
//! A launch of a graph borrows nothing, so other work may use the graph's buffers between two launches. The
//! logs of those buffers point to the graph's record. An operation that conflicts with such an entry waits
//! for the graph's last launch and reports itself to the graph. A launch waits for everything reported to the
//! graph. Two graphs that use the same bytes report to each other.
//!
//! Between the moment an operation reads the record and the moment it reports itself, no launch may happen.
//! Both are decided under a lock of the device, its *turn*, which is not held while the driver or a caller's code may
//! keep the thread. An operation is counted as under way in the graph meanwhile, and a launch waits until that count
//! is 0. A graph is marked as being launched meanwhile, and operations and launches of its peers wait for that.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::access_entries::raise;
use super::awake::Queueing;
use super::lock;
use super::structure::{
    Awake, GraphRecord, LastQueued, Recorder, StreamCore, TableRecord, Timeline, Turns,
};
use crate::error::{Error, Result};
use crate::sync::{Mutex, MutexGuard, latch, wait};

/// A tick that means: everything queued on the stream by the time it is resolved.
const WHATEVER_IS_OPEN: u64 = u64::MAX;

fn resolved(mark: &LastQueued) -> LastQueued {
    let tick = match mark.1 {
        WHATEVER_IS_OPEN => mark.0.last_tick(),
        tick => tick,
    };
    (Arc::clone(&mark.0), tick)
}

impl TableRecord {
    pub(crate) fn last(&self) -> Option<LastQueued> {
        latch(&self.last).clone()
    }

    /// Whether `timeline`'s stream ran the last launch, or there was no launch yet.
    pub(super) fn is_of(&self, timeline: &Timeline) -> bool {
        latch(&self.last)
            .as_ref()
            .is_none_or(|(last, _)| last.uid == timeline.uid)
    }

    pub(super) fn launched(&self, timeline: &Arc<Timeline>, tick: u64) {
        let mut last = latch(&self.last);
        match &mut *last {
            Some((on, at)) if on.uid == timeline.uid => *at = tick,
            other => *other = Some((Arc::clone(timeline), tick)),
        }
    }

    /// Records that there will be no further launch.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl GraphRecord {
    pub(super) fn new(recorder: Weak<Recorder>) -> Arc<Self> {
        Arc::new(Self {
            recorder,
            state: Mutex::default(),
        })
    }

    pub(crate) fn last(&self) -> Option<LastQueued> {
        lock(&self.state).last.as_ref().map(resolved)
    }

    /// The capture or graph; `None` once it is gone.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        match self.is_over() {
            true => None,
            false => self.recorder.upgrade(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether the graph is gone, and its last launch is done as far as the driver can tell.
    pub(super) fn is_done(&self) -> bool {
        // First: the last launch is final then.
        let is_over = self.is_over();
        let is_past = |(on, tick): LastQueued| {
            on.done() >= tick || on.poll(tick, u64::MAX).is_ok_and(|done| done >= tick)
        };
        is_over && self.last().is_none_or(is_past)
    }

    /// Records that the graph is gone: from now on only its last launch counts.
    pub(super) fn end(&self) {
        let left = {
            let mut state = lock(&self.state);
            state.over = true;
            let reported = std::mem::take(&mut state.reported);
            (reported, std::mem::take(&mut state.peers))
        };
        for peer in left.1.values() {
            let _last = lock(&peer.state).peers.remove(&self.key());
        }
        drop(left);
    }

    /// Makes the next launch wait for `tick`, and no more for what is done or what that runs behind.
    pub(super) fn report(&self, timeline: &Arc<Timeline>, tick: u64) {
        // Its record, if that is still to be made, is behind all that the stream was made to wait for before.
        let is_covered = |(on, at): &mut LastQueued| {
            let is_behind = on.uid != timeline.uid && timeline.is_behind(on, *at);
            is_behind && (on.done() >= *at || timeline.open_tick() == tick)
        };
        let mut state = lock(&self.state);
        // To be dropped without the lock: a stream may end with it.
        let mut covered = Vec::new();
        if !state.over {
            covered.extend(state.reported.extract_if(.., is_covered));
            raise(&mut state.reported, timeline, tick);
        }
        drop(state);
        drop(covered);
    }

    /// Makes each launch from now on wait for everything queued on `timeline`'s stream by then.
    fn hold(&self, timeline: &Arc<Timeline>) {
        lock(&self.state).holders.push(Arc::clone(timeline));
    }

    /// Ends a hold: the next launch waits for everything queued on the stream so far.
    fn let_go(&self, timeline: &Arc<Timeline>) {
        self.report(timeline, timeline.queued_tick());
        let holders = &mut lock(&self.state).holders;
        if let Some(at) = holders.iter().position(|on| on.uid == timeline.uid) {
            holders.swap_remove(at);
        }
    }

    /// Makes two graphs that use the same bytes wait for each other's launches. Call it under the turn.
    pub(super) fn meet(self: &Arc<Self>, other: &Arc<Self>) {
        for (one, two) in [(self, other), (other, self)] {
            let (last, is_over) = (two.last(), two.is_over());
            let mut state = lock(&one.state);
            if !state.over && !is_over {
                let peer = state.peers.entry(two.key());
                peer.or_insert_with(|| Arc::clone(two));
            }
            if let Some((timeline, tick)) = last {
                raise(&mut state.reported, &timeline, tick);
            }
        }
    }

    /// Records that the graph uses memory that may sleep: it cannot be launched while that memory sleeps.
    pub(crate) fn sleeps_with(&self, awake: &Arc<Awake>) {
        let sleepers = &mut lock(&self.state).sleepers;
        if !sleepers.iter().any(|known| Arc::ptr_eq(known, awake)) {
            sleepers.push(Arc::clone(awake));
        }
    }

    fn check_awake(&self) -> Result<()> {
        let state = lock(&self.state);
        state.sleepers.iter().try_for_each(|it| it.check())
    }

    /// Counts an operation of this thread that begins, or that has reported itself. Call it under the turn.
    pub(super) fn count(&self, begins: bool) {
        let mut state = lock(&self.state);
        match begins {
            true => state.under_way += 1,
            false => state.under_way -= 1,
        }
        UNDER_WAY.with(|here| match begins {
            true => here.set(here.get() + 1),
            false => here.set(here.get() - 1),
        });
    }

    /// Queues a launch by `work` on `stream`, after everything reported to the graph.
    pub(super) fn launch(
        &self,
        stream: &StreamCore,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Read after the launch, so that no earlier record appears to cover it.
        self.launch_up_to(Timeline::open_tick, stream, work)?;
        self.hold_behind(&stream.timeline);
        Ok(())
    }

    /// Makes what callers queue under their guards from now on run behind the launch that `timeline`'s stream was given.
    pub(super) fn hold_behind(&self, timeline: &Timeline) {
        let holders = lock(&self.state).holders.clone();
        for on in &holders {
            let _ = on.wait_surely(timeline, timeline.open_tick());
        }
    }

    /// The same as [`GraphRecord::launch`], for a launch that another library is about to queue.
    pub(super) fn about_to_launch(&self, stream: &StreamCore) -> Result<()> {
        self.launch_up_to(|_| WHATEVER_IS_OPEN, stream, || Ok(()))
    }

    fn launch_up_to(
        &self,
        tick: fn(&Timeline) -> u64,
        stream: &StreamCore,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let turn = self.turn_without_others(stream)?;
        // No capture of the stream may begin before the launch is queued.
        let _outside = stream.outside_capture()?;
        let _queueing = Queueing::begin(&stream.timeline);
        self.check_awake()?;
        lock(&self.state).launching = true;
        let mut launching = Launching(self, stream, None);
        drop(turn);
        self.wait_on(&stream.timeline)?;
        launching.2 = Some(tick);
        work()
    }

    /// Takes the device's turn, once no operation on the graph's memory is under way.
    fn turn_without_others<'s>(&self, stream: &'s StreamCore) -> Result<MutexGuard<'s, ()>> {
        let turns = &stream.device.inner.turns;
        let mut turn = turns.take();
        loop {
            let (under_way, mut others) = {
                let state = lock(&self.state);
                let peers: Vec<_> = state.peers.values().cloned().collect();
                (state.under_way > 0, peers.into_iter())
            };
            if !under_way && !self.is_being_launched() && !others.any(|it| it.is_being_launched()) {
                return Ok(turn);
            }
            if under_way && UNDER_WAY.with(Cell::get) > 0 {
                return Err(Error::invalid(
                    "graph",
                    "this thread is queueing a kernel that uses memory of a graph: launch graphs after that",
                ));
            }
            turn = wait(&turns.changed, turn);
        }
    }

    /// Whether work that began under the capture, or beside the graph, has not been reported yet.
    pub(super) fn has_work_under_way(&self) -> bool {
        let state = lock(&self.state);
        state.under_way > 0 || !state.holders.is_empty()
    }

    fn is_being_launched(&self) -> bool {
        lock(&self.state).launching
    }

    /// Makes the stream wait for everything reported to the graph. Later launches need not: they run behind this one.
    fn wait_on(&self, timeline: &Timeline) -> Result<()> {
        let (reported, marks) = {
            let mut state = lock(&self.state);
            let held = |on: &Arc<Timeline>| resolved(&(Arc::clone(on), WHATEVER_IS_OPEN));
            let reported = state.reported.iter().chain(&state.last).map(resolved);
            let marks: Vec<LastQueued> = reported.chain(state.holders.iter().map(held)).collect();
            (std::mem::take(&mut state.reported), marks)
        };
        let mut marks = marks.iter();
        let waited =
            marks.try_for_each(|(theirs, tick)| timeline.wait_for(theirs, *tick).map(|_| ()));
        if waited.is_err() {
            let again = reported.iter();
            again.for_each(|(theirs, tick)| self.report(theirs, *tick));
        }
        waited
    }

    /// Records a launch. Returns what the graph lets go of, to be dropped without a lock: a stream may end with it.
    #[must_use]
    fn launched(&self, timeline: &Arc<Timeline>, tick: u64) -> LetGo {
        let mut last = Some((Arc::clone(timeline), tick));
        let peers: Vec<_> = {
            let mut state = lock(&self.state);
            std::mem::swap(&mut state.last, &mut last);
            let peers = state.peers.values().cloned().collect();
            // One that went as both met.
            state.peers.retain(|_, peer| !peer.is_over());
            peers
        };
        for peer in &peers {
            peer.report(timeline, tick);
        }
        (last, peers)
    }
}

/// The last launch of a graph, and its peers.
type LetGo = (Option<LastQueued>, Vec<Arc<GraphRecord>>);

/// A graph that is being launched on a stream, until this is dropped; and the tick that covers the launch, once it
/// may be queued.
struct Launching<'l>(
    &'l GraphRecord,
    &'l StreamCore,
    Option<fn(&Timeline) -> u64>,
);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        let Self(graph, stream, tick) = self;
        let (turns, timeline) = (&stream.device.inner.turns, &stream.timeline);
        let turn = turns.take();
        let let_go = tick.map(|tick| graph.launched(timeline, tick(timeline)));
        lock(&graph.state).launching = false;
        turns.tell();
        drop(turn);
        drop(let_go);
    }
}

/// Keeps launches of these graphs ordered after the caller's own work, which is noted only at its end, until
/// this is dropped.
pub(crate) struct Held(Vec<(Arc<GraphRecord>, Arc<Timeline>)>);

impl Held {
    pub(crate) fn new(graphs: &[Arc<GraphRecord>], timeline: &Arc<Timeline>) -> Self {
        let held = graphs.iter().map(|graph| {
            graph.hold(timeline);
            (Arc::clone(graph), Arc::clone(timeline))
        });
        Self(held.collect())
    }

    /// Whether one of the graphs may be launched.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) fn has_graphs(&self) -> bool {
        self.0.iter().any(|(graph, _)| !graph.is_over())
    }

    /// Takes over the holds of `other` that this value does not have.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) fn join(&mut self, mut other: Self) {
        for (graph, timeline) in std::mem::take(&mut other.0) {
            let known = |(one, on): &(Arc<GraphRecord>, Arc<Timeline>)| {
                Arc::ptr_eq(one, &graph) && on.uid == timeline.uid
            };
            match self.0.iter().any(known) {
                true => graph.let_go(&timeline),
                false => self.0.push((graph, timeline)),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (graph, timeline) in &self.0 {
            graph.let_go(timeline);
        }
    }
}

crate::sync::thread_local! {
    /// Number of this thread's operations that are under way in a graph.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

impl Turns {
    pub(super) fn take(&self) -> MutexGuard<'_, ()> {
        lock(&self.taken)
    }

    /// As [`Turns::take`], once none of `graphs` is being launched.
    pub(super) fn take_beside(&self, graphs: &[Arc<GraphRecord>]) -> MutexGuard<'_, ()> {
        let mut turn = self.take();
        while graphs.iter().any(|graph| graph.is_being_launched()) {
            turn = wait(&self.changed, turn);
        }
        turn
    }

    /// Wakes waiters after an operation or a launch has ended.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::Device;
    use crate::sync::try_lock;

    #[test]
    fn what_a_graph_lets_go_of_goes_without_its_lock() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let on = &stream.core().timeline;
        for ends in [false, true] {
            let graph = GraphRecord::new(Weak::new());
            let gone = device.stream().unwrap();
            match ends {
                false => drop(graph.launched(&gone.core().timeline, 1)),
                true => graph.report(&gone.core().timeline, 1),
            }
            drop(gone);
            // A stream that goes needs this lock, and perhaps the driver.
            let known = device.timelines();
            std::thread::scope(|scope| {
                scope.spawn(|| match ends {
                    false => drop(graph.launched(on, 2)),
                    true => graph.end(),
                });
                let begin = Instant::now();
                let is_let_go = || {
                    let state = try_lock(&graph.state);
                    state.is_some_and(|it| match ends {
                        false => it.last.as_ref().is_some_and(|last| last.1 == 2),
                        true => it.over,
                    })
                };
                while !is_let_go() && begin.elapsed() < Duration::from_secs(5) {
                    std::thread::yield_now();
                }
                let free = is_let_go();
                drop(known);
                assert!(free, "its lock is held");
            });
        }
    }

    #[test]
    fn graphs_that_meet_look_at_no_third() {
        let [one, two, third] = [(); 3].map(|()| GraphRecord::new(Weak::new()));
        one.meet(&third);
        let (told, met) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let state = lock(&third.state);
            scope.spawn(|| {
                one.meet(&two);
                told.send(()).unwrap();
            });
            let met = met.recv_timeout(Duration::from_secs(5));
            drop(state);
            assert!(met.is_ok(), "it asks each graph met before");
        });
    }

    #[test]
    fn a_graph_is_told_how_one_that_it_meets_was_launched_last() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let on = &stream.core().timeline;
        let [one, two] = [(); 2].map(|()| GraphRecord::new(Weak::new()));
        drop(one.launched(on, 7));
        two.meet(&one);
        let is_it = |(theirs, tick): &LastQueued| theirs.uid == on.uid && *tick == 7;
        let is_told = |graph: &GraphRecord| lock(&graph.state).reported.iter().any(is_it);
        assert!(is_told(&two) && !is_told(&one));
    }

    #[test]
    fn a_graph_that_goes_is_no_peer_of_others() {
        let [one, two, third] = [(); 3].map(|()| GraphRecord::new(Weak::new()));
        one.meet(&two);
        one.meet(&third);
        two.end();
        assert_eq!(lock(&one.state).peers.len(), 1);
        two.meet(&one);
        assert_eq!(Arc::strong_count(&two), 1);
    }
}
