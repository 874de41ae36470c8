//! Page-locked host memory, which a GPU copies while the host continues.
//!
//! The driver takes milliseconds to allocate such memory, so a [`HostPool`] keeps it. Its buffers are
//! read and written on the host as slices, and are sources and destinations of queued copies
//! ([`ViewMut::upload_from`], [`View::download_into`]). A buffer records the copies that use it. The
//! host can access its elements once they are done; conflicting copies on other streams run after
//! them; and only then is its memory reused.
//!
//! Data in other host memory is copied to the device through a few buffers used in turn
//! ([`HostPool::stage_in`]), and back the same way ([`HostPool::stage_out`]). A [`Loader`] does this for
//! batch after batch while the application works on earlier ones. With the feature `files`, tensors are
//! loaded from files larger than memory.
//!
//! [`ViewMut::upload_from`]: crate::pool::ViewMut::upload_from
//! [`View::download_into`]: crate::pool::View::download_into

mod buf;
mod chunks;
mod copies;
#[cfg(feature = "files")]
mod files;
mod loader;
mod ring;
mod sleep;
mod spill;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
mod uses;

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytemuck::Pod;

pub use buf::{HostBuf, HostView, HostViewMut};
#[cfg(feature = "files")]
pub use files::{TensorFile, TensorInfo};
pub use loader::Loader;
pub use sleep::Contents;
pub use spill::Spill;

use crate::device::{Device, beside, is_running, lock};
use crate::error::{Bytes, Error, OutOfMemory, Result, refuse};
use crate::pool::Counter;
use crate::sync::Mutex;
use chunks::{Chunk, Chunks};
use uses::{Marks, Uses};

/// Bytes that a pool may hold, however little of them was ever in use at once: two rounds of a [`Loader`]'s pieces.
const FREELY_HELD: u64 = 16 << 20;

/// The configuration of a [`HostPool`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostPoolConfig {
    /// Most bytes that the pool may hold; `None` for no limit.
    pub(crate) limit: Option<u64>,
}

impl HostPoolConfig {
    /// Sets the most bytes that the pool may hold: at least 1 MiB, the page that small buffers
    /// share.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }
}

/// Statistics of a [`HostPool`], in bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostStats {
    /// Page-locked memory held.
    pub reserved: Counter,
    /// Memory in buffers, as rounded.
    pub allocated: Counter,
    /// Memory of dropped buffers that queued copies still use.
    pub pending: u64,
    /// Number of allocations from the driver.
    pub created: u64,
    /// Number of releases to the driver.
    pub released: u64,
    /// Number of waits of requests for copies: see [`HostPool::alloc_waiting`].
    pub waits: u64,
}

/// A pool of page-locked host memory in stream order. Cheap to clone; all clones are the same pool.
///
/// A buffer's memory is reused once the copies that use it are done. Only the methods that say so wait on the host.
/// Requests are rounded up to a power of two; above 512 KiB, to an eighth of one. Small ones share pages of 1 MiB.
/// A pool that would hold more than 16 MiB, and more than twice what was in use at once, serves a request from idle
/// memory of up to twice its size, or releases idle memory before it takes more.
///
/// Safe to use from any thread. If buffers outlive the pool, the memory is released when the last one is
/// dropped.
///
/// ```
/// use warpool::{Device, Pool, PoolConfig, host::{HostPool, HostPoolConfig}};
///
/// # fn main() -> warpool::Result<()> {
/// let device = Device::host()?;
/// let (pool, stream) = (Pool::new(&device, PoolConfig::default())?, device.stream()?);
/// let host = HostPool::new(&device, HostPoolConfig::default());
///
/// let mut batch = host.alloc::<f32>(1024)?;
/// batch.get_mut()?.fill(0.5);
/// let mut on_device = pool.alloc_typed::<f32>(&stream, 1024)?;
/// on_device.view_mut().upload_from(&stream, &batch)?; // returns at once
/// let mut back = host.alloc::<f32>(1024)?;
/// on_device.view().download_into(&stream, &mut back)?;
/// assert_eq!(back.get()?, [0.5; 1024]); // waits for the copies
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HostPool {
    inner: Arc<Inner>,
}

/// Memory of a dropped buffer, and the copies that may still use it.
struct Pending {
    chunk: Chunk,
    marks: Marks,
}

#[derive(Default)]
struct State {
    chunks: Chunks,
    pending: Vec<Pending>,
    /// Bytes of pending memory that a thread is querying the driver about.
    asked: u64,
    /// Buffers that have memory.
    bufs: u64,
    /// Most bytes in use at once, by buffers or, when memory was short, by copies too.
    most_used: u64,
    stats: HostStats,
    /// Bytes being allocated from the driver, so that two threads cannot exceed the limit together.
    promised: u64,
}

pub(crate) struct Inner {
    device: Device,
    limit: u64,
    state: Mutex<State>,
    /// Held while the driver is queried: the memory in question is then in no list.
    turn: Mutex<()>,
}

fn bytes_of(pending: &[Pending]) -> u64 {
    pending.iter().map(|entry| entry.chunk.bytes).sum()
}

/// Counts `bytes` more.
fn add(counter: &mut Counter, bytes: u64) {
    counter.allocated += bytes;
    counter.current += bytes;
    counter.peak = counter.peak.max(counter.current);
}

/// Counts `bytes` less.
fn take(counter: &mut Counter, bytes: u64) {
    counter.freed += bytes;
    counter.current -= bytes;
}

impl HostPool {
    /// Makes a pool of host memory for copies to and from `device`. Takes no memory yet.
    #[must_use]
    pub fn new(device: &Device, config: HostPoolConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                limit: config.limit.unwrap_or(u64::MAX),
                state: Mutex::default(),
                turn: Mutex::default(),
            }),
        }
    }

    /// A buffer of `len` elements. Its contents are those of earlier buffers, or zeros. In a host call, only from idle
    /// memory, as it may not call the driver.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] at the limit, or if the machine has no more memory, with page-locked host memory as
    /// the only holder; copies under way may still hold some, which [`HostPool::alloc_waiting`] waits for.
    /// [`Error::Invalid`] if the length
    /// exceeds the address space, if the limit is below the page that a small buffer needs, or if a host call would
    /// need more than is idle; any error of the driver.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<HostBuf<T>> {
        self.alloc_or(len, false)
    }

    /// The same as [`HostPool::alloc`], but if memory is short, waits on the host for copies that use
    /// memory of dropped buffers, the oldest first.
    ///
    /// # Errors
    /// See [`HostPool::alloc`].
    pub fn alloc_waiting<T: Pod>(&self, len: usize) -> Result<HostBuf<T>> {
        self.alloc_or(len, true)
    }

    fn alloc_or<T: Pod>(&self, len: usize, waits: bool) -> Result<HostBuf<T>> {
        let bytes = len.checked_mul(size_of::<T>()).map(|bytes| bytes as u64);
        let bytes = bytes
            .filter(|&bytes| bytes <= chunks::MOST)
            .ok_or_else(|| {
                Error::invalid(
                    "len",
                    format!("{len} elements are more than there are addresses"),
                )
            })?;
        if align_of::<T>() as u64 > chunks::LEAST {
            let why = format!(
                "elements aligned to {} bytes have no place here",
                align_of::<T>()
            );
            return Err(Error::invalid("T", why));
        }
        let chunk = match bytes {
            0 => None,
            _ => Some(self.inner.take(bytes, waits)?),
        };
        Ok(HostBuf {
            pool: Arc::clone(&self.inner),
            chunk,
            len,
            uses: Uses::default(),
            element: PhantomData,
        })
    }

    /// Releases idle memory to the driver and returns its bytes. Memory that copies use is not
    /// idle.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a host call; any error of the driver: memory released before it stays released.
    #[doc(alias = "empty_cache")]
    pub fn trim(&self) -> Result<u64> {
        refuse!(is_running() => "thread", "a host call may not call the driver: trim outside of it");
        let _turn = lock(&self.inner.turn);
        let reaped = self.inner.reap();
        let released = self.inner.release_idle(u64::MAX)?;
        reaped.map(|()| released)
    }

    /// The pool's statistics, all of the same moment.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        let state = lock(&self.inner.state);
        let mut stats = state.stats;
        stats.pending = state.asked + bytes_of(&state.pending);
        stats
    }
}

impl fmt::Debug for HostPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = Bytes(self.stats().reserved.current);
        write!(f, "HostPool({reserved} on {:?})", self.inner.device)
    }
}

impl Inner {
    /// Memory for `bytes` bytes. In this order: idle memory; memory whose copies are done by now; larger idle memory, if
    /// the pool holds much; new memory; new memory after idle memory of other sizes was released; and, if it `waits`,
    /// memory whose copies have to be waited for.
    fn take(&self, bytes: u64, waits: bool) -> Result<Chunk> {
        let class = chunks::class_of(bytes);
        loop {
            if let Some(chunk) = self.take_idle(class..=class) {
                return Ok(chunk);
            }
            let oldest = {
                refuse!(is_running() => "thread",
                    "a host call may not call the driver, and no memory is idle: allocate it before");
                let _turn = lock(&self.turn);
                // On an error, the memory of the copies in question stays pending. The error is returned only if
                // there is no other memory.
                let reaped = self.reap();
                let beyond = self.beyond(class);
                if let Some(chunk) = self.take_idle(class..=class << u32::from(beyond > 0)) {
                    return Ok(chunk);
                }
                if beyond > 0 {
                    self.release_idle(beyond)?;
                }
                if self.grow(class)? || (self.release_idle(u64::MAX)? > 0 && self.grow(class)?) {
                    continue;
                }
                match self.oldest().filter(|_| waits) {
                    None => return Err(reaped.err().unwrap_or_else(|| self.out_of_memory(class))),
                    Some(oldest) => oldest,
                }
            };
            lock(&self.state).stats.waits += 1;
            oldest.wait()?;
        }
    }

    fn take_idle(&self, classes: RangeInclusive<u64>) -> Option<Chunk> {
        let mut state = lock(&self.state);
        let chunk = state.chunks.take(classes)?;
        add(&mut state.stats.allocated, chunk.bytes);
        state.bufs += 1;
        Some(chunk)
    }

    /// Bytes by which the pool would hold too much with new memory for `class`.
    fn beyond(&self, class: u64) -> u64 {
        let mut state = lock(&self.state);
        let used = state.stats.allocated.current + bytes_of(&state.pending);
        state.most_used = used.max(state.most_used).max(state.stats.allocated.peak);
        let most = state.most_used.max(used + class);
        let held = state.stats.reserved.current + state.promised + chunks::page_of(class);
        held.saturating_sub(FREELY_HELD.max(2 * most))
    }

    /// Allocates memory for a chunk of `class` from the driver; false if there is no more, or at the
    /// limit.
    fn grow(&self, class: u64) -> Result<bool> {
        let bytes = chunks::page_of(class);
        {
            let mut state = lock(&self.state);
            let held = state.stats.reserved.current + state.promised;
            if held.saturating_add(bytes) > self.limit {
                // Nothing is held, so nothing can be released to make space.
                return match held == 0 && class < bytes {
                    false => Ok(false),
                    true => Err(Error::invalid(
                        "limit",
                        format!(
                            "{} are less than the page of {} that small buffers share",
                            Bytes(self.limit),
                            Bytes(bytes)
                        ),
                    )),
                };
            }
            state.promised += bytes;
        }
        let made = self.device.backend().host_alloc(bytes);
        let mut state = lock(&self.state);
        state.promised -= bytes;
        match made {
            Ok(addr) => {
                add(&mut state.stats.reserved, bytes);
                state.stats.created += 1;
                state.chunks.add(addr, bytes, class);
                Ok(true)
            }
            Err(error) if error.is_device_exhausted() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes memory idle whose copies are done. Memory whose query failed stays pending, after all other.
    fn reap(&self) -> Result<()> {
        let all = {
            let mut state = lock(&self.state);
            state.asked = bytes_of(&state.pending);
            std::mem::take(&mut state.pending)
        };
        let (mut outcome, mut short) = (Ok(()), HashMap::new());
        let (mut done, mut left, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for entry in all {
            match entry.marks.are_done(&mut short) {
                Ok(true) => done.push(entry),
                Ok(false) => left.push(entry),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    failed.push(entry);
                }
            }
        }
        let mut state = lock(&self.state);
        state.asked = 0;
        for entry in done {
            state.chunks.give(entry.chunk);
        }
        left.append(&mut state.pending);
        left.append(&mut failed);
        state.pending = left;
        outcome
    }

    /// The copies of the memory that was returned first and may still be in use.
    fn oldest(&self) -> Option<Marks> {
        let state = lock(&self.state);
        state.pending.first().map(|entry| entry.marks.clone())
    }

    /// Releases idle memory to the driver, about `most` bytes, and returns its bytes.
    fn release_idle(&self, most: u64) -> Result<u64> {
        let idle = lock(&self.state).chunks.take_idle_pages(most);
        let (mut released, mut outcome) = (0, Ok(()));
        for page in idle {
            if outcome.is_ok() {
                outcome = self.device.backend().host_free(page.addr, page.bytes);
            }
            let mut state = lock(&self.state);
            if outcome.is_ok() {
                take(&mut state.stats.reserved, page.bytes);
                state.stats.released += 1;
                released += page.bytes;
            } else {
                state.chunks.add(page.addr, page.bytes, page.class);
            }
        }
        outcome.map(|()| released)
    }

    /// Takes back the memory of a dropped buffer.
    fn give(&self, chunk: Chunk, marks: Marks) {
        let mut state = lock(&self.state);
        take(&mut state.stats.allocated, chunk.bytes);
        state.bufs -= 1;
        match marks.is_empty() {
            true => state.chunks.give(chunk),
            false => state.pending.push(Pending { chunk, marks }),
        }
    }

    fn out_of_memory(&self, class: u64) -> Error {
        let state = lock(&self.state);
        let (stats, held) = (state.stats, state.stats.allocated.current);
        // A device's pool and a host pool return the same error: this tells them apart.
        let holder = ("page-locked host memory".to_owned(), held, state.bufs);
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested: class,
            live: held,
            reserved: stats.reserved.current,
            limit: self.limit,
            device_free: None,
            holders: vec![holder],
            ..OutOfMemory::default()
        }))
    }
}

impl Drop for Inner {
    /// Waits for the copies that still use the pool's memory. Memory whose copies cannot be waited for
    /// is leaked, because they may still write to it.
    fn drop(&mut self) {
        let state = std::mem::take(crate::sync::get_mut(&mut self.state));
        let device = self.device.clone();
        beside(move || {
            let State {
                mut chunks,
                pending,
                ..
            } = state;
            for Pending { chunk, marks } in pending {
                if marks.wait().is_ok() {
                    chunks.give(chunk);
                }
            }
            for page in chunks.take_idle_pages(u64::MAX) {
                // A failure leaks only memory that the driver refuses to release.
                let _ = device.backend().host_free(page.addr, page.bytes);
            }
        });
    }
}
