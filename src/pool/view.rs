//! Typed ranges of device memory, the operands of all operations.
//!
//! A view is an address, a length and a borrow. A buffer's views know its log of uses: an operation with a view
//! runs behind the uses that it must not overtake, on any stream, and the buffer's free runs behind the
//! operation. [`View::from_raw`] makes a view of any device address, whose order is the caller's.
//!
//! Views copy to and from the host, copy within the device, and fill, all ordered by `crate::device::ordered`.
//! Operations on empty views queue nothing.
//!
//! # Copies from another device
//!
//! A stream orders work of its own device alone. So a copy from another device enters two logs: the destination's, on
//! the stream given, and the source's, on a stream of its device. Events order the two; no other work waits.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use bytemuck::Pod;

use crate::device::{Addr, Place, Stream, StreamCore, Use, may_wait, ordered, ordered_to_its_end};
use crate::error::{Error, Result, refuse, written};

/// Most bytes that a fill copies from the host; the device copies these to the rest.
const PATTERN_BYTES: usize = 64 << 10;

/// Checks that `addr` is aligned for `T` and that `len` elements there do not wrap around.
fn check<T>(addr: Addr, len: usize) -> Result<()> {
    let align = align_of::<T>() as u64;
    refuse!(!addr.is_multiple_of(align) => "addr",
        "{addr:#x} is not a multiple of {align}, the element's alignment");
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    refuse!(bytes.and_then(|bytes| addr.checked_add(bytes)).is_none() => "len",
        "{len} elements from {addr:#x} reach past the last address");
    Ok(())
}

/// Start and end of `range` within `len` elements.
pub(crate) fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
    // What a slice says, here one of elements without bytes.
    let all = &[(); usize::MAX][..len];
    let elements = |end| Some(all.get((start, end))?.len());
    let found = elements(end).zip(elements(Bound::Unbounded));
    let found = found.map(|(part, rest)| (len - rest, len - rest + part));
    found.ok_or_else(|| {
        let why = format!("{} is not within 0..{len}", written(range));
        Error::invalid("range", why)
    })
}

/// `len` and `is_empty` for a type with the field `len`.
macro_rules! length {
    () => {
        /// Number of elements.
        #[must_use]
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether there are no elements.
        #[must_use]
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }
    };
}
pub(super) use length;

macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $borrow:ty, $writes:literal, $duty:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T> {
            addr: Addr,
            len: usize,
            /// `None` for memory that the caller orders.
            place: Option<Place<'a>>,
            borrow: PhantomData<$borrow>,
        }

        impl<'a, T: Pod> $name<'a, T> {
            pub(crate) fn new(addr: Addr, len: usize, place: impl Into<Option<Place<'a>>>) -> Self {
                Self { addr, len, place: place.into(), borrow: PhantomData }
            }

            /// What an operation that takes the view does to its bytes.
            #[inline]
            pub(crate) fn used(&self) -> Option<Use<'a>> {
                self.place.map(|place| place.used(self.bytes(), $writes))
            }

            /// The `len` elements at device address `addr`.
            ///
            /// # Errors
            /// [`Error::Invalid`] if `addr` is not aligned for `T` or the range wraps around.
            ///
            /// # Safety
            #[doc = $duty]
            /// - The same until all work queued with the view is done, even once the view is gone.
            pub unsafe fn from_raw(addr: Addr, len: usize) -> Result<Self> {
                check::<T>(addr, len)?;
                Ok(Self::new(addr, len, None))
            }

            /// Device address of the first element.
            #[must_use]
            pub fn addr(&self) -> Addr {
                self.addr
            }

            length!();

            pub(crate) fn bytes(&self) -> u64 {
                (self.len * size_of::<T>()) as u64
            }

            /// The elements of `range`, which may start anywhere and be empty.
            ///
            /// # Errors
            /// [`Error::Invalid`] for a range that is not within the view.
            pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
                let (from, to) = bounds(&range, self.len)?;
                let offset = (from * size_of::<T>()) as u64;
                let place = self.place.map(|place| place.offset(offset));
                Ok(Self::new(self.addr + offset, to - from, place))
            }

            /// The first `at` elements, and the others, which different streams may be given.
            ///
            /// # Errors
            /// [`Error::Invalid`] unless `at <= len`.
            pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
                let whole = || Self { place: self.place, ..self };
                Ok((whole().slice(..at)?, whole().slice(at..)?))
            }
        }
    };
}

view! {
    /// Elements in device memory, to be read by queued work.
    ///
    /// ```
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// let numbers = pool.alloc_from(&stream, &[1, 2, 3, 4])?;
    /// let (low, high) = numbers.view().split_at(1)?;
    /// assert_eq!((low.len(), high.slice(1..)?.download(&stream)?), (1, vec![3, 4]));
    /// # Ok::<(), warpool::Error>(())
    /// ```
    #[derive(Clone, Copy)]
    View, &'a [T], false,
    "- The range is device memory of the device it will be used on, readable in stream order."
}

view! {
    /// Elements in device memory, to be written by queued work.
    ///
    /// ```
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let (load, train) = (device.stream()?, device.stream()?);
    /// let mut numbers = pool.alloc_from(&load, &[1, 2, 3, 4])?;
    /// let (low, high) = numbers.view_mut().split_at(2)?;
    /// low.fill(&load, 0)?; // the two do not wait for each other
    /// high.slice(1..)?.fill(&train, 7)?;
    /// assert_eq!(numbers.download()?, [0, 0, 3, 7]);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ViewMut, &'a mut [T], true,
    "- The range is device memory of the device it will be used on, writable in stream order, and no other queued work uses it unordered with the view's."
}

/// The same elements for a shorter time.
impl<'a, T: Pod> From<&'a mut ViewMut<'_, T>> for ViewMut<'a, T> {
    fn from(view: &'a mut ViewMut<'_, T>) -> Self {
        Self::new(view.addr, view.len, view.place)
    }
}

/// Checks that `rows` rows of `cols` elements, `pitch` elements apart, fit in `len` elements.
fn check_rows(len: usize, rows: u64, cols: u64, pitch: u64) -> Result<()> {
    refuse!(rows > 1 && pitch < cols => "pitch",
        "{pitch} elements is less than a row of {cols}: rows would overlap");
    refuse!(cols == 0 && rows > u64::from(u32::MAX) => "rows",
        "{rows} rows without elements are more than {}", u32::MAX);
    let last = pitch.checked_mul(rows.saturating_sub(1));
    let reach = last.and_then(|last| last.checked_add(cols));
    refuse!(rows > 0 && reach.is_none_or(|reach| reach > len as u64) => "rows",
        "{rows} rows of {cols} elements, {pitch} apart, need more than the view's {len} elements");
    Ok(())
}

macro_rules! rows {
    ($(#[$doc:meta])* $name:ident of $view:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T> {
            pub(crate) view: $view<'a, T>,
            pub(crate) rows: u64,
            pub(crate) cols: u64,
            pub(crate) pitch: u64,
        }

        impl<'a, T: Pod> $name<'a, T> {
            /// `rows` rows of `cols` elements in `view`, each `pitch` elements after the one before.
            ///
            /// # Errors
            /// [`Error::Invalid`] if rows overlap or reach beyond the view, or have no elements and are more than
            /// 2^32 - 1.
            pub fn new(
                view: impl Into<$view<'a, T>>,
                rows: usize,
                cols: usize,
                pitch: usize,
            ) -> Result<Self> {
                let view = view.into();
                let (rows, cols, pitch) = (rows as u64, cols as u64, pitch as u64);
                check_rows(view.len(), rows, cols, pitch)?;
                Ok(Self { view, rows, cols, pitch })
            }
        }

        /// All elements as one row.
        impl<'a, T: Pod, V: Into<$view<'a, T>>> From<V> for $name<'a, T> {
            fn from(view: V) -> Self {
                let view = view.into();
                let cols = view.len() as u64;
                Self { view, rows: 1, cols, pitch: cols }
            }
        }
    };
}

rows! {
    /// Rows at a fixed distance, to be read by queued work.
    Rows of View
}

rows! {
    /// Rows at a fixed distance, to be written by queued work.
    RowsMut of ViewMut
}

impl<T: Pod> View<'_, T> {
    /// Copies the elements to the host on `stream`, behind all writes to them, and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device or under capture, or if the host lacks memory; what the
    /// driver said.
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>> {
        self.download_on(stream.core())
    }

    pub(crate) fn download_on(&self, core: &StreamCore) -> Result<Vec<T>> {
        // SAFETY: whoever made the view vouched for its range.
        ordered_to_its_end(core, &[self.used()], || unsafe {
            core.read(self.addr(), self.len())
        })
    }
}

impl<T: Pod> ViewMut<'_, T> {
    /// The same elements, to be read.
    #[must_use]
    pub fn as_view(&self) -> View<'_, T> {
        View::new(self.addr, self.len, self.place)
    }

    /// Copies `data` into the elements on `stream`, behind all uses of them, and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `data` has another length than the view, or if the stream is of another device or under
    /// capture; what the driver said.
    pub fn upload(self, stream: &Stream, data: &[T]) -> Result<()> {
        self.upload_on(stream.core(), data)
    }

    pub(crate) fn upload_on(self, core: &StreamCore, data: &[T]) -> Result<()> {
        same_len("data", data.len(), self.len())?;
        // SAFETY: whoever made the view vouched for its range.
        ordered_to_its_end(core, &[self.used()], || unsafe {
            core.write(self.addr(), data)
        })
    }

    /// Queues a copy of `src` into the elements on `stream`, behind all writes to `src` and all uses of the elements.
    ///
    /// `src` may be on another device whose pool grants this device access
    /// ([`PoolConfig::peers`](crate::PoolConfig::peers)). The copy then waits on the device for work that uses `src`
    /// there, and later uses wait for the copy. That costs some 20 us more of host time, neither stream may be
    /// under capture, and no host call may make such a copy.
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
    /// [`Error::Invalid`] if the lengths differ or the ranges overlap, if the stream is of another device than the
    /// destination, or if its device has no access to `src`; what the driver said.
    pub fn copy_from<'s>(self, stream: &Stream, src: impl Into<View<'s, T>>) -> Result<()>
    where
        T: 's,
    {
        let src = src.into();
        same_len("src", src.len(), self.len())?;
        let (from, to, bytes) = (src.addr(), self.addr(), self.bytes());
        // Only views of plain addresses can overlap.
        refuse!(from.abs_diff(to) < bytes => "src",
            "{bytes} bytes at {from:#x} overlap those at {to:#x}");
        let core = stream.core();
        let queue = || match bytes {
            0 => Ok(()),
            // SAFETY: whoever made the views vouched for their ranges, which do not overlap; of two devices,
            // the destination's may use the source.
            _ => core.queue(|backend, on| unsafe { backend.copy_within(to, from, bytes, on) }),
        };
        if let Some(read) = src.used().filter(|read| !read.device().same(&core.device)) {
            self.used().map_or(Ok(()), |used| used.check(core))?;
            return from_peer(stream, self.used(), (read, from), queue);
        }
        let read = src.used();
        ordered(core, &[read, self.used()], queue)?
    }

    /// Sets every element to `value` on `stream`, behind all uses of them.
    ///
    /// A value of equal bytes is one queued fill. For other values the host copies up to 64 KiB, or one element, and
    /// waits for that; the device copies these to the rest.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device or, for a value of unequal bytes, under capture; what
    /// the driver said.
    pub fn fill(self, stream: &Stream, value: T) -> Result<()> {
        let core = stream.core();
        let bytes = bytemuck::bytes_of(&value);
        let (addr, all) = (self.addr(), self.bytes());
        let queued = ordered(core, &[self.used()], || match (all, is_even(&value)) {
            (0, _) => Ok(()),
            // SAFETY: whoever made the view vouched for its range.
            (_, true) => core.queue(|backend, on| unsafe { backend.fill(addr, bytes[0], all, on) }),
            (_, false) => {
                let first = (PATTERN_BYTES / bytes.len()).clamp(1, self.len());
                // SAFETY: the same; the elements written first are among those of the view.
                unsafe { repeat(core, addr, &vec![value; first], all) }
            }
        });
        queued?
    }
}

/// Whether all bytes of `value` are equal: one queued fill writes it any number of times.
pub(super) fn is_even<T: Pod>(value: &T) -> bool {
    let bytes = bytemuck::bytes_of(value);
    bytes.iter().all(|byte| *byte == bytes[0])
}

/// Writes `first` to `addr`, then repeats it until `all` bytes are written.
///
/// # Safety
/// `all` bytes at `addr` are device memory until the work is done.
unsafe fn repeat<T: Pod>(core: &StreamCore, addr: Addr, first: &[T], all: u64) -> Result<()> {
    // SAFETY: the caller's duty.
    unsafe { core.write(addr, first)? };
    let mut done = size_of_val(first) as u64;
    while done < all {
        let more = done.min(all - done);
        // SAFETY: the caller's duty; the source was written before, and ends where the copy begins or below.
        core.queue(|backend, on| unsafe { backend.copy_within(addr + done, addr, more, on) })?;
        done += more;
    }
    Ok(())
}

pub(crate) fn same_len(what: &'static str, len: usize, wanted: usize) -> Result<()> {
    refuse!(len != wanted => what,
        "it has {len} elements, the destination {wanted}: give as many");
    Ok(())
}

/// Calls `queue`, which queues a copy to `to` on `stream` from `from`, memory of another device that `read` names.
fn from_peer(
    stream: &Stream,
    to: Option<Use<'_>>,
    (read, from): (Use<'_>, Addr),
    queue: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (core, there) = (stream.core(), read.device());
    let info = core.device.info();
    refuse!(!there.backend().is_shared(from, info) => "src",
        "it is of another device, and {:?} device {} has no access: name it in PoolConfig::peers",
        info.kind, info.ordinal);
    let _outside = core.outside_capture()?;
    // Before the copy is queued, which the host may have to wait for.
    may_wait()?;
    let bridge = there.stream()?;
    // The source's log has the read until the copy is queued: the source does not fall asleep meanwhile, and launches
    // of graphs that use it wait.
    ordered(bridge.core(), &[Some(read)], || {
        wait_elsewhere(stream, &bridge)?;
        let queued = ordered(core, &[to], queue).and_then(|queued| queued);
        // A copy that failed may be queued too. If the device cannot wait for it, the host does; a stream for which
        // neither can wait runs nothing more.
        queued.and(wait_elsewhere(&bridge, stream).or_else(|_| core.synchronize_memory()))
    })?
}

/// Makes `stream` wait on its device for all work queued on `other`, a stream of another device.
fn wait_elsewhere(stream: &Stream, other: &Stream) -> Result<()> {
    let there = other.device();
    let event = there.take_event()?;
    there.backend().event_record(event.raw, other.raw())?;
    match there.backend().mark_of(event.raw)? {
        Some(mark) => stream.device().backend().wait_mark(stream.raw(), &*mark),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
