//! The precision of activations and their gradients.

use warpool::convert::{Rounding, convert};
use warpool::half::f16;
use warpool::{PoolBuf, Result, Stream, View, ViewMut};

use crate::kernels;

type In<'a, T> = View<'a, T>;
type Out<'a, T> = ViewMut<'a, T>;

macro_rules! real {
    ($($name:ident $f32:ident $f16:ident ($($argument:ident: $type:ty),*);)*) => {
        /// A type of numbers, and the kernels for it.
        pub trait Real: warpool::convert::Element + Sized {
            /// Converts the masters to the numbers that the network computes with.
            fn from_f32(stream: &Stream, from: &PoolBuf<f32>, to: &mut PoolBuf<Self>) -> Result<()>;
            fn to_f32(stream: &Stream, from: &PoolBuf<Self>, to: &mut PoolBuf<f32>) -> Result<()>;
            $(#[allow(clippy::too_many_arguments)]
            fn $name(stream: &Stream, $($argument: $type),*) -> Result<()>;)*
        }

        impl Real for f32 {
            fn from_f32(stream: &Stream, from: &PoolBuf<f32>, to: &mut PoolBuf<f32>) -> Result<()> {
                to.view_mut().copy_from(stream, from)
            }
            fn to_f32(stream: &Stream, from: &PoolBuf<f32>, to: &mut PoolBuf<f32>) -> Result<()> {
                to.view_mut().copy_from(stream, from)
            }
            $(fn $name(stream: &Stream, $($argument: $type),*) -> Result<()> {
                kernels::$f32(stream, $($argument),*)
            })*
        }

        impl Real for f16 {
            fn from_f32(stream: &Stream, from: &PoolBuf<f32>, to: &mut PoolBuf<f16>) -> Result<()> {
                convert(stream, from, to, Rounding::Nearest)
            }
            fn to_f32(stream: &Stream, from: &PoolBuf<f16>, to: &mut PoolBuf<f32>) -> Result<()> {
                convert(stream, from, to, Rounding::Nearest)
            }
            $(fn $name(stream: &Stream, $($argument: $type),*) -> Result<()> {
                kernels::$f16(stream, $($argument),*)
            })*
        }
    };
}

real! {
    linear linear_f32 linear_f16
        (inner: u64, columns: u64, x: In<Self>, w: In<Self>, b: In<Self>, y: Out<Self>);
    block block_f32 block_f16
        (width: u64, x: In<Self>, w: In<Self>, b: In<Self>, r: Out<Self>, y: Out<Self>);
    through_relu through_relu_f32 through_relu_f16
        (r: In<Self>, dy: In<Self>, dz: Out<Self>);
    back back_f32 back_f16
        (width: u64, columns: u64, dz: In<Self>, w: In<Self>, beside: In<Self>, dx: Out<Self>);
    weights weights_f32 weights_f16
        (rows: u64, width: u64, columns: u64, x: In<Self>, dz: In<Self>, dw: Out<f32>);
    bias bias_f32 bias_f16
        (rows: u64, columns: u64, dz: In<Self>, db: Out<f32>);
    loss_gradient loss_gradient_f32 loss_gradient_f16
        (classes: u64, samples: u64, y: In<Self>, label: In<u32>, scale: In<f32>, dy: Out<Self>);
    cross_entropy cross_entropy_f32 cross_entropy_f16
        (classes: u64, y: In<Self>, label: In<u32>, loss: Out<f32>);
}
