//! The simulated communicator: what each collective gives, in which order, and how it fails.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use warpool::collective::{Comm, Op};
use warpool::half::{bf16, f16};
use warpool::{Device, Pool, PoolConfig};

use crate::{PATIENCE, Rank, hosts, on_ranks, simulated};

/// What rank `rank` gives as its `at`-th element.
fn given(rank: u32, at: usize) -> f32 {
    ((rank as usize * 37 + at * 11) % 64) as f32 - 31.0
}

fn row(rank: u32, len: usize) -> Vec<f32> {
    (0..len).map(|at| given(rank, at)).collect()
}

#[test]
fn every_rank_has_what_each_collective_is_to_give() {
    const RANKS: usize = 4;
    const LEN: usize = 1000;
    let column = |at: usize| (0..RANKS as u32).map(move |rank| given(rank, at));
    simulated(RANKS, |rank: Rank| {
        let (comm, stream) = (&rank.comm, &rank.stream);
        let number = rank.number();
        let mine = rank.pool.alloc_from(stream, &row(number, LEN)).unwrap();
        for (op, wanted) in [
            (
                Op::Sum,
                (0..LEN).map(|at| column(at).sum()).collect::<Vec<f32>>(),
            ),
            (
                Op::Max,
                (0..LEN)
                    .map(|at| column(at).fold(f32::MIN, f32::max))
                    .collect(),
            ),
            (
                Op::Min,
                (0..LEN)
                    .map(|at| column(at).fold(f32::MAX, f32::min))
                    .collect(),
            ),
        ] {
            let mut all = rank.pool.alloc_from(stream, &row(number, LEN)).unwrap();
            comm.on(stream).all_reduce(&mut all, op).run().unwrap();
            assert_eq!(all.download().unwrap(), wanted, "{op:?}");
            let mut part = rank.pool.alloc_zeroed::<f32>(stream, LEN / RANKS).unwrap();
            comm.on(stream)
                .reduce_scatter(&mine, &mut part, op)
                .run()
                .unwrap();
            let own = number as usize * LEN / RANKS..;
            assert_eq!(
                part.download().unwrap(),
                wanted[own][..LEN / RANKS],
                "{op:?}"
            );
        }
        let mut all = rank.pool.alloc_zeroed::<f32>(stream, LEN * RANKS).unwrap();
        comm.on(stream).all_gather(&mine, &mut all).run().unwrap();
        let rows: Vec<f32> = (0..RANKS as u32).flat_map(|rank| row(rank, LEN)).collect();
        assert_eq!(all.download().unwrap(), rows);
        for root in 0..RANKS as u32 {
            let mut data = rank.pool.alloc_from(stream, &row(number, LEN)).unwrap();
            comm.on(stream).broadcast(&mut data, root).run().unwrap();
            assert_eq!(data.download().unwrap(), row(root, LEN));
        }
        // Round the ring, twice as long, and to itself.
        let (next, before) = ((number + 1) % 4, (number + 3) % 4);
        let mut theirs = rank.pool.alloc_zeroed::<f32>(stream, LEN).unwrap();
        let mut own = rank.pool.alloc_zeroed::<f32>(stream, LEN).unwrap();
        let queue = comm.on(stream).send(&mine, next).recv(&mut theirs, before);
        queue
            .send(&mine, number)
            .recv(&mut own, number)
            .run()
            .unwrap();
        assert_eq!(theirs.download().unwrap(), row(before, LEN));
        assert_eq!(own.download().unwrap(), row(number, LEN));
        comm.check().unwrap();
    });
}

#[test]
fn every_kind_of_element_is_reduced_in_its_own_arithmetic() {
    macro_rules! sums {
        ($rank:ident, $($one:expr, $sum:expr;)*) => {$({
            let mut data = $rank.pool.alloc_filled(&$rank.stream, 5, $one).unwrap();
            $rank.comm.on(&$rank.stream).all_reduce(&mut data, Op::Sum).run().unwrap();
            assert_eq!(data.download().unwrap(), [$sum; 5]);
        })*};
    }
    simulated(3, |rank| {
        sums!(rank,
            100i8, 44; 100u8, 44; -5i32, -15; 1u32 << 31, 1 << 31; i64::MIN, i64::MIN; 7u64, 21;
            0.1f64, 0.1 + 0.1 + 0.1; 2f32.powi(25), 3.0 * 2f32.powi(25);
            // 2049 is no f16: each addition rounds, ties to even.
            f16::from_f32(683.3), f16::from_f32(f16::from_f32(2.0 * f16::from_f32(683.3).to_f32()).to_f32() + f16::from_f32(683.3).to_f32());
            bf16::from_f32(300.0), bf16::from_f32(900.0);
        );
    });
}

#[test]
fn a_collective_runs_behind_what_writes_its_memory_and_ahead_of_what_uses_it_next() {
    simulated(3, |rank: Rank| {
        let device = rank.comm.device();
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut data = rank.pool.alloc_zeroed::<u32>(&one, 1 << 16).unwrap();
        for round in 0..20u32 {
            // Written late on one stream, reduced on another, read on a third; nothing is declared.
            let late = Box::new(|| std::thread::sleep(Duration::from_millis(1)));
            // SAFETY: a sleep uses no memory.
            unsafe { device.raw_backend() }
                .host_call(one.raw(), late)
                .unwrap();
            data.view_mut().fill(&one, round * 0x0101_0101).unwrap();
            rank.comm
                .on(&other)
                .all_reduce(&mut data, Op::Sum)
                .run()
                .unwrap();
            let sums = data.view().download(&rank.stream).unwrap();
            assert!(sums.iter().all(|&sum| sum == 3 * round * 0x0101_0101));
        }
        // The memory of a buffer that is dropped is no one's until the collective is done.
        rank.comm
            .on(&other)
            .all_reduce(&mut data, Op::Max)
            .run()
            .unwrap();
        drop(data);
        let again = rank.pool.alloc_filled(&one, 1 << 16, 5u32).unwrap();
        other.synchronize().unwrap();
        assert!(again.download().unwrap().iter().all(|&x| x == 5));
    });
}

#[test]
fn ranks_on_one_device_and_ranks_on_several_are_the_same() {
    let device = crate::common::host();
    let shared = vec![device.clone(), device];
    for devices in [shared, hosts(2)] {
        let ends = Comm::simulated(&devices, PATIENCE).unwrap();
        let sums = on_ranks(ends, |rank| {
            let mut data = rank.pool.alloc_filled(&rank.stream, 9, 2i32).unwrap();
            rank.comm
                .on(&rank.stream)
                .all_reduce(&mut data, Op::Sum)
                .run()
                .unwrap();
            data.download().unwrap()
        });
        assert_eq!(sums, [[4; 9]; 2]);
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_nobody_hangs() {
    let patience = Duration::from_millis(200);
    let ends = Comm::simulated(&hosts(3), patience).unwrap();
    let began = Instant::now();
    let errors = on_ranks(ends, |rank| {
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 8).unwrap();
        if rank.number() == 1 {
            std::thread::sleep(3 * patience);
            return rank.comm.check();
        }
        rank.comm
            .on(&rank.stream)
            .all_reduce(&mut data, Op::Sum)
            .run()
            .unwrap();
        rank.stream.synchronize().unwrap();
        let failed = rank.comm.check();
        let next = rank
            .comm
            .on(&rank.stream)
            .all_reduce(&mut data, Op::Sum)
            .run();
        assert_eq!(
            next.unwrap_err().to_string(),
            failed.clone().unwrap_err().to_string()
        );
        failed
    });
    for error in errors {
        let words = error.unwrap_err().to_string();
        assert!(
            words.contains("ncclAllReduce") && words.contains("ranks [1]"),
            "{words}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_that_leaves_or_aborts_ends_the_wait_of_the_others_at_once() {
    for aborts in [false, true] {
        let began = Instant::now();
        simulated(2, |rank| {
            if rank.number() == 1 {
                if aborts {
                    rank.comm.abort().unwrap();
                }
                return;
            }
            let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 8).unwrap();
            let queued = rank
                .comm
                .on(&rank.stream)
                .all_reduce(&mut data, Op::Sum)
                .run();
            rank.stream.synchronize().unwrap();
            let words = queued.and(rank.comm.check()).unwrap_err().to_string();
            let wanted = if aborts {
                "rank 1 aborted"
            } else {
                "rank 1 has left"
            };
            assert!(words.contains(wanted), "{words}");
        });
        assert!(began.elapsed() < PATIENCE / 2);
    }
}

#[test]
fn the_first_failure_is_told_whatever_fails_after_it() {
    let ends = Comm::simulated(&hosts(3), PATIENCE).unwrap();
    for rank in [1, 0, 2] {
        ends[rank].abort().unwrap();
    }
    for end in ends {
        let words = end.check().unwrap_err().to_string();
        assert!(words.contains("rank 1 aborted"), "{words}");
    }
}

#[test]
fn a_rank_that_leaves_ends_the_wait_for_its_transfers_at_once_and_those_it_queued_are_made() {
    let began = Instant::now();
    simulated(2, |rank| {
        let (comm, stream) = (&rank.comm, &rank.stream);
        let given = rank.pool.alloc_filled(stream, 8, 7u32).unwrap();
        if rank.number() == 1 {
            return comm.on(stream).send(&given, 0).run().unwrap();
        }
        let mut data = rank.pool.alloc_zeroed::<u32>(stream, 8).unwrap();
        comm.on(stream).recv(&mut data, 1).run().unwrap();
        assert_eq!(data.download().unwrap(), [7; 8]);
        let queued = comm.on(stream).recv(&mut data, 1).run();
        stream.synchronize().unwrap();
        let words = queued.and(comm.check()).unwrap_err().to_string();
        assert!(words.contains("rank 1 has left"), "{words}");
    });
    assert!(began.elapsed() < PATIENCE / 2);
}

#[test]
fn ranks_that_ask_for_different_things_are_told_both() {
    let errors = simulated(2, |rank| {
        let len = 8 + rank.number() as usize;
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, len).unwrap();
        rank.comm
            .on(&rank.stream)
            .all_reduce(&mut data, Op::Sum)
            .run()
            .unwrap();
        rank.stream.synchronize().unwrap();
        rank.comm.check().unwrap_err().to_string()
    });
    for words in errors {
        assert!(
            words.contains("of 8 f32") && words.contains("of 9 f32"),
            "{words}"
        );
    }
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_queued() {
    simulated(2, |rank: Rank| {
        let (comm, stream, pool) = (&rank.comm, &rank.stream, &rank.pool);
        let mut four = pool.alloc_zeroed::<f32>(stream, 4).unwrap();
        let mut three = pool.alloc_zeroed::<f32>(stream, 3).unwrap();
        let elsewhere = Device::host().unwrap();
        let far = Pool::new(&elsewhere, PoolConfig::default()).unwrap();
        let there = elsewhere.stream().unwrap();
        let mut foreign = far.alloc_zeroed::<f32>(&there, 4).unwrap();
        let refused = [
            (
                "src",
                comm.on(stream)
                    .reduce_scatter(&four, &mut three, Op::Sum)
                    .run(),
            ),
            ("dst", comm.on(stream).all_gather(&three, &mut four).run()),
            ("root", comm.on(stream).broadcast(&mut four, 2).run()),
            ("to", comm.on(stream).send(&four, 7).run()),
            ("from", comm.on(stream).recv(&mut four, 2).run()),
            // The first of several.
            (
                "to: 7",
                comm.on(stream)
                    .send(&four, 7)
                    .broadcast(&mut three, 8)
                    .run(),
            ),
            (
                "stream",
                comm.on(&there).all_reduce(&mut foreign, Op::Sum).run(),
            ),
            (
                "stream",
                comm.on(stream).all_reduce(&mut foreign, Op::Sum).run(),
            ),
        ];
        for (what, refused) in refused {
            let words = refused.unwrap_err().to_string();
            assert!(words.starts_with(what), "{what}: {words}");
        }
        // SAFETY: nothing is queued with it.
        let same = unsafe { warpool::ViewMut::<f32>::from_raw(four.addr(), 2) }.unwrap();
        let met = comm
            .on(stream)
            .all_gather(four.slice(..1).unwrap(), same)
            .run();
        assert!(met.unwrap_err().to_string().contains("another part"));
        comm.on(stream)
            .all_reduce(&mut four, Op::Sum)
            .run()
            .unwrap();
        stream.synchronize().unwrap();
        comm.check().unwrap();
    });
    assert!(Comm::simulated(&[], PATIENCE).is_err());
    let sim = Device::sim(&warpool::device::sim::SimConfig::default()).unwrap();
    assert!(Comm::simulated(&[sim], PATIENCE).is_err());
}

#[test]
fn views_of_no_elements_may_be_anywhere() {
    simulated(2, |rank: Rank| {
        let (comm, stream) = (&rank.comm, &rank.stream);
        // SAFETY: views of nothing.
        let (read, [one, two]) = unsafe {
            let written = [(); 2].map(|()| warpool::ViewMut::<f64>::from_raw(0, 0).unwrap());
            (warpool::View::<f64>::from_raw(0, 0).unwrap(), written)
        };
        comm.on(stream).all_reduce(one, Op::Sum).run().unwrap();
        let queue = comm.on(stream).reduce_scatter(read, two, Op::Max);
        queue.run().unwrap();
        stream.synchronize().unwrap();
        comm.check().unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn random_programs_of_collectives_give_what_the_same_program_gives_on_plain_vectors(
        ranks in 1usize..5,
        steps in proptest::collection::vec((0u8..5, 0u32..5, 1usize..50), 1..20),
    ) {
        let plain = plain_program(ranks, &steps);
        let found = simulated(ranks, |rank| {
            let streams = [(); 2].map(|()| rank.comm.device().stream().unwrap());
            let own = row(rank.number(), LONGEST).iter().map(|&x| x as i64).collect::<Vec<_>>();
            let mut data = rank.pool.alloc_from(&rank.stream, &own).unwrap();
            for (at, &(what, who, len)) in steps.iter().enumerate() {
                let (stream, len) = (&streams[at % 2], len * ranks);
                let (part, who) = (len / ranks, who % ranks as u32);
                let number = rank.number() as usize;
                let (low, mut high) = data.view_mut().split_at(LONGEST / 2).unwrap();
                let low = low.slice(..len).unwrap();
                let queue = rank.comm.on(stream);
                match what {
                    0 => queue.all_reduce(low, Op::Sum),
                    1 => queue.all_reduce(low, Op::Max),
                    2 => queue.broadcast(low, who),
                    3 => queue.reduce_scatter(low.as_view(), warpool::ViewMut::from(&mut high).slice(..part).unwrap(), Op::Sum),
                    _ => {
                        let from = low.as_view().slice(number * part..(number + 1) * part).unwrap();
                        queue.all_gather(from, warpool::ViewMut::from(&mut high).slice(..len).unwrap())
                    }
                }
                .run()
                .unwrap();
            }
            data.download().unwrap()
        });
        prop_assert_eq!(found, plain);
    }
}

const LONGEST: usize = 1000;

fn plain_program(ranks: usize, steps: &[(u8, u32, usize)]) -> Vec<Vec<i64>> {
    let own = |rank| {
        row(rank as u32, LONGEST)
            .iter()
            .map(|&x| x as i64)
            .collect()
    };
    let mut all: Vec<Vec<i64>> = (0..ranks).map(own).collect();
    for &(what, who, part) in steps {
        let (len, who, half) = (part * ranks, who as usize % ranks, LONGEST / 2);
        let before = all.clone();
        let column = |at: usize| before.iter().map(move |row| row[at]);
        for (rank, row) in all.iter_mut().enumerate() {
            match what {
                0 => (0..len).for_each(|at| row[at] = column(at).fold(0, i64::wrapping_add)),
                1 => (0..len).for_each(|at| row[at] = column(at).max().unwrap()),
                2 => row[..len].copy_from_slice(&before[who][..len]),
                3 => (0..part).for_each(|at| {
                    row[half + at] = column(rank * part + at).fold(0, i64::wrapping_add);
                }),
                _ => (0..len).for_each(|at| row[half + at] = before[at / part][at]),
            }
        }
    }
    all
}

#[test]
fn ranks_may_have_all_the_patience_there_is() {
    let ends = Comm::simulated(&[Device::host().unwrap()], Duration::MAX).unwrap();
    let pool = Pool::new(ends[0].device(), PoolConfig::default()).unwrap();
    let stream = ends[0].device().stream().unwrap();
    let mut sums = pool.alloc_filled(&stream, 4, 2.0f32).unwrap();
    let queued = ends[0].on(&stream).all_reduce(&mut sums, Op::Sum).run();
    queued.unwrap();
    assert_eq!(sums.download().unwrap(), [2.0; 4]);
}
