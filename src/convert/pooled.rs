//! Views of the pool's buffers.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{View, ViewMut};
use crate::pool::PoolBuf;

impl<T: Pod> PoolBuf<T> {
    /// The elements, to be read by queued work.
    ///
    /// Work on another stream than the buffer's must be ordered behind the buffer's, and be declared
    /// by [`Block::record_use`](crate::Block::record_use) if the buffer may be dropped before it is
    /// done.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View {
            addr: self.addr(),
            len: self.len() as u64,
            borrow: PhantomData,
        }
    }

    /// The elements, to be written by queued work; otherwise as [`PoolBuf::view`].
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            addr: self.addr(),
            len: self.len() as u64,
            borrow: PhantomData,
        }
    }
}
