//! The GPU behind the fake driver, and the results of its calls.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::device::{Addr, Backend, HandleCounts, Phys, RawEvent, RawStream, is_running};
use crate::driver::calls::CuMemPool;
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(super) const INVALID_CONTEXT: c_int = 201;
/// `CUDA_ERROR_UNKNOWN`.
pub(super) const UNKNOWN: c_int = 999;
/// `CUDA_ERROR_NOT_PERMITTED`: for a call made in a host call.
const NOT_PERMITTED: c_int = 800;

/// The delay before queued work runs.
pub(super) const LATE: Duration = Duration::from_micros(100);

pub(super) struct Pool {
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) high: u64,
}

pub(super) struct Block {
    pub(super) bytes: u64,
    pub(super) phys: Phys,
    pub(super) pool: usize,
}

/// The driver's own pools and their blocks.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) pools: HashMap<usize, Pool>,
    pub(super) blocks: HashMap<Addr, Block>,
    pub(super) made: usize,
}

impl Pools {
    pub(super) fn len(&self) -> u64 {
        self.pools.len() as u64
    }

    /// Subtracts the objects behind the blocks from the counts: they are no handles of the caller.
    pub(super) fn discount(&self, counts: &mut HandleCounts) {
        let blocks = self.blocks.len() as u64;
        counts.ranges -= blocks;
        counts.mappings -= blocks;
        counts.handles -= blocks;
    }

    pub(super) fn live(&mut self, pool: CuMemPool) -> Result<&mut Pool> {
        let gone = || Error::invalid("pool", "there is none of this handle");
        self.pools.get_mut(&(pool as usize)).ok_or_else(gone)
    }
}

/// The GPU that is driven. A second one exists only as its peer.
pub(super) struct Gpu {
    pub(super) host: Arc<dyn Backend>,
    pub(super) streams: Mutex<HashSet<u64>>,
    /// Recorded at the end of each destroyed stream, whose work continues.
    pub(super) ends: Mutex<Vec<RawEvent>>,
    /// Captured graphs, and whether an executable graph was made of each.
    pub(super) graphs: Mutex<HashMap<u64, bool>>,
    pub(super) pools: Mutex<Pools>,
    /// The GPUs that may use each mapping, by its address.
    pub(super) access: Mutex<HashMap<u64, Vec<c_int>>>,
    /// Page-locked host memory: bytes by address.
    pub(super) pinned: Mutex<HashMap<u64, u64>>,
    pub(super) records: Mutex<Records>,
}

/// The calls that used a graph which is being captured, by whether a lock was held.
#[derive(Default)]
pub(super) struct Records {
    /// Whether the lock is held now.
    pub(super) is_held: Option<Box<dyn Fn() -> bool + Send>>,
    pub(super) calls: Vec<(&'static str, bool)>,
}

impl Records {
    fn note(&mut self, call: &'static str) {
        if let Some(is_held) = &self.is_held {
            self.calls.push((call, is_held()));
        }
    }
}

impl Gpu {
    /// Whether the host memory at this address is page-locked: copies then read it when they run.
    pub(super) fn is_pinned(&self, addr: u64) -> bool {
        let pinned = lock(&self.pinned);
        pinned
            .iter()
            .any(|(from, bytes)| (*from..from + bytes).contains(&addr))
    }

    /// Notes a call that begins or ends a capture.
    pub(super) fn captures(&self, call: &'static str) {
        lock(&self.records).note(call);
    }

    /// Notes a call for the stream if it is captured.
    pub(super) fn uses_stream(&self, call: &'static str, stream: *mut std::ffi::c_void) {
        if let Ok(true) = self.host.stream_capturing(RawStream(stream as u64)) {
            self.captures(call);
        }
    }

    /// Notes a call for the event if it was recorded in a capture.
    pub(super) fn uses_event(&self, call: &'static str, event: *mut std::ffi::c_void) {
        if let Err(Error::Driver { .. }) = self.host.event_query(RawEvent(event as u64)) {
            self.captures(call);
        }
    }

    /// Notes the call, and delays the stream before the next work, so that code after a failed call finds that work
    /// still running, as on a GPU.
    pub(super) fn late(&self, call: &'static str, stream: *mut std::ffi::c_void) {
        self.uses_stream(call, stream);
        // Refused under capture, where nothing runs.
        let wait = Box::new(|| std::thread::sleep(LATE));
        let _ = self.host.host_call(RawStream(stream as u64), wait);
    }
}

pub(super) static GPU: RwLock<Option<Arc<Gpu>>> = RwLock::new(None);

thread_local! {
    /// The contexts pushed on this thread.
    pub(super) static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    pub(super) static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// The driver's code for a result of the host device.
pub(super) fn code_of(outcome: Result<()>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Error::Driver { code, .. } | Error::Launch { code, .. }) => code,
        Err(Error::Invalid { .. }) => INVALID_VALUE,
        Err(_) => UNKNOWN,
    }
}

/// The result of a call.
pub(super) fn answer(call: impl FnOnce(&Gpu) -> Result<()>) -> c_int {
    if is_running() {
        return NOT_PERMITTED;
    }
    let gpu = GPU.read().unwrap_or_else(PoisonError::into_inner).clone();
    gpu.map_or(crate::driver::code::NO_DEVICE, |gpu| code_of(call(&gpu)))
}

/// The result of a call that needs a current context.
pub(super) fn in_context(call: impl FnOnce(&Gpu) -> Result<()>) -> c_int {
    if CONTEXTS.with_borrow(Vec::is_empty) {
        return INVALID_CONTEXT;
    }
    answer(call)
}
