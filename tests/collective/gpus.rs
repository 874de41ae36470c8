//! NCCL itself, between all GPUs of the machine.

use warpool::collective::{Comm, Op, Reducer, ReducerConfig, Wire};
use warpool::half::f16;
use warpool::{Device, Pool, PoolConfig};

use crate::{PATIENCE, common};

/// All GPUs. `None`, said so, where there are not so many.
fn gpus(least: u32) -> Option<Vec<Device>> {
    common::cuda()?;
    let count = Device::cuda_count().ok()?;
    if count < least {
        println!("skipped: one GPU");
        return None;
    }
    Some((0..count).map(|gpu| Device::cuda(gpu).unwrap()).collect())
}

#[test]
fn nccl_reduces_pool_memory_of_all_gpus_of_a_process_in_stream_order() {
    let Some(devices) = gpus(2) else { return };
    let ends = match Comm::nccl_all(&devices, PATIENCE) {
        Ok(ends) => ends,
        Err(why) => return println!("skipped: {why}"),
    };
    let (devices, count) = (&devices, ends.len() as u32);
    std::thread::scope(|scope| {
        for comm in ends {
            scope.spawn(move || {
                let peers: Vec<&Device> = devices.iter().collect();
                let pool = Pool::new(comm.device(), PoolConfig::default().peers(&peers)).unwrap();
                let alone = Pool::new(comm.device(), PoolConfig::default()).unwrap();
                let [one, other] = [(); 2].map(|()| comm.device().stream().unwrap());
                for len in [1usize, 1000, 1 << 22] {
                    let own = 1.0 + comm.rank() as f32;
                    let sum = (count * (count + 1) / 2) as f32;
                    let mut data = pool.alloc_filled(&one, len, own).unwrap();
                    let mut halves = pool.alloc_filled(&one, len, f16::from_f32(own)).unwrap();
                    let mut all = pool
                        .alloc_zeroed::<f32>(&one, len * count as usize)
                        .unwrap();
                    comm.on(&other).all_gather(&data, &mut all).run().unwrap();
                    comm.on(&other)
                        .all_reduce(&mut data, Op::Sum)
                        .all_reduce(&mut halves, Op::Sum)
                        .run()
                        .unwrap();
                    let mut part = pool.alloc_zeroed::<f32>(&one, len).unwrap();
                    comm.on(&one)
                        .reduce_scatter(&all, &mut part, Op::Max)
                        .run()
                        .unwrap();
                    assert!(data.download().unwrap().iter().all(|&x| x == sum));
                    assert!(halves.download().unwrap().iter().all(|x| x.to_f32() == sum));
                    let gathered = all.download().unwrap();
                    let wanted = |at: usize| 1.0 + (at / len) as f32;
                    assert!(gathered.iter().enumerate().all(|(at, &x)| x == wanted(at)));
                    let mine = 1.0 + comm.rank() as f32;
                    assert!(part.download().unwrap().iter().all(|&x| x == mine));
                    comm.on(&one).broadcast(&mut data, count - 1).run().unwrap();
                    let (next, before) =
                        ((comm.rank() + 1) % count, (comm.rank() + count - 1) % count);
                    comm.on(&one)
                        .send(&data, next)
                        .recv(&mut part, before)
                        .run()
                        .unwrap();
                    assert!(part.download().unwrap().iter().all(|&x| x == sum));
                }
                let mut private = alone.alloc_zeroed::<f32>(&one, 100).unwrap();
                let refused = comm
                    .on(&one)
                    .all_reduce(&mut private, Op::Sum)
                    .run()
                    .unwrap_err();
                assert!(
                    refused.to_string().contains("PoolConfig::peers"),
                    "{refused}"
                );
                comm.check().unwrap();
            });
        }
    });
}

/// With one GPU the sums are its own, and the casts and scales are tried all the same.
#[test]
fn a_reducer_averages_over_all_gpus_of_a_process_by_every_wire() {
    const LENS: [usize; 3] = [1 << 20, 1000, 77_777];
    let Some(devices) = gpus(1) else { return };
    let ends = match Comm::nccl_all(&devices, PATIENCE) {
        Ok(ends) => ends,
        Err(why) => return println!("skipped: {why}"),
    };
    let (devices, count) = (&devices, ends.len() as u32);
    // From -1 to 1, and each rank's its own part of that.
    let value =
        |rank: u32, at: usize| (1.0 + rank as f32) / count as f32 * (at as f32 * 0.37).sin();
    std::thread::scope(|scope| {
        for comm in ends {
            scope.spawn(move || {
                let peers: Vec<&Device> = devices.iter().collect();
                let pool = Pool::new(comm.device(), PoolConfig::default().peers(&peers)).unwrap();
                let stream = comm.device().stream().unwrap();
                for (wire, bits) in [
                    (Wire::F32, 23),
                    (Wire::F16, 10),
                    (Wire::Bf16, 7),
                    (Wire::E4m3, 3),
                ] {
                    let config = ReducerConfig::default()
                        .wire(wire)
                        .bucket_bytes(1 << 20)
                        .feedback(true);
                    let mut reducer = Reducer::new(&pool, &stream, &comm, &LENS, config).unwrap();
                    for _ in 0..3 {
                        for (tensor, len) in LENS.into_iter().enumerate() {
                            let data: Vec<f32> =
                                (0..len).map(|at| value(comm.rank(), at)).collect();
                            let gradient = reducer.gradients().swap_remove(tensor);
                            gradient.upload(&stream, &data).unwrap();
                            reducer.ready(tensor).unwrap();
                        }
                        reducer.finish().unwrap();
                    }
                    // A code a rank, with what it lacked before, and as many sums.
                    let bound = 2f32.powi(-bits) * 2.0 * count as f32;
                    for (tensor, len) in LENS.into_iter().enumerate() {
                        let found = reducer.gradients().swap_remove(tensor);
                        let found = found.as_view().download(&stream).unwrap();
                        assert_eq!(found.len(), len);
                        for (at, x) in found.into_iter().enumerate() {
                            let sum: f32 = (0..count).map(|rank| value(rank, at)).sum();
                            let error = (x - sum / count as f32).abs();
                            assert!(error <= bound, "{wire:?}, {tensor}: {error} at {at}");
                        }
                    }
                    let largest = reducer.largest().download(&stream).unwrap()[0];
                    assert!((0.4..2.0).contains(&largest), "{wire:?}: {largest}");
                }
                comm.check().unwrap();
            });
        }
    });
}

/// With one GPU the ranks' part is a copy and a transfer to itself; it is captured all the same.
#[test]
fn nccl_in_a_graph_is_made_again_in_each_launch_with_what_is_there_then() {
    const LEN: usize = 100_000;
    let Some(devices) = gpus(1) else { return };
    if devices.len() > 1 && std::env::var("NCCL_GRAPH_REGISTER").as_deref() != Ok("0") {
        return println!("skipped: NCCL_GRAPH_REGISTER is not 0");
    }
    let ends = match Comm::nccl_all(&devices, PATIENCE) {
        Ok(ends) => ends,
        Err(why) => return println!("skipped: {why}"),
    };
    let (devices, count) = (&devices, ends.len() as u32);
    std::thread::scope(|scope| {
        for comm in ends {
            scope.spawn(move || {
                let peers: Vec<&Device> = devices.iter().collect();
                let pool = Pool::new(comm.device(), PoolConfig::default().peers(&peers)).unwrap();
                let stream = comm.device().stream().unwrap();
                let (rank, next) = (comm.rank(), (comm.rank() + 1) % count);
                let before = (rank + count - 1) % count;
                let zeroed = |len| pool.alloc_zeroed::<f32>(&stream, len).unwrap();
                let (mut mine, mut sums, mut theirs) = (zeroed(LEN), zeroed(LEN), zeroed(LEN));
                let mut all = zeroed(LEN * count as usize);
                // Several buckets, which a graph sums by the first communicator alone.
                let config = ReducerConfig::default().wire(Wire::Bf16);
                let config = config.bucket_bytes(64 << 10);
                let mut reducer = Reducer::new(&pool, &stream, &comm, &[LEN], config).unwrap();
                let capture = stream.begin_capture().unwrap();
                sums.view_mut().copy_from(&stream, &mine).unwrap();
                comm.on(&stream)
                    .all_reduce(&mut sums, Op::Sum)
                    .run()
                    .unwrap();
                comm.on(&stream).all_gather(&mine, &mut all).run().unwrap();
                let queue = comm.on(&stream).send(&mine, next).recv(&mut theirs, before);
                queue.run().unwrap();
                let gradient = reducer.gradients().remove(0);
                gradient.copy_from(&stream, &mine).unwrap();
                reducer.ready(0).unwrap();
                reducer.finish().unwrap();
                let graph = capture.end().unwrap();
                assert_eq!(theirs.download().unwrap(), vec![0.0; LEN], "it ran");
                for round in 1..5u32 {
                    let value = |rank: u32| (rank + 10 * round) as f32;
                    let sum = (0..count).map(value).sum::<f32>();
                    mine.upload(&vec![value(rank); LEN]).unwrap();
                    graph.launch(&stream).unwrap();
                    assert_eq!(sums.download().unwrap(), vec![sum; LEN]);
                    assert_eq!(theirs.download().unwrap(), vec![value(before); LEN]);
                    let gathered = all.download().unwrap();
                    let wanted = |at: usize| value((at / LEN) as u32);
                    assert!(gathered.iter().enumerate().all(|(at, &x)| x == wanted(at)));
                    let average = reducer.gradients().remove(0);
                    let average = average.as_view().download(&stream).unwrap();
                    assert!(
                        average
                            .iter()
                            .all(|x| (x * count as f32 / sum - 1.0).abs() < 1e-2)
                    );
                }
                comm.check().unwrap();
                drop(comm);
                graph.launch(&stream).unwrap();
                drop((graph, reducer));
                stream.synchronize().unwrap();
            });
        }
    });
}
