//! The checker of stream order: what it reports, what it does not, and what it costs.

use crate::common;

use crate::common::BackendOf;
use common::watched::Watched;
use common::{Memory, fill};
use std::sync::Arc;
use warpool::device::sim::SimConfig;
use warpool::device::{Access, Launch, Note};
use warpool::driver::abi;
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::sanitize::{Fault, Report, Sanitizer};
use warpool::{Device, Pool, PoolConfig, Stream};

const MIB: u64 = 1 << 20;

/// What may order two streams' work.
type Between<'a> = &'a dyn Fn(&Stream, &Stream);

/// Runs `case` on the host device and on simulated ones, with bytes and without; each time it must
/// find the same faults.
fn everywhere(case: impl Fn(&Device)) -> Vec<Report> {
    let sim = SimConfig::default();
    let devices = [
        Device::host().unwrap(),
        Device::sim(&sim).unwrap(),
        Device::sim(&sim.without_bytes()).unwrap(),
    ];
    let mut seen: Vec<Vec<Report>> = Vec::new();
    for device in devices {
        let (watched, sanitizer) = Sanitizer::over(&device);
        case(&watched);
        drop(watched);
        seen.push(sanitizer.reports());
    }
    let faults =
        |reports: &Vec<Report>| -> Vec<Fault> { reports.iter().map(|r| r.fault).collect() };
    assert_eq!(faults(&seen[0]), faults(&seen[1]));
    assert_eq!(faults(&seen[0]), faults(&seen[2]));
    seen.swap_remove(0)
}

fn faults(case: impl Fn(&Device)) -> Vec<Fault> {
    everywhere(case).iter().map(|report| report.fault).collect()
}

fn two(device: &Device) -> (Stream, Stream) {
    (device.stream().unwrap(), device.stream().unwrap())
}

/// Two streams write the same memory; `between` may order them.
fn two_writes(device: &Device, between: impl Fn(&Stream, &Stream)) {
    let memory = Memory::new(device, 4096);
    let (first, second) = two(device);
    fill(&first, memory.addr, 1, 100);
    between(&first, &second);
    fill(&second, memory.addr + 99, 2, 100);
    first.synchronize().unwrap();
    second.synchronize().unwrap();
}

#[test]
fn two_writes_that_nothing_orders_are_reported_with_both_sides_and_the_missing_wait() {
    let device = Device::host().unwrap();
    let (watched, sanitizer) = Sanitizer::over(&device);
    let memory = Memory::new(&watched, 4096);
    let (first, second) = two(&watched);
    first.set_name("upload");
    fill(&first, memory.addr, 1, 100);
    fill(&second, memory.addr + 99, 2, 100);
    let report = *sanitizer.check().unwrap_err();
    assert_eq!(report.fault, Fault::Race);
    assert_eq!(report.range, memory.addr + 99..memory.addr + 199);
    let party = report.first.as_ref().unwrap();
    assert_eq!(
        (party.stream, report.second.stream),
        (first.raw(), second.raw())
    );
    assert_eq!(
        (party.what.as_str(), report.second.what.as_str()),
        ("fill", "fill")
    );
    let text = report.to_string();
    assert!(
        text.contains("record an event on stream `upload` behind fill"),
        "{text}"
    );
    first.synchronize().unwrap();
    second.synchronize().unwrap();
    assert_eq!(sanitizer.found(), 1);
    sanitizer.clear();
    sanitizer.check().unwrap();
}

#[test]
fn whatever_orders_two_writes_silences_it() {
    assert_eq!(
        faults(|device| two_writes(device, |_, _| ())),
        [Fault::Race]
    );
    let by_event = |first: &Stream, second: &Stream| {
        let event = first.device().event().unwrap();
        event.record(first).unwrap();
        second.wait(&event).unwrap();
    };
    let by_a_third = |first: &Stream, second: &Stream| {
        let third = first.device().stream().unwrap();
        third.wait_stream(first).unwrap();
        second.wait_stream(&third).unwrap();
    };
    let by_asking = |first: &Stream, _: &Stream| while !first.is_idle().unwrap() {};
    let by_a_host_call = |first: &Stream, _: &Stream| {
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || tell.send(()).unwrap());
        first
            .device()
            .backend()
            .host_call(first.raw(), work)
            .unwrap();
        if first.device().info().kind == warpool::device::DeviceKind::Sim {
            first.synchronize().unwrap();
        }
        told.recv().unwrap();
    };
    let orders: [Between; 5] = [
        &by_event,
        &by_a_third,
        &|first, _| first.synchronize().unwrap(),
        &by_a_host_call,
        &|first, second| second.wait_stream(first).unwrap(),
    ];
    for order in orders {
        assert_eq!(faults(|device| two_writes(device, order)), []);
    }
    // Asking never ends where the schedule never goes on.
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    two_writes(&watched, by_asking);
    sanitizer.check().unwrap();
}

#[test]
fn a_time_between_two_events_tells_that_both_are_done() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let events = [watched.timing_event(), watched.timing_event()].map(Result::unwrap);
    two_writes(&watched, |first, _| {
        events.iter().for_each(|event| event.record(first).unwrap());
        while events[1].elapsed_ns(&events[0]).is_err() {}
    });
    sanitizer.check().unwrap();
}

/// The host goes on as soon as it is told, while the call that told it is still at work.
#[test]
fn what_a_host_call_tells_orders_two_writes_before_the_call_has_ended() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    two_writes(&watched, |first, _| {
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || {
            tell.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
        let backend = first.device().backend();
        backend.host_call(first.raw(), work).unwrap();
        told.recv().unwrap();
    });
    sanitizer.check().unwrap();
}

#[test]
fn a_wait_the_wrong_way_round_or_too_early_does_not() {
    let wrong: [Between; 3] = [
        &|first, second| first.wait_stream(second).unwrap(),
        &|first, second| {
            let event = first.device().event().unwrap();
            second.wait(&event).unwrap();
            event.record(first).unwrap();
        },
        &|_, second| second.synchronize().unwrap(),
    ];
    for order in wrong {
        assert_eq!(faults(|device| two_writes(device, order)), [Fault::Race]);
    }
}

#[test]
fn a_stream_does_not_know_what_one_before_it_has_waited_for() {
    let found = faults(|device| {
        let memory = Memory::new(device, 4096);
        let (first, gone) = two(device);
        fill(&first, memory.addr, 1, 100);
        gone.wait_stream(&first).unwrap();
        drop(gone);
        let next = device.stream().unwrap();
        fill(&next, memory.addr, 2, 100);
        first.synchronize().unwrap();
        next.synchronize().unwrap();
    });
    assert_eq!(found, [Fault::Race]);
}

#[test]
fn two_writes_that_a_stream_of_another_device_orders_are_not_reported() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let between = Device::host().unwrap().stream().unwrap();
    two_writes(&watched, |first, second| {
        for (from, to) in [(first, &between), (&between, second)] {
            let event = from.device().event().unwrap();
            event.record(from).unwrap();
            let mark = from.device().backend().mark_of(event.raw()).unwrap();
            let (mark, backend) = (mark.unwrap(), to.device().backend());
            backend.wait_mark(to.raw(), &*mark).unwrap();
        }
    });
    sanitizer.check().unwrap();
}

#[test]
fn reads_may_meet_reads_and_additions_may_meet_additions() {
    let uses = |first: Access, second: Access| {
        faults(move |device| {
            let memory = Memory::new(device, 4096);
            let (one, two) = two(device);
            let at = |access: &Access| {
                let mut access = access.clone();
                access.range = memory.addr + access.range.start..memory.addr + access.range.end;
                access
            };
            common::declare(&one, "one", &[at(&first)]);
            common::declare(&two, "two", &[at(&second)]);
            one.synchronize().unwrap();
            two.synchronize().unwrap();
        })
    };
    let (read, write) = (Access::read(0, 8), Access::write(0, 8));
    let add = Access::atomic(0, 8);
    for (first, second, races) in [
        (&read, &read, false),
        (&add, &add, false),
        (&read, &add, true),
        (&add, &write, true),
        (&write, &read, true),
        (&write, &write, true),
    ] {
        let found = uses(first.clone(), second.clone());
        assert_eq!(
            found,
            vec![Fault::Race; usize::from(races)],
            "{first:?} {second:?}"
        );
    }
    assert_eq!(uses(write.clone(), Access::write(8, 8)), []);
}

#[test]
fn one_handle_at_two_addresses_is_one_memory() {
    let found = faults(|device| {
        let backend = device.backend();
        let granule = device.info().granule;
        let range = backend.reserve(2 * granule).unwrap();
        let phys = backend.create(granule).unwrap();
        backend.map(range, granule, phys).unwrap();
        backend.map(range + granule, granule, phys).unwrap();
        let (first, second) = two(device);
        fill(&first, range + 10, 1, 1);
        fill(&second, range + granule + 10, 1, 1);
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        backend.unmap(range, granule).unwrap();
        backend.unmap(range + granule, granule).unwrap();
        backend.release(phys).unwrap();
        backend.unreserve(range, 2 * granule).unwrap();
    });
    assert_eq!(found, [Fault::Race]);
}

#[test]
fn addresses_that_another_thread_has_at_once_are_not_taken_for_those_given_back() {
    let (device, calls) = common::watched::Watched::over(&Device::host().unwrap());
    let (watched, sanitizer) = Sanitizer::over(&device);
    let backend = std::sync::Arc::clone(watched.backend());
    let granule = watched.info().granule;
    let addr = backend.reserve(granule).unwrap();
    let [one, other] = [0, 1].map(|_| backend.create(granule).unwrap());
    backend.map(addr, granule, one).unwrap();
    let beside = std::sync::Arc::clone(&backend);
    calls.after("unmap", move || beside.map(addr, granule, other).unwrap());
    backend.unmap(addr, granule).unwrap();
    let (first, second) = two(&watched);
    fill(&first, addr, 1, 10);
    first.synchronize().unwrap();
    sanitizer.check().unwrap();
    // Nor is what the driver refuses to unmap or release forgotten.
    for call in ["unmap", "release"] {
        calls.fail(call, 1, false);
        assert!(
            backend
                .unmap(addr, granule)
                .and_then(|()| backend.release(other))
                .is_err()
        );
        if call == "release" {
            backend.map(addr, granule, other).unwrap();
        }
        fill(&first, addr, 1, 10);
        first.synchronize().unwrap();
        sanitizer.check().unwrap();
    }
    fill(&first, addr, 1, 10);
    fill(&second, addr, 1, 10);
    assert_eq!(sanitizer.check().unwrap_err().fault, Fault::Race);
    first.synchronize().unwrap();
    second.synchronize().unwrap();
    backend.unmap(addr, granule).unwrap();
    for phys in [one, other] {
        backend.release(phys).unwrap();
    }
    backend.unreserve(addr, granule).unwrap();
}

#[test]
fn unmapping_under_queued_work_and_using_bare_addresses_are_reported() {
    // Only declared uses, so that nothing really touches memory that is gone.
    let found = faults(|device| {
        let memory = Memory::new(device, 4096);
        let bare = device.backend().reserve(memory.bytes).unwrap();
        let stream = device.stream().unwrap();
        common::declare(&stream, "wanders", &[Access::read(bare + 5, 8)]);
        device.backend().unreserve(bare, memory.bytes).unwrap();
        common::declare(&stream, "kernel", &[Access::read(memory.addr, 8)]);
        drop(memory);
    });
    assert_eq!(found, [Fault::NotMapped, Fault::UnmapInUse]);
}

fn pool(device: &Device) -> Pool {
    Pool::new(device, PoolConfig::default().limit(32 * MIB)).unwrap()
}

#[test]
fn using_a_block_behind_its_free_or_beside_it_is_reported() {
    let found = faults(|device| {
        let pool = pool(device);
        let stream = device.stream().unwrap();
        let block = pool.alloc(&stream, 1000).unwrap();
        let addr = block.addr();
        drop(block);
        common::declare(&stream, "late", &[Access::read(addr, 4)]);
        let block = pool.alloc(&stream, 1000).unwrap();
        common::declare(
            &stream,
            "long",
            &[Access::read(block.addr(), block.capacity() + 1)],
        );
        stream.synchronize().unwrap();
    });
    assert_eq!(found, [Fault::UseAfterFree, Fault::NoBlock]);
}

#[test]
fn another_streams_use_must_be_declared_or_ordered_before_the_free() {
    let free_under_use = |declared: bool| {
        faults(move |device| {
            let pool = pool(device);
            let (home, other) = two(device);
            let mut block = pool.alloc(&home, MIB).unwrap();
            other.wait_stream(&home).unwrap();
            fill(&other, block.addr(), 3, MIB);
            if declared {
                block.record_use(&other).unwrap();
            }
            drop(block);
            other.synchronize().unwrap();
        })
    };
    assert_eq!(free_under_use(true), []);
    assert_eq!(free_under_use(false), [Fault::Race]);
}

#[test]
fn a_block_used_on_another_stream_before_its_allocation_is_ordered_there_is_reported() {
    let found = everywhere(|device| {
        let pool = pool(device);
        let (home, other) = two(device);
        let mut block = pool.alloc(&home, MIB).unwrap();
        block.record_use(&other).unwrap();
        fill(&other, block.addr(), 3, 10);
        other.synchronize().unwrap();
    });
    assert_eq!(found[0].fault, Fault::Race);
    assert_eq!(found[0].first.as_ref().unwrap().what, "alloc");
}

#[test]
fn a_free_on_a_stream_that_nothing_orders_behind_the_allocation_is_a_race() {
    let freed = |ordered: bool| {
        faults(move |device| {
            let (pool, (home, other)) = (pool(device), two(device));
            let block = pool.alloc(&home, MIB).unwrap();
            if ordered {
                other.wait_stream(&home).unwrap();
            }
            block.free_on(&other).unwrap();
            other.synchronize().unwrap();
        })
    };
    assert_eq!(freed(true), []);
    assert_eq!(freed(false), [Fault::Race]);
}

#[test]
fn a_block_freed_under_capture_belongs_to_its_graph_until_that_is_gone() {
    for on_another in [false, true] {
        let found = faults(|device| {
            let pool = pool(device);
            let (home, other) = two(device);
            let captured = if on_another { &other } else { &home };
            let block = pool.alloc(&home, 20 * MIB).unwrap();
            captured.wait_stream(&home).unwrap();
            let capture = captured.begin_capture().unwrap();
            let launched = Access::write(block.addr(), MIB);
            block.free_on(captured).unwrap();
            let graph = capture.end().unwrap();
            let launch = graph.memory().used_by(captured).unwrap();
            common::declare(captured, "launch", &[launched]);
            drop((launch, graph));
            // There is no memory for both.
            drop(pool.alloc(captured, 20 * MIB).unwrap());
            captured.synchronize().unwrap();
        });
        assert_eq!(found, []);
    }
}

#[test]
fn the_moves_of_a_table_are_uses_where_the_host_can_read_it() {
    let devices = [
        Device::host().unwrap(),
        Device::sim(&SimConfig::default()).unwrap(),
    ];
    for device in devices {
        let (watched, sanitizer) = Sanitizer::over(&device);
        let memory = Memory::new(&watched, 4096);
        let (first, second) = two(&watched);
        let word = abi::wp_word {
            addr: memory.addr + 1024,
            value: 7,
        };
        let bytes = [word.addr.to_le_bytes(), word.value.to_le_bytes()].concat();
        common::write(&first, memory.addr, &bytes);
        let launch = Launch::Scatter(abi::wp_scatter {
            words: memory.addr,
            count: 1,
        });
        // SAFETY: the table and the word it names are mapped until the streams are done.
        unsafe { watched.backend().launch(&launch, first.raw()) }.unwrap();
        first.synchronize().unwrap();
        sanitizer.check().unwrap();
        // SAFETY: as above.
        unsafe { watched.backend().launch(&launch, first.raw()) }.unwrap();
        fill(&second, memory.addr + 1024, 0, 8);
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        let report = *sanitizer.check().unwrap_err();
        assert_eq!(report.fault, Fault::Race);
        let parties = [&report.first.as_ref().unwrap().what, &report.second.what];
        assert_eq!(
            parties,
            ["wp_scatter", "fill"],
            "by the order they were queued in"
        );
    }
}

#[test]
fn a_call_that_the_device_refused_is_no_use() {
    let (watched, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let memory = Memory::new(&watched, 4096);
    let (stream, backend) = (watched.stream().unwrap(), watched.backend());
    let nobody = warpool::device::RawStream(12_345);
    let mut bytes = [0; 8];
    let (addr, word) = (
        memory.addr,
        Launch::Scatter(abi::wp_scatter {
            words: memory.addr,
            count: 0,
        }),
    );
    // SAFETY: nothing is queued on a stream that is not there.
    let refused = unsafe {
        [
            backend.fill(addr, 1, 8, nobody),
            backend.copy_in(addr, bytes.as_ptr(), 8, nobody),
            backend.copy_out(bytes.as_mut_ptr(), addr, 8, nobody),
            backend.copy_within(addr, addr + 8, 8, nobody),
            backend.launch(&word, nobody),
        ]
    };
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    fill(&stream, addr, 2, 100);
    stream.synchronize().unwrap();
    sanitizer.check().unwrap();
}

#[test]
fn a_capture_that_another_thread_begins_beside_a_call_makes_no_false_report() {
    let (under, calls) = Watched::over(&Device::host().unwrap());
    let (device, sanitizer) = Sanitizer::over(&under);
    let memory = Memory::new(&device, 4096);
    let (first, second) = two(&device);
    let backend = Arc::clone(device.backend());
    let event = backend.event_create(false).unwrap();
    let write = |stream: &Stream| {
        // SAFETY: the memory is there until both streams are done.
        let filled = unsafe { backend.fill(memory.addr, 1, 100, stream.raw()) };
        filled.unwrap();
    };
    // Of a write that never runs, and of two calls that order what runs.
    let found = ["before_fill", "event_record", "event_wait"].map(|call| {
        let captured = if call == "event_wait" {
            second.raw()
        } else {
            first.raw()
        };
        let beside = Arc::clone(&backend);
        calls.after(call, move || beside.capture_begin(captured).unwrap());
        write(&first);
        if call != "before_fill" {
            backend.event_record(event, first.raw()).unwrap();
            backend.event_wait(second.raw(), event).unwrap();
        }
        let graph = backend.capture_end(captured).unwrap();
        backend.graph_destroy(graph).unwrap();
        write(&second);
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        sanitizer.found()
    });
    backend.event_destroy(event).unwrap();
    assert_eq!(found, [0; 3]);
}

#[test]
fn a_block_freed_as_a_capture_begins_beside_is_reported_to_be_freed_once() {
    let (watched, calls) = Watched::over(&Device::host().unwrap());
    let (device, sanitizer) = Sanitizer::over(&watched);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, MIB).unwrap();
    // For the mark of what the stream was given before: the pool knows of the capture by then.
    calls.after("event_create", move || drop(block));
    let capture = stream.begin_capture().unwrap();
    assert!(calls.was_hooked());
    drop(capture.end().unwrap());
    drop(pool.alloc(&stream, MIB).unwrap());
    sanitizer.check().unwrap();
}

#[test]
fn a_record_that_another_thread_makes_as_a_block_is_freed_makes_no_false_report() {
    let (checked, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let (device, calls) = Watched::over(&checked);
    let all = device.info().granule;
    let pool = Pool::new(&device, PoolConfig::default().limit(all)).unwrap();
    let (first, second) = two(&device);
    let block = pool.alloc(&first, all).unwrap();
    let (freeing, waiting) = (first.clone(), second.clone());
    calls.after("before_free", move || {
        waiting.wait_stream(&freeing).unwrap();
    });
    drop(block);
    assert!(calls.was_hooked());
    let again = pool.alloc(&second, all).unwrap();
    sanitizer.check().unwrap();
    // The first wait covers the block, but not what the checker was told.
    assert_eq!(calls.calls("event_wait"), 2);
    drop(again);
}

/// A pool that may sleep, on a device under the checker that is watched.
fn sleeper() -> (Device, Arc<Watched>, Sanitizer, Pool, HostPool) {
    let (checked, sanitizer) = Sanitizer::over(&Device::host().unwrap());
    let (device, calls) = Watched::over(&checked);
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    (device, calls, sanitizer, pool, host)
}

#[test]
fn a_block_dropped_amid_the_copies_of_a_sleep_or_a_wake_is_not_reported() {
    for moment in ["before_copy_out", "copy_out", "before_copy_in", "copy_in"] {
        let (device, calls, sanitizer, pool, host) = sleeper();
        let (stream, other) = two(&device);
        let stays = pool.alloc_from(&stream, &[7u8; 1000]).unwrap();
        let goes = pool.alloc(&stream, MIB).unwrap();
        let asked = stream.clone();
        calls.after(moment, move || {
            drop(goes);
            // The checker knows from now on that the free comes before what is queued next.
            asked.synchronize().unwrap();
        });
        pool.sleep(&[], Contents::Saved(&host)).unwrap();
        pool.wake(&[]).unwrap();
        assert!(calls.was_hooked());
        let again = pool.alloc(&other, MIB).unwrap();
        fill(&other, again.addr(), 1, MIB);
        assert_eq!(stays.download().unwrap(), [7; 1000]);
        drop(again);
        other.synchronize().unwrap();
        assert_eq!(sanitizer.reports(), [], "{moment}");
    }
}

#[test]
fn a_pool_may_sleep_between_a_blocks_allocation_or_free_and_what_the_checker_is_told() {
    for (moment, wakes) in [
        ("before_alloc", false),
        ("before_alloc", true),
        ("free", true),
    ] {
        let (device, calls, sanitizer, pool, host) = sleeper();
        let stream = device.stream().unwrap();
        // Without work, whose wait the checker would know.
        let stays = pool.alloc(&stream, MIB).unwrap();
        let goes = (moment == "free").then(|| pool.alloc(&stream, MIB).unwrap());
        let slept = pool.clone();
        calls.after(moment, move || {
            slept.sleep(&[], Contents::Saved(&host)).unwrap();
            if wakes {
                slept.wake(&[]).unwrap();
            }
        });
        drop(goes);
        let block = pool.alloc(&stream, MIB).unwrap();
        assert!(calls.was_hooked());
        pool.wake(&[]).unwrap();
        fill(&stream, block.addr(), 1, MIB);
        fill(&stream, stays.addr(), 1, MIB);
        drop((block, stays));
        stream.synchronize().unwrap();
        assert_eq!(sanitizer.reports(), [], "{moment}, and wakes: {wakes}");
    }
}

/// Notes and work as of a pool that sleeps, and lacks a wait.
#[test]
fn uses_of_memory_that_sleeps_must_be_ordered_before_it_does_and_before_it_is_awake() {
    let found = |lacking: &str, freed: bool| {
        faults(|device| {
            let memory = Memory::new(device, 4096);
            let (home, copies) = two(device);
            let (addr, bytes, stream) = (memory.addr, 4096, home.raw());
            let note = |note| device.backend().observe(&note);
            let wait = |on: &Stream, name| match name == lacking {
                true => (),
                false => on.synchronize().unwrap(),
            };
            note(Note::Alloc {
                addr,
                bytes,
                stream,
            });
            fill(&home, addr, 1, bytes);
            wait(&home, "before the sleep");
            note(Note::Sleep { addr, asleep: true });
            fill(&copies, addr, 2, bytes);
            if lacking == "in the sleep" {
                common::declare(&home, "early", &[Access::read(addr, 8)]);
            }
            if freed {
                note(Note::Free {
                    addr,
                    bytes,
                    stream,
                });
            }
            wait(&copies, "before it is awake");
            note(Note::Sleep {
                addr,
                asleep: false,
            });
            if freed {
                note(Note::Alloc {
                    addr,
                    bytes,
                    stream,
                });
            } else {
                fill(&home, addr, 3, bytes);
            }
            home.synchronize().unwrap();
            copies.synchronize().unwrap();
            note(Note::Free {
                addr,
                bytes,
                stream,
            });
        })
    };
    for freed in [false, true] {
        assert_eq!(found("nothing", freed), []);
        for lacking in ["before the sleep", "in the sleep", "before it is awake"] {
            assert_eq!(found(lacking, freed), [Fault::Race], "{lacking}, {freed}");
        }
    }
}

/// Where the question fails, the checker knows neither that a call is a graph's nor that it is not.
#[test]
fn where_the_device_does_not_say_whether_a_stream_is_captured_nothing_is_reported() {
    let (under, failing) = Watched::over(&Device::host().unwrap());
    let (device, sanitizer) = Sanitizer::over(&under);
    let memory = Memory::new(&device, 4096);
    let (first, second) = two(&device);
    let unknown = |call: &dyn Fn()| {
        failing.fail("stream_capturing", 1, true);
        call();
        failing.heal();
    };
    let raw = |stream: &Stream, byte| {
        // SAFETY: the memory is there until both streams are done.
        let filled = unsafe { device.backend().fill(memory.addr, byte, 100, stream.raw()) };
        filled.unwrap();
    };
    // A graph that never runs, and another stream's write.
    let backend = device.backend();
    backend.capture_begin(first.raw()).unwrap();
    unknown(&|| raw(&first, 1));
    let graph = backend.capture_end(first.raw()).unwrap();
    backend.graph_destroy(graph).unwrap();
    raw(&second, 2);
    sanitizer.check().unwrap();
    // Two writes, ordered.
    let event = backend.event_create(false).unwrap();
    unknown(&|| {
        backend.event_record(event, second.raw()).unwrap();
        backend.event_wait(first.raw(), event).unwrap();
    });
    raw(&first, 3);
    sanitizer.check().unwrap();
    backend.event_destroy(event).unwrap();
    first.synchronize().unwrap();
    // Whether a host call is a graph's, the device has to know.
    failing.fail("stream_capturing", 1, true);
    let refused = backend.host_call_in_each_run(first.raw(), Arc::new(|| {}));
    failing.heal();
    assert!(refused.is_err());
}

/// A program as applications have them: blocks of 256 KiB written and read by kernels on two
/// streams that wait for each other now and then. Gives the time it took.
fn typical(device: &Device) -> std::time::Duration {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let (first, second) = two(device);
    let begin = std::time::Instant::now();
    for round in 0..200u64 {
        let mut block = pool.alloc(&first, 256 << 10).unwrap();
        fill(&first, block.addr(), round as u8, block.bytes());
        second.wait_stream(&first).unwrap();
        fill(&second, block.addr(), 1, block.bytes());
        block.record_use(&second).unwrap();
        drop(block);
        let other = pool.alloc(&second, 100_000).unwrap();
        fill(&second, other.addr(), 2, other.bytes());
        if round % 16 == 0 {
            first.synchronize().unwrap();
        }
    }
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    begin.elapsed()
}

#[test]
fn a_watched_host_device_takes_at_most_twice_as_long() {
    let device = Device::host().unwrap();
    let (watched, sanitizer) = Sanitizer::over(&device);
    let mut best = [std::time::Duration::MAX; 2];
    // The machine's other work only ever adds time: the best of several runs in turn counts.
    for _ in 0..15 {
        best[0] = best[0].min(typical(&device));
        best[1] = best[1].min(typical(&watched));
    }
    sanitizer.check().unwrap();
    let ratio = best[1].as_secs_f64() / best[0].as_secs_f64();
    println!(
        "plain {:?}, watched {:?}: {ratio:.2} times",
        best[0], best[1]
    );
    // The checker is the part that an unoptimised build slows down.
    let most = if cfg!(debug_assertions) { 8.0 } else { 2.0 };
    assert!(ratio <= most, "{ratio}");
}
