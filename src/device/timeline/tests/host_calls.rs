//! Host calls that run while the driver is called.

use super::streams;
use crate::device::sim::SimConfig;
use crate::device::timeline::MARKS;
use crate::device::{Device, Scratch};

#[test]
fn an_event_may_be_asked_about_in_a_host_call_that_runs_while_it_is_asked_about() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::sim(&SimConfig::default()).unwrap();
        let [a, ..] = streams(&device);
        let event = std::sync::Arc::new(device.event().unwrap());
        let again = std::sync::Arc::clone(&event);
        let work = Box::new(move || _ = again.is_done());
        device.backend().host_call(a.raw(), work).unwrap();
        event.record(&a).unwrap();
        while !event.is_done().unwrap() {}
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn a_stream_may_be_asked_about_in_a_host_call_that_runs_while_its_capture_begins() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..20 {
            let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
            let [a, b, _] = streams(&device);
            let (graph, again) = (a.begin_capture().unwrap().end().unwrap(), a.clone());
            let work = Box::new(move || _ = again.is_idle());
            device.backend().host_call(b.raw(), work).unwrap();
            graph.launch(&b).unwrap();
            drop(graph);
            drop(a.begin_capture().unwrap());
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn no_host_call_runs_in_a_wait_whose_caller_may_hold_a_lock() {
    for seed in 0..20 {
        let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
        let [a, b, _] = streams(&device);
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || tell.send(()).unwrap());
        device.backend().host_call(a.raw(), work).unwrap();
        for _ in 0..4 * MARKS {
            b.wait_stream(&a).unwrap();
        }
        assert!(told.try_recv().is_err(), "it ran under seed {seed}");
    }
}

#[test]
fn no_host_call_runs_while_memory_beside_a_pool_is_made() {
    for seed in 0..20 {
        let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
        let [a, ..] = streams(&device);
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || tell.send(()).unwrap());
        device.backend().host_call(a.raw(), work).unwrap();
        drop(Scratch::zeroed(&device, 1).unwrap());
        assert!(told.try_recv().is_err(), "it ran under seed {seed}");
    }
}
