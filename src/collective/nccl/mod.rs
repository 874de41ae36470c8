//! Communicators of NCCL's.
//!
//! They do not block: a call that would wait says that it is in progress and is asked again, so that every
//! wait has an end. What NCCL is given is queued on the stream as a kernel is.

mod library;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use self::library::{Config, IN_PROGRESS, Library, RawComm, UniqueId};
use super::Ranks;
use super::meet::meet;
use super::transport::{Act, Call, Transport};
use crate::device::{Device, DeviceInfo, DeviceKind, Stream};
use crate::error::{Error, Result};
use crate::seeded::seeded;
use crate::sync::plain::lock;

pub use self::library::open_library;

/// Between two questions whether a call is done.
const PAUSE: Duration = Duration::from_micros(100);

/// How long it is looked at without a sleep.
const SOON: Duration = Duration::from_millis(1);

/// One rank's end.
pub(super) struct Nccl {
    library: &'static Library,
    state: Mutex<State>,
    rank: u32,
    size: u32,
    device: Device,
    peers: Vec<DeviceInfo>,
    patience: Duration,
}

struct State {
    comm: Handle,
    failed: Option<Error>,
}

/// A communicator's handle; null once it is given back.
struct Handle(RawComm);

// SAFETY: NCCL's communicators may be used from any thread, one at a time.
unsafe impl Send for Handle {}

/// The end of this process's rank.
pub(super) fn end(device: &Device, ranks: &Ranks, patience: Duration) -> Result<Nccl> {
    let library = Library::get()?;
    check_device(library, device)?;
    let made = meet(ranks, patience, || Ok(new_id(library)?.0.to_vec()))?;
    let id = <[u8; 128]>::try_from(made)
        .map_err(|_| Error::invalid("meet", "what rank 0 handed out is no identifier of NCCL's"))?;
    join(
        library,
        device,
        UniqueId(id),
        (ranks.rank, ranks.size),
        patience,
    )
}

/// The ends of all devices of this process.
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

/// Devices of this process by the identifier of their communicator: all of a communicator's are here before
/// any of it is made.
type Members = HashMap<[u8; 128], Vec<DeviceInfo>>;
static MEMBERS: Mutex<Option<Members>> = Mutex::new(None);

fn join(
    library: &'static Library,
    device: &Device,
    id: UniqueId,
    (rank, size): (u32, u32),
    patience: Duration,
) -> Result<Nccl> {
    let info = device.info();
    let enter = |members: &mut Members| members.entry(id.0).or_default().push(info.clone());
    enter(lock(&MEMBERS).get_or_insert_with(HashMap::new));
    let mut end = Nccl {
        library,
        state: Mutex::new(State {
            comm: Handle(std::ptr::null_mut()),
            failed: None,
        }),
        rank,
        size,
        device: device.clone(),
        peers: Vec::new(),
        patience,
    };
    end.in_context(|end, state| end.make(state, id))?;
    if let Some(members) = &mut *lock(&MEMBERS) {
        let all = members.get(&id.0).into_iter().flatten();
        end.peers = all
            .filter(|its| its.ordinal != info.ordinal)
            .cloned()
            .collect();
    }
    Ok(end)
}

impl Nccl {
    /// Does what wants the device's context and the communicator.
    fn in_context(&self, work: impl FnOnce(&Self, &mut State) -> Result<()>) -> Result<()> {
        let mut state = lock(&self.state);
        let (mut work, mut outcome) = (Some(work), Ok(()));
        let mut run = || {
            if let Some(work) = work.take() {
                outcome = work(self, &mut state);
            }
        };
        self.device.backend().in_context(&mut run)?;
        outcome
    }

    fn make(&self, state: &mut State, id: UniqueId) -> Result<()> {
        let config = Config::not_blocking();
        let (size, rank) = (self.size as c_int, self.rank as c_int);
        // SAFETY: the call writes one handle and reads the configuration.
        let code = unsafe {
            (self.library.ncclCommInitRankConfig)(
                &raw mut state.comm.0,
                size,
                id,
                rank,
                &raw const config,
            )
        };
        let made = self.finish(state, "ncclCommInitRankConfig", code);
        let made = made.and_then(|()| self.check_ordinal(state));
        if made.is_err() {
            self.give_up(state);
        }
        made
    }

    /// An error unless NCCL took the GPU of the device.
    fn check_ordinal(&self, state: &State) -> Result<()> {
        let mut device = 0;
        // SAFETY: the call writes one integer; the communicator is made.
        let code = unsafe { (self.library.ncclCommCuDevice)(state.comm.0, &raw mut device) };
        self.library.ok("ncclCommCuDevice", code)?;
        let ordinal = self.device.info().ordinal;
        if device as u32 == ordinal || self.library.stands_in {
            return Ok(());
        }
        let why = format!("NCCL took GPU {device} for GPU {ordinal}");
        Err(Error::invalid("device", why))
    }

    /// Waits until a call that may be in progress is done; an error if it fails, or the time is up.
    fn finish(&self, state: &State, call: &'static str, mut code: c_int) -> Result<()> {
        let begun = Instant::now();
        let deadline = begun + self.patience;
        while code == IN_PROGRESS {
            if Instant::now() >= deadline {
                let words = format!(
                    "not all of {} ranks came within {:?}, says rank {}",
                    self.size, self.patience, self.rank
                );
                return Err(Error::Driver { call, code, words });
            }
            // Work is queued within some microseconds, and a sleep would be most of what a call takes; ranks
            // take longer to come.
            match begun.elapsed() < SOON {
                true => std::thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            }
            code = self.asked(state)?;
        }
        self.library.ok(call, code)
    }

    /// The communicator's state.
    fn asked(&self, state: &State) -> Result<c_int> {
        let mut code = 0;
        // SAFETY: the call writes one code; the communicator is not given back.
        let asked = unsafe { (self.library.ncclCommGetAsyncError)(state.comm.0, &raw mut code) };
        self.library
            .ok("ncclCommGetAsyncError", asked)
            .map(|()| code)
    }

    /// Gives the communicator back without the others.
    fn give_up(&self, state: &mut State) -> c_int {
        let comm = std::mem::replace(&mut state.comm.0, std::ptr::null_mut());
        match comm.is_null() {
            true => 0,
            // SAFETY: a communicator that is not used again.
            false => unsafe { (self.library.ncclCommAbort)(comm) },
        }
    }

    /// # Safety
    /// As for [`Transport::queue`].
    unsafe fn call(&self, comm: RawComm, stream: u64, call: &Call) -> c_int {
        let (library, kind) = (self.library, call.kind.number);
        let (src, dst, count) = (call.src, call.dst, call.count);
        // SAFETY: the caller's duty.
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
                Act::Recv(from) => {
                    (library.ncclRecv)(dst, count, kind, from as c_int, comm, stream)
                }
            }
        }
    }

    /// # Safety
    /// As for [`Transport::queue`].
    unsafe fn group(&self, state: &State, stream: u64, calls: &[Call]) -> Result<()> {
        // SAFETY: no arguments.
        let code = unsafe { (self.library.ncclGroupStart)() };
        self.library.ok("ncclGroupStart", code)?;
        let mut outcome = Ok(());
        for call in calls {
            // SAFETY: the caller's duty.
            let code = unsafe { self.call(state.comm.0, stream, call) };
            let told = code != IN_PROGRESS && !seeded!("failed-call-of-a-group-forgotten");
            if told && outcome.is_ok() {
                outcome = self.library.ok(call.act.name(), code);
            }
        }
        // SAFETY: no arguments; a group that was begun is ended whatever became of its calls.
        let code = unsafe { (self.library.ncclGroupEnd)() };
        outcome.and_then(|()| self.finish(state, "ncclGroupEnd", code))
    }
}

/// An error once something has failed, or the communicator is given back.
fn refuse_failed(state: &State) -> Result<()> {
    match &state.failed {
        Some(error) => Err(error.clone()),
        None => Ok(()),
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

    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()> {
        let mut state = lock(&self.state);
        refuse_failed(&state)?;
        // SAFETY: the caller's duty.
        let queued = unsafe { self.group(&state, stream.raw().0, calls) };
        if let Err(error) = &queued {
            state.failed = Some(error.clone());
        }
        queued
    }

    fn check(&self) -> Result<()> {
        let mut state = lock(&self.state);
        refuse_failed(&state)?;
        let code = self.asked(&state)?;
        let sound = match code {
            IN_PROGRESS => Ok(()),
            code => self.library.ok("ncclCommGetAsyncError", code),
        };
        if let Err(error) = &sound {
            state.failed = Some(error.clone());
        }
        sound
    }

    fn abort(&self) -> Result<()> {
        self.in_context(|end, state| {
            let code = end.give_up(state);
            let words = format!("rank {} aborted it", end.rank);
            let call = "ncclCommAbort";
            state.failed.get_or_insert(Error::Os { call, words });
            match code {
                IN_PROGRESS => Ok(()),
                code => end.library.ok(call, code),
            }
        })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // A failure leaves what NCCL holds to the process's end.
        let _ = self.in_context(|end, state| {
            if state.comm.0.is_null() {
                return Ok(());
            }
            if state.failed.is_none() {
                // SAFETY: the communicator is not used again but to end it.
                let code = unsafe { (end.library.ncclCommFinalize)(state.comm.0) };
                if end.finish(state, "ncclCommFinalize", code).is_ok() {
                    let comm = std::mem::replace(&mut state.comm.0, std::ptr::null_mut());
                    // SAFETY: as above.
                    let code = unsafe { (end.library.ncclCommDestroy)(comm) };
                    return end.library.ok("ncclCommDestroy", code);
                }
            }
            end.give_up(state);
            Ok(())
        });
    }
}
