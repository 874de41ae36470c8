//! What the ranks' common state has once nobody waits any more.

use super::*;
use crate::collective::{Comm, Op};
use crate::pool::{Pool, PoolBuf, PoolConfig};

#[test]
fn a_meeting_that_all_ranks_have_left_takes_no_memory() {
    let device = Device::host().unwrap();
    let ends = ends(&[device.clone(), device.clone()], Duration::from_secs(60)).unwrap();
    let world = Arc::clone(&ends[0].world);
    let ends: Vec<_> = ends.into_iter().map(Comm::over).collect();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let mut data: Vec<PoolBuf<u32>> = (streams.iter())
        .map(|stream| pool.alloc_zeroed(stream, 8).unwrap())
        .collect();
    for _ in 0..3 {
        for (rank, (end, data)) in ends.iter().zip(&mut data).enumerate() {
            let on = || end.on(&streams[rank]);
            on().all_reduce(&mut *data, Op::Sum).run().unwrap();
            match rank {
                0 => on().send(&*data, 1).run().unwrap(),
                _ => on().recv(&mut *data, 0).run().unwrap(),
            }
        }
        assert!(ends.iter().all(|end| end.check().is_ok()));
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    assert!(lock(&world.state).rounds.is_empty());
}

#[test]
fn a_graph_that_alone_keeps_a_communicator_tells_its_failure_to_the_next_launch() {
    let device = Device::host().unwrap();
    let ends =
        Comm::simulated(&[device.clone(), device.clone()], Duration::from_millis(20)).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let mut data = pool.alloc_zeroed::<u32>(&stream, 8).unwrap();
    let capture = stream.begin_capture().unwrap();
    (ends[0].on(&stream).all_reduce(&mut data, Op::Sum))
        .run()
        .unwrap();
    let graph = capture.end().unwrap();
    drop(ends);
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    let refused = graph.launch(&stream).unwrap_err().to_string();
    assert!(refused.contains("left the communicator"), "{refused}");
}
