//! The pool behind the C functions of PyTorch's pluggable allocator, for measuring: it counts the
//! time spent inside, keeps what is live in 64 maps, and hooks `record_stream`. No product: a request
//! that fails ends the process. With POOL_EMPTY=1 no pool stands behind them (`empty`).

mod empty;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use empty::Empty;
use parking_lot::Mutex;
use warpool::device::RawStream;
use warpool::{Block, Device, Pool, PoolConfig, Stream};

/// Addresses spread well enough by one multiplication.
#[derive(Default)]
struct ByAddress(u64);

fn spread(addr: u64) -> u64 {
    (addr >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Hasher for ByAddress {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }
    fn write_u64(&mut self, addr: u64) {
        self.0 = spread(addr);
    }
}

type Live<T> = HashMap<u64, T, BuildHasherDefault<ByAddress>>;

/// Calls and the time they took.
struct Timed {
    ns: AtomicU64,
    calls: AtomicU64,
}

impl Timed {
    const NEW: Self = Self {
        ns: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    };

    fn add(&self, began: Instant) {
        let ns = began.elapsed().as_nanos() as u64;
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.ns.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }
}

static ALLOC: Timed = Timed::NEW;
static FREE: Timed = Timed::NEW;

/// What one live address belongs to.
enum Held {
    Block(Block),
    Empty(empty::Part),
}

struct Plug {
    device: Device,
    pool: Pool,
    empty: Option<Empty>,
    live: Vec<Mutex<Live<Held>>>,
}

impl Plug {
    fn new() -> warpool::Result<Self> {
        let device = Device::cuda(0)?;
        let variable = |name| std::env::var(name).ok();
        let mut config = PoolConfig::default();
        if let Some(limit) = variable("POOL_LIMIT").and_then(|text| text.parse().ok()) {
            config = config.limit(limit);
        }
        if variable("POOL_REMAP").is_some_and(|text| text == "0") {
            config = config.remap(false);
        }
        if let Some(slack) = variable("POOL_SLACK").and_then(|text| text.parse().ok()) {
            config = config.slack(slack);
        }
        let pool = Pool::new(&device, config)?;
        let live = (0..64).map(|_| Mutex::default()).collect();
        let empty = variable("POOL_EMPTY")
            .is_some_and(|text| text == "1")
            .then(Empty::new);
        Ok(Self {
            device,
            pool,
            empty,
            live,
        })
    }

    /// Memory in the order of `stream`: its address, and what it belongs to.
    fn alloc(&self, stream: u64, bytes: u64) -> warpool::Result<(u64, Held)> {
        if let Some(empty) = &self.empty {
            let (addr, part) = empty.take(stream, bytes);
            return Ok((addr, Held::Empty(part)));
        }
        let block = with_stream(stream, |stream| self.pool.alloc(stream, bytes))?;
        Ok((block.addr(), Held::Block(block)))
    }

    fn free(&self, addr: u64, held: Held) {
        match (held, &self.empty) {
            (Held::Empty(part), Some(empty)) => empty.give(addr, part),
            (held, _) => drop(held),
        }
    }

    fn shard(&self, addr: u64) -> &Mutex<Live<Held>> {
        &self.live[(spread(addr) >> 58) as usize]
    }
}

fn plug() -> &'static Plug {
    static PLUG: OnceLock<Plug> = OnceLock::new();
    PLUG.get_or_init(|| Plug::new().unwrap_or_else(|error| end(&error)))
}

fn end(error: &warpool::Error) -> ! {
    eprintln!("warpool: {error}");
    std::process::abort()
}

thread_local! {
    static STREAMS: RefCell<Vec<(u64, Stream)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the adopted stream; PyTorch keeps its streams for ever.
fn with_stream<R>(raw: u64, f: impl FnOnce(&Stream) -> warpool::Result<R>) -> warpool::Result<R> {
    STREAMS.with_borrow_mut(|streams| {
        let at = match streams.iter().position(|(known, _)| *known == raw) {
            Some(at) => at,
            None => {
                // SAFETY: PyTorch gives a stream of the device's primary context, and keeps it.
                let stream = unsafe { plug().device.adopt_stream(RawStream(raw))? };
                streams.push((raw, stream));
                streams.len() - 1
            }
        };
        f(&streams[at].1)
    })
}

/// Memory in the order of `stream`.
#[unsafe(no_mangle)]
pub extern "C" fn wp_alloc(size: isize, _device: i32, stream: u64) -> *mut c_void {
    // As PyTorch's own allocators answer: it copies what has an address, also no bytes.
    if size <= 0 {
        return std::ptr::null_mut();
    }
    let began = Instant::now();
    let bytes = size as u64;
    let (addr, held) = plug()
        .alloc(stream, bytes)
        .unwrap_or_else(|error| end(&error));
    plug().shard(addr).lock().insert(addr, held);
    ALLOC.add(began);
    addr as *mut c_void
}

/// Gives memory back in the order of the stream it was allocated on.
#[unsafe(no_mangle)]
pub extern "C" fn wp_free(addr: *mut c_void, _size: isize, _device: i32, _stream: u64) {
    if addr.is_null() {
        return;
    }
    let began = Instant::now();
    let held = plug().shard(addr as u64).lock().remove(&(addr as u64));
    match held {
        Some(held) => plug().free(addr as u64, held),
        None => eprintln!("warpool: {addr:?} is not live"),
    }
    FREE.add(began);
}

/// `Tensor.record_stream`.
#[unsafe(no_mangle)]
pub extern "C" fn wp_record(addr: *mut c_void, stream: u64) {
    let mut live = plug().shard(addr as u64).lock();
    if let Some(Held::Block(block)) = live.get_mut(&(addr as u64)) {
        with_stream(stream, |stream| block.record_use(stream)).unwrap_or_else(|error| end(&error));
    }
}

/// What a pair of calls costs that allocates nothing: the clock and the map.
fn empty_pair_ns() -> u64 {
    const PAIRS: u64 = 100_000;
    let map: Mutex<Live<[u64; 5]>> = Mutex::default();
    for addr in 0..1000 {
        map.lock().insert(addr << 20, [addr; 5]);
    }
    let (alloc, free) = (Timed::NEW, Timed::NEW);
    for pair in 0..PAIRS {
        let addr = (pair * 7919) << 9 | 1;
        let began = Instant::now();
        map.lock().insert(addr, [pair; 5]);
        alloc.add(began);
        let began = Instant::now();
        std::hint::black_box(map.lock().remove(&addr));
        free.add(began);
    }
    (alloc.ns.load(Ordering::Relaxed) + free.ns.load(Ordering::Relaxed)) / PAIRS
}

/// The figure that `run.py` gives this number.
#[unsafe(no_mangle)]
pub extern "C" fn wp_stat(number: i32) -> u64 {
    let stats = plug().pool.stats();
    match number {
        0 => stats.allocated.peak,
        1 => stats.reserved.peak,
        2 => stats.requested.peak,
        3 => stats.blocks.allocated,
        4 => ALLOC.ns.load(Ordering::Relaxed),
        5 => ALLOC.calls.load(Ordering::Relaxed),
        6 => FREE.ns.load(Ordering::Relaxed),
        7 => FREE.calls.load(Ordering::Relaxed),
        8 => stats.steps.steal,
        9 => stats.steps.grow,
        10 => stats.steps.waits,
        11 => stats.active.peak,
        12 => stats.steps.driver_ns,
        // Requests that their stream's cache had nothing for.
        13 => stats.steps.own_stream + stats.steps.ready_elsewhere + stats.steps.stream_wait,
        14 => empty_pair_ns(),
        _ => 0,
    }
}

/// 0 if the pool's books agree with themselves.
#[unsafe(no_mangle)]
pub extern "C" fn wp_check() -> i32 {
    match plug().pool.check_invariants() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// The set-up is done: peaks and times count from here.
#[unsafe(no_mangle)]
pub extern "C" fn wp_reset() {
    plug().pool.reset_peaks();
    ALLOC.reset();
    FREE.reset();
}
