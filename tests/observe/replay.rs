//! Replays: every byte checked, whatever the trace, and nothing left behind.

use crate::common;

use common::watched::Watched;
use common::{cuda, host, leaving_nothing};
use proptest::prelude::*;
use warpool::device::Launch;
#[cfg(feature = "cli")]
use warpool::device::sim::SimConfig;
use warpool::driver::abi;
use warpool::observe::{
    EventKind, Peer, ReplayOptions, Report, Share, Trace, TraceWriter, Verify, replay,
};
use warpool::{Device, Error};

const MIB: u64 = 1 << 20;

/// Replays `trace` on `device` and checks that the device holds nothing afterwards.
fn run_on(device: Device, trace: &Trace, options: &ReplayOptions) -> warpool::Result<Report> {
    let mut report = None;
    leaving_nothing(device, |device| {
        let mut last = 0;
        report = Some(replay(trace, device, options, &mut |played| {
            assert!(played >= last, "progress goes forward");
            last = played;
        }));
    });
    report.expect("it ran")
}

/// [`run_on`] the host device, whose outcome it gives, and on a GPU where there is one.
fn run(trace: &Trace, options: &ReplayOptions) -> warpool::Result<Report> {
    let on_host = run_on(host(), trace, options)?;
    if let Some(device) = cuda() {
        let on_gpu = run_on(device, trace, options)?;
        assert_eq!(on_gpu.corrupt_bytes, 0);
        // Under a cap the holes, and so the request that fails, may depend on timing.
        if on_gpu.passed() && on_host.passed() {
            assert_eq!(on_gpu.verified_bytes, on_host.verified_bytes);
        }
    }
    Ok(on_host)
}

fn trace(write: impl FnOnce(&mut TraceWriter<Vec<u8>>) -> std::io::Result<()>) -> Trace {
    let mut writer = TraceWriter::new(Vec::new()).expect("writes");
    write(&mut writer).expect("writes");
    let text = writer.finish().expect("writes");
    Trace::read_from("made", text.as_slice(), u64::MAX).expect("reads")
}

#[test]
fn a_trace_of_more_streams_than_a_process_has_room_for_threads_is_an_error() {
    let trace = trace(|w| (1..20_000).try_for_each(|at| w.allocate(at, 512, at)));
    let refused = run_on(host(), &trace, &ReplayOptions::default());
    assert!(
        matches!(&refused, Err(Error::Invalid { what: "stream", .. })),
        "{refused:?}"
    );
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

/// What a replay of two blocks finds on a device that leaves out every verification but the first
/// `made`.
fn with_verifications(made: usize, verify: Verify) -> Report {
    let trace = trace(|w| {
        w.allocate(1, 3 * MIB + 1, 0)?;
        w.allocate(2, 700, 9)?;
        w.free(1, 3 * MIB + 1, 0)
    });
    let (device, watched) = Watched::over(&host());
    let mut seen = 0;
    watched.before(move |_, launch| match launch {
        Some((Launch::Pattern(pattern), _)) if pattern.op == abi::WP_VERIFY => {
            seen += 1;
            seen <= made
        }
        _ => true,
    });
    let options = ReplayOptions::default().verify(verify);
    replay(&trace, &device, &options, &mut |_| ()).expect("replays")
}

#[test]
fn a_replay_that_verified_less_than_it_owes_fails() {
    for verify in [Verify::Full, Verify::Edges] {
        for (made, passes) in [(0, false), (1, false), (2, true)] {
            let report = with_verifications(made, verify);
            assert_eq!(report.passed(), passes, "{made} of 2: {report}");
            assert_eq!(report.verified_bytes == report.owed_bytes, passes);
            let text = report.to_string();
            assert_eq!(
                text.contains("of the 3.00 MiB owed"),
                !passes && verify == Verify::Full
            );
            assert_eq!(
                text.contains("of the 8.68 KiB owed"),
                !passes && verify == Verify::Edges
            );
        }
    }
    let off = with_verifications(0, Verify::Off);
    assert!(off.passed() && off.owed_bytes == 0, "{off}");
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

/// Blocks of every size up to 3 MiB, every other one freed, and then what is free at once; the peak
/// is a multiple of 2 MiB.
fn scattered() -> Trace {
    trace(|w| {
        let bytes = |n: u64| (1 + n * 37 % 96) * 32_768;
        let sum = |keep: &dyn Fn(u64) -> bool| (0..64).filter(|&n| keep(n)).map(bytes).sum::<u64>();
        (0..64).try_for_each(|n| w.allocate(n, bytes(n), n % 2))?;
        (0..64)
            .step_by(2)
            .try_for_each(|n| w.free(n, bytes(n), n % 2))?;
        let peak = sum(&|_| true).next_multiple_of(2 * MIB);
        w.allocate(100, peak - sum(&|n| n % 2 == 1), 0)
    })
}

#[test]
fn a_trace_of_movable_blocks_completes_at_its_own_peak_with_every_byte_verified() {
    let trace = scattered();
    let options = ReplayOptions::default().cap(trace.peak_live_bytes());
    let fixed = run(&trace, &options).expect("replays");
    assert_eq!((fixed.failed_allocs, fixed.bytes_moved), (1, 0), "{fixed}");
    let moved = run(&trace, &options.clone().movable(Share::ALL, 1)).expect("replays");
    assert!(moved.passed() && moved.bytes_moved > 0, "{moved}");
    assert!(moved.step_ns_p99 >= moved.step_ns_p50 && moved.step_ns_p50 > 0);
    assert!(moved.move_ns >= moved.move_ns_p99 && moved.move_ns_p50 > 0);
    assert!(moved.peak_reserved_bytes <= trace.peak_live_bytes());
}

#[test]
fn the_same_seed_draws_the_same_movable_blocks() {
    let trace = scattered();
    let half = Share::of(0.5).expect("a part");
    let moved = |seed| {
        let options = ReplayOptions::default().movable(half, seed);
        let options = options.cap(trace.peak_live_bytes() + 4 * MIB);
        let report = run_on(host(), &trace, &options).expect("replays");
        assert_eq!(report.corrupt_bytes, 0);
        (report.bytes_moved, report.events)
    };
    assert_eq!(moved(3), moved(3));
    assert!((4..10).any(|seed| moved(seed) != moved(3)));
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

#[test]
fn a_peer_that_the_device_does_not_have_is_refused_before_anything_is_played() {
    let trace = trace(|w| w.allocate(1, MIB, 0));
    let options = ReplayOptions::default().versus(Peer::CudaAsync);
    let mut called = false;
    let error = replay(&trace, &host(), &options, &mut |_| called = true).expect_err("refused");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(!called);
}

#[test]
fn the_drivers_pool_plays_the_same_trace_with_every_byte_verified() {
    let Some(device) = cuda() else { return };
    let trace = trace(|w| {
        for round in 0..common::rounds(300) as u64 {
            w.allocate(round, (1 + round % 7) * 700_001, round % 3)?;
            if round >= 20 {
                let gone = round - 20;
                w.free(gone, (1 + gone % 7) * 700_001, (gone + 1) % 3)?;
            }
        }
        Ok(())
    });
    let options = ReplayOptions::default().versus(Peer::CudaAsync);
    let report = run_on(device, &trace, &options).expect("replays");
    assert!(report.passed(), "{report}");
    let versus = report.versus.expect("the driver's figures");
    assert_eq!(versus.name, "cuda-async");
    assert_eq!(versus.events, report.events);
    assert_eq!(versus.verified_bytes, report.verified_bytes);
    assert_eq!((versus.corrupt_bytes, versus.failed_allocs), (0, 0));
    assert!(versus.peak_reserved_bytes >= trace.peak_live_bytes());
}

#[test]
fn a_cap_holds_for_the_drivers_pool_too() {
    let Some(device) = cuda() else { return };
    let trace = trace(|w| (0..40).try_for_each(|n| w.allocate(n, 40 * MIB, 0)));
    let cap = 400 * MIB;
    let options = ReplayOptions::default().cap(cap).versus(Peer::CudaAsync);
    let report = run_on(device, &trace, &options).expect("replays");
    let versus = report.versus.as_ref().expect("the driver's figures");
    assert_eq!((report.failed_allocs, versus.failed_allocs), (1, 1));
    assert_eq!(report.events, 10);
    // The driver's pool takes memory 32 MiB at a time and rounds its limit up to that.
    let rounded = cap.next_multiple_of(32 * MIB);
    assert!(
        versus.events <= 10 && versus.peak_reserved_bytes <= rounded,
        "{report}"
    );
}

/// Events of a recorded trace that are played under a sanitizer.
#[cfg(feature = "cli")]
const WATCHED_EVENTS: usize = 200;

/// A recorded trace, which needs the feature `cli` to be read.
#[cfg(feature = "cli")]
fn read(name: &str) -> Trace {
    let root = env!("CARGO_MANIFEST_DIR");
    Trace::read(format!("{root}/traces/{name}.csv.gz"), u64::MAX).expect("reads")
}

#[cfg(feature = "cli")]
fn recorded() -> [Trace; 3] {
    ["resnet50_train_varres", "gpt2_train_varlen", "five_streams"].map(read)
}

#[cfg(feature = "cli")]
#[test]
fn the_recorded_traces_replay_on_a_gpu_with_every_byte_verified() {
    for trace in recorded() {
        let Some(device) = cuda() else { return };
        if common::under_sanitizer() {
            // Every access of half a terabyte is more than a sanitizer checks in an hour.
            let trace = beginning(&trace, WATCHED_EVENTS);
            let options = ReplayOptions::default().verify(Verify::Edges);
            let report = run_on(device, &trace, &options).expect("replays");
            assert!(report.passed(), "{report}");
            continue;
        }
        let report = run_on(device, &trace, &ReplayOptions::default()).expect("replays");
        assert!(report.passed(), "{report}");
        assert!(report.reserved_ratio() <= 1.10, "{report}");
        assert!(report.verified_bytes > trace.peak_live_bytes());
    }
}

/// The trace with every third block handed to another stream, which verifies and frees it.
///
/// A recording names one stream a block, so as recorded only freed memory goes from stream to stream.
#[cfg(feature = "cli")]
fn handed_over(recorded: &Trace) -> Trace {
    let streams = recorded.streams();
    trace(|w| {
        recorded.events().iter().try_for_each(|event| {
            let (block, stream) = (u64::from(event.block), usize::from(event.stream));
            let further = match event.block.is_multiple_of(3) {
                true => 1 + event.block as usize % (streams.len() - 1),
                false => 0,
            };
            match event.kind {
                EventKind::Alloc => w.allocate(block, event.bytes, streams[stream]),
                EventKind::Free => w.free(
                    block,
                    event.bytes,
                    streams[(stream + further) % streams.len()],
                ),
            }
        })
    })
}

/// On the simulated device every operation waits until somebody waits for it, so memory that goes
/// from one stream to another too early is really used by both.
#[cfg(feature = "cli")]
#[test]
fn the_recorded_traces_on_several_streams_replay_where_all_work_is_late() {
    for trace in ["five_streams", "dino", "resnet50_train_varres"].map(read) {
        let handed_over = handed_over(&trace);
        for (seed, trace) in [trace, handed_over].iter().enumerate() {
            let config = SimConfig::default()
                .with_seed(seed as u64)
                .with_capacity(64 << 30);
            let device = Device::sim(&config).expect("a simulated device");
            let options = ReplayOptions::default().verify(Verify::Edges);
            let report = run_on(device, trace, &options).expect("replays");
            assert!(report.passed(), "{report}");
        }
    }
}

/// The first `events` of a trace.
#[cfg(feature = "cli")]
fn beginning(trace: &Trace, events: usize) -> Trace {
    let mut text = Vec::new();
    trace.write_csv(&mut text).expect("writes");
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let lines: Vec<u8> = lines.take(events + 1).flatten().copied().collect();
    Trace::read_from("beginning", lines.as_slice(), u64::MAX).expect("reads")
}

#[cfg(feature = "cli")]
#[test]
fn the_beginning_of_a_trace_replays_as_a_trace() {
    let trace = beginning(&recorded()[0], 4000);
    let options = ReplayOptions::default().verify(Verify::Edges);
    let report = run_on(host(), &trace, &options).expect("replays");
    assert!(report.passed() && report.events == 4000, "{report}");
}

#[cfg(feature = "cli")]
#[test]
fn half_the_peak_of_the_recorded_traces_ends_at_a_request_and_leaves_nothing() {
    for mut trace in recorded() {
        if common::under_sanitizer() {
            trace = beginning(&trace, WATCHED_EVENTS);
        }
        let cap = (trace.peak_live_bytes() / 2).next_multiple_of(2 * MIB);
        let options = ReplayOptions::default().verify(Verify::Edges).cap(cap);
        for device in common::devices() {
            let report = run_on(device, &trace, &options).expect("replays");
            assert_eq!(
                (report.failed_allocs, report.corrupt_bytes),
                (1, 0),
                "{report}"
            );
            assert!(report.failure.as_ref().is_some_and(Error::is_out_of_memory));
            assert!(report.peak_reserved_bytes <= cap);
        }
    }
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
            .events()
            .iter()
            .filter(|event| event.kind == EventKind::Alloc)
            .map(|event| event.bytes)
            .sum();
        prop_assert_eq!(report.verified_bytes, allocated);
        prop_assert_eq!(report.events, trace.events().len() as u64);
    }

    #[test]
    fn any_trace_under_any_cap_ends_and_leaves_nothing(steps in steps(), cap in 0u64..12) {
        let trace = trace_of(steps);
        let options = ReplayOptions::default().verify(Verify::Edges).cap(cap * 2 * MIB);
        let report = run(&trace, &options).expect("replays");
        prop_assert_eq!(report.corrupt_bytes, 0);
        prop_assert!(report.peak_reserved_bytes <= cap * 2 * MIB);
        prop_assert_eq!(report.passed(), report.events == trace.events().len() as u64);
    }
}
