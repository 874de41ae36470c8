//! Copies from the memory of another device.
//!
//! A stream knows the order of its own device's work alone. So a copy from another device is a use of two
//! logs: that of the destination, on the stream given, and that of the source, on a stream made for it
//! there. Events carry the order from one to the other and back; no other work of either device waits.

use bytemuck::Pod;

use super::view::ViewMut;
use crate::device::{Addr, Giving, Stream, Use, note_behind, ordered, wait_before};
use crate::error::{Error, Result};

/// Queues a copy from `from`, memory of another device that `read` names, on `stream`.
pub(super) fn from_peer<T: Pod>(
    stream: &Stream,
    to: ViewMut<'_, T>,
    read: Use<'_>,
    from: Addr,
) -> Result<()> {
    let (core, there, bytes) = (stream.core(), read.device(), to.bytes());
    if !there.backend().is_shared(from, core.device.info()) {
        let info = core.device.info();
        let why = format!(
            "it is of another device, and {:?} device {} has no access: name it in PoolConfig::peers",
            info.kind, info.ordinal
        );
        return Err(Error::invalid("src", why));
    }
    core.refuse_under_capture()?;
    let bridge = there.stream()?;
    // Until the read is in the source's log: it does not fall asleep meanwhile.
    let _giving = Giving::begin(&bridge.core().timeline);
    wait_before(bridge.core(), read)?;
    wait_elsewhere(stream, &bridge)?;
    let queued = ordered(core, &[to.used()], || match bytes {
        0 => Ok(()),
        // SAFETY: whoever made the views vouched for their ranges, which are of two devices; the
        // destination's may use the source.
        _ => unsafe {
            let backend = core.device.backend();
            backend.copy_within(to.addr(), from, bytes, core.raw)
        },
    })?;
    let back = wait_elsewhere(&bridge, stream);
    // What may not be waited for on the device is waited for here.
    let seen = match back {
        Ok(()) => Ok(false),
        Err(_) => stream.synchronize().map(|()| true),
    };
    note_behind(bridge.core(), read, matches!(seen, Ok(true)));
    queued.and(seen.map(|_| ()))
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
