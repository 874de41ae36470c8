//! Fault paths that only the CUDA device has.

use super::Rig;
use super::paths::{LIMIT, Stage};
use crate::device::cuda::{count_of, open_current_on, open_on};
use crate::device::{Device, DeviceInfo, DeviceKind, Phys};
use crate::interop::CudaAsync;
use crate::pool::{Pool, PoolConfig};

/// A path with access to the driver.
pub(super) type Path = fn(&mut Stage<'_>, Rig);

/// Every path by its name.
pub(super) const PATHS: &[(&str, Path)] = &[
    ("opening", opening),
    ("left to the device", left_to_the_device),
    ("beside a capture", beside_a_capture),
    ("the driver's pool", drivers_pool),
    ("copies", copies),
    ("peers", peers),
];

/// Opens the device in every possible way.
fn opening(stage: &mut Stage<'_>, rig: Rig) {
    stage.try_to(count_of(rig.driver));
    let beyond = open_on(rig.driver, Some(rig.kernels), 1000).err();
    assert!(beyond.is_some(), "there are no thousand GPUs");
    let without = open_on(rig.driver, None, 0).err();
    assert!(without.is_some(), "a build without kernels opens no GPU");
    stage.try_to(rig.open());
    let pool = stage.at_last(|device| CudaAsync::on(rig.driver, device, None));
    if let Some(_entered) = stage.try_to(pool.enter()) {
        // In the context that is now current.
        stage.try_to(rig.open());
        if let Some(again) = stage.try_to(open_current_on(rig.driver, Some(rig.kernels))) {
            let made = stage.try_to(again.stream_create());
            made.map(|stream| stage.try_to(again.stream_destroy(stream)));
        }
    }
    (stage.heal)();
    drop(pool);
    let device = rig.open().expect("it works again");
    let stream = device.stream().expect("it works again");
    stream.synchronize().expect("it works again");
}

/// Objects whose owners leak them are released with the device.
fn left_to_the_device(stage: &mut Stage<'_>, _rig: Rig) {
    let backend = stage.device.backend();
    let bytes = backend.info().granule;
    stage.try_to(backend.event_create(true));
    if let Some(stream) = stage.try_to(backend.stream_create())
        && stage.try_to(backend.capture_begin(stream)).is_some()
    {
        stage.try_to(backend.capture_end(stream));
    }
    let place = stage.try_to(backend.reserve(bytes));
    let memory: Option<Phys> = stage.try_to(backend.create(bytes));
    if let (Some(place), Some(memory)) = (place, memory) {
        stage.try_to(backend.map(place, bytes, memory));
    }
}

/// Uses a pool while another library captures one of its streams.
fn beside_a_capture(stage: &mut Stage<'_>, _rig: Rig) {
    let pool = stage.at_last(|device| Pool::new(device, PoolConfig::default().limit(LIMIT)));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let backend = stage.device.backend();
    if let Some(mut noted) = stage.try_to(streams[0].note_capture()) {
        let captured = streams[0].raw();
        let begun = stage.try_to(backend.capture_begin(captured)).is_some();
        let kept = stage.try_to(pool.alloc(&streams[0], 1 << 20));
        drop(stage.try_to(pool.alloc(&streams[1], 3 << 20)));
        drop(kept);
        if begun {
            let mut graph = stage.try_to(backend.capture_end(captured));
            if graph.is_none() {
                (stage.heal)();
            }
            if graph.is_none() && matches!(backend.stream_capturing(captured), Ok(true)) {
                // Ends the capture as the other library would, since it goes on.
                graph = backend.capture_end(captured).ok();
            }
            if let Some(graph) = graph {
                stage.try_to(backend.graph_destroy(graph));
            }
        }
        drop(stage.try_to(noted.end()));
        pool.check_invariants().unwrap();
    }
    (stage.heal)();
    drop(pool.alloc(&streams[1], LIMIT / 2).expect("it works again"));
    pool.check_invariants().unwrap();
}

/// The driver's own pool.
fn drivers_pool(stage: &mut Stage<'_>, rig: Rig) {
    let pool = stage.at_last(|device| CudaAsync::on(rig.driver, device, Some(64 << 20)));
    let stream = stage.at_last(Device::stream);
    let entered = stage.try_to(pool.enter());
    if let Some(block) = stage.try_to(pool.alloc(&stream, 4 << 20))
        && let Err((block, error)) = pool.free(block, &stream)
    {
        stage.try_to::<()>(Err(error));
        (stage.heal)();
        pool.free(block, &stream).expect("it works again");
    }
    stage.try_to(pool.used_high());
    stage.try_to(pool.reserved_high());
    drop(entered);
}

/// Device calls that no pool makes.
fn copies(stage: &mut Stage<'_>, _rig: Rig) {
    let pool = stage.at_last(|device| Pool::new(device, PoolConfig::default().limit(LIMIT)));
    let stream = stage.at_last(Device::stream);
    let mut buffer = stage.at_last(|_| pool.alloc_typed::<u64>(&stream, 64));
    let backend = stage.device.backend();
    let (from, to) = (buffer.addr(), buffer.addr() + 256);
    // The buffer is read even if the upload fails.
    // SAFETY: the whole of a live buffer.
    stage.try_to(unsafe { backend.fill(from, 0, 512, stream.raw()) });
    let data: Vec<u64> = (0..64).collect();
    let written = stage.try_to(buffer.upload(&data)).is_some();
    // SAFETY: the two halves of a live buffer.
    let copied = stage.try_to(unsafe { backend.copy_within(to, from, 256, stream.raw()) });
    stage.try_to(backend.host_call(stream.raw(), Box::new(|| ())));
    let read = stage.try_to(buffer.download());
    if let (true, Some(()), Some(read)) = (written, copied, read) {
        assert_eq!(read[32..], data[..32]);
    }
}

/// A pool shared with another GPU, if there is one.
fn peers(stage: &mut Stage<'_>, rig: Rig) {
    if !matches!(count_of(rig.driver), Ok(2..)) {
        return;
    }
    let mut config = PoolConfig::default().limit(LIMIT);
    config.peers = vec![0, 1, 1];
    if let Some(pool) = stage.try_to(Pool::new(stage.device, config)) {
        let stream = stage.at_last(Device::stream);
        drop(stage.try_to(pool.alloc(&stream, 4 << 20)));
        (stage.heal)();
        pool.check_invariants().unwrap();
        let block = pool.alloc(&stream, 1 << 20).expect("it works again");
        let info = |ordinal| DeviceInfo::new(DeviceKind::Cuda, ordinal, String::new(), 0, 1);
        let backend = stage.device.backend();
        let shared = [0, 1, 2].map(|gpu| backend.is_shared(block.addr(), &info(gpu)));
        assert_eq!(shared, [true, true, false]);
    }
}
