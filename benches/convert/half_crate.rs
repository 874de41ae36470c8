//! The host kernel beside the `half` crate, on one core.

use std::time::Instant;

use half::f16;
use half::slice::HalfFloatSliceExt;
use warpool::driver::abi;

use crate::{Line, noise};

/// Fits in the second cache with its result, so that the cores and not the memory are compared.
const ELEMENTS: usize = 1 << 16;

/// The shortest of many runs, in nanoseconds.
fn best(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..2000 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best
}

/// The `half` crate's rate, and the host kernel's with its ratio to that; f32 to f16.
pub fn lines() -> Vec<Line> {
    let from: Vec<f32> = (0..ELEMENTS as u32)
        .map(|i| noise(i) as f32 / 65536.0 - 32768.0)
        .collect();
    let (mut theirs, mut ours) = (vec![f16::ZERO; ELEMENTS], vec![f16::ZERO; ELEMENTS]);
    // SAFETY: plain numbers, for which zero is a value.
    let zero: abi::wp_convert = unsafe { std::mem::zeroed() };
    let args = abi::wp_convert {
        src: from.as_ptr() as u64,
        dst: ours.as_mut_ptr() as u64,
        count: ELEMENTS as u64,
        rows: 1,
        src_type: abi::WP_F32,
        dst_type: abi::WP_F16,
        ..zero
    };
    let crate_ns = best(|| theirs.convert_from_f32_slice(std::hint::black_box(&from)));
    // SAFETY: both slices live through the call, and do not overlap.
    let own_ns = best(|| assert_eq!(unsafe { abi::wp_host_convert(&args) }, 0));
    assert!(ours == theirs, "both round to nearest");
    let bytes = (ELEMENTS * 6) as f64;
    let line = |name: &str, ns: f64| Line {
        name: name.into(),
        bytes,
        ns,
        beside: Some(bytes / crate_ns),
    };
    vec![
        line("processor_f32_to_f16_half_crate", crate_ns),
        line("processor_f32_to_f16", own_ns),
    ]
}
