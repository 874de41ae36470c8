//! NCCL communicators.
//!
//! NCCL's collectives are queued on the stream like kernels. The communicators are blocking ones:
//! non-blocking ones start a thread of NCCL for every group, which is polled until it is done; that takes as
//! long as a small sum. Calls that may wait for other ranks, because they make communicators or connect
//! ranks, run on a separate thread of this module, so that every such wait has a time limit (`in_time`):
//! making a communicator, ending it, and the first call of each kind and size. Every other operation is a
//! single NCCL call, or its calls plus the two that begin and end a group.
//!
//! NCCL connects the ranks for an algorithm when a collective first takes it, and for a transfer when two ranks
//! first make one. It chooses the algorithm by the calls of a group, their element types and their sizes, and
//! no rounding of sizes keeps to one side of every boundary. So the same calls with the same sizes are known
//! to be connected, and nothing else is. Calls whose sizes always differ take a thread's start more each.
//!
//! NCCL itself records its kernels under capture. The graph keeps the communicator.

mod beside;
mod in_time;
mod library;
mod members;

use std::collections::HashSet;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use self::in_time::in_time;
use self::library::{Config, IN_PROGRESS, Library, RawComm, UniqueId};
use super::Ranks;
use super::meet::meet;
use super::transport::{Act, Call, Transport};
use crate::device::{
    Checked, Device, DeviceInfo, DeviceKind, Stream, Timeline, beside, is_running,
};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

pub use self::library::open_library;

/// One rank's end of a communicator.
pub(super) struct Nccl {
    nccl: &'static Library,
    state: Mutex<State>,
    rank: u32,
    size: u32,
    device: Device,
    peers: Vec<DeviceInfo>,
    patience: Duration,
    /// The first failure of this communicator or of its twin.
    failed: Arc<OnceLock<Error>>,
    /// Keeps the source of `peers`; a second communicator has the first one's.
    _members: Option<members::Members>,
    /// For a second communicator: the end that it was split from. It ends after this one, so that all ranks
    /// end the two in one order.
    _first: Option<Arc<Self>>,
}

struct State {
    comm: Handle,
    /// Groups that were queued before, by [`class_of`]: their ranks are connected.
    connected: HashSet<u64>,
    /// The stream of the last collective. NCCL makes each wait for those before it, so this one is done last.
    last: Option<Arc<Timeline>>,
}

/// The most groups that are remembered; then all are forgotten, and each starts a thread once more.
const MOST_KNOWN: usize = 4096;

/// A communicator's handle; null once it is destroyed.
#[derive(Clone, Copy)]
struct Handle(RawComm);

// SAFETY: NCCL's communicators may be used from any thread, one at a time.
unsafe impl Send for Handle {}

/// Makes the end of this process's rank.
pub(super) fn end(device: &Device, ranks: &Ranks, patience: Duration) -> Result<Nccl> {
    let library = Library::get()?;
    check_device(library, device)?;
    let made = meet(ranks, patience, || Ok(new_id(library)?.0.to_vec()))?;
    let id = <[u8; 128]>::try_from(made)
        .map_err(|_| Error::invalid("meet", "rank 0 did not send an NCCL identifier"))?;
    join(
        library,
        device,
        UniqueId(id),
        (ranks.rank, ranks.size),
        patience,
    )
}

/// Makes the ends of all devices of this process.
pub(super) fn ends(devices: &[Device], patience: Duration) -> Result<Vec<Nccl>> {
    let library = Library::get()?;
    devices
        .iter()
        .try_for_each(|device| check_device(library, device))?;
    let id = new_id(library)?;
    let size = devices.len() as u32;
    std::thread::scope(|scope| {
        let join = |(rank, device): (usize, _)| {
            let who = (rank as u32, size);
            scope.spawn(move || join(library, device, id, who, patience))
        };
        let threads: Vec<_> = devices.iter().enumerate().map(join).collect();
        let joined = threads.into_iter().map(|thread| {
            let lost = |_| Err(Error::invalid("devices", "a thread of a rank panicked"));
            thread.join().unwrap_or_else(lost)
        });
        joined.collect()
    })
}

fn check_device(library: &Library, device: &Device) -> Result<()> {
    let wanted = match library.stands_in {
        true => DeviceKind::Host,
        false => DeviceKind::Cuda,
    };
    if device.info().kind == wanted {
        return Ok(());
    }
    let why = format!(
        "NCCL joins GPUs, this is {:?}: use Comm::simulated",
        device.info().name
    );
    Err(Error::invalid("device", why))
}

fn new_id(library: &Library) -> Result<UniqueId> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: the call writes the identifier.
    let code = unsafe { (library.ncclGetUniqueId)(&raw mut id) };
    library.ok("ncclGetUniqueId", code).map(|()| id)
}

fn join(
    library: &'static Library,
    device: &Device,
    id: UniqueId,
    (rank, size): (u32, u32),
    patience: Duration,
) -> Result<Nccl> {
    let members = members::enter(id.0, device.info());
    let mut end = Nccl {
        nccl: library,
        state: State::of(Handle(std::ptr::null_mut())),
        rank,
        size,
        device: device.clone(),
        peers: Vec::new(),
        patience,
        failed: Arc::default(),
        _members: Some(members.clone()),
        _first: None,
    };
    end.in_context(|end, state| end.make(state, id))?;
    end.peers = members::peers(&members, device.info().ordinal);
    Ok(end)
}

impl Nccl {
    /// Runs `work` with the device's context current and the state locked.
    fn in_context(&self, work: impl FnOnce(&Self, &mut State) -> Result<()>) -> Result<()> {
        let mut state = lock(&self.state);
        self.device.in_context(|| work(self, &mut state))?
    }

    fn make(&self, state: &mut State, id: UniqueId) -> Result<()> {
        const CALL: &str = "ncclCommInitRankConfig";
        let library = self.nccl;
        let (size, rank) = (self.size as c_int, self.rank as c_int);
        let make = move || {
            let (mut comm, config) = (Handle(std::ptr::null_mut()), Config::blocking());
            let (handle, config) = (&raw mut comm.0, &raw const config);
            // SAFETY: the call writes one handle and reads the configuration.
            let code = unsafe { (library.ncclCommInitRankConfig)(handle, size, id, rank, config) };
            (comm, code)
        };
        let too_late = move |(comm, _): (Handle, c_int)| _ = abort(library, comm);
        let made = self.in_time(make, too_late)?;
        let (comm, code) = made.ok_or_else(|| self.late(CALL))?;
        state.comm = comm;
        let made = library.ok(CALL, code);
        let made = made.and_then(|()| self.check_ordinal(state));
        if made.is_err() {
            self.give_up(state);
        }
        made
    }

    /// Returns an error unless NCCL uses the same GPU as the device.
    fn check_ordinal(&self, state: &State) -> Result<()> {
        let mut device = 0;
        // SAFETY: the call writes one integer; the communicator is made.
        let code = unsafe { (self.nccl.ncclCommCuDevice)(state.comm.0, &raw mut device) };
        self.nccl.ok("ncclCommCuDevice", code)?;
        let ordinal = self.device.info().ordinal;
        if device as u32 == ordinal || self.nccl.stands_in {
            return Ok(());
        }
        let why = format!("NCCL took GPU {device} for GPU {ordinal}");
        Err(Error::invalid("device", why))
    }

    /// Runs `work` in the time given, and no longer than until the communicator is aborted: see [`in_time`].
    fn in_time<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
        too_late: impl FnOnce(R) + Send + 'static,
    ) -> Result<Option<R>> {
        let wanted = || self.failed.get().is_none();
        in_time(&self.device, self.patience, wanted, work, too_late)
    }

    /// The error of a call that did not return in time.
    fn late(&self, call: &'static str) -> Error {
        if let Some(failed) = self.failed.get() {
            return failed.clone();
        }
        let words = format!(
            "not all of {} ranks came within {:?}, says rank {}",
            self.size, self.patience, self.rank
        );
        let code = IN_PROGRESS;
        Error::Driver { call, code, words }
    }

    /// The communicator's asynchronous error code.
    fn asked(&self, state: &State) -> Result<c_int> {
        let mut code = 0;
        // SAFETY: the call writes one code; the communicator is not destroyed.
        let asked = unsafe { (self.nccl.ncclCommGetAsyncError)(state.comm.0, &raw mut code) };
        self.nccl.ok("ncclCommGetAsyncError", asked).map(|()| code)
    }

    /// Destroys the communicator without the other ranks.
    fn give_up(&self, state: &mut State) -> c_int {
        abort(self.nccl, state.take())
    }

    /// Destroys the communicator because a call did not return in time; returns that error.
    fn too_late<T>(&self, state: &mut State, call: &'static str) -> Result<T> {
        self.give_up(state);
        Err(self.late(call))
    }

    /// Queues the calls as one group.
    ///
    /// # Safety
    /// The same as for [`Transport::queue`].
    unsafe fn group(&self, state: &mut State, stream: u64, calls: &[Call]) -> Result<()> {
        let (library, comm, class) = (self.nccl, state.comm, class_of(calls));
        if self.size == 1 || state.connected.contains(&class) {
            // SAFETY: the caller's requirement.
            return unsafe { group(library, comm, stream, calls) };
        }
        let calls = calls.to_vec();
        let last = calls.last().map_or("ncclGroupEnd", |call| call.act.name());
        // SAFETY: the caller's requirement. A call that does not return in time is aborted below, and queues
        // nothing more.
        let queue = move || unsafe { group(library, comm, stream, &calls) };
        let queued = self.in_time(queue, drop)?;
        queued.unwrap_or_else(|| self.too_late(state, last))?;
        if state.connected.len() == MOST_KNOWN {
            state.connected.clear();
        }
        state.connected.insert(class);
        Ok(())
    }

    /// Returns an error once something has failed, or the communicator was aborted.
    fn refuse_failed(&self) -> Result<()> {
        self.failed.get().cloned().map_or(Ok(()), Err)
    }

    /// Remembers a failure.
    fn noted<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| _ = self.failed.set(error.clone()))
    }

    /// Ends the communicator after the queued work, on all ranks; returns false if that does not finish in
    /// time.
    fn finish(&self, state: &mut State) -> Result<bool> {
        let (library, comm) = (self.nccl, state.comm);
        let finalize = move || {
            let comm = comm;
            // SAFETY: the communicator is only used again to destroy it.
            let code = unsafe { (library.ncclCommFinalize)(comm.0) };
            library.ok("ncclCommFinalize", code)
        };
        // After a call that is late the caller aborts, so the thread of that call may not destroy.
        if !matches!(self.in_time(finalize, drop)?, Some(Ok(()))) {
            return Ok(false);
        }
        // The handle is invalid from here on, even after an error.
        let comm = state.take();
        let destroy = move || {
            let comm = comm;
            // SAFETY: the communicator is not used again.
            let code = unsafe { (library.ncclCommDestroy)(comm.0) };
            library.ok("ncclCommDestroy", code)
        };
        let destroyed = self.in_time(destroy, drop)?;
        destroyed.unwrap_or_else(|| Err(self.late("ncclCommDestroy")))?;
        Ok(true)
    }
}

impl State {
    fn of(comm: Handle) -> Mutex<Self> {
        Mutex::new(Self {
            comm,
            connected: HashSet::new(),
            last: None,
        })
    }

    fn take(&mut self) -> Handle {
        std::mem::replace(&mut self.comm, Handle(std::ptr::null_mut()))
    }
}

/// Aborts a communicator without the other ranks, if there is one.
fn abort(library: &Library, comm: Handle) -> c_int {
    match comm.0.is_null() {
        true => 0,
        // SAFETY: the communicator is not used again.
        false => unsafe { (library.ncclCommAbort)(comm.0) },
    }
}

/// The properties by which NCCL chooses connections between ranks: the calls and their sizes.
fn class_of(calls: &[Call]) -> u64 {
    let mut class = DefaultHasher::new();
    for call in calls {
        (call.act, call.kind.number, call.count).hash(&mut class);
    }
    class.finish()
}

/// Queues calls as one group.
///
/// # Safety
/// The same as for [`Transport::queue`].
unsafe fn group(library: &Library, comm: Handle, stream: u64, calls: &[Call]) -> Result<()> {
    if let [one] = calls {
        // SAFETY: the caller's requirement.
        let code = unsafe { call(library, comm.0, stream, one) };
        return library.ok(one.act.name(), code);
    }
    // SAFETY: no arguments.
    let code = unsafe { (library.ncclGroupStart)() };
    library.ok("ncclGroupStart", code)?;
    let mut outcome = Ok(());
    for one in calls {
        // SAFETY: the caller's requirement.
        let code = unsafe { call(library, comm.0, stream, one) };
        if outcome.is_ok() {
            outcome = library.ok(one.act.name(), code);
        }
    }
    // SAFETY: no arguments; a group that was begun is ended even if one of its calls failed.
    let code = unsafe { (library.ncclGroupEnd)() };
    outcome.and_then(|()| library.ok("ncclGroupEnd", code))
}

/// # Safety
/// The same as for [`Transport::queue`].
unsafe fn call(library: &Library, comm: RawComm, stream: u64, call: &Call) -> c_int {
    let kind = call.kind.number;
    let (src, dst, count) = (call.src, call.dst, call.count);
    // SAFETY: the caller's requirement.
    unsafe {
        match call.act {
            Act::AllReduce(op) => {
                (library.ncclAllReduce)(src, dst, count, kind, op.number(), comm, stream)
            }
            Act::ReduceScatter(op) => {
                (library.ncclReduceScatter)(src, dst, count, kind, op.number(), comm, stream)
            }
            Act::AllGather => (library.ncclAllGather)(src, dst, count, kind, comm, stream),
            Act::Broadcast(root) => {
                (library.ncclBroadcast)(src, dst, count, kind, root as c_int, comm, stream)
            }
            Act::Send(to) => (library.ncclSend)(src, count, kind, to as c_int, comm, stream),
            Act::Recv(from) => (library.ncclRecv)(dst, count, kind, from as c_int, comm, stream),
        }
    }
}

impl Checked for Nccl {
    fn check(&self) -> Result<()> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            // A call under way may wait for other ranks, and returns its failure itself.
            Err(TryLockError::WouldBlock) => return self.refuse_failed(),
        };
        // Under the lock: an abort leaves no communicator to ask.
        self.refuse_failed()?;
        let sound = match self.asked(&state)? {
            IN_PROGRESS => Ok(()),
            code => self.nccl.ok("ncclCommGetAsyncError", code),
        };
        self.noted(sound)
    }
}

impl Transport for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn peers(&self) -> &[DeviceInfo] {
        &self.peers
    }

    fn check_capture(&self) -> Result<()> {
        let said = std::env::var("NCCL_GRAPH_REGISTER");
        if self.size == 1 || said.is_ok_and(|said| said.trim() == "0") {
            return Ok(());
        }
        let why = "it is being captured, and NCCL would register the memory with the other ranks as one \
                   allocation, which a pool's is not: set NCCL_GRAPH_REGISTER=0 before the program starts";
        Err(Error::invalid("stream", why))
    }

    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()> {
        let mut state = lock(&self.state);
        self.refuse_failed()?;
        if calls.is_empty() {
            return Ok(());
        }
        let timeline = &stream.core().timeline;
        if (state.last.as_ref()).is_none_or(|last| last.uid != timeline.uid) {
            state.last = Some(Arc::clone(timeline));
        }
        // SAFETY: the caller's requirement.
        self.noted(unsafe { self.group(&mut state, stream.raw().0, calls) })
    }

    fn abort(&self) -> Result<()> {
        // First, as it ends the wait of a call that has the lock.
        let (call, words) = ("ncclCommAbort", format!("rank {} aborted it", self.rank));
        let _ = self.failed.set(Error::Os { call, words });
        self.in_context(|end, state| {
            let code = end.give_up(state);
            match code {
                IN_PROGRESS => Ok(()),
                code => end.nccl.ok(call, code),
            }
        })
    }

    fn twin(self: Arc<Self>) -> Result<Option<Arc<dyn Transport>>> {
        let twin = self.beside()?;
        Ok(twin.map(|it| Arc::new(it) as Arc<dyn Transport>))
    }
}

impl Nccl {
    /// Moves the communicator out, and leaves nothing to end here.
    fn moved_out(&mut self) -> Self {
        Self {
            nccl: self.nccl,
            state: State::of(lock(&self.state).take()),
            rank: self.rank,
            size: self.size,
            device: self.device.clone(),
            peers: Vec::new(),
            patience: self.patience,
            failed: Arc::clone(&self.failed),
            _members: self._members.take(),
            _first: self._first.take(),
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if is_running() {
            // The end waits for queued work and for other ranks, which a host call may not.
            let its = self.moved_out();
            return beside(move || drop(its));
        }
        // After a failure, NCCL's resources stay until the process ends.
        let _ = self.in_context(|end, state| {
            let sound = !state.comm.0.is_null() && end.failed.get().is_none();
            if !(sound && end.finish(state)?) {
                end.give_up(state);
            }
            Ok(())
        });
    }
}
