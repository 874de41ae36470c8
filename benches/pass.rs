//! Compactions as a person meets them, on the pattern of RMM issue 1245: one pass over everything,
//! steps under a budget, and requests that need room made.
//!
//! Printed: bytes moved, host time, device time, and what the planner predicted. `WARPOOL_BENCH_CAP`
//! sets the bytes of the pool; unset, the card of the report on a GPU that has it, else 256 MiB.
//! With `WARPOOL_BENCH_STEPS` every step of the second pass is printed.

mod common;

#[path = "../tests/common/churn.rs"]
mod churn;

use std::time::Instant;

use churn::{CARD, Churned};
use warpool::compact::{Budget, Goal};
use warpool::device::DeviceKind;
use warpool::movable::StepRecord;
use warpool::observe::Bytes;
use warpool::{Device, Pool, PoolConfig};

/// Microseconds of a step.
const BUDGET_US: f64 = 150.0;

fn cap(device: &Device) -> u64 {
    if let Ok(cap) = std::env::var("WARPOOL_BENCH_CAP") {
        return cap.parse().expect("WARPOOL_BENCH_CAP is bytes");
    }
    let info = device.info();
    let whole = info.kind == DeviceKind::Cuda && info.total_bytes > CARD + CARD / 4;
    if whole { CARD } else { 256 << 20 }
}

fn churned(device: &Device) -> Churned {
    let cap = cap(device);
    let pool = Pool::new(device, PoolConfig::default().limit(cap)).expect("a pool");
    pool.record_steps(true).expect("records");
    Churned::new(device, pool, cap)
}

/// The nearest-rank percentile.
fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0.0)
}

fn print(what: &str, steps: &[StepRecord]) {
    let of = |value: fn(&StepRecord) -> f64, percent| {
        percentile(steps.iter().map(value).collect(), percent)
    };
    let device = |step: &StepRecord| step.device_ns / 1e3;
    let host = |step: &StepRecord| step.host.as_secs_f64() * 1e6;
    let off = |step: &StepRecord| (step.predicted_ns / step.device_ns - 1.0).abs() * 100.0;
    let bytes = steps.iter().map(|step| step.bytes).sum();
    let sum: f64 = steps.iter().map(|step| step.device_ns).sum();
    println!(
        "{what}: {} steps, {} moved in {:.3} ms of the device ({:.0} GB/s read and written)",
        steps.len(),
        Bytes(bytes),
        sum / 1e6,
        2.0 * bytes as f64 / sum,
    );
    println!(
        "  device p50 {:.1} us, p99 {:.1} us, most {:.1} us; host p50 {:.1} us, p99 {:.1} us, most \
         {:.1} us; prediction off by p50 {:.1} %, p99 {:.1} %",
        of(device, 50),
        of(device, 99),
        of(device, 100),
        of(host, 50),
        of(host, 99),
        of(host, 100),
        of(off, 50),
        of(off, 99),
    );
}

/// Everything together in one pass.
fn full(device: &Device) {
    let card = churned(device);
    let started = Instant::now();
    let moved = card.pool.compact(&Goal::Full).expect("moves");
    let queued = started.elapsed();
    let steps = card.pool.take_steps().expect("steps");
    println!(
        "{} live of {}: a full compaction was queued in {queued:?}",
        Bytes(card.live_bytes()),
        Bytes(card.cap),
    );
    assert!(moved.reached);
    print("full compaction", &steps);
    card.verify();
}

/// The same in steps under a budget of time.
fn under_a_budget(device: &Device) {
    let card = churned(device);
    let budget = Budget::micros(BUDGET_US);
    let mut pass = card
        .pool
        .begin_compaction(Goal::Full, budget)
        .expect("a pass");
    while !pass.step().expect("a step").finished {}
    let steps = card.pool.take_steps().expect("steps");
    print(&format!("steps of at most {BUDGET_US} us"), &steps);
    if std::env::var_os("WARPOOL_BENCH_STEPS").is_some() {
        for step in &steps {
            println!("{step:?}");
        }
    }
    card.verify();
}

/// Steps of a pool of many small blocks, before each of which the program allocates and frees one: host time by
/// number of blocks.
fn beside_requests(device: &Device) {
    for blocks in [1000, 4000, 16_000, 64_000] {
        let pool = Pool::new(device, PoolConfig::default()).expect("a pool");
        let stream = device.stream().expect("a stream");
        let mut random = 1_u64;
        let mut drawn = || {
            random = (random.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1_442_695_041);
            512 + (random >> 40) as usize % 4096
        };
        let alloc = |bytes| pool.alloc_movable::<u8>(&stream, bytes).expect("a block");
        let mut live: Vec<_> = (0..2 * blocks).map(|_| Some(alloc(drawn()))).collect();
        live.iter_mut().step_by(2).for_each(|block| *block = None);
        let budget = Budget::bytes(1 << 20);
        let mut pass = (pool.begin_compaction(Goal::Full, budget)).expect("a pass");
        let mut times = Vec::new();
        for _ in 0..60 {
            drop(alloc(3000));
            let begun = Instant::now();
            let moved = pass.step().expect("a step");
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            if moved.finished {
                break;
            }
        }
        let of = |percent| percentile(times.clone(), percent);
        let (p50, most, steps) = (of(50), of(100), times.len());
        println!(
            "{blocks} blocks, {steps} steps of 1 MiB beside requests: host p50 {p50:.0} us, most {most:.0} us"
        );
    }
}

/// The part of the card up to which the report's request should be served at once.
const NEARLY_FULL: f64 = 0.97;

/// One request of the report's size: how it was served, and what for.
struct Served {
    nearly_full: bool,
    /// Microseconds of the host.
    host: f64,
    /// Handles mapped elsewhere, and handles made.
    remapped: u64,
    made: u64,
    /// Bytes moved, and microseconds of the device for it.
    bytes: u64,
    device: f64,
    predicted: f64,
}

/// How a request was served: by what was there, by moves, by handles that were somewhere else, by new
/// ones.
type Way = (&'static str, fn(&Served) -> bool);

const WAYS: [Way; 4] = [
    ("by a hole that was there", |one| {
        one.bytes == 0 && one.remapped == 0 && one.made == 0
    }),
    ("by moving blocks", |one| one.bytes > 0),
    ("by mapping handles elsewhere", |one| {
        one.bytes == 0 && one.remapped > 0
    }),
    ("by new handles", |one| {
        one.bytes == 0 && one.remapped == 0 && one.made > 0
    }),
];

/// One request of the report's size; `None` if it is refused.
fn request(card: &mut Churned) -> Option<Served> {
    let nearly_full = card.live_bytes() as f64 >= NEARLY_FULL * card.cap as f64;
    let before = card.pool.stats();
    let started = Instant::now();
    card.alloc(card.request()).ok()?;
    let host = started.elapsed().as_secs_f64() * 1e6;
    let after = card.pool.stats();
    let steps = card.pool.take_steps().expect("steps");
    let made = after.calls.created - before.calls.created;
    Some(Served {
        nearly_full,
        host,
        remapped: after.calls.mapped - before.calls.mapped - made,
        made,
        bytes: after.bytes_moved - before.bytes_moved,
        device: steps.iter().map(|step| step.device_ns / 1e3).sum(),
        predicted: steps.iter().map(|step| step.predicted_ns / 1e3).sum(),
    })
}

fn print_served(those: &[&Served]) {
    let line = |what: &str, value: &dyn Fn(&Served) -> f64| {
        let of = |percent| percentile(those.iter().map(|one| value(one)).collect(), percent);
        let (p50, p99, most) = (of(50), of(99), of(100));
        println!("  {what}: p50 {p50:.1}, p99 {p99:.1}, most {most:.1}");
    };
    line("host time, us", &|one| one.host);
    if those.iter().any(|one| one.bytes > 0) {
        line("device time, us", &|one| one.device);
        line("moved, MiB", &|one| one.bytes as f64 / f64::from(1 << 20));
        line("prediction off by, %", &|one| {
            (one.predicted / one.device - 1.0).abs() * 100.0
        });
    }
    line("handles mapped elsewhere", &|one| one.remapped as f64);
    line("handles made", &|one| one.made as f64);
}

/// Requests until the card is full; those before it is nearly full are reported apart, since at the
/// last nearly all that is live has to move for each.
fn requests(device: &Device) {
    let mut card = churned(device);
    let all: Vec<Served> = std::iter::from_fn(|| request(&mut card)).collect();
    println!(
        "{} requests of {} served until {:.2} % were live",
        all.len(),
        Bytes(card.request()),
        card.live_bytes() as f64 / card.cap as f64 * 100.0,
    );
    for (when, nearly_full) in [("before", false), ("after", true)] {
        for (how, is) in WAYS {
            let of = |one: &&Served| one.nearly_full == nearly_full && is(one);
            let those: Vec<&Served> = all.iter().filter(of).collect();
            if !those.is_empty() {
                let percent = NEARLY_FULL * 100.0;
                println!(
                    "{when} {percent:.0} % were live, {} served {how}:",
                    those.len()
                );
                print_served(&those);
            }
        }
    }
    card.verify();
}

fn main() {
    let device = common::device();
    full(&device);
    under_a_budget(&device);
    beside_requests(&device);
    requests(&device);
}
