//! Copies from the memory of another device.
//!
//! A stream knows the order of its own device's work alone. So a copy from another device is a use of two
//! logs: that of the destination, on the stream given, and that of the source, on a stream made for it
//! there. Events carry the order from one to the other and back; no other work of either device waits.

use crate::device::{Addr, Stream, Use, ordered};
use crate::error::{Error, Result};

/// Has `queue` queue a copy to `to` from `from`, memory of another device that `read` names, on `stream`.
pub(super) fn from_peer(
    stream: &Stream,
    to: Option<Use<'_>>,
    (read, from): (Use<'_>, Addr),
    queue: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (core, there) = (stream.core(), read.device());
    if !there.backend().is_shared(from, core.device.info()) {
        let info = core.device.info();
        let why = format!(
            "it is of another device, and {:?} device {} has no access: name it in PoolConfig::peers",
            info.kind, info.ordinal
        );
        return Err(Error::invalid("src", why));
    }
    let _outside = core.outside_capture()?;
    let bridge = there.stream()?;
    // To its end the copy is a read under way: the source does not fall asleep meanwhile, and launches of graphs
    // that use it wait.
    ordered(bridge.core(), &[Some(read)], || {
        wait_elsewhere(stream, &bridge)?;
        let queued = ordered(core, &[to], queue)?;
        // What may not be waited for on the device is waited for here.
        queued.and(wait_elsewhere(&bridge, stream).or_else(|_| stream.synchronize()))
    })?
}

/// Makes `stream` wait on its device for what `other`, of another device, was given so far.
fn wait_elsewhere(stream: &Stream, other: &Stream) -> Result<()> {
    let there = other.device();
    let event = there.take_event()?;
    there.backend().event_record(event.raw, other.raw())?;
    match there.backend().mark_of(event.raw)? {
        Some(mark) => stream.device().backend().wait_mark(stream.raw(), &*mark),
        None => Ok(()),
    }
}
