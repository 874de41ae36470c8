//! What views do by themselves, in the order of any operation on typed memory (`crate::device::ordered`):
//! copies to and from the host, copies within the device, fills. Views of nothing queue nothing.
//!
//! # Copies from the memory of another device
//!
//! A stream knows the order of its own device's work alone. So a copy from another device is a use of two
//! logs: that of the destination, on the stream given, and that of the source, on a stream made for it
//! there. Events carry the order from one to the other and back; no other work of either device waits.

use bytemuck::Pod;

use super::view::{View, ViewMut};
use crate::device::{Addr, Stream, StreamCore, Use, ordered, ordered_to_its_end};
use crate::error::{Error, Result};
use crate::seeded::seeded;

/// Bytes that a fill takes from the host; the rest is copied from these on the device.
const PATTERN_BYTES: usize = 64 << 10;

impl<T: Pod> View<'_, T> {
    /// Copies the elements to the host on `stream`, behind all that writes them, and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device or under capture, or no host memory; what the driver said.
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>> {
        self.download_on(stream.core())
    }

    pub(crate) fn download_on(&self, core: &StreamCore) -> Result<Vec<T>> {
        core.refuse_under_capture()?;
        // SAFETY: whoever made the view vouched for its range.
        ordered_to_its_end(core, &[self.used()], || unsafe {
            core.read(self.addr(), self.len())
        })
    }
}

impl<T: Pod> ViewMut<'_, T> {
    /// Copies `data` into the elements on `stream`, behind all that uses them, and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `data` has as many elements as the view, if the stream is of another
    /// device or under capture; what the driver said.
    pub fn upload(self, stream: &Stream, data: &[T]) -> Result<()> {
        self.upload_on(stream.core(), data)
    }

    pub(crate) fn upload_on(self, core: &StreamCore, data: &[T]) -> Result<()> {
        same_len("data", data.len(), self.len())?;
        core.refuse_under_capture()?;
        // SAFETY: whoever made the view vouched for its range.
        ordered_to_its_end(core, &[self.used()], || unsafe {
            core.write(self.addr(), data)
        })
    }

    /// Queues a copy of `src` into the elements, on `stream`, behind all that it must not overtake.
    ///
    /// `src` may be of another device whose pool grants this one access
    /// ([`PoolConfig::peers`](crate::PoolConfig::peers)): the copy then waits on the device for the work
    /// that uses `src` there, and what comes to use it waits for the copy. That costs some 20 us of host
    /// time more, and neither stream may be under capture.
    ///
    /// ```
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// let ones = pool.alloc_filled(&stream, 4, 1.0)?;
    /// let mut all = pool.alloc_zeroed::<f64>(&stream, 8)?;
    /// all.slice_mut(4..)?.copy_from(&stream, &ones)?;
    /// assert_eq!(all.download()?, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] unless both have as many elements and no byte in common, if the stream is of
    /// another device than the destination, or may not use the memory of `src`; what the driver said.
    pub fn copy_from<'s>(self, stream: &Stream, src: impl Into<View<'s, T>>) -> Result<()>
    where
        T: 's,
    {
        let src = src.into();
        same_len("src", src.len(), self.len())?;
        let (from, to, bytes) = (src.addr(), self.addr(), self.bytes());
        // Only views of plain addresses can overlap.
        if from.abs_diff(to) < bytes {
            let why = format!("{bytes} bytes at {from:#x} overlap those at {to:#x}");
            return Err(Error::invalid("src", why));
        }
        let core = stream.core();
        let queue = || match bytes {
            0 => Ok(()),
            // SAFETY: whoever made the views vouched for their ranges, which do not overlap; of two devices,
            // the destination's may use the source.
            _ => unsafe { core.device.backend().copy_within(to, from, bytes, core.raw) },
        };
        if let Some(read) = src.used().filter(|read| !read.device().same(&core.device)) {
            self.used().map_or(Ok(()), |used| used.check(core))?;
            return from_peer(stream, self.used(), (read, from), queue);
        }
        let read = src.used().filter(|_| !seeded!("copy-reads-unordered"));
        ordered(core, &[read, self.used()], queue)?
    }

    /// Sets every element to `value`, on `stream`, behind all that uses them.
    ///
    /// A value whose bytes are all the same is one fill, which is queued. Of any other, up to 64 KiB are
    /// copied from the host, which waits for that; the rest is copied from there on the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device or, for a value of different bytes, under
    /// capture; what the driver said.
    pub fn fill(self, stream: &Stream, value: T) -> Result<()> {
        let core = stream.core();
        let bytes = bytemuck::bytes_of(&value);
        let (addr, all) = (self.addr(), self.bytes());
        let same = bytes.iter().all(|byte| *byte == bytes[0]);
        let queued = ordered(core, &[self.used()], || match (all, same) {
            (0, _) => Ok(()),
            // SAFETY: whoever made the view vouched for its range.
            (_, true) => unsafe { core.device.backend().fill(addr, bytes[0], all, core.raw) },
            (_, false) => {
                let first = (PATTERN_BYTES / bytes.len()).clamp(1, self.len());
                // SAFETY: the same; the elements written first are among those of the view.
                unsafe { repeat(core, addr, &vec![value; first], all) }
            }
        });
        queued?
    }
}

/// Writes `first` to `addr`, and again behind it until `all` bytes are written.
///
/// # Safety
/// As many bytes are device memory at `addr` until the work is done.
unsafe fn repeat<T: Pod>(core: &StreamCore, addr: Addr, first: &[T], all: u64) -> Result<()> {
    // SAFETY: the caller's duty.
    unsafe { core.write(addr, first)? };
    let (backend, mut done) = (core.device.backend(), size_of_val(first) as u64);
    while done < all {
        let more = done.min(all - done);
        // SAFETY: the same; what is copied was written before, and lies ahead of where it goes.
        unsafe { backend.copy_within(addr + done, addr, more, core.raw)? };
        done += more;
    }
    Ok(())
}

pub(crate) fn same_len(what: &'static str, len: usize, wanted: usize) -> Result<()> {
    if len == wanted {
        return Ok(());
    }
    let why = format!("it has {len} elements, the destination {wanted}: give as many");
    Err(Error::invalid(what, why))
}

/// Has `queue` queue a copy to `to` from `from`, memory of another device that `read` names, on `stream`.
fn from_peer(
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
