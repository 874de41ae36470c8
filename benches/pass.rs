//! Compactions as a person meets them, on the pattern of RMM issue 1245: one pass over everything,
//! steps under a budget, and requests that need room made.
//!
//! Printed: bytes moved, host time, device time, and what the planner predicted. `WARPOOL_BENCH_CAP`
//! sets the bytes of the pool; unset, the card of the report on a GPU that has it, else 256 MiB.

mod common;

#[path = "../tests/common/churn.rs"]
mod churn;

use std::time::Instant;

use churn::{CARD, Churned};
use warpool::compact::{Budget, CostModel, Goal};
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
    let budget = Budget::micros(BUDGET_US, &CostModel::default());
    let mut pass = card
        .pool
        .begin_compaction(Goal::Full, budget)
        .expect("a pass");
    while !pass.step().expect("a step").finished {}
    let steps = card.pool.take_steps().expect("steps");
    print(&format!("steps of at most {BUDGET_US} us"), &steps);
    card.verify();
}

/// The part of the card up to which the report's request should be served at once.
const NEARLY_FULL: f64 = 0.97;

/// Requests until the card is full; those before it is nearly full are reported apart, since at the
/// last nearly all that is live has to move for each.
fn requests(device: &Device) {
    let mut card = churned(device);
    let (mut early, mut late, mut served) = (Vec::new(), Vec::new(), 0);
    let mut early_steps = Vec::new();
    loop {
        let nearly_full = card.live_bytes() as f64 >= NEARLY_FULL * card.cap as f64;
        if !nearly_full {
            early_steps.extend(card.pool.take_steps().expect("steps"));
        }
        let before = card.pool.stats().steps.relieved;
        let started = Instant::now();
        if card.alloc(card.request()).is_err() {
            break;
        }
        let took = started.elapsed().as_secs_f64() * 1e6;
        served += 1;
        if card.pool.stats().steps.relieved > before {
            if nearly_full { &mut late } else { &mut early }.push(took);
        }
    }
    println!(
        "{served} requests of {} served, {} by compaction, until {:.2} % were live",
        Bytes(card.request()),
        early.len() + late.len(),
        card.live_bytes() as f64 / card.cap as f64 * 100.0,
    );
    for (when, took) in [("before", early), ("after", late)] {
        println!(
            "  host time of the {} served by compaction {when} 97 % were live: p50 {:.1} us, p99 \
             {:.1} us",
            took.len(),
            percentile(took.clone(), 50),
            percentile(took, 99),
        );
    }
    print("making room before 97 % were live", &early_steps);
    print("making room after", &card.pool.take_steps().expect("steps"));
    card.verify();
}

fn main() {
    let device = common::device();
    full(&device);
    under_a_budget(&device);
    requests(&device);
}
