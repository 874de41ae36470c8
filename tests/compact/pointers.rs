//! Pointers patched by the hundred thousand: every slot of a launch is a case of its own, compared
//! with an oracle on the host. A case that fails is brought back, run again on the host device with
//! its slot alone, and made small.

use crate::common;

use crate::common::BackendOf;
use common::hunt::shrink;
use common::{Memory, devices, host, read, write};
use warpool::Device;
use warpool::device::Launch;
use warpool::device::sim::Rng;
use warpool::driver::abi::{wp_move, wp_patch};

/// Cases of a launch.
const SLOTS: usize = 1 << 18;

/// Ascending ranges, apart, of all sizes: from one byte to a megabyte, with and without gaps.
fn ranges(rng: &mut Rng, count: u64) -> Vec<wp_move> {
    let mut at = 4096 + rng.below(1 << 20);
    (0..count)
        .map(|_| {
            at += [0, 1, 8, rng.below(1 << 16)][rng.below(4) as usize];
            let most = [1, 16, 4096, 1 << 20][rng.below(4) as usize];
            let bytes = 1 + rng.below(most);
            let range = wp_move {
                src: at,
                dst: rng.next_u64() >> rng.below(40),
                bytes,
            };
            at += bytes;
            range
        })
        .collect()
}

/// Addresses at, before, in and behind ranges, null, and anything.
fn slots(rng: &mut Rng, ranges: &[wp_move]) -> Vec<u64> {
    (0..SLOTS)
        .map(|_| {
            let range = ranges[rng.below(ranges.len() as u64) as usize];
            match rng.below(8) {
                0 => 0,
                1 => rng.next_u64(),
                2 => range.src - 1,
                3 => range.src,
                4 => range.src + range.bytes - 1,
                5 => range.src + range.bytes,
                _ => range.src + rng.below(range.bytes),
            }
        })
        .collect()
}

/// Where a slot points afterwards.
fn expected(slot: u64, ranges: &[wp_move]) -> u64 {
    let above = ranges.partition_point(|range| range.src <= slot);
    let Some(range) = above.checked_sub(1).map(|at| ranges[at]) else {
        return slot;
    };
    if slot - range.src < range.bytes {
        range.dst.wrapping_add(slot - range.src)
    } else {
        slot
    }
}

/// Patches `slots` on `device` in one launch.
fn patch(device: &Device, ranges: &[wp_move], slots: &[u64], max_blocks: u32) -> Vec<u64> {
    let stream = device.stream().unwrap();
    let table: Vec<u64> = ranges
        .iter()
        .flat_map(|r| [r.src, r.dst, r.bytes])
        .collect();
    let memory = Memory::new(device, 8 * (table.len() + slots.len()) as u64);
    let at = memory.addr + 8 * table.len() as u64;
    write(&stream, memory.addr, bytemuck::cast_slice(&table));
    write(&stream, at, bytemuck::cast_slice(slots));
    let launch = Launch::Patch(wp_patch {
        slots: at,
        slot_count: slots.len() as u64,
        ranges: memory.addr,
        range_count: ranges.len() as u32,
        max_blocks,
    });
    // SAFETY: slots and ranges are memory that is kept until the stream is done.
    unsafe { device.backend().launch(&launch, stream.raw()) }.unwrap();
    let found = read(&stream, at, 8 * slots.len());
    let words = found.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// The slot alone with as few ranges as it fails with on the host device; `None` if it does not.
fn small(slot: u64, ranges: &[wp_move]) -> Option<Vec<wp_move>> {
    let device = host();
    let fails =
        |ranges: &[wp_move]| patch(&device, ranges, &[slot], 0)[0] != expected(slot, ranges);
    fails(ranges).then(|| shrink(ranges.to_vec(), fails))
}

fn every_slot_is_right(device: &Device, seed: u64) {
    let mut rng = Rng::new(seed);
    let count = [1, 2, 33, 1000, 50_000][(seed % 5) as usize];
    let ranges = ranges(&mut rng, count);
    let slots = slots(&mut rng, &ranges);
    let found = patch(device, &ranges, &slots, (seed % 3) as u32);
    for (&slot, &found) in slots.iter().zip(&found) {
        let right = expected(slot, &ranges);
        if found != right {
            let how = match small(slot, &ranges) {
                Some(few) => format!("on the host device too, with {few:x?}"),
                None => format!("not on the host device, with {count} ranges"),
            };
            panic!("seed {seed}: {slot:#x} became {found:#x}, not {right:#x}: {how}");
        }
    }
}

#[test]
fn a_quarter_of_a_million_pointers_a_launch_point_where_their_ranges_went() {
    for device in devices() {
        for seed in 0..common::rounds(10) as u64 {
            every_slot_is_right(&device, seed);
        }
    }
}
