//! The common part of quantisation into all formats: shapes, checks and the launch.

use super::launch::{Part, pitch_bytes, queue_with};
use super::{Element, Rounding, Rows, RowsMut, View, ViewMut};
use crate::device::{Launch, Stream};
use crate::driver::abi;
use crate::error::{Error, Result};

use bytemuck::Pod;

/// A source format of quantisation: `f32`, [`half::f16`], [`half::bf16`].
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{E4m3, Float8, Quantize, ScalesMut, Wide, quantize};
/// use warpool::{PoolBuf, Result, Stream};
///
/// fn by_tensor<S: Wide, Q: Float8>(
///     stream: &Stream, values: &PoolBuf<S>, codes: &mut PoolBuf<Q>, scale: &PoolBuf<f32>,
/// ) -> Result<()> {
///     quantize(stream, values, codes, ScalesMut::Tensor(scale.view()), Quantize::default())
/// }
/// # let values = pool.alloc_from(&stream, &[2.0_f32])?;
/// # let mut codes = pool.alloc_typed::<E4m3>(&stream, 1)?;
/// # let scale = pool.alloc_from(&stream, &[2.0_f32])?;
/// by_tensor(&stream, &values, &mut codes, &scale)?;
/// assert_eq!(codes.download()?, [E4m3::from_f32(1.0)]);
/// # Ok(())
/// # }
/// ```
pub trait Wide: Element {}
impl Wide for f32 {}
impl Wide for half::f16 {}
impl Wide for half::bf16 {}

/// The options of quantisation. The default rounds to nearest.
#[derive(Debug, Default)]
#[must_use]
pub struct Quantize<'a> {
    pub(super) rounding: Rounding,
    pub(super) amax: Option<ViewMut<'a, f32>>,
}

impl<'a> Quantize<'a> {
    /// Sets another rounding: [`Rounding::Nearest`] or [`Rounding::Stochastic`]. Element `c` of row
    /// `r` has the number `r * cols + c`.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Raises the first element of `amax` to the largest magnitude of the values before scaling, if
    /// that is larger; set it to 0 first. NaN counts as larger than infinity, so that it is not
    /// lost.
    pub fn amax(mut self, amax: ViewMut<'a, f32>) -> Self {
        self.amax = Some(amax);
        self
    }

    /// The rounding's number in `kernels/warpool.h`, and the seed.
    pub(super) fn rounding_and_seed(&self) -> Result<(u32, u64)> {
        match self.rounding {
            Rounding::Nearest => Ok((abi::WP_NEAREST, 0)),
            Rounding::Stochastic { seed } => Ok((abi::WP_STOCHASTIC, seed)),
            other => {
                let why = format!("{other:?}: codes are rounded to nearest or stochastically");
                Err(Error::invalid("rounding", why))
            }
        }
    }
}

/// The rows of one side of a conversion, without their type.
pub(super) struct Side<'a> {
    part: Part<'a>,
    rows: u64,
    cols: u64,
    pitch: u64,
}

impl<'a, T: Pod> From<&Rows<'a, T>> for Side<'a> {
    fn from(rows: &Rows<'a, T>) -> Self {
        Self {
            part: read(&rows.view),
            rows: rows.rows,
            cols: rows.cols,
            pitch: pitch_bytes::<T>(rows.rows, rows.cols, rows.pitch),
        }
    }
}

impl<'a, T: Pod> From<&RowsMut<'a, T>> for Side<'a> {
    fn from(rows: &RowsMut<'a, T>) -> Self {
        Self {
            part: written(&rows.view),
            rows: rows.rows,
            cols: rows.cols,
            pitch: pitch_bytes::<T>(rows.rows, rows.cols, rows.pitch),
        }
    }
}

/// The bytes of a view, to be read.
pub(super) fn read<'a, T: Pod>(view: &View<'a, T>) -> Part<'a> {
    Part {
        addr: view.addr(),
        bytes: view.bytes(),
        is_written: false,
        used: view.used(),
    }
}

/// The bytes of a view, to be written.
pub(super) fn written<'a, T: Pod>(view: &ViewMut<'a, T>) -> Part<'a> {
    Part {
        addr: view.addr(),
        bytes: view.bytes(),
        is_written: true,
        used: view.used(),
    }
}

/// A launch under construction: its arguments and the ranges it uses.
pub(super) struct Plan<'a> {
    pub(super) args: abi::wp_quantize,
    values: Part<'a>,
    codes: Part<'a>,
    scales: Option<Part<'a>>,
    zeros: Option<Part<'a>>,
    tensor: Option<Part<'a>>,
}

impl<'a> Plan<'a> {
    /// Values of `S` and codes of `format`; a row of `cols` values takes `code_cols(cols)` codes.
    pub(super) fn new<S: Wide>(
        values: Side<'a>,
        codes: Side<'a>,
        format: u32,
        code_cols: impl Fn(u64) -> u64,
    ) -> Result<Self> {
        let wanted = (values.rows, code_cols(values.cols));
        if (codes.rows, codes.cols) != wanted {
            let why = format!(
                "{} x {} of codes, but {} x {} values take {} x {}",
                codes.rows, codes.cols, values.rows, values.cols, wanted.0, wanted.1
            );
            return Err(Error::invalid("codes", why));
        }
        let args = abi::wp_quantize {
            values: values.part.addr,
            codes: codes.part.addr,
            scales: 0,
            zeros: 0,
            tensor_scale: 0,
            amax: 0,
            rows: values.rows,
            cols: values.cols,
            values_pitch: values.pitch,
            codes_pitch: codes.pitch,
            scales_pitch: 0,
            seed: 0,
            type_: S::TYPE,
            format,
            kind: abi::WP_SCALE_F32,
            granularity: abi::WP_PER_TENSOR,
            group: 0,
            layout: abi::WP_SCALES_BY_ROW,
            rounding: abi::WP_NEAREST,
            pad: 0,
            jobs: 0,
            places: 0,
        };
        Ok(Self {
            args,
            values: values.part,
            codes: codes.part,
            scales: None,
            zeros: None,
            tensor: None,
        })
    }

    /// Sets which elements share a scale, and the layout of the scales.
    pub(super) fn grained(mut self, granularity: u32, group: u32, layout: u32, pitch: u64) -> Self {
        self.args.granularity = granularity;
        self.args.group = group;
        self.args.layout = layout;
        self.args.scales_pitch = pitch;
        self
    }

    /// Sets the scales, to be read or written.
    pub(super) fn scales(mut self, scales: Part<'a>) -> Self {
        self.args.scales = scales.addr;
        self.scales = Some(scales);
        self
    }

    /// Sets the zero points, if there are any.
    pub(super) fn zeros(mut self, zeros: Option<Part<'a>>) -> Self {
        self.args.zeros = zeros.map_or(0, |zeros| zeros.addr);
        self.zeros = zeros;
        self
    }

    /// Sets a scale of the whole tensor, in addition to those of its blocks.
    pub(super) fn tensor(mut self, tensor: Part<'a>) -> Self {
        self.args.tensor_scale = tensor.addr;
        self.tensor = Some(tensor);
        self
    }

    pub(super) fn ranges(&self, amax: Option<Part<'a>>) -> [Option<Part<'a>>; 6] {
        let (values, codes) = (Some(self.values), Some(self.codes));
        [values, codes, self.scales, self.zeros, self.tensor, amax]
    }

    /// Queues quantisation: from values to codes.
    ///
    /// # Safety
    /// The same as for [`Backend::launch`](crate::device::Backend::launch).
    pub(super) unsafe fn quantize(mut self, stream: &Stream, how: Quantize<'a>) -> Result<()> {
        (self.args.rounding, self.args.seed) = how.rounding_and_seed()?;
        if let Some(amax) = &how.amax {
            enough("amax", amax.len(), 1)?;
            self.args.amax = amax.addr();
        }
        let ranges = self.ranges(how.amax.as_ref().map(written));
        // SAFETY: the caller's requirement.
        unsafe { queue_with(stream, ranges, &Launch::Quantize(self.args)) }
    }

    /// Queues dequantisation: from codes to values.
    ///
    /// # Safety
    /// The same as for [`Backend::launch`](crate::device::Backend::launch).
    pub(super) unsafe fn dequantize(self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's requirement.
        unsafe { queue_with(stream, self.ranges(None), &Launch::Dequantize(self.args)) }
    }
}

/// Checks that a view has at least `needed` elements.
pub(super) fn enough(what: &'static str, len: usize, needed: u64) -> Result<()> {
    if (len as u64) < needed {
        let why = format!("it has {len} elements, and needs {needed}");
        return Err(Error::invalid(what, why));
    }
    Ok(())
}
