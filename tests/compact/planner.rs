//! The planner: plans do what they say on random layouts, and the cost of playing real instances.

use std::path::PathBuf;

use proptest::prelude::*;
use warpool::compact::{Batch, Extent, Goal, Kind, Layout, Move, Plan, Planner};

/// Makes a plan's moves in `layout` block by block and checks each against what stands there.
fn execute(layout: &Layout, plan: &Plan) -> Result<Layout, String> {
    let mut after = layout.clone();
    for batch in &plan.batches {
        for m in batch.moves() {
            let there = after
                .get(m.src)
                .ok_or_else(|| format!("nothing at {:#x}", m.src))?;
            if there.kind != Kind::Movable || there.bytes != m.bytes {
                return Err(format!("{m:?} is not a movable block: {there:?}"));
            }
        }
        check_batch(&after, batch)?;
        // Sources free first: within a batch everything is read before it is overwritten.
        for m in batch.moves() {
            after.free(m.src);
        }
        for m in batch.moves() {
            if !after.place(m.dst, m.bytes, Kind::Movable) {
                return Err(format!("{m:?} does not go into a hole"));
            }
        }
    }
    Ok(after)
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

fn check_batch(layout: &Layout, batch: &Batch) -> Result<(), String> {
    let moves: &[Move] = batch.moves();
    match batch {
        Batch::Disjoint(_) => {
            for a in moves {
                if let Some(b) = moves
                    .iter()
                    .find(|b| overlap((a.dst, a.bytes), (b.src, b.bytes)))
                {
                    return Err(format!("{a:?} overwrites {b:?} in a disjoint batch"));
                }
            }
        }
        Batch::Slide { upward, .. } => {
            for m in moves {
                if m.dst == m.src || (m.dst > m.src) != *upward {
                    return Err(format!("{m:?} goes the wrong way"));
                }
            }
            for pair in moves.windows(2) {
                if pair[0].src + pair[0].bytes > pair[1].src
                    || pair[0].dst + pair[0].bytes > pair[1].dst
                {
                    return Err(format!("{pair:?} do not ascend"));
                }
            }
        }
        Batch::Circle { pieces, .. } => check_pieces(layout, moves, pieces)?,
    }
    Ok(())
}

/// Copies `pieces` byte range by byte range and checks that they come to `moves` and write nothing
/// but what is free or moves.
fn check_pieces(layout: &Layout, moves: &[Move], pieces: &[Batch]) -> Result<(), String> {
    // What stands where: (begin, bytes, where it stood at first).
    let mut stands: Vec<(u64, u64, u64)> = moves.iter().map(|m| (m.src, m.bytes, m.src)).collect();
    for batch in pieces {
        if matches!(batch, Batch::Circle { .. }) {
            return Err("a circle within a circle".into());
        }
        check_batch(layout, batch)?;
        let mut arrived = Vec::new();
        for m in batch.moves() {
            for &(at, bytes, origin) in &stands {
                let (begin, end) = (at.max(m.src), (at + bytes).min(m.src + m.bytes));
                if begin < end {
                    arrived.push((m.dst + begin - m.src, end - begin, origin + begin - at));
                }
            }
            let others = layout
                .extents()
                .filter(|e| e.kind != Kind::Hole && moves.iter().all(|m| m.src != e.addr));
            for e in others {
                if overlap((m.dst, m.bytes), (e.addr, e.bytes)) {
                    return Err(format!("{m:?} overwrites {e:?}"));
                }
            }
            let inside = |e: &Extent| overlap((m.dst, m.bytes), (e.addr, e.bytes));
            let reach = |e: Extent| (m.dst + m.bytes).min(e.end()) - m.dst.max(e.addr);
            if layout.extents().filter(inside).map(reach).sum::<u64>() != m.bytes {
                return Err(format!("{m:?} goes beyond what is mapped"));
            }
        }
        let written = batch.moves();
        stands = stands
            .into_iter()
            .flat_map(|(at, bytes, origin)| {
                // What is neither overwritten nor moved away stays.
                let mut left = vec![(at, at + bytes)];
                for m in written {
                    for taken in [(m.src, m.src + m.bytes), (m.dst, m.dst + m.bytes)] {
                        left = left.iter().flat_map(|&part| without(part, taken)).collect();
                    }
                }
                left.into_iter()
                    .map(move |(begin, end)| (begin, end - begin, origin + begin - at))
            })
            .chain(arrived)
            .collect();
    }
    for m in moves {
        let there: u64 = stands
            .iter()
            .filter(|&&(at, _, origin)| {
                (m.src..m.src + m.bytes).contains(&origin) && at - m.dst == origin - m.src
            })
            .map(|&(_, bytes, _)| bytes)
            .sum();
        if there != m.bytes {
            return Err(format!("{there} bytes of {m:?} have arrived"));
        }
    }
    Ok(())
}

/// What of the range is not in the other.
fn without(range: (u64, u64), taken: (u64, u64)) -> Vec<(u64, u64)> {
    [
        (range.0, range.1.min(taken.0)),
        (range.0.max(taken.1), range.1),
    ]
    .into_iter()
    .filter(|part| part.0 < part.1)
    .collect()
}

fn layouts(most: usize) -> impl Strategy<Value = Layout> {
    let extent = (1u64..40, 0u8..20);
    proptest::collection::vec(extent, 1..most).prop_map(|pieces| {
        let mut at = 0;
        let mut extents = Vec::new();
        for (units, kind) in pieces {
            let bytes = units * 512;
            let kind = match kind {
                0..=8 => Kind::Movable,
                9..=17 => Kind::Hole,
                18 => Kind::Fixed,
                _ => {
                    at += bytes; // not mapped
                    continue;
                }
            };
            extents.push(Extent {
                addr: at,
                bytes,
                kind,
            });
            at += bytes;
        }
        Layout::from_extents(extents).expect("extents ascend")
    })
}

fn fixed(layout: &Layout) -> Vec<Extent> {
    layout.extents().filter(|e| e.kind == Kind::Fixed).collect()
}

fn check_figures(before: &Layout, after: &Layout, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(fixed(before), fixed(after));
    prop_assert_eq!(before.live_bytes(), after.live_bytes());
    let moves = || plan.batches.iter().flat_map(|b| b.moves());
    prop_assert_eq!(plan.moves, moves().count());
    let bytes: u64 = plan.batches.iter().map(Batch::bytes).sum();
    prop_assert_eq!(plan.bytes, bytes);
    let moved: u64 = moves().map(|m| m.bytes).sum();
    prop_assert!(moved <= bytes && bytes <= 2 * moved);
    let model = Planner::new().model();
    let launches: usize = plan.batches.iter().map(Batch::launches).sum();
    let least = launches as f64 * model.launch_ns + plan.bytes as f64 / model.bytes_per_ns;
    prop_assert!(plan.predicted_ns >= least * (1.0 - 1e-6));
    prop_assert_eq!(plan.predicted_ns, model.nanos(&plan.batches));
    Ok(())
}

/// Free bytes of the stretch between fixed or unmapped ranges that has most of them.
fn most_in_a_stretch(layout: &Layout) -> u64 {
    let (mut most, mut free, mut end) = (0, 0, 0);
    for e in layout.extents() {
        if e.addr != end || e.kind == Kind::Fixed {
            free = 0;
        }
        free += if e.kind == Kind::Hole { e.bytes } else { 0 };
        (most, end) = (most.max(free), e.end());
    }
    most
}

proptest! {
    #[test]
    fn a_plan_for_a_hole_makes_it_where_it_says(layout in layouts(60), units in 1u64..200) {
        let bytes = units * 512;
        match Planner::new().plan(&layout, &Goal::Hole(bytes)) {
            Some(plan) => {
                let after = execute(&layout, &plan).map_err(TestCaseError::fail)?;
                check_figures(&layout, &after, &plan)?;
                let hole = plan.hole.expect("a plan for a hole says where it is");
                prop_assert!(after.clone().place(hole, bytes, Kind::Fixed), "no hole of {bytes} at {hole:#x}");
            }
            None => prop_assert!(most_in_a_stretch(&layout) < bytes, "there was a plan"),
        }
    }

    #[test]
    fn a_layout_beyond_the_whole_search_is_planned_as_well(layout in layouts(1200), units in 1u64..400) {
        let bytes = units * 512;
        if let Some(plan) = Planner::new().plan(&layout, &Goal::Hole(bytes)) {
            let after = execute(&layout, &plan).map_err(TestCaseError::fail)?;
            check_figures(&layout, &after, &plan)?;
            prop_assert!(after.largest_hole() >= bytes);
        } else {
            prop_assert!(most_in_a_stretch(&layout) < bytes, "there was a plan");
        }
    }

    #[test]
    fn a_full_compaction_leaves_one_hole_a_stretch(layout in layouts(200)) {
        let plan = Planner::new().plan(&layout, &Goal::Full).expect("full compaction always has a plan");
        let after = execute(&layout, &plan).map_err(TestCaseError::fail)?;
        check_figures(&layout, &after, &plan)?;
        prop_assert_eq!(after.largest_hole(), most_in_a_stretch(&layout));
    }

    #[test]
    fn emptied_handles_are_empty_and_nothing_of_others_moves(layout in layouts(120), wanted in 1u64..20) {
        let end = layout.extents().last().map_or(0, |e| e.end());
        let handles: Vec<(u64, u64)> = (0..end / 16_384).map(|h| (h * 16_384, 16_384)).collect();
        let goal = Goal::EmptyHandles { handles, bytes: wanted * 16_384 };
        let plan = Planner::new().plan(&layout, &goal).expect("emptying always has a plan");
        let after = execute(&layout, &plan).map_err(TestCaseError::fail)?;
        check_figures(&layout, &after, &plan)?;
        for &(addr, bytes) in &plan.emptied {
            prop_assert!(after.extents().all(|e| e.kind == Kind::Hole || !overlap((addr, bytes), (e.addr, e.bytes))));
        }
        prop_assert!(plan.emptied.len() as u64 <= wanted);
        for moved in plan.batches.iter().flat_map(|batch| batch.moves()) {
            prop_assert!(plan.emptied.iter().any(|&it| overlap(it, (moved.src, moved.bytes))), "moved for nothing");
        }
    }
}

#[test]
fn the_cheapest_window_is_evacuated() {
    let kinds = [
        (4, Kind::Hole),
        (1, Kind::Movable),
        (4, Kind::Hole),
        (8, Kind::Movable),
        (1, Kind::Hole),
    ];
    let layout = Layout::from_extents(row(&kinds)).expect("ascends");
    let plan = Planner::new()
        .plan(&layout, &Goal::Hole(9 * 512))
        .expect("nine units are free");
    assert_eq!((plan.bytes, plan.moves), (512, 1), "{plan:?}");
    assert_eq!(
        plan.batches,
        [Batch::Disjoint(vec![Move {
            src: 4 * 512,
            dst: 17 * 512,
            bytes: 512
        }])]
    );
}

#[test]
fn a_block_is_put_where_it_fits_and_nowhere_if_it_does_not() {
    let kinds = [(2, Kind::Hole), (8, Kind::Movable), (3, Kind::Hole)];
    let layout = Layout::from_extents(row(&kinds)).expect("ascends");
    let place = |units: u64| Planner::new().place(&layout, units * 512);
    assert_eq!(place(3), layout.extents().last().map(|hole| hole.addr));
    assert!(place(1).is_some_and(|at| {
        layout
            .extents()
            .any(|e| e.kind == Kind::Hole && e.addr <= at && at + 512 <= e.end())
    }));
    assert_eq!(place(4), None);
}

#[test]
fn where_nothing_fits_elsewhere_neighbours_slide() {
    let layout = Layout::from_extents(row(&[(2, Kind::Hole), (8, Kind::Movable), (3, Kind::Hole)]))
        .expect("ascends");
    let plan = Planner::new()
        .plan(&layout, &Goal::Hole(5 * 512))
        .expect("five units are free");
    assert_eq!(plan.bytes, 8 * 512);
    assert!(
        matches!(plan.batches[..], [Batch::Slide { .. }]),
        "{plan:?}"
    );
}

#[test]
fn blocks_that_stand_in_each_others_way_change_places_in_pieces() {
    // Six units fit nowhere until the movable blocks have changed sides, and all that is free
    // meanwhile is those six, in two parts.
    let kinds = [
        (4, Kind::Hole),
        (5, Kind::Movable),
        (1, Kind::Fixed),
        (9, Kind::Movable),
        (2, Kind::Hole),
    ];
    let layout = Layout::from_extents(row(&kinds)).expect("ascends");
    let plan = Planner::new()
        .plan(&layout, &Goal::Hole(6 * 512))
        .expect("six units are free");
    let after = execute(&layout, &plan).expect("the plan holds");
    assert_eq!((plan.moves, after.largest_hole()), (2, 6 * 512));
    assert!(
        matches!(plan.batches[..], [Batch::Circle { .. }]),
        "{plan:?}"
    );
    assert!(plan.bytes <= 16 * 512, "{plan:?}");
}

#[test]
fn a_pinned_block_parts_what_can_be_joined() {
    let kinds = [(2, Kind::Hole), (1, Kind::Fixed), (2, Kind::Hole)];
    let layout = Layout::from_extents(row(&kinds)).expect("ascends");
    assert_eq!(Planner::new().plan(&layout, &Goal::Hole(3 * 512)), None);
}

fn row(kinds: &[(u64, Kind)]) -> Vec<Extent> {
    let mut addr = 0;
    let mut extents = Vec::new();
    for &(units, kind) in kinds {
        extents.push(Extent {
            addr,
            bytes: units * 512,
            kind,
        });
        addr += units * 512;
    }
    extents
}

// ---- The MiniMalloc instances, played online -------------------------------------------------

struct Buffer {
    lower: i64,
    upper: i64,
    size: u64,
}

fn instances() -> Option<Vec<(String, Vec<Buffer>)>> {
    let root = std::env::var_os("WARPOOL_MINIMALLOC_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/traces/minimalloc"),
        PathBuf::from,
    );
    let mut all = Vec::new();
    for entry in std::fs::read_dir(root).ok()?.flatten() {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let buffers = text.lines().skip(1).map(|line| {
            let field = |i: usize| {
                line.split(',')
                    .nth(i)
                    .and_then(|f| f.parse::<i64>().ok())
                    .expect("a number")
            };
            Buffer {
                lower: field(1),
                upper: field(2),
                size: u64::try_from(field(3)).expect("a size"),
            }
        });
        all.push((
            entry.file_name().to_string_lossy().into_owned(),
            buffers.collect(),
        ));
    }
    all.sort_by(|a: &(String, _), b| a.0.cmp(&b.0));
    (all.len() == 11).then_some(all)
}

struct Outcome {
    plans: usize,
    moved: u64,
    allocated: u64,
}

/// Plays one instance in a range of its peak load times `slack`; frees come before allocations.
fn play(buffers: &[Buffer], slack: f64) -> Outcome {
    let mut events: Vec<(i64, bool, usize)> = Vec::new();
    for (id, b) in buffers.iter().enumerate() {
        events.extend([(b.lower, true, id), (b.upper, false, id)]);
    }
    events.sort_unstable();
    let (mut load, mut peak) = (0, 0);
    for &(_, alloc, id) in &events {
        load = if alloc {
            load + buffers[id].size
        } else {
            load - buffers[id].size
        };
        peak = peak.max(load);
    }
    let capacity = (peak as f64 * slack) as u64 / 1024 * 1024;
    let mut layout = Layout::from_extents(row(&[(capacity / 512, Kind::Hole)])).expect("a hole");
    let mut planner = Planner::new().with_budget(1500);
    let mut at = vec![0; buffers.len()];
    let mut outcome = Outcome {
        plans: 0,
        moved: 0,
        allocated: 0,
    };
    for (_, alloc, id) in events {
        let size = buffers[id].size;
        if !alloc {
            assert!(layout.free(at[id]));
            continue;
        }
        outcome.allocated += size;
        planner.note_request(size);
        let place = planner.place(&layout, size).unwrap_or_else(|| {
            let plan = planner
                .plan(&layout, &Goal::Hole(size))
                .expect("every instance completes");
            layout = execute(&layout, &plan).expect("the plan holds");
            outcome.moved += plan.bytes;
            relocate(&mut at, &plan);
            outcome.plans += 1;
            plan.hole.expect("a hole")
        });
        assert!(layout.place(place, size, Kind::Movable));
        at[id] = place;
    }
    outcome
}

fn relocate(at: &mut [u64], plan: &Plan) {
    for batch in &plan.batches {
        let moved: std::collections::HashMap<u64, u64> =
            batch.moves().iter().map(|m| (m.src, m.dst)).collect();
        for addr in at.iter_mut() {
            *addr = moved.get(addr).copied().unwrap_or(*addr);
        }
    }
}

/// Buffers that come and go as in a program of layers: few sizes, many lengths of life.
fn made_instance(seed: u64) -> Vec<Buffer> {
    let mut rng = warpool::device::sim::Rng::new(seed);
    let mut draw = |from: u64, to: u64| from + rng.below(to - from);
    let sizes: Vec<u64> = (0..8).map(|_| 1024 * draw(1, 120)).collect();
    (0..250)
        .map(|at| {
            let lower = at / 2;
            let life = if draw(0, 4) == 0 {
                draw(20, 90)
            } else {
                draw(1, 20)
            };
            Buffer {
                lower,
                upper: lower + life as i64,
                size: sizes[draw(0, 8) as usize],
            }
        })
        .collect()
}

#[test]
fn made_instances_complete_at_their_peak_load_moving_no_more_than_they_did() {
    let mean = |slack| {
        let ratio = |seed| {
            let outcome = play(&made_instance(seed), slack);
            outcome.moved as f64 / outcome.allocated as f64
        };
        (0..6).map(ratio).sum::<f64>() / 6.0
    };
    let (tight, loose) = (mean(1.0), mean(1.05));
    println!("moved per byte allocated: {tight:.4} at peak load, {loose:.4} with 5 % more");
    // What it was when this was written, and a twentieth: a worse search is a fault.
    assert!(tight <= 0.339 && loose <= 0.0247, "{tight} {loose}");
}

fn mean_over_instances(slack: f64) -> Option<f64> {
    let Some(instances) = instances() else {
        println!("skipped: no MiniMalloc instances; name their folder in WARPOOL_MINIMALLOC_DIR");
        return None;
    };
    let mut sum = 0.0;
    println!("slack {slack}: instance, buffers, plans, bytes moved per byte allocated");
    for (name, buffers) in &instances {
        let outcome = play(buffers, slack);
        let ratio = outcome.moved as f64 / outcome.allocated as f64;
        println!(
            "{name:16} {:4} {:4} {ratio:.4}",
            buffers.len(),
            outcome.plans
        );
        sum += ratio;
    }
    println!("mean {:.4}", sum / instances.len() as f64);
    Some(sum / instances.len() as f64)
}

#[test]
fn every_instance_completes_at_its_peak_load_moving_less_than_the_greedy_window_does() {
    if let Some(mean) = mean_over_instances(1.0) {
        // The greedy window with evacuation moves 0.17.
        assert!(mean <= 0.1, "{mean}");
    }
}

#[test]
fn with_five_percent_slack_a_third_of_that_is_moved() {
    if let Some(mean) = mean_over_instances(1.05) {
        assert!(mean <= 0.04, "{mean}");
    }
}
