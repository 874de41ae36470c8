//! A few page-locked pieces in turns, by way of which other data goes up.

use std::collections::VecDeque;

use bytemuck::Pod;

use super::{HostBuf, HostPool};
use crate::device::Stream;
use crate::error::Error;
use crate::pool::ViewMut;

/// Bytes of a piece: the bus is at its full speed, and a piece fits into a processor's cache.
const PIECE: usize = 2 << 20;

/// Pieces under way at once.
pub(super) const RING: usize = 4;

/// Elements of a piece; as many as there are where they have no bytes.
pub(super) fn piece<T>() -> usize {
    PIECE
        .checked_div(size_of::<T>())
        .map_or(usize::MAX, |len| len.max(1))
}

/// The pieces that copies may still read, the oldest first: never more than [`RING`].
pub(super) struct Ring<T> {
    host: HostPool,
    pieces: VecDeque<HostBuf<T>>,
}

impl<T: Pod> Ring<T> {
    pub(super) fn new(host: &HostPool) -> Self {
        Self {
            host: host.clone(),
            pieces: VecDeque::new(),
        }
    }

    /// Writes `dst` on `stream`, piece by piece: `fill` is told where a piece begins, and writes it.
    /// Returns when the last piece is queued. After an error pieces before it may have been copied.
    pub(super) fn upload<E: From<Error>>(
        &mut self,
        stream: &Stream,
        dst: ViewMut<'_, T>,
        mut fill: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<(), E> {
        stream.core().refuse_under_capture()?;
        let (all, mut from, mut left) = (dst.len(), 0, dst);
        while from < all {
            let len = piece::<T>().min(all - from);
            let mut buf = self.next(len)?;
            fill(from, &mut buf.get_mut()?[..len])?;
            let (now, rest) = left.split_at(len)?;
            now.upload_from(stream, buf.slice(..len)?)?;
            self.pieces.push_back(buf);
            (from, left) = (from + len, rest);
        }
        Ok(())
    }

    /// A piece of at least `len` elements: new while there may be more and is memory, else the oldest,
    /// or another in its place.
    fn next(&mut self, len: usize) -> Result<HostBuf<T>, Error> {
        loop {
            if self.pieces.len() < RING {
                match self.host.alloc_waiting(len) {
                    // Of a stream that failed, say, whose memory the pool cannot have back.
                    Err(_) if !self.pieces.is_empty() => {}
                    other => return other,
                }
            }
            if let Some(mut oldest) = self.pieces.pop_front() {
                // Waited for, so that what was dropped does not add up.
                oldest.get_mut()?;
                if oldest.len() >= len {
                    return Ok(oldest);
                }
            }
        }
    }
}
