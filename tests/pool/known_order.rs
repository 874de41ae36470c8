//! What the pool does not ask of the device, because the application already has.
//!
//! The device is watched: its calls are counted.

use crate::common;

use common::watched::Watched;
use common::{Gate, fill, on_every_device};
use warpool::{Device, Pool, PoolConfig, Stream};

const LIMIT: u64 = 64 << 20;
/// More than half of the limit: the second block must take the first one's memory.
const BYTES: u64 = 40 << 20;

on_every_device! {
    memory_of_another_stream_costs_one_wait_on_the_device,
    a_wait_that_the_application_made_is_not_made_again,
    a_wait_made_before_the_free_does_not_cover_it,
    a_wait_through_a_third_stream_counts,
    an_allocation_and_a_free_on_one_stream_make_no_device_call,
}

/// Frees a block on one stream, lets `application` do what it does, and takes the memory on the
/// other; gives the records and waits that the pool made.
fn handed_over(
    device: &Device,
    before_the_free: impl FnOnce(&Stream, &Stream),
    after_the_free: impl FnOnce(&Device, &Stream, &Stream),
) -> (u64, u64) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, PoolConfig::default().limit(LIMIT)).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, BYTES).unwrap();
    let addr = block.addr();
    let gate = Gate::close(&first);
    fill(&first, addr, 1, BYTES);
    before_the_free(&first, &second);
    drop(block);
    after_the_free(&device, &first, &second);
    let calls = || (watched.calls("event_record"), watched.calls("event_wait"));
    let before = calls();
    let taken = pool.alloc(&second, BYTES).unwrap();
    let made = (calls().0 - before.0, calls().1 - before.1);
    // Whoever waited: the second stream's work comes after the first one's.
    fill(&second, taken.addr(), 2, BYTES);
    assert!(
        !second.is_idle().unwrap(),
        "the second stream runs before the first is done"
    );
    gate.open();
    assert_eq!(common::read(&second, taken.addr() + BYTES - 1, 1), [2]);
    pool.check_invariants().unwrap();
    made
}

fn memory_of_another_stream_costs_one_wait_on_the_device(device: &Device) {
    assert_eq!(handed_over(device, |_, _| (), |_, _, _| ()), (1, 1));
}

fn a_wait_that_the_application_made_is_not_made_again(device: &Device) {
    let by_event = handed_over(
        device,
        |_, _| (),
        |device, first, second| {
            let event = device.event().unwrap();
            event.record(first).unwrap();
            second.wait(&event).unwrap();
        },
    );
    assert_eq!(by_event, (0, 0));
    let by_stream = handed_over(
        device,
        |_, _| (),
        |_, first, second| second.wait_stream(first).unwrap(),
    );
    assert_eq!(by_stream, (0, 0));
}

fn a_wait_made_before_the_free_does_not_cover_it(device: &Device) {
    let made = handed_over(
        device,
        |first, second| second.wait_stream(first).unwrap(),
        |_, _, _| (),
    );
    assert_eq!(made, (1, 1));
}

fn a_wait_through_a_third_stream_counts(device: &Device) {
    let made = handed_over(
        device,
        |_, _| (),
        |device, first, second| {
            let third = device.stream().unwrap();
            third.wait_stream(first).unwrap();
            second.wait_stream(&third).unwrap();
        },
    );
    assert_eq!(made, (0, 0));
}

fn an_allocation_and_a_free_on_one_stream_make_no_device_call(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, PoolConfig::default().limit(LIMIT)).unwrap();
    let stream = device.stream().unwrap();
    for bytes in [64, 4096, 1 << 20, BYTES] {
        drop(pool.alloc(&stream, bytes).unwrap());
        let calls = || -> u64 {
            [
                "create",
                "map",
                "unmap",
                "release",
                "event_record",
                "event_wait",
                "event_query",
            ]
            .iter()
            .chain(&["event_sync", "stream_sync", "stream_query", "event_create"])
            .map(|call| watched.calls(call))
            .sum()
        };
        let before = calls();
        for _ in 0..common::rounds(100) {
            drop(pool.alloc(&stream, bytes).unwrap());
        }
        assert_eq!(calls(), before, "{bytes} bytes");
    }
}
