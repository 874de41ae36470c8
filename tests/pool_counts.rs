//! What the hot path does not do, counted: calls of the device and of the heap.
//!
//! One test alone in its binary, since the heap's counts are the process's.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::watched::Watched;
use warpool::{Device, Pool, PoolConfig};

/// The system's heap, counted by thread.
struct Counted;

thread_local! {
    static HEAP_CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending counts no more.
    let _ = HEAP_CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's heap as it came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static HEAP: Counted = Counted;

fn heap_calls() -> u64 {
    HEAP_CALLS.with(Cell::get)
}

#[test]
fn the_heap_is_counted() {
    let before = heap_calls();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(heap_calls() - before, 2);
}

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
    let mut live = Vec::with_capacity(1000);
    let made = counted(&watched, || {
        live.extend((0..1000).map(|i| pool.alloc(&stream, 512 * (1 + i % 7)).unwrap()));
        live.clear();
    });
    assert_eq!(made, (0, 0), "a live set of a thousand");
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

#[test]
fn the_hot_path_makes_no_device_call_and_no_heap_call() {
    for device in common::devices() {
        common::leaving_nothing(device, |device| {
            memory_freed_on_a_stream_is_allocated_again_on_it_without_a_device_or_heap_call(device);
            memory_handed_from_stream_to_stream_costs_no_heap_call_but_for_the_wait(device);
        });
    }
}
