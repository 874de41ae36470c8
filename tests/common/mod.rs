//! What the test binaries share: which devices there are, and memory on them.
#![allow(
    dead_code,
    unused_macros,
    reason = "each test binary uses its own part"
)]

pub mod captures;
pub mod hunt;
pub mod ordered;
pub mod sanitized;
pub mod stamps;
pub mod variables;
pub mod watched;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpool::device::{Access, AccessKind, Addr, Backend, DeviceKind, HandleCounts, Phys};
use warpool::pool::{View, ViewMut};
use warpool::{Device, Stream};

/// The backend of a device, for tests and benches: they do what safe code must not.
pub trait BackendOf {
    fn backend(&self) -> &Arc<dyn Backend>;
}

impl BackendOf for Device {
    fn backend(&self) -> &Arc<dyn Backend> {
        // SAFETY: tests give it what they made themselves, and look after what they do to the crate's.
        unsafe { self.raw_backend() }
    }
}

/// Whether every access of a kernel is being checked (`run.sh sanitize` says so): tests then make
/// fewer rounds.
pub fn under_sanitizer() -> bool {
    variables::is_on("WARPOOL_SANITIZER")
}

/// `many` rounds, or a tenth of them under a sanitizer.
pub fn rounds(many: usize) -> usize {
    if under_sanitizer() {
        many.div_ceil(10)
    } else {
        many
    }
}

/// The host device.
pub fn host() -> Device {
    Device::host().expect("the host device is always there")
}

/// The first GPU, for this test alone. `None`, said so, where there is none; under
/// `WARPOOL_REQUIRE_GPU=1` that fails.
pub fn cuda() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => {
            alone_on_the_gpu();
            Some(device)
        }
        Err(reason) => {
            let required = variables::is_on("WARPOOL_REQUIRE_GPU");
            assert!(!required, "WARPOOL_REQUIRE_GPU=1, but {reason}");
            println!("skipped: no CUDA device");
            eprintln!("{reason}");
            None
        }
    }
}

/// Waits until no other test uses the GPU; it is this one's until its thread ends.
///
/// All tests of a process share one context, whose host calls run on one thread of the driver's: a
/// test that holds a stream by a host call holds the others' too, and a driver call that waits for
/// one of those then waits for ever.
fn alone_on_the_gpu() {
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    HELD.with_borrow_mut(|held| {
        held.get_or_insert_with(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// The device for a test of several threads: `device` itself, or under a sanitizer one over it whose
/// calls are made one at a time.
pub fn for_threads(device: &Device) -> Device {
    if under_sanitizer() {
        watched::Watched::in_turn(device)
    } else {
        device.clone()
    }
}

/// Every device here: the host device, and the first GPU where there is one.
pub fn devices() -> Vec<Device> {
    std::iter::once(host()).chain(cuda()).collect()
}

/// How a test ends that would hold a stream of a GPU under a sanitizer.
struct HeldUnderSanitizer;

/// Runs `test` on `device`, lets go of it and checks that nothing is left of what it handed out.
pub fn leaving_nothing(device: Device, test: impl FnOnce(&Device)) {
    let backend = Arc::clone(device.backend());
    // A sanitizer ends each launch before the next call: behind a held stream it waits for ever.
    if let Err(why) = catch_unwind(AssertUnwindSafe(|| test(&device))) {
        if !why.is::<HeldUnderSanitizer>() {
            resume_unwind(why);
        }
        println!("skipped: holds a stream, and is under a sanitizer");
        // It ended in its middle: what it had by then goes with the device.
        return;
    }
    drop(device);
    assert_eq!(
        backend.counts(),
        HandleCounts::default(),
        "something leaked"
    );
}

/// Makes each function named, which takes a `&Device`, a test on the host device and one on the
/// first GPU; afterwards the device must have back everything it handed out.
macro_rules! on_every_device {
    ($($name:ident,)*) => {
        mod host {
            $(#[test] fn $name() {
                crate::common::leaving_nothing(crate::common::host(), super::$name);
            })*
        }
        mod cuda {
            $(#[test] fn $name() {
                if let Some(device) = crate::common::cuda() {
                    crate::common::leaving_nothing(device, super::$name);
                }
            })*
        }
    };
}
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use on_every_device;

/// Makes each function named a test on the simulated device. Not for those that hold a stream up by
/// a host call: there, work runs on the thread that waits for it.
macro_rules! on_the_simulated_device {
    ($($name:ident,)*) => {
        mod sim {
            $(#[test] fn $name() {
                let device = warpool::Device::sim(&Default::default()).unwrap();
                crate::common::leaving_nothing(device, super::$name);
            })*
        }
    };
}
#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use on_the_simulated_device;

/// Mapped memory of a device, without a pool.
pub struct Memory {
    backend: Arc<dyn Backend>,
    pub addr: Addr,
    pub bytes: u64,
    phys: Phys,
}

impl Memory {
    /// At least `bytes`, rounded up to the device's granule.
    pub fn new(device: &Device, bytes: u64) -> Self {
        let backend = Arc::clone(device.backend());
        let bytes = bytes.next_multiple_of(device.info().granule);
        let addr = backend.reserve(bytes).unwrap();
        let phys = backend.create(bytes).unwrap();
        backend.map(addr, bytes, phys).unwrap();
        Self {
            backend,
            addr,
            bytes,
            phys,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A test that ends in its middle may have queued work that uses the memory: it goes with the
        // device, which waits for that.
        if std::thread::panicking() {
            return;
        }
        self.backend
            .unmap(self.addr, self.bytes)
            .and_then(|()| self.backend.release(self.phys))
            .and_then(|()| self.backend.unreserve(self.addr, self.bytes))
            .unwrap();
    }
}

/// Writes `data` to device memory and waits.
pub fn write(stream: &Stream, addr: Addr, data: &[u8]) {
    let backend = stream.device().backend();
    // SAFETY: tests name memory they have mapped, and `data` outlives the wait.
    unsafe { backend.copy_in(addr, data.as_ptr(), data.len() as u64, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
}

/// Reads device memory, behind everything queued on `stream`.
pub fn read(stream: &Stream, addr: Addr, bytes: usize) -> Vec<u8> {
    let mut data = vec![0xEE; bytes];
    let backend = stream.device().backend();
    // SAFETY: tests name memory they have mapped, and `data` outlives the wait.
    unsafe { backend.copy_out(data.as_mut_ptr(), addr, bytes as u64, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
    data
}

/// Queues a fill of device memory.
pub fn fill(stream: &Stream, addr: Addr, byte: u8, bytes: u64) {
    // SAFETY: tests name memory they have mapped and keep it until the stream is done.
    unsafe {
        stream
            .device()
            .backend()
            .fill(addr, byte, bytes, stream.raw())
    }
    .unwrap();
}

/// Queues a copy within device memory.
pub fn copy(stream: &Stream, dst: Addr, src: Addr, bytes: u64) {
    // SAFETY: tests name memory they have mapped, apart, and keep it until the stream is done.
    unsafe {
        stream
            .device()
            .backend()
            .copy_within(dst, src, bytes, stream.raw())
    }
    .unwrap();
}

/// Whether the stream's work waits for something: it would be done in this time.
pub fn is_held(stream: &Stream) -> bool {
    (0..40).all(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        !stream.is_idle().unwrap()
    })
}

/// Says what a kernel uses that is not launched.
pub fn declare(stream: &Stream, what: &str, accesses: &[Access]) {
    let mut kernel = stream.kernel(what);
    for access in accesses {
        let (addr, bytes) = (access.range.start, access.range.end - access.range.start);
        // SAFETY: nothing uses the views.
        let (read, written) = unsafe {
            (
                View::<u8>::from_raw(addr, bytes as usize).unwrap(),
                ViewMut::<u8>::from_raw(addr, bytes as usize).unwrap(),
            )
        };
        kernel = match access.kind {
            AccessKind::Read => kernel.reads(read),
            AccessKind::Write => kernel.writes(written),
            AccessKind::Atomic => kernel.adds(written),
        };
    }
    kernel.launch(|_| ()).unwrap();
}

/// Holds a stream up until it is opened or dropped.
///
/// Only the test's own thread opens gates: a driver may run the host calls of all streams on one
/// thread, so a host call that waits for another may wait for ever. For the same reason nothing
/// that a driver may make wait for the stream (a copy to or from host memory) is queued behind one.
pub struct Gate {
    open: Option<std::sync::mpsc::Sender<()>>,
}

impl Gate {
    /// A closed gate in `stream`.
    pub fn close(stream: &Stream) -> Self {
        if under_sanitizer() && stream.device().info().kind == DeviceKind::Cuda {
            resume_unwind(Box::new(HeldUnderSanitizer));
        }
        let (open, wait) = std::sync::mpsc::channel::<()>();
        let work = Box::new(move || {
            // Ends when the sender is gone.
            let _ = wait.recv();
        });
        stream
            .device()
            .backend()
            .host_call(stream.raw(), work)
            .unwrap();
        Self { open: Some(open) }
    }

    /// Lets the stream go on.
    pub fn open(mut self) {
        self.open = None;
    }
}
