//! Streams of the host device: one thread each, running its queue in order.
//!
//! # Places
//!
//! The operations of a stream are numbered from 1. A stream and a number make a [`Place`]: it is
//! passed once the operation with that number is done. An event holds a place. So recording an
//! event queues nothing, and a wait keeps the place that the event had at the time, however often
//! the event is recorded afterwards. Neither needs the event or the stream to stay alive.
//!
//! # Waking
//!
//! The thread stores its progress after each operation and takes a lock only if some thread waits.
//! Both sides use sequentially consistent accesses to `done` and `waiting`: either the stream's
//! thread sees the waiter, or the waiter sees the progress.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::floats::DefaultFloats;
use super::memory::{Memory, Process};
use crate::device::capture_emulation::Branch;
use crate::device::launch::Launch;
use crate::device::{Addr, host_call};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// A copy or fill; all addresses are ordinary host addresses.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) enum Transfer {
    Copy { dst: u64, src: u64, bytes: u64 },
    Fill { addr: Addr, byte: u8, bytes: u64 },
}

/// An operation that a capture can contain.
#[derive(Clone)]
pub(in crate::device) enum CapturedOp {
    Launch(Launch),
    Transfer(Transfer),
    /// Host code, called in each run.
    Call(Arc<dyn Fn() + Send + Sync>),
}

impl From<CapturedOp> for Op {
    fn from(op: CapturedOp) -> Self {
        match op {
            CapturedOp::Launch(launch) => Self::Launch(launch),
            CapturedOp::Transfer(transfer) => Self::Transfer(transfer),
            CapturedOp::Call(work) => Self::Call(Box::new(move || work())),
        }
    }
}

/// One queued operation.
pub(super) enum Op {
    Launch(Launch),
    Transfer(Transfer),
    Call(Box<dyn FnOnce() + Send>),
    /// One run of a graph.
    Graph(Arc<Vec<CapturedOp>>),
    /// Stores the time at which the stream gets here.
    Stamp(Arc<OnceLock<Instant>>),
    Wait(Place),
}

/// Most operations in a queue before the caller is blocked, as a driver does; this limits the
/// queue's memory.
const LONGEST_QUEUE: usize = 1 << 16;

/// Most operations that the thread takes at once. A caller that a full queue blocks waits for no more of them, as a
/// driver has room again after each.
const BATCH: usize = 64;

struct Queue {
    ops: VecDeque<Op>,
    /// Number of operations queued so far.
    queued: u64,
    /// Callers blocked because the queue is full.
    held: u32,
    /// Whether the thread sleeps and must be woken for new work.
    idle: bool,
    /// Whether no more work will come: the thread ends once the queue is empty.
    closed: bool,
}

/// One stream, shared by the device, its thread and every place in it.
pub(super) struct StreamQueue {
    /// A number that is unique among the host streams of this process.
    pub(super) id: u64,
    process: Process,
    queue: Mutex<Queue>,
    work: Condvar,
    room: Condvar,
    /// Operations done.
    done: AtomicU64,
    waiting: AtomicU32,
    wait_lock: Mutex<()>,
    progress: Condvar,
    /// The first error of queued work, and the number of its operation.
    failed: OnceLock<(u64, Error)>,
    /// The stream's branch in a capture, which may have ended.
    branch: Mutex<Option<Branch<CapturedOp>>>,
}

/// A point in a stream's queue.
#[derive(Clone)]
pub(super) struct Place {
    stream: Arc<StreamQueue>,
    number: u64,
}

impl StreamQueue {
    /// Starts a stream and its thread; the thread keeps `memory` mapped while it has work.
    pub(super) fn start(memory: Arc<Memory>) -> Result<Arc<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let stream = Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            process: Process::this(),
            queue: Mutex::new(Queue {
                ops: VecDeque::new(),
                queued: 0,
                held: 0,
                idle: false,
                closed: false,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            done: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            wait_lock: Mutex::new(()),
            progress: Condvar::new(),
            failed: OnceLock::new(),
            branch: Mutex::new(None),
        });
        let its = Arc::clone(&stream);
        std::thread::Builder::new()
            .name(format!("warpool-stream-{}", stream.id))
            .spawn(move || {
                its.run();
                drop(memory);
            })
            .map_err(|error| Error::Os {
                call: "thread spawn",
                words: error.to_string(),
            })?;
        Ok(stream)
    }

    /// Queues an operation and returns its number. Blocks the caller while the queue is full,
    /// unless the caller runs a host call, which may be the queue's own.
    pub(super) fn push(&self, op: Op) -> Result<u64> {
        let mut queue = lock(&self.queue);
        while queue.ops.len() >= LONGEST_QUEUE && !queue.closed && !host_call::is_running() {
            self.process.refuse_child()?;
            queue.held += 1;
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.held -= 1;
        }
        if queue.closed {
            return Err(Error::invalid("stream", "it was destroyed: use a live one"));
        }
        queue.ops.push_back(op);
        queue.queued += 1;
        let number = queue.queued;
        let wake = std::mem::take(&mut queue.idle);
        drop(queue);
        if wake {
            self.work.notify_one();
        }
        Ok(number)
    }

    /// The stream's branch in a capture that has not ended.
    pub(super) fn branch(&self) -> Option<Branch<CapturedOp>> {
        lock(&self.branch).clone().filter(Branch::is_open)
    }

    pub(super) fn set_branch(&self, branch: Option<Branch<CapturedOp>>) {
        *lock(&self.branch) = branch;
    }

    /// Lets the thread end once the queue is empty. Does not wait for it, so that a stream may be
    /// destroyed from its own work.
    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        self.work.notify_one();
        self.room.notify_all();
    }

    /// The place after everything queued so far. Under the lock: a caller that has counted its record either finds all
    /// work whose threads have read the count since, or those read the new count.
    pub(super) fn here(self: &Arc<Self>) -> Place {
        self.place(lock(&self.queue).queued)
    }

    /// The place after the operation `number`.
    pub(super) fn place(self: &Arc<Self>, number: u64) -> Place {
        Place {
            stream: Arc::clone(self),
            number,
        }
    }

    /// The thread's loop: takes the whole queue at once and runs it in order.
    fn run(&self) {
        let mut batch = VecDeque::new();
        while self.next_batch(&mut batch) {
            for op in batch.drain(..) {
                let number = self.done.load(Ordering::Relaxed) + 1;
                if let Err(error) = run_op(op) {
                    // Later errors are consequences of the first.
                    let _ = self.failed.set((number, error));
                }
                self.done.store(number, Ordering::SeqCst);
                if self.waiting.load(Ordering::SeqCst) > 0 {
                    drop(lock(&self.wait_lock));
                    self.progress.notify_all();
                }
            }
        }
    }

    /// Fills the empty `batch`, sleeping until there is work; returns false if no more will come.
    fn next_batch(&self, batch: &mut VecDeque<Op>) -> bool {
        let mut queue = lock(&self.queue);
        while queue.ops.is_empty() {
            if queue.closed {
                return false;
            }
            queue.idle = true;
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        queue.idle = false;
        let some = queue.ops.len().min(BATCH);
        batch.extend(queue.ops.drain(..some));
        if queue.held > 0 {
            self.room.notify_all();
        }
        true
    }

    /// Blocks until the operation `number` is done.
    fn wait_for(&self, number: u64) {
        if self.done.load(Ordering::Acquire) >= number {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.wait_lock);
        while self.done.load(Ordering::SeqCst) < number {
            guard = self
                .progress
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Place {
    /// Whether the stream has passed this place; an error if work before it failed.
    pub(super) fn passed(&self) -> Result<bool> {
        if self.stream.done.load(Ordering::Acquire) < self.number {
            return self.stream.process.refuse_child().map(|()| false);
        }
        match self.stream.failed.get() {
            Some((number, error)) if *number <= self.number => Err(error.clone()),
            _ => Ok(true),
        }
    }

    /// Blocks the calling thread until the stream has passed this place.
    pub(super) fn sync(&self) -> Result<()> {
        host_call::may_wait()?;
        if !self.passed()? {
            self.stream.wait_for(self.number);
            self.passed()?;
        }
        Ok(())
    }

    /// Whether work queued on `stream` runs after this place without a further wait.
    pub(super) fn orders(&self, stream: &Arc<StreamQueue>) -> bool {
        Arc::ptr_eq(&self.stream, stream) || self.stream.done.load(Ordering::Acquire) >= self.number
    }
}

impl Transfer {
    /// Runs it on the calling thread.
    ///
    /// # Safety
    /// The ranges are valid for the bytes, and those of a copy do not overlap.
    pub(in crate::device) unsafe fn run(self) {
        // SAFETY: the caller guarantees the ranges.
        unsafe {
            match self {
                Self::Copy { dst, src, bytes } => {
                    std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, bytes as usize);
                }
                Self::Fill { addr, byte, bytes } => {
                    std::ptr::write_bytes(addr as *mut u8, byte, bytes as usize);
                }
            }
        }
    }
}

/// Runs a kernel on the calling thread.
///
/// # Safety
/// The same as for `Backend::launch`, with host memory.
pub(in crate::device) unsafe fn run_launch(launch: &Launch) -> Result<()> {
    let default = DefaultFloats::set();
    // SAFETY: the caller guarantees the ranges.
    let code = unsafe { launch.run_on_host() };
    drop(default);
    if code == 0 {
        return Ok(());
    }
    Err(Error::Launch {
        kernel: launch.name(),
        code,
        words: String::from("an argument is outside what the operation takes"),
    })
}

/// Runs one operation on the stream's thread.
fn run_op(op: Op) -> Result<()> {
    match op {
        // SAFETY: the caller that queued the launch guarantees its ranges until it is done.
        Op::Launch(launch) => unsafe { run_launch(&launch)? },
        // SAFETY: the caller that queued the copy or fill guarantees its ranges.
        Op::Transfer(transfer) => unsafe { transfer.run() },
        Op::Call(work) => {
            // An application's own kernels are host calls here.
            let _default = DefaultFloats::set();
            host_call::run(work)?;
        }
        Op::Graph(ops) => {
            let ran = ops.iter().try_for_each(|op| run_op(op.clone().into()));
            // If the graph is gone, its calls are dropped here. Application code in their drop may panic.
            ran.and(host_call::run(|| drop(ops)))?;
        }
        Op::Stamp(time) => {
            // Each stamp is queued once.
            let _ = time.set(Instant::now());
        }
        Op::Wait(place) => place.stream.wait_for(place.number),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    /// What a busy machine may take for something that waits for nothing.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn until(what: &str, is: impl Fn() -> bool) {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_caller_that_a_full_queue_holds_goes_on_before_all_of_it_is_done() {
        let stream = StreamQueue::start(Arc::new(Memory::new(4 << 20).unwrap())).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        // A host call that waits until what is returned is dropped, and a thousand that wait for nothing behind it.
        let gate = || -> Sender<()> {
            let (open, opened) = channel();
            let its = Arc::clone(&begun);
            let call = move || {
                its.fetch_add(1, Ordering::SeqCst);
                let _ = opened.recv();
            };
            stream.push(Op::Call(Box::new(call))).unwrap();
            open
        };
        let first = gate();
        until("the first begins", || begun.load(Ordering::SeqCst) == 1);
        let rest = [(); 2].map(|()| {
            let open = gate();
            for _ in 0..1000 {
                stream.push(Op::Call(Box::new(|| ()))).unwrap();
            }
            open
        });
        drop(first);
        until("the second begins", || begun.load(Ordering::SeqCst) == 2);
        let [second, _third] = rest;
        let (its, pushed) = (Arc::clone(&stream), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&pushed);
        let caller = std::thread::spawn(move || {
            while its.push(Op::Call(Box::new(|| ()))).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        until("the queue is full", || lock(&stream.queue).held == 1);
        let before = pushed.load(Ordering::SeqCst);
        drop(second);
        until("the third begins", || begun.load(Ordering::SeqCst) == 3);
        until("the caller goes on", || {
            pushed.load(Ordering::SeqCst) > before
        });
        stream.close();
        caller.join().unwrap();
    }
}
