//! Which work of a reducer overlaps with which, on the reducer's own streams.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::convert::convert;
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
