//! The kernels that move live data, against `memmove` and plain loops, many cases to a launch.

use crate::common;

use crate::common::BackendOf;
use common::{Memory, devices};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use warpool::compact::{Move, MoveTable, SlideTable};
use warpool::device::{DeviceKind, Launch};
use warpool::driver::abi;
use warpool::{Device, Stream};

const ARENA: u64 = 24 << 20;
const TABLES: u64 = 8 << 20;

/// An arena on a device, tables beside it, and the arena's bytes as they should be.
struct Bench {
    stream: Stream,
    memory: Memory,
    model: Vec<u8>,
    slides: u32,
}

impl Bench {
    fn new(device: &Device) -> Self {
        let stream = device.stream().unwrap();
        let memory = Memory::new(device, ARENA + TABLES);
        let model: Vec<u8> = (0..ARENA / 8)
            .flat_map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes())
            .collect();
        let bench = Self {
            stream,
            memory,
            model,
            slides: 0,
        };
        bench.write(0, &bench.model);
        bench
    }

    fn addr(&self, offset: u64) -> u64 {
        self.memory.addr + offset
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let backend = self.stream.device().backend();
        // SAFETY: the range lies in the mapped memory, and the copy is done before `bytes` goes.
        unsafe {
            backend.copy_in(
                self.addr(offset),
                bytes.as_ptr(),
                bytes.len() as u64,
                self.stream.raw(),
            )
        }
        .unwrap();
        self.stream.synchronize().unwrap();
    }

    fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(bytes).unwrap()];
        let backend = self.stream.device().backend();
        // SAFETY: as in `write`.
        unsafe {
            backend.copy_out(
                out.as_mut_ptr(),
                self.addr(offset),
                bytes,
                self.stream.raw(),
            )
        }
        .unwrap();
        self.stream.synchronize().unwrap();
        out
    }

    fn launch(&self, launch: &Launch) {
        // SAFETY: every range of these tests' launches lies in the mapped memory.
        unsafe {
            self.stream
                .device()
                .backend()
                .launch(launch, self.stream.raw())
        }
        .unwrap();
        self.stream.synchronize().unwrap();
    }

    fn at(&self, m: &Move) -> Move {
        Move {
            src: self.addr(m.src),
            dst: self.addr(m.dst),
            bytes: m.bytes,
        }
    }

    /// Moves given as offsets, in the model: everything is read before anything is written.
    fn expect_moves(&mut self, moves: &[Move]) {
        let before = self.model.clone();
        for m in moves {
            let [src, dst, bytes] = [m.src, m.dst, m.bytes].map(|v| usize::try_from(v).unwrap());
            self.model[dst..dst + bytes].copy_from_slice(&before[src..src + bytes]);
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let found = self.read(0, ARENA);
        let wrong = found.iter().zip(&self.model).position(|(a, b)| a != b);
        prop_assert_eq!(wrong, None, "first wrong byte of the arena");
        Ok(())
    }

    fn relocate(&mut self, moves: &[Move], max_blocks: u32) -> Result<(), TestCaseError> {
        let table = MoveTable::new(&moves.iter().map(|m| self.at(m)).collect::<Vec<_>>()).unwrap();
        self.write(ARENA, &table.image());
        self.launch(&Launch::Relocate(table.args(self.addr(ARENA), max_blocks)));
        self.expect_moves(moves);
        self.check()
    }

    fn slide(
        &mut self,
        moves: &[Move],
        upward: bool,
        max_blocks: u32,
    ) -> Result<(), TestCaseError> {
        let table = SlideTable::new(
            &moves.iter().map(|m| self.at(m)).collect::<Vec<_>>(),
            upward,
        )
        .unwrap();
        self.write(ARENA, table.image());
        let scratch = self.addr(ARENA + TABLES / 2);
        assert!(table.image().len() as u64 <= TABLES / 2 && table.scratch_bytes() <= TABLES / 2);
        let mut args = table.args(self.addr(ARENA), scratch, max_blocks).unwrap();
        // By turns with the fences that GPUs get on which the flags were not measured without.
        self.slides += 1;
        args.fenced = self.slides % 2;
        self.launch(&Launch::Slide(args));
        self.expect_moves(moves);
        self.check()
    }
}

fn run_on_every_device<S: Strategy>(
    strategy: S,
    test: impl Fn(&mut Bench, S::Value) -> Result<(), TestCaseError>,
) {
    for device in devices() {
        let bench = std::cell::RefCell::new(Bench::new(&device));
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 24,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        runner
            .run(&strategy, |value| test(&mut bench.borrow_mut(), value))
            .unwrap();
    }
}

/// Sizes in units of 16 bytes, from one to half a megabyte, small ones as likely as large.
fn units() -> impl Strategy<Value = u64> {
    (0u32..16, 0u64..1 << 16).prop_map(|(shift, noise)| (1 << shift) + noise % (1 << shift))
}

fn bound() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(1), 2u32..40]
}

/// Moves from the lower half of the arena to the upper, in shuffled order at both ends.
fn disjoint() -> impl Strategy<Value = Vec<Move>> {
    proptest::collection::vec((units(), 0u64..4, 0u64..4), 1..400).prop_perturb(
        |pieces, mut rng| {
            let half = ARENA / 2;
            let mut src = 0;
            let mut moves = Vec::new();
            for (units, before, after) in pieces {
                if src + 16 * (units + before) > half {
                    break;
                }
                src += 16 * before;
                moves.push((
                    Move {
                        src,
                        dst: 0,
                        bytes: 16 * units,
                    },
                    after,
                ));
                src += 16 * units;
            }
            for i in (1..moves.len()).rev() {
                moves.swap(i, rng.random_range(0..=i));
            }
            let mut dst = half;
            let mut placed = Vec::new();
            for (m, after) in moves {
                if dst + m.bytes <= ARENA {
                    placed.push(Move { dst, ..m });
                    dst += m.bytes + 16 * after;
                }
            }
            placed
        },
    )
}

/// Neighbours that shift one way, the shift changing from block to block; downwards.
fn row() -> impl Strategy<Value = Vec<Move>> {
    let hole = prop_oneof![Just(0u64), 1u64..8, 1u64..3000, 1u64..100_000];
    (
        hole.clone(),
        proptest::collection::vec((units(), prop_oneof![3 => Just(0u64), 1 => hole]), 1..300),
    )
        .prop_map(|(shift, pieces)| {
            let (mut src, mut dst) = (16 * shift, 0);
            let mut moves = Vec::new();
            for (units, hole) in pieces {
                src += 16 * hole;
                if src + 16 * units > ARENA {
                    break;
                }
                moves.push(Move {
                    src,
                    dst,
                    bytes: 16 * units,
                });
                src += 16 * units;
                dst += 16 * units;
            }
            moves
        })
}

#[test]
fn batched_moves_of_any_sizes_arrive_whole() {
    run_on_every_device((disjoint(), bound()), |bench, (moves, max_blocks)| {
        bench.relocate(&moves, max_blocks)
    });
}

#[test]
fn a_row_slides_down_as_if_all_were_read_first() {
    run_on_every_device((row(), bound()), |bench, (moves, max_blocks)| {
        bench.slide(&moves, false, max_blocks)
    });
}

#[test]
fn a_row_slides_on_a_slice_of_a_gpu_as_on_all_of_it() {
    run_on_every_device((row(), 1i32..20), |bench, (moves, processors)| {
        abi::limit_launches(processors, 0, 0);
        let slid = bench.slide(&moves, false, 0);
        abi::limit_launches(0, 0, 0);
        slid
    });
}

#[test]
fn a_row_slides_up_as_if_all_were_read_first() {
    run_on_every_device((row(), bound()), |bench, (moves, max_blocks)| {
        let up: Vec<Move> = moves
            .iter()
            .map(|m| Move {
                src: m.dst,
                dst: m.src,
                bytes: m.bytes,
            })
            .collect();
        bench.slide(&up, true, max_blocks)
    });
}

#[test]
fn a_single_block_slides_by_any_shift_through_one_thread_block() {
    for device in devices() {
        let mut bench = Bench::new(&device);
        for shift in [16, 48, 4096, 16_384, 16_400, 1 << 20, 8 << 20] {
            let bytes = 9 << 20;
            bench
                .slide(
                    &[Move {
                        src: 48 + shift,
                        dst: 48,
                        bytes,
                    }],
                    false,
                    1,
                )
                .unwrap();
            bench
                .slide(
                    &[Move {
                        src: 48,
                        dst: 48 + shift,
                        bytes,
                    }],
                    true,
                    1,
                )
                .unwrap();
        }
    }
}

#[test]
fn one_large_move_among_many_small_ones_arrives_whole() {
    for device in devices() {
        let mut bench = Bench::new(&device);
        let mut moves: Vec<Move> = (0..1000)
            .map(|i| Move {
                src: i * 4096,
                dst: (10 << 20) + i * 4096,
                bytes: 4096,
            })
            .collect();
        moves.push(Move {
            src: 5 << 20,
            dst: 16 << 20,
            bytes: 5 << 20,
        });
        bench.relocate(&moves, 0).unwrap();
    }
}

/// As many neighbours as one launch takes in practice, most smaller than the holes they cross.
const CROWD: usize = 120_000;

/// Moves of 16 to 256 bytes downwards, holes before and behind, over all of the arena.
fn crowd(seed: u64) -> Vec<Move> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % bound
    };
    let (mut src, mut dst) = (16 * below(2000), 0);
    let mut moves = Vec::with_capacity(CROWD);
    while moves.len() < CROWD {
        src += 16 * (below(8) / 6);
        dst = (dst + 16 * (below(64) / 63)).min(src);
        let bytes = 16 * (1 + below(11));
        assert!(src + bytes <= ARENA, "the arena holds the crowd");
        moves.push(Move { src, dst, bytes });
        (src, dst) = (src + bytes, dst + bytes);
    }
    moves
}

#[test]
fn over_a_hundred_thousand_overlapping_moves_of_one_launch_end_as_memmove_leaves_them() {
    for device in devices() {
        let mut bench = Bench::new(&device);
        for (seed, max_blocks) in [(1, 0), (2, 0), (3, 1), (4, 7), (5, 0), (6, 0)] {
            let down = crowd(seed);
            // What `expect_moves` makes of them is what memmove leaves, one move after the other.
            let mut plain = bench.model.clone();
            for m in &down {
                let src = usize::try_from(m.src).unwrap();
                let bytes = usize::try_from(m.bytes).unwrap();
                plain.copy_within(src..src + bytes, usize::try_from(m.dst).unwrap());
            }
            bench.slide(&down, false, max_blocks).unwrap();
            assert!(bench.model == plain, "the model is not memmove's");
            let up: Vec<Move> = down
                .iter()
                .map(|m| Move {
                    src: m.dst,
                    dst: m.src,
                    bytes: m.bytes,
                })
                .collect();
            bench.slide(&up, true, max_blocks).unwrap();
        }
    }
}

#[test]
fn a_slide_ends_beside_work_that_fills_the_device() {
    for device in devices() {
        let mut bench = Bench::new(&device);
        let filler = device.stream().unwrap();
        let bytes = 64 << 20;
        let busy = Memory::new(&device, bytes);
        let stamp = Launch::Pattern(abi::wp_pattern {
            addr: busy.addr,
            bytes,
            seed: 1,
            edge: 0,
            report: 0,
            op: abi::WP_STAMP,
            pad: 0,
        });
        let rounds = if device.info().kind == DeviceKind::Cuda {
            // A tool ends each launch before the next: they do not run beside the slide.
            if common::under_sanitizer() { 2 } else { 400 }
        } else {
            2
        };
        for (shift, max_blocks) in [(256, 0), (64 << 10, 3), (4 << 20, 1)] {
            for _ in 0..rounds {
                // SAFETY: the stamped range is mapped until the stream is through.
                unsafe { device.backend().launch(&stamp, filler.raw()) }.unwrap();
            }
            let [src, dst, bytes] = [shift, 0, 16 << 20];
            bench
                .slide(&[Move { src, dst, bytes }], false, max_blocks)
                .unwrap();
        }
        filler.synchronize().unwrap();
    }
}

#[test]
fn batched_moves_around_the_sizes_of_tiles_and_across_mappings_arrive_whole() {
    let (small, tile) = (u64::from(abi::WP_SMALL_MOVE), u64::from(abi::WP_MOVE_TILE));
    for device in devices() {
        let mut bench = Bench::new(&device);
        for max_blocks in [0, 1, 3] {
            let mut moves = Vec::new();
            // Sources end just beyond the boundary at 2 MiB, destinations begin just before that at 14 MiB.
            let (mut src, mut dst) = (0, (14 << 20) - 48);
            for bytes in [
                16,
                small - 16,
                small,
                small + 16,
                tile - 16,
                tile,
                tile + 16,
                32 * tile,
                33 * tile + 16,
                (2 << 20) + 16,
                5 * tile - 16,
            ] {
                moves.push(Move { src, dst, bytes });
                (src, dst) = (src + bytes + 16, dst + bytes + 32);
            }
            bench.relocate(&moves, max_blocks).unwrap();
        }
    }
}

/// Ranges as offsets into a world of addresses that nobody has to own: a patch reads none of them.
fn ranges(count: usize) -> impl Strategy<Value = Vec<abi::wp_move>> {
    proptest::collection::vec((1u64..5000, 0u64..300, any::<u32>()), 1..count).prop_map(|pieces| {
        let mut src = 0x7000_0000_0000u64;
        let mut all = Vec::new();
        for (bytes, gap, to) in pieces {
            src += gap;
            all.push(abi::wp_move {
                src,
                dst: 0x1000_0000 + u64::from(to) * 8192,
                bytes,
            });
            src += bytes;
        }
        all
    })
}

fn patched(slot: u64, ranges: &[abi::wp_move]) -> u64 {
    let found = ranges
        .iter()
        .find(|r| slot >= r.src && slot - r.src < r.bytes);
    found.map_or(slot, |r| r.dst + (slot - r.src))
}

#[test]
fn a_patch_rewrites_what_points_into_a_range_and_nothing_else() {
    let slots = proptest::collection::vec((0u8..8, any::<u32>()), 1..3000);
    run_on_every_device(
        (ranges(2000), slots, 0u64..3, bound()),
        |bench, (ranges, slots, skew, max_blocks)| {
            let slots: Vec<u64> = slots
                .iter()
                .map(|&(kind, at)| {
                    let range = &ranges[at as usize % ranges.len()];
                    match kind {
                        0 => 0,
                        1 => u64::from(at),
                        2 => range.src + range.bytes,
                        3 => range.src.wrapping_sub(1),
                        4 => u64::MAX - u64::from(at),
                        5 => range.src,
                        _ => range.src + u64::from(at) % range.bytes,
                    }
                })
                .collect();
            let table: Vec<u64> = ranges
                .iter()
                .flat_map(|r| [r.src, r.dst, r.bytes])
                .collect();
            bench.write(ARENA, bytemuck::cast_slice(&table));
            let at = 8 * skew;
            bench.write(at, bytemuck::cast_slice(&slots));
            bench.launch(&Launch::Patch(abi::wp_patch {
                slots: bench.addr(at),
                slot_count: slots.len() as u64,
                ranges: bench.addr(ARENA),
                range_count: u32::try_from(ranges.len()).unwrap(),
                max_blocks,
            }));
            let expected: Vec<u64> = slots.iter().map(|&slot| patched(slot, &ranges)).collect();
            let begin = usize::try_from(at).unwrap();
            bench.model[begin..begin + 8 * slots.len()]
                .copy_from_slice(bytemuck::cast_slice(&expected));
            bench.check()
        },
    );
}

#[test]
fn scattered_words_land_where_they_are_sent() {
    let words = proptest::collection::btree_map(0u64..ARENA / 8, any::<u64>(), 1..2000);
    run_on_every_device(words, |bench, words| {
        let table: Vec<u64> = words
            .iter()
            .flat_map(|(&at, &value)| [bench.addr(8 * at), value])
            .collect();
        bench.write(ARENA, bytemuck::cast_slice(&table));
        bench.launch(&Launch::Scatter(abi::wp_scatter {
            words: bench.addr(ARENA),
            count: words.len() as u64,
        }));
        for (&at, &value) in &words {
            let at = usize::try_from(8 * at).unwrap();
            bench.model[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bench.check()
    });
}

#[test]
fn an_unaligned_table_is_refused() {
    for device in devices() {
        let bench = Bench::new(&device);
        let args = abi::wp_relocate {
            moves: bench.addr(8),
            first_tile: 0,
            group_move: 0,
            small: 1,
            large: 0,
            tiles: 0,
            max_blocks: 0,
        };
        // SAFETY: the launch is refused before it reads anything.
        let outcome = unsafe {
            device
                .backend()
                .launch(&Launch::Relocate(args), bench.stream.raw())
        };
        let later = bench.stream.synchronize();
        assert!(
            outcome.is_err() || later.is_err(),
            "an unaligned table was taken"
        );
    }
}
