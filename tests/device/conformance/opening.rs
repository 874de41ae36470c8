//! Which devices can be opened, and what is the host device's alone.

use crate::common::BackendOf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpool::device::{Backend, DeviceKind};
use warpool::{Device, Error};

use crate::common::{self, Gate};

#[test]
fn a_gpu_beyond_the_last_is_unavailable_and_says_how_many_there_are() {
    let error = Device::cuda(4095).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    if let Ok(count) = Device::cuda_count() {
        assert!(
            error.to_string().contains(&format!("sees {count}")),
            "{error}"
        );
    } else {
        let text = error.to_string();
        assert!(text.contains("driver"), "{text}");
        assert!(
            text.contains("Device::host"),
            "the next step is named: {text}"
        );
    }
}

#[test]
fn any_device_is_the_gpu_or_says_why_not() {
    let device = Device::any().unwrap();
    let reason = device.no_gpu();
    assert_eq!(device.info().kind == DeviceKind::Host, reason.is_some());
    assert!(reason.is_none_or(|why| matches!(why, Error::Unavailable { .. })));
    assert!(Device::host().unwrap().no_gpu().is_none());
    assert_eq!(device.info().granule % 4096, 0);
}

#[test]
fn the_host_device_has_the_capacity_it_was_given_and_no_more() {
    let config = (8 << 20) + 4096;
    let device = Device::host_with_capacity(config).unwrap();
    let backend: &Arc<dyn Backend> = device.backend();
    assert_eq!(
        (device.info().total_bytes, backend.free_bytes().unwrap()),
        (8 << 20, 8 << 20)
    );
    let handles: Vec<_> = (0..4).map(|_| backend.create(2 << 20).unwrap()).collect();
    assert_eq!(backend.free_bytes().unwrap(), 0);
    assert!(backend.create(2 << 20).unwrap_err().is_device_exhausted());
    for phys in handles {
        backend.release(phys).unwrap();
    }
    assert_eq!(backend.free_bytes().unwrap(), 8 << 20);
    let nothing = 4096;
    assert!(matches!(
        Device::host_with_capacity(nothing),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn a_full_queue_of_the_host_device_holds_the_caller_and_loses_nothing() {
    let device = common::host();
    let stream = device.stream().unwrap();
    let gate = Gate::close(&stream);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..200_000 {
        let ran = Arc::clone(&ran);
        let work = Box::new(move || {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        device.backend().host_call(stream.raw(), work).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 200_000);
    opener.join().unwrap();
}

#[test]
fn a_host_call_may_not_wait_for_device_work_on_the_host_device() {
    let device = common::host();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let answer = Arc::new(Mutex::new(None));
    let (its, backend) = (Arc::clone(&answer), Arc::clone(device.backend()));
    let raw = other.raw();
    let work = Box::new(move || *its.lock().unwrap() = Some(backend.stream_sync(raw)));
    device.backend().host_call(stream.raw(), work).unwrap();
    stream.synchronize().unwrap();
    let answer = answer.lock().unwrap().take().unwrap();
    assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
}

#[test]
fn a_panic_of_what_a_graph_of_the_host_device_held_is_an_error_at_the_next_wait() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("it went with its graph"));
        }
    }
    let device = common::host();
    let (stream, backend, bomb) = (device.stream().unwrap(), device.backend(), Bomb);
    backend.capture_begin(stream.raw()).unwrap();
    let work = Arc::new(move || _ = &bomb);
    backend.host_call_in_each_run(stream.raw(), work).unwrap();
    let graph = backend.capture_end(stream.raw()).unwrap();
    let gate = Gate::close(&stream);
    // SAFETY: it uses no memory.
    unsafe { backend.graph_launch(graph, stream.raw()) }.unwrap();
    backend.graph_destroy(graph).unwrap();
    gate.open();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(stream.synchronize()));
    let waited = told.recv_timeout(Duration::from_secs(10));
    let error = waited.expect("the stream goes on").unwrap_err().to_string();
    assert!(error.contains("it went with its graph"), "{error}");
}
