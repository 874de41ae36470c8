//! Typed ranges of device memory, as operations take them.
//!
//! A view is an address, a length and a borrow. A buffer's views know their place in its log of uses:
//! whatever stream an operation with a view runs on, it runs behind what it must, and the buffer's free
//! runs behind it. [`View::from_raw`] makes views of any device address, whose order is the caller's.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use bytemuck::Pod;

use crate::device::{Addr, Place, Use};
use crate::error::{Error, Result};

/// Checks that `len` elements of `T` at `addr` are a range of aligned addresses.
fn check<T>(addr: Addr, len: usize) -> Result<()> {
    let align = align_of::<T>() as u64;
    if !addr.is_multiple_of(align) {
        let why = format!("{addr:#x} is not a multiple of {align}, the element's alignment");
        return Err(Error::invalid("addr", why));
    }
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    if bytes.and_then(|bytes| addr.checked_add(bytes)).is_none() {
        let why = format!("{len} elements from {addr:#x} reach past the last address");
        return Err(Error::invalid("len", why));
    }
    Ok(())
}

/// First element of `range`, and the one behind its last, within `len` elements.
pub(crate) fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let from = match range.start_bound() {
        Bound::Included(&from) => Some(from),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let to = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&to) => Some(to),
        Bound::Unbounded => Some(len),
    };
    let found = from.zip(to).filter(|(from, to)| from <= to && *to <= len);
    found.ok_or_else(|| {
        let (start, end) = (range.start_bound(), range.end_bound());
        let why = format!("from {start:?} to {end:?} is not within 0..{len}");
        Error::invalid("range", why)
    })
}

/// The length of what has a field of that name.
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
            /// The `len` elements at `addr`, which lie at `place` in a buffer.
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

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<T: Pod> ViewMut<'_, T> {
    /// The same elements, to be read.
    #[must_use]
    pub fn as_view(&self) -> View<'_, T> {
        View::new(self.addr, self.len, self.place)
    }
}

/// The same elements for a shorter time.
impl<'a, T: Pod> From<&'a mut ViewMut<'_, T>> for ViewMut<'a, T> {
    fn from(view: &'a mut ViewMut<'_, T>) -> Self {
        Self::new(view.addr, view.len, view.place)
    }
}

/// Checks that `rows` rows of `cols` elements, `pitch` elements apart, fit in `len` elements.
fn check_rows(len: usize, rows: u64, cols: u64, pitch: u64) -> Result<()> {
    if rows > 1 && pitch < cols {
        let why = format!("{pitch} elements is less than a row of {cols}: rows would overlap");
        return Err(Error::invalid("pitch", why));
    }
    if cols == 0 && rows > u64::from(u32::MAX) {
        let why = format!("{rows} rows without elements are more than {}", u32::MAX);
        return Err(Error::invalid("rows", why));
    }
    let last = pitch.checked_mul(rows.saturating_sub(1));
    let reach = last.and_then(|last| last.checked_add(cols));
    if rows > 0 && reach.is_none_or(|reach| reach > len as u64) {
        let need = "need more than the view's";
        let why = format!("{rows} rows of {cols} elements, {pitch} apart, {need} {len} elements");
        return Err(Error::invalid("rows", why));
    }
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

        impl<'a, T: Pod> From<$view<'a, T>> for $name<'a, T> {
            fn from(view: $view<'a, T>) -> Self {
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

#[cfg(test)]
mod tests;
