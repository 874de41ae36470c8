//! A device with a pool, and inputs that meet every case.

use bytemuck::Pod;
use warpool::{Device, Pool, PoolBuf, PoolConfig, Stream};

use crate::common;

pub const GUARD: u8 = 0xC3;

/// A device, a stream and a pool on it.
pub struct Ground {
    pub stream: Stream,
    pub pool: Pool,
}

impl Ground {
    pub fn new(device: &Device) -> Self {
        let pool = Pool::new(device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        Self { stream, pool }
    }

    pub fn holding<T: Pod>(&self, data: &[T]) -> PoolBuf<T> {
        let room = data.len().max(1);
        let mut buffer = self.pool.alloc_typed::<T>(&self.stream, room).unwrap();
        if !data.is_empty() {
            buffer.upload(data).unwrap();
        }
        buffer
    }

    /// A buffer of guard bytes.
    pub fn guarded<T: Pod>(&self, len: usize) -> PoolBuf<T> {
        let guard: T = bytemuck::pod_read_unaligned(&vec![GUARD; size_of::<T>()]);
        self.holding(&vec![guard; len.max(1)])
    }
}

/// The host device, and the first GPU where there is one.
pub fn every_ground() -> Vec<Ground> {
    common::devices().iter().map(Ground::new).collect()
}

pub fn is_guard<T: Pod>(elements: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(elements)
        .iter()
        .all(|&byte| byte == GUARD)
}

/// Random bits of a number.
pub fn noise(at: u64) -> u64 {
    let x = (at ^ at >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 8
}
