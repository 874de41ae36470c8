//! The driver's own pool, as the comparison uses it. Needs a GPU.

use crate::common;

use common::{cuda, fill, leaving_nothing, read};
use warpool::interop::CudaAsync;

const MIB: u64 = 1 << 20;

#[test]
fn blocks_of_the_drivers_pool_are_memory_and_its_high_water_marks_cover_them() {
    let Some(device) = cuda() else { return };
    leaving_nothing(device, |device| {
        let pool = CudaAsync::new(device, None).expect("a pool");
        let _entered = pool.enter().expect("the context");
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        let blocks = [5 * MIB, 300].map(|bytes| pool.alloc(&one, bytes).expect("memory"));
        fill(&one, blocks[0].addr(), 0x5a, 5 * MIB);
        fill(&one, blocks[1].addr(), 0xa5, 300);
        other.wait_stream(&one).expect("ordered");
        let whole = read(&other, blocks[0].addr(), 5 * MIB as usize);
        assert!(whole.iter().all(|byte| *byte == 0x5a));
        assert_eq!(read(&other, blocks[1].addr(), 300), [0xa5; 300]);
        for block in blocks {
            pool.free(block, &other).expect("freed");
        }
        other.synchronize().expect("done");
        let (used, reserved) = (pool.used_high().unwrap(), pool.reserved_high().unwrap());
        assert!(
            used >= 5 * MIB + 300 && reserved >= used,
            "{used} {reserved}"
        );
    });
}

#[test]
fn a_request_over_the_limit_of_the_drivers_pool_is_told_as_exhausted() {
    let Some(device) = cuda() else { return };
    leaving_nothing(device, |device| {
        let pool = CudaAsync::new(device, Some(64 * MIB)).expect("a pool");
        let _entered = pool.enter().expect("the context");
        let stream = device.stream().unwrap();
        let error = pool.alloc(&stream, 1024 * MIB).expect_err("too much");
        assert!(error.is_device_exhausted(), "{error}");
    });
}

#[test]
fn any_thread_that_enters_can_use_the_drivers_pool() {
    let Some(device) = cuda() else { return };
    leaving_nothing(device, |device| {
        let pool = &CudaAsync::new(device, None).expect("a pool");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let stream = device.stream().unwrap();
                scope.spawn(move || {
                    let _entered = pool.enter().expect("the context");
                    for _ in 0..100 {
                        let block = pool.alloc(&stream, 64 << 10).expect("memory");
                        fill(&stream, block.addr(), 1, 64 << 10);
                        pool.free(block, &stream).expect("freed");
                    }
                    stream.synchronize().expect("done");
                });
            }
        });
    });
}
