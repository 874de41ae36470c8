//! Memory that sleeps: new operations on it are refused, and earlier ones are waited for.
//!
//! An operation first adds itself to the count of operations that are queueing work on its stream (`Queueing`),
//! and then checks whether its memory is suspended. A thread that suspends memory does the reverse: it sets
//! the flag, then waits until no stream has such an operation. So each operation either sees the flag, or has
//! queued its work before the host waits for all streams.
//!
//! Operations on other memory go on meanwhile, and a stream may always have one. So there are two counts, and
//! while one of them is waited for, operations that begin are counted in the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::lock;
use super::structure::{Awake, Device, Timeline};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, pause};

/// How long to wait for running operations before the memory is left awake. One of them may be on this
/// thread: an application can call for sleep inside the closure that launches a kernel.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts an operation that is queueing work on a stream, until it is dropped. Counts only on a device with a
/// pool that may sleep, at the cost of two atomic operations. The device is marked before such a pool has a
/// block.
#[derive(Debug)]
pub(crate) struct Queueing<'t>(Option<&'t AtomicU64>);

impl<'t> Queueing<'t> {
    #[inline]
    pub(crate) fn begin(timeline: &'t Timeline) -> Self {
        if !timeline.device.may_sleep() {
            return Self(None);
        }
        let count = timeline.device.inner.counted_in.load(Ordering::SeqCst);
        Self::counted(&timeline.queueing[count as usize])
    }

    /// Counts it in `count`.
    #[inline]
    pub(super) fn counted(count: &'t AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Some(count))
    }
}

impl Drop for Queueing<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(queueing) = self.0 {
            queueing.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Awake {
    /// A moment for [`Awake::is_since`].
    pub(crate) fn moment(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether the memory was awake at that moment, and has been all the time since.
    pub(crate) fn is_since(&self, moment: u64) -> bool {
        moment.is_multiple_of(2) && moment == self.moment()
    }

    /// # Errors
    /// [`Error::Invalid`] while the memory sleeps.
    pub(crate) fn check(&self) -> Result<()> {
        match self.moment().is_multiple_of(2) {
            true => Ok(()),
            false => Err(Error::invalid("memory", "it sleeps: wake its pool first")),
        }
    }
}

impl Device {
    /// Marks the device as having a pool whose memory may sleep: from now on operations are counted.
    pub(crate) fn let_sleep(&self) {
        self.inner.sleepers.store(1, Ordering::SeqCst);
    }

    #[inline]
    fn may_sleep(&self) -> bool {
        self.inner.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Whether memory of the device is suspended.
    #[inline]
    pub(super) fn has_suspended(&self) -> bool {
        self.inner.suspended.load(Ordering::SeqCst) > 0
    }

    /// Suspends memory that is awake, and waits on the host for the work queued on all streams that the crate
    /// knows.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a stream is under capture, or if operations do not finish in time; any error
    /// of the driver. The memory is then awake.
    pub(crate) fn suspend(&self, awake: &Awake) -> Result<()> {
        if self.is_capturing() {
            let why = "one is being captured: end the capture first";
            return Err(Error::invalid("stream", why));
        }
        awake.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.suspended.fetch_add(1, Ordering::SeqCst);
        let all: Vec<Arc<Timeline>> = {
            let known = self.timelines();
            known.values().filter_map(|it| it.upgrade()).collect()
        };
        let passed = self.wait_for_operations(&all).and_then(|()| {
            // All marks first: what other threads queue during a wait is not waited for.
            let ticks: Vec<_> = all.iter().map(|it| it.last_tick()).collect();
            let each = || all.iter().zip(&ticks);
            each().for_each(|(it, tick)| it.record_ahead(*tick));
            each().try_for_each(|(it, tick)| it.sync_to(*tick))
        });
        if passed.is_err() {
            self.resume(awake);
        }
        passed
    }

    /// Lets operations use the memory again.
    pub(crate) fn resume(&self, awake: &Awake) {
        awake.changes.fetch_add(1, Ordering::SeqCst);
        self.inner.suspended.fetch_sub(1, Ordering::SeqCst);
    }

    fn wait_for_operations(&self, all: &[Arc<Timeline>]) -> Result<()> {
        let _alone = lock(&self.inner.suspending);
        let began = Instant::now();
        for count in 0..2 {
            self.inner.counted_in.store(1 - count, Ordering::SeqCst);
            let queueing =
                |it: &Arc<Timeline>| it.queueing[count as usize].load(Ordering::SeqCst) > 0;
            let mut looks = 0;
            while all.iter().any(queueing) {
                if began.elapsed() > PATIENCE {
                    let why = "a call that queues work on it has not returned for a second: call `sleep` again once \
                               it has, and outside the closure of a kernel";
                    return Err(Error::invalid("stream", why));
                }
                pause(looks);
                looks += 1;
            }
        }
        Ok(())
    }
}
