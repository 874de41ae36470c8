//! Conversion inside one buffer.

use super::{Conversion, ConvertTo, Element};
use crate::device::{Launch, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::PoolBuf;

/// Bytes of scratch for `count` elements: a ticket counter and a flag a tile.
fn scratch_bytes(count: u64) -> u64 {
    64 + 4 * count.div_ceil(u64::from(abi::WP_INPLACE_TILE))
}

impl<S: Element> PoolBuf<S> {
    /// Converts the buffer's elements where they are, and gives the buffer its new type.
    ///
    /// No second buffer is needed: narrowing runs from the first element on, widening from the last
    /// back, each part stored once everything under it has been read. Narrowing gives what is freed
    /// back to the pool. Widening needs room for the result in the block: allocate with
    /// [`Pool::alloc_typed_with_room`](crate::Pool::alloc_typed_with_room).
    ///
    /// Stream order: queued on the buffer's own stream, behind what other streams do with the buffer. A few bytes of scratch (4 a 4096 elements)
    /// come from the pool and go back in stream order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a widened result does not fit; what the pool or the launch said. The
    /// buffer is then freed; its elements are lost.
    pub fn convert_in_place<D: Element>(mut self, how: impl Into<Conversion>) -> Result<PoolBuf<D>>
    where
        S: ConvertTo<D>,
    {
        let how = how.into();
        let (len, capacity) = (self.len(), self.block().capacity());
        let needed = (len as u64).saturating_mul(size_of::<D>() as u64);
        if needed > capacity {
            let why = format!(
                "the result needs {needed} bytes, the block has {capacity}: allocate the buffer by Pool::alloc_typed_with_room"
            );
            return Err(Error::invalid("buffer", why));
        }
        let lane = self.block().lane();
        let scratch = lane.alloc(scratch_bytes(len as u64))?;
        let (rounding, seed) = how.rounding_and_seed();
        let args = abi::wp_inplace {
            addr: self.addr(),
            count: len as u64,
            seed,
            scratch: scratch.addr(),
            src_type: S::TYPE,
            dst_type: D::TYPE,
            rounding,
            overflow: how.overflow_number(),
        };
        let stream = std::sync::Arc::clone(&lane.stream);
        let used = self.whole_view_mut().used();
        // SAFETY: the block holds source and result, the scratch what the launch needs; both are
        // freed in the order of the stream that the launch is queued on.
        let queued = ordered(&stream, &[used], || unsafe {
            stream
                .device
                .backend()
                .launch(&Launch::Inplace(args), stream.raw)
        });
        queued??;
        self.retyped(needed)
    }
}
