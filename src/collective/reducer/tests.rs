//! Which work of a reducer overlaps with which, on the reducer's own streams.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::*;
use crate::collective::transport::{Call, Transport};
use crate::convert::convert;
use crate::device::{Checked, DeviceInfo, gpu_of};
use crate::driver::fake::Machine;
use crate::{Device, PoolConfig};

const TENSORS: usize = 300;

/// Queues a step, one gradient at a time, like a backward pass; each gradient is a copy of `made`.
fn step(reducer: &mut Reducer, stream: &Stream, made: &PoolBuf<f16>) {
    for tensor in 0..TENSORS {
        let gradient = reducer.gradients().swap_remove(tensor);
        // Only queued, not run yet.
        convert(stream, made, gradient, Rounding::Nearest).unwrap();
        reducer.ready(tensor).unwrap();
    }
    reducer.finish().unwrap();
}

#[test]
fn casts_to_codes_do_not_wait_for_the_sums_of_buckets_before_them() {
    let device = Device::host().unwrap();
    let comm = Comm::simulated(std::slice::from_ref(&device), Duration::from_secs(60)).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    for (feedback, len) in [(false, 1000), (true, 1000), (false, 1024)] {
        let config = ReducerConfig::default()
            .bucket_bytes(256)
            .feedback(feedback);
        let lens = [len; TENSORS];
        let mut reducer = Reducer::new(&pool, &stream, &comm[0], &lens, config).unwrap();
        let [first, second] = [1.0, 4.0].map(f16::from_f32);
        let [first, second] =
            [first, second].map(|value| pool.alloc_filled(&stream, len, value).unwrap());
        for _ in 0..3 {
            step(&mut reducer, &stream, &first);
        }
        reducer.largest().download(&stream).unwrap();
        let backend = device.backend();
        let gate = |(_, link): &(Comm, Stream)| {
            let (open, wait) = mpsc::channel::<()>();
            let gate = Box::new(move || _ = wait.recv());
            backend.host_call(link.raw(), gate).unwrap();
            open
        };
        let open: Vec<_> = reducer.shared.links.iter().map(gate).collect();
        step(&mut reducer, &stream, &second);
        let begun = Instant::now();
        while !reducer.shared.narrow.is_idle().unwrap() && begun.elapsed().as_secs() < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let done = reducer.shared.narrow.is_idle().unwrap();
        let summed = reducer.shared.widen.is_idle().unwrap();
        drop(open);
        assert!(done, "feedback {feedback}, {len}: a cast waits for a sum");
        assert!(!summed, "nothing was held up: the test proves nothing");
        let found = reducer.gradients().swap_remove(TENSORS - 1);
        assert_eq!(found.as_view().download(&stream).unwrap(), vec![4.0; len]);
    }
}

#[test]
fn a_bucket_of_several_launches_is_averaged_whole() {
    let device = Device::host().unwrap();
    let comm = Comm::simulated(std::slice::from_ref(&device), Duration::from_secs(60)).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let len = cut::CAST + 1000;
    let config = ReducerConfig::default().bucket_bytes(1 << 40);
    let mut reducer = Reducer::new(&pool, &stream, &comm[0], &[len], config).unwrap();
    let given: Vec<f32> = (0..len).map(|at| (at % 2011) as f32 / 1024.0).collect();
    let gradient = reducer.gradients().remove(0);
    gradient.upload(&stream, &given).unwrap();
    reducer.ready(0).unwrap();
    reducer.finish().unwrap();
    let found = reducer.gradients().remove(0).as_view().download(&stream);
    let found = found.unwrap();
    let wrong = given
        .iter()
        .zip(&found)
        .position(|(given, found)| given != found);
    assert_eq!(wrong, None);
    let largest = reducer.largest().download(&stream).unwrap();
    assert_eq!(largest, [2010.0 / 1024.0]);
}

/// A rank whose sums are not made, and whether a lock was held as each was queued.
struct Noted<F> {
    device: Device,
    is_held: Mutex<F>,
    calls: Mutex<Vec<bool>>,
}

impl<F: Fn() -> bool + Send> Checked for Noted<F> {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<F: Fn() -> bool + Send> Transport for Noted<F> {
    fn rank(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        2
    }
    fn device(&self) -> &Device {
        &self.device
    }
    fn peers(&self) -> &[DeviceInfo] {
        &[]
    }
    fn check_capture(&self) -> Result<()> {
        Ok(())
    }
    unsafe fn queue(&self, _: &Stream, _: &[Call]) -> Result<()> {
        let is_held = self.is_held.lock().unwrap()();
        self.calls.lock().unwrap().push(is_held);
        Ok(())
    }
    fn abort(&self) -> Result<()> {
        Ok(())
    }
    fn twin(self: Arc<Self>) -> Result<Option<Arc<dyn Transport>>> {
        Ok(None)
    }
}

#[test]
fn each_call_of_a_captured_step_is_made_under_the_lock_of_recording() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let device = gpu_of(&machine);
    let transport = Arc::new(Noted {
        is_held: Mutex::new(device.recording_is_held()),
        calls: Mutex::default(),
        device: device.clone(),
    });
    let comm = Comm {
        transport: transport.clone(),
        twin: Arc::default(),
    };
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    for (feedback, wire) in [(false, Wire::F16), (true, Wire::F16), (true, Wire::E4m3)] {
        let config = ReducerConfig::default().bucket_bytes(1 << 12);
        let config = config.wire(wire).feedback(feedback);
        let mut reducer = Reducer::new(&pool, &stream, &comm, &[10_000, 24], config).unwrap();
        let capture = stream.begin_capture().unwrap();
        machine.recorded();
        transport.calls.lock().unwrap().clear();
        (0..2).for_each(|tensor| reducer.ready(tensor).unwrap());
        reducer.finish().unwrap();
        let sums = std::mem::take(&mut *transport.calls.lock().unwrap());
        assert!(
            sums.len() > 1 && sums.iter().all(|is_held| *is_held),
            "{sums:?}"
        );
        let calls = machine.recorded();
        let beside: Vec<_> = calls.iter().filter(|(_, is_held)| !is_held).collect();
        assert!(beside.is_empty(), "{beside:?}");
        assert!(
            calls.iter().any(|(call, _)| *call == "a kernel"),
            "{calls:?}"
        );
        drop(capture.end().unwrap());
    }
}
