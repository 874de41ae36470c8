//! The memory of activations: fixed, or movable to the host and back.

use warpool::movable::{Movable, Resident, ResidentMut};
use warpool::{Pool, PoolBuf, Result, Stream, View, ViewMut};

use crate::real::Real;

/// Numbers that work on a stream reads and writes.
pub enum Memory<T> {
    Fixed(PoolBuf<T>),
    Movable(Movable<T>),
}

/// Numbers for reading: they keep their address until this is dropped.
pub enum Read<'a, T> {
    View(View<'a, T>),
    Held(Resident<'a, T>),
}

/// The same for writing.
pub enum Write<'a, T> {
    View(&'a mut PoolBuf<T>),
    Held(ResidentMut<'a, T>),
}

impl<T: Real> Memory<T> {
    pub fn new(pool: &Pool, stream: &Stream, len: usize, movable: bool) -> Result<Self> {
        match movable {
            true => pool.alloc_movable(stream, len).map(Self::Movable),
            false => pool.alloc_typed(stream, len).map(Self::Fixed),
        }
    }

    pub fn read<'a>(&'a self, stream: &'a Stream) -> Result<Read<'a, T>> {
        match self {
            Self::Fixed(buf) => Ok(Read::View(buf.view())),
            Self::Movable(block) => block.hold(stream).map(Read::Held),
        }
    }

    pub fn write<'a>(&'a mut self, stream: &'a Stream) -> Result<Write<'a, T>> {
        match self {
            Self::Fixed(buf) => Ok(Write::View(buf)),
            Self::Movable(block) => block.hold_mut(stream).map(Write::Held),
        }
    }

    /// Announces a read: if the numbers are on the host, starts to bring them back.
    pub fn soon(&self) -> Result<()> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Movable(block) => block.prefetch(),
        }
    }
}

impl<T: Real> Read<'_, T> {
    pub fn view(&self) -> View<'_, T> {
        match self {
            Self::View(view) => *view,
            Self::Held(held) => held.view(),
        }
    }
}

impl<T: Real> Write<'_, T> {
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        match self {
            Self::View(buf) => buf.view_mut(),
            Self::Held(held) => held.view_mut(),
        }
    }
}
