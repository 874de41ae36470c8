//! The report of a replay through an allocator whose slow calls and peak are known.

use std::cell::Cell;
use std::time::Duration;

use super::*;
use crate::device::Addr;
use crate::observe::TraceWriter;
use crate::pool::Block;

const SLOW: Duration = Duration::from_millis(20);
const SLOW_NS: u64 = SLOW.as_nanos() as u64;

/// A pool in which some calls are slow.
struct Slow {
    pool: Pool,
    calls: Cell<u64>,
    /// Every call whose number, from 1, is a multiple of this is slow.
    every: u64,
}

impl Slow {
    fn called(&self) {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get().is_multiple_of(self.every) {
            std::thread::sleep(SLOW);
        }
    }
}

impl Subject for Slow {
    type Block = Block;

    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        Subject::alloc(&self.pool, stream, bytes)
    }

    fn with_addr(
        block: &Block,
        stream: &Stream,
        work: impl FnOnce(Addr) -> Result<()>,
    ) -> Result<()> {
        Pool::with_addr(block, stream, work)
    }

    fn free(&self, block: Block, stream: &Stream) -> Result<()> {
        self.called();
        self.pool.free(block, stream)
    }

    fn free_on(&self, block: Block, stream: &Stream) -> Result<()> {
        self.called();
        Subject::free_on(&self.pool, block, stream)
    }

    fn peak_reserved_bytes(&self) -> Result<u64> {
        Subject::peak_reserved_bytes(&self.pool)
    }

    fn largest_hole_bytes(&self) -> u64 {
        Subject::largest_hole_bytes(&self.pool)
    }
}

/// The report of 40 blocks, each freed before the next, of which every `every`th free is slow.
fn with_slow_frees(every: u64) -> Report {
    let device = Device::host().expect("the host device");
    let mut writer = TraceWriter::new(Vec::new()).expect("writes");
    for number in 0..40 {
        writer.allocate(number, 9000, 0).expect("writes");
        writer.free(number, 9000, number % 2).expect("writes");
    }
    let text = writer.finish().expect("writes");
    let trace = Trace::read_from("made", text.as_slice(), u64::MAX).expect("reads");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let slow = Slow {
        pool: pool.clone(),
        calls: Cell::new(0),
        every,
    };
    let options = ReplayOptions::default();
    let played = play(&trace, &device, Verify::Full, &slow, &mut |_| ()).expect("plays");
    let stats = pool.stats();
    report(
        &trace,
        &device,
        &options,
        (played, Moves::default()),
        &stats,
    )
}

#[test]
fn a_few_slow_frees_show_in_the_99th_percentile_and_many_in_the_median() {
    let few = with_slow_frees(20);
    assert!((1..SLOW_NS).contains(&few.free_ns_p50), "{few}");
    assert!(few.free_ns_p99 >= SLOW_NS, "{few}");
    assert!(few.alloc_ns_p99 < SLOW_NS && few.passed(), "{few}");
    let all = with_slow_frees(1);
    assert!(all.free_ns_p50 >= SLOW_NS && all.free_ns_p99 >= SLOW_NS);
}

#[test]
fn the_peak_of_reserved_bytes_stays_when_memory_is_given_back() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let stream = device.stream().expect("a stream");
    let block = pool.alloc(&stream, 64 << 20).expect("allocates");
    drop(block);
    stream.synchronize().expect("done");
    pool.trim(0).expect("trims");
    assert_eq!(pool.stats().reserved.current, 0);
    let peak = Subject::peak_reserved_bytes(&pool).expect("a peak");
    assert!(peak >= 64 << 20, "{peak}");
    let mixed = Mixed::new(pool, Share::ALL, 1);
    assert_eq!(mixed.peak_reserved_bytes().expect("a peak"), peak);
}

#[test]
fn a_peer_that_the_device_fails_loses_no_report_of_the_pool() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,512,0\n";
    let trace = Trace::read_from("log", text.as_bytes(), u64::MAX).unwrap();
    let device = Device::host().unwrap();
    let ours = replay(&trace, &device, &ReplayOptions::default(), &mut |_| ()).unwrap();
    let (events, verified) = (ours.events, ours.verified_bytes);
    let code = 700;
    let words = String::from("an illegal address");
    let failed = Error::Driver {
        call: "cuMemFreeAsync",
        code,
        words,
    };
    let report = beside(ours, Err(failed));
    assert_eq!((report.events, report.verified_bytes), (events, verified));
    assert!(!report.passed() && report.versus.is_none());
    let reasons = report.reasons().join("; ");
    assert!(
        reasons.contains("cuMemFreeAsync") && !reasons.contains("stopped"),
        "{reasons}"
    );
}
