//! Device time of the kernels that move live data, beside the device's own copy and, where
//! `scripts/bench-peers.sh` has built it, CUB's batched copy, all in one run.
//!
//! Every figure is a median of device times between events, of a gibibyte of random data and more,
//! warm. GB/s counts bytes read and bytes written. Before it is timed, each case runs once on fresh
//! content with the destination poisoned, and every byte is checked. On a machine without a GPU the
//! host device runs, on less memory: that shows the bench works and says nothing about a GPU.

mod common;

use std::path::PathBuf;

use common::field::Field;
use common::peers::{BatchedTable, Peers};
use common::record::About;
use common::{Figure, Lab, Random, median};
use warpool::Stream;
use warpool::compact::{Move, MoveTable, SlideTable};
use warpool::device::{DeviceKind, Launch};
use warpool::driver::abi;
use warpool::interop::CudaAsync;

const OURS: &str = "warpool";
/// Slides as GPUs get them on which the unfenced flags were not measured.
const FENCED: &str = "warpool, fenced";
const COPY: &str = "cudaMemcpyAsync";
const CUB: &str = "CUB";

/// Shifts of one large block, in bytes.
const DOWN: [u64; 8] = [
    16,
    256,
    4 << 10,
    64 << 10,
    1 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];
const UP: [u64; 3] = [256, 64 << 10, 64 << 20];

fn main() {
    let mut lab = Lab::new("relocate");
    lab.record.compare(&[("of_copy", COPY), ("times_cub", CUB)]);
    let device = lab.device.clone();
    let cuda = device.info().kind == DeviceKind::Cuda;
    // CUB works in the context that is current.
    let context = cuda.then(|| CudaAsync::new(&device, None).expect("the context"));
    let _entered = context.as_ref().map(|c| c.enter().expect("the context"));
    let peers = cuda.then(Peers::open).flatten();
    let field = Field::new(&device);
    let copies = batched(&mut lab, &field, peers.as_ref());
    slides(&mut lab, &field, copies);
    neighbours(&mut lab, &field, copies);
    patch(&mut lab, &field);
    if let Some(peers) = &peers {
        background(&mut lab, &field, peers);
    }
    lab.criterion.final_summary();
    lab.record.print();
    if let Some(path) = std::env::var_os("WARPOOL_BENCH_JSON") {
        let about = About {
            title: "Moving live data on the device",
            command: "scripts/bench-peers.sh; cargo bench --bench relocate".to_owned(),
        };
        lab.record.write(&PathBuf::from(path), &device, &about);
    }
}

/// A size as people write it.
fn size(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        30.. => format!("{} GiB", bytes >> 30),
        20.. => format!("{} MiB", bytes >> 20),
        10.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// GB/s of the device's own copy of `bytes`.
fn copy(lab: &mut Lab, field: &Field, bytes: u64) -> f64 {
    let case = format!("{} at once", size(bytes));
    let mut samples = Vec::new();
    lab.measure(
        ("copy", &case, COPY),
        Figure::GbPerS { bytes: 2 * bytes },
        |times| {
            let took = field.time(times, || field.copy(bytes));
            samples.push(took.as_nanos() as f64 / times as f64);
            took
        },
    );
    let last = samples.len().saturating_sub(common::SAMPLES);
    median(&mut samples[last..]).map_or(f64::NAN, |ns| 2.0 * bytes as f64 / ns)
}

/// Sizes between 256 bytes and 16 MiB, each octave as likely as any other, `total` bytes in all.
fn mixed(total: u64) -> Vec<u64> {
    let (mut sizes, mut left, mut random) = (Vec::new(), total, Random(2));
    while left > 0 {
        let octave = 256u64 << random.below(16);
        let size = (octave + random.below(octave)) / 256 * 256;
        sizes.push(size.min(left));
        left -= size.min(left);
    }
    sizes
}

/// Blocks of the first area, side by side, sent to the second in shuffled order.
fn scattered(field: &Field, sizes: &[u64]) -> Vec<Move> {
    let mut src = field.base;
    let mut moves: Vec<Move> = sizes
        .iter()
        .map(|&bytes| {
            src += bytes;
            let (src, dst) = (src - bytes, 0);
            Move { src, dst, bytes }
        })
        .collect();
    let mut random = Random(3);
    for i in (1..moves.len()).rev() {
        moves.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut dst = field.second();
    for m in &mut moves {
        m.dst = dst;
        dst += m.bytes;
    }
    moves
}

/// Disjoint moves; gives GB/s of the device's own copy of as many bytes.
fn batched(lab: &mut Lab, field: &Field, peers: Option<&Peers>) -> f64 {
    let whole = copy(lab, field, field.bytes);
    for bytes in [256u64, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let sizes = vec![bytes; (field.bytes / bytes) as usize];
        batch(lab, field, peers, &size(bytes), &sizes, whole);
    }
    batch(
        lab,
        field,
        peers,
        "256 B to 16 MiB",
        &mixed(field.bytes),
        whole,
    );
    let small = (field.bytes / 8192).min(100_000);
    let mut skewed = vec![4096; small as usize];
    skewed.push(field.bytes);
    let uneven = copy(lab, field, field.bytes + small * 4096);
    let case = format!("{} among {small} of 4 KiB", size(field.bytes));
    batch(lab, field, peers, &case, &skewed, uneven);
    whole
}

fn batch(
    lab: &mut Lab,
    field: &Field,
    peers: Option<&Peers>,
    case: &str,
    sizes: &[u64],
    copies: f64,
) {
    let moves = scattered(field, sizes);
    let table = MoveTable::new(&moves).expect("a table");
    let at = field.upload(field.tables(), &table.image());
    let launch = Launch::Relocate(table.args(at, 0));
    field.check(case, &moves, || field.launch(&launch));
    let figure = Figure::GbPerS {
        bytes: 2 * sizes.iter().sum::<u64>(),
    };
    lab.measure(("batched", case, OURS), figure, |times| {
        field.time(times, || field.launch(&launch))
    });
    lab.record.add("batched", case, figure.name(), COPY, copies);
    let Some(peers) = peers else { return };
    let words: Vec<u64> = [|m: &Move| m.src, |m: &Move| m.dst, |m: &Move| m.bytes]
        .iter()
        .flat_map(|word| moves.iter().map(word))
        .collect();
    let from = field.upload(field.tables(), bytemuck::cast_slice(&words));
    let column = 8 * moves.len() as u64;
    let table = BatchedTable {
        from,
        to: from + column,
        bytes: from + 2 * column,
        count: moves.len() as u32,
    };
    let temp = (from + 3 * column).next_multiple_of(256);
    let needs = peers.batched_needs(&table, &field.stream);
    field.check(case, &moves, || {
        peers.batched(temp, needs, &table, &field.stream)
    });
    lab.measure(("batched", case, CUB), figure, |times| {
        field.time(times, || peers.batched(temp, needs, &table, &field.stream))
    });
}

/// A slide of `moves`, which may overlap.
fn slide(lab: &mut Lab, field: &Field, bench: &'static str, case: &str, moves: &[Move], of: f64) {
    let upward = moves.iter().any(|m| m.dst > m.src);
    let table = SlideTable::new(moves, upward).expect("a table");
    let at = field.upload(field.tables(), table.image());
    let scratch = (at + table.image().len() as u64).next_multiple_of(256);
    let figure = Figure::GbPerS {
        bytes: 2 * moves.iter().map(|m| m.bytes).sum::<u64>(),
    };
    let mut args = table.args(at, scratch, 0).expect("arguments");
    for (subject, fenced) in [(OURS, 0), (FENCED, 1)] {
        args.fenced = fenced;
        let launch = Launch::Slide(args);
        field.check(case, moves, || field.launch(&launch));
        lab.measure((bench, case, subject), figure, |times| {
            field.time(times, || field.launch(&launch))
        });
    }
    lab.record.add(bench, case, figure.name(), COPY, of);
}

/// One block of a gibibyte, by short and by long shifts.
fn slides(lab: &mut Lab, field: &Field, copies: f64) {
    let (base, bytes) = (field.base, field.bytes);
    let fits = |shift: &u64| *shift <= field.area - bytes;
    for shift in DOWN.into_iter().filter(fits) {
        let (src, dst) = (base + shift, base);
        let case = format!("down by {}", size(shift));
        slide(
            lab,
            field,
            "slide",
            &case,
            &[Move { src, dst, bytes }],
            copies,
        );
    }
    for shift in UP.into_iter().filter(fits) {
        let (src, dst) = (base, base + shift);
        let case = format!("up by {}", size(shift));
        slide(
            lab,
            field,
            "slide",
            &case,
            &[Move { src, dst, bytes }],
            copies,
        );
    }
}

/// Many neighbours that close the holes between them, so that no two shift alike.
fn neighbours(lab: &mut Lab, field: &Field, copies: f64) {
    for count in [1_000u64, 10_000, 100_000] {
        let pitch = field.bytes / count / 512 * 512;
        if pitch == 0 {
            continue; // the host's field is too small for so many
        }
        let bytes = pitch - 256;
        let row: Vec<Move> = (0..count)
            .map(|i| Move {
                src: field.base + (i + 1) * pitch,
                dst: field.base + i * bytes,
                bytes,
            })
            .collect();
        if row.last().map(|m| m.src + m.bytes) > Some(field.second()) {
            continue;
        }
        let case = format!("{count} close holes of 256 B");
        slide(lab, field, "neighbours", &case, &row, copies);
    }
}

/// Slots of every kind against many ranges, there and back again so that each run finds work.
fn patch(lab: &mut Lab, field: &Field) {
    let ranges = 100_000u64;
    let slots = 100_000_000.min(field.bytes / 8);
    let (from, to, bytes) = (1u64 << 40, 1u64 << 41, 4096);
    let there: Vec<u64> = (0..ranges)
        .flat_map(|i| [from + i * 8192, to + i * 8192, bytes])
        .collect();
    let back: Vec<u64> = there.chunks(3).flat_map(|m| [m[1], m[0], m[2]]).collect();
    let mut random = Random(4);
    let image: Vec<u64> = (0..slots)
        .map(|_| {
            let base = from + random.below(ranges) * 8192;
            match random.below(10) {
                0 => 0,                                      // null
                1 => 1 << 47 | random.next() >> 17,          // of no range, here or there
                2 | 3 => base + bytes + random.below(bytes), // of no range, between two
                4 | 5 => base,
                _ => base + random.below(bytes), // interior
            }
        })
        .collect();
    let moved: Vec<u64> = image
        .iter()
        .map(|&slot| match slot.wrapping_sub(from) {
            offset if offset < ranges * 8192 && offset % 8192 < bytes => to + offset,
            _ => slot,
        })
        .collect();
    let launches = [there, back].map(|table| {
        let at = field.tables() + if table[0] == from { 0 } else { 4 << 20 };
        Launch::Patch(abi::wp_patch {
            slots: field.base,
            slot_count: slots,
            ranges: field.upload(at, bytemuck::cast_slice(&table)),
            range_count: ranges as u32,
            max_blocks: 0,
        })
    });
    field.upload(field.base, bytemuck::cast_slice(&image));
    for (launch, expected) in launches.iter().zip([&moved, &image]) {
        field.launch(launch);
        if field.download(field.base, slots) != *expected {
            eprintln!("the patch left wrong slots");
            std::process::exit(1);
        }
    }
    let case = format!("{slots} slots, {ranges} ranges");
    let mut turn = 0;
    lab.measure(
        ("patch", &case, OURS),
        Figure::GslotsPerS { slots },
        |times| {
            field.time(times, || {
                field.launch(&launches[turn % 2]);
                turn += 1;
            })
        },
    );
}

/// Moves kept to a few multiprocessors, and what other work loses by them.
fn background(lab: &mut Lab, field: &Field, peers: &Peers) {
    let half = field.area / 2 / (1 << 20) * (1 << 20);
    let moves: Vec<Move> = (0..half / (1 << 20))
        .map(|i| Move {
            src: field.base + (i << 20),
            dst: field.base + half + (i << 20),
            bytes: 1 << 20,
        })
        .collect();
    let table = MoveTable::new(&moves).expect("a table");
    let at = field.upload(field.tables(), &table.image());
    let other = field.stream.device().stream().expect("a stream");
    let by_memory = |stream: &Stream| {
        for _ in 0..8 {
            peers.use_memory(field.second(), field.area, stream);
        }
    };
    let by_arithmetic = |stream: &Stream| peers.compute(field.second(), 50_000, stream);
    for blocks in [1u32, 4, 16, 0] {
        let launch = Launch::Relocate(table.args(at, blocks));
        let with = match blocks {
            0 => "all at once".to_owned(),
            1 => "1 thread block".to_owned(),
            _ => format!("{blocks} thread blocks"),
        };
        let alone = middle_of(|| field.time(1, || field.launch(&launch)).as_secs_f64());
        let rate = 2.0 * half as f64 / alone / 1e9;
        lab.record.add("background", &with, "GB/s", OURS, rate);
        beside(lab, field, &launch, alone, (&with, "memory"), &|| {
            by_memory(&other);
            &other
        });
        beside(lab, field, &launch, alone, (&with, "arithmetic"), &|| {
            by_arithmetic(&other);
            &other
        });
    }
}

/// How many times as long work takes with moves beside it, which take `alone` seconds a launch.
fn beside<'s>(
    lab: &mut Lab,
    field: &Field,
    launch: &Launch,
    alone: f64,
    (with, bound): (&str, &str),
    work: &dyn Fn() -> &'s Stream,
) {
    let other = work();
    other.synchronize().expect("done");
    let run = || {
        field
            .time_on(other, 1, || {
                work();
            })
            .as_secs_f64()
    };
    let undisturbed = middle_of(run);
    let disturbed = middle_of(|| {
        for _ in 0..(4.0 * undisturbed / alone).ceil() as u64 + 2 {
            field.launch(launch);
        }
        let took = run();
        field.stream.synchronize().expect("done");
        took
    });
    let case = format!("{with}, beside work bound by {bound}");
    let slower = disturbed / undisturbed;
    lab.record
        .add("background", &case, "times as long", OURS, slower);
}

/// The median of five.
fn middle_of(mut run: impl FnMut() -> f64) -> f64 {
    let mut times: Vec<f64> = (0..5).map(|_| run()).collect();
    median(&mut times).unwrap_or(f64::NAN)
}
