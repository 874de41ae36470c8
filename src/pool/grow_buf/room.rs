//! The budget of growing buffers: their bytes count with the pool's, and what is idle goes for them.
//!
//! Bytes to be made are promised under the pool's lock, as those of a mapping are (`job`), and booked
//! once the driver has answered. Where the limit or the device lacks room the pool gives up idle memory:
//! what is known to be done first, then behind waits of the host, then what registered steps free.

use std::sync::{Arc, Weak};

use super::pages::{Mark, Pages};
use crate::device::{Kept, Recorder, Stream, lock};
use crate::error::Result;
use crate::heap::Extent;
use crate::pool::Relief;
use crate::pool::ask::Ask;
use crate::pool::core::{Core, Grown, is_done};
use crate::pool::idle::first_of;
use crate::pool::pressure::Left;
use crate::pool::release::Release;
use crate::pool::structure::Shared;
use crate::seeded::seeded;

/// Rank of giving back what growing buffers no longer use, ahead of all that moves memory.
const SETTLING_RANK: u8 = 1;

#[derive(Default)]
struct Measures {
    at: u32,
    /// Idle memory was looked for, so that the pool may grow beyond its slack.
    looked: bool,
    left: Left,
}

impl Core {
    /// Physical bytes that the pool holds, those of growing buffers too.
    pub(crate) fn reserved(&self) -> u64 {
        self.arena.reserved() + self.grown.bytes
    }

    /// Of these, bytes in handles that stand mapped for somebody.
    pub(crate) fn mapped(&self) -> u64 {
        let beside = u64::from(!seeded!("soft-limit-without-growing-buffers"));
        self.arena.mapped() + self.grown.bytes * beside
    }

    /// Bytes created and bytes released so far, likewise.
    pub(crate) fn flow(&self) -> (u64, u64) {
        let (created, released) = self.arena.flow();
        let Grown { bytes, made } = self.grown;
        (created + made, released + (made - bytes))
    }

    /// Promises `bytes` to a growing buffer, if so many may be made: within the slack, or, once idle
    /// memory was looked for, within the limit. Gives the most bytes of a handle.
    fn promise(&mut self, bytes: u64, looked: bool) -> Option<u64> {
        let slack = if looked { u64::MAX } else { self.slack(bytes) };
        if self.room().min(slack) < bytes && !seeded!("growing-beyond-the-limit") {
            return None;
        }
        self.under_way.to_create += bytes;
        self.under_way.jobs += 1;
        Some(self.largest_handle(bytes, bytes))
    }

    fn book_grown(&mut self, promised: u64, made: u64) {
        self.under_way.to_create -= promised;
        self.under_way.end_one();
        self.book_grown_handles(made);
    }

    pub(in crate::pool) fn book_grown_handles(&mut self, made: u64) {
        self.grown.bytes += made;
        self.grown.made += made;
        self.peak_reserved = self.peak_reserved.max(self.reserved());
    }

    /// Begins to give up idle handles of at least `bytes`, or all there are: those whose work is known
    /// to be done, or all behind a wait of the host.
    fn begin_giving_up(&mut self, bytes: u64, wait: bool) -> Option<Release> {
        let usable = |extent: &Extent| wait || is_done(&self.streams, extent.epoch());
        let mut idle = first_of(self.idle(None, u64::MAX, usable), bytes);
        idle.retain(|_| !seeded!("idle-memory-kept-from-growing-buffers"));
        self.begin_release(&idle, None, Vec::new())
    }
}

impl Shared {
    pub(super) fn enter_pages(self: &Arc<Self>, pages: &Arc<Pages>) {
        let mut growing = lock(&self.growing.0);
        growing.push(Arc::clone(pages));
        drop(growing);
        self.settles.get_or_init(|| {
            let shared: Weak<Self> = Arc::downgrade(self);
            let forgets = seeded!("pressure-forgets-growing-buffers");
            let settles = move |it: Arc<Self>| !forgets && it.settle_all(true) > 0;
            let step = move |_: &_| Relief::of(shared.upgrade().is_some_and(settles));
            self.add_relief(SETTLING_RANK, Arc::new(step));
        });
    }

    /// Maps memory for `bytes`, a multiple of the granule, of a buffer whose stream is `stream`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), what the driver said; the buffer is then as
    /// it was.
    pub(super) fn grow_pages(&self, pages: &Pages, bytes: u64, stream: u64) -> Result<()> {
        let before = pages.before();
        let grown = self.try_to_grow(pages, bytes, stream);
        if grown.is_err() && !seeded!("failed-growth-keeps-its-handles") {
            self.book_released(pages.undo(before));
            self.settle_pages(pages, false);
        }
        self.tell();
        grown
    }

    fn try_to_grow(&self, pages: &Pages, bytes: u64, stream: u64) -> Result<()> {
        let mut measures = Measures::default();
        loop {
            self.core.lock().refuse_asleep()?;
            let lacking = pages.take_back(bytes)?;
            if lacking == 0 {
                return Ok(());
            }
            // What lies in caches is idle too.
            let mut core = self.lock_drained();
            // It may have fallen asleep meanwhile.
            core.refuse_asleep()?;
            let promised = core.promise(lacking, measures.looked);
            drop(core);
            if let Some(largest) = promised {
                let (made, outcome) = pages.make(lacking, largest);
                self.core.lock().book_grown(lacking, made);
                match outcome {
                    Err(error) if error.is_device_exhausted() => {}
                    outcome => return outcome,
                }
            }
            if !self.take_measure(&mut measures, lacking, stream)? {
                return Err(self.out_of_memory(lacking));
            }
        }
    }

    /// Makes room for `bytes` by the next measure, the cheap ones first; false where none is left.
    fn take_measure(&self, measures: &mut Measures, bytes: u64, stream: u64) -> Result<bool> {
        measures.at += 1;
        match measures.at {
            1 => self.give_up_idle(bytes, false)?,
            2 => self.give_up_idle(bytes, true)?,
            3 => {
                let core = self.core.lock();
                if core.under_way.jobs > 0 {
                    drop(self.wait_for_others(core));
                }
            }
            _ if self.relieve(stream, bytes, &mut measures.left) => measures.at = 0,
            _ => return Ok(false),
        }
        measures.looked = true;
        Ok(true)
    }

    fn give_up_idle(&self, bytes: u64, wait: bool) -> Result<()> {
        self.settle_all(wait);
        let ask: fn(u64) -> Ask = if wait { Ask::Done } else { Ask::Reached };
        self.work(|core| core.ask_of_all(ask))?;
        self.core.lock().merge_done();
        self.work(|core| core.begin_giving_up(bytes, wait))?;
        let begin_reaping = if wait {
            Core::begin_reaping_all
        } else {
            Core::begin_reaping
        };
        self.work(begin_reaping).map(|_| ())
    }

    pub(in crate::pool) fn all_pages(&self) -> Vec<Arc<Pages>> {
        lock(&self.growing.0).clone()
    }

    pub(in crate::pool) fn pages_asleep(&self) -> u64 {
        self.all_pages().iter().map(|it| it.asleep()).sum()
    }

    pub(in crate::pool) fn book_released(&self, bytes: u64) {
        if bytes > 0 && !seeded!("shrunk-bytes-stay-on-the-books") {
            self.core.lock().grown.bytes -= bytes;
        }
    }

    /// Gives back what a buffer no longer uses, as [`Pages::settle`] says; gives the bytes. What the driver
    /// refuses stays with the buffer's pages, and is offered again next time.
    pub(super) fn settle_pages(&self, pages: &Pages, wait: bool) -> u64 {
        let (released, _) = pages.settle(wait);
        self.book_released(released);
        released
    }

    /// The same of all buffers.
    pub(crate) fn settle_all(&self, wait: bool) -> u64 {
        let all = self.all_pages();
        let released = all.iter().map(|it| self.settle_pages(it, wait)).sum();
        lock(&self.growing.0).retain(|pages| !pages.is_gone());
        released
    }
}

/// The pages of a buffer that is gone, which captured work uses.
pub(super) struct KeptPages {
    pub(super) shared: Arc<Shared>,
    pub(super) pages: Arc<Pages>,
    /// Work outside the graphs.
    pub(super) marks: Vec<Mark>,
    /// Graphs that use them, but for the one that keeps them now.
    pub(super) others: Vec<Arc<Recorder>>,
}

impl KeptPages {
    /// Keeps the pages until all graphs are gone; lets them go where there is none.
    pub(super) fn keep(mut self) {
        let Some(graph) = self.others.pop() else {
            self.pages.leave(self.marks);
            self.shared.settle_pages(&self.pages, false);
            return;
        };
        if let Err(thing) = graph.keep(Box::new(self)) {
            // That graph is gone.
            thing.release(graph.gate());
        }
    }
}

impl Kept for KeptPages {
    fn release(mut self: Box<Self>, gate: &Stream) {
        let gate = &gate.core().timeline;
        self.marks.push((Arc::clone(gate), gate.open_tick()));
        self.keep();
    }

    fn bytes(&self) -> u64 {
        self.pages.bytes()
    }
}
