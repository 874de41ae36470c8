//! Conversion between floating-point formats on a device, in stream order.
//!
//! # Formats
//!
//! `f64`, `f32`, [`half::f16`], [`half::bf16`], and the two 8-bit formats of the OCP specification,
//! [`E4m3`] and [`E5m2`]. [`ConvertTo`] lists the pairs. A conversion is exact if the destination
//! can represent every value of the source; every other conversion rounds once, as [`Rounding`] says,
//! also from `f64`.
//!
//! # Special values
//!
//! - **NaN** becomes the NaN of NVIDIA's instructions: positive, all ones below the sign (0x7FFF in
//!   `f16` and `bf16`, 0x7F in both 8-bit formats). Payloads and signs are lost, except from `bf16`
//!   to `f32`, which copies the bits.
//! - **Overflow**: [`Overflow`] chooses infinity (NaN in E4M3, which has no infinity) or the
//!   largest finite magnitude.
//! - **Subnormals** are converted exactly or rounded like any other value; none is flushed to zero.
//! - **Signed zero** keeps its sign, and a value that rounds to zero keeps its sign.
//!
//! # Formats with scales
//!
//! [`quantize()`] makes 8-bit floats with scales per tensor, per row, per 1 x 128 block and per 128
//! x 128 block; [`mx_quantize`] and [`nvfp4_quantize`] make blocks of small floats;
//! [`quantize_integers`] makes integers of 8 and 4 bits. Each has an inverse. [`cast_transpose`]
//! converts and transposes in one pass. The results are specified to the bit below.
//!
//! Every device returns the same bits.
//!
#![doc = include_str!("../../docs/formats.md")]

mod codes;
mod convert_table;
mod element;
mod fp8;
mod fused;
mod inplace;
mod integer;
mod launch;
mod mx;
mod options;
mod quantize;
mod quantize_table;
mod rows;
mod scaler;
mod strided;
mod transpose;

pub use crate::pool::{Rows, RowsMut};
use crate::pool::{View, ViewMut};
pub use codes::{Quantize, Wide};
pub use convert_table::ConvertTable;
pub use element::{ConvertTo, E4m3, E5m2, Element};
pub use fused::{Fused, FusedTo};
pub use integer::{Grouping, I4, Integer, dequantize_integers, quantize_integers};
pub use mx::{
    BlockScales, E2m1, E2m3, E3m2, E8m0, MX_BLOCK, MxElement, NVFP4_BLOCK, mx_dequantize,
    mx_quantize, nvfp4_dequantize, nvfp4_quantize,
};
pub use options::{Conversion, Overflow, Rounding};
pub use quantize::{Float8, Scales, ScalesMut, block_scales, dequantize, quantize, square_scales};
pub use quantize_table::{DequantizeTable, QuantizeTable};
pub use rows::{convert, convert_fused, convert_rows};
pub use scaler::{GradScaler, Gradients, PendingState, ScalerConfig, ScalerState};
pub use strided::{Strided, StridedMut, convert_strided};
pub use transpose::{Narrow, Transpose, cast_transpose};
