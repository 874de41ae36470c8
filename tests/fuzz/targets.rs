//! What is fuzzed: each target takes any bytes and panics where something is wrong. The same
//! functions run under libFuzzer (`fuzz/`) and, over the kept corpus, under `cargo test`.

use proptest_state_machine::ReferenceStateMachine;
use warpool::Device;
use warpool::compact::{Batch, Extent, Goal, Kind, Layout, Plan, Planner};
use warpool::device::sim::SimConfig;
use warpool::observe::Trace;
use warpool::pool::HandleSize;

use crate::cap::Cap;
use crate::model::{EVENTS, Kind as BlockKind, Machine, Mix, Program, STREAMS, Setup, Step};
use crate::world::World;
use crate::{arch, record};

/// What a target does with a string of bytes, which must not panic.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const ALL: &[(&str, Target)] = &[
    ("trace", trace),
    ("sizes", sizes),
    ("records", records),
    ("plan", plan),
    ("pool", pool),
];

/// Numbers out of bytes; zeros when they run out.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u64 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        u64::from(first)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.byte() % bound
    }

    fn word(&mut self) -> u64 {
        self.byte() | self.byte() << 8 | self.byte() << 16
    }
}

/// The trace reader: what it reads is written and read again as the same; what it does not read is
/// an error with a place.
pub fn trace(data: &[u8]) {
    for most in [u64::MAX, 1 << 20] {
        match Trace::read_from("fuzz", data, most) {
            Ok(trace) => {
                let mut text = Vec::new();
                trace.write_csv(&mut text).expect("memory takes it");
                let again = Trace::read_from("fuzz", text.as_slice(), most).expect("reads");
                assert_eq!(trace, again);
            }
            Err(error) => assert!(error.to_string().starts_with("fuzz"), "{error}"),
        }
    }
}

/// Sizes and devices of the command line, and the architectures of the build.
pub fn sizes(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(cap) = text.parse::<Cap>() {
        for (peak, granule) in [(0, 1), (12345, 2 << 20), (u64::MAX, 2 << 20)] {
            if let Ok(bytes) = cap.bytes(peak, granule) {
                assert!(bytes.is_multiple_of(granule) || bytes == u64::MAX);
            }
        }
    }
    if let Ok(request) = arch::parse(&text) {
        for supported in [&[75, 90, 100][..], &[]] {
            if let Ok(chosen) = arch::choose(&request, supported) {
                arch::flags(&chosen);
                arch::names(&chosen);
            }
        }
    }
}

/// Records of measurements, the first line as JSON and all as text, and a document that asks for them.
pub fn records(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut records = record::Records::new();
    records.insert("text".to_owned(), record::Record::from_text(&text));
    let first = text.lines().next().unwrap_or_default();
    if let Ok(read) = record::Record::from_json(first) {
        records.insert("json".to_owned(), read);
    }
    if let Ok(filled) = record::fill(&text, &records) {
        assert_eq!(record::fill(&filled, &records).as_ref(), Ok(&filled));
    }
}

fn layout(bytes: &mut Bytes<'_>) -> Layout {
    let mut at = bytes.word() << 9;
    let mut extents = Vec::new();
    for _ in 0..bytes.byte() {
        let length = (1 + bytes.byte()) << (9 + bytes.below(4));
        let kind = match bytes.below(8) {
            0..3 => Kind::Movable,
            3..6 => Kind::Hole,
            6 => Kind::Fixed,
            _ => {
                at += length;
                continue;
            }
        };
        extents.push(Extent {
            addr: at,
            bytes: length,
            kind,
        });
        at += length;
    }
    Layout::from_extents(extents).expect("they ascend")
}

/// Makes the plan's moves block by block.
fn made(layout: &Layout, plan: &Plan) -> Layout {
    let mut after = layout.clone();
    for batch in &plan.batches {
        for m in batch.moves() {
            let there = after.get(m.src).expect("a block");
            assert!(there.kind == Kind::Movable && there.bytes == m.bytes);
        }
        if let Batch::Disjoint(moves) = batch {
            let apart = |a: (u64, u64), b: (u64, u64)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
            for a in moves {
                assert!(
                    moves
                        .iter()
                        .all(|b| apart((a.dst, a.bytes), (b.src, b.bytes)))
                );
            }
        }
        for m in batch.moves() {
            assert!(after.free(m.src));
        }
        for m in batch.moves() {
            assert!(after.place(m.dst, m.bytes, Kind::Movable));
        }
    }
    after
}

/// The planner: a plan can be made, does what it says and touches nothing fixed.
pub fn plan(data: &[u8]) {
    let mut bytes = Bytes(data);
    let layout = layout(&mut bytes);
    let size = bytes.word() << 9;
    let granule = 1 << (10 + bytes.below(12));
    let end = layout.extents().last().map_or(0, |last| last.end());
    let first = layout.extents().next().map_or(0, |first| first.addr);
    let handles = (first / granule..end / granule).map(|at| (at * granule, granule));
    let goals = [
        Goal::Hole(size),
        Goal::Full,
        Goal::EmptyHandles {
            handles: handles.take(200).collect(),
            bytes: size,
        },
    ];
    for goal in goals {
        let Some(plan) = Planner::new().plan(&layout, &goal) else {
            continue;
        };
        let after = made(&layout, &plan);
        assert_eq!(after.live_bytes(), layout.live_bytes());
        let fixed = |of: &Layout| -> Vec<Extent> {
            of.extents().filter(|e| e.kind == Kind::Fixed).collect()
        };
        assert_eq!(fixed(&layout), fixed(&after));
        if let (Goal::Hole(size), true) = (&goal, size > 0) {
            assert!(after.largest_hole() >= *size);
        }
    }
}

/// Blocks of both kinds.
#[derive(Debug, Clone)]
struct Any;

impl Mix for Any {
    const RAW: u32 = 1;
    const MOVABLE: u32 = 1;
}

fn setup(bytes: &mut Bytes<'_>) -> Setup {
    let handles = [
        HandleSize::Granule,
        HandleSize::UpTo(8 << 20),
        HandleSize::Adaptive,
    ];
    Setup {
        handles: handles[bytes.below(3) as usize],
        slack: [0.0, 0.004, 1.0][bytes.below(3) as usize],
        cache: [0, 64 << 10, 64 << 20][bytes.below(3) as usize],
        opportunistic: bytes.below(4) > 0,
        device_wait: bytes.below(4) > 0,
        preallocate: [0, 6 << 20][bytes.below(2) as usize],
        soft_limit: [None, Some(12 << 20)][bytes.below(2) as usize],
        overlap: [0, 64 << 20][bytes.below(2) as usize],
    }
}

fn step(bytes: &mut Bytes<'_>, program: &Program) -> Step {
    let ids: Vec<u32> = program.live.keys().copied().collect();
    let op = bytes.below(25);
    let id = match ids.len() as u64 {
        0 => u32::MAX,
        len => ids[bytes.below(len) as usize],
    };
    let stream = bytes.below(STREAMS as u64) as usize;
    let event = bytes.below(EVENTS as u64) as usize;
    let mut size = |most: u64| 1 + bytes.word() % most;
    match op {
        0..4 => Step::Alloc(BlockKind::Raw, stream, size(9 << 20)),
        4..7 => Step::Alloc(BlockKind::Movable, stream, size(3 << 20)),
        7..10 => Step::Free(id),
        10 => Step::FreeOn(id, stream),
        11 => Step::Read(id, stream),
        12 => Step::Write(id, stream),
        13 => Step::Shrink(id, size(4 << 20)),
        14 => Step::Pin(id, stream),
        15 => Step::Unpin(id),
        16 => Step::Record(event, stream),
        17 => Step::Wait(event, stream),
        18 => Step::Query(stream),
        19 => Step::Sync(stream),
        20 => Step::Renew(stream),
        21 => Step::Trim(size(8 << 20)),
        22 => Step::Limit(Some((4 << 20) + size(16 << 20))),
        23 => Step::Others(size(20) as usize),
        _ => Step::Compact(Some(size(12 << 20)), size(4 << 20)),
    }
}

/// The pool's operation stream, on the simulated device: as the state machines, with steps from
/// the bytes.
pub fn pool(data: &[u8]) {
    let mut bytes = Bytes(data);
    let seed = bytes.word();
    let setup = setup(&mut bytes);
    let mut program = Program::new(seed, setup, Some(24 << 20));
    let config = SimConfig::default().with_seed(program.seed);
    let device = Device::sim(&config.with_capacity(crate::CAPACITY)).expect("memory for it");
    let mut world = World::new(&device, &program);
    drop(device);
    for _ in 0..64 {
        if bytes.is_empty() {
            break;
        }
        let step = step(&mut bytes, &program);
        if Machine::<Any>::preconditions(&program, &step) {
            program = Machine::<Any>::apply(program, &step);
            world.step(&program, &step);
            world.check(&program);
        }
    }
    world.finish();
}
