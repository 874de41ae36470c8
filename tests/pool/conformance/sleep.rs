//! Pools that sleep: addresses stay, memory goes, contents come back, and nothing runs on what sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::{MIB, common, small_handles, whole};

use common::BackendOf;
use common::sanitized::Sanitized;
use common::watched::Watched;
use common::{on_every_device, on_the_simulated_device};
use warpool::compact::Goal;
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::{Device, Error, Pool};

fn host(device: &Device) -> HostPool {
    HostPool::new(device, HostPoolConfig::default())
}

/// Whether this is the error that says so.
fn sleeps<T>(outcome: warpool::Result<T>) -> bool {
    match outcome {
        Err(Error::Invalid { why, .. }) => why.contains("sleeps"),
        _ => false,
    }
}

fn saved_memory_goes_to_the_device_and_comes_back_where_it_was_with_its_contents(device: &Device) {
    let watched = Sanitized::over(device);
    let device = &watched.device;
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let large: Vec<u64> = (0..800_000).collect();
    let bufs: Vec<_> = (0..5u64)
        .map(|at| {
            let data: Vec<u64> = large.iter().map(|it| it * 7 + at).collect();
            let small: Vec<u8> = (0..100).map(|it| it + at as u8).collect();
            (
                pool.alloc_from(&stream, &data).unwrap(),
                pool.alloc_from(&stream, &small).unwrap(),
                data,
                small,
            )
        })
        .collect();
    let addrs: Vec<_> = bufs.iter().map(|it| (it.0.addr(), it.1.addr())).collect();
    let before = pool.stats();
    let held = device.counts().bytes;
    let released = pool.sleep(&[], Contents::Saved(&host)).unwrap();
    whole(&pool);
    let asleep = pool.stats();
    assert!(released >= before.active.current, "{released}");
    assert_eq!(asleep.reserved.current, 0);
    assert_eq!(asleep.sleeping, released);
    assert_eq!(asleep.allocated.current, before.allocated.current);
    assert!(
        device.counts().bytes <= held - released,
        "the device has it"
    );
    assert!(host.stats().allocated.current >= before.allocated.current);
    assert_eq!(pool.wake(&[]).unwrap(), released);
    whole(&pool);
    let awake = pool.stats();
    assert_eq!((awake.reserved.current, awake.sleeping), (released, 0));
    assert_eq!(host.stats().allocated.current, 0);
    for ((large, small, data, few), addrs) in bufs.iter().zip(addrs) {
        assert_eq!((large.addr(), small.addr()), addrs);
        assert!(large.download().unwrap() == *data && small.download().unwrap() == *few);
    }
    drop(pool.alloc(&stream, 3 * MIB).unwrap());
    drop((bufs, pool, host, stream));
    watched.check().unwrap();
}

fn a_sleep_returns_all_bytes_that_it_releases_idle_ones_too(device: &Device) {
    let pool = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 2 * MIB).unwrap();
    drop(pool.alloc(&stream, 20 * MIB).unwrap());
    let held = device.counts().bytes;
    let released = pool.sleep(&[], Contents::Discarded).unwrap();
    assert_eq!(held - device.counts().bytes, released);
    assert!(released >= 22 * MIB, "{released}");
    drop(block);
}

fn queued_work_is_waited_for_before_memory_sleeps(device: &Device) {
    let watched = Sanitized::over(device);
    let device = &watched.device;
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut buf = pool.alloc_zeroed::<u32>(&home, 4_000_000).unwrap();
    for round in 0..20 {
        // On a stream that the pool has not met.
        buf.view_mut().fill(&other, round).unwrap();
    }
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    pool.wake(&[]).unwrap();
    assert!(buf.download().unwrap().iter().all(|&it| it == 19));
    drop((buf, pool, host, home, other));
    watched.check().unwrap();
}

fn a_tag_sleeps_alone_and_shares_no_handle_with_others(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let (weights, cache) = (
        pool.tagged("weights").unwrap(),
        pool.tagged("cache").unwrap(),
    );
    let ours = pool.alloc_from(&stream, &[1u8; 300]).unwrap();
    let weight = weights.alloc_from(&stream, &[2u8; 300]).unwrap();
    let page = cache.alloc_from(&stream, &[3u8; 300]).unwrap();
    let granule = device.info().granule;
    pool.sleep(&["weights"], Contents::Saved(&host)).unwrap();
    assert_eq!(pool.tagged("weights").unwrap().stats().sleeping, granule);
    assert_eq!((pool.stats().sleeping, cache.stats().sleeping), (0, 0));
    assert_eq!(ours.download().unwrap(), [1; 300]);
    assert_eq!(page.download().unwrap(), [3; 300]);
    assert!(sleeps(weight.download()));
    let taken = host.stats().allocated.current;
    pool.sleep(&["cache"], Contents::Discarded).unwrap();
    assert_eq!(
        host.stats().allocated.current,
        taken,
        "nothing is kept of it"
    );
    assert!(pool.sleep(&["weighs"], Contents::Discarded).is_err());
    assert!(pool.wake(&["weights", "weighs"]).is_err());
    assert!(sleeps(weight.download()), "no part before an unknown one");
    pool.wake(&["cache"]).unwrap();
    assert_eq!(page.download().unwrap().len(), 300); // any contents
    assert!(sleeps(weight.download()));
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert!(sleeps(ours.download()) && sleeps(page.download()));
    assert_eq!(pool.wake(&[]).unwrap(), 3 * granule);
    assert_eq!(ours.download().unwrap(), [1; 300]);
    assert_eq!(weight.download().unwrap(), [2; 300]);
    [&pool, &weights, &cache].into_iter().for_each(whole);
}

fn nothing_runs_on_memory_that_sleeps(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let awake = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let mut there = awake.alloc_from(&stream, &[9u32; 1000]).unwrap();
    let mut buf = pool.alloc_from(&stream, &[5u32; 1000]).unwrap();
    let mut movable = pool.alloc_movable::<u32>(&stream, 1000).unwrap();
    movable.upload(&stream, &[6; 1000]).unwrap();
    let cached = pool.alloc(&stream, 4096).unwrap();
    drop(cached);
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert!(sleeps(buf.download()));
    assert!(sleeps(buf.view_mut().fill(&stream, 1)));
    assert!(sleeps(buf.view_mut().upload(&stream, &[1; 1000])));
    assert!(sleeps(there.view_mut().copy_from(&stream, buf.view())));
    assert!(sleeps(buf.view_mut().copy_from(&stream, there.view())));
    let mut staging = host.alloc::<u32>(1000).unwrap();
    assert!(sleeps(buf.view().download_into(&stream, &mut staging)));
    assert!(sleeps(buf.view_mut().upload_from(&stream, &staging)));
    let launched = stream.kernel("own").reads(buf.view()).launch(|_| ());
    assert!(sleeps(launched));
    assert!(sleeps(movable.hold(&stream)));
    assert!(sleeps(pool.hold_id(movable.id(), &stream)));
    assert!(sleeps(movable.download(&stream)));
    assert!(sleeps(movable.upload(&stream, &[0; 1000])));
    assert!(sleeps(movable.resize(&stream, 10_000)));
    assert!(sleeps(pool.compact(&Goal::Full)));
    for bytes in [4096, 100, 8 * MIB] {
        assert!(sleeps(pool.alloc(&stream, bytes)), "{bytes}");
    }
    let late = device.stream().unwrap();
    assert!(
        sleeps(pool.alloc(&late, 4096)),
        "on a stream met in its sleep"
    );
    assert_eq!(pool.trim(0).unwrap(), 0);
    whole(&pool);
    there.view_mut().fill(&stream, 8).unwrap(); // of a pool that is awake
    pool.wake(&[]).unwrap();
    assert_eq!(buf.download().unwrap(), [5; 1000]);
    assert_eq!(movable.download(&stream).unwrap(), [6; 1000]);
    there.view_mut().copy_from(&stream, buf.view()).unwrap();
    assert_eq!(there.download().unwrap(), [5; 1000]);
    drop(pool.alloc(&late, 4096).unwrap());
    whole(&pool);
}

fn a_graph_on_sleeping_memory_is_launched_once_that_wakes(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let mut buf = pool.alloc_from(&stream, &[0u32; 1000]).unwrap();
    let fours = pool.alloc_from(&stream, &[4u32; 1000]).unwrap();
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().copy_from(&stream, fours.view()).unwrap();
    let in_capture = pool.sleep(&[], Contents::Saved(&host));
    let graph = capture.end().unwrap();
    assert!(matches!(in_capture, Err(Error::Invalid { .. })));
    graph.launch(&stream).unwrap();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert!(sleeps(graph.launch(&stream)));
    pool.wake(&[]).unwrap();
    assert_eq!(buf.download().unwrap(), [4; 1000]);
    buf.view_mut().fill(&stream, 1).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(buf.download().unwrap(), [4; 1000]);
}

fn a_graph_is_launched_while_parts_sleep_that_it_does_not_use(device: &Device) {
    let pool = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let part = |tag| pool.tagged(tag).unwrap();
    let stream = device.stream().unwrap();
    // Memory of every part is allocated on the stream, so that each has a lane of it.
    let mut out = part("weights").alloc_zeroed::<u8>(&stream, 1000).unwrap();
    let kept = part("cache").alloc(&stream, 1000).unwrap();
    let mut declared = part("declared").alloc(&stream, 1000).unwrap();
    let dropped = part("dropped").alloc(&stream, 1000).unwrap();
    let mut grown = part("grown").grow_buf::<u8>(&stream, 1000).unwrap();
    grown.resize(1000).unwrap();
    let capture = stream.begin_capture().unwrap();
    out.view_mut().fill(&stream, 4).unwrap();
    drop(part("private").alloc(&stream, 1000).unwrap());
    drop((dropped, grown)); // an own kernel may have been captured that uses them
    declared.record_use(&stream).unwrap();
    let graph = capture.end().unwrap();
    for (tag, used) in [
        ("weights", true),
        ("private", true),
        ("dropped", true),
        ("grown", true),
        ("declared", true),
        ("cache", false),
    ] {
        pool.sleep(&[tag], Contents::Discarded).unwrap();
        assert_eq!(sleeps(graph.launch(&stream)), used, "{tag}");
        pool.wake(&[tag]).unwrap();
    }
    assert_eq!(out.download().unwrap(), [4; 1000]);
    drop((kept, declared));
}

fn a_pool_stays_awake_for_a_launch_that_another_library_is_about_to_queue(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let mut buf = pool.alloc_from(&stream, &[0u32; 1000]).unwrap();
    let fours = pool.alloc_from(&stream, &[4u32; 1000]).unwrap();
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().copy_from(&stream, fours.view()).unwrap();
    let graph = capture.end().unwrap();
    let launch = graph.memory().used_by(&stream).unwrap();
    assert!(pool.sleep(&[], Contents::Saved(&host)).is_err());
    // As that library would.
    graph.launch(&stream).unwrap();
    drop(launch);
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert!(sleeps(graph.memory().used_by(&stream)));
    pool.wake(&[]).unwrap();
    assert_eq!(buf.download().unwrap(), [4; 1000]);
}

fn blocks_dropped_asleep_do_not_come_back_and_the_rest_do(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let mut bufs: Vec<_> = (0..6u8)
        .map(|at| pool.alloc_from(&stream, &vec![at; 4 << 20]).unwrap())
        .collect();
    let slept = pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert_eq!(
        pool.sleep(&[], Contents::Discarded).unwrap(),
        0,
        "it sleeps"
    );
    for at in [4, 3, 0] {
        drop(bufs.remove(at));
    }
    whole(&pool);
    assert_eq!(pool.wake(&[]).unwrap(), slept / 2);
    assert_eq!(pool.wake(&[]).unwrap(), 0, "it is awake");
    whole(&pool);
    for (buf, at) in bufs.iter().zip([1, 2, 5]) {
        assert!(buf.download().unwrap().iter().all(|&it| it == at));
    }
}

fn growing_buffers_sleep_with_their_pool_and_come_back_where_they_were(device: &Device) {
    let watched = Sanitized::over(device);
    let device = &watched.device;
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let granule = device.info().granule as usize;
    let most = 40 * granule;
    let contents = |of: usize, len: usize| -> Vec<u8> {
        (0..len).map(|at| (at / 1000 * 7 + of) as u8).collect()
    };
    let mut growing: Vec<_> = (0..4)
        .map(|_| pool.grow_buf::<u8>(&stream, most).unwrap())
        .collect();
    let lens = [9 * granule + 5, 1, 3 * granule, 0];
    for (at, buf) in growing.iter_mut().enumerate() {
        buf.extend_from(&stream, &contents(at, lens[at])).unwrap();
    }
    let plain = pool.alloc_from(&stream, &[3u8; 100]).unwrap();
    let addrs: Vec<_> = growing.iter().map(|it| it.addr()).collect();
    for saved in [true, false] {
        let (before, held) = (pool.stats(), device.counts().bytes);
        assert_eq!(before.grown, 14 * granule as u64);
        let kept = match saved {
            true => Contents::Saved(&host),
            false => Contents::Discarded,
        };
        let released = pool.sleep(&[], kept).unwrap();
        whole(&pool);
        let asleep = pool.stats();
        assert_eq!(released, before.reserved.current);
        assert_eq!((asleep.reserved.current, asleep.grown), (0, 0));
        assert_eq!(asleep.sleeping, released);
        assert_eq!(device.counts().bytes, held - released, "the device has it");
        assert!(sleeps(growing[0].view().download(&stream)));
        assert!(sleeps(growing[1].view_mut().fill(&stream, 9)));
        assert!(sleeps(growing[2].extend_from(&stream, &vec![0; granule])));
        assert!(sleeps(growing[3].resize(1)));
        assert_eq!(growing[2].len(), lens[2]);
        assert_eq!(pool.wake(&[]).unwrap(), released);
        whole(&pool);
        let awake = pool.stats();
        assert_eq!((awake.grown, awake.sleeping), (before.grown, 0));
        assert_eq!(awake.reserved.current, before.reserved.current);
        for (at, buf) in growing.iter().enumerate() {
            assert_eq!((buf.addr(), buf.len()), (addrs[at], lens[at]));
            let there = buf.view().download(&stream).unwrap();
            assert!(!saved || there == contents(at, lens[at]), "buffer {at}");
        }
    }
    growing[2].resize(most).unwrap();
    growing[2].view_mut().fill(&stream, 8).unwrap();
    assert_eq!(growing[2].view().download(&stream).unwrap(), vec![8; most]);
    drop((growing, plain, pool, host, stream));
    watched.check().unwrap();
}

fn what_shrinks_or_goes_asleep_is_not_made_again(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let granule = device.info().granule as usize;
    let mut bufs: Vec<_> = (0..3)
        .map(|at| {
            let mut buf = pool.grow_buf::<u8>(&stream, 8 * granule).unwrap();
            buf.extend_from(&stream, &vec![at; 6 * granule]).unwrap();
            buf
        })
        .collect();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    drop(bufs.remove(2));
    bufs[0].resize(2 * granule).unwrap();
    whole(&pool);
    // No more than what is needed goes into the limit.
    pool.set_limit(Some(8 * granule as u64));
    assert_eq!(pool.wake(&[]).unwrap(), 8 * granule as u64);
    assert_eq!(pool.stats().grown, 8 * granule as u64);
    whole(&pool);
    assert_eq!(
        bufs[0].view().download(&stream).unwrap(),
        vec![0; 2 * granule]
    );
    assert_eq!(
        bufs[1].view().download(&stream).unwrap(),
        vec![1; 6 * granule]
    );
    pool.set_limit(None);
    bufs[0].extend_from(&stream, &vec![5; 6 * granule]).unwrap();
    let all = bufs[0].view().download(&stream).unwrap();
    assert!(all[..2 * granule].iter().all(|&it| it == 0));
    assert!(all[2 * granule..].iter().all(|&it| it == 5));
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    drop((bufs, pool));
    assert_eq!(host.stats().allocated.current, 0);
}

fn a_pool_made_without_sleep_does_not_sleep(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let refused = pool.sleep(&[], Contents::Discarded).unwrap_err();
    assert!(
        refused.to_string().contains("PoolConfig::sleeps"),
        "{refused}"
    );
    let stream = device.stream().unwrap();
    assert_eq!(
        pool.alloc_from(&stream, &[7u8])
            .unwrap()
            .download()
            .unwrap(),
        [7]
    );
}

fn a_pool_dropped_asleep_leaves_nothing(device: &Device) {
    let host = host(device);
    let stream = device.stream().unwrap();
    let pool = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let buf = pool.alloc_from(&stream, &vec![1u8; 5 << 20]).unwrap();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    drop((pool, buf));
    assert_eq!(host.stats().allocated.current, 0);
    let other = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let buf = other.alloc_from(&stream, &vec![2u8; 5 << 20]).unwrap();
    assert_eq!(buf.download().unwrap()[0], 2);
}

fn sleeps_of_many_sizes_use_the_same_host_memory(device: &Device) {
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    let stream = device.stream().unwrap();
    let mut most = 0;
    for size in 1..=31 {
        let block = pool.alloc(&stream, size * 2 * MIB).unwrap();
        most = most.max(pool.sleep(&[], Contents::Saved(&host)).unwrap());
        pool.wake(&[]).unwrap();
        drop(block);
        pool.trim(0).unwrap();
    }
    let held = host.stats().reserved.current;
    assert!(held <= 2 * most, "{held} bytes, of at most {most} at once");
}

fn what_the_host_has_no_room_for_stays_awake_as_it_was(device: &Device) {
    let pool = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let few = HostPool::new(device, HostPoolConfig::default().limit(3 << 20));
    let stream = device.stream().unwrap();
    let bufs = [1u8, 2].map(|it| pool.alloc_from(&stream, &vec![it; 2 << 20]).unwrap());
    let before = pool.stats().reserved.current;
    let outcome = pool.sleep(&[], Contents::Saved(&few));
    assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
    let stats = pool.stats();
    assert_eq!((stats.reserved.current, stats.sleeping), (before, 0));
    assert_eq!(few.stats().allocated.current, 0);
    for (buf, it) in bufs.iter().zip([1, 2]) {
        assert!(buf.download().unwrap().iter().all(|&byte| byte == it));
    }
    drop(pool.alloc(&stream, MIB).unwrap());
    whole(&pool);
}

fn a_pool_that_cannot_wake_sleeps_on(device: &Device) {
    let host = host(device);
    let config = small_handles().sleeps(true);
    let pool = Pool::new(device, config.limit(4 * device.info().granule)).unwrap();
    let stream = device.stream().unwrap();
    let granule = device.info().granule;
    let buf = pool
        .alloc_from(&stream, &vec![7u8; 3 * granule as usize])
        .unwrap();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    pool.set_limit(Some(2 * granule));
    for _ in 0..2 {
        let outcome = pool.wake(&[]);
        assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
        whole(&pool);
        let stats = pool.stats();
        assert_eq!((stats.reserved.current, stats.sleeping), (0, 3 * granule));
        assert!(sleeps(buf.download()));
    }
    pool.set_limit(Some(3 * granule));
    assert_eq!(pool.wake(&[]).unwrap(), 3 * granule);
    assert!(buf.download().unwrap().iter().all(|&byte| byte == 7));
}

fn code_of_a_kernel_cannot_put_to_sleep_what_it_is_given(device: &Device) {
    let pool = Pool::new(device, small_handles().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let mut buf = pool.alloc_from(&stream, &[1u32; 1000]).unwrap();
    let slept = stream
        .kernel("sleeps")
        .writes(buf.view_mut())
        .launch(|_| pool.sleep(&[], Contents::Discarded))
        .unwrap();
    assert!(matches!(slept, Err(Error::Invalid { what: "stream", .. })));
    assert_eq!(buf.download().unwrap(), [1; 1000]);
    pool.sleep(&[], Contents::Discarded).unwrap();
}

fn threads_meet_a_pool_awake_or_asleep_and_nothing_between(device: &Device) {
    let device = &common::for_threads(device);
    let (pool, host) = (
        Pool::new(device, small_handles().sleeps(true)).unwrap(),
        host(device),
    );
    // Also where one of the threads panics, so that the others end.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (over, used) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..3u32 {
            let (pool, over, used) = (&pool, &over, &used);
            let stream = device.stream().unwrap();
            let mut buf = pool.alloc_from(&stream, &[number; 300_000]).unwrap();
            scope.spawn(move || {
                let _ends = Ends(over);
                let (mut value, mut refused) = (number, 0);
                while !over.load(Ordering::SeqCst) {
                    match buf.view_mut().fill(&stream, value + 3) {
                        Ok(()) => value += 3,
                        outcome => {
                            assert!(sleeps(outcome));
                            refused += 1;
                        }
                    }
                    let block = pool.alloc(&stream, 1000 + u64::from(value % 7) * 100_000);
                    assert!(block.is_ok() || sleeps(block));
                    if let Ok(data) = buf.download() {
                        assert!(
                            data.iter().all(|&it| it == value),
                            "{value}, {refused} refused"
                        );
                    }
                    used.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let (grown, is_over) = (&pool, &over);
        let stream = device.stream().unwrap();
        scope.spawn(move || {
            let _ends = Ends(is_over);
            let step = 500_000;
            let mut buf = grown.grow_buf::<u32>(&stream, 12 * step).unwrap();
            let (mut count, mut anew) = (0, false);
            while !is_over.load(Ordering::SeqCst) {
                match count {
                    12 if anew => {
                        buf = grown.grow_buf(&stream, 12 * step).unwrap();
                        (count, anew) = (0, false);
                    }
                    12 => {
                        buf.resize(3 * step).unwrap();
                        (count, anew) = (3, true);
                    }
                    _ => match buf.extend_from(&stream, &vec![count as u32; step]) {
                        Ok(()) => count += 1,
                        outcome => assert!(sleeps(outcome)),
                    },
                }
                if let Ok(data) = buf.view().download(&stream) {
                    let mut each = data.iter().enumerate();
                    assert!(each.all(|(at, &it)| it as usize == at / step), "{count}");
                }
            }
        });
        let _ends = Ends(&over);
        let mut slept = 0;
        while slept < common::rounds(30) && !over.load(Ordering::SeqCst) {
            let before = used.load(Ordering::SeqCst);
            while used.load(Ordering::SeqCst) == before && !over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            match pool.sleep(&[], Contents::Saved(&host)) {
                Ok(_) => slept += 1,
                // On a loaded machine a call may take as long.
                Err(error) => assert!(error.to_string().contains("not returned for a second")),
            }
            whole(&pool);
            pool.wake(&[]).unwrap();
        }
    });
    whole(&pool);
}

#[test]
fn memory_that_another_pool_took_meanwhile_keeps_a_pool_asleep_until_it_comes_back() {
    let device = Device::host_with_capacity(32 * MIB).unwrap();
    let (pool, host) = (
        Pool::new(&device, small_handles().sleeps(true)).unwrap(),
        host(&device),
    );
    let stream = device.stream().unwrap();
    let buf = pool.alloc_from(&stream, &vec![7u8; 24 << 20]).unwrap();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    let other = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let theirs = other.alloc(&stream, 20 * MIB).unwrap();
    let held = device.counts().bytes;
    let outcome = pool.wake(&[]);
    assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
    assert_eq!(device.counts().bytes, held, "a part of it was kept");
    assert_eq!(pool.stats().sleeping, 24 * MIB);
    whole(&pool);
    drop(theirs);
    other.trim(0).unwrap();
    pool.wake(&[]).unwrap();
    assert!(buf.download().unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn movable_memory_of_a_part_that_sleeps_on_a_full_device_is_an_error() {
    let small = Device::host_with_capacity(8 * MIB).unwrap();
    let (device, watched) = Watched::over(&small);
    let pool = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let part = pool.tagged("weights").unwrap();
    let _block = part.alloc(&stream, MIB).unwrap();
    pool.sleep(&["weights"], Contents::Discarded).unwrap();
    let other = Pool::new(&device, small_handles()).unwrap();
    let _theirs = other.alloc(&stream, 8 * MIB).unwrap();
    // So that a request without end has one.
    watched.fail("create", 100, true);
    assert!(sleeps(part.alloc_movable::<u8>(&stream, 1000)));
    assert!(sleeps(part.compact(&Goal::Full)));
}

fn a_callback_under_pressure_may_put_another_part_to_sleep(device: &Device) {
    let host = host(device);
    let config = small_handles().sleeps(true);
    let pool = Pool::new(device, config.limit(4 * device.info().granule)).unwrap();
    let stream = device.stream().unwrap();
    let granule = device.info().granule;
    let cache = pool.tagged("cache").unwrap();
    let page = cache.alloc_from(&stream, &[3u8; 1000]).unwrap();
    let (family, of) = (pool.tagged("cache").unwrap(), host.clone());
    pool.on_pressure(move |_| {
        family.sleep(&[], Contents::Saved(&of)).unwrap();
        warpool::pool::Relief::Exhausted
    });
    let _all = pool.alloc(&stream, 4 * granule).unwrap();
    assert!(pool.alloc(&stream, granule).is_err());
    assert!(sleeps(page.download()));
    cache.wake(&[]).unwrap();
    assert_eq!(page.download().unwrap(), [3; 1000]);
}

on_every_device! {
    code_of_a_kernel_cannot_put_to_sleep_what_it_is_given,
    threads_meet_a_pool_awake_or_asleep_and_nothing_between,
    saved_memory_goes_to_the_device_and_comes_back_where_it_was_with_its_contents,
    a_sleep_returns_all_bytes_that_it_releases_idle_ones_too,
    queued_work_is_waited_for_before_memory_sleeps,
    a_tag_sleeps_alone_and_shares_no_handle_with_others,
    nothing_runs_on_memory_that_sleeps,
    a_graph_on_sleeping_memory_is_launched_once_that_wakes,
    a_graph_is_launched_while_parts_sleep_that_it_does_not_use,
    a_pool_stays_awake_for_a_launch_that_another_library_is_about_to_queue,
    blocks_dropped_asleep_do_not_come_back_and_the_rest_do,
    growing_buffers_sleep_with_their_pool_and_come_back_where_they_were,
    what_shrinks_or_goes_asleep_is_not_made_again,
    a_pool_made_without_sleep_does_not_sleep,
    a_pool_dropped_asleep_leaves_nothing,
    sleeps_of_many_sizes_use_the_same_host_memory,
    what_the_host_has_no_room_for_stays_awake_as_it_was,
    a_pool_that_cannot_wake_sleeps_on,
    a_callback_under_pressure_may_put_another_part_to_sleep,
}

on_the_simulated_device! {
    saved_memory_goes_to_the_device_and_comes_back_where_it_was_with_its_contents,
    queued_work_is_waited_for_before_memory_sleeps,
    a_tag_sleeps_alone_and_shares_no_handle_with_others,
    nothing_runs_on_memory_that_sleeps,
    a_graph_on_sleeping_memory_is_launched_once_that_wakes,
    a_graph_is_launched_while_parts_sleep_that_it_does_not_use,
    blocks_dropped_asleep_do_not_come_back_and_the_rest_do,
    growing_buffers_sleep_with_their_pool_and_come_back_where_they_were,
    what_shrinks_or_goes_asleep_is_not_made_again,
    a_pool_made_without_sleep_does_not_sleep,
    a_pool_dropped_asleep_leaves_nothing,
    sleeps_of_many_sizes_use_the_same_host_memory,
    what_the_host_has_no_room_for_stays_awake_as_it_was,
    a_pool_that_cannot_wake_sleeps_on,
    a_callback_under_pressure_may_put_another_part_to_sleep,
}

#[test]
fn a_pool_falls_asleep_while_a_stream_is_dropped() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let slept = Arc::new(Mutex::new(None));
    let (of, its) = (pool.clone(), Arc::clone(&slept));
    watched.after("stream_destroy", move || {
        let asleep = std::thread::spawn(move || of.sleep(&[], Contents::Discarded));
        *its.lock().unwrap() = Some(asleep.join().unwrap());
    });
    drop(stream);
    slept.lock().unwrap().take().unwrap().unwrap();
}

#[test]
fn a_host_call_that_wakes_a_pool_waits_for_no_thread_that_waits_for_its_stream() {
    let device = common::host();
    let pool = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let _block = pool.alloc_from(&stream, &[1u8; 1000]).unwrap();
    for wakes in [true, false] {
        let ((tell, told), its) = (mpsc::channel(), pool.clone());
        let work = move || {
            // The other thread waits for this call by then.
            std::thread::sleep(Duration::from_millis(100));
            let _ = tell.send(match wakes {
                true => its.wake(&[]),
                false => its.sleep(&[], Contents::Discarded),
            });
        };
        let backend = device.backend();
        backend.host_call(stream.raw(), Box::new(work)).unwrap();
        let of = pool.clone();
        let asleep = std::thread::spawn(move || of.sleep(&[], Contents::Discarded));
        let answer = told.recv_timeout(Duration::from_secs(20));
        let answer = answer.expect("each waits for the other");
        assert!(answer.unwrap_err().to_string().contains("host call"));
        asleep.join().unwrap().unwrap();
        pool.wake(&[]).unwrap();
    }
}

/// Has each use of `call` last until the next has begun, or for a while where none does.
fn overlap(watched: &Arc<Watched>, call: &'static str, begun: Option<mpsc::Sender<()>>) {
    let its = Arc::clone(watched);
    watched.after(call, move || {
        let (next, nexts) = mpsc::channel();
        overlap(&its, call, Some(next));
        drop(begun);
        let _ = nexts.recv_timeout(Duration::from_millis(100));
    });
}

/// Whether `pool` falls asleep while two threads do this again and again, each `call` of which lasts until the
/// other makes the next.
fn falls_asleep_beside(
    watched: &Arc<Watched>,
    call: &'static str,
    pool: &Pool,
    work: impl Fn(u8) + Sync,
) -> warpool::Result<u64> {
    overlap(watched, call, None);
    let over = AtomicBool::new(false);
    let slept = std::thread::scope(|scope| {
        for thread in 0..2 {
            let (over, work) = (&over, &work);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    work(thread);
                }
            });
        }
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let _ = tell.send(pool.sleep(&[], Contents::Discarded));
        });
        let slept = told.recv_timeout(Duration::from_secs(5));
        over.store(true, Ordering::SeqCst);
        slept
    });
    watched.after("nothing", || ());
    slept.expect("it waits for ever")
}

#[test]
fn a_pool_falls_asleep_beside_threads_that_always_give_memory_back() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let kept = pool.alloc(&streams[0], MIB).unwrap();
    let slept = falls_asleep_beside(&watched, "unmap", &pool, |thread| {
        match pool.alloc(&streams[usize::from(thread)], 4 * MIB) {
            Ok(block) => drop(block),
            refused => assert!(sleeps(refused)),
        }
        pool.trim(0).unwrap();
    });
    assert!(slept.unwrap() > 0);
    whole(&pool);
    pool.wake(&[]).unwrap();
    drop(kept);
}

#[test]
fn a_part_falls_asleep_beside_threads_that_always_upload_to_another() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, small_handles().sleeps(true)).unwrap();
    let (weights, cache) = (
        pool.tagged("weights").unwrap(),
        pool.tagged("cache").unwrap(),
    );
    let stream = device.stream().unwrap();
    let kept = cache.alloc(&stream, MIB).unwrap();
    let bufs = [(); 2].map(|()| Mutex::new(weights.alloc_typed::<u8>(&stream, 1000).unwrap()));
    let slept = falls_asleep_beside(&watched, "before_stream_sync", &cache, |thread| {
        let mut buf = bufs[usize::from(thread)].lock().unwrap();
        buf.view_mut().upload(&stream, &[thread; 1000]).unwrap();
    });
    assert!(slept.unwrap() > 0);
    drop(kept);
}
