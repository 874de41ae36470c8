//! The elements that can be reduced, and the reductions.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The reduction of the ranks' elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Op {
    /// `ncclRedOp_t`.
    #[cfg(feature = "nccl")]
    pub(super) fn number(self) -> i32 {
        match self {
            Self::Sum => 0,
            Self::Max => 2,
            Self::Min => 3,
        }
    }
}

/// Folds `count` elements at the second address into those at the first.
pub(super) type Fold = unsafe fn(Op, *mut u8, *const u8, usize);

/// An element type, for a transport.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// `ncclDataType_t`.
    pub(super) number: i32,
    pub(super) bytes: usize,
    pub(super) fold: Option<Fold>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Bytes that are copied and not reduced.
pub(super) const BYTES: Kind = Kind {
    name: "u8",
    number: 1,
    bytes: 1,
    fold: None,
};

mod sealed {
    pub trait Sealed {
        #[doc(hidden)]
        const NUMBER: i32;
        #[doc(hidden)]
        fn fold(op: super::Op, one: Self, other: Self) -> Self;
    }
}

/// An element type of reductions: `f32`, `f64`, [`f16`](half::f16), [`bf16`](half::bf16), `i8`, `u8`, `i32`,
/// `u32`, `i64`, `u64`, and, with the feature `convert`, the 8-bit floats (which NCCL sums from version 2.24
/// and compute capability 9.0 on).
///
/// ```
/// use warpool::collective::{Comm, Op, Reduce};
/// use warpool::{PoolBuf, Stream};
///
/// /// The sum over all ranks, in place.
/// fn sum<T: Reduce>(comm: &Comm, stream: &Stream, values: &mut PoolBuf<T>) -> warpool::Result<()> {
///     comm.on(stream).all_reduce(values, Op::Sum).run()
/// }
/// ```
pub trait Reduce: Pod + sealed::Sealed {}

/// # Safety
/// `count` aligned elements of `T` at each address; the two ranges do not overlap.
unsafe fn fold<T: Reduce>(op: Op, into: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller's requirement.
    let (into, from) = unsafe {
        (
            std::slice::from_raw_parts_mut(into.cast::<T>(), count),
            std::slice::from_raw_parts(from.cast::<T>(), count),
        )
    };
    for (one, other) in into.iter_mut().zip(from) {
        *one = <T as sealed::Sealed>::fold(op, *one, *other);
    }
}

pub(super) fn kind_of<T: Reduce>() -> Kind {
    Kind {
        name: std::any::type_name::<T>(),
        number: T::NUMBER,
        bytes: size_of::<T>(),
        fold: Some(fold::<T>),
    }
}

macro_rules! integers {
    ($($element:ty = $number:literal;)*) => {$(
        impl sealed::Sealed for $element {
            const NUMBER: i32 = $number;
            fn fold(op: Op, one: Self, other: Self) -> Self {
                match op {
                    Op::Sum => one.wrapping_add(other),
                    Op::Max => one.max(other),
                    Op::Min => one.min(other),
                }
            }
        }
        impl Reduce for $element {}
    )*};
}

/// Floats, with the type in which they are added. NaN stays NaN.
macro_rules! floats {
    ($($(#[$condition:meta])? $element:ty = $number:literal, $wide:ty, $narrow:expr;)*) => {$(
        $(#[$condition])?
        impl sealed::Sealed for $element {
            const NUMBER: i32 = $number;
            fn fold(op: Op, one: Self, other: Self) -> Self {
                let (a, b) = (<$wide>::from(one), <$wide>::from(other));
                let nan = a.is_nan() || b.is_nan();
                match op {
                    Op::Sum => $narrow(a + b),
                    Op::Max | Op::Min if nan => $narrow(<$wide>::NAN),
                    Op::Max => $narrow(a.max(b)),
                    Op::Min => $narrow(a.min(b)),
                }
            }
        }
        $(#[$condition])?
        impl Reduce for $element {}
    )*};
}

integers! { i8 = 0; u8 = 1; i32 = 2; u32 = 3; i64 = 4; u64 = 5; }

floats! {
    f16 = 6, f32, f16::from_f32;
    f32 = 7, f32, |x| x;
    f64 = 8, f64, |x| x;
    bf16 = 9, f32, bf16::from_f32;
    #[cfg(feature = "convert")]
    crate::convert::E4m3 = 10, f32, crate::convert::E4m3::from_f32;
    #[cfg(feature = "convert")]
    crate::convert::E5m2 = 11, f32, crate::convert::E5m2::from_f32;
}
