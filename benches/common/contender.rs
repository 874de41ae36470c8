//! Who is measured: this crate's pool, the driver's, and the system's allocator as a floor.

use std::alloc::Layout;
use std::hint::black_box;

use warpool::interop::{AsyncBlock, CudaAsync, Entered};
use warpool::{Block, Device, Pool, PoolConfig, Stream};

/// An allocator under measurement. A failure ends the bench: there is nothing left to measure.
pub trait Contender: Sync {
    /// A block in use.
    type Block: Send;
    /// What a thread holds while it calls.
    type Guard;
    /// Its name in the results.
    const NAME: &'static str;

    /// Readies the calling thread.
    fn enter(&self) -> Self::Guard;
    /// Allocates on `stream`.
    fn alloc(&self, stream: &Stream, bytes: u64) -> Self::Block;
    /// Frees on the stream that the block was allocated on.
    fn free(&self, block: Self::Block, stream: &Stream);
    /// Frees on another stream, which is ordered behind the allocation.
    fn free_on(&self, block: Self::Block, stream: &Stream);
    /// Address of a block.
    fn addr(block: &Self::Block) -> u64;
}

/// This crate's pool.
pub struct Warpool(pub Pool);

impl Warpool {
    pub fn new(device: &Device) -> Self {
        Self::with(device, PoolConfig::default())
    }

    pub fn with(device: &Device, config: PoolConfig) -> Self {
        Self(Pool::new(device, config).expect("a pool"))
    }
}

impl Contender for Warpool {
    type Block = Block;
    type Guard = ();
    const NAME: &'static str = "warpool";

    fn enter(&self) {}

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> Block {
        self.0.alloc(stream, bytes).expect("memory")
    }

    #[inline]
    fn free(&self, block: Block, _: &Stream) {
        drop(block);
    }

    #[inline]
    fn free_on(&self, block: Block, stream: &Stream) {
        block.free_on(stream).expect("freed");
    }

    fn addr(block: &Block) -> u64 {
        block.addr()
    }
}

/// The driver's pool.
pub struct DriverPool(CudaAsync);

impl DriverPool {
    pub fn new(device: &Device) -> Self {
        Self(CudaAsync::new(device, None).expect("a pool of the driver's"))
    }
}

impl Contender for DriverPool {
    type Block = AsyncBlock;
    type Guard = Entered;
    const NAME: &'static str = "cudaMallocAsync";

    fn enter(&self) -> Entered {
        self.0.enter().expect("the context")
    }

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> AsyncBlock {
        self.0.alloc(stream, bytes).expect("memory")
    }

    #[inline]
    fn free(&self, block: AsyncBlock, stream: &Stream) {
        self.0.free(block, stream).expect("freed");
    }

    #[inline]
    fn free_on(&self, block: AsyncBlock, stream: &Stream) {
        self.0.free(block, stream).expect("freed");
    }

    fn addr(block: &AsyncBlock) -> u64 {
        block.addr()
    }
}

/// The system's `malloc`: what host memory costs where streams need no order. Not a peer.
pub struct Malloc;

/// Memory of `malloc` and its layout.
pub struct Raw(*mut u8, Layout);

// SAFETY: memory of the system's allocator may be freed on any thread.
unsafe impl Send for Raw {}

impl Contender for Malloc {
    type Block = Raw;
    type Guard = ();
    const NAME: &'static str = "malloc";

    fn enter(&self) {}

    #[inline]
    fn alloc(&self, _: &Stream, bytes: u64) -> Raw {
        let layout = Layout::from_size_align(bytes as usize, 16).expect("a layout");
        // SAFETY: no bench asks for 0 bytes.
        let addr = unsafe { std::alloc::alloc(layout) };
        assert!(!addr.is_null(), "memory");
        Raw(addr, layout)
    }

    #[inline]
    fn free(&self, block: Raw, _: &Stream) {
        // SAFETY: allocated above with this layout, and gone after this.
        unsafe { std::alloc::dealloc(block.0, block.1) };
    }

    #[inline]
    fn free_on(&self, block: Raw, stream: &Stream) {
        self.free(block, stream);
    }

    fn addr(block: &Raw) -> u64 {
        block.0 as u64
    }
}

/// No allocator: a chain of multiplications about as long as a pair, with nothing shared. What it
/// gains from more threads is what this machine's threads can gain.
pub struct Arithmetic;

impl Contender for Arithmetic {
    type Block = u64;
    type Guard = ();
    const NAME: &'static str = "arithmetic";

    fn enter(&self) {}

    #[inline]
    fn alloc(&self, _: &Stream, bytes: u64) -> u64 {
        (0..16).fold(bytes, |value, _| black_box(value.wrapping_mul(value)))
    }

    fn free(&self, _: u64, _: &Stream) {}

    fn free_on(&self, _: u64, _: &Stream) {}

    fn addr(block: &u64) -> u64 {
        *block
    }
}
