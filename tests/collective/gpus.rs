//! NCCL itself, between all GPUs of the machine.

use warpool::collective::{Comm, Op};
use warpool::half::f16;
use warpool::{Device, Pool, PoolConfig};

use crate::{PATIENCE, common};

/// All GPUs. `None`, said so, where there are not two, or no NCCL.
fn gpus() -> Option<Vec<Device>> {
    common::cuda()?;
    let count = Device::cuda_count().ok()?;
    if count < 2 {
        println!("skipped: one GPU");
        return None;
    }
    Some((0..count).map(|gpu| Device::cuda(gpu).unwrap()).collect())
}

#[test]
fn nccl_reduces_pool_memory_of_all_gpus_of_a_process_in_stream_order() {
    let Some(devices) = gpus() else { return };
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
