//! Conversion between views of up to four dimensions.

use bytemuck::Pod;

use super::launch::{arguments, disjoint, launch};
use super::{Conversion, ConvertTo, Element, Rows, RowsMut, View, ViewMut};
use crate::device::{Stream, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};

/// The most dimensions of a [`Strided`] view.
const DIMENSIONS: usize = 4;

/// Lengths and strides of dimensions, the outermost first; unused dimensions have length 1.
#[derive(Debug, Clone, Copy)]
struct Layout {
    shape: [u64; DIMENSIONS],
    strides: [u64; DIMENSIONS],
}

impl Layout {
    /// Checks that all elements are within `len`.
    fn new(len: usize, shape: &[usize], strides: &[usize]) -> Result<Self> {
        if shape.len() != strides.len() || shape.len() > DIMENSIONS {
            let why = format!(
                "{} dimensions with {} strides: give the same number of both, at most {DIMENSIONS}",
                shape.len(),
                strides.len()
            );
            return Err(Error::invalid("shape", why));
        }
        let mut layout = Self {
            shape: [1; DIMENSIONS],
            strides: [0; DIMENSIONS],
        };
        let outer = DIMENSIONS - shape.len();
        for (at, (&count, &stride)) in shape.iter().zip(strides).enumerate() {
            layout.shape[outer + at] = count as u64;
            layout.strides[outer + at] = stride as u64;
        }
        match layout.reach() {
            Some(reach) if reach <= len as u64 => Ok(layout),
            _ => {
                let why = format!("{shape:?} elements {strides:?} apart reach beyond {len}");
                Err(Error::invalid("strides", why))
            }
        }
    }

    /// Number of elements from the first to the last; `None` if it overflows 64 bits.
    fn reach(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut dimensions = self.shape.iter().zip(self.strides);
        dimensions.try_fold(1u64, |reach, (count, stride)| {
            reach.checked_add((count - 1).checked_mul(stride)?)
        })
    }

    /// Checks that no two indices refer to the same element, as far as nested strides show.
    fn check_apart(&self) -> Result<()> {
        if self.shape.contains(&0) {
            return Ok(());
        }
        let mut dimensions: [(u64, u64); DIMENSIONS] =
            std::array::from_fn(|at| (self.strides[at], self.shape[at]));
        dimensions.sort_unstable();
        let mut within = 0;
        for (stride, count) in dimensions.into_iter().filter(|(_, count)| *count > 1) {
            if stride <= within {
                let why = format!("elements {stride} apart meet others of a destination");
                return Err(Error::invalid("strides", why));
            }
            within += (count - 1) * stride;
        }
        Ok(())
    }
}

macro_rules! strided {
    ($(#[$doc:meta])* $name:ident, $view:ident, $rows:ident, $apart:expr, $errors:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T> {
            view: $view<'a, T>,
            layout: Layout,
        }

        impl<'a, T: Pod> $name<'a, T> {
            /// Elements of `view` in `shape`, the outermost dimension first; `strides` are the steps in each
            /// dimension, in elements.
            ///
            /// # Errors
            #[doc = $errors]
            pub fn new(view: $view<'a, T>, shape: &[usize], strides: &[usize]) -> Result<Self> {
                let layout = Layout::new(view.len(), shape, strides)?;
                if $apart {
                    layout.check_apart()?;
                }
                Ok(Self { view, layout })
            }
        }

        impl<'a, T: Pod> From<$rows<'a, T>> for $name<'a, T> {
            fn from(rows: $rows<'a, T>) -> Self {
                let layout = Layout {
                    shape: [1, 1, rows.rows, rows.cols],
                    strides: [0, 0, rows.pitch, 1],
                };
                Self { view: rows.view, layout }
            }
        }
    };
}

strided! {
    /// Elements in up to four dimensions, for queued work to read. A stride of 0 repeats an element.
    Strided, View, Rows, false,
    "[`Error::Invalid`] if there are too many dimensions or elements are outside the view."
}

strided! {
    /// Elements in up to four dimensions, for queued work to write.
    StridedMut, ViewMut, RowsMut, true,
    "[`Error::Invalid`] if there are too many dimensions, or elements are outside the view or may overlap."
}

/// A dimension on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Both {
    count: u64,
    src: u64,
    dst: u64,
}

const ONE: Both = Both {
    count: 1,
    src: 0,
    dst: 0,
};

/// A conversion as rows, and the dimensions outside them, each index of which is one launch.
#[derive(Debug, PartialEq, Eq)]
struct Collapsed {
    outer: [Both; 3],
    rows: Both,
    cols: u64,
}

/// Merges adjacent dimensions that are contiguous on both sides.
fn collapse(shape: [u64; DIMENSIONS], src: &Layout, dst: &Layout) -> Collapsed {
    let mut joined = [ONE; DIMENSIONS];
    let mut last = 0;
    for (at, count) in shape.into_iter().enumerate() {
        let inner = Both {
            count,
            src: src.strides[at],
            dst: dst.strides[at],
        };
        let outer = joined[last];
        let is_one = |of: u64, by: u64| inner.count.checked_mul(by) == Some(of);
        if inner.count == 1 {
            continue;
        }
        let joins = is_one(outer.src, inner.src) && is_one(outer.dst, inner.dst);
        joined[last] = match outer.count {
            1 => inner,
            count if joins => Both {
                count: count * inner.count,
                ..inner
            },
            _ => {
                last += 1;
                inner
            }
        };
    }
    // Innermost first, without the outer dimensions of length 1.
    let mut left = joined;
    left[..=last].reverse();
    let is_run = (left[0].src, left[0].dst) == (1, 1) || left[0].count == 1;
    let cols = if is_run { left[0].count } else { 1 };
    if is_run {
        left.rotate_left(1);
        left[DIMENSIONS - 1] = ONE;
    }
    Collapsed {
        outer: [left[3], left[2], left[1]],
        rows: left[0],
        cols,
    }
}

/// Queues the conversion of every element of `src` into the element of `dst` with the same index.
///
/// Adjacent dimensions that are contiguous on both sides are merged, so that most layouts are one launch of
/// rows at a fixed pitch. Each index of the dimensions outside the rows is a separate launch. Fast if the
/// innermost dimension has a stride of 1 on both sides. An element's number, for
/// [`Rounding::Stochastic`](super::Rounding::Stochastic), is its position in the order of indices, the
/// innermost fastest, as if both sides had no gaps.
///
/// The same as [`convert`](super::convert) otherwise.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Rounding, Strided, StridedMut, convert_strided};
/// use warpool::half::f16;
///
/// let pairs = pool.alloc_from(&stream, &[1.0_f32, -1.0, 2.0, -2.0])?;
/// let mut firsts = pool.alloc_typed::<f16>(&stream, 2)?;
/// let every_second = Strided::new(pairs.slice(..3)?, &[2], &[2])?;
/// let dense = StridedMut::new(firsts.view_mut(), &[2], &[1])?;
/// convert_strided(&stream, every_second, dense, Rounding::Nearest)?;
/// assert_eq!(firsts.download()?, [1.0, 2.0].map(f16::from_f32));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if the shapes differ, the views' ranges overlap or the stream is of another device; any
/// error of the driver.
pub fn convert_strided<'a, S: ConvertTo<D>, D: Element>(
    stream: &Stream,
    src: impl Into<Strided<'a, S>>,
    dst: impl Into<StridedMut<'a, D>>,
    how: impl Into<Conversion>,
) -> Result<()> {
    let (src, dst) = (src.into(), dst.into());
    if src.layout.shape != dst.layout.shape {
        let why = format!(
            "{:?} elements, but the source has {:?}",
            dst.layout.shape, src.layout.shape
        );
        return Err(Error::invalid("dst", why));
    }
    let (from, into) = (&src.view, &dst.view);
    disjoint(from.addr(), from.bytes(), into.addr(), into.bytes())?;
    let uses = [from.used(), into.used()];
    if src.layout.shape.contains(&0) {
        let mut uses = uses.iter().flatten();
        return uses.try_for_each(|used| used.check(stream.core()));
    }
    let all = collapse(src.layout.shape, &src.layout, &dst.layout);
    let (size, result) = (size_of::<S>() as u64, size_of::<D>() as u64);
    let mut args = arguments::<S, D>(how.into());
    (args.count, args.rows) = (all.cols, all.rows.count);
    (args.src_pitch, args.dst_pitch) = (all.rows.src * size, all.rows.dst * result);
    let places = [from.addr(), into.addr()];
    let queue = || {
        each_launch(&all, args, places, [size, result], |args| {
            // SAFETY: the same as in `convert_rows`; every element is within its view.
            unsafe { launch(stream, args) }
        })
    };
    ordered(stream.core(), &uses, queue)?
}

/// Calls `queue` for each index of the outer dimensions.
fn each_launch(
    all: &Collapsed,
    mut args: abi::wp_convert,
    [src, dst]: [u64; 2],
    [size, result]: [u64; 2],
    mut queue: impl FnMut(abi::wp_convert) -> Result<()>,
) -> Result<()> {
    let [a, b, c] = all.outer;
    for at in 0..a.count * b.count * c.count {
        let index = [at / c.count / b.count, at / c.count % b.count, at % c.count];
        let from: u64 = (index.iter().zip(all.outer))
            .map(|(i, of)| i * of.src)
            .sum();
        let into: u64 = (index.iter().zip(all.outer))
            .map(|(i, of)| i * of.dst)
            .sum();
        (args.src, args.dst) = (src + from * size, dst + into * result);
        args.first = at * all.rows.count * all.cols;
        queue(args)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[usize], strides: &[usize]) -> Layout {
        Layout::new(usize::MAX, shape, strides).unwrap()
    }

    fn collapsed(shape: &[usize], src: &[usize], dst: &[usize]) -> ([u64; 3], [u64; 3], u64) {
        let (src, dst) = (layout(shape, src), layout(shape, dst));
        let all = collapse(src.shape, &src, &dst);
        let rows = [all.rows.count, all.rows.src, all.rows.dst];
        (all.outer.map(|of| of.count), rows, all.cols)
    }

    #[test]
    fn dimensions_that_lie_as_one_become_rows() {
        let whole = [60, 20, 5, 1];
        let (outer, rows, cols) = collapsed(&[2, 3, 4, 5], &whole, &whole);
        assert_eq!((outer, rows[0], cols), ([1, 1, 1], 1, 120));
        // A gap after each row of one side.
        let gaps = [72, 24, 6, 1];
        let all = collapsed(&[2, 3, 4, 5], &whole, &gaps);
        assert_eq!(all, ([1, 1, 1], [24, 5, 6], 5));
        // Gaps after planes too: one launch per plane.
        let all = collapsed(&[2, 3, 4, 5], &whole, &[90, 30, 6, 1]);
        assert_eq!(all, ([1, 1, 6], [4, 5, 6], 5));
        // Transposed dimensions: runs of one element.
        let all = collapsed(&[3, 4], &[1, 3], &[4, 1]);
        assert_eq!(all, ([1, 1, 3], [4, 3, 1], 1));
        // A repeated row.
        assert_eq!(
            collapsed(&[7, 9], &[0, 1], &[9, 1]),
            ([1, 1, 1], [7, 0, 9], 9)
        );
        assert_eq!(collapsed(&[], &[], &[]), ([1, 1, 1], [1, 0, 0], 1));
        assert_eq!(collapsed(&[1, 1, 1], &[5, 6, 7], &[1, 2, 3]).2, 1);
    }

    #[test]
    fn indices_of_a_destination_that_may_meet_are_an_error() {
        assert!(layout(&[3, 4], &[4, 1]).check_apart().is_ok());
        assert!(layout(&[3, 4], &[1, 3]).check_apart().is_ok());
        assert!(layout(&[3, 4], &[3, 1]).check_apart().is_err());
        assert!(layout(&[2, 4], &[0, 1]).check_apart().is_err());
        assert!(layout(&[1, 4], &[0, 1]).check_apart().is_ok());
        assert!(layout(&[0, 4], &[0, 1]).check_apart().is_ok());
    }

    #[test]
    fn elements_beyond_the_view_or_any_number_are_an_error() {
        assert!(Layout::new(12, &[3, 4], &[4, 1]).is_ok());
        assert!(Layout::new(11, &[3, 4], &[4, 1]).is_err());
        assert!(Layout::new(0, &[3, 0], &[4, 1]).is_ok());
        assert!(Layout::new(usize::MAX, &[3], &[usize::MAX]).is_err());
        assert!(Layout::new(9, &[1; 5], &[1; 5]).is_err());
        assert!(Layout::new(9, &[1; 2], &[1; 3]).is_err());
    }
}
