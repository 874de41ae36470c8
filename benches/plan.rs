//! Time of a plan for one hole, by the number of live blocks.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warpool::compact::{Extent, Goal, Kind, Layout, Planner};

/// Blocks and holes in turn, sizes from 512 bytes up, log-uniform over eight octaves.
fn layout(blocks: u64) -> Layout {
    let mut state = 0x1234_5678_9ABC_DEF0u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut addr = 0;
    let mut extents = Vec::new();
    for _ in 0..blocks {
        let kind = if random() % 50 == 0 {
            Kind::Fixed
        } else {
            Kind::Movable
        };
        let pieces = [(kind, random()), (Kind::Hole, random())];
        for (kind, noise) in pieces.into_iter().take(1 + (random() % 2) as usize) {
            let bytes = (512 << (noise % 8)) + 512 * (noise >> 32) % (512 << (noise % 8));
            let bytes = bytes / 512 * 512;
            extents.push(Extent { addr, bytes, kind });
            addr += bytes;
        }
    }
    Layout::from_extents(extents).unwrap_or_default()
}

fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(20);
    for blocks in [100u64, 1_000, 10_000, 100_000, 1_000_000] {
        let layout = layout(blocks);
        let planner = Planner::new();
        let goal = Goal::Hole(2 * layout.largest_hole());
        group.bench_with_input(
            BenchmarkId::new("hole", blocks),
            &layout,
            |bencher, layout| {
                bencher.iter(|| black_box(planner.plan(black_box(layout), &goal)));
            },
        );
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
