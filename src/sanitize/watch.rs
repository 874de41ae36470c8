//! The wrapping device: passes every call on and records it.
//!
//! No lock is held while a call is passed on, because a device may block a caller until work has
//! run, and that work reports here. Such reports go into `arrivals`, which has its own lock; the
//! next call processes them.
//!
//! Work captured into a graph is passed on and not recorded, because it does not run when it is
//! queued.

use std::any::Any;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::books::{Books, Change};
use super::order::{Mark, Op};
use super::report::Report;
use crate::device::{
    Access, Addr, Backend, Device, DeviceInfo, HandleCounts, Launch, Note, Phys, RawEvent,
    RawGraph, RawStream, is_running,
};
use crate::error::Result;
use crate::sync::plain::lock;

/// A report by work when it runs.
enum Arrival {
    /// A host call has begun, so everything before it is done.
    Done(Mark),
    /// The ranges in the table of a launch that is about to run, and whether the device took it, once that is
    /// known.
    Table(Arc<Op>, Vec<Access>, Taken),
}

/// Whether the device took a call.
type Taken = Arc<OnceLock<bool>>;

/// A device that records all calls; see the module documentation.
pub(super) struct Watch {
    inner: Arc<dyn Backend>,
    /// Keeps what the device keeps: cudarc's context.
    _device: Device,
    books: Mutex<Books>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    /// Counts captures that begin or end.
    captures: AtomicU64,
}

impl Watch {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            inner: Arc::clone(device.backend()),
            _device: device.clone(),
            books: Mutex::default(),
            arrivals: Arc::default(),
            captures: AtomicU64::new(0),
        }
    }

    pub(super) fn reports(&self) -> (Vec<Report>, u64) {
        self.books().reports()
    }

    pub(super) fn clear(&self) {
        self.books().clear();
    }

    /// Locks the checker's state, after processing all arrivals.
    fn books(&self) -> MutexGuard<'_, Books> {
        let mut books = lock(&self.books);
        let arrivals = std::mem::take(&mut *lock(&self.arrivals));
        for arrival in arrivals {
            match arrival {
                Arrival::Done(mark) => books.order.reached(&mark),
                Arrival::Table(op, accesses, taken) => match taken.get() {
                    Some(true) => books.uses(&op, &accesses),
                    Some(false) => {}
                    None => lock(&self.arrivals).push(Arrival::Table(op, accesses, taken)),
                },
            }
        }
        books
    }

    /// Records an operation queued on `stream`.
    fn op(&self, books: &mut Books, stream: RawStream, what: Cow<'static, str>) -> Arc<Op> {
        let number = self.number(books, stream);
        books.order.queue(number, stream, what)
    }

    fn number(&self, books: &mut Books, stream: RawStream) -> usize {
        // For a stream that the driver does not recognise, the call itself fails; its handle
        // identifies it here.
        let known = books.order.last_id(stream);
        let id = || match is_running() {
            // A host call may not ask the driver. Only a handle in use again would be another stream's by now.
            true => known.unwrap_or(stream.0),
            false => self.inner.stream_id(stream).unwrap_or(stream.0),
        };
        books.order.number(stream, id)
    }

    /// Makes a call. Says whether it became part of a graph; `unknown` if the device does not say, or another thread
    /// begins or ends a capture meanwhile. To avoid false reports, uses are then taken as captured, and calls that order
    /// work are not.
    fn seen<R>(&self, stream: RawStream, unknown: bool, call: impl FnOnce() -> R) -> (R, bool) {
        let now = || {
            (
                self.is_captured(stream, unknown),
                self.captures.load(Ordering::SeqCst),
            )
        };
        let (before, outcome, after) = (now(), call(), now());
        (outcome, if before == after { before.0 } else { unknown })
    }

    fn is_captured(&self, stream: RawStream, unknown: bool) -> bool {
        self.inner.stream_capturing(stream).unwrap_or(unknown)
    }

    /// Makes a call, and records it and the ranges it uses if the device takes it.
    fn uses(
        &self,
        stream: RawStream,
        what: &'static str,
        accesses: &[Access],
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.is_captured(stream, true) {
            return call();
        }
        // Before the call, so that work queued meanwhile by other threads comes after it.
        let op = self.op(&mut self.books(), stream, Cow::Borrowed(what));
        let (outcome, captured) = self.seen(stream, true, call);
        if outcome.is_ok() && !captured {
            self.books().uses(&op, accesses);
        }
        outcome
    }

    /// Records what the host has learnt by a wait or a query.
    fn learn(&self, mark: Option<Mark>) {
        if let Some(mark) = mark {
            self.books().order.reached(&mark);
        }
    }

    fn here(&self, stream: RawStream) -> Mark {
        let mut books = self.books();
        let number = self.number(&mut books, stream);
        books.order.here(number)
    }

    fn change(&self, change: Change, addr: Addr, bytes: u64, stream: RawStream) {
        let what = match change {
            Change::Given => "alloc",
            Change::TakenBack => "free",
        };
        let mut books = self.books();
        let op = self.op(&mut books, stream, Cow::Borrowed(what));
        books.change(&op, change, addr..addr + bytes);
    }

    /// Queues a host call that reads the launch's table right before the launch.
    fn read_table(
        &self,
        launch: &Launch,
        op: &Arc<Op>,
        taken: &Taken,
        stream: RawStream,
    ) -> Result<()> {
        let (launch, op, taken) = (*launch, Arc::clone(op), Arc::clone(taken));
        let arrivals = Arc::clone(&self.arrivals);
        let work = move || {
            // SAFETY: the device says that the host can read its memory. The launch after this call
            // reads the same table, so the table exists and is written.
            let accesses = unsafe { launch.table_accesses() };
            lock(&arrivals).push(Arrival::Table(op, accesses, taken));
        };
        self.inner.host_call(stream, Box::new(work))
    }
}

// SAFETY: every call is passed on to a device that follows the contract.
unsafe impl Backend for Watch {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.inner.free_bytes()
    }

    fn counts(&self) -> HandleCounts {
        self.inner.counts()
    }

    fn reserve(&self, bytes: u64) -> Result<Addr> {
        let addr = self.inner.reserve(bytes)?;
        self.books().places.reserve(addr, bytes);
        Ok(addr)
    }

    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        // Before another thread can be given them.
        self.books().places.unreserve(addr);
        let outcome = self.inner.unreserve(addr, bytes);
        outcome.inspect_err(|_| self.books().places.reserve(addr, bytes))
    }

    fn create(&self, bytes: u64) -> Result<Phys> {
        let phys = self.inner.create(bytes)?;
        self.books().places.create(phys, bytes);
        Ok(phys)
    }

    fn release(&self, phys: Phys) -> Result<()> {
        // Before another handle can have its name.
        let base = self.books().places.release(phys);
        let outcome = self.inner.release(phys);
        if let Some(base) = base {
            let mut books = self.books();
            let gone = books.places.released(phys, base, outcome.is_ok());
            books.forget(gone);
        }
        outcome
    }

    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        self.inner.map(addr, bytes, phys)?;
        self.books().places.map(addr, bytes, phys);
        Ok(())
    }

    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        // Before another thread can map memory there.
        let mapping = self.books().unmap(addr, bytes);
        let outcome = self.inner.unmap(addr, bytes);
        if let Some(mapping) = mapping {
            let mut books = self.books();
            let gone = books.places.unmapped(addr, mapping, outcome.is_ok());
            books.forget(gone);
        }
        outcome
    }

    fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
        self.inner.share(addr, bytes, peers)
    }

    fn is_shared(&self, addr: Addr, other: &DeviceInfo) -> bool {
        self.inner.is_shared(addr, other)
    }

    fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
        let mark = self.inner.mark_of(event)?;
        self.books().order.lend(event);
        Ok(mark)
    }

    fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
        let (outcome, captured) = self.seen(stream, false, || self.inner.wait_mark(stream, mark));
        if outcome.is_err() || captured {
            return outcome;
        }
        let mut books = self.books();
        let number = self.number(&mut books, stream);
        books.order.wait_elsewhere(number);
        Ok(())
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        self.inner.host_alloc(bytes)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.inner.host_free(addr, bytes)
    }

    fn stream_create(&self) -> Result<RawStream> {
        let stream = self.inner.stream_create()?;
        self.books().order.add(stream);
        Ok(stream)
    }

    fn urgent_stream_create(&self) -> Result<RawStream> {
        let stream = self.inner.urgent_stream_create()?;
        self.books().order.add(stream);
        Ok(stream)
    }

    fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        // Before the driver can reuse the handle.
        self.books().order.remove(stream);
        self.inner.stream_destroy(stream)
    }

    fn stream_id(&self, stream: RawStream) -> Result<u64> {
        self.inner.stream_id(stream)
    }

    fn stream_sync(&self, stream: RawStream) -> Result<()> {
        let here = self.here(stream);
        self.inner.stream_sync(stream)?;
        self.learn(Some(here));
        Ok(())
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let here = self.here(stream);
        let done = self.inner.stream_query(stream)?;
        self.learn(done.then_some(here));
        Ok(done)
    }

    fn stream_capturing(&self, stream: RawStream) -> Result<bool> {
        self.inner.stream_capturing(stream)
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        self.inner.event_create(timing)
    }

    fn event_destroy(&self, event: RawEvent) -> Result<()> {
        self.books().order.forget(event);
        self.inner.event_destroy(event)
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let (outcome, captured) =
            self.seen(stream, false, || self.inner.event_record(event, stream));
        outcome?;
        let mut books = self.books();
        if captured {
            books.order.forget(event);
            return Ok(());
        }
        let number = self.number(&mut books, stream);
        books.order.record(event, number);
        Ok(())
    }

    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let (outcome, captured) = self.seen(stream, false, || self.inner.event_wait(stream, event));
        if outcome.is_err() || captured {
            return outcome;
        }
        let mut books = self.books();
        let number = self.number(&mut books, stream);
        books.order.wait(number, event);
        Ok(())
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        let marked = self.books().order.marked(event);
        let done = self.inner.event_query(event)?;
        self.learn(marked.filter(|_| done));
        Ok(done)
    }

    fn event_sync(&self, event: RawEvent) -> Result<()> {
        let marked = self.books().order.marked(event);
        self.inner.event_sync(event)?;
        self.learn(marked);
        Ok(())
    }

    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64> {
        let marked = [start, end].map(|event| self.books().order.marked(event));
        let elapsed = self.inner.event_elapsed_ns(start, end)?;
        marked.into_iter().for_each(|mark| self.learn(mark));
        Ok(elapsed)
    }

    unsafe fn copy_in(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        self.uses(stream, "copy_in", &[Access::write(dst, bytes)], || {
            // SAFETY: the caller's obligations are the inner device's.
            unsafe { self.inner.copy_in(dst, src, bytes, stream) }
        })
    }

    unsafe fn copy_out(
        &self,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        self.uses(stream, "copy_out", &[Access::read(src, bytes)], || {
            // SAFETY: the caller's obligations are the inner device's.
            unsafe { self.inner.copy_out(dst, src, bytes, stream) }
        })
    }

    unsafe fn copy_within(
        &self,
        dst: Addr,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        let accesses = [Access::read(src, bytes), Access::write(dst, bytes)];
        self.uses(stream, "copy_within", &accesses, || {
            // SAFETY: the caller's obligations are the inner device's.
            unsafe { self.inner.copy_within(dst, src, bytes, stream) }
        })
    }

    unsafe fn fill(&self, addr: Addr, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        self.uses(stream, "fill", &[Access::write(addr, bytes)], || {
            // SAFETY: the caller's obligations are the inner device's.
            unsafe { self.inner.fill(addr, byte, bytes, stream) }
        })
    }

    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()> {
        // SAFETY: the caller's obligations are the inner device's.
        let call = || unsafe { self.inner.launch(launch, stream) };
        if self.is_captured(stream, true) {
            return call();
        }
        let (op, taken) = (
            self.op(&mut self.books(), stream, Cow::Borrowed(launch.name())),
            Taken::default(),
        );
        if launch.has_table() && self.info().host_readable {
            self.read_table(launch, &op, &taken, stream)?;
        }
        let (outcome, captured) = self.seen(stream, true, call);
        // Set once, here.
        let _ = taken.set(outcome.is_ok() && !captured);
        if outcome.is_ok() && !captured {
            self.books().uses(&op, &launch.accesses());
        }
        outcome
    }

    fn in_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        self.inner.in_context(work)
    }

    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        let here = self.here(stream);
        let arrivals = Arc::clone(&self.arrivals);
        let work = move || {
            // Reported first: the work may wake a thread that queues more work before this work has
            // ended.
            lock(&arrivals).push(Arrival::Done(here));
            work();
        };
        self.inner.host_call(stream, Box::new(work))
    }

    fn host_call_in_each_run(
        &self,
        stream: RawStream,
        work: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<()> {
        match self.inner.stream_capturing(stream)? {
            true => self.inner.host_call_in_each_run(stream, work),
            false => self.host_call(stream, Box::new(move || work())),
        }
    }

    fn capture_begin(&self, stream: RawStream) -> Result<()> {
        self.captures.fetch_add(1, Ordering::SeqCst);
        self.inner.capture_begin(stream)
    }

    fn capture_end(&self, stream: RawStream) -> Result<RawGraph> {
        self.captures.fetch_add(1, Ordering::SeqCst);
        self.inner.capture_end(stream)
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()> {
        // SAFETY: the caller's obligations are the inner device's.
        unsafe { self.inner.graph_launch(graph, stream) }
    }

    fn graph_destroy(&self, graph: RawGraph) -> Result<()> {
        self.inner.graph_destroy(graph)
    }

    fn observe(&self, note: &Note<'_>) {
        match *note {
            Note::Alloc {
                addr,
                bytes,
                stream,
            } => self.change(Change::Given, addr, bytes, stream),
            Note::Free {
                addr,
                bytes,
                stream,
            } => self.change(Change::TakenBack, addr, bytes, stream),
            Note::Uses {
                what,
                stream,
                accesses,
            } => {
                if self.is_captured(stream, true) {
                    return;
                }
                let mut books = self.books();
                let op = self.op(&mut books, stream, Cow::Owned(what.to_owned()));
                books.uses(&op, accesses);
            }
            Note::Name { stream, name } => {
                let mut books = self.books();
                let number = self.number(&mut books, stream);
                books.order.set_name(number, name);
            }
            Note::Sleep { addr, asleep } => self.books().sleep(addr, asleep),
        }
        self.inner.observe(note);
    }
}
