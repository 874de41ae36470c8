//! The addresses of a growing buffer, and the handles mapped there one behind the other: frames of the pool's
//! arena. The last may be more than the buffer uses: they go once all work is done that may use them, or are
//! used again by a buffer that grows before. The driver is called under the lock of one buffer's pages, within
//! which the pool's is taken for books.

use std::sync::Arc;

use crate::arena::{Arena, FrameId};
use crate::device::{Addr, Device, Timeline, lock, raise};
use crate::error::Result;
use crate::pool::core::{Core, CoreLock};
use crate::pool::grow::make_handles;
use crate::seeded::seeded;
use crate::sync::Mutex;

/// Work of a stream up to a tick.
pub(super) type Mark = (Arc<Timeline>, u64);

#[derive(Default)]
struct State {
    /// The frames, by address, and where each ends.
    frames: Vec<(FrameId, u64)>,
    /// How many of them the buffer uses.
    used: usize,
    /// What the others wait for before they go.
    awaited: Vec<Mark>,
    /// The buffer is gone, and its addresses are not given back yet.
    left: bool,
}

pub(in crate::pool) struct Pages {
    device: Device,
    pub(in crate::pool) base: Addr,
    span: u64,
    state: Mutex<State>,
}

impl State {
    /// Bytes of the first frames.
    fn bytes(&self, frames: usize) -> u64 {
        frames.checked_sub(1).map_or(0, |last| self.frames[last].1)
    }
}

impl Pages {
    /// Reserves `span` bytes of addresses, a multiple of the granule; maps nothing.
    pub(super) fn new(device: &Device, span: u64) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            base: device.backend().reserve(span)?,
            span,
            state: Mutex::default(),
        })
    }

    /// Bytes that the buffer uses, from the base on.
    pub(in crate::pool) fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        state.bytes(state.used)
    }

    /// Uses frames again that have not gone yet, up to `bytes`; gives the bytes that are lacking then.
    pub(super) fn take_back(&self, bytes: u64) -> u64 {
        let mut state = lock(&self.state);
        while state.bytes(state.used) < bytes && state.used < state.frames.len() {
            state.used += 1;
        }
        bytes.saturating_sub(state.bytes(state.used))
    }

    /// Makes handles of up to `largest` bytes for `bytes` more, as promised, where all there are is used.
    ///
    /// # Errors
    /// What the driver said; what was made before is used.
    pub(super) fn make(&self, core: &CoreLock, bytes: u64, largest: u64) -> Result<()> {
        let mut state = lock(&self.state);
        let site = core.lock().arena.site().clone();
        let from = site.offset(self.base + state.bytes(state.used));
        let mut made = Vec::new();
        let mut outcome = make_handles(&site, (from, bytes), largest, &mut made);
        let mut core = core.lock();
        core.under_way.to_create -= bytes;
        core.under_way.end_one();
        for made in made {
            let end = state.bytes(state.used) + made.bytes;
            match core.arena.adopt(made) {
                Ok(frame) => {
                    state.frames.push((frame, end));
                    state.used += 1;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        core.peak_reserved = core.peak_reserved.max(core.reserved());
        outcome
    }

    /// The buffer needs `bytes`: frames behind them go once `marks` are done.
    pub(super) fn shrink(&self, bytes: u64, marks: Vec<Mark>) {
        let mut state = lock(&self.state);
        while state.used > 0 && state.bytes(state.used - 1) >= bytes {
            state.used -= 1;
        }
        if state.used < state.frames.len() {
            for (timeline, tick) in marks {
                raise(&mut state.awaited, &timeline, tick);
            }
        }
    }

    /// Frames that sleep and that the buffer no longer uses are not made again.
    pub(in crate::pool) fn forget_asleep(&self, core: &CoreLock) {
        let mut state = lock(&self.state);
        let (mut core, used) = (core.lock(), state.used);
        let sleeps =
            |core: &Core, id| !core.arena.frame(id).awake && !seeded!("shrunk-asleep-is-made");
        while state.frames.len() > used
            && let Some((frame, _)) = state.frames.pop_if(|(it, _)| sleeps(&core, *it))
        {
            core.arena.forget_asleep(frame);
        }
    }

    /// The buffer is gone: all goes once `marks` are done.
    pub(super) fn leave(&self, marks: Vec<Mark>) {
        self.shrink(0, marks);
        lock(&self.state).left = true;
    }

    /// Gives back what is not used, if the work that may use it is done, or behind a `wait` of the host; gives the
    /// bytes, and whether the addresses went too. What the driver refuses stays until the next time.
    pub(super) fn settle(&self, core: &CoreLock, wait: bool) -> (u64, bool) {
        if wait && self.wait_for_awaited().is_err() {
            return (0, false);
        }
        let mut state = lock(&self.state);
        let is_done = |(timeline, tick): &Mark| {
            timeline.done() >= *tick || matches!(timeline.poll_to(*tick), Ok(done) if done >= *tick)
        };
        let some = state.used < state.frames.len();
        if some && !state.awaited.iter().all(is_done) && !seeded!("shrunk-under-queued-work") {
            return (0, false);
        }
        // Kept where nothing goes: a buffer that cannot grow may leave handles again.
        if some || seeded!("failed-growth-forgets-queued-work") {
            state.awaited.clear();
        }
        let released = if some { take_down(core, &mut state) } else { 0 };
        let gone = state.left && state.frames.is_empty() && self.unreserve().is_ok();
        state.left &= !gone;
        (released, gone)
    }

    /// The host waits without the lock: another thread may grow the buffer meanwhile.
    fn wait_for_awaited(&self) -> Result<()> {
        let state = lock(&self.state);
        let some = state.used < state.frames.len();
        let awaited = some.then(|| state.awaited.clone());
        drop(state);
        let mut each = awaited.iter().flatten();
        each.try_for_each(|(timeline, tick)| timeline.sync_to(*tick))
    }

    fn unreserve(&self) -> Result<()> {
        self.device.backend().unreserve(self.base, self.span)
    }
}

/// Gives the frames back that are not used, from the last on, up to one that the driver does not unmap; none of a
/// pool that sleeps, whose contents may be copied. Gives the bytes that the device has back.
fn take_down(core: &CoreLock, state: &mut State) -> u64 {
    let mut books = core.lock();
    if books.asleep && !seeded!("handles-go-while-they-are-saved") {
        return 0;
    }
    let leaving = state.bytes(state.frames.len()) - state.bytes(state.used);
    books.under_way.jobs += 1;
    books.under_way.leaving += leaving;
    drop(books);
    let book = match seeded!("shrunk-bytes-stay-on-the-books") {
        true => |_: &mut Arena, _, _| {},
        false => Arena::frame_gone,
    };
    let mut released = 0;
    while state.frames.len() > state.used
        && let Some(&(frame, _)) = state.frames.last()
        && let Ok(bytes) = core.take_down(frame, book)
    {
        released += bytes;
        state.frames.pop();
    }
    let mut books = core.lock();
    books.under_way.leaving -= leaving;
    books.under_way.end_one();
    released
}

/// The pages of growing buffers, those of buffers that are gone too until they are given back.
#[derive(Default)]
pub(crate) struct Growing(pub(super) Mutex<Vec<Arc<Pages>>>);

impl Growing {
    /// Gives everything back of a pool that is gone, and so are its buffers. Waits on the host.
    pub(crate) fn end(&self, arena: Arena) {
        let all = std::mem::take(&mut *lock(&self.0));
        // A failure here loses the memory and cannot be mended.
        for pages in &all {
            let _ = pages.wait_for_awaited();
        }
        drop(arena);
        for pages in &all {
            if !seeded!("growing-buffers-outlive-their-pool") {
                let _ = pages.unreserve();
            }
        }
    }
}
