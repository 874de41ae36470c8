//! What the benches share: the device, the contenders, and how figures are kept.

#![allow(
    dead_code,
    reason = "every bench is an executable of its own and takes what it needs"
)]

pub mod contender;
pub mod field;
pub mod peers;
pub mod record;
pub mod ring;

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use warpool::Device;
use warpool::device::Backend;

use record::Record;

/// The backend of a device, for benches: they do what safe code must not.
pub trait BackendOf {
    fn backend(&self) -> &Arc<dyn Backend>;
}

impl BackendOf for Device {
    fn backend(&self) -> &Arc<dyn Backend> {
        // SAFETY: benches give it what they made themselves, and look after what they do to the crate's.
        unsafe { self.raw_backend() }
    }
}

/// Samples of one figure.
pub const SAMPLES: usize = 10;

/// The device named by `WARPOOL_BENCH_DEVICE` (host or cuda), else the first GPU, else the host.
pub fn device() -> Device {
    match std::env::var("WARPOOL_BENCH_DEVICE").as_deref() {
        Ok("host") => Device::host().expect("the host device"),
        Ok("cuda") => Device::cuda(0).expect("WARPOOL_BENCH_DEVICE=cuda"),
        Ok(other) => panic!("WARPOOL_BENCH_DEVICE={other}: host or cuda"),
        Err(_) => {
            let device = Device::any().expect("a device");
            if let Some(reason) = device.no_gpu() {
                println!("on the host device, as there is {reason}");
            }
            device
        }
    }
}

/// What is measured: the time of one iteration, or what iterations get through in a time.
#[derive(Clone, Copy)]
pub enum Figure {
    NsPerPair,
    MpairsPerS { threads: u64 },
    GbPerS { bytes: u64 },
    GslotsPerS { slots: u64 },
}

impl Figure {
    pub fn name(self) -> &'static str {
        match self {
            Self::NsPerPair => "ns",
            Self::MpairsPerS { .. } => "Mpairs/s",
            Self::GbPerS { .. } => "GB/s",
            Self::GslotsPerS { .. } => "Gslots/s",
        }
    }

    fn of(self, ns: f64) -> f64 {
        match self {
            Self::NsPerPair => ns,
            Self::MpairsPerS { threads } => threads as f64 * 1e3 / ns,
            Self::GbPerS { bytes: count } | Self::GslotsPerS { slots: count } => count as f64 / ns,
        }
    }

    fn throughput(self) -> Option<Throughput> {
        match self {
            Self::NsPerPair => None,
            Self::MpairsPerS { threads } => Some(Throughput::Elements(threads)),
            Self::GbPerS { bytes } => Some(Throughput::Bytes(bytes)),
            Self::GslotsPerS { slots } => Some(Throughput::Elements(slots)),
        }
    }
}

/// Criterion, the device, and the figures so far.
pub struct Lab {
    pub criterion: Criterion,
    pub device: Device,
    pub record: Record,
    suite: &'static str,
    filters: Vec<String>,
}

impl Lab {
    /// For the bench executable `suite`.
    pub fn new(suite: &'static str) -> Self {
        let criterion = Criterion::default()
            .sample_size(SAMPLES)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300))
            .nresamples(2000)
            .without_plots()
            .configure_from_args();
        Self {
            criterion,
            device: device(),
            record: Record::default(),
            suite,
            filters: std::env::args()
                .skip(1)
                .filter(|arg| !arg.starts_with('-'))
                .collect(),
        }
    }

    /// Whether a bench outside criterion is asked for.
    pub fn wants(&self, bench: &str) -> bool {
        self.filters.is_empty()
            || self
                .filters
                .iter()
                .any(|filter| bench.contains(filter) || filter.contains(bench))
    }

    /// Has criterion measure `run`, which is given a number of iterations and gives their time,
    /// and keeps the median of the last samples. `who` is the contender.
    pub fn measure(
        &mut self,
        (bench, case, who): (&'static str, &str, &'static str),
        figure: Figure,
        mut run: impl FnMut(u64) -> Duration,
    ) {
        let mut samples: Vec<f64> = Vec::new();
        let mut group = self
            .criterion
            .benchmark_group(format!("{}/{bench}", self.suite));
        if let Some(throughput) = figure.throughput() {
            group.throughput(throughput);
        }
        group.bench_function(BenchmarkId::new(who, case), |bencher| {
            bencher.iter_custom(|iters| {
                let took = run(iters);
                samples.push(took.as_nanos() as f64 / iters as f64);
                took
            });
        });
        group.finish();
        // What came before was warm-up.
        let last = samples.len().saturating_sub(SAMPLES);
        if let Some(ns) = median(&mut samples[last..]) {
            self.record
                .add(bench, case, figure.name(), who, figure.of(ns));
        }
    }
}

/// The middle value, the lower of two.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// Pseudo-random numbers (splitmix64): the same in every run and for every contender.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
