use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::device::Stream;
use crate::device::sim::SimConfig;
use crate::pool::{Pool, PoolBuf, PoolConfig};

const MIB: usize = 1 << 20;

struct Ground {
    device: Device,
    pool: Pool,
    host: HostPool,
    streams: Vec<Stream>,
}

fn on(device: Device, config: HostPoolConfig) -> Ground {
    Ground {
        pool: Pool::new(&device, PoolConfig::default()).unwrap(),
        host: HostPool::new(&device, config),
        streams: (0..3).map(|_| device.stream().unwrap()).collect(),
        device,
    }
}

fn ground() -> Ground {
    on(Device::host().unwrap(), HostPoolConfig::default())
}

impl Ground {
    fn numbers(&self, from: u32, len: usize) -> HostBuf<u32> {
        let mut buf = self.host.alloc::<u32>(len).unwrap();
        for (at, number) in buf.get_mut().unwrap().iter_mut().enumerate() {
            *number = from + at as u32;
        }
        buf
    }

    fn device_buf(&self, len: usize) -> PoolBuf<u32> {
        self.pool.alloc_typed(&self.streams[0], len).unwrap()
    }

    /// Blocks a stream until the returned sender is dropped.
    fn hold(&self, stream: &Stream) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        let work = Box::new(move || _ = held.recv());
        self.device.backend().host_call(stream.raw(), work).unwrap();
        release
    }

    /// Checks that nothing is left once the buffers are dropped and the streams are done.
    fn is_clean(&self) {
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
        self.host.trim().unwrap();
        let stats = self.host.stats();
        assert_eq!(
            (
                stats.reserved.current,
                stats.allocated.current,
                stats.pending
            ),
            (0, 0, 0)
        );
        assert_eq!(
            (stats.created, self.device.backend().counts().host_bytes),
            (stats.released, 0)
        );
        assert_eq!(stats.reserved.allocated, stats.reserved.freed);
    }
}

#[test]
fn what_goes_up_comes_down_whole_and_in_parts() {
    let ground = ground();
    let [a, b, _] = &ground.streams[..] else {
        unreachable!()
    };
    let up = ground.numbers(7, 1000);
    let mut there = ground.device_buf(1000);
    there.view_mut().upload_from(a, &up).unwrap();
    there
        .slice_mut(10..20)
        .unwrap()
        .upload_from(b, up.slice(500..510).unwrap())
        .unwrap();
    let mut down = ground.host.alloc::<u32>(1003).unwrap();
    there
        .view()
        .download_into(a, down.slice_mut(3..).unwrap())
        .unwrap();
    let expected: Vec<u32> = (0..1000)
        .map(|at| 7 + at + if (10..20).contains(&at) { 490 } else { 0 })
        .collect();
    assert_eq!(down.get().unwrap()[3..], expected);
    drop((up, down));
    ground.is_clean();
}

#[test]
fn a_dropped_buffer_is_not_handed_out_while_a_copy_reads_it() {
    let ground = ground();
    let mut there = ground.device_buf(MIB);
    let held = ground.hold(&ground.streams[0]);
    let up = ground.numbers(1, MIB);
    let addr = up.addr();
    there
        .view_mut()
        .upload_from(&ground.streams[0], &up)
        .unwrap();
    drop(up);
    assert_eq!(ground.host.stats().pending, 4 << 20);
    let other = ground.numbers(90, MIB);
    assert_ne!(other.addr(), addr);
    drop(held);
    assert!(
        there
            .download()
            .unwrap()
            .iter()
            .enumerate()
            .all(|(at, &n)| n == 1 + at as u32)
    );
    let again = ground.host.alloc::<u32>(MIB).unwrap();
    assert_eq!(again.addr(), addr);
    drop((other, again));
    ground.is_clean();
}

#[test]
fn the_host_waits_for_the_copies_that_it_meets_and_no_others() {
    let ground = ground();
    let there = ground
        .pool
        .alloc_from(&ground.streams[0], &[5_u32; 64])
        .unwrap();
    let mut there_too = ground.device_buf(64);
    let (mut down, mut up) = (ground.numbers(0, 64), ground.numbers(100, 64));
    ground.streams[0].synchronize().unwrap();
    let held = ground.hold(&ground.streams[0]);
    there
        .view()
        .download_into(&ground.streams[0], &mut down)
        .unwrap();
    there_too
        .view_mut()
        .upload_from(&ground.streams[0], &up)
        .unwrap();
    assert!(!down.is_idle().unwrap() && !up.is_idle().unwrap());
    // A read beside a copy that also reads; it must not wait.
    assert_eq!(up.get().unwrap()[0], 100);
    let waits = std::thread::spawn(move || {
        up.get_mut().unwrap()[0] = 1;
        (down.get().unwrap().to_vec(), up)
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waits.is_finished());
    drop(held);
    let (down, up) = waits.join().unwrap();
    assert_eq!(down, [5; 64]);
    assert!(up.is_idle().unwrap());
    assert_eq!(there_too.download().unwrap()[0], 100);
}

#[test]
fn copies_of_two_streams_that_meet_in_host_memory_run_in_order() {
    let ground = ground();
    let [a, b, c] = &ground.streams[..] else {
        unreachable!()
    };
    let first = ground.pool.alloc_from(a, &[1_u32; 4096]).unwrap();
    let second = ground.pool.alloc_from(a, &[2_u32; 4096]).unwrap();
    let mut third = ground.device_buf(4096);
    let mut between = ground.host.alloc::<u32>(4096).unwrap();
    let held = ground.hold(a);
    first.view().download_into(a, &mut between).unwrap();
    third.view_mut().upload_from(b, &between).unwrap();
    second.view().download_into(c, &mut between).unwrap();
    drop(held);
    assert_eq!(third.download().unwrap(), [1; 4096]);
    assert_eq!(between.get().unwrap(), [2; 4096]);
}

#[test]
fn threads_that_need_no_more_than_the_limit_are_never_refused() {
    let limit = HostPoolConfig::default().limit(4 << 20);
    let ground = on(Device::host().unwrap(), limit);
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = ground.device.stream().unwrap();
                let mut there = ground.pool.alloc_typed::<u8>(&stream, MIB).unwrap();
                for len in [MIB, MIB - 70_000].repeat(500) {
                    match ground.host.alloc_waiting::<u8>(len) {
                        Ok(buf) => {
                            let part = there.slice_mut(..len).unwrap();
                            part.upload_from(&stream, &buf).unwrap();
                        }
                        Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
                    }
                }
                stream.synchronize().unwrap();
            });
        }
    });
    assert_eq!(refused.into_inner(), 0, "each has one buffer of four");
    ground.is_clean();
}

#[test]
fn memory_that_copies_use_counts_as_pending_while_the_driver_is_asked_about_it() {
    let ground = ground();
    let mut there = ground.device_buf(MIB);
    let held = ground.hold(&ground.streams[0]);
    let up = ground.numbers(1, MIB);
    there
        .view_mut()
        .upload_from(&ground.streams[0], &up)
        .unwrap();
    drop(up);
    let wanted = ground.host.stats().pending;
    assert_eq!(wanted, 4 * MIB as u64);
    let wrong = std::thread::scope(|scope| {
        let asking = scope.spawn(|| (0..5000).for_each(|_| _ = ground.host.trim().unwrap()));
        let mut told =
            std::iter::from_fn(|| (!asking.is_finished()).then(|| ground.host.stats().pending));
        told.find(|&pending| pending != wanted)
    });
    assert_eq!(wrong, None);
    drop(held);
    ground.is_clean();
}

#[test]
fn a_stream_that_failed_keeps_the_memory_of_its_own_copies_alone() {
    let config = HostPoolConfig::default().limit(20 << 20);
    let ground = on(Device::host().unwrap(), config);
    let mut there = [ground.device_buf(MIB), ground.device_buf(MIB)];
    let work = Box::new(|| panic!("of the application"));
    let backend = ground.device.backend();
    let failing = ground.streams[1].raw();
    backend.host_call(failing, work).unwrap();
    let held = ground.hold(&ground.streams[2]);
    for (there, stream) in there.iter_mut().zip(&ground.streams[1..]) {
        let up = ground.numbers(1, MIB);
        there.view_mut().upload_from(stream, &up).unwrap();
    }
    assert!(backend.stream_sync(failing).is_err());
    drop(held);
    ground.streams[2].synchronize().unwrap();
    // First new memory, then the memory of the copy that succeeded.
    let new = ground.host.alloc::<u8>(6 * MIB).unwrap();
    let again = ground.host.alloc::<u8>(4 * MIB).unwrap();
    assert_eq!(ground.host.stats().pending, 4 << 20);
    drop((new, again));
    // The driver's error is returned if more memory could have helped.
    assert!(matches!(
        ground.host.alloc::<u8>(18 * MIB),
        Err(Error::Os { .. })
    ));
    assert!(ground.host.trim().is_err());
    assert_eq!(ground.host.stats().reserved.current, 4 << 20);
}

#[test]
fn memory_beyond_the_limit_is_refused_until_copies_are_done() {
    let ground = on(
        Device::host().unwrap(),
        HostPoolConfig::default().limit(8 << 20),
    );
    let mut there = ground.device_buf(MIB);
    let held = ground.hold(&ground.streams[0]);
    let up = ground.numbers(3, MIB);
    there
        .view_mut()
        .upload_from(&ground.streams[0], &up)
        .unwrap();
    drop(up);
    let kept = ground.host.alloc::<u8>(4 * MIB).unwrap();
    let refused = ground.host.alloc::<u8>(3 * MIB).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
    let host = ground.host.clone();
    let waits = std::thread::spawn(move || host.alloc_waiting::<u8>(3 * MIB));
    let begun = std::time::Instant::now();
    while ground.host.stats().waits == 0 && begun.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert!(ground.host.stats().waits > 0 && !waits.is_finished());
    drop(held);
    drop(waits.join().unwrap().unwrap());
    assert!(ground.host.stats().reserved.peak <= 8 << 20);
    // There is nothing to wait for, so this is an error and not an endless wait.
    assert!(ground.host.alloc_waiting::<u8>(9 * MIB).is_err());
    drop(kept);
    ground.is_clean();
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let (ground, elsewhere) = (ground(), self::ground());
    let up = ground.numbers(0, 16);
    let mut there = ground.device_buf(16);
    assert!(
        there
            .slice_mut(..8)
            .unwrap()
            .upload_from(&ground.streams[0], &up)
            .is_err()
    );
    assert!(
        there
            .view_mut()
            .upload_from(&elsewhere.streams[0], &up)
            .is_err()
    );
    let mut far = elsewhere.device_buf(16);
    assert!(
        far.view_mut()
            .upload_from(&elsewhere.streams[0], &up)
            .is_err()
    );
    assert!(up.slice(3..17).is_err() && ground.host.alloc::<u64>(usize::MAX / 4).is_err());
    let capture = ground.streams[0].begin_capture().unwrap();
    assert!(
        there
            .view_mut()
            .upload_from(&ground.streams[0], &up)
            .is_err()
    );
    drop(capture);
    assert!(up.is_idle().unwrap());
}

#[test]
fn nothing_is_copied_for_no_elements() {
    let ground = ground();
    let empty = ground.numbers(0, 0);
    ground
        .device_buf(4)
        .slice_mut(2..2)
        .unwrap()
        .upload_from(&ground.streams[0], &empty)
        .unwrap();
    assert!(empty.get().unwrap().is_empty() && empty.is_empty());
    assert_eq!(ground.host.stats().created, 0);
}

#[test]
fn staged_data_arrives_whatever_its_length() {
    let ground = on(
        Device::host().unwrap(),
        HostPoolConfig::default().limit(16 << 20),
    );
    let stream = &ground.streams[1];
    for len in [0, 1, 1000, MIB / 2, MIB / 2 + 1, 3 * MIB + 77] {
        let data: Vec<u32> = (0..len as u32)
            .map(|at| at.wrapping_mul(2_654_435_761))
            .collect();
        let mut there = ground.device_buf(len);
        ground
            .host
            .stage_in(stream, there.view_mut(), &data)
            .unwrap();
        let mut back = vec![0; len];
        ground
            .host
            .stage_out(stream, there.view(), &mut back)
            .unwrap();
        assert!(back == data, "{len} elements");
    }
    assert!(ground.host.stats().reserved.peak <= 16 << 20);
    assert!(
        ground
            .host
            .stage_in(stream, ground.device_buf(2).view_mut(), &[1_u32])
            .is_err()
    );
    ground.is_clean();
}

#[test]
fn data_is_staged_where_the_limit_holds_one_piece() {
    let ground = on(
        Device::host().unwrap(),
        HostPoolConfig::default().limit(2 << 20),
    );
    let data: Vec<u32> = (0..5 * MIB as u32 / 2).collect();
    let mut there = ground.device_buf(data.len());
    ground
        .host
        .stage_in(&ground.streams[0], there.view_mut(), &data)
        .unwrap();
    assert!(there.download().unwrap() == data);
    drop(there);
    ground.is_clean();
}

#[test]
fn memory_outlives_a_pool_dropped_under_queued_copies() {
    let Ground {
        device,
        pool,
        host,
        streams,
    } = ground();
    let mut there = pool.alloc_typed::<u8>(&streams[0], 3 * MIB).unwrap();
    let (release, held) = mpsc::channel::<()>();
    let work = Box::new(move || _ = held.recv());
    device.backend().host_call(streams[0].raw(), work).unwrap();
    let mut up = host.alloc::<u8>(3 * MIB).unwrap();
    up.get_mut().unwrap().fill(9);
    there.view_mut().upload_from(&streams[0], &up).unwrap();
    drop(host);
    let gone = std::thread::spawn(move || drop(up));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(device.backend().counts().host_bytes > 0 && !gone.is_finished());
    drop(release);
    gone.join().unwrap();
    assert_eq!(device.backend().counts().host_bytes, 0);
    assert!(there.download().unwrap().iter().all(|&byte| byte == 9));
}

/// A step of a random program.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize, u32),
    Up(usize, usize, usize),
    Down(usize, usize, usize),
    Renew(usize),
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let three = 0_usize..3;
    prop_oneof![
        (three.clone(), any::<u32>()).prop_map(|(at, value)| Step::Write(at, value)),
        (three.clone(), three.clone(), three.clone()).prop_map(|(s, h, d)| Step::Up(s, h, d)),
        (three.clone(), three.clone(), three.clone()).prop_map(|(s, h, d)| Step::Down(s, h, d)),
        three.clone().prop_map(Step::Renew),
        three.prop_map(Step::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_value_is_what_the_steps_one_after_another_leave(
        seed: u64, steps in prop::collection::vec(step(), 1..60)
    ) {
        let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
        let ground = on(device, HostPoolConfig::default());
        let mut hosts: Vec<_> = (0..3).map(|at| ground.numbers(at * 100, 8)).collect();
        let mut devices: Vec<_> = (0..3).map(|_| ground.pool.alloc_zeroed::<u32>(&ground.streams[0], 8).unwrap()).collect();
        let mut said: Vec<Vec<u32>> = (0..3).map(|at| (at * 100..at * 100 + 8).collect()).collect();
        let mut there = vec![vec![0; 8]; 3];
        for step in steps {
            match step {
                Step::Write(at, value) => {
                    hosts[at].get_mut().unwrap()[3] = value;
                    said[at][3] = value;
                }
                Step::Up(stream, host, to) => {
                    devices[to].view_mut().upload_from(&ground.streams[stream], &hosts[host]).unwrap();
                    there[to] = said[host].clone();
                }
                Step::Down(stream, host, from) => {
                    devices[from].view().download_into(&ground.streams[stream], &mut hosts[host]).unwrap();
                    said[host] = there[from].clone();
                }
                Step::Renew(at) => {
                    let old = std::mem::replace(&mut hosts[at], ground.host.alloc(8).unwrap());
                    drop(old);
                    hosts[at].get_mut().unwrap().copy_from_slice(&[at as u32; 8]);
                    said[at] = vec![at as u32; 8];
                }
                Step::Read(at) => prop_assert_eq!(hosts[at].get().unwrap(), &said[at][..]),
            }
        }
        for at in 0..3 {
            prop_assert_eq!(hosts[at].get().unwrap(), &said[at][..]);
            prop_assert_eq!(devices[at].download().unwrap(), there[at].clone());
        }
        drop(hosts);
        ground.is_clean();
    }
}

#[test]
fn memory_that_the_machine_refuses_was_never_held() {
    let host = HostPool::new(&Device::host().unwrap(), HostPoolConfig::default());
    // More than the address space.
    assert!(host.alloc::<u8>(1 << 47).is_err());
    let reserved = host.stats().reserved;
    assert_eq!(
        (reserved.peak, reserved.allocated, reserved.freed),
        (0, 0, 0)
    );
    drop(host.alloc::<u8>(100).unwrap());
    assert!(host.stats().reserved.peak > 0);
}

#[test]
fn elements_are_staged_in_and_out_within_the_same_limit() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let data: Vec<u8> = (0..16usize << 20).map(|at| (at / 4096) as u8).collect();
    let mut there = pool.alloc_typed::<u8>(&stream, data.len()).unwrap();
    for mebibytes in [2, 4] {
        let host = HostPool::new(&device, HostPoolConfig::default().limit(mebibytes << 20));
        host.stage_in(&stream, there.view_mut(), &data).unwrap();
        let mut back = vec![0; data.len()];
        host.stage_out(&stream, there.view(), &mut back).unwrap();
        assert!(back == data);
    }
}

#[test]
fn elements_of_no_bytes_are_staged_at_once_however_many_they_are() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (ground, mut data) = (ground(), [(); usize::MAX]);
        let stream = &ground.streams[0];
        let mut there = ground.pool.alloc_typed::<()>(stream, data.len()).unwrap();
        let host = &ground.host;
        host.stage_in(stream, there.view_mut(), &data).unwrap();
        host.stage_out(stream, there.view(), &mut data).unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(20))
        .expect("it returns");
}

#[test]
fn a_limit_that_holds_no_page_is_an_error_that_names_it() {
    let ground = on(
        Device::host().unwrap(),
        HostPoolConfig::default().limit(MIB as u64 - 1),
    );
    for bytes in [1, MIB / 2] {
        for refused in [
            ground.host.alloc::<u8>(bytes),
            ground.host.alloc_waiting::<u8>(bytes),
        ] {
            assert!(matches!(refused, Err(Error::Invalid { what: "limit", .. })));
        }
    }
    // A buffer that does not share a page fits, and the limit is no error for requests of that
    // size.
    let large = ground.host.alloc::<u8>(MIB / 2 + MIB / 8).unwrap();
    let refused = ground.host.alloc::<u8>(1);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    drop(large);
    let refused = ground.host.alloc::<u8>(MIB);
    assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    ground.is_clean();
}

#[test]
fn a_request_asks_once_about_a_stream_that_is_held_up() {
    let ground = ground();
    let stream = &ground.streams[0];
    let timeline = &stream.core().timeline;
    let held = ground.hold(stream);
    let mut there = ground.device_buf(MIB);
    let ticks = [1, 2].map(|from| {
        let up = ground.numbers(from, MIB);
        there.view_mut().upload_from(stream, &up).unwrap();
        timeline.open_tick()
    });
    assert!(ticks[0] < ticks[1] && timeline.is_marked(ticks[0]));
    drop(ground.host.alloc::<u32>(MIB).unwrap());
    assert!(
        !timeline.is_marked(ticks[1]),
        "it is asked about the second"
    );
    drop(held);
    ground.is_clean();
}

#[test]
fn staging_at_the_limit_goes_on_with_its_own_pieces_beside_a_stream_that_failed() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [stream, failed] = [(); 2].map(|()| device.stream().unwrap());
    let host = HostPool::new(&device, HostPoolConfig::default().limit(6 << 20));
    let lost = host.alloc::<u8>(2 << 20).unwrap();
    let mut there = pool.alloc_typed::<u8>(&failed, 2 << 20).unwrap();
    let fails = Box::new(|| panic!("it fails"));
    device.backend().host_call(failed.raw(), fails).unwrap();
    there.view_mut().upload_from(&failed, &lost).unwrap();
    drop(lost);
    assert!(failed.synchronize().is_err());
    let data: Vec<u8> = (0..16 << 20).map(|at| (at % 251) as u8).collect();
    let mut up = pool.alloc_typed::<u8>(&stream, data.len()).unwrap();
    host.stage_in(&stream, up.view_mut(), &data).unwrap();
    let mut down = vec![0; data.len()];
    host.stage_out(&stream, up.view(), &mut down).unwrap();
    assert!(down == data);
}

#[test]
fn a_host_call_that_runs_while_memory_is_asked_about_is_not_kept_by_that() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..20 {
            let ground = on(
                Device::sim(&SimConfig::default().with_seed(seed)).unwrap(),
                HostPoolConfig::default(),
            );
            let source = ground.device_buf(MIB);
            let mut staged = ground.numbers(0, MIB);
            let (host, stream) = (ground.host.clone(), &ground.streams[0]);
            let work = Box::new(move || _ = (host.alloc::<u8>(3 * MIB), host.trim()));
            ground
                .device
                .backend()
                .host_call(stream.raw(), work)
                .unwrap();
            source.view().download_into(stream, &mut staged).unwrap();
            drop(staged);
            drop(ground.host.alloc::<u8>(3 * MIB).unwrap());
            drop(source);
            ground.is_clean();
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn the_error_of_a_full_host_pool_says_that_host_memory_is_short() {
    let config = HostPoolConfig::default().limit(3 * MIB as u64);
    let Ground { host, .. } = on(Device::host().unwrap(), config);
    let mut kept: Vec<_> = (0..3).map(|_| host.alloc::<u8>(MIB).unwrap()).collect();
    kept.push(host.alloc::<u8>(0).unwrap()); // has no memory
    drop(kept.swap_remove(0));
    kept.push(host.alloc::<u8>(MIB).unwrap());
    let Err(Error::OutOfMemory(why)) = host.alloc::<u8>(MIB) else {
        panic!("the limit does not hold");
    };
    let holder = ("page-locked host memory".to_owned(), 3 * MIB as u64, 3);
    assert_eq!(why.holders, [holder]);
    let text = why.to_string();
    let said = "page-locked host memory holds 3.00 MiB in 3 blocks";
    assert!(text.contains(said), "{text}");
}

#[test]
fn a_pool_of_many_sizes_holds_at_most_twice_what_was_in_use() {
    for (most, held, calls) in [(2 * MIB, 16 << 20, 100), (24 * MIB, 0, 100)] {
        let host = HostPool::new(&Device::host().unwrap(), HostPoolConfig::default());
        let (mut seed, mut kept) = (1_u64, std::collections::VecDeque::new());
        for _ in 0..2000 {
            seed = (seed.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
            kept.push_back(host.alloc::<u8>(1 + (seed >> 33) as usize % most).unwrap());
            kept.drain(..kept.len().saturating_sub(4));
        }
        let stats = host.stats();
        let held = held.max(2 * stats.allocated.peak);
        assert!(
            stats.reserved.peak <= held && stats.created <= calls,
            "{stats:?}"
        );
    }
}
