use super::*;

fn report() -> Report {
    Report {
        trace: "a \"quoted\" name.csv".to_owned(),
        device: "host".to_owned(),
        verify: Verify::Edges,
        events: 216_551,
        streams: 2,
        peak_live_bytes: 100 << 20,
        reached_live_bytes: 100 << 20,
        cap: None,
        peak_reserved_bytes: 102 << 20,
        overhead_bytes: 14 << 20,
        largest_hole_bytes: 3 << 20,
        alloc_ns_p50: 120,
        alloc_ns_p99: 1_204,
        free_ns_p50: 80,
        free_ns_p99: 300,
        verified_bytes: 5 << 30,
        owed_bytes: 5 << 30,
        corrupt_bytes: 0,
        first_corrupt: None,
        failed_allocs: 0,
        handles_made: 1_100,
        handles_remapped: 7,
        bytes_moved: 0,
        compactions: 0,
        movable: Share::NONE,
        step_ns_p50: 0,
        step_ns_p99: 0,
        move_ns_p50: 0,
        move_ns_p99: 0,
        move_ns: 0,
        wall: Duration::from_millis(1_234),
        failure: None,
        versus: None,
    }
}

fn versus() -> Versus {
    Versus {
        name: "cuda-async",
        events: 216_551,
        peak_live_bytes: 100 << 20,
        peak_reserved_bytes: 125 << 20,
        alloc_ns_p50: 480,
        alloc_ns_p99: 2_000,
        free_ns_p50: 350,
        free_ns_p99: 900,
        verified_bytes: 5 << 30,
        owed_bytes: 5 << 30,
        corrupt_bytes: 0,
        failed_allocs: 0,
        wall: Duration::from_millis(2_250),
    }
}

fn beside(versus: Versus) -> Report {
    Report {
        versus: Some(versus),
        ..report()
    }
}

#[test]
fn another_allocator_stands_beside_ours_line_by_line() {
    let text = beside(versus()).to_string();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[0].find("cuda-async").expect("its name on top");
    for (name, theirs) in [
        ("events", "216,551 in 2.25 s"),
        ("peak reserved", "125.00 MiB, 1.2500 x live"),
        ("alloc", "p50     480 ns   p99   2,000 ns"),
        ("free", "p50     350 ns   p99     900 ns"),
        ("verified", "5.00 GiB"),
        ("failed", "0 allocations"),
    ] {
        let line = lines.iter().find(|line| line.starts_with(name));
        let line = line.expect(name);
        assert_eq!(&line[at..], theirs, "{text}");
        assert!(line[14..at].ends_with("  "), "{text}");
    }
    assert!(text.ends_with("result        ok"), "{text}");
}

#[test]
fn a_request_that_only_another_allocator_failed_fails_no_replay() {
    let mut versus = versus();
    versus.failed_allocs = 1;
    assert!(beside(versus).passed());
}

#[test]
fn corrupt_bytes_of_another_allocator_fail_the_replay_and_are_said_to_be_its() {
    let report = beside(Versus {
        corrupt_bytes: 1,
        ..versus()
    });
    assert!(!report.passed());
    assert_eq!(
        report.reasons(),
        ["1 B corrupt in cuda-async's memory, which was handed out while in use"]
    );
}

#[test]
fn a_check_of_another_allocator_that_is_incomplete_fails_the_replay() {
    let report = beside(Versus {
        verified_bytes: 4 << 30,
        ..versus()
    });
    assert!(!report.passed());
    assert_eq!(
        report.reasons(),
        ["4.00 GiB verified of the 5.00 GiB owed in cuda-async's memory: the check is incomplete"]
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_json_holds_another_allocator_as_an_object_of_its_own() {
    let alone: serde_json::Value = serde_json::from_str(&report().to_json()).expect("JSON");
    assert!(alone.get("versus").is_none());
    let report = Report {
        versus: Some(versus()),
        ..report()
    };
    let value: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    let theirs = &value["versus"];
    assert_eq!(theirs.as_object().expect("an object").len(), 12);
    assert_eq!(theirs["name"], "cuda-async");
    assert_eq!(theirs["reserved_ratio"], 1.25);
    assert_eq!(theirs["alloc_ns_p99"], 2_000);
    assert_eq!(theirs["failed_allocs"], 0);
    assert_eq!(theirs["wall_s"], 2.25);
    assert_eq!(value["reserved_ratio"], 1.02);
}

#[test]
fn the_text_has_one_aligned_line_a_figure_and_ends_with_the_verdict() {
    let text = report().to_string();
    for line in [
        "events        216,551 on 2 streams in 1.23 s",
        "peak live     100.00 MiB",
        "peak reserved 102.00 MiB, 1.0200 x live",
        "handles       1,100 made, 7 mapped elsewhere",
        "alloc         p50     120 ns   p99   1,204 ns",
        "free          p50      80 ns   p99     300 ns",
        "moved         0 B in 0 steps, nothing may be moved",
        "corrupt       0 bytes",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
    assert!(text.ends_with("result        ok"), "{text}");
}

#[test]
fn a_replay_that_stopped_is_judged_by_what_it_reached_and_says_why() {
    let stopped = Report {
        reached_live_bytes: 51 << 20,
        failed_allocs: 1,
        failure: Some(Error::invalid("bytes", "too many")),
        ..report()
    };
    assert_eq!(stopped.reserved_ratio(), 2.0);
    let text = stopped.to_string();
    assert!(
        text.contains("peak live     100.00 MiB, reached 51.00 MiB\n"),
        "{text}"
    );
    assert!(
        text.contains("peak reserved 102.00 MiB, 2.0000 x live\n"),
        "{text}"
    );
    assert_eq!(
        stopped.reasons(),
        ["stopped after 216,551 events: bytes: too many"]
    );
    assert!(report().reasons().is_empty());
}

#[test]
fn no_line_is_wider_than_sixty_columns_and_none_beside_another_allocator_than_120() {
    let wide = Report {
        peak_live_bytes: 1 << 44,
        reached_live_bytes: 1 << 43,
        verified_bytes: 1 << 44,
        owed_bytes: 1 << 44,
        compactions: 1_000_000,
        alloc_ns_p99: u64::MAX,
        step_ns_p99: 26_493_220,
        ..report()
    };
    let width = |report: &Report| {
        let text = report.to_string();
        text.lines().map(|line| line.chars().count()).max()
    };
    for verify in [Verify::Full, Verify::Edges, Verify::Off] {
        for movable in [Share::NONE, Share::ALL] {
            let wide = Report {
                verify,
                movable,
                ..wide.clone()
            };
            assert!(width(&wide) <= Some(60), "{wide}");
            let beside = Report {
                versus: Some(versus()),
                ..wide
            };
            assert!(width(&beside) <= Some(120), "{beside}");
        }
    }
}

#[test]
fn steps_that_moved_something_have_lines_of_their_own() {
    let text = Report {
        compactions: 2,
        bytes_moved: 3 << 20,
        movable: Share::ALL,
        step_ns_p50: 20_000,
        step_ns_p99: 31_000,
        move_ns_p50: 9_000,
        move_ns_p99: 9_100,
        ..report()
    }
    .to_string();
    for line in [
        "moved         3.00 MiB in 2 steps, all may be moved",
        "step          p50  20,000 ns   p99  31,000 ns",
        "on the device p50   9,000 ns   p99   9,100 ns",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
}

#[test]
fn a_replay_that_did_not_verify_what_it_owes_fails() {
    for verified_bytes in [0, (5 << 30) - 1, (5 << 30) + 1] {
        let report = Report {
            verified_bytes,
            ..report()
        };
        assert!(!report.passed());
        let text = report.to_string();
        assert!(text.contains(" of the 5.00 GiB owed\n"), "{text}");
        assert!(text.ends_with("FAILED"), "{text}");
    }
}

#[test]
fn a_corrupt_byte_or_a_failed_request_fails_the_replay() {
    assert!(report().passed());
    let corrupt = Report {
        corrupt_bytes: 1,
        first_corrupt: Some(0x7f00),
        ..report()
    };
    assert!(!corrupt.passed());
    assert!(
        corrupt
            .to_string()
            .contains("corrupt       1 byte, one at 0x7f00")
    );
    assert!(corrupt.to_string().ends_with("FAILED"));
    assert!(
        !Report {
            failed_allocs: 1,
            ..report()
        }
        .passed()
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_json_has_every_key_in_order_and_reads_back() {
    let mut report = report();
    assert!(!report.to_json().contains("step_ns"), "nothing could move");
    report.movable = Share::ALL;
    let json = report.to_json();
    let keys = [
        "trace",
        "device",
        "result",
        "reason",
        "cap",
        "verify",
        "events",
        "streams",
        "peak_live_bytes",
        "reached_live_bytes",
        "peak_reserved_bytes",
        "reserved_ratio",
        "overhead_bytes",
        "largest_hole_bytes",
        "alloc_ns_p50",
        "alloc_ns_p99",
        "free_ns_p50",
        "free_ns_p99",
        "verified_bytes",
        "corrupt_bytes",
        "failed_allocs",
        "handles_made",
        "handles_remapped",
        "bytes_moved",
        "compactions",
        "movable",
        "step_ns_p50",
        "step_ns_p99",
        "move_ns_p50",
        "move_ns_p99",
        "move_ns",
        "wall_s",
    ];
    let places: Vec<usize> = keys
        .iter()
        .map(|key| json.find(&format!("\"{key}\": ")).expect(key))
        .collect();
    assert!(places.is_sorted(), "{json}");
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value.as_object().expect("an object").len(), keys.len());
    assert_eq!(value["trace"], "a \"quoted\" name.csv");
}

/// A report in which all figures differ, none is a default, and a larger `from` changes each.
#[cfg(feature = "cli")]
fn distinct(from: u64) -> Report {
    Report {
        trace: format!("trace {from}"),
        device: format!("device {from}"),
        events: from + 1,
        streams: from + 2,
        peak_live_bytes: from + 3,
        reached_live_bytes: from + 35,
        cap: Some(from + 36),
        peak_reserved_bytes: from + 4,
        overhead_bytes: from + 34,
        largest_hole_bytes: from + 5,
        alloc_ns_p50: from + 6,
        alloc_ns_p99: from + 7,
        free_ns_p50: from + 8,
        free_ns_p99: from + 9,
        verified_bytes: from + 10,
        corrupt_bytes: from + 11,
        failed_allocs: from + 12,
        handles_made: from + 13,
        handles_remapped: from + 14,
        bytes_moved: from + 15,
        compactions: from + 16,
        movable: Share::of(1.0 / from as f64).expect("a part"),
        step_ns_p50: from + 17,
        step_ns_p99: from + 18,
        move_ns_p50: from + 19,
        move_ns_p99: from + 20,
        move_ns: from + 21,
        wall: Duration::from_secs(from + 22),
        versus: Some(Versus {
            name: if from == 100 { "one" } else { "other" },
            events: from + 23,
            peak_live_bytes: from + 24,
            peak_reserved_bytes: from + 25,
            alloc_ns_p50: from + 26,
            alloc_ns_p99: from + 27,
            free_ns_p50: from + 28,
            free_ns_p99: from + 29,
            verified_bytes: from + 30,
            owed_bytes: from + 30,
            corrupt_bytes: from + 31,
            failed_allocs: from + 32,
            wall: Duration::from_secs(from + 33),
        }),
        ..report()
    }
}

#[cfg(feature = "cli")]
#[test]
fn every_value_of_the_json_is_the_reports_own() {
    for from in [100, 400] {
        let report = distinct(from);
        let versus = report.versus.as_ref().expect("another allocator");
        let ratio = |reserved, live| super::rounded(reserved as f64 / live as f64);
        let expected = serde_json::json!({
            "trace": format!("trace {from}"),
            "device": format!("device {from}"),
            "result": "failed",
            "reason": report.reasons().join("; "),
            "cap": from + 36,
            "verify": "edges",
            "events": from + 1,
            "streams": from + 2,
            "peak_live_bytes": from + 3,
            "reached_live_bytes": from + 35,
            "peak_reserved_bytes": from + 4,
            "reserved_ratio": ratio(from + 4, from + 35),
            "overhead_bytes": from + 34,
            "largest_hole_bytes": from + 5,
            "alloc_ns_p50": from + 6,
            "alloc_ns_p99": from + 7,
            "free_ns_p50": from + 8,
            "free_ns_p99": from + 9,
            "verified_bytes": from + 10,
            "corrupt_bytes": from + 11,
            "failed_allocs": from + 12,
            "handles_made": from + 13,
            "handles_remapped": from + 14,
            "bytes_moved": from + 15,
            "compactions": from + 16,
            "movable": report.movable.part(),
            "step_ns_p50": from + 17,
            "step_ns_p99": from + 18,
            "move_ns_p50": from + 19,
            "move_ns_p99": from + 20,
            "move_ns": from + 21,
            "wall_s": (from + 22) as f64,
            "versus": {
                "name": versus.name,
                "events": from + 23,
                "peak_reserved_bytes": from + 25,
                "reserved_ratio": ratio(from + 25, from + 24),
                "alloc_ns_p50": from + 26,
                "alloc_ns_p99": from + 27,
                "free_ns_p50": from + 28,
                "free_ns_p99": from + 29,
                "verified_bytes": from + 30,
                "corrupt_bytes": from + 31,
                "failed_allocs": from + 32,
                "wall_s": (from + 33) as f64,
            },
        });
        let value: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
        assert_eq!(value, expected);
    }
}
