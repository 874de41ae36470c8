//! A second communicator of the same ranks, whose kernels run beside those of the first.
//!
//! Kernels of NCCL wait on the device for those of the other ranks; each block keeps its multiprocessor
//! meanwhile. If two GPUs began two such kernels in different order, and had no room for the other, both would
//! wait for ever. This cannot happen, for two reasons:
//!
//! - All ranks queue the collectives of both communicators in one order. Consider the first that has not ended
//!   on all ranks. What it waits for on its own GPU was queued before it, also where streams share one of the
//!   hardware's queues: collectives that have ended, and work that waits for no other rank.
//! - The GPU has room for the blocks of both ([`holds_two`]). NCCL makes each kernel of a communicator wait for
//!   the one before, on whatever stream. So at most one other kernel that waits for ranks is there, and the
//!   first that has not ended finds its multiprocessors beside it once other work is done.
//!
//! The branches of a graph have no such order: captured steps of a reducer use the first communicator alone.
//!
//! If the GPU of one rank has too little room, no rank uses a second communicator. The split itself tells the
//! others: this rank takes no part in the new communicator, which then has fewer ranks.

use std::ffi::c_int;
use std::sync::Arc;

use super::library::MOST_BLOCKS;
use super::{Handle, Nccl, State, abort};
use crate::error::{Error, Result};

const SPLIT: &str = "ncclCommSplit";

/// `NCCL_SPLIT_NOCOLOR`: the rank takes no part in the new communicator.
const NO_PART: c_int = -1;

/// The first version that orders the kernels of several communicators if asked to.
const ORDERS: c_int = 22_600;

/// Variables by which kernels have more blocks than the communicator's configuration says.
const MORE_BLOCKS: [&str; 5] = [
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_NVLS_NCHANNELS",
];

impl Nccl {
    /// This rank's end of a second communicator; `None`, on all ranks, if a GPU might not hold the kernels of
    /// both. Waits for the first one's collectives, and for the other ranks.
    pub(super) fn beside(self: Arc<Self>) -> Result<Option<Self>> {
        let mut made = Handle(std::ptr::null_mut());
        self.in_context(|end, state| {
            end.refuse_failed()?;
            end.await_last(state)?;
            made = end.noted(end.split(state))?;
            Ok(())
        })?;
        if made.0.is_null() {
            return Ok(None);
        }
        let twin = Self {
            nccl: self.nccl,
            state: State::of(made),
            rank: self.rank,
            size: self.size,
            device: self.device.clone(),
            peers: self.peers.clone(),
            patience: self.patience,
            failed: Arc::clone(&self.failed),
            _members: None,
            _first: Some(self),
        };
        let mut ranks = 0;
        // SAFETY: the call writes one integer; the communicator is made.
        let code = unsafe { (twin.nccl.ncclCommCount)(made.0, &raw mut ranks) };
        twin.noted(twin.nccl.ok("ncclCommCount", code))?;
        Ok((ranks as u32 == twin.size).then_some(twin))
    }

    /// Waits for the last collective: NCCL may wait for ever if one of the communicator is still running. A stream
    /// that cannot be waited for now, as it is under capture, is an error of this call alone.
    fn await_last(&self, state: &mut State) -> Result<()> {
        let Some(last) = state.last.clone() else {
            return Ok(());
        };
        if last.is_captured() {
            let why = "the last collective's is being captured, and runs nothing that could be waited for";
            return Err(Error::invalid("stream", why));
        }
        // Also of a stream that is gone by now.
        let waited = self.in_time(move || last.sync_to(last.last_tick()), drop)?;
        waited.unwrap_or_else(|| self.noted(self.too_late(state, SPLIT)))
    }

    /// A communicator of the ranks whose GPUs hold two, null if this one's does not.
    fn split(&self, state: &mut State) -> Result<Handle> {
        let (library, comm, rank) = (self.nccl, state.comm, self.rank as c_int);
        let get = |name: &str| std::env::var(name).ok();
        let room = holds_two(self.device.info().processors, library.version(), &get);
        let takes_part = room || self.size == 1 || library.stands_in;
        let color = if takes_part { 0 } else { NO_PART };
        let split = move || {
            let (comm, mut made) = (comm, Handle(std::ptr::null_mut()));
            let config = std::ptr::null();
            // SAFETY: the communicator is used by one thread at a time; the call writes one handle, and takes the
            // configuration of the communicator.
            let code =
                unsafe { (library.ncclCommSplit)(comm.0, color, rank, &raw mut made.0, config) };
            (made, code)
        };
        let too_late = move |(made, _): (Handle, c_int)| _ = abort(library, made);
        let Some((made, code)) = self.in_time(split, too_late)? else {
            return self.too_late(state, SPLIT);
        };
        library.ok(SPLIT, code).map(|()| made).inspect_err(|_| {
            abort(library, made);
        })
    }
}

/// Whether a GPU with this many multiprocessors holds the kernels of two communicators, under NCCL's
/// variables.
///
/// Each block has a multiprocessor of its own. Half as many more are needed, because from compute capability
/// 9.0 on four blocks begin together, within one of up to eight groups of multiprocessors, and up to three of
/// each group may be left over. If NCCL itself keeps the order of its kernels, any number will do.
fn holds_two(processors: u32, version: c_int, get: &dyn Fn(&str) -> Option<String>) -> bool {
    let number = |name: &str| get(name).and_then(|value| value.trim().parse::<u32>().ok());
    let is_ordered = version >= ORDERS && number("NCCL_LAUNCH_ORDER_IMPLICIT") == Some(1);
    let most = number("NCCL_MAX_CTAS").filter(|&most| most > 0);
    let more = MORE_BLOCKS.iter().filter_map(|name| number(name));
    let blocks = more.fold(most.unwrap_or(MOST_BLOCKS), u32::max);
    is_ordered || processors >= blocks.saturating_mul(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_holds_two_kernels_if_it_has_three_multiprocessors_for_each_of_the_blocks_of_one() {
        let holds = |processors, version, set: &'static [(&str, &str)]| {
            holds_two(processors, version, &|name| {
                let found = set.iter().find(|(its, _)| *its == name);
                found.map(|(_, value)| String::from(*value))
            })
        };
        // An H200, A100 and PCIe H100; then a V100, an A10 and a slice of a GPU.
        assert!([132, 108, 114].iter().all(|&gpu| holds(gpu, 22_707, &[])));
        assert!(![80, 72, 16].iter().any(|&gpu| holds(gpu, 22_707, &[])));
        assert!(holds(96, 21_800, &[]) && !holds(95, 21_800, &[]));
        assert!(holds(48, 22_707, &[("NCCL_MAX_CTAS", "16")]));
        assert!(!holds(132, 22_707, &[("NCCL_MAX_CTAS", "64")]));
        assert!(holds(132, 22_707, &[("NCCL_MAX_CTAS", "all")]));
        for name in MORE_BLOCKS {
            let set: &'static [(&str, &str)] = Box::leak(Box::new([(name, "48")]));
            assert!(
                holds(144, 22_707, set) && !holds(143, 22_707, set),
                "{name}"
            );
        }
        let ordered = &[("NCCL_LAUNCH_ORDER_IMPLICIT", "1")];
        assert!(holds(16, 22_600, ordered) && !holds(16, 22_505, ordered));
        assert!(!holds(16, 22_707, &[("NCCL_LAUNCH_ORDER_IMPLICIT", "0")]));
    }
}
