//! A device whose calls are counted and can be made to fail.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpool::device::{
    Addr, Backend, DeviceInfo, HandleCounts, Launch, Note, Phys, RawEvent, RawGraph, RawStream,
};
use warpool::{Device, Error, Result};

/// The code that failures made here carry unless another is asked for; no driver gives it.
pub const MADE_TO_FAIL: i32 = 31_337;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;

thread_local! {
    static CALLS_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Uses of all calls of watched devices by this thread so far.
pub fn calls_here() -> u64 {
    CALLS_HERE.get()
}

/// Something to do at a certain moment.
type Hook = Box<dyn FnOnce() + Send>;

/// Which uses of a call fail.
#[derive(Debug, Clone, Copy)]
struct Failure {
    call: &'static str,
    /// Uses until the first failure.
    uses_left: u64,
    for_ever: bool,
    code: i32,
}

/// Called before each call of the device with the call's name, and for a launch with what is launched
/// and where. A launch that it answers with `false` is taken and not run.
pub type Before = dyn FnMut(&'static str, Option<(&Launch, RawStream)>) -> bool + Send;

/// Any backend, watched.
pub struct Watched {
    inner: Arc<dyn Backend>,
    calls: Mutex<HashMap<&'static str, u64>>,
    failure: Mutex<Option<Failure>>,
    failures: AtomicU64,
    before: Mutex<Option<Box<Before>>>,
    /// What is done once, right after the next use of a call.
    hook: Mutex<Option<(&'static str, Hook)>>,
    hollow: bool,
    /// Held over each call, and over the work it gives, where these are one at a time.
    turn: Option<Mutex<()>>,
}

impl Watched {
    /// As [`Watched::over`], but kernels are taken and not run: memory is handed out and mapped as
    /// on a device of any size, and no byte of it is ever written.
    pub fn hollow_over(device: &Device) -> (Device, Arc<Self>) {
        Self::wrapping(device, true, None)
    }

    /// A second device over the backend of `device`, whose calls are made one at a time whatever the
    /// thread, each when the work of the one before is done: tools that look at one kernel, or one
    /// piece of memory, lose track where several threads call at once, and lose nothing by this.
    pub fn in_turn(device: &Device) -> Device {
        Self::wrapping(device, false, Some(Mutex::default())).0
    }

    /// A second device over the backend of `device`, and the watch over it.
    pub fn over(device: &Device) -> (Device, Arc<Self>) {
        Self::wrapping(device, false, None)
    }

    fn wrapping(device: &Device, hollow: bool, turn: Option<Mutex<()>>) -> (Device, Arc<Self>) {
        let watched = Arc::new(Self {
            // SAFETY: what is passed on is vouched for by whoever calls.
            inner: Arc::clone(unsafe { device.raw_backend() }),
            calls: Mutex::default(),
            failure: Mutex::default(),
            failures: AtomicU64::new(0),
            before: Mutex::default(),
            hook: Mutex::default(),
            hollow,
            turn,
        });
        (
            Device::from_backend(Arc::clone(&watched) as Arc<dyn Backend>),
            watched,
        )
    }

    /// Has `before` called before each call from now on.
    pub fn before(
        &self,
        before: impl FnMut(&'static str, Option<(&Launch, RawStream)>) -> bool + Send + 'static,
    ) {
        *self.before.lock().unwrap() = Some(Box::new(before));
    }

    /// Whether the call is to be made.
    fn ask(&self, call: &'static str, launch: Option<(&Launch, RawStream)>) -> bool {
        let mut before = self.before.lock().unwrap();
        before.as_mut().is_none_or(|before| before(call, launch))
    }

    /// Uses of `call` so far, failed ones too.
    pub fn calls(&self, call: &'static str) -> u64 {
        self.calls.lock().unwrap().get(call).copied().unwrap_or(0)
    }

    /// Uses of all calls so far.
    pub fn all_calls(&self) -> u64 {
        self.calls.lock().unwrap().values().sum()
    }

    /// Uses made to fail so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Makes the `use_number`-th use of `call` from now on fail, the next being the first, and
    /// every later one if `for_ever`.
    pub fn fail(&self, call: &'static str, use_number: u64, for_ever: bool) {
        self.fail_with(call, use_number, for_ever, MADE_TO_FAIL);
    }

    /// As [`Watched::fail`], with the driver's code of the caller's choice.
    pub fn fail_with(&self, call: &'static str, use_number: u64, for_ever: bool, code: i32) {
        let uses_left = use_number.checked_sub(1).expect("uses are counted from 1");
        *self.failure.lock().unwrap() = Some(Failure {
            call,
            uses_left,
            for_ever,
            code,
        });
    }

    /// Has `hook` called once, right after the next use of `call`, or right before that of `before_CALL`, on the
    /// thread that made it and under whatever locks it holds: what another thread might do at that moment. `alloc` and
    /// `free` are when a checker is told of those of a block.
    pub fn after(&self, call: &'static str, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some((call, Box::new(hook)));
    }

    /// Whether the hook given last was called.
    pub fn was_hooked(&self) -> bool {
        self.hook.lock().unwrap().is_none()
    }

    fn leave(&self, call: &'static str) {
        let hook = self.hook.lock().unwrap().take_if(|(of, _)| *of == call);
        if let Some((_, hook)) = hook {
            hook();
        }
    }

    /// No call fails from now on.
    pub fn heal(&self) {
        *self.failure.lock().unwrap() = None;
    }

    /// Waits for the call's turn, where there are turns.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turn.as_ref()?;
        Some(turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for what was given to `stream`, where there are turns; under capture nothing runs.
    fn see_done(&self, stream: RawStream) -> Result<()> {
        if self.turn.is_none() || self.inner.stream_capturing(stream)? {
            return Ok(());
        }
        self.inner.stream_sync(stream)
    }

    /// Counts a use of `call` and says whether it fails.
    fn enter(&self, call: &'static str) -> Result<()> {
        *self.calls.lock().unwrap().entry(call).or_default() += 1;
        CALLS_HERE.set(CALLS_HERE.get() + 1);
        let mut failure = self.failure.lock().unwrap();
        let Some(planned) = failure.as_mut().filter(|planned| planned.call == call) else {
            return Ok(());
        };
        if planned.uses_left > 0 {
            planned.uses_left -= 1;
            return Ok(());
        }
        let code = planned.code;
        if !planned.for_ever {
            *failure = None;
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        let words = String::from("made to fail by a test");
        Err(Error::Driver { call, code, words })
    }
}

/// Every call of a backend that can fail, from one list: a method of [`Backend`] that is not in it
/// leaves the implementation incomplete, which does not compile.
macro_rules! watch {
    (
        $(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*
        $(unsafe fn $raw:ident($($raw_arg:ident: $raw_type:ty),*; $stream:ident);)*
    ) => {
        /// The names of all calls that can fail.
        pub const CALLS: &[&str] = &[$(stringify!($name),)* "launch", $(stringify!($raw)),*];

        // SAFETY: every call is passed on, or fails.
        unsafe impl Backend for Watched {
            fn info(&self) -> &DeviceInfo {
                self.inner.info()
            }

            fn counts(&self) -> HandleCounts {
                self.inner.counts()
            }

            fn observe(&self, note: &Note<'_>) {
                let calls = match note {
                    Note::Alloc { .. } => ["before_alloc", "alloc"],
                    Note::Free { .. } => ["before_free", "free"],
                    _ => return self.inner.observe(note),
                };
                self.leave(calls[0]);
                self.inner.observe(note);
                self.leave(calls[1]);
            }

            fn is_watched(&self) -> bool {
                self.inner.is_watched()
            }

            fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
                self.inner.share(addr, bytes, peers)
            }

            fn is_shared(&self, addr: Addr, other: &DeviceInfo) -> bool {
                self.inner.is_shared(addr, other)
            }

            fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
                self.inner.mark_of(event)
            }

            fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
                self.inner.wait_mark(stream, mark)
            }

            $(fn $name(&self, $($arg: $type),*) -> Result<$answer> {
                self.leave(concat!("before_", stringify!($name)));
                self.enter(stringify!($name))?;
                self.ask(stringify!($name), None);
                let turn = self.turn();
                let outcome = self.inner.$name($($arg),*);
                drop(turn);
                self.leave(stringify!($name));
                outcome
            })*

            unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()> {
                self.enter("launch")?;
                if self.hollow || !self.ask("launch", Some((launch, stream))) {
                    return Ok(());
                }
                let _turn = self.turn();
                // SAFETY: the caller's obligations are the inner device's.
                unsafe { self.inner.launch(launch, stream) }?;
                self.see_done(stream)
            }

            $(unsafe fn $raw(&self, $($raw_arg: $raw_type,)* $stream: RawStream) -> Result<()> {
                self.enter(stringify!($raw))?;
                self.ask(stringify!($raw), None);
                self.leave(concat!("before_", stringify!($raw)));
                let turn = self.turn();
                // SAFETY: the caller's obligations are the inner device's.
                unsafe { self.inner.$raw($($raw_arg,)* $stream) }?;
                let done = self.see_done($stream);
                drop(turn);
                self.leave(stringify!($raw));
                done
            })*
        }
    };
}

watch! {
    fn free_bytes() -> u64;
    fn reserve(bytes: u64) -> Addr;
    fn unreserve(addr: Addr, bytes: u64) -> ();
    fn create(bytes: u64) -> Phys;
    fn release(phys: Phys) -> ();
    fn map(addr: Addr, bytes: u64, phys: Phys) -> ();
    fn unmap(addr: Addr, bytes: u64) -> ();
    fn host_alloc(bytes: u64) -> u64;
    fn host_free(addr: u64, bytes: u64) -> ();
    fn stream_create() -> RawStream;
    fn stream_destroy(stream: RawStream) -> ();
    fn stream_id(stream: RawStream) -> u64;
    fn stream_sync(stream: RawStream) -> ();
    fn stream_query(stream: RawStream) -> bool;
    fn stream_capturing(stream: RawStream) -> bool;
    fn event_create(timing: bool) -> RawEvent;
    fn event_destroy(event: RawEvent) -> ();
    fn event_record(event: RawEvent, stream: RawStream) -> ();
    fn event_wait(stream: RawStream, event: RawEvent) -> ();
    fn event_query(event: RawEvent) -> bool;
    fn event_sync(event: RawEvent) -> ();
    fn event_elapsed_ns(start: RawEvent, end: RawEvent) -> f64;
    fn host_call(stream: RawStream, work: Box<dyn FnOnce() + Send>) -> ();
    fn capture_begin(stream: RawStream) -> ();
    fn capture_end(stream: RawStream) -> RawGraph;
    fn graph_destroy(graph: RawGraph) -> ();
    unsafe fn copy_in(dst: Addr, src: *const u8, bytes: u64; stream);
    unsafe fn copy_out(dst: *mut u8, src: Addr, bytes: u64; stream);
    unsafe fn copy_within(dst: Addr, src: Addr, bytes: u64; stream);
    unsafe fn fill(addr: Addr, byte: u8, bytes: u64; stream);
    unsafe fn graph_launch(graph: RawGraph; stream);
}
