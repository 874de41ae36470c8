//! Batches that are copied to the device while earlier ones are in use.

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytemuck::Pod;

use super::HostPool;
use super::ring::Ring;
use crate::device::{Stream, beside, lock, panicked};
use crate::error::Error;
use crate::pool::{Pool, PoolBuf, tag, tag_scope};
use crate::sync::Mutex;

/// Largest depth: the queue allocates a slot for each batch.
const DEEPEST: usize = 1 << 16;

/// Batches on the device, filled on a separate stream while earlier batches are in use.
///
/// A thread of the loader takes data from an iterator, allocates a batch, and copies the data to it
/// through four page-locked pieces of up to 2 MiB. The loader iterates over the batches in the same
/// order. A batch is a [`PoolBuf`]: work on any stream runs after its copy, on the device. Once dropped,
/// its memory is reused for later batches, after that work.
///
/// **Memory.** The loader holds at most `depth` batches that the application has not taken. It takes no
/// further data from the iterator until the application takes a batch. With a depth of 1, the copy of a
/// batch may run after the work on the one before; a depth of 2 lets them overlap. Batches have the tag of the thread
/// that made the loader.
///
/// **Errors.** An error or panic of the iterator (a panic as [`Error::Os`]), or an error of the pools or
/// the driver, takes the place of its batch. It comes after all earlier batches and is the last item.
///
/// **Drop.** The thread ends and releases what it holds. If it is waiting for the application to take a
/// batch, it does so before the drop returns; otherwise once the running call of the iterator, or the
/// running copy, returns. The iterator is dropped on that thread.
///
/// ```
/// use warpool::{Device, Pool, PoolConfig, host::{HostPool, HostPoolConfig, Loader}};
///
/// # fn main() -> warpool::Result<()> {
/// let device = Device::host()?;
/// let (pool, compute) = (Pool::new(&device, PoolConfig::default())?, device.stream()?);
/// let host = HostPool::new(&device, HostPoolConfig::default());
///
/// let data = (0..10).map(|number| vec![number as f32; 1000]); // read, decode and shuffle on the loader's thread
/// let mut sums = Vec::new();
/// for batch in Loader::new(&pool, &host, 2, data)? {
///     let batch = batch?;
///     let mut result = pool.alloc_typed::<f32>(&compute, batch.len())?;
///     result.view_mut().copy_from(&compute, &batch)?; // after the batch's copy
///     sums.push(result);
/// }
/// assert_eq!(sums[9].download()?, [9.0; 1000]);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "DataLoader")]
#[doc(alias = "prefetch")]
pub struct Loader<T, E = Error> {
    /// `None` while the loader is being dropped.
    batches: Option<Receiver<Result<PoolBuf<T>, E>>>,
    /// `None` once the loader is being dropped.
    thread: Option<JoinHandle<()>>,
    turn: Arc<Mutex<Turn>>,
}

/// The state of the thread.
#[derive(Default)]
struct Turn {
    /// Whether it is in the iterator or in a copy, so that the drop must not wait for it.
    busy: bool,
    /// Whether the loader was dropped, so that the thread must not become busy again.
    stopped: bool,
}

impl<T: Pod + Send> Loader<T> {
    /// Starts a loader that makes one batch of `pool` from each item of `data`, up to `depth`
    /// batches ahead.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the depth is 0 or above 65,536, or the pools are of two devices; any error
    /// of the driver from making a stream, or of the system from starting a thread.
    pub fn new<D: AsRef<[T]> + 'static>(
        pool: &Pool,
        host: &HostPool,
        depth: usize,
        data: impl Iterator<Item = D> + Send + 'static,
    ) -> Result<Self, Error> {
        Self::try_new(pool, host, depth, data.map(Ok))
    }
}

impl<T: Pod + Send, E: From<Error> + Send + 'static> Loader<T, E> {
    /// The same as [`Loader::new`], for data that may fail: an error of the iterator is passed on
    /// unchanged, as the last item.
    ///
    /// ```
    /// # use warpool::{Device, Pool, PoolConfig, host::{HostPool, HostPoolConfig, Loader}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = Device::host()?;
    /// # let pool = Pool::new(&device, PoolConfig::default())?;
    /// # let host = HostPool::new(&device, HostPoolConfig::default());
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// let files = ["/dev/null", "/there/is/none"].into_iter();
    /// let data = files.map(|file| Ok(std::fs::read(file)?));
    /// let mut loader = Loader::<u8, Failure>::try_new(&pool, &host, 2, data)?;
    /// assert!(loader.next().is_some_and(|batch| batch.is_ok()));
    /// assert!(loader.next().is_some_and(|batch| batch.is_err()));
    /// assert!(loader.next().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Loader::new`].
    pub fn try_new<D: AsRef<[T]> + 'static>(
        pool: &Pool,
        host: &HostPool,
        depth: usize,
        data: impl Iterator<Item = Result<D, E>> + Send + 'static,
    ) -> Result<Self, Error> {
        let parts = data.map(|item| {
            item.map(|data| {
                let len = data.as_ref().len();
                let fill = move |from: usize, part: &mut [T]| {
                    part.copy_from_slice(&data.as_ref()[from..from + part.len()]);
                    Ok(())
                };
                (len, fill)
            })
        });
        Self::of_parts(pool, host, depth, parts)
    }

    /// A loader of batches that are written directly into the page-locked pieces. For each batch: its
    /// length, and a function that writes the piece starting at a given element.
    pub(super) fn of_parts<F>(
        pool: &Pool,
        host: &HostPool,
        depth: usize,
        parts: impl Iterator<Item = Result<(usize, F), E>> + Send + 'static,
    ) -> Result<Self, Error>
    where
        F: FnMut(usize, &mut [T]) -> Result<(), E>,
    {
        if !(1..=DEEPEST).contains(&depth) {
            let why = format!("{depth} batches ahead are not from 1 to {DEEPEST}");
            return Err(Error::invalid("depth", why));
        }
        if !pool.device().same(&host.inner.device) {
            return Err(Error::invalid("host", "it is a pool for another device"));
        }
        let worker = Worker {
            pool: pool.clone(),
            side: pool.device().stream()?,
            ring: Ring::new(host),
            turn: Arc::default(),
        };
        let (turn, tag) = (Arc::clone(&worker.turn), tag());
        // In addition to those in the queue, the thread holds one batch.
        let (sender, batches) = sync_channel(depth - 1);
        let thread = std::thread::Builder::new().name(String::from("warpool-loader"));
        let thread = thread.spawn(move || {
            let _tag = tag_scope(tag);
            // Here, so that no panic of the iterator's is dropped with the thread: its drop may panic again.
            let ran = catch_unwind(AssertUnwindSafe(|| worker.run(parts, &sender)));
            if let Err(panic) = ran {
                let _ = sender.send(Err(panicked("the loader's iterator", panic).into()));
            }
        });
        let thread = thread.map_err(|error| Error::Os {
            call: "thread spawn",
            words: error.to_string(),
        })?;
        Ok(Self {
            batches: Some(batches),
            thread: Some(thread),
            turn,
        })
    }
}

/// The data of the thread.
struct Worker<T> {
    pool: Pool,
    side: Stream,
    ring: Ring<T>,
    turn: Arc<Mutex<Turn>>,
}

impl<T: Pod> Worker<T> {
    fn run<E: From<Error>, F>(
        mut self,
        mut parts: impl Iterator<Item = Result<(usize, F), E>>,
        batches: &SyncSender<Result<PoolBuf<T>, E>>,
    ) where
        F: FnMut(usize, &mut [T]) -> Result<(), E>,
    {
        while self.begin() {
            let Some(part) = parts.next() else { return };
            let batch = part.and_then(|(len, fill)| self.batch(len, fill));
            let is_last = batch.is_err();
            lock(&self.turn).busy = false;
            if batches.send(batch).is_err() || is_last {
                return;
            }
        }
    }

    /// Marks the thread as busy; returns false if it has to stop.
    fn begin(&self) -> bool {
        let mut turn = lock(&self.turn);
        turn.busy = !turn.stopped;
        turn.busy
    }

    fn batch<E: From<Error>>(
        &mut self,
        len: usize,
        fill: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<PoolBuf<T>, E> {
        let mut batch = self.pool.alloc_typed(&self.side, len)?;
        self.ring.upload(&self.side, batch.view_mut(), fill)?;
        Ok(batch)
    }
}

impl<T, E: From<Error>> Iterator for Loader<T, E> {
    type Item = Result<PoolBuf<T>, E>;

    /// The next batch; waits on the host until its copy is queued.
    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl<T, E: From<Error>> std::iter::FusedIterator for Loader<T, E> {}

impl<T, E> Drop for Loader<T, E> {
    fn drop(&mut self) {
        let is_busy = {
            let mut turn = lock(&self.turn);
            turn.stopped = true;
            turn.busy
        };
        // Drops the batches, and wakes the thread if it is waiting to pass one on.
        drop(self.batches.take());
        // The iterator may own the loader, and then drops it on the thread itself.
        let is_other = |it: &JoinHandle<()>| it.thread().id() != std::thread::current().id();
        let thread = self.thread.take().filter(is_other);
        if let Some(thread) = thread.filter(|_| !is_busy) {
            // It may hold the last of a pool of host memory, which waits for copies.
            beside(move || _ = thread.join());
        }
    }
}

impl<T, E> fmt::Debug for Loader<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "Loader<{element}>")
    }
}
