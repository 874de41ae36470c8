//! An application's rustacuda context and stream, with this crate's memory and kernels in them.
use crate::common;

use crate::common::BackendOf;
use std::ffi::CStr;
use std::sync::Arc;

use half::f16;
use rustacuda::context::{Context, ContextFlags};
use rustacuda::launch;
use rustacuda::module::Module;
use rustacuda::stream::{Stream as TheirStream, StreamFlags};
use warpool::convert::{Rounding, convert};
use warpool::device::HandleCounts;
use warpool::{Device, Error, Pool, PoolConfig, interop};
use warpool::{View, ViewMut};

const SAXPY: &str = concat!(include_str!("../../examples/saxpy.ptx"), "\0");

/// Whether there is a GPU to test on; says so, or fails, where there is none.
fn gpu() -> Option<rustacuda::device::Device> {
    common::cuda()?;
    rustacuda::init(rustacuda::CudaFlags::empty()).unwrap();
    Some(rustacuda::device::Device::get_device(0).unwrap())
}

/// Runs the application's kernel and the crate's conversion in turn on one rustacuda stream of a
/// new context, `rounds` times in the same memory.
fn share_a_stream(gpu: rustacuda::device::Device, rounds: u32) {
    let elements = 100_003usize;
    let _context = Context::create_and_push(ContextFlags::SCHED_AUTO, gpu).unwrap();
    let module =
        Module::load_from_string(CStr::from_bytes_with_nul(SAXPY.as_bytes()).unwrap()).unwrap();
    let theirs = TheirStream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let device = Device::cuda_current().unwrap();
    let backend = Arc::clone(device.backend());
    // SAFETY: the stream is of this context and outlives everything below.
    let stream = unsafe { interop::rustacuda::adopt(&device, &theirs).unwrap() };
    // SAFETY: as above.
    assert_eq!(stream, unsafe {
        interop::rustacuda::adopt(&device, &theirs).unwrap()
    });
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    for round in 1..=rounds {
        let mut x = pool.alloc_typed::<f32>(&stream, elements).unwrap();
        let mut y = pool.alloc_typed::<f32>(&stream, elements).unwrap();
        let halves = pool.alloc_typed::<f16>(&stream, elements).unwrap();
        x.upload(&vec![round as f32; elements]).unwrap();
        y.upload(&vec![0.5; elements]).unwrap();
        let (at_x, at_y, blocks) = (x.addr(), y.addr(), (elements as u32).div_ceil(256));
        // SAFETY: both buffers have the elements and are freed in this stream's order.
        unsafe {
            launch!(module.saxpy<<<blocks, 256, 0, theirs>>>(2.0f32, at_x, at_y, elements as u32))
        }
        .unwrap();
        // SAFETY: both buffers have the elements and live until the download.
        let (from, to) = unsafe {
            (
                View::<f32>::from_raw(at_y, elements).unwrap(),
                ViewMut::<f16>::from_raw(halves.addr(), elements).unwrap(),
            )
        };
        convert(&stream, from, to, Rounding::Nearest).unwrap();
        // Freed while queued work uses them: that work still has them.
        drop((x, y));
        let expected = f16::from_f32(2.0 * round as f32 + 0.5);
        assert!(
            halves
                .download()
                .unwrap()
                .iter()
                .all(|&half| half == expected),
            "round {round}"
        );
    }
    pool.check_invariants().unwrap();
    drop((pool, stream, device));
    assert_eq!(
        backend.counts(),
        HandleCounts::default(),
        "something leaked"
    );
    drop(backend);
    theirs.synchronize().unwrap();
}

#[test]
fn the_applications_kernels_and_the_crates_share_the_applications_stream() {
    if let Some(gpu) = gpu() {
        share_a_stream(gpu, 20);
    }
}

#[test]
fn kernels_run_again_in_a_second_context_after_the_first_is_gone() {
    if let Some(gpu) = gpu() {
        share_a_stream(gpu, 2);
        share_a_stream(gpu, 2);
    }
}

#[test]
fn a_device_is_opened_in_the_context_that_is_current_and_works_from_other_threads() {
    let Some(gpu) = gpu() else { return };
    let context = Context::create_and_push(ContextFlags::SCHED_AUTO, gpu).unwrap();
    let theirs = TheirStream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let device = Device::cuda_current().unwrap();
    // SAFETY: the stream is of this context and outlives everything below.
    let stream = unsafe { interop::rustacuda::adopt(&device, &theirs).unwrap() };
    // A thread without a context, and one with another.
    std::thread::scope(|scope| {
        for other in [false, true] {
            let (device, stream) = (&device, &stream);
            scope.spawn(move || {
                let _other =
                    other.then(|| Context::create_and_push(ContextFlags::SCHED_AUTO, gpu).unwrap());
                let memory = common::Memory::new(device, 1 << 16);
                let own = device.stream().unwrap();
                common::fill(&own, memory.addr, 7, 64);
                stream.wait_stream(&own).unwrap();
                common::copy(stream, memory.addr + 4096, memory.addr, 64);
                assert_eq!(common::read(stream, memory.addr + 4096, 64), [7; 64]);
            });
        }
    });
    drop((stream, device, theirs));
    drop(context);
}

#[test]
fn without_a_current_context_the_current_device_is_an_error_that_says_what_to_do() {
    // A thread of its own: contexts are current to a thread.
    let error = std::thread::spawn(|| Device::cuda_current().unwrap_err())
        .join()
        .unwrap();
    match error {
        Error::Invalid {
            what: "context",
            ref why,
        } => assert!(why.contains("Device::cuda"), "{why}"),
        Error::Unavailable { ref hint, .. } => assert!(!hint.is_empty()),
        other => panic!("{other}"),
    }
}
