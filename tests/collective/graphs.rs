//! Collectives and steps of a reducer in graphs, on the host device: each launch is one more.

use warpool::collective::{Comm, Op};
use warpool::device::Graph;
use warpool::{Device, Pool, PoolBuf, PoolConfig};

use crate::common::watched::Watched;
use crate::{PATIENCE, Rank, hosts, on_ranks, simulated};

const LEN: usize = 1000;

/// What a rank gives in a round.
fn given(rank: u32, round: u32) -> Vec<u32> {
    (0..LEN as u32)
        .map(|at| at + 1000 * rank + 10_000 * round)
        .collect()
}

fn zeroed(rank: &Rank, len: usize) -> PoolBuf<u32> {
    rank.pool.alloc_zeroed(&rank.stream, len).unwrap()
}

#[test]
fn every_collective_of_a_graph_is_made_again_in_each_launch_with_what_is_there_then() {
    const RANKS: usize = 3;
    simulated(RANKS, |rank: Rank| {
        let (comm, stream, number) = (&rank.comm, &rank.stream, rank.number());
        let mut mine = zeroed(&rank, LEN);
        let (mut sums, mut from, mut theirs) =
            (zeroed(&rank, LEN), zeroed(&rank, LEN), zeroed(&rank, LEN));
        let (mut all, mut part) = (zeroed(&rank, RANKS * LEN), zeroed(&rank, LEN));
        let (next, before) = ((number + 1) % 3, (number + 2) % 3);
        let capture = stream.begin_capture().unwrap();
        sums.view_mut().copy_from(stream, &mine).unwrap();
        from.view_mut().copy_from(stream, &mine).unwrap();
        comm.on(stream)
            .all_reduce(&mut sums, Op::Sum)
            .run()
            .unwrap();
        let queue = comm.on(stream).broadcast(&mut from, 1);
        queue.all_gather(&mine, &mut all).run().unwrap();
        let queue = comm.on(stream).send(&mine, next).recv(&mut theirs, before);
        queue.run().unwrap();
        comm.on(stream)
            .reduce_scatter(&all, &mut part, Op::Max)
            .run()
            .unwrap();
        let graph = capture.end().unwrap();
        let untouched = sums.download().unwrap();
        assert_eq!(untouched, [0; LEN], "a capture ran something");
        // Others come between, queued as ever.
        let mut beside = rank.pool.alloc_filled(stream, 1, 1u32).unwrap();
        for round in 0..4 {
            mine.upload(&given(number, round)).unwrap();
            graph.launch(stream).unwrap();
            comm.on(stream)
                .all_reduce(&mut beside, Op::Sum)
                .run()
                .unwrap();
            let rows: Vec<_> = (0..3).map(|rank| given(rank, round)).collect();
            let sum: Vec<u32> = (0..LEN)
                .map(|at| rows.iter().map(|row| row[at]).sum())
                .collect();
            assert_eq!(sums.download().unwrap(), sum);
            assert_eq!(from.download().unwrap(), rows[1]);
            assert_eq!(theirs.download().unwrap(), rows[before as usize]);
            assert_eq!(all.download().unwrap(), rows.concat());
            assert_eq!(part.download().unwrap(), rows[number as usize]);
        }
        assert_eq!(beside.download().unwrap(), [81]);
        comm.check().unwrap();
    });
}

/// Ranks need not launch their graphs in one order where the graphs are on streams of their own.
#[test]
fn graphs_of_several_streams_meet_by_what_was_captured_and_not_by_the_order_of_launches() {
    simulated(2, |rank: Rank| {
        let streams = [(); 2].map(|()| rank.comm.device().stream().unwrap());
        let mut data = [1u32, 100].map(|value| {
            let value = value + rank.number();
            rank.pool.alloc_filled(&rank.stream, LEN, value).unwrap()
        });
        let graphs: Vec<Graph> = (0..2)
            .map(|at| {
                let capture = streams[at].begin_capture().unwrap();
                let queue = rank.comm.on(&streams[at]);
                queue.all_reduce(&mut data[at], Op::Sum).run().unwrap();
                capture.end().unwrap()
            })
            .collect();
        for round in 0..10 {
            let first = (rank.number() as usize + round) % 2;
            for at in [first, 1 - first] {
                graphs[at].launch(&streams[at]).unwrap();
            }
        }
        // 1 + 2, 100 + 101, and doubled by each launch from the second on.
        assert_eq!(data[0].download().unwrap(), [3 << 9; LEN]);
        assert_eq!(data[1].download().unwrap(), [201 << 9; LEN]);
    });
}

#[test]
fn a_graph_keeps_the_memory_of_its_collectives_from_others_and_the_communicator() {
    let device = crate::common::host();
    let bytes = 32u64 << 20;
    let ends = Comm::simulated(std::slice::from_ref(&device), PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        let pool = Pool::new(&device, PoolConfig::default().limit(3 * bytes / 2)).unwrap();
        let len = bytes as usize / 4;
        let mut data = pool.alloc_filled(&rank.stream, len, 7u32).unwrap();
        let mut kept = zeroed(&rank, len);
        let capture = rank.stream.begin_capture().unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        kept.view_mut().copy_from(&rank.stream, &data).unwrap();
        let graph = capture.end().unwrap();
        // All that the application had: the buffer, the communicator.
        drop((data, rank.comm));
        rank.stream.synchronize().unwrap();
        pool.trim(0).unwrap();
        let refused = pool.alloc_zeroed::<u32>(&rank.stream, len);
        assert!(refused.is_err(), "the graph's memory was given away");
        for _ in 0..3 {
            kept.upload(&vec![0; len]).unwrap();
            graph.launch(&rank.stream).unwrap();
            assert!(kept.download().unwrap().iter().all(|&x| x == 7));
        }
        drop(graph);
        pool.alloc_zeroed::<u32>(&rank.stream, len).unwrap();
    });
}

/// The capture begins as the collective's stream is made to wait for another.
#[cfg(feature = "nccl")]
#[test]
fn a_collective_is_queued_ahead_of_a_capture_that_would_not_keep_its_communicator() {
    let Some(nccl) = crate::nccl::StandIn::get() else {
        return;
    };
    let (device, watched) = Watched::over(&crate::common::host());
    let rank = Rank::of(Comm::nccl_all(&[device], PATIENCE).unwrap().remove(0));
    let other = rank.comm.device().stream().unwrap();
    let mut data = rank.pool.alloc_filled(&other, LEN, 0u32).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let stream = rank.stream.clone();
    watched.after("event_record", move || {
        std::thread::spawn(move || tell.send(stream.begin_capture().unwrap()));
        std::thread::sleep(std::time::Duration::from_millis(50));
    });
    let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
    let queued = queue.run();
    assert!(watched.was_hooked());
    let graph = told.recv_timeout(PATIENCE).unwrap().end().unwrap();
    drop((data, rank.comm));
    let is_captured = queued.is_ok() && graph.memory().bytes() > 0;
    let is_gone = nccl.count("ncclCommDestroy") > 0;
    assert!(
        !(is_captured && is_gone),
        "the graph's communicator is gone"
    );
}

/// A rank whose end is gone is told of at once; one that a graph keeps is waited for.
#[test]
fn a_rank_whose_end_only_a_graph_has_still_comes() {
    let device = crate::common::host();
    let devices = [device.clone(), device];
    let ends = Comm::simulated(&devices, PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        let mut data = rank.pool.alloc_filled(&rank.stream, LEN, 1u32).unwrap();
        let capture = rank.stream.begin_capture().unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        let graph = capture.end().unwrap();
        drop(rank.comm);
        graph.launch(&rank.stream).unwrap();
        graph.launch(&rank.stream).unwrap();
        drop(graph);
        assert_eq!(data.download().unwrap(), [4; LEN]);
    });
}

/// Its graphs hold no calls of the host: a device that only passes the calls on that it knows of.
#[test]
fn a_device_whose_graphs_hold_no_collectives_says_so_and_all_goes_on() {
    let watched: Vec<Device> = hosts(2)
        .iter()
        .map(|device| Watched::over(device).0)
        .collect();
    let ends = Comm::simulated(&watched, PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        let mut data = rank.pool.alloc_filled(&rank.stream, LEN, 3u32).unwrap();
        let capture = rank.stream.begin_capture().unwrap();
        // One rank's is refused: the numbers of the others' stay the same.
        if rank.number() == 0 {
            let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
            let words = queue.run().unwrap_err().to_string();
            assert!(words.contains("captured"), "{words}");
        }
        data.view_mut().fill(&rank.stream, 0x0101_0101).unwrap();
        let graph = capture.end().unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        assert_eq!(data.download().unwrap(), [6; LEN]);
        graph.launch(&rank.stream).unwrap();
        assert_eq!(data.download().unwrap(), [0x0101_0101; LEN]);
        rank.comm.check().unwrap();
    });
}

/// A failure in a run of a graph is a failure of the communicator, and ends the waits of the others.
#[test]
fn ranks_that_captured_different_things_are_told_in_the_first_launch() {
    simulated(2, |rank: Rank| {
        let len = LEN + rank.number() as usize;
        let mut data = zeroed(&rank, len);
        let capture = rank.stream.begin_capture().unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        let graph = capture.end().unwrap();
        rank.comm.check().unwrap();
        graph.launch(&rank.stream).unwrap();
        rank.stream.synchronize().unwrap();
        let words = rank.comm.check().unwrap_err().to_string();
        assert!(words.contains("1000") && words.contains("1001"), "{words}");
    });
}

#[cfg(feature = "convert")]
mod reducers {
    use warpool::collective::{Reducer, ReducerConfig, Wire};

    use super::*;

    const LENS: [usize; 3] = [700, 5, 1300];

    fn gradient(rank: u32, step: usize, tensor: usize) -> Vec<f32> {
        let at = |at: usize| (at + 31 * tensor + 7 * step + 3 * rank as usize) as f32;
        (0..LENS[tensor])
            .map(|index| at(index).sin() / 64.0)
            .collect()
    }

    fn made(rank: &Rank, config: ReducerConfig) -> Reducer {
        Reducer::new(&rank.pool, &rank.stream, &rank.comm, &LENS, config).unwrap()
    }

    /// The backward pass: gradients from where they are put before a step.
    fn backward(rank: &Rank, reducer: &mut Reducer, from: &[PoolBuf<f32>]) {
        for (tensor, made) in from.iter().enumerate().rev() {
            let gradient = reducer.gradients().swap_remove(tensor);
            gradient.copy_from(&rank.stream, made).unwrap();
            reducer.ready(tensor).unwrap();
        }
        reducer.finish().unwrap();
    }

    fn found(rank: &Rank, reducer: &mut Reducer) -> (Vec<f32>, f32) {
        let read = |view: warpool::ViewMut<'_, f32>| view.as_view().download(&rank.stream).unwrap();
        let all = reducer.gradients().into_iter().flat_map(read).collect();
        (all, reducer.largest().download(&rank.stream).unwrap()[0])
    }

    #[test]
    fn each_launch_of_a_captured_step_is_a_step_with_the_scales_and_what_was_kept_back_before() {
        for (wire, feedback, bucket) in [
            (Wire::F32, false, 1024),
            (Wire::F16, true, 1024),
            (Wire::Bf16, false, 1 << 30),
            (Wire::E4m3, true, 1024),
        ] {
            simulated(2, |rank: Rank| {
                let config = ReducerConfig::default().wire(wire).feedback(feedback);
                let config = config.bucket_bytes(bucket);
                let (mut queued, mut captured) = (made(&rank, config), made(&rank, config));
                let mut from = LENS.map(|len| {
                    let buffer = rank.pool.alloc_zeroed::<f32>(&rank.stream, len);
                    buffer.unwrap()
                });
                let capture = rank.stream.begin_capture().unwrap();
                backward(&rank, &mut captured, &from);
                // And the optimiser reads them in the graph.
                let mut largest = rank.pool.alloc_typed::<f32>(&rank.stream, 1).unwrap();
                let seen = captured.largest();
                largest.view_mut().copy_from(&rank.stream, seen).unwrap();
                let graph = capture.end().unwrap();
                for step in 0..5 {
                    for (tensor, from) in from.iter_mut().enumerate() {
                        from.upload(&gradient(rank.number(), step, tensor)).unwrap();
                    }
                    // One of the steps is queued as ever, between two launches.
                    match step {
                        3 => backward(&rank, &mut captured, &from),
                        _ => graph.launch(&rank.stream).unwrap(),
                    }
                    let one = found(&rank, &mut captured);
                    backward(&rank, &mut queued, &from);
                    assert_eq!(one, found(&rank, &mut queued), "{wire:?}, step {step}");
                    assert!(one.1 > 0.0);
                    if step != 3 {
                        assert_eq!(largest.download().unwrap(), [one.1]);
                    }
                }
                rank.comm.check().unwrap();
            });
        }
    }

    #[test]
    fn a_step_that_a_graph_cannot_repeat_is_refused_and_the_capture_goes_on() {
        simulated(1, |rank: Rank| {
            let mut drawn = made(&rank, ReducerConfig::default().stochastic(5));
            let mut begun = made(&rank, ReducerConfig::default());
            begun.ready(0).unwrap();
            let mut sound = made(&rank, ReducerConfig::default());
            let capture = rank.stream.begin_capture().unwrap();
            let words = drawn.ready(0).unwrap_err().to_string();
            assert!(words.contains("the same draws"), "{words}");
            let words = begun.ready(1).unwrap_err().to_string();
            assert!(words.contains("within a step"), "{words}");
            for tensor in 0..3 {
                sound.ready(tensor).unwrap();
            }
            sound.finish().unwrap();
            capture.end().unwrap().launch(&rank.stream).unwrap();
            // Outside, both go on.
            for tensor in 0..3 {
                drawn.ready(tensor).unwrap();
            }
            drawn.finish().unwrap();
            begun.ready(1).unwrap();
            begun.ready(2).unwrap();
            begun.finish().unwrap();
            assert_eq!(found(&rank, &mut begun).1, 0.0);
        });
    }

    #[test]
    fn a_step_does_not_end_in_a_capture_that_began_after_it_nor_after_the_one_that_it_began_in() {
        simulated(1, |rank: Rank| {
            let all_ready = |reducer: &mut Reducer| {
                (0..3).for_each(|tensor| reducer.ready(tensor).unwrap());
            };
            let is_refused = |reducer: &mut Reducer| {
                let words = reducer.finish().unwrap_err().to_string();
                assert!(words.contains("within a step"), "{words}");
            };
            let [mut before, mut inside] = [(); 2].map(|()| made(&rank, ReducerConfig::default()));
            all_ready(&mut before);
            let capture = rank.stream.begin_capture().unwrap();
            is_refused(&mut before);
            all_ready(&mut inside);
            assert!(
                capture.end().is_err(),
                "the reducer's streams have not joined"
            );
            before.finish().unwrap();
            (0..2).for_each(|_| is_refused(&mut inside));
            let capture = rank.stream.begin_capture().unwrap();
            is_refused(&mut inside);
            drop(capture);
        });
    }
}
