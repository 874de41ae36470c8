//! The trace reader: what it accepts, what it refuses and how it says so, and that no bytes
//! whatever make it panic.

use proptest::prelude::*;
use warpool::Error;
use warpool::observe::{Event, EventKind, Trace, TraceWriter};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn read(text: impl AsRef<[u8]>) -> warpool::Result<Trace> {
    Trace::read_from("t.csv", text.as_ref(), u64::MAX)
}

fn rows(rows: &str) -> warpool::Result<Trace> {
    read(format!("{HEADER}{rows}"))
}

/// The line and words of the error that reading gives.
fn refused(result: warpool::Result<Trace>) -> (u64, String) {
    match result {
        Err(Error::Malformed { file, line, why }) => {
            assert_eq!(file, "t.csv");
            (line, why)
        }
        other => panic!("expected a malformed trace, got {other:?}"),
    }
}

#[test]
fn blocks_and_streams_are_numbered_by_first_appearance_and_the_peak_is_summed() {
    let trace = rows(
        "9,12:00:00:000001,allocate,0x500,100,0x2\n\
         9,12:00:00:000002,allocate,0x600,50,0x7\n\
         9,12:00:00:000003,free,0x500,100,0x7\n\
         9,12:00:00:000004,allocate,0x500,70,0x2\n",
    )
    .expect("reads");
    let event = |kind, block, bytes, stream| Event {
        bytes,
        block,
        stream,
        kind,
    };
    assert_eq!(
        trace.events(),
        [
            event(EventKind::Alloc, 0, 100, 0),
            event(EventKind::Alloc, 1, 50, 1),
            event(EventKind::Free, 0, 100, 1),
            event(EventKind::Alloc, 2, 70, 0),
        ]
    );
    assert_eq!(trace.streams(), [2, 7]);
    assert_eq!(trace.blocks(), 3);
    assert_eq!(trace.peak_live_bytes(), 150);
    assert_eq!(trace.name(), "t.csv");
}

#[test]
fn windows_line_ends_blank_lines_and_a_missing_last_newline_are_accepted() {
    let unix = rows("1,0,allocate,16,8,0\n1,0,deallocate,0x10,8,0\n").expect("reads");
    let windows = read(format!(
        "{}\r\n1,0,allocate,16,8,0\r\n1,0,free,16,8,0",
        HEADER.trim_end().to_owned() + "\r\n"
    ))
    .expect("reads");
    assert_eq!(unix, windows);
}

#[test]
fn failed_and_zero_byte_allocations_are_left_out() {
    let trace = rows(
        "1,0,allocate failure,(nil),4096,0x0\n\
         1,0,allocate,(nil),0,0x0\n\
         1,0,allocate,(nil),0,0x0\n\
         1,0,free,(nil),0,0x0\n\
         1,0,allocate,0x10,8,0x0\n",
    )
    .expect("reads");
    assert_eq!(trace.events().len(), 1);
    assert_eq!(trace.peak_live_bytes(), 8);
}

#[test]
fn every_malformed_line_is_an_error_with_its_line() {
    let live = "1,0,allocate,0x10,8,0\n";
    for (text, line, part) in [
        (
            "1,0,allocate,0x10,8\n".to_owned(),
            2,
            "5 fields where the header has 6",
        ),
        (
            "1,0,allocate,0x10,eight,0\n".to_owned(),
            2,
            "Size \"eight\" is not a number",
        ),
        (
            "1,0,grow,0x10,8,0\n".to_owned(),
            2,
            "unknown action \"grow\"",
        ),
        (
            "1,0,free,0x10,8,0\n".to_owned(),
            2,
            "0x10 is freed but is not live",
        ),
        (
            format!("{live}{live}"),
            3,
            "allocated again while it is live with 8 bytes",
        ),
        (
            format!("{live}\n1,0,free,0x10,9,0\n"),
            4,
            "freed with 9 bytes but was allocated with 8",
        ),
        (
            format!("{live}1,0,free,0x10,0,0\n"),
            3,
            "freed with 0 bytes but was allocated with 8",
        ),
        (
            format!("{live}1,0,free,0x10,8,0\n1,0,free,0x10,8,0\n"),
            4,
            "0x10 is freed but is not live",
        ),
        (
            format!("{live}1,0,allocate,0x20,18446744073709551615,0\n"),
            3,
            "no longer fit in 64 bits",
        ),
    ] {
        let (found, why) = refused(rows(&text));
        assert_eq!(found, line, "{text}: {why}");
        assert!(why.contains(part), "{text}: {why}");
    }
}

#[test]
fn a_file_without_a_header_or_without_events_is_refused() {
    let (line, why) = refused(read(""));
    assert_eq!((line, why.contains("empty")), (1, true), "{why}");
    let (line, why) = refused(read(HEADER));
    assert_eq!((line, why.contains("no events")), (1, true), "{why}");
    let failed = "1,0,allocate failure,(nil),99,0\n";
    let (line, why) = refused(read(format!("{HEADER}{failed}{failed}")));
    let said = "all 2 requests in the file failed: nothing is left to replay";
    assert_eq!((line, why.as_str()), (3, said));
    let (line, why) = refused(read("1,0,allocate,0x10,8,0\n"));
    assert_eq!(
        (line, why.contains("expected Thread,Time,Action")),
        (1, true),
        "{why}"
    );
}

#[test]
fn a_block_larger_than_the_device_is_refused_with_its_line() {
    let text = format!("{HEADER}1,0,allocate,1,4096,0\n1,0,allocate,2,4097,0\n");
    let (line, why) = refused(Trace::read_from("t.csv", text.as_bytes(), 4096));
    assert_eq!(line, 3);
    assert!(
        why.contains("4097 bytes are more than the whole device, which has 4096"),
        "{why}"
    );
}

#[test]
fn more_streams_than_an_event_can_name_are_refused() {
    let text: String = (0..=65_536)
        .map(|n| format!("1,0,allocate,{n},1,{n}\n"))
        .collect();
    let (line, why) = refused(rows(&text));
    assert_eq!(line, 65_538);
    assert!(why.contains("more than 65,536 streams"), "{why}");
}

#[test]
fn a_missing_file_is_an_error_with_its_name() {
    let error = Trace::read("/nowhere/at/all.csv", u64::MAX)
        .expect_err("no such file")
        .to_string();
    assert!(
        error.starts_with("/nowhere/at/all.csv: cannot open"),
        "{error}"
    );
}

#[cfg(feature = "cli")]
mod gzip {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    fn recorded(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("traces")
            .join(name)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(text.as_bytes()).expect("compresses");
        to.finish().expect("compresses")
    }

    fn long() -> String {
        let mut text = HEADER.to_owned();
        for n in 0..20_000u64 {
            text.push_str(&format!(
                "1,0,allocate,{n},{},{}\n",
                n * n % 7919 + 1,
                n % 3
            ));
        }
        text
    }

    #[test]
    fn a_gzip_file_and_one_of_two_members_read_as_the_plain_text() {
        let text = long();
        let plain = read(&text).expect("reads");
        assert_eq!(read(gzip(&text)).expect("reads"), plain);
        let (head, tail) = text.split_at(text.len() / 2);
        assert_eq!(
            read([gzip(head), gzip(tail)].concat()).expect("reads"),
            plain
        );
    }

    #[test]
    fn a_truncated_gzip_is_an_error_with_its_line() {
        let whole = gzip(&long());
        let (line, why) = refused(read(&whole[..whole.len() / 2]));
        assert!(why.contains("truncated"), "{why}");
        assert!(
            (5_000..15_000).contains(&line),
            "half of 20,001 lines, found {line}"
        );
    }

    #[test]
    fn a_gzip_cut_anywhere_or_with_a_flipped_bit_never_reads_as_whole() {
        let whole = gzip(&format!(
            "{HEADER}1,0,allocate,0x10,8,0\n1,0,free,0x10,8,0\n"
        ));
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "cut to {length}");
        }
        let mut damaged = whole.clone();
        let middle = whole.len() - 6;
        damaged[middle] ^= 1; // the checksum
        assert!(refused(read(&damaged)).1.contains("damaged"));
    }

    #[test]
    fn bytes_behind_the_gzip_stream_are_an_error() {
        let whole = gzip(&format!("{HEADER}1,0,allocate,0x10,8,0\n"));
        assert!(read([&whole[..], b"rubbish that is no gzip member"].concat()).is_err());
    }

    #[test]
    fn the_recorded_traces_have_the_events_and_peaks_they_are_known_for() {
        let gpt2 = Trace::read(recorded("gpt2_train_varlen.csv.gz"), u64::MAX).expect("reads");
        assert_eq!(gpt2.events().len(), 216_551);
        assert_eq!(gpt2.peak_live_bytes() >> 20, 18_222);
        assert_eq!(gpt2.streams().len(), 1);
        let resnet =
            Trace::read(recorded("resnet50_train_varres.csv.gz"), u64::MAX).expect("reads");
        assert_eq!(resnet.events().len(), 62_015);
        assert_eq!(resnet.peak_live_bytes() >> 20, 5_137);
        assert_eq!(resnet.streams().len(), 2);
    }

    #[test]
    fn a_recorded_trace_is_the_same_after_writing_and_reading() {
        let name = recorded("resnet50_train_varres.csv.gz");
        let trace = Trace::read(name, u64::MAX).expect("reads");
        let mut text = Vec::new();
        trace.write_csv(&mut text).expect("writes");
        let again = Trace::read_from(trace.name(), text.as_slice(), u64::MAX);
        assert_eq!(again.expect("reads"), trace);
    }

    proptest! {
        #[test]
        fn no_bytes_inside_a_gzip_make_the_reader_panic(text in ".{0,200}") {
            let _ = read(gzip(&text));
            let _ = read(gzip(&format!("{HEADER}{text}")));
        }
    }
}

/// A field of a row: what fits, what almost does, and anything.
fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0u64..6).prop_map(|n| n.to_string()),
        2 => (0u64..6).prop_map(|n| format!("{n:#x}")),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => ".{0,12}",
    ]
}

fn line() -> impl Strategy<Value = String> {
    let action = prop::sample::select(vec![
        "allocate",
        "free",
        "deallocate",
        "allocate failure",
        "x",
    ]);
    (action, field(), field(), field()).prop_map(|(a, p, b, s)| format!("1,0,{a},{p},{b},{s}\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes);
        let _ = read([b"\x1f\x8b".as_slice(), &bytes].concat());
        let _ = read([HEADER.as_bytes(), &bytes].concat());
    }

    #[test]
    fn a_trace_that_reads_frees_only_live_blocks_with_their_size(
        lines in prop::collection::vec(line(), 0..60),
    ) {
        let Ok(trace) = rows(&lines.concat()) else { return Ok(()) };
        let mut live = std::collections::HashMap::new();
        let (mut bytes, mut peak, mut next) = (0, 0, 0);
        for event in trace.events() {
            prop_assert!(event.bytes > 0);
            prop_assert!(usize::from(event.stream) < trace.streams().len());
            match event.kind {
                EventKind::Alloc => {
                    prop_assert_eq!(event.block, next);
                    next += 1;
                    live.insert(event.block, event.bytes);
                    bytes += event.bytes;
                }
                EventKind::Free => {
                    prop_assert_eq!(live.remove(&event.block), Some(event.bytes));
                    bytes -= event.bytes;
                }
            }
            peak = peak.max(bytes);
        }
        prop_assert_eq!(trace.blocks(), next);
        prop_assert_eq!(trace.peak_live_bytes(), peak);
    }

    #[test]
    fn what_is_written_reads_back_the_same(
        steps in prop::collection::vec((any::<prop::sample::Index>(), 1u64..1 << 40, 0u64..5), 1..200),
    ) {
        let mut writer = TraceWriter::new(Vec::new()).expect("writes");
        let mut live: Vec<(u32, u64)> = Vec::new();
        let mut expected = Vec::new();
        let mut next = 0;
        for (choice, bytes, stream) in steps {
            // Half of the choices free, as long as something is live.
            let at = choice.index(live.len() * 2 + 1);
            if at < live.len() {
                let (block, bytes) = live.swap_remove(at);
                writer.free(u64::from(block) * 3, bytes, stream).expect("writes");
                expected.push((EventKind::Free, block, bytes, stream));
            } else {
                writer.allocate(u64::from(next) * 3, bytes, stream).expect("writes");
                live.push((next, bytes));
                expected.push((EventKind::Alloc, next, bytes, stream));
                next += 1;
            }
        }
        let trace = read(writer.finish().expect("writes")).expect("reads");
        let found: Vec<_> = trace
            .events()
            .iter()
            .map(|e| (e.kind, e.block, e.bytes, trace.streams()[usize::from(e.stream)]))
            .collect();
        prop_assert_eq!(found, expected);
        let mut again = Vec::new();
        trace.write_csv(&mut again).expect("writes");
        prop_assert_eq!(read(again).expect("reads"), trace);
    }
}
