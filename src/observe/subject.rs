//! The interface of an allocator that a replay plays a trace through.

use crate::device::{Addr, Stream};
use crate::error::Result;
use crate::interop::{AsyncBlock, CudaAsync};
use crate::pool::{Block, Pool};

/// A stream-ordered allocator. The calls are thin, so that the allocator itself is timed.
pub(super) trait Subject {
    /// A block in use.
    type Block;

    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Self::Block>;
    /// Calls `work` with the block's address; `work` queues the use of the block on `stream`.
    fn with_addr(
        block: &Self::Block,
        stream: &Stream,
        work: impl FnOnce(Addr) -> Result<()>,
    ) -> Result<()>;
    /// Frees on `stream`, the one that the block was allocated on.
    fn free(&self, block: Self::Block, stream: &Stream) -> Result<()>;
    /// Frees on `stream`, which already waits for the one that the block was allocated on.
    fn free_on(&self, block: Self::Block, stream: &Stream) -> Result<()>;

    /// Most physical bytes held at once.
    fn peak_reserved_bytes(&self) -> Result<u64>;
    /// The largest free extent now; 0 if the allocator does not report it.
    fn largest_hole_bytes(&self) -> u64;
}

impl Subject for Pool {
    type Block = Block;

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        Pool::alloc(self, stream, bytes)
    }

    fn with_addr(block: &Block, _: &Stream, work: impl FnOnce(Addr) -> Result<()>) -> Result<()> {
        work(block.addr())
    }

    #[inline]
    fn free(&self, block: Block, _: &Stream) -> Result<()> {
        drop(block);
        Ok(())
    }

    #[inline]
    fn free_on(&self, block: Block, stream: &Stream) -> Result<()> {
        block.free_on(stream)
    }

    fn peak_reserved_bytes(&self) -> Result<u64> {
        Ok(self.stats().reserved.peak)
    }

    fn largest_hole_bytes(&self) -> u64 {
        self.stats().largest_hole
    }
}

impl Subject for CudaAsync {
    type Block = AsyncBlock;

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<AsyncBlock> {
        CudaAsync::alloc(self, stream, bytes)
    }

    fn with_addr(
        block: &AsyncBlock,
        _: &Stream,
        work: impl FnOnce(Addr) -> Result<()>,
    ) -> Result<()> {
        work(block.addr())
    }

    #[inline]
    fn free(&self, block: AsyncBlock, stream: &Stream) -> Result<()> {
        CudaAsync::free(self, block, stream).map_err(|(_, error)| error)
    }

    #[inline]
    fn free_on(&self, block: AsyncBlock, stream: &Stream) -> Result<()> {
        CudaAsync::free(self, block, stream).map_err(|(_, error)| error)
    }

    fn peak_reserved_bytes(&self) -> Result<u64> {
        self.reserved_high()
    }

    fn largest_hole_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::Subject;
    use crate::device::Device;
    use crate::pool::{Pool, PoolConfig};

    #[test]
    fn what_a_pool_held_at_most_is_said_after_it_gave_some_back() {
        let device = Device::host().expect("the host device");
        let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
        let stream = device.stream().expect("a stream");
        let bytes = 4 * device.info().granule;
        drop(pool.alloc(&stream, bytes).expect("memory"));
        pool.trim(0).expect("the device takes it back");
        assert_eq!(pool.stats().reserved.current, 0);
        assert_eq!(pool.peak_reserved_bytes().expect("a figure"), bytes);
    }
}
