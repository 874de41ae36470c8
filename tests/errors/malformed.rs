//! Malformed input of any kind is an error that names it, and changes nothing: one test a kind.
//! `tests/README.md` has them as a table, which a test here compares with this file.

use crate::common;

use crate::common::BackendOf;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use common::variables::{is_on_from, number_from};
use common::{devices, host};
use warpool::compact::{Budget, Goal, Kind, Move, MoveTable, SlideTable};
use warpool::convert::{Rounding, convert};
use warpool::device::sim::SimConfig;
use warpool::device::{Launch, RawEvent, RawStream};
use warpool::driver::abi;
use warpool::observe::Trace;
use warpool::pool::{HandleSize, Rows};
use warpool::{Device, Error, Pool, PoolConfig, Result, Stream};
use warpool::{View, ViewMut};

/// The error names `what`, and says more than that.
#[track_caller]
fn refused<T>(outcome: Result<T>, what: &str) {
    let error = outcome.err().expect("it was taken");
    let words = error.to_string();
    assert!(words.contains(what), "{words:?} does not name {what:?}");
    assert!(words.len() > what.len() + 8, "{words:?} says too little");
}

/// `attempt` leaves the pool's figures and books as they are.
fn unchanged(pool: &Pool, attempt: impl FnOnce()) {
    let figures = |pool: &Pool| {
        let stats = pool.stats();
        let live = (stats.allocated.current, stats.requested.current);
        (live, stats.blocks.current, stats.reserved.current)
    };
    let before = figures(pool);
    attempt();
    assert_eq!(figures(pool), before);
    pool.check_invariants().unwrap();
}

/// Runs `test` with a pool that has a live block, on every device.
fn with_pools(test: impl Fn(&Pool, &warpool::Stream)) {
    for device in devices() {
        let pool = Pool::new(&device, PoolConfig::default().limit(16 << 20)).unwrap();
        let stream = device.stream().unwrap();
        let live = pool.alloc(&stream, 100_000).unwrap();
        unchanged(&pool, || test(&pool, &stream));
        drop(live);
    }
}

#[test]
fn no_bytes_at_all_are_no_block() {
    with_pools(|pool, stream| {
        refused(pool.alloc(stream, 0), "bytes");
        refused(pool.alloc_typed_with_room::<u32>(stream, 17, 64), "room");
        for len in [1, 16] {
            drop(pool.alloc_typed_with_room::<u32>(stream, len, 64).unwrap());
        }
    });
}

#[test]
fn a_size_that_overflows_is_refused() {
    with_pools(|pool, stream| {
        refused(pool.alloc(stream, u64::MAX), "bytes");
        refused(pool.alloc(stream, (1 << 46) + 1), "bytes");
        refused(pool.alloc_typed::<u64>(stream, usize::MAX), "len");
        let one = pool.alloc_typed::<f32>(stream, 1).unwrap();
        refused(Rows::new(&one, usize::MAX, 0, 0), "rows");
        drop(one);
        refused(
            pool.alloc_typed_with_room::<u64>(stream, usize::MAX, 64),
            "room",
        );
        refused(pool.alloc_movable::<u64>(stream, usize::MAX), "len");
        // SAFETY: nothing is queued: the view is refused.
        refused(unsafe { View::<f32>::from_raw(16, usize::MAX) }, "len");
    });
}

#[test]
fn a_shrink_to_nothing_or_to_more_is_refused() {
    with_pools(|pool, stream| {
        let mut block = pool.alloc(stream, 5000).unwrap();
        refused(block.shrink(0), "bytes");
        refused(block.shrink(5001), "bytes");
        assert_eq!(block.bytes(), 5000);
    });
}

#[test]
fn data_of_another_length_is_refused() {
    with_pools(|pool, stream| {
        let mut buffer = pool.alloc_typed::<u32>(stream, 4).unwrap();
        refused(buffer.upload(&[1, 2, 3]), "data");
        let mut movable = pool.alloc_movable::<u32>(stream, 4).unwrap();
        refused(movable.upload(stream, &[1, 2, 3, 4, 5]), "data");
    });
}

#[test]
fn a_stream_or_event_of_another_device_is_refused() {
    let other = host();
    let theirs = other.stream().unwrap();
    with_pools(|pool, stream| {
        refused(pool.alloc(&theirs, 100), "stream");
        refused(pool.alloc_movable::<u8>(&theirs, 100), "stream");
        let mut block = pool.alloc(stream, 100).unwrap();
        refused(block.record_use(&theirs), "stream");
        refused(block.free_on(&theirs), "stream");
        movable_memory_takes_none_of_another_device(pool, stream, &theirs);
        refused(stream.wait_stream(&theirs), "stream");
        let event = pool.device().event().unwrap();
        refused(event.record(&theirs), "stream");
        refused(theirs.wait(&event), "event");
    });
}

/// Every call of movable memory that takes a stream; the block is as it was until it is freed.
fn movable_memory_takes_none_of_another_device(pool: &Pool, stream: &Stream, theirs: &Stream) {
    let mut movable = pool.alloc_movable::<u64>(stream, 100).unwrap();
    movable.upload(stream, &[7; 100]).unwrap();
    refused(movable.hold(theirs), "stream");
    refused(movable.hold_mut(theirs), "stream");
    refused(movable.upload(theirs, &[0; 100]), "stream");
    refused(movable.download(theirs), "stream");
    refused(movable.resize(theirs, 50), "stream");
    refused(pool.hold_id(movable.id(), theirs), "stream");
    // SAFETY: refused before anything is read.
    refused(unsafe { pool.register_pointers(theirs, 64, 1) }, "stream");
    let array = movable.register_pointers().unwrap();
    refused(array.hold(theirs), "stream");
    refused(array.unregister(theirs), "stream");
    let fixed = pool.alloc(stream, 64).unwrap();
    // SAFETY: the array goes before its memory.
    let array = unsafe { pool.register_pointers(stream, fixed.addr(), 8) }.unwrap();
    refused(array.hold(theirs), "stream");
    drop(array);
    drop(movable.register_pointers().unwrap());
    assert_eq!(movable.download(stream).unwrap(), [7; 100]);
    let before = pool.stats().blocks.current;
    refused(movable.free_on(theirs), "stream");
    assert_eq!(pool.stats().blocks.current, before - 1);
}

#[test]
fn a_block_cannot_be_freed_twice_or_to_another_pool() {
    with_pools(|pool, stream| {
        // A block knows its pool and is given up by value: neither can be written. What is left is
        // the plain number of a movable block.
        let first = pool.alloc_movable::<u8>(stream, 100).unwrap();
        let stale = first.id();
        drop(first);
        let second = pool.alloc_movable::<u8>(stream, 100).unwrap();
        assert_ne!(second.id(), stale);
        refused(pool.hold_id(stale, stream), "id");
    });
}

#[test]
fn a_movable_block_of_another_pool_is_refused() {
    with_pools(|pool, stream| {
        let other = Pool::new(pool.device(), PoolConfig::default()).unwrap();
        let ours = pool.alloc_movable::<u8>(stream, 100).unwrap();
        let theirs = other.alloc_movable::<u8>(stream, 100).unwrap();
        assert_eq!(ours.id().index, theirs.id().index, "the same place");
        refused(pool.hold_id(theirs.id(), stream), "id");
        refused(other.hold_id(ours.id(), stream), "id");
        drop(pool.hold_id(ours.id(), stream).unwrap());
    });
}

#[test]
fn what_a_device_handed_out_is_given_back_once() {
    for device in devices().into_iter().take(1) {
        let backend = device.backend();
        let stream = backend.stream_create().unwrap();
        backend.stream_destroy(stream).unwrap();
        refused(backend.stream_destroy(stream), "stream");
        let event = backend.event_create(false).unwrap();
        backend.event_destroy(event).unwrap();
        refused(backend.event_destroy(event), "event");
        let granule = device.info().granule;
        let phys = backend.create(granule).unwrap();
        backend.release(phys).unwrap();
        refused(backend.release(phys), "handle");
        let addr = backend.reserve(granule).unwrap();
        refused(backend.unmap(addr, granule), "addr");
        backend.unreserve(addr, granule).unwrap();
        refused(backend.unreserve(addr, granule), "range");
    }
}

#[test]
fn a_foreign_stream_event_or_address_is_refused() {
    let device = host();
    let backend = device.backend();
    let granule = device.info().granule;
    refused(backend.stream_sync(RawStream(0xDEAD)), "stream");
    refused(backend.event_sync(RawEvent(0xDEAD)), "event");
    // SAFETY: the handle is refused before anything is done with it.
    refused(unsafe { device.adopt_stream(RawStream(0xDEAD)) }, "stream");
    let phys = backend.create(granule).unwrap();
    refused(backend.map(0x1000 * granule, granule, phys), "addr");
    backend.release(phys).unwrap();
    assert_eq!(backend.counts().handles, 0);
}

#[test]
fn a_misaligned_address_or_size_is_refused() {
    // SAFETY: nothing is queued: the views are refused.
    unsafe {
        refused(View::<f32>::from_raw(0x1002, 4), "addr");
        refused(ViewMut::<f64>::from_raw(0x1004, 4), "addr");
    }
    let odd = Move {
        src: 8,
        dst: 64,
        bytes: 16,
    };
    refused(MoveTable::new(&[odd]), "moves");
    refused(SlideTable::new(&[odd], true), "moves");
    let device = host();
    let granule = device.info().granule;
    refused(device.backend().reserve(granule + 1), "bytes");
    refused(device.backend().create(granule / 2), "bytes");
}

#[test]
fn shapes_and_ranges_that_do_not_fit_each_other_are_refused() {
    with_pools(|pool, stream| {
        let source = pool.alloc_typed::<f32>(stream, 8).unwrap();
        let mut short = pool.alloc_typed::<half::f16>(stream, 7).unwrap();
        let outcome = convert(stream, source.view(), short.view_mut(), Rounding::Nearest);
        refused(outcome, "dst");
        // SAFETY: nothing is queued: the overlap is refused.
        let over = unsafe { ViewMut::<half::f16>::from_raw(source.addr() + 4, 8) }.unwrap();
        refused(
            convert(stream, source.view(), over, Rounding::Nearest),
            "dst",
        );
        let (first, last) = (5, 4);
        refused(source.view().slice(first..last), "range");
        refused(source.view().slice(..9), "range");
    });
}

/// A table of one move of no bytes.
#[repr(align(16))]
struct Table(#[expect(dead_code, reason = "a kernel reads it")] [u64; 2]);

static NO_MOVE: Table = Table([0; 2]);

/// Launches of every kernel that takes arguments that can be wrong, each with one that is.
fn wrong_launches() -> Vec<Launch> {
    // SAFETY: the arguments of the kernels are numbers and addresses as numbers.
    unsafe {
        let convert = abi::wp_convert {
            rows: 1,
            ..std::mem::zeroed()
        };
        let odd = abi::wp_relocate {
            moves: 8,
            ..std::mem::zeroed()
        };
        vec![
            Launch::Pattern(abi::wp_pattern {
                op: 99,
                ..std::mem::zeroed()
            }),
            Launch::Convert(abi::wp_convert {
                src_type: 99,
                ..convert
            }),
            Launch::Convert(abi::wp_convert {
                dst_type: 99,
                ..convert
            }),
            Launch::Convert(abi::wp_convert {
                dst_type: 1,
                rounding: 99,
                ..convert
            }),
            Launch::Convert(abi::wp_convert {
                dst_type: 1,
                overflow: 99,
                ..convert
            }),
            Launch::Inplace(abi::wp_inplace {
                src_type: 99,
                ..std::mem::zeroed()
            }),
            Launch::Inplace(abi::wp_inplace {
                addr: 8,
                dst_type: 1,
                ..std::mem::zeroed()
            }),
            Launch::Quantize(abi::wp_quantize {
                format: 99,
                ..std::mem::zeroed()
            }),
            Launch::Dequantize(abi::wp_quantize {
                format: 3,
                granularity: 99,
                ..std::mem::zeroed()
            }),
            Launch::Transpose(abi::wp_transpose {
                dst_type: 99,
                ..std::mem::zeroed()
            }),
            Launch::Unscale(abi::wp_unscale {
                type_: 99,
                ..std::mem::zeroed()
            }),
            Launch::Relocate(odd),
            Launch::Relocate(abi::wp_relocate {
                moves: std::ptr::from_ref(&NO_MOVE).addr() as u64,
                large: 1,
                ..std::mem::zeroed()
            }),
            Launch::Slide(abi::wp_slide {
                lo: 8,
                hi: 8,
                ..std::mem::zeroed()
            }),
            Launch::Slide(abi::wp_slide {
                lo: 1 << 20,
                ..std::mem::zeroed()
            }),
            Launch::Slide(abi::wp_slide {
                scratch: 8,
                ..std::mem::zeroed()
            }),
            Launch::Patch(abi::wp_patch {
                slots: 4,
                ..std::mem::zeroed()
            }),
            Launch::Patch(abi::wp_patch {
                ranges: 4,
                ..std::mem::zeroed()
            }),
            Launch::Scatter(abi::wp_scatter {
                words: 8,
                ..std::mem::zeroed()
            }),
        ]
    }
}

#[test]
fn a_kernel_argument_that_does_not_exist_is_refused() {
    for device in devices() {
        for launch in wrong_launches() {
            let stream = device.stream().unwrap();
            // SAFETY: there is nothing to do in any of them, were it not refused.
            let queued = unsafe { device.backend().launch(&launch, stream.raw()) };
            // The host device finds it when the launch runs.
            refused(queued.and_then(|()| stream.synchronize()), launch.name());
        }
    }
}

#[test]
fn a_goal_of_nothing_or_of_everything_moves_nothing() {
    with_pools(|pool, stream| {
        let block = pool.alloc_movable::<u8>(stream, 3000).unwrap();
        for bytes in [0, u64::MAX, u64::MAX - 511] {
            let moved = pool.compact(&Goal::Hole(bytes)).unwrap();
            assert_eq!((moved.bytes, moved.reached), (0, bytes == 0), "{bytes}");
        }
        let layout = pool.layout().unwrap();
        let of = |kind| layout.extents().find(move |it| it.kind == kind);
        let at = of(Kind::Movable).unwrap().addr;
        let goal = Goal::EmptyHandles {
            handles: vec![(at, 0), (at + 100, 0)],
            bytes: 1,
        };
        assert_eq!(pool.compact(&goal).unwrap().bytes, 0);
        for budget in [Budget::bytes(0), Budget::micros(f64::NAN)] {
            let mut pass = pool.begin_compaction(Goal::Full, budget).unwrap();
            while !pass.step().unwrap().finished {}
        }
        drop(block);
    });
}

#[test]
fn a_configuration_out_of_range_is_refused_or_harmless() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    for part in [0.0, -1.0, 1.1, f64::NAN, f64::INFINITY] {
        refused(pool.set_fraction(part), "part");
    }
    let stream = device.stream().unwrap();
    let odd = [
        PoolConfig::default().slack(f64::NAN),
        PoolConfig::default().slack(-3.0),
        PoolConfig::default().slack(f64::INFINITY),
        PoolConfig::default().handles(HandleSize::UpTo(0)),
        PoolConfig::default().handles(HandleSize::UpTo(u64::MAX)),
        PoolConfig::default().cache_bytes(u64::MAX),
        PoolConfig::default().overlap_bytes(u64::MAX),
        PoolConfig::default().soft_limit(0),
        PoolConfig::default().limit(8 << 20).preallocate(u64::MAX),
    ];
    for config in odd {
        let pool = Pool::new(&device, config.clone()).unwrap();
        for bytes in [1, 3 << 20, 5 << 20] {
            drop(
                pool.alloc(&stream, bytes)
                    .unwrap_or_else(|e| panic!("{config:?}: {e}")),
            );
        }
        pool.trim(u64::MAX).unwrap();
        pool.check_invariants().unwrap();
    }
    let pool = Pool::new(&device, PoolConfig::default().limit(0)).unwrap();
    refused(pool.alloc(&stream, 1), "raise it");
    let before = device.free_bytes().unwrap();
    let all = PoolConfig::default().preallocate(u64::MAX);
    match Pool::new(&device, all) {
        Err(Error::OutOfMemory(why)) => assert!(why.requested > before && why.live == 0, "{why:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.free_bytes().unwrap(), before);
}

#[test]
fn a_device_without_memory_is_refused() {
    let sim = SimConfig::default().with_capacity(1000);
    refused(Device::sim(&sim), "capacity");
    refused(
        Device::sim(&SimConfig::default().with_capacity(u64::MAX)),
        "capacity",
    );
    refused(Device::host_with_capacity(0), "capacity");
}

#[test]
fn an_event_that_cannot_be_measured_is_refused() {
    for device in devices() {
        let (plain, never) = (device.event().unwrap(), device.timing_event().unwrap());
        assert!(never.elapsed_ns(&plain).is_err());
        assert!(never.elapsed_ns(&never).is_err());
    }
}

#[test]
fn a_trace_that_cannot_have_happened_is_an_error_with_its_line() {
    const HEAD: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,64,0\n";
    let rows = [
        ("1,0,free,0x20,64,0\n", "3"),
        ("1,0,free,0x10,65,0\n", "3"),
        ("1,0,free,0x10,64,0\n1,0,free,0x10,64,0\n", "4"),
        ("1,0,allocate,0x10,64,0\n", "3"),
        ("1,0,allocate,0x30,99999999999999999999999,0\n", "3"),
        ("1,0,melt,0x30,64,0\n", "3"),
        ("1,0,allocate,0x30\n", "3"),
    ];
    for (row, line) in rows {
        let text = format!("{HEAD}{row}");
        let read = Trace::read_from("log", text.as_bytes(), 1 << 40);
        assert!(read.is_err(), "{row}");
        refused(read, &format!("log:{line}: "));
    }
    refused(Trace::read_from("log", &b""[..], 1), "log:1: ");
    refused(Trace::read_from("log", &[0x1f, 0x8b, 8, 0][..], 1), "log");
}

#[test]
fn an_environment_variable_that_is_no_number_is_an_error_that_names_it() {
    assert_eq!(warpool::device::sim::seeds_from(None, 5).unwrap(), 0..5);
    assert_eq!(
        warpool::device::sim::seeds_from(Some(" 7 "), 5).unwrap(),
        7..8
    );
    for text in ["", "x", "-1", "1.5", "99999999999999999999"] {
        refused(
            warpool::device::sim::seeds_from(Some(text), 5),
            "WARPOOL_SIM_SEED",
        );
    }
}

#[test]
fn a_variable_of_the_suites_that_cannot_be_is_a_failure_that_names_it() {
    let value = |text: &str| Some(OsStr::new(text).to_owned());
    let garbled = || Some(OsStr::from_bytes(b"1\xFF").to_owned());
    let number = |given| number_from("WARPOOL_CASES", given, 5);
    assert_eq!(number(None), Ok(5));
    assert_eq!(number(value(" ")), Ok(5), "set to nothing");
    assert_eq!(number(value(" 7 ")), Ok(7));
    let is_on = |given| is_on_from("WARPOOL_REQUIRE_GPU", given);
    assert_eq!(is_on(None), Ok(false));
    assert_eq!(is_on(value("")), Ok(false), "set to nothing");
    assert_eq!(is_on(value("0")), Ok(false));
    assert_eq!(is_on(value("1")), Ok(true));
    for text in ["0", "-1", "1e6", "many", "18446744073709551616"] {
        let why = number(value(text)).unwrap_err();
        assert!(why.starts_with(&format!("WARPOOL_CASES={text} ")), "{why}");
    }
    for text in ["2", "yes", "true", "10"] {
        let why = is_on(value(text)).unwrap_err();
        let named = format!("WARPOOL_REQUIRE_GPU={text} ");
        assert!(why.starts_with(&named), "{why}");
    }
    assert!(number(garbled()).is_err() && is_on(garbled()).is_err());
}

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

/// The Rust files of a folder and those below it.
fn sources(folder: PathBuf) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

/// The variables that a source file reads by name: what `call` is given first, and lists of them.
fn variables_in(code: &str) -> BTreeSet<String> {
    let calls = [
        "env::var(",
        "env::var_os(",
        ".var(",
        "cargo_var(",
        "text(machine, ",
        "variables::number(",
        "variables::is_on(",
    ];
    let given = |rest: &str| Some(rest.strip_prefix('"')?.split_once('"')?.0.to_owned());
    let mut names: BTreeSet<String> = calls
        .iter()
        .flat_map(|call| code.split(call).skip(1))
        .filter_map(given)
        .collect();
    for list in code.split("VARIABLES: [&str; ").skip(1) {
        let list = list.split("];").next().unwrap();
        let inside = list.split('"').skip(1).step_by(2);
        names.extend(inside.map(str::to_owned));
    }
    names
}

#[test]
fn every_variable_that_is_read_has_its_row() {
    let root = root();
    let page = std::fs::read_to_string(root.join("tests/README.md")).unwrap();
    let mut files = sources(root.join("src"));
    files.extend(sources(root.join("build")));
    files.push(root.join("build.rs"));
    let mut names = BTreeSet::new();
    for file in files {
        names.extend(variables_in(&std::fs::read_to_string(file).unwrap()));
    }
    assert!(
        names.contains("NVCC_CCBIN") && names.contains("WARPOOL_SIM_SEED"),
        "{names:?}"
    );
    let section = page.split("\n## Malformed input\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let told: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap()).collect();
    let left: Vec<_> = names
        .iter()
        .filter(|name| !told.iter().any(|cell| cell.contains(&format!("`{name}`"))))
        .collect();
    assert!(left.is_empty(), "no row for {left:?}");
}

#[test]
fn the_table_in_the_documentation_is_this_file() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (code, page) = (read("tests/errors/malformed.rs"), read("tests/README.md"));
    let tests: Vec<String> = code
        .split("#[test]\nfn ")
        .skip(1)
        .map(|rest| rest[..rest.find('(').unwrap()].replace('_', " "))
        .collect();
    let own = [
        "the table in the documentation is this file",
        "every variable that is read has its row",
    ];
    for test in tests.iter().filter(|test| !own.contains(&test.as_str())) {
        assert!(page.contains(&format!("| {test} |")), "no row for: {test}");
    }
}

/// Errors of the crate's own are told apart by kind, too.
#[test]
fn an_argument_out_of_range_is_the_invalid_kind() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let error = pool.alloc(&stream, 0).unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "bytes", .. }));
}
