//! Conversion inside one buffer.

use super::{Conversion, ConvertTo, Element};
use crate::device::{Launch, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::PoolBuf;

/// Bytes of scratch for `count` elements: a ticket counter, and a flag per tile.
fn scratch_bytes(count: u64) -> u64 {
    64 + 4 * count.div_ceil(u64::from(abi::WP_INPLACE_TILE))
}

impl<S: Element> PoolBuf<S> {
    /// Converts the buffer's elements in place, and returns the buffer with its new type.
    ///
    /// This needs no second buffer: narrowing runs from the first element on, widening from the last element
    /// back, and each part is stored once everything below it has been read. Narrowing returns the freed
    /// memory to the pool. Widening needs space for the result in the block: allocate with
    /// [`Pool::alloc_typed_with_room`](crate::Pool::alloc_typed_with_room).
    ///
    /// Stream order: queued on the buffer's own stream, after the work of other streams on the buffer. A few
    /// bytes of scratch (4 per 4096 elements) come from the pool and return to it in stream order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a widened result does not fit, or if the buffer is of a graph's own memory and its
    /// stream or its pool has no handle any more; any error of the pool or of the launch. The buffer is then
    /// freed; its elements are lost.
    pub fn convert_in_place<D: Element>(self, how: impl Into<Conversion>) -> Result<PoolBuf<D>>
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
        let own = self.block().lane();
        // The lane of a graph's memory serves its capture alone.
        let other = match self.block().is_private() {
            true => Some(own.shared.open_lane(&own.stream.to_handle()?)?),
            false => None,
        };
        let lane = other.as_deref().unwrap_or(own);
        let scratch = lane.alloc(scratch_bytes(len as u64), lane.slots)?;
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
        let stream = std::sync::Arc::clone(&own.stream);
        // All bytes of the block, also those beyond the elements.
        let used = Some(self.place().used(self.block().capacity(), true));
        // SAFETY: the block has space for source and result, and the scratch is as large as the launch needs.
        // Both are freed in the order of the stream that the launch is queued on.
        let queue =
            || stream.queue(|backend, on| unsafe { backend.launch(&Launch::Inplace(args), on) });
        ordered(&stream, &[used], queue)??;
        self.retyped(needed)
    }
}
