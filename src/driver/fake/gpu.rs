//! The GPU behind the fake driver, and how its calls answer.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::device::{Addr, Backend, HandleCounts, Phys, RawEvent, RawStream, is_running};
use crate::driver::table::CuMemPool;
use crate::error::{Error, Result};

/// `CUDA_ERROR_INVALID_VALUE`.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(super) const INVALID_CONTEXT: c_int = 201;
/// `CUDA_ERROR_UNKNOWN`.
pub(super) const UNKNOWN: c_int = 999;
/// `CUDA_ERROR_NOT_PERMITTED`: of a call that is made in a host call.
const NOT_PERMITTED: c_int = 800;

/// How long work given to a stream waits before it runs.
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

/// Pools of the driver's own and their blocks.
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

    /// Takes what the blocks hold out of the counts: it is no handle of the caller's.
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

/// The GPU that is driven. Another is there to be its peer.
pub(super) struct Gpu {
    pub(super) host: Arc<dyn Backend>,
    pub(super) streams: Mutex<HashSet<u64>>,
    /// Recorded at the end of each stream that was destroyed: its work goes on.
    pub(super) ends: Mutex<Vec<RawEvent>>,
    /// Graphs that were captured, and of those which the executable ones were made of.
    pub(super) graphs: Mutex<HashMap<u64, bool>>,
    pub(super) pools: Mutex<Pools>,
    /// The GPUs that may use each mapping, by its address.
    pub(super) access: Mutex<HashMap<u64, Vec<c_int>>>,
    /// Page-locked host memory, with its bytes.
    pub(super) pinned: Mutex<HashMap<u64, u64>>,
}

impl Gpu {
    /// Whether the host's memory at this address is page-locked: copies read it when they run.
    pub(super) fn is_pinned(&self, addr: u64) -> bool {
        let pinned = crate::sync::plain::lock(&self.pinned);
        pinned
            .iter()
            .any(|(from, bytes)| (*from..from + bytes).contains(&addr))
    }

    /// Holds the stream up before the work that is given to it next, so that what follows a call
    /// that failed meets that work still under way, as on a GPU.
    pub(super) fn late(&self, stream: *mut std::ffi::c_void) {
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

/// The driver's code for what the host device said.
pub(super) fn code_of(outcome: Result<()>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(Error::Driver { code, .. } | Error::Launch { code, .. }) => code,
        Err(Error::Invalid { .. }) => INVALID_VALUE,
        Err(_) => UNKNOWN,
    }
}

/// The GPU's answer to a call.
pub(super) fn answer(call: impl FnOnce(&Gpu) -> Result<()>) -> c_int {
    if is_running() {
        return NOT_PERMITTED;
    }
    let gpu = GPU.read().unwrap_or_else(PoisonError::into_inner).clone();
    gpu.map_or(crate::driver::code::NO_DEVICE, |gpu| code_of(call(&gpu)))
}

/// The GPU's answer to a call that needs a current context.
pub(super) fn in_context(call: impl FnOnce(&Gpu) -> Result<()>) -> c_int {
    if CONTEXTS.with_borrow(Vec::is_empty) {
        return INVALID_CONTEXT;
    }
    answer(call)
}
