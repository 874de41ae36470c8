//! Memory that sleeps: operations on it are refused, and those before are waited for.
//!
//! An operation counts itself among those that give its stream work (`Giving`), and then looks whether
//! its memory is suspended. Who suspends it does it the other way round: notes that, then waits until no
//! stream is being given work. So an operation either sees it, or has queued its work by the time that the
//! host waits for all streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::structure::{Awake, Device, Timeline};
use crate::error::{Error, Result};
use crate::seeded::seeded;
use crate::sync::pause;

/// How long operations under way are waited for before the memory stays awake: one may be this thread's own,
/// which puts memory to sleep from the code of a kernel.
const PATIENCE: Duration = Duration::from_secs(1);

/// An operation that gives a stream work, until it is dropped. Counted where a pool of the device may
/// sleep: two locked instructions, which nobody else has to pay. That is known before there is a block of
/// such a pool.
pub(crate) struct Giving<'t>(Option<&'t Timeline>);

impl<'t> Giving<'t> {
    #[inline]
    pub(crate) fn begin(timeline: &'t Timeline) -> Self {
        if !timeline.device.may_sleep() {
            return Self(None);
        }
        timeline.giving.fetch_add(1, Ordering::SeqCst);
        Self(Some(timeline))
    }
}

impl Drop for Giving<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(timeline) = self.0 {
            timeline.giving.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Awake {
    /// # Errors
    /// [`Error::Invalid`] while the memory sleeps.
    pub(crate) fn check(&self) -> Result<()> {
        match self.suspended.load(Ordering::SeqCst) == 0 || seeded!("sleeping-memory-is-used") {
            true => Ok(()),
            false => Err(Error::invalid("memory", "it sleeps: wake its pool first")),
        }
    }
}

impl Device {
    /// A pool is made whose memory may sleep: from now on operations count themselves.
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

    /// Suspends memory that is awake, and waits on the host for all work that streams known to the crate were
    /// given.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a stream is under capture, or if operations do not come to an end; what
    /// the driver said. The memory is then awake.
    pub(crate) fn suspend(&self, awake: &Awake) -> Result<()> {
        if self.is_capturing() {
            let why = "one is being captured: end the capture first";
            return Err(Error::invalid("stream", why));
        }
        awake.suspended.store(1, Ordering::SeqCst);
        self.inner.suspended.fetch_add(1, Ordering::SeqCst);
        let all: Vec<Arc<Timeline>> = {
            let known = self.timelines();
            known.values().filter_map(|it| it.upgrade()).collect()
        };
        let passed = Self::wait_for_operations(&all).and_then(|()| {
            match seeded!("put-to-sleep-under-queued-work") {
                true => Ok(()),
                false => all.iter().try_for_each(|it| it.sync_to(it.last_tick())),
            }
        });
        if passed.is_err() {
            self.resume(awake);
        }
        passed
    }

    /// Lets operations use the memory again.
    pub(crate) fn resume(&self, awake: &Awake) {
        awake.suspended.store(0, Ordering::SeqCst);
        self.inner.suspended.fetch_sub(1, Ordering::SeqCst);
    }

    fn wait_for_operations(all: &[Arc<Timeline>]) -> Result<()> {
        let began = Instant::now();
        for timeline in all {
            let mut looks = 0;
            let ignored = seeded!("operations-under-way-not-waited-for");
            while timeline.giving.load(Ordering::SeqCst) > 0 && !ignored {
                if began.elapsed() > PATIENCE {
                    let why = "it is being given work, which does not end";
                    return Err(Error::invalid("stream", why));
                }
                pause(looks);
                looks += 1;
            }
        }
        Ok(())
    }
}
