//! Parts of a graph's memory: given up in its capture, and used in another.

use super::common::{fill, on_every_device};
use super::{limited, small_handles, whole};
use warpool::{Device, Pool};

on_every_device! {
    what_a_block_of_a_graph_gives_up_is_handed_out_in_its_capture_and_no_more,
    a_block_of_one_graph_dropped_in_the_capture_of_another_is_kept_by_both,
}

fn what_a_block_of_a_graph_gives_up_is_handed_out_in_its_capture_and_no_more(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    // A segment of its own, of which 6 parts of 8 are given up in two steps.
    let part = 512 << 10;
    let mut block = pool.alloc(&stream, 8 * part).unwrap();
    let (from, to) = (block.addr(), block.addr() + 8 * part);
    block.shrink(5 * part).unwrap();
    block.shrink(2 * part).unwrap();
    let parts: Vec<_> = (0..7).map(|_| pool.alloc(&stream, part).unwrap()).collect();
    let mut inside: Vec<u64> = parts.iter().map(|it| it.addr()).collect();
    inside.retain(|at| (from..to).contains(at));
    inside.sort_unstable();
    let said: Vec<u64> = (2..8).map(|at| from + at * part).collect();
    assert_eq!(inside, said);
    let graph = capture.end().unwrap();
    // The seventh lies in memory of its own.
    assert!(graph.memory().bytes() >= 9 * part);
    drop((parts, block, graph));
    whole(&pool);
}

fn a_block_of_one_graph_dropped_in_the_capture_of_another_is_kept_by_both(device: &Device) {
    let granule = device.info().granule;
    for first_goes_first in [true, false] {
        let pool = limited(device, 2);
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = one.begin_capture().unwrap();
        let block = pool.alloc(&one, granule).unwrap();
        let first = capture.end().unwrap();
        let capture = other.begin_capture().unwrap();
        fill(&other, block.addr(), 1, 64);
        block.free_on(&other).unwrap();
        let second = capture.end().unwrap();
        let (goes, stays) = match first_goes_first {
            true => (first, second),
            false => (second, first),
        };
        drop(goes);
        let refused = pool.alloc(&one, 2 * granule).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        drop(stays);
        drop(pool.alloc(&one, 2 * granule).unwrap());
        whole(&pool);
    }
}
