//! Who gets freed memory, and behind what.

use super::common::stamps::Stamps;
use super::common::watched::Watched;
use super::common::{BackendOf, Gate, is_held, on_every_device};
use super::{limited, small_handles, whole};
use warpool::{Device, Pool, Stream};

on_every_device! {
    a_block_freed_on_one_stream_reaches_another_behind_a_wait,
    a_block_whose_work_is_known_to_be_done_reaches_another_stream_without_a_wait,
    a_pool_asks_how_far_a_marked_stream_is_before_it_grows,
    a_stream_gets_its_own_memory_back_while_its_work_is_pending,
    at_most_one_record_and_one_wait_a_cross_stream_epoch,
    a_run_of_blocks_of_several_streams_is_taken_behind_all_of_them,
    a_declared_use_is_waited_for_by_who_has_the_memory_next,
    a_stream_does_not_wait_for_the_uses_of_what_it_frees_while_there_is_other_memory,
    what_streams_still_use_is_waited_for_before_the_pool_holds_more_than_was_live_and_its_slack,
    what_streams_still_use_is_free_once_they_are_known_to_be_done,
    what_streams_still_use_outlasts_the_stream_that_freed_it_and_the_pool,
    a_declared_use_is_waited_for_by_what_a_shrink_gives_back,
    a_block_that_captured_work_uses_is_not_shrunk,
    a_block_freed_on_its_consumer_is_there_for_the_consumer_at_once,
    pending_memory_is_left_alone_where_waits_are_switched_off,
    memory_that_is_done_is_no_sooner_another_streams_where_that_is_switched_off,
    memory_mapped_elsewhere_is_no_sooner_another_streams_where_done_work_does_not_count,
    a_request_waits_for_no_more_streams_than_its_bytes_need,
    an_event_asked_about_while_it_is_recorded_again_says_nothing_of_its_stream_before,
}

fn a_block_freed_on_one_stream_reaches_another_behind_a_wait(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 2);
    let bytes = 2 * device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, bytes).unwrap();
    let addr = block.addr();
    let gate = Gate::close(&first);
    stamps.stamp(&first, &block, 1);
    stamps.verify(&first, &block, 1);
    drop(block);
    let block = pool.alloc(&second, bytes).unwrap();
    assert_eq!(block.addr(), addr, "there is no other memory");
    stamps.stamp(&second, &block, 2);
    stamps.verify(&second, &block, 2);
    assert!(!second.is_idle().unwrap(), "the second stream runs ahead");
    assert_eq!(pool.stats().steps.waits, 1);
    gate.open();
    second.synchronize().unwrap();
    stamps.assert_clean(device, 2 * bytes);
    whole(&pool);
}

fn a_block_whose_work_is_known_to_be_done_reaches_another_stream_without_a_wait(device: &Device) {
    let pool = limited(device, 2);
    let bytes = 2 * device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    drop(pool.alloc(&first, bytes).unwrap());
    first.synchronize().unwrap();
    drop(pool.alloc(&second, bytes).unwrap());
    let steps = pool.stats().steps;
    assert_eq!((steps.waits, steps.stream_wait), (0, 0));
    assert_eq!(steps.ready_elsewhere, 1);
}

fn a_pool_asks_how_far_a_marked_stream_is_before_it_grows(device: &Device) {
    let config = small_handles().reuse(true, false).cache_bytes(0);
    let pool = Pool::new(device, config).unwrap();
    let granule = device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    // The last one stays in the stream's cache.
    drop([(); 3].map(|()| pool.alloc(&first, granule).unwrap()));
    // It marks the stream where it is.
    device.stream().unwrap().wait_stream(&first).unwrap();
    // Past the crate, which does not know that the work is done.
    device.backend().stream_sync(first.raw()).unwrap();
    drop(pool.alloc(&second, 2 * granule).unwrap());
    let stats = pool.stats();
    assert_eq!(stats.steps.ready_elsewhere, 1);
    assert_eq!(stats.reserved.current, 3 * granule);
}

fn a_stream_gets_its_own_memory_back_while_its_work_is_pending(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let bytes = device.info().granule;
    drop(pool.alloc(&stream, bytes).unwrap());
    let gate = Gate::close(&stream);
    let mut addresses = Vec::new();
    for seed in 0..20 {
        let block = pool.alloc(&stream, bytes).unwrap();
        addresses.push(block.addr());
        stamps.stamp(&stream, &block, seed);
        stamps.verify(&stream, &block, seed);
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1, "the same memory again and again");
    gate.open();
    stream.synchronize().unwrap();
    stamps.assert_clean(device, 20 * bytes);
}

fn at_most_one_record_and_one_wait_a_cross_stream_epoch(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = limited(&device, 16);
    let bytes = device.info().granule / 2;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    for epoch in 1..4 {
        let blocks: Vec<_> = (0..32)
            .map(|_| pool.alloc(&first, bytes).unwrap())
            .collect();
        let gate = Gate::close(&first);
        drop(blocks);
        let calls = || (watched.calls("event_record"), watched.calls("event_wait"));
        let before = calls();
        let blocks: Vec<_> = (0..32)
            .map(|_| pool.alloc(&second, bytes).unwrap())
            .collect();
        let made = (calls().0 - before.0, calls().1 - before.1);
        assert_eq!(made, (1, 1), "epoch {epoch}");
        gate.open();
        drop(blocks);
        second.synchronize().unwrap();
    }
    whole(&pool);
}

fn a_run_of_blocks_of_several_streams_is_taken_behind_all_of_them(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 3);
    let granule = device.info().granule;
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let blocks = [0, 1, 2].map(|i: usize| pool.alloc(&streams[i], granule).unwrap());
    // One gate at a time: a driver may run all host calls on one thread.
    let gate = Gate::close(&streams[0]);
    streams[1].wait_stream(&streams[0]).unwrap();
    streams[2].wait_stream(&streams[0]).unwrap();
    for (stream, block) in streams.iter().zip(&blocks) {
        stamps.stamp(stream, block, block.addr());
        stamps.verify(stream, block, block.addr());
    }
    drop(blocks);
    let taker = device.stream().unwrap();
    let all = pool.alloc(&taker, 3 * granule).unwrap();
    stamps.stamp(&taker, &all, 7);
    stamps.verify(&taker, &all, 7);
    assert!(!taker.is_idle().unwrap());
    assert_eq!(pool.stats().steps.waits, 3, "one a stream");
    gate.open();
    taker.synchronize().unwrap();
    stamps.assert_clean(device, 6 * granule);
    whole(&pool);
}

fn a_declared_use_is_waited_for_by_who_has_the_memory_next(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 1);
    let bytes = device.info().granule;
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc(&home, bytes).unwrap();
    stamps.stamp(&home, &block, 1);
    other.wait_stream(&home).unwrap();
    let gate = Gate::close(&other);
    block.record_use(&other).unwrap();
    // Queued after the declaration and before the free, which is what counts.
    stamps.verify(&other, &block, 1);
    drop(block);
    let block = pool.alloc(&home, bytes).unwrap();
    stamps.stamp(&home, &block, 2);
    assert!(!home.is_idle().unwrap(), "the home stream runs ahead");
    gate.open();
    home.synchronize().unwrap();
    stamps.assert_clean(device, bytes);
}

/// A block of the home stream that `other` uses, and goes on to behind the gate, and which is dropped.
fn dropped_under_its_use(pool: &Pool, home: &Stream, other: &Stream, stamps: &Stamps) -> Gate {
    let mut block = pool.alloc(home, pool.device().info().granule).unwrap();
    stamps.stamp(home, &block, 1);
    other.wait_stream(home).unwrap();
    let gate = Gate::close(other);
    block.record_use(other).unwrap();
    stamps.verify(other, &block, 1);
    gate
}

fn a_stream_does_not_wait_for_the_uses_of_what_it_frees_while_there_is_other_memory(
    device: &Device,
) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 2);
    let bytes = device.info().granule;
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let gate = dropped_under_its_use(&pool, &home, &other, &stamps);
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.active.current), (0, bytes));
    let second = pool.alloc(&home, bytes).unwrap();
    stamps.stamp(&home, &second, 2);
    home.synchronize().unwrap();
    assert!(!other.is_idle().unwrap(), "the home stream has waited");
    assert_eq!(pool.stats().steps.waits, 0);
    // There is no third: now it waits.
    let third = pool.alloc(&home, bytes).unwrap();
    stamps.stamp(&home, &third, 3);
    assert!(!home.is_idle().unwrap(), "the home stream runs ahead");
    assert_eq!(pool.stats().steps.waits, 1);
    gate.open();
    home.synchronize().unwrap();
    stamps.assert_clean(device, bytes);
    whole(&pool);
}

/// A stream far behind would else have the pool grow for as long as others free what it uses.
fn what_streams_still_use_is_waited_for_before_the_pool_holds_more_than_was_live_and_its_slack(
    device: &Device,
) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let mut fewer = u64::MAX;
    for slack in [0, 6] {
        let (live, rounds) = (4 * granule, 20);
        let config = small_handles().overlap_bytes(0);
        let config = config.slack((slack * granule) as f64 / live as f64);
        let pool = Pool::new(device, config).unwrap();
        let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
        let gate = Gate::close(&other);
        for round in 0..rounds {
            let large = pool.alloc(&home, 3 * granule).unwrap();
            let mut part = pool.alloc(&home, granule).unwrap();
            stamps.stamp(&home, &part, round);
            other.wait_stream(&home).unwrap();
            part.record_use(&other).unwrap();
            stamps.verify(&other, &part, round);
            drop(part);
            drop(large);
        }
        let (held, waits) = (pool.stats().reserved.peak, pool.stats().steps.waits);
        assert!(held <= live + slack * granule + granule, "{slack}: {held}");
        assert!(waits > 0 && waits < fewer, "{slack}: {waits}");
        fewer = waits;
        gate.open();
        for stream in [&home, &other] {
            stream.synchronize().unwrap();
        }
        whole(&pool);
    }
    stamps.assert_clean(device, 40 * granule);
}

fn what_streams_still_use_is_free_once_they_are_known_to_be_done(device: &Device) {
    let stamps = Stamps::new(device);
    let bytes = device.info().granule;
    for (asks, thirds) in [(false, false), (false, true), (true, false)] {
        let pool = limited(device, 1);
        let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
        let third = device.stream().unwrap();
        let gate = dropped_under_its_use(&pool, &home, &other, &stamps);
        gate.open();
        other.synchronize().unwrap();
        // For the home stream at once, and for others once its own work is done too.
        home.synchronize().unwrap();
        if asks {
            assert_eq!(pool.trim(0).unwrap(), bytes);
            assert_eq!(pool.stats().active.current, 0);
        }
        let stream = if thirds { &third } else { &home };
        let again = pool.alloc(stream, bytes).unwrap();
        stamps.stamp(stream, &again, 2);
        stream.synchronize().unwrap();
        assert_eq!(pool.stats().steps.waits, 0);
        whole(&pool);
    }
    stamps.assert_clean(device, 3 * bytes);
}

fn what_streams_still_use_outlasts_the_stream_that_freed_it_and_the_pool(device: &Device) {
    let stamps = Stamps::new(device);
    let bytes = device.info().granule;
    for closes in [false, true] {
        let pool = limited(device, 1);
        let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
        let gate = dropped_under_its_use(&pool, &home, &other, &stamps);
        drop(home);
        if closes {
            // Whose end waits for the work of its streams, and so for what they were made to wait for.
            gate.open();
            drop(pool);
        } else {
            let third = device.stream().unwrap();
            let again = pool.alloc(&third, bytes).unwrap();
            stamps.stamp(&third, &again, 2);
            assert!(!third.is_idle().unwrap(), "the third stream runs ahead");
            gate.open();
            third.synchronize().unwrap();
            whole(&pool);
        }
        other.synchronize().unwrap();
    }
    stamps.assert_clean(device, 2 * bytes);
}

fn a_block_freed_on_its_consumer_is_there_for_the_consumer_at_once(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 1);
    let bytes = device.info().granule;
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&producer, bytes).unwrap();
    let addr = block.addr();
    stamps.stamp(&producer, &block, 1);
    consumer.wait_stream(&producer).unwrap();
    stamps.verify(&consumer, &block, 1);
    block.free_on(&consumer).unwrap();
    let block = pool.alloc(&consumer, bytes).unwrap();
    assert_eq!(block.addr(), addr);
    stamps.stamp(&consumer, &block, 2);
    stamps.verify(&consumer, &block, 2);
    assert_eq!(pool.stats().steps.waits, 0);
    consumer.synchronize().unwrap();
    stamps.assert_clean(device, 2 * bytes);
}

fn pending_memory_is_left_alone_where_waits_are_switched_off(device: &Device) {
    let pool = Pool::new(device, small_handles().reuse(true, false)).unwrap();
    let bytes = 4 * device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, bytes).unwrap();
    let gate = Gate::close(&first);
    drop(block);
    let block = pool.alloc(&second, bytes).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.steps.waits, stats.steps.steal), (0, 0));
    assert_eq!(stats.reserved.current, 2 * bytes);
    assert!(second.is_idle().unwrap());
    drop(block);
    gate.open();
}

fn memory_that_is_done_is_no_sooner_another_streams_where_that_is_switched_off(device: &Device) {
    let granule = device.info().granule;
    let config = small_handles().limit(2 * granule).reuse(false, true);
    let pool = Pool::new(device, config).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    drop(pool.alloc(&first, 2 * granule).unwrap());
    first.synchronize().unwrap();
    let block = pool.alloc(&second, granule).unwrap();
    let steps = pool.stats().steps;
    assert_eq!((steps.ready_elsewhere, steps.stream_wait), (0, 1));
    // What the stream has waited for is its own from then on, by the same event.
    let more = pool.alloc(&second, granule).unwrap();
    assert!(pool.stats().steps.waits <= 1);
    drop((block, more));
    whole(&pool);
}

fn memory_mapped_elsewhere_is_no_sooner_another_streams_where_done_work_does_not_count(
    device: &Device,
) {
    for opportunistic in [true, false] {
        let granule = device.info().granule;
        let config = small_handles().reuse(opportunistic, true).cache_bytes(0);
        let pool = Pool::new(device, config.overlap_bytes(0).limit(5 * granule)).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let blocks = [(); 5].map(|()| pool.alloc(&first, granule).unwrap());
        let [one, kept, two, more, three] = blocks;
        drop((one, two, three));
        first.synchronize().unwrap();
        // Of its three handles half a one is left.
        let large = pool.alloc(&first, 2 * granule + granule / 2).unwrap();
        assert!(pool.stats().steps.steal >= 2);
        let small = pool.alloc(&second, granule / 2).unwrap();
        assert_eq!(pool.stats().steps.waits, u64::from(!opportunistic));
        drop((kept, more, large, small));
        whole(&pool);
    }
}

fn a_request_waits_for_no_more_streams_than_its_bytes_need(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 3);
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let [first, second, asking] = &streams[..] else {
        unreachable!("three streams");
    };
    let one = pool.alloc(first, granule).unwrap();
    let two = pool.alloc(second, 2 * granule).unwrap();
    let (one_addr, two_addr) = (one.addr(), two.addr());
    let (early, late) = (Gate::close(first), Gate::close(second));
    drop((one, two));
    let block = pool.alloc(asking, granule).unwrap();
    assert_eq!(block.addr(), one_addr, "the hole that is just enough");
    assert_eq!(pool.stats().steps.waits, 1);
    assert!(!asking.is_idle().unwrap(), "it waits for the first stream");
    early.open();
    asking.synchronize().unwrap();
    assert!(!second.is_idle().unwrap(), "and for no other");
    let rest = pool.alloc(asking, 2 * granule).unwrap();
    assert_eq!(rest.addr(), two_addr);
    assert_eq!(pool.stats().steps.waits, 2);
    assert!(!asking.is_idle().unwrap(), "now it waits for the second");
    late.open();
    asking.synchronize().unwrap();
    drop((block, rest));
    whole(&pool);
}

fn a_declared_use_is_waited_for_by_what_a_shrink_gives_back(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let streams = [0; 3].map(|_| device.stream().unwrap());
    let [home, second, third] = &streams;
    let mut block = pool.alloc(home, 4 * granule).unwrap();
    for stream in [second, third] {
        stream.wait_stream(home).unwrap();
        block.record_use(stream).unwrap();
    }
    stamps.stamp(second, &block, 1);
    third.wait_stream(second).unwrap();
    let gates = [second, third].map(Gate::close);
    stamps.verify(second, &block, 1);
    stamps.verify(third, &block, 1);
    block.shrink(granule).unwrap();
    // The home stream has the tail at once, another behind it.
    let tail = pool.alloc(home, 3 * granule).unwrap();
    assert_eq!(
        tail.addr(),
        block.addr() + granule,
        "there is no other memory"
    );
    stamps.stamp(home, &tail, 2);
    stamps.verify(home, &tail, 2);
    assert!(is_held(home), "the home stream runs ahead");
    for gate in gates {
        gate.open();
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    stamps.assert_clean(device, 2 * 4 * granule + 3 * granule);
    whole(&pool);
}

fn a_block_that_captured_work_uses_is_not_shrunk(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    for captured in [&home, &other] {
        let mut block = pool.alloc(&home, 4 * granule).unwrap();
        block.record_use(&other).unwrap();
        let capture = captured.begin_capture().unwrap();
        let refused = block.shrink(granule).unwrap_err();
        assert!(
            matches!(refused, warpool::Error::Invalid { .. }),
            "{refused}"
        );
        assert_eq!(
            (block.bytes(), block.capacity()),
            (4 * granule, 4 * granule)
        );
        drop(capture);
        block.shrink(granule).unwrap();
        whole(&pool);
    }
}

fn an_event_asked_about_while_it_is_recorded_again_says_nothing_of_its_stream_before(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let pool = limited(&device, 2);
    let bytes = 2 * device.info().granule;
    let [busy, idle] = [(); 2].map(|()| device.stream().unwrap());
    let event = std::sync::Arc::new(device.event().unwrap());
    let gate = Gate::close(&busy);
    drop(pool.alloc(&busy, bytes).unwrap());
    event.record(&busy).unwrap();
    let asked = std::sync::Arc::clone(&event);
    // The driver has the new record by then, and the crate has not taken note of it.
    watched.after("event_record", move || while !asked.is_done().unwrap() {});
    event.record(&idle).unwrap();
    assert!(watched.was_hooked());
    let block = pool.alloc(&idle, bytes).unwrap();
    assert_eq!(pool.stats().steps.waits, 1, "it is taken as done");
    gate.open();
    drop(block);
    whole(&pool);
}
