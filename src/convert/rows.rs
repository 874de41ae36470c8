//! One conversion: contiguous, or rows at a fixed distance.

use super::{Conversion, ConvertTo, Element, Rows, RowsMut, View, ViewMut};
use crate::device::{Launch, Stream};
use crate::driver::abi;
use crate::error::{Error, Result};

/// Queues the conversion of every element of `src` into `dst`, in one launch.
///
/// Both may start at any element. Element `i` has the number `i` for [`Rounding::Stochastic`].
/// NaN, overflow, subnormals: see the [module](super).
///
/// Stream order: the source is read and the destination written by work queued on `stream`; the
/// call returns at once. Nothing is allocated.
///
/// # Errors
/// [`Error::Invalid`] if the lengths differ or the ranges overlap; what the launch said.
///
/// [`Rounding::Stochastic`]: super::Rounding::Stochastic
pub fn convert<S: ConvertTo<D>, D: Element>(
    stream: &Stream,
    src: View<'_, S>,
    dst: ViewMut<'_, D>,
    how: impl Into<Conversion>,
) -> Result<()> {
    convert_rows(stream, Rows::from(src), RowsMut::from(dst), how)
}

/// Queues the conversion of every row of `src` into the same row of `dst`, in one launch.
///
/// As [`convert`]; element `c` of row `r` has the number `r * cols + c`.
///
/// # Errors
/// [`Error::Invalid`] if the shapes differ or the ranges overlap; what the launch said.
pub fn convert_rows<S: ConvertTo<D>, D: Element>(
    stream: &Stream,
    src: Rows<'_, S>,
    dst: RowsMut<'_, D>,
    how: impl Into<Conversion>,
) -> Result<()> {
    if (src.rows, src.cols) != (dst.rows, dst.cols) {
        let why = format!(
            "{} x {} elements, but the source has {} x {}",
            dst.rows, dst.cols, src.rows, src.cols
        );
        return Err(Error::invalid("dst", why));
    }
    disjoint(
        src.view.addr(),
        src.view.bytes(),
        dst.view.addr(),
        dst.view.bytes(),
    )?;
    if src.rows == 0 || src.cols == 0 {
        return Ok(());
    }
    let mut args = abi::wp_convert {
        src: src.view.addr(),
        dst: dst.view.addr(),
        count: src.cols,
        rows: src.rows,
        src_pitch: src.pitch * size_of::<S>() as u64,
        dst_pitch: dst.pitch * size_of::<D>() as u64,
        seed: 0,
        src_type: S::TYPE,
        dst_type: D::TYPE,
        rounding: 0,
        overflow: 0,
    };
    how.into().apply(&mut args);
    // SAFETY: whoever made the views vouched for their ranges until queued work is done; lengths,
    // alignment and disjointness were checked.
    unsafe {
        stream
            .device()
            .backend()
            .launch(&Launch::Convert(args), stream.raw())
    }
}

/// Checks that two ranges of bytes have no byte in common.
pub(super) fn disjoint(src: u64, src_bytes: u64, dst: u64, dst_bytes: u64) -> Result<()> {
    if src_bytes != 0 && dst_bytes != 0 && src < dst + dst_bytes && dst < src + src_bytes {
        let why = format!("{dst:#x} + {dst_bytes} overlaps the source at {src:#x} + {src_bytes}");
        return Err(Error::invalid("dst", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::disjoint;

    #[test]
    fn ranges_that_share_a_byte_overlap_and_neighbours_do_not() {
        assert!(disjoint(100, 10, 110, 5).is_ok());
        assert!(disjoint(110, 5, 100, 10).is_ok());
        assert!(disjoint(100, 11, 110, 5).is_err());
        assert!(disjoint(112, 1, 110, 5).is_err());
        assert!(disjoint(100, 0, 100, 5).is_ok());
    }
}
