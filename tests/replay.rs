//! Replays on the host device: every byte checked, whatever the trace, and nothing left behind.

use proptest::prelude::*;
use warpool::device::HandleCounts;
use warpool::observe::{ReplayOptions, Report, Trace, TraceWriter, Verify, replay};
use warpool::{Device, Error};

const MIB: u64 = 1 << 20;

/// Replays `trace` on a device of its own and checks that the device holds nothing afterwards.
fn run(trace: &Trace, options: &ReplayOptions) -> warpool::Result<Report> {
    let device = Device::host().expect("the host device");
    let backend = device.backend().clone();
    let mut last = 0;
    let report = replay(trace, &device, options, &mut |played| {
        assert!(played >= last, "progress goes forward");
        last = played;
    });
    drop(device);
    assert_eq!(backend.counts(), HandleCounts::default(), "nothing leaks");
    report
}

fn trace(write: impl FnOnce(&mut TraceWriter<Vec<u8>>) -> std::io::Result<()>) -> Trace {
    let mut writer = TraceWriter::new(Vec::new()).expect("writes");
    write(&mut writer).expect("writes");
    let text = writer.finish().expect("writes");
    Trace::read_from("made", text.as_slice(), u64::MAX).expect("reads")
}

#[test]
fn every_byte_of_every_block_is_verified_also_of_those_live_at_the_end() {
    let trace = trace(|w| {
        w.allocate(1, 3 * MIB + 1, 0)?;
        w.allocate(2, 700, 9)?;
        w.free(1, 3 * MIB + 1, 0)
    });
    let report = run(&trace, &ReplayOptions::default()).expect("replays");
    assert!(report.passed());
    assert_eq!(report.events, 3);
    assert_eq!(report.streams, 2);
    assert_eq!(report.verified_bytes, 3 * MIB + 701);
    assert_eq!(report.peak_live_bytes, 3 * MIB + 701);
    assert!(report.peak_reserved_bytes >= report.peak_live_bytes);
    assert!(report.failure.is_none());
}

#[test]
fn a_block_freed_on_another_stream_is_verified_there_behind_its_stamp() {
    let trace = trace(|w| {
        for round in 0..200 {
            w.allocate(round, 64 << 10, round % 4)?;
            w.free(round, 64 << 10, (round + 1) % 4)?;
        }
        Ok(())
    });
    let report = run(&trace, &ReplayOptions::default()).expect("replays");
    assert_eq!(
        (report.verified_bytes, report.corrupt_bytes),
        (200 * (64 << 10), 0)
    );
}

#[test]
fn the_first_request_over_the_cap_ends_the_replay_with_everything_freed() {
    let trace = trace(|w| {
        w.allocate(1, 3 * MIB, 0)?;
        w.allocate(2, 3 * MIB, 1)?;
        w.allocate(3, 3 * MIB, 0)?;
        w.free(1, 3 * MIB, 0)
    });
    let report = run(&trace, &ReplayOptions::default().cap(8 * MIB)).expect("replays");
    assert!(!report.passed());
    assert_eq!((report.events, report.failed_allocs), (2, 1));
    assert!(report.peak_reserved_bytes <= 8 * MIB);
    assert_eq!(
        report.verified_bytes,
        6 * MIB,
        "what was live is verified before it is freed"
    );
    match report.failure {
        Some(Error::OutOfMemory(figures)) => {
            assert_eq!(figures.requested, 3 * MIB);
            assert_eq!(figures.limit, 8 * MIB);
        }
        other => panic!("expected out of memory, got {other:?}"),
    }
}

#[test]
fn full_verification_of_more_than_the_free_memory_is_refused_before_anything_is_written() {
    let trace = trace(|w| w.allocate(1, 1 << 50, 0));
    let error = run(&trace, &ReplayOptions::default())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("has 1.00 PiB live at its peak"), "{error}");
    assert!(error.contains("verify only the edges"), "{error}");
}

/// Allocations and frees of up to `streams` streams: (choice, bytes, stream).
fn steps() -> impl Strategy<Value = Vec<(prop::sample::Index, u64, u64)>> {
    let bytes = prop_oneof![3 => 1u64..5_000, 2 => 1u64..300_000, 1 => 1u64..5_000_000];
    prop::collection::vec((any::<prop::sample::Index>(), bytes, 0u64..3), 1..80)
}

fn trace_of(steps: Vec<(prop::sample::Index, u64, u64)>) -> Trace {
    trace(|w| {
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (number, (choice, bytes, stream)) in steps.into_iter().enumerate() {
            let at = choice.index(live.len() * 2 + 1);
            if at < live.len() {
                let (pointer, bytes) = live.swap_remove(at);
                w.free(pointer, bytes, stream)?;
            } else {
                w.allocate(number as u64, bytes, stream)?;
                live.push((number as u64, bytes));
            }
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_replays_without_a_corrupt_byte(steps in steps()) {
        let trace = trace_of(steps);
        let report = run(&trace, &ReplayOptions::default()).expect("replays");
        prop_assert!(report.passed());
        let allocated: u64 = trace
            .events
            .iter()
            .filter(|event| event.kind == warpool::observe::EventKind::Alloc)
            .map(|event| event.bytes)
            .sum();
        prop_assert_eq!(report.verified_bytes, allocated);
        prop_assert_eq!(report.events, trace.events.len() as u64);
    }

    #[test]
    fn any_trace_under_any_cap_ends_and_leaves_nothing(steps in steps(), cap in 0u64..12) {
        let trace = trace_of(steps);
        let options = ReplayOptions::default().verify(Verify::Edges).cap(cap * 2 * MIB);
        let report = run(&trace, &options).expect("replays");
        prop_assert_eq!(report.corrupt_bytes, 0);
        prop_assert!(report.peak_reserved_bytes <= cap * 2 * MIB);
        prop_assert_eq!(report.passed(), report.events == trace.events.len() as u64);
    }
}
