//! A few page-locked pieces, used in turn, through which other memory is copied to the device.

use std::collections::VecDeque;

use bytemuck::Pod;

use super::{HostBuf, HostPool};
use crate::device::Stream;
use crate::error::Error;
use crate::pool::ViewMut;

/// Bytes of a piece: large enough for the bus's full bandwidth, small enough for a processor's
/// cache.
const PIECE: usize = 2 << 20;

/// Most pieces under way at once.
pub(super) const RING: usize = 4;

/// Elements of a piece; no limit for elements without bytes.
pub(super) fn piece<T>() -> usize {
    PIECE
        .checked_div(size_of::<T>())
        .map_or(usize::MAX, |len| len.max(1))
}

/// The pieces that copies may still read, the oldest first; at most [`RING`].
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

    /// Copies to `dst` on `stream`, piece by piece. `fill` gets the first element of a piece, and
    /// writes the piece. Returns once the last piece is queued. After an error, earlier pieces may
    /// have been copied.
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

    /// A piece of at least `len` elements: a new one if the ring has space and the host has memory,
    /// otherwise the oldest, or one in its place.
    fn next(&mut self, len: usize) -> Result<HostBuf<T>, Error> {
        loop {
            if self.pieces.len() < RING {
                match self.host.alloc_waiting(len) {
                    // The pool may be unable to reuse its memory, for example because a stream
                    // failed.
                    Err(_) if !self.pieces.is_empty() => {}
                    other => return other,
                }
            }
            if let Some(mut oldest) = self.pieces.pop_front() {
                // Waits for its copy, so that dropped pieces do not accumulate.
                oldest.get_mut()?;
                if oldest.len() >= len {
                    return Ok(oldest);
                }
            }
        }
    }
}
