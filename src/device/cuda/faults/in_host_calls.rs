//! What is asked for in a host call, which may not call the driver.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::found::{hold, pool, with_device};
use super::{Rig, refused};
use crate::device::Stream;
use crate::error::Result;
use crate::host::{HostPool, HostPoolConfig};

/// Does each in a host call on the stream, and checks that it is refused and calls no driver there.
fn refused_in_host_calls(rig: Rig, calls: &Stream, all: Vec<(&str, Asked)>) {
    for (what, ask) in all {
        let (tell, told) = mpsc::channel();
        let work = Box::new(move || {
            rig.driver.faults.plan(&[]);
            let answer = ask();
            let _ = tell.send((answer, rig.driver.faults.uses()));
        });
        let backend = calls.device().backend();
        backend.host_call(calls.raw(), work).unwrap();
        let told = told.recv_timeout(Duration::from_secs(20));
        let (answer, uses) = told.expect("it waits for itself");
        let words = answer.expect_err(what).to_string();
        assert!(words.contains("host call"), "{what}: {words}");
        assert!(uses.is_empty(), "{what}: {uses:?}");
        assert_eq!(refused(rig.driver), [], "{what}");
    }
}

/// A request in a host call.
type Asked = Box<dyn FnOnce() -> Result<()> + Send>;

#[test]
fn no_pool_calls_the_driver_in_a_host_call_to_make_or_release_memory() {
    with_device(|rig, device| {
        let pool = pool(device);
        let host = HostPool::new(device, HostPoolConfig::default());
        let [stream, calls] = [(); 2].map(|()| device.stream().unwrap());
        // Idle memory of both, and some that a queued copy uses.
        drop(pool.alloc(&stream, 4 << 20).unwrap());
        let mut source = pool.alloc_typed::<u8>(&stream, 3 << 20).unwrap();
        let [idle, mut used] = [1 << 20, 3 << 20].map(|len| host.alloc::<u8>(len).unwrap());
        drop(idle);
        let gate = hold(&stream);
        source.view_mut().upload_from(&stream, &used).unwrap();
        source.view().download_into(&stream, &mut used).unwrap();
        drop(used);
        let before = (pool.stats().reserved.current, host.stats().reserved.current);
        let of = |ask: fn(&HostPool) -> Result<()>| {
            let host = host.clone();
            Box::new(move || ask(&host)) as Asked
        };
        let its = pool.clone();
        let all: Vec<(&str, Asked)> = vec![
            ("a trim", Box::new(move || its.trim(0).map(drop))),
            ("a trim on the host", of(|host| host.trim().map(drop))),
            (
                "host memory",
                of(|host| host.alloc::<u8>(3 << 20).map(drop)),
            ),
            (
                "host memory that waits",
                of(|host| host.alloc_waiting::<u8>(3 << 20).map(drop)),
            ),
        ];
        refused_in_host_calls(rig, &calls, all);
        assert_eq!(
            (pool.stats().reserved.current, host.stats().reserved.current),
            before
        );
        // What is idle is served.
        let (tell, told) = mpsc::channel();
        let its = host.clone();
        let work = Box::new(move || {
            rig.driver.faults.plan(&[]);
            let served = its.alloc::<u8>(1 << 20).is_ok();
            let _ = tell.send((served, rig.driver.faults.uses().is_empty()));
        });
        device.backend().host_call(calls.raw(), work).unwrap();
        let told = told.recv_timeout(Duration::from_secs(20));
        assert_eq!(told, Ok((true, true)));
        drop((gate, source));
        stream.synchronize().unwrap();
        assert!(host.trim().unwrap() >= 4 << 20 && pool.trim(0).unwrap() > 0);
    });
}

#[test]
fn a_capture_that_a_host_call_ends_is_discarded_by_another_thread() {
    with_device(|rig, device| {
        let [stream, calls] = [(); 2].map(|()| device.stream().unwrap());
        let capture = stream.begin_capture().unwrap();
        let (tell, told) = mpsc::channel();
        let work = Box::new(move || _ = tell.send(capture.end().map(drop)));
        device.backend().host_call(calls.raw(), work).unwrap();
        let answer = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let words = answer.unwrap_err().to_string();
        assert!(words.contains("host call"), "{words}");
        let deadline = Instant::now() + Duration::from_secs(20);
        while stream.synchronize().is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        stream.synchronize().unwrap();
        assert_eq!(refused(rig.driver), []);
        drop(stream.begin_capture().unwrap().end().unwrap());
    });
}
