//! What the hot path does not do, counted: calls of the device and of the heap.
//!
//! The heap is counted by thread, so tests beside these change nothing.

use crate::common;

use crate::heap_calls::heap_calls;
use common::watched::Watched;
#[cfg(feature = "convert")]
use warpool::ViewMut;
#[cfg(feature = "convert")]
use warpool::convert::{Rounding, convert};
use warpool::{Device, Pool, PoolConfig};

/// Runs `pairs` once to warm up and then counts what it calls: (the device, the heap).
fn counted(watched: &Watched, mut pairs: impl FnMut()) -> (u64, u64) {
    pairs();
    let before = (watched.all_calls(), heap_calls());
    for _ in 0..10 {
        pairs();
    }
    // The heap first: asking the watch uses it.
    let heap = heap_calls() - before.1;
    (watched.all_calls() - before.0, heap)
}

fn memory_freed_on_a_stream_is_allocated_again_on_it_without_a_device_or_heap_call(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let sizes = [1, 256, 4096, 70_000, 1 << 20, (3 << 20) + 1, 40 << 20];
    for bytes in sizes {
        let made = counted(&watched, || {
            for _ in 0..100 {
                drop(pool.alloc(&stream, bytes).unwrap());
            }
        });
        assert_eq!(made, (0, 0), "{bytes} bytes");
    }
    let roomy = PoolConfig::default().cache_bytes(1 << 20);
    let roomy = Pool::new(&device, roomy).unwrap();
    for (pool, blocks) in [(&pool, 100), (&roomy, 400)] {
        let mut live = Vec::with_capacity(400);
        let made = counted(&watched, || {
            live.extend((0..blocks).map(|i| pool.alloc(&stream, 512 * (1 + i % 7)).unwrap()));
            live.clear();
        });
        assert_eq!(made, (0, 0), "a live set of {blocks}");
    }
}

fn memory_handed_from_stream_to_stream_costs_no_heap_call_but_for_the_wait(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let made = counted(&watched, || {
        for _ in 0..100 {
            let block = pool.alloc(&producer, 4096).unwrap();
            block.free_on(&producer).unwrap();
        }
    });
    assert_eq!(made, (0, 0), "freed where it was allocated");
    // The consumer gives back what it got: no order is needed, since nothing used the blocks.
    let made = counted(&watched, || {
        for _ in 0..100 {
            let block = pool.alloc(&producer, 4096).unwrap();
            block.free_on(&consumer).unwrap();
            let block = pool.alloc(&consumer, 4096).unwrap();
            block.free_on(&producer).unwrap();
        }
    });
    assert_eq!(made, (0, 0), "freed elsewhere");
}

#[cfg(feature = "convert")]
fn a_typed_buffer_of_one_stream_costs_no_heap_call_and_no_device_call_but_launches(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let event = device.event().unwrap();
    let mut launches = 0;
    let mut convert_some = |rounds: u64| {
        let src = pool.alloc_typed::<f32>(&home, 256).unwrap();
        let mut dst = pool.alloc_typed::<half::f16>(&home, 256).unwrap();
        for round in 0..rounds {
            let (from, into) = (src.view(), dst.view_mut());
            let whole = round % 2 == 0;
            let (from, into) = match whole {
                true => (from, into),
                false => (from.slice(9..30).unwrap(), into.slice(9..30).unwrap()),
            };
            convert(&home, from, into, Rounding::Nearest).unwrap();
        }
        launches += rounds;
    };
    convert_some(10);
    // A work queue may allocate: what launches take from the heap is not counted here, but by views
    // of addresses beside.
    let before = (watched.all_calls(), watched.calls("launch"));
    convert_some(100);
    let made = (
        watched.all_calls() - before.0,
        watched.calls("launch") - before.1,
    );
    assert_eq!(made, (100, 100), "calls, launches");
    let made = counted(&watched, || {
        for _ in 0..100 {
            drop(pool.alloc_typed::<f32>(&home, 1000).unwrap());
        }
    });
    assert_eq!(made, (0, 0), "a buffer made and dropped");
    // Ticks that go on for another's sake change nothing.
    let mut src = pool.alloc_typed::<f32>(&home, 256).unwrap();
    let heap = |src: &mut warpool::PoolBuf<f32>| {
        let before = heap_calls();
        let kernel = || home.kernel("none");
        kernel().writes(src.view_mut()).launch(|_| ()).unwrap();
        let own = heap_calls() - before;
        let before = heap_calls();
        // SAFETY: nothing is launched.
        let bare = unsafe { ViewMut::<f32>::from_raw(src.addr(), 256).unwrap() };
        kernel().writes(bare).launch(|_| ()).unwrap();
        own - (heap_calls() - before)
    };
    for _ in 0..8 {
        event.record(&home).unwrap();
        assert_eq!(heap(&mut src), 0, "beside the same without a log");
    }
    other.synchronize().unwrap();
}

#[test]
fn the_hot_path_makes_no_device_call_and_no_heap_call() {
    for device in common::devices() {
        common::leaving_nothing(device, |device| {
            memory_freed_on_a_stream_is_allocated_again_on_it_without_a_device_or_heap_call(device);
            memory_handed_from_stream_to_stream_costs_no_heap_call_but_for_the_wait(device);
            #[cfg(feature = "convert")]
            a_typed_buffer_of_one_stream_costs_no_heap_call_and_no_device_call_but_launches(device);
        });
    }
}
