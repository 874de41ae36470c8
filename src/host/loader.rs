//! Batches that go up beside the work on those before.

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytemuck::Pod;

use super::HostPool;
use super::ring::Ring;
use crate::device::{Stream, beside, lock, panicked};
use crate::error::Error;
use crate::pool::{Pool, PoolBuf};
use crate::sync::Mutex;

/// Most batches ahead: each has a place in a queue from the start.
const DEEPEST: usize = 1 << 16;

/// Batches on the device, filled on a stream of their own while those before are worked on.
///
/// A thread of the loader's takes data from an iterator, allocates a batch, and copies the data up by way
/// of four page-locked pieces of up to 2 MiB. The loader is an iterator of the batches in the same order.
/// A batch is a [`PoolBuf`]: work on any stream runs behind its copy, on the device, and dropped it is
/// free for the batches to come, behind that work.
///
/// **Memory.** The loader has never more than `depth` batches that the application did not take: it takes
/// no further data from the iterator until the application takes a batch. With a depth of 1 the copy of a
/// batch may come to run behind the work on the one before; 2 lets them overlap.
///
/// **Errors.** An error of the iterator, a panic of it ([`Error::Os`]), and what the pools or the driver
/// say come in the place of their batch, after all batches before, and are the last that comes.
///
/// **Drop.** The thread ends, and what it holds is given back: before the drop returns if the thread waits
/// for room, else as soon as the iterator or the copy at which it is returns. The iterator is dropped on
/// that thread.
///
/// ```
/// use warpool::{Device, Pool, PoolConfig, host::{HostPool, HostPoolConfig, Loader}};
///
/// # fn main() -> warpool::Result<()> {
/// let device = Device::host()?;
/// let (pool, compute) = (Pool::new(&device, PoolConfig::default())?, device.stream()?);
/// let host = HostPool::new(&device, HostPoolConfig::default());
///
/// let data = (0..10).map(|number| vec![number as f32; 1000]); // Read, decoded, shuffled: on its thread.
/// let mut sums = Vec::new();
/// for batch in Loader::new(&pool, &host, 2, data)? {
///     let batch = batch?;
///     let mut result = pool.alloc_typed::<f32>(&compute, batch.len())?;
///     result.view_mut().copy_from(&compute, &batch)?; // Behind the batch's copy.
///     sums.push(result);
/// }
/// assert_eq!(sums[9].download()?, [9.0; 1000]);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "DataLoader")]
#[doc(alias = "prefetch")]
pub struct Loader<T, E = Error> {
    /// `None` once the loader is being dropped.
    batches: Option<Receiver<Result<PoolBuf<T>, E>>>,
    /// `None` once it is known to have ended.
    thread: Option<JoinHandle<()>>,
    turn: Arc<Mutex<Turn>>,
}

/// Where the thread is.
#[derive(Default)]
struct Turn {
    /// In the iterator or at a copy, and not to be waited for.
    busy: bool,
    /// The loader was dropped: not to become busy.
    stopped: bool,
}

impl<T: Pod + Send> Loader<T> {
    /// Starts a loader of batches of `pool`, one of each item of `data`, up to `depth` ahead.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0 or above 65,536, or pools of two devices; what the driver said
    /// of a new stream, or the system of a new thread.
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
    /// As [`Loader::new`], of data that may not be there: an error of the iterator's is the loader's, as
    /// it is, and the last item.
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
    /// As [`Loader::new`].
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

    /// A loader of batches that are written where they go up from: of each its length, and what writes a
    /// piece of it that begins at an element.
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
        let turn = Arc::clone(&worker.turn);
        // The thread holds one batch more than are queued.
        let (sender, batches) = sync_channel(depth - 1);
        let thread = std::thread::Builder::new().name(String::from("warpool-loader"));
        let thread = thread.spawn(move || worker.run(parts, &sender));
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

/// What the thread has.
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

    /// Whether to make another batch.
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
        if let Some(batch) = self
            .batches
            .as_ref()
            .and_then(|batches| batches.recv().ok())
        {
            return Some(batch);
        }
        // The thread has ended, or is about to: of itself, or by a panic of the iterator's.
        let panic = self.thread.take()?.join().err()?;
        Some(Err(panicked("the loader's iterator", panic).into()))
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
        // Gives the batches back, and wakes the thread if it waits for room.
        drop(self.batches.take());
        // The iterator may own the loader, and be dropped by the thread itself.
        let is_other = |it: &JoinHandle<()>| it.thread().id() != std::thread::current().id();
        let thread = self.thread.take().filter(is_other);
        if let Some(thread) = thread.filter(|_| !is_busy) {
            // It may hold the last of a pool of host memory, which waits for copies.
            beside(move || {
                if let Err(panic) = thread.join() {
                    // That it panicked is of no interest any more.
                    let _ = panicked("the loader's iterator", panic);
                }
            });
        }
    }
}

impl<T, E> fmt::Debug for Loader<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "Loader<{element}>")
    }
}
