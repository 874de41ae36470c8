//! Conversion between floating-point formats on a device, in stream order.
//!
//! # Formats
//!
//! `f64`, `f32`, [`half::f16`], [`half::bf16`], and the two 8-bit formats of the OCP specification,
//! [`E4m3`] and [`E5m2`]. [`ConvertTo`] lists the pairs. A pair whose destination holds every value
//! of the source is exact; any other rounds once, as [`Rounding`] says, also from `f64`.
//!
//! # What happens to special values
//!
//! - **NaN** becomes the NaN that NVIDIA's instructions give: positive, all ones below the sign
//!   (0x7FFF in `f16` and `bf16`, 0x7F in both 8-bit formats). Payloads and signs are lost, except
//!   from `bf16` to `f32`, which moves the bits unchanged.
//! - **Overflow** is [`Overflow`]'s choice: infinity (NaN in E4M3, which has no infinity), or the
//!   largest finite magnitude.
//! - **Subnormals** are converted exactly or rounded like any other value; none is flushed.
//! - **Signed zero** keeps its sign, and a value that rounds to zero keeps its sign.
//!
//! Every device gives the same bits.

mod element;
mod fused;
mod inplace;
mod launch;
mod options;
mod pooled;
mod rows;
mod scaler;
mod table;
mod view;

pub use element::{ConvertTo, E4m3, E5m2, Element};
pub use fused::{BLOCK, Fused, FusedTo};
pub use options::{Conversion, Overflow, Rounding};
pub use rows::{convert, convert_fused, convert_rows};
pub use scaler::{GradScaler, Gradient, Gradients, PendingState, ScalerConfig, ScalerState};
pub use table::ConvertTable;
pub use view::{Rows, RowsMut, View, ViewMut};
