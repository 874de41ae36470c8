//! The addresses of a growing buffer, and the handles mapped there one behind the other.
//!
//! The last handles may be more than the buffer uses. They go once all work is done that may use them,
//! or are used again by a buffer that grows before: they are still where they were. The driver is called
//! under the lock of one buffer's pages and under no other.

use std::ops::Range;
use std::sync::Arc;

use crate::device::{Addr, Device, Phys, Timeline, lock};
use crate::error::Result;
use crate::pool::config::piece;
use crate::seeded::seeded;
use crate::sync::Mutex;

/// Work of a stream up to a tick.
pub(super) type Mark = (Arc<Timeline>, u64);

struct Handle {
    /// None while it sleeps.
    phys: Option<Phys>,
    bytes: u64,
    /// Not so where the device would not take it back, or would not map it.
    mapped: bool,
    /// It was mapped when the pool fell asleep, and is to be so again.
    asleep: bool,
}

#[derive(Default)]
struct State {
    handles: Vec<Handle>,
    /// How many of them the buffer uses.
    used: usize,
    /// What the others wait for before they go.
    awaited: Vec<Mark>,
    /// The pool sleeps, or is about to: no handle goes by itself, as contents may be copied.
    held: bool,
    /// The buffer is gone.
    left: bool,
    /// The addresses are given back too.
    gone: bool,
}

/// How many handles a buffer uses, and how many it has.
pub(super) type Before = (usize, usize);

/// Handles that lie behind one another, which fall asleep and wake together.
pub(in crate::pool) struct PagesPart {
    pub(in crate::pool) handles: Range<usize>,
    pub(in crate::pool) start: Addr,
    pub(in crate::pool) bytes: u64,
}

pub(in crate::pool) struct Pages {
    device: Device,
    base: Addr,
    span: u64,
    state: Mutex<State>,
}

impl Handle {
    fn map(&mut self, device: &Device, addr: Addr, phys: Phys) -> Result<()> {
        if !self.mapped {
            device.backend().map(addr, self.bytes, phys)?;
            (self.mapped, self.asleep) = (true, false);
        }
        Ok(())
    }

    /// Gives whether it was mapped.
    fn unmap(&mut self, device: &Device, addr: Addr) -> Result<bool> {
        if self.mapped {
            device.backend().unmap(addr, self.bytes)?;
        }
        Ok(std::mem::take(&mut self.mapped))
    }
}

impl State {
    fn bytes(&self, handles: usize) -> u64 {
        let handles = self.handles[..handles].iter();
        handles.map(|handle| handle.bytes).sum()
    }

    fn await_all(&mut self, marks: Vec<Mark>) {
        for (timeline, tick) in marks {
            match (self.awaited.iter_mut()).find(|(known, _)| known.uid == timeline.uid) {
                Some((_, known)) => *known = tick.max(*known),
                None => self.awaited.push((timeline, tick)),
            }
        }
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

    pub(super) fn base(&self) -> Addr {
        self.base
    }

    pub(super) fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        state.bytes(state.used)
    }

    pub(super) fn before(&self) -> Before {
        let state = lock(&self.state);
        (state.used, state.handles.len())
    }

    /// Uses handles again that have not gone yet, up to `bytes`; gives the bytes that are lacking then.
    pub(super) fn take_back(&self, bytes: u64) -> Result<u64> {
        let mut state = lock(&self.state);
        let mut has = state.bytes(state.used);
        while has < bytes && state.used < state.handles.len() {
            let (at, used) = (self.base + has, state.used);
            let handle = &mut state.handles[used];
            if let Some(phys) = handle.phys {
                handle.map(&self.device, at, phys)?;
            }
            has += handle.bytes;
            state.used += 1;
        }
        Ok(bytes.saturating_sub(has))
    }

    /// Makes handles of up to `largest` bytes for `bytes` more, a multiple of the granule, where all there
    /// are is used; gives the bytes made, and what stopped it.
    pub(super) fn make(&self, bytes: u64, mut largest: u64) -> (u64, Result<()>) {
        let mut state = lock(&self.state);
        let (from, mut made) = (state.bytes(state.used), 0);
        let granule = self.device.info().granule.max(1);
        while made < bytes {
            let size = piece(bytes - made, largest, granule);
            match self.make_one(&mut state, from + made, size) {
                Ok(()) => made += size,
                // The device may still have smaller pieces.
                Err(error) if error.is_device_exhausted() && size > granule => {
                    largest = size / 2;
                }
                Err(error) => {
                    // One that could neither be mapped nor given back is ours still.
                    let held = state.bytes(state.handles.len()) - from;
                    return (held, Err(error));
                }
            }
        }
        (made, Ok(()))
    }

    fn make_one(&self, state: &mut State, at: u64, bytes: u64) -> Result<()> {
        let backend = self.device.backend();
        let phys = backend.create(bytes)?;
        let mapped = backend.map(self.base + at, bytes, phys);
        if mapped.is_ok() || backend.release(phys).is_err() {
            state.used += usize::from(mapped.is_ok());
            state.handles.push(Handle {
                phys: Some(phys),
                bytes,
                mapped: mapped.is_ok(),
                asleep: false,
            });
        }
        mapped
    }

    /// Undoes what was made since `before`: nothing used it. Gives the bytes given back.
    pub(super) fn undo(&self, (used, handles): Before) -> u64 {
        let mut state = lock(&self.state);
        // Of a failure here the caller has the first error; what is left is offered again.
        state.used = used;
        self.take_down(&mut state, handles).0
    }

    /// The buffer needs `bytes`: handles behind them go once `marks` are done.
    pub(super) fn shrink(&self, bytes: u64, marks: Vec<Mark>) {
        let mut state = lock(&self.state);
        while state.used > 0 && state.bytes(state.used - 1) >= bytes {
            state.used -= 1;
        }
        if state.used < state.handles.len() {
            state.await_all(marks);
        }
    }

    /// The handles that the buffer uses, or those that sleep, in parts of `most` bytes or of one handle that
    /// has more.
    pub(in crate::pool) fn parts(&self, most: u64, asleep: bool) -> Vec<PagesPart> {
        let state = lock(&self.state);
        let asleep = asleep && !seeded!("what-stayed-awake-is-restored");
        let mut parts: Vec<PagesPart> = Vec::new();
        let mut addr = self.base;
        for (at, handle) in state.handles.iter().enumerate() {
            let start = addr;
            addr += handle.bytes;
            let is_one = match asleep {
                true => handle.asleep,
                false => at < state.used,
            };
            if !is_one {
                continue;
            }
            match parts.last_mut() {
                Some(part) if part.bytes < most && part.handles.end == at => {
                    part.handles.end += 1;
                    part.bytes += handle.bytes;
                }
                _ => parts.push(PagesPart {
                    handles: at..at + 1,
                    start,
                    bytes: handle.bytes,
                }),
            }
        }
        parts
    }

    /// Keeps the handles as they are while the pool sleeps, or lets them go again.
    pub(in crate::pool) fn hold(&self, held: bool) {
        lock(&self.state).held = held && !seeded!("handles-go-while-they-are-saved");
    }

    /// Handles that sleep and that the buffer no longer uses are not made again.
    pub(in crate::pool) fn forget_asleep(&self) {
        let mut state = lock(&self.state);
        let used = state.used;
        let sleeps = |last: &mut Handle| last.phys.is_none() && !seeded!("shrunk-asleep-is-made");
        while state.handles.len() > used && state.handles.pop_if(sleeps).is_some() {}
    }

    pub(in crate::pool) fn asleep(&self) -> u64 {
        let state = lock(&self.state);
        let asleep = state.handles.iter().filter(|it| it.phys.is_none());
        asleep.map(|handle| handle.bytes).sum()
    }

    /// Takes these handles down, whose place is kept; gives the bytes given back, and what stopped it.
    pub(in crate::pool) fn fall_asleep(&self, handles: Range<usize>) -> (u64, Result<()>) {
        let mut released = 0;
        let outcome = self.each_of(handles, |handle, addr| {
            handle.asleep |= handle.unmap(&self.device, addr)?;
            // What the device does not take back is mapped again.
            let gone = |phys: &mut Phys| self.device.backend().release(*phys).is_ok();
            released += handle.phys.take_if(gone).map_or(0, |_| handle.bytes);
            Ok(())
        });
        (released, outcome)
    }

    /// Makes those of these handles again that sleep; gives the bytes made, and what stopped it.
    pub(in crate::pool) fn wake(&self, handles: Range<usize>) -> (u64, Result<()>) {
        let mut made = 0;
        let outcome = self.each_of(handles, |handle, addr| {
            let phys = match handle.phys {
                Some(phys) => phys,
                None => {
                    let phys = self.device.backend().create(handle.bytes)?;
                    made += handle.bytes;
                    *handle.phys.insert(phys)
                }
            };
            handle.map(&self.device, addr, phys)
        });
        (made, outcome)
    }

    /// Does something with each of these handles, which is given with its address, up to a failure.
    fn each_of(
        &self,
        handles: Range<usize>,
        mut each: impl FnMut(&mut Handle, Addr) -> Result<()>,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        let mut addr = self.base;
        for (at, handle) in state.handles.iter_mut().enumerate() {
            if handles.contains(&at) {
                each(handle, addr)?;
            }
            addr += handle.bytes;
        }
        Ok(())
    }

    /// The buffer is gone: all goes once `marks` are done.
    pub(super) fn leave(&self, marks: Vec<Mark>) {
        self.shrink(0, marks);
        lock(&self.state).left = true;
    }

    pub(super) fn is_gone(&self) -> bool {
        lock(&self.state).gone
    }

    /// Gives back what is not used, if the work that may use it is done, or behind a wait of the host if
    /// that is to `wait`; gives the bytes given back, and what stopped it.
    pub(super) fn settle(&self, wait: bool) -> (u64, Result<()>) {
        if wait && let Err(error) = self.wait_for_awaited() {
            return (0, Err(error));
        }
        let mut state = lock(&self.state);
        if state.held {
            return (0, Ok(()));
        }
        let is_done = |(timeline, tick): &Mark| {
            timeline.done() >= *tick || matches!(timeline.poll_to(*tick), Ok(done) if done >= *tick)
        };
        let used = state.used;
        let some = used < state.handles.len();
        if some && !state.awaited.iter().all(is_done) && !seeded!("shrunk-under-queued-work") {
            return (0, Ok(()));
        }
        // Kept where nothing goes: a buffer that cannot grow may leave handles again.
        if some || seeded!("failed-growth-forgets-queued-work") {
            state.awaited.clear();
        }
        let (released, outcome) = self.take_down(&mut state, used);
        if state.left && state.handles.is_empty() && !state.gone {
            let unreserved = self.device.backend().unreserve(self.base, self.span);
            state.gone = unreserved.is_ok();
        }
        (released, outcome)
    }

    /// The host waits without the lock: another thread may grow the buffer meanwhile.
    fn wait_for_awaited(&self) -> Result<()> {
        let state = lock(&self.state);
        let awaited = match state.used < state.handles.len() {
            true => state.awaited.clone(),
            false => Vec::new(),
        };
        drop(state);
        let mut each = awaited.iter();
        each.try_for_each(|(timeline, tick)| timeline.sync_to(*tick))
    }

    /// Gives the handles back from the last one on, all but the first `keep`.
    fn take_down(&self, state: &mut State, keep: usize) -> (u64, Result<()>) {
        if state.held {
            return (0, Ok(()));
        }
        let (mut released, mut end) = (0, state.bytes(state.handles.len()));
        while state.handles.len() > keep
            && let Some(handle) = state.handles.last_mut()
        {
            end -= handle.bytes;
            let unmapped = handle.unmap(&self.device, self.base + end);
            let phys = handle.phys;
            let gone =
                unmapped.and_then(|_| phys.map_or(Ok(()), |it| self.device.backend().release(it)));
            if let Err(error) = gone {
                return (released, Err(error));
            }
            released += phys.map_or(0, |_| handle.bytes);
            state.handles.pop();
        }
        (released, Ok(()))
    }
}

/// The pages of growing buffers, those of buffers that are gone too until they are given back.
#[derive(Default)]
pub(crate) struct Growing(pub(super) Mutex<Vec<Arc<Pages>>>);

impl Growing {
    /// Gives everything back of a pool that is gone, and so are its buffers. Waits on the host.
    pub(crate) fn end(&self) {
        for pages in lock(&self.0).drain(..) {
            pages.hold(false);
            // A failure here loses the memory and cannot be mended.
            if !seeded!("growing-buffers-outlive-their-pool") {
                let _ = pages.settle(true);
            }
        }
    }
}
