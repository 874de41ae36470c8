//! Buffers that grow and shrink in place; `pages` has their memory.

mod pages;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

pub(super) use self::pages::end;
use super::buf::elements;
use super::private::keep_for;
use super::structure::{Mark, Pages, Shared};
use super::tuning::MOST_ADDRESSES;
use super::{Pool, View, ViewMut};
use crate::arena::Site;
use crate::device::{AccessLog, Addr, Place, Stream, StreamCore, beside, lock};
use crate::error::{Error, Result, refuse};
use crate::sync::{AtomicU64, Mutex};

/// A buffer of a changing number of elements of `T` in device memory, at one address: it grows without a copy, and
/// releases memory as it shrinks. Made by [`Pool::grow_buf`].
///
/// **Memory.** It is mapped in handles of [`DeviceInfo::granule`](crate::device::DeviceInfo) bytes or a multiple, see
/// [`PoolConfig::handles`](super::PoolConfig::handles). They count in [`PoolStats::reserved`](super::PoolStats) and
/// under the pool's limits. Before the pool exceeds the slack over its peak, or its limit, it releases idle memory
/// for them. Growing within [`GrowBuf::capacity`] makes no driver call.
///
/// **Order.** As for a [`PoolBuf`](super::PoolBuf). A handle that the buffer no longer needs is released once all
/// uses of the buffer are done, and all work queued on its own stream until then, at the latest before the pool maps
/// more memory. If the buffer grows before that, it uses the handle again. The same holds for the drop, which does not
/// wait.
///
/// While its own stream is under capture, and while a graph has captured work on the buffer, it keeps its memory, and
/// then until it is resized again, if only to the length that it has. It [sleeps](Pool::sleep) with its pool, and does
/// not grow beyond its capacity meanwhile. Safe to send to and use from any thread.
///
/// ```
/// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
/// # let stream = pool.device().stream()?;
/// let mut tokens = pool.grow_buf::<u32>(&stream, 1 << 24)?; // addresses for these, no memory
/// let addr = tokens.addr();
/// for step in 0..100 {
///     tokens.extend_from(&stream, &[step; 1000])?;
/// }
/// assert_eq!((tokens.addr(), tokens.len()), (addr, 100_000));
/// assert_eq!(tokens.view().slice(99_999..)?.download(&stream)?, [99]);
/// tokens.resize(10)?; // the rest goes back to the device
/// tokens.view_mut().fill(&stream, 7)?;
/// tokens.resize(1000)?; // new elements have any value, the others keep theirs
/// assert_eq!(tokens.view().slice(..10)?.download(&stream)?, [7; 10]);
/// # Ok::<(), warpool::Error>(())
/// ```
pub struct GrowBuf<T> {
    shared: Arc<Shared>,
    pages: Arc<Pages>,
    home: Arc<StreamCore>,
    log: AccessLog,
    len: usize,
    most: usize,
    element: PhantomData<T>,
}

elements! { GrowBuf, [pages.site.base()], [home], [shared] }

impl Pool {
    /// Makes an empty buffer on `stream` that may grow up to `most` elements. It reserves addresses for all of
    /// them, of which a process has some 2^47, and takes no memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 2^46 bytes, or a stream of another device; what the driver said to the
    /// reservation.
    pub fn grow_buf<T: Pod>(&self, stream: &Stream, most: usize) -> Result<GrowBuf<T>> {
        self.shared().refuse_other_device(stream)?;
        let bytes = (most as u64).saturating_mul(size_of::<T>() as u64);
        refuse!(bytes > MOST_ADDRESSES => "most",
            "{most} elements have more than {MOST_ADDRESSES} bytes: ask for fewer");
        let granule = self.device().info().granule.max(1);
        let span = bytes.max(1).next_multiple_of(granule);
        let peers = self.shared().core.lock().config.peers.clone();
        let pages = Arc::new(Pages {
            site: Site::reserve(self.device(), span, &peers)?,
            span,
            state: Mutex::default(),
            leaving: AtomicU64::new(0),
        });
        lock(&self.shared().growing).push(Arc::clone(&pages));
        Ok(GrowBuf {
            shared: Arc::clone(self.shared()),
            pages,
            home: Arc::clone(stream.core()),
            log: AccessLog::without_home(&stream.core().timeline, 0),
            len: 0,
            most,
            element: PhantomData,
        })
    }
}

impl<T: Pod> GrowBuf<T> {
    /// Elements that memory is mapped for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let elements = self.pages.bytes().checked_div(size_of::<T>() as u64);
        elements.map_or(self.most, |elements| self.most.min(elements as usize))
    }

    /// Grows or shrinks the buffer to `len` elements. Old elements keep their value and address; new elements have
    /// any value. Handles behind the last element are released in stream order. If the limit or the device lacks
    /// room, growing may wait on the host, as [`Pool::trim`] does, and calls what [`Pool::on_pressure`] registered.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more elements than the buffer has addresses for; [`Error::OutOfMemory`] if the limit or
    /// the device has no room; what the driver said. The buffer is then as it was.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        refuse!(len > self.most => "len",
            "{len} elements are more than the {} that Pool::grow_buf was given", self.most);
        let bytes = (len * size_of::<T>()) as u64;
        // No log has captured work of the application's own: the stream's capture says that there may be some.
        let kept = self.home.timeline.recorder().is_some() || self.log.is_in_a_graph();
        if len > self.len {
            let stream = self.home.timeline.uid;
            self.shared.grow_pages(&self.pages, bytes, stream)?;
        } else if !kept {
            self.pages.shrink(bytes, self.with_home(self.log.uses()));
            let (shared, pages) = (Arc::clone(&self.shared), Arc::clone(&self.pages));
            beside(move || _ = shared.settle(&[pages], false));
        }
        self.log.resized(bytes);
        self.len = len;
        Ok(())
    }

    /// Copies `data` behind the last element on `stream`, and waits for the copy.
    ///
    /// # Errors
    /// As [`GrowBuf::resize`] and [`ViewMut::upload`]. The buffer then has its old elements.
    pub fn extend_from(&mut self, stream: &Stream, data: &[T]) -> Result<()> {
        // Before any memory is mapped.
        self.shared.refuse_other_device(stream)?;
        stream.core().refuse_under_capture()?;
        let before = self.len;
        self.resize(before.saturating_add(data.len()))?;
        let uploaded = (self.view_mut().slice(before..)).and_then(|it| it.upload(stream, data));
        if uploaded.is_err() {
            self.resize(before)?;
        }
        uploaded
    }
}

impl<T> GrowBuf<T> {
    /// The work that has to be done before memory is released: the uses, and what the own stream was given.
    fn with_home(&self, mut marks: Vec<Mark>) -> Vec<Mark> {
        let home = &self.home.timeline;
        // Without the stream's lock: a thread may hold it while it waits for room in the queue.
        marks.push((Arc::clone(home), home.queued_tick()));
        marks
    }
}

impl<T> Drop for GrowBuf<T> {
    fn drop(&mut self) {
        // Both of one moment: a graph that is launched and goes meanwhile keeps the memory, or was the last use.
        let left = self.log.leave().unwrap_or_default();
        let mut marks = self.with_home(left.marks);
        let mut graphs = left.graphs;
        graphs.extend(self.home.timeline.recorder());
        let (shared, pages) = (Arc::clone(&self.shared), Arc::clone(&self.pages));
        (graphs.iter()).for_each(|it| it.record().sleeps_with(&shared.awake));
        let bytes = pages.bytes();
        let leave = move |gate: Option<&Stream>| {
            let gate = gate.map(|gate| &gate.core().timeline);
            marks.extend(gate.map(|gate| (Arc::clone(gate), gate.open_tick())));
            pages.shrink(0, marks);
            lock(&pages.state).left = true;
            shared.settle(&[pages], false);
        };
        beside(move || keep_for(graphs, bytes, None, Box::new(leave)));
    }
}

impl<T: Pod> fmt::Debug for GrowBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, len, most) = (std::any::type_name::<T>(), self.len, self.most);
        write!(f, "GrowBuf<{of}>({len} of {most} elements at ")?;
        write!(f, "{:#x}, {} mapped)", self.addr(), self.capacity())
    }
}

#[cfg(test)]
mod tests;
