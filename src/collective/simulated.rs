//! Ranks of one process on the host device.
//!
//! A collective is a host call on each rank's stream. The call deposits the rank's arguments and waits; the
//! last rank to come does the work for all, under the lock. If a rank gives up because another did not come,
//! nothing is done any more, so that nothing touches its memory afterwards.
//!
//! The second communicator of the ranks has its own numbers. The rest is the first one's: what fails in one
//! has failed in both.
//!
//! Captured collectives are numbered like all others. In each run of the graph the ranks meet by that number
//! and the number of the run. So runs of several graphs, and collectives queued between them, need no common
//! order between ranks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::end_of;
use super::transport::{Act, Call, Transport};
use crate::device::{Checked, Device, DeviceInfo, DeviceKind, Stream};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// The key by which ranks meet: the number of a collective, or of a transfer between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Meeting {
    All(u64),
    Two { from: u32, to: u32, number: u64 },
}

/// Which of the two communicators of the same ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    First,
    Second,
}

/// A meeting of a communicator, and the number of the graph's run that it is in, from 1; 0 outside graphs.
type Run = (Link, Meeting, u64);

/// The kinds of meetings that a rank counts separately.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    All,
    To(u32),
    From(u32),
}

/// The arguments that ranks deposited so far. For a transfer, the sender's come first, then the receiver's.
struct Round {
    calls: Vec<Option<Call>>,
    done: bool,
    /// Number of ranks that have seen it done.
    left: usize,
}

struct State {
    rounds: HashMap<Run, Round>,
    /// Ends that were dropped, by their rank: the numbers of the first meetings without them, 0 of a kind that
    /// is not there.
    gone: HashMap<(Link, u32), HashMap<Kind, u64>>,
    failed: Option<Error>,
}

struct World {
    size: u32,
    patience: Duration,
    state: Mutex<State>,
    moved: Condvar,
}

/// One rank's end of a communicator.
pub(super) struct Simulated {
    world: Arc<World>,
    link: Link,
    rank: u32,
    device: Device,
    /// Number of meetings so far, by kind; locked while one is queued.
    numbers: Mutex<HashMap<Kind, u64>>,
}

pub(super) fn ends(devices: &[Device], patience: Duration) -> Result<Vec<Simulated>> {
    let on_host = |device: &Device| device.info().kind == DeviceKind::Host;
    if devices.is_empty() || !devices.iter().all(on_host) {
        let why = "simulated ranks need at least one device, and only host devices";
        return Err(Error::invalid("devices", why));
    }
    let world = Arc::new(World {
        size: devices.len() as u32,
        patience,
        state: Mutex::new(State {
            rounds: HashMap::new(),
            gone: HashMap::new(),
            failed: None,
        }),
        moved: Condvar::new(),
    });
    let end = |(rank, device): (usize, &Device)| Simulated {
        world: Arc::clone(&world),
        link: Link::First,
        rank: rank as u32,
        device: device.clone(),
        numbers: Mutex::default(),
    };
    Ok(devices.iter().enumerate().map(end).collect())
}

fn failure(call: &'static str, words: String) -> Error {
    Error::Os { call, words }
}

impl Simulated {
    /// Counts the call; returns its meeting with other ranks, and this rank's place there.
    fn meet(&self, numbers: &mut HashMap<Kind, u64>, call: &Call) -> Mine {
        let mut next = |kind| {
            let number = numbers.entry(kind).or_insert(0);
            *number += 1;
            *number - 1
        };
        let rank = self.rank;
        match call.act {
            Act::Send(to) => {
                let number = next(Kind::To(to));
                let from = rank;
                (Meeting::Two { from, to, number }, 0, *call)
            }
            Act::Recv(from) => {
                let number = next(Kind::From(from));
                let to = rank;
                (Meeting::Two { from, to, number }, 1, *call)
            }
            _ => (Meeting::All(next(Kind::All)), rank as usize, *call),
        }
    }
}

impl Checked for Simulated {
    fn check(&self) -> Result<()> {
        lock(&self.world.state).failed.clone().map_or(Ok(()), Err)
    }
}

impl Transport for Simulated {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.world.size
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn peers(&self) -> &[DeviceInfo] {
        &[]
    }

    fn check_capture(&self) -> Result<()> {
        Ok(())
    }

    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()> {
        self.check()?;
        let mut numbers = lock(&self.numbers);
        let mut next = numbers.clone();
        let mine: Vec<_> = calls
            .iter()
            .map(|call| self.meet(&mut next, call))
            .collect();
        let (world, link) = (Arc::clone(&self.world), self.link);
        let (backend, raw) = (stream.device().backend(), stream.raw());
        if backend.stream_capturing(raw)? {
            let runs = AtomicU64::new(1);
            let work = move || world.meet(link, &mine, runs.fetch_add(1, Ordering::Relaxed));
            backend.host_call_in_each_run(raw, Arc::new(work))?;
        } else {
            backend.host_call(raw, Box::new(move || world.meet(link, &mine, 0)))?;
        }
        // Collectives that could not be queued do not count.
        *numbers = next;
        Ok(())
    }

    fn abort(&self) -> Result<()> {
        let words = format!("rank {} aborted it", self.rank);
        self.world
            .fail(&mut lock(&self.world.state), failure("collective", words));
        Ok(())
    }

    fn twin(self: Arc<Self>) -> Result<Option<Arc<dyn Transport>>> {
        Ok(Some(Arc::new(Self {
            world: Arc::clone(&self.world),
            link: Link::Second,
            rank: self.rank,
            device: self.device.clone(),
            numbers: Mutex::default(),
        })))
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut *lock(&self.numbers));
        let mut state = lock(&self.world.state);
        state.gone.insert((self.link, self.rank), numbers);
        drop(state);
        self.world.moved.notify_all();
    }
}

/// A meeting, this rank's place in it, and its arguments.
type Mine = (Meeting, usize, Call);

impl World {
    fn fail(&self, state: &mut State, error: Error) {
        state.failed.get_or_insert(error);
        self.moved.notify_all();
    }

    /// Deposits a rank's calls of this run, and waits until all are done or one has failed.
    fn meet(&self, link: Link, mine: &[Mine], run: u64) {
        let deadline = end_of(self.patience);
        let mut state = lock(&self.state);
        for (meeting, place, call) in mine {
            if state.failed.is_none()
                && let Err(error) = self.lay_down(&mut state, (link, *meeting, run), *place, *call)
            {
                self.fail(&mut state, error);
            }
        }
        self.moved.notify_all();
        while state.failed.is_none() {
            let Some(waiting) = mine
                .iter()
                .find(|(meeting, ..)| !state.rounds[&(link, *meeting, run)].done)
            else {
                break;
            };
            let now = Instant::now();
            if let Some(error) =
                self.lost(&state, (link, waiting.0, run), &waiting.2, now >= deadline)
            {
                self.fail(&mut state, error);
                break;
            }
            let waited = self.moved.wait_timeout(state, deadline - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        for (meeting, ..) in mine {
            state.leave((link, *meeting, run));
        }
    }

    fn lay_down(&self, state: &mut State, run: Run, place: usize, call: Call) -> Result<()> {
        let (_, meeting, _) = run;
        let places = match meeting {
            Meeting::All(_) => self.size as usize,
            Meeting::Two { .. } => 2,
        };
        let round = state.rounds.entry(run).or_insert_with(|| Round {
            calls: vec![None; places],
            done: false,
            left: 0,
        });
        round.calls[place] = Some(call);
        if let Some(calls) = round.calls.iter().copied().collect::<Option<Vec<_>>>() {
            check_alike(meeting, &calls)?;
            // SAFETY: each rank waits in a host call of a stream that is ordered after the memory's other
            // uses, and the lock is held.
            unsafe { perform(&calls) };
            round.done = true;
        }
        Ok(())
    }

    /// The error if a rank that is waited for will not come.
    fn lost(&self, state: &State, run: Run, call: &Call, late: bool) -> Option<Error> {
        let (link, meeting, _) = run;
        let name = call.act.name();
        let there = &state.rounds[&run].calls;
        let (Meeting::All(number) | Meeting::Two { number, .. }) = meeting;
        // The ranks that are missing, and the kind as which each would count this meeting.
        let missing: Vec<(u32, Kind)> = match meeting {
            Meeting::All(_) => (0..self.size)
                .filter(|&rank| there[rank as usize].is_none())
                .map(|rank| (rank, Kind::All))
                .collect(),
            Meeting::Two { from, to, .. } => [(from, Kind::To(to)), (to, Kind::From(from))]
                .into_iter()
                .zip(there)
                .filter_map(|(who, call)| call.is_none().then_some(who))
                .collect(),
        };
        let is_gone = |(rank, kind): &&(u32, Kind)| {
            let numbers = state.gone.get(&(link, *rank));
            numbers.is_some_and(|its| its.get(kind).copied().unwrap_or(0) <= number)
        };
        if let Some((rank, _)) = missing.iter().find(is_gone) {
            return Some(failure(
                name,
                format!("rank {rank} has left the communicator"),
            ));
        }
        let missing: Vec<u32> = missing.into_iter().map(|(rank, _)| rank).collect();
        late.then(|| {
            failure(
                name,
                format!("ranks {missing:?} did not come within {:?}", self.patience),
            )
        })
    }
}

impl State {
    /// Removes a rank from a meeting that is done or has failed.
    fn leave(&mut self, run: Run) {
        let Some(round) = self.rounds.get_mut(&run) else {
            return;
        };
        round.left += 1;
        if round.left == round.calls.len() {
            self.rounds.remove(&run);
        }
    }
}

/// Returns an error unless all ranks made the same call.
fn check_alike(meeting: Meeting, calls: &[Call]) -> Result<()> {
    let first = calls[0];
    for (rank, call) in calls.iter().enumerate() {
        let acts = matches!(meeting, Meeting::Two { .. }) || call.act == first.act;
        if !acts || call.kind.number != first.kind.number || call.count != first.count {
            let words = |call: &Call| format!("{:?} of {} {:?}", call.act, call.count, call.kind);
            let why = format!(
                "rank 0 asked for {}, place {rank} for {}",
                words(&first),
                words(call)
            );
            return Err(failure(first.act.name(), why));
        }
    }
    Ok(())
}

/// Does the work of all ranks.
///
/// # Safety
/// The calls contain memory that nothing else uses meanwhile.
unsafe fn perform(calls: &[Call]) {
    let bytes = calls[0].count * calls[0].kind.bytes;
    if bytes == 0 {
        // Addresses of nothing may be null.
        return;
    }
    let copy = |from: u64, to: u64| {
        if from != to {
            // SAFETY: the caller's requirement; views that are written overlap no others.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }
    };
    match calls[0].act {
        Act::Send(_) | Act::Recv(_) => copy(calls[0].src, calls[1].dst),
        Act::Broadcast(root) => {
            for call in calls {
                copy(calls[root as usize].src, call.dst);
            }
        }
        Act::AllGather => {
            for (rank, from) in calls.iter().enumerate() {
                for to in calls {
                    copy(from.src, to.dst + (rank * bytes) as u64);
                }
            }
        }
        Act::AllReduce(op) => {
            // SAFETY: the caller's requirement.
            let sum = unsafe { folded(calls, op, 0) };
            for call in calls {
                copy(sum.as_ptr() as u64, call.dst);
            }
        }
        Act::ReduceScatter(op) => {
            for (rank, call) in calls.iter().enumerate() {
                // SAFETY: the caller's requirement.
                let sum = unsafe { folded(calls, op, (rank * bytes) as u64) };
                copy(sum.as_ptr() as u64, call.dst);
            }
        }
    }
}

/// The elements at `offset` of every rank's source, reduced in the order of the ranks.
///
/// # Safety
/// The same as for [`perform`].
unsafe fn folded(calls: &[Call], op: super::Op, offset: u64) -> Vec<u64> {
    let (kind, count) = (calls[0].kind, calls[0].count);
    let bytes = count * kind.bytes;
    // As words, so that elements of every kind are aligned.
    let mut sum = vec![0u64; bytes.div_ceil(8)];
    let into = sum.as_mut_ptr().cast::<u8>();
    for (rank, call) in calls.iter().enumerate() {
        let from = (call.src + offset) as *const u8;
        // SAFETY: the caller's requirement; `sum` has the bytes, and kinds that are reduced have a fold.
        unsafe {
            match (rank, kind.fold) {
                (0, _) => std::ptr::copy_nonoverlapping(from, into, bytes),
                (_, Some(fold)) => fold(op, into, from, count),
                (_, None) => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests;
