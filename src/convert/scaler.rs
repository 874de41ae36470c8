//! Loss scaling for mixed precision, decided on the device.
//!
//! Small gradients vanish in 16-bit formats. So the loss is multiplied by a scale before the backward pass,
//! and the gradients are divided by it afterwards. If one of them overflowed, the step is skipped and the
//! scale is lowered. All of this happens in stream order; the host never waits.
//!
//! In each step: scale the loss by [`GradScaler::scale`] (in the application's own kernel); run the backward
//! pass; call [`GradScaler::unscale`]; run the optimiser with [`GradScaler::found`], which its kernel reads
//! to skip the step; call [`GradScaler::update`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::convert_table::{cut, upload};
use super::fused::Fused;
use super::{View, ViewMut, Wide};
use crate::device::{Event, Launch, Stream, TableUses, Use, beside, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf};

/// The initial scale and its changes. The default is the common one of mixed-precision training: 65536,
/// doubled after 2000 good steps in a row, halved on overflow.
///
/// ```
/// use warpool::convert::ScalerConfig;
///
/// let config = ScalerConfig::default().scale(1024.0).growth(2.0).backoff(0.25).interval(500);
/// // From a checkpoint: the scale and the good steps of the `ScalerState` that was read as it was written.
/// let resumed = ScalerConfig::from((4096.0, 37)).interval(500);
/// # let _ = (config, resumed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerConfig {
    scale: f32,
    growth: f32,
    backoff: f32,
    interval: u32,
    good_steps: u32,
}

impl Default for ScalerConfig {
    fn default() -> Self {
        Self {
            scale: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            good_steps: 0,
        }
    }
}

/// The scale and the good steps in a row of a [`ScalerState`]: a scaler goes on as the one whose state that was.
impl From<(f32, u32)> for ScalerConfig {
    fn from((scale, good_steps): (f32, u32)) -> Self {
        Self {
            scale,
            good_steps,
            ..Self::default()
        }
    }
}

impl ScalerConfig {
    /// Sets the initial scale, from 2^-126 to 2^126.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the factor by which the scale grows; more than 1.
    #[must_use]
    pub fn growth(mut self, factor: f32) -> Self {
        self.growth = factor;
        self
    }

    /// Sets the factor of the scale on overflow; between 0 and 1.
    #[must_use]
    pub fn backoff(mut self, factor: f32) -> Self {
        self.backoff = factor;
        self
    }

    /// Sets the number of good steps in a row before the scale grows.
    #[must_use]
    pub fn interval(mut self, steps: u32) -> Self {
        self.interval = steps;
        self
    }

    fn check(&self) -> Result<()> {
        let finite = |x: f32| x.is_finite() && x > 0.0;
        let highest = 2f32.powi(abi::WP_SCALER_EXPONENT as i32);
        if !(1.0 / highest..=highest).contains(&self.scale) {
            return Err(Error::invalid(
                "scale",
                format!("{:e} must be from 2^-126 to 2^126", self.scale),
            ));
        }
        if !finite(self.growth) || self.growth <= 1.0 {
            return Err(Error::invalid(
                "growth",
                format!("{} must be finite and more than 1", self.growth),
            ));
        }
        if !finite(self.backoff) || self.backoff >= 1.0 {
            return Err(Error::invalid(
                "backoff",
                format!("{} must be between 0 and 1", self.backoff),
            ));
        }
        if self.interval == 0 {
            return Err(Error::invalid("interval", "0: give at least one step"));
        }
        Ok(())
    }
}

/// The state of a scaler at one point of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ScalerState {
    /// The scale.
    pub scale: f32,
    /// Whether an unscale since the last update found an infinite or NaN gradient.
    pub found: bool,
    /// Whether the last update found one, so that its step had to be skipped.
    pub skipped_last: bool,
    /// Good steps in a row since the scale last changed.
    pub good_steps: u32,
    /// Number of updates.
    pub updates: u64,
    /// Number of updates that found an infinite or NaN gradient.
    pub skipped: u64,
}

/// A list of gradients that one launch unscales, from a table that is built once. Its stream order is that of
/// [`ConvertTable`](super::ConvertTable).
#[derive(Debug)]
pub struct Gradients<'a, T> {
    uses: TableUses<'a>,
    table: PoolBuf<u64>,
    tiles: u64,
    views: PhantomData<ViewMut<'a, T>>,
}

/// Elements of a tile of gradients: eight vectors of 16 bytes for each thread of a warp.
fn gradient_tile<T>() -> u64 {
    8 * 32 * 16 / size_of::<T>() as u64
}

impl<'a, T: Wide> Gradients<'a, T> {
    /// Builds the table. Waits on the host until it is in device memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a tensor is of another device; any error of the pool or the driver.
    pub fn new(pool: &Pool, stream: &Stream, tensors: Vec<ViewMut<'a, T>>) -> Result<Self> {
        let size = size_of::<T>() as u64;
        let mut tiles = Vec::new();
        let uses: Vec<Use<'a>> = tensors.iter().filter_map(ViewMut::used).collect();
        TableUses::check(&uses, stream.core())?;
        for (tensor, view) in tensors.iter().enumerate() {
            let whole = abi::wp_tile {
                src: view.addr(),
                dst: view.addr(),
                index: 0,
                count: 0,
                tensor: tensor as u32,
            };
            let phase = view.addr() % 16 / size;
            cut(
                &mut tiles,
                whole,
                view.len() as u64,
                (size, size),
                gradient_tile::<T>(),
                phase,
            );
        }
        let table = upload(pool, stream, &tiles)?;
        Ok(Self {
            uses: TableUses::new(uses),
            table,
            tiles: tiles.len() as u64,
            views: PhantomData,
        })
    }
}

/// A loss scale and its history, in device memory.
///
/// Its methods queue work and return. They may be called with any stream of the device: each runs after the
/// calls before it, and the free of the state runs after all.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{GradScaler, Gradients, ScalerConfig};
///
/// let mut gradients = pool.alloc_filled(&stream, 10, 65536.0f32)?;
/// let mut scaler = GradScaler::new(&pool, &stream, ScalerConfig::default())?;
/// let mut all = Gradients::new(&pool, &stream, vec![gradients.view_mut()])?;
/// scaler.unscale(&stream, &mut all)?;
/// scaler.update(&stream)?;
/// assert!(!scaler.read(&stream)?.wait()?.skipped_last);
/// drop(all);
/// assert_eq!(gradients.download()?, [1.0; 10]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradScaler {
    state: PoolBuf<u32>,
}

// The state is copied to and from the device with its memory layout.
const STATE_BYTES: usize = size_of::<abi::wp_scaler>();
const _: () = assert!(STATE_BYTES == 48);

/// Offsets in the state of the fields that the application's kernels read.
const SCALE_AT: u64 = std::mem::offset_of!(abi::wp_scaler, scale) as u64;
const INVERSE_AT: u64 = std::mem::offset_of!(abi::wp_scaler, inverse) as u64;
const FOUND_AT: u64 = std::mem::offset_of!(abi::wp_scaler, found) as u64;

impl GradScaler {
    /// Makes a scaler with its state in a block of `pool`, allocated on `stream`; waits on the host for its
    /// upload.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the configuration is invalid; any error of the pool or the driver.
    pub fn new(pool: &Pool, stream: &Stream, config: ScalerConfig) -> Result<Self> {
        config.check()?;
        let state = abi::wp_scaler {
            scale: config.scale,
            inverse: 1.0 / config.scale,
            found: 0,
            skip: 0,
            // If the interval was longer then, the next good step has the scale grow.
            good_steps: config.good_steps.min(config.interval - 1),
            interval: config.interval,
            growth: config.growth,
            backoff: config.backoff,
            updates: 0,
            skipped: 0,
        };
        // SAFETY: a structure of numbers without padding between them.
        let words: [u32; STATE_BYTES / 4] = unsafe { std::mem::transmute(state) };
        let state = pool.alloc_from(stream, &words)?;
        Ok(Self { state })
    }

    fn field<T: bytemuck::Pod>(&self, offset: u64) -> View<'_, T> {
        let place = self.state.place().offset(offset);
        View::new(self.state.addr() + offset, 1, place)
    }

    /// The scale, in device memory, for the kernel that scales the loss.
    #[must_use]
    pub fn scale(&self) -> View<'_, f32> {
        self.field(SCALE_AT)
    }

    /// One over the scale, in device memory.
    pub(crate) fn inverse(&self) -> View<'_, f32> {
        self.field(INVERSE_AT)
    }

    /// 1 in device memory if an unscale since the last update found an infinite or NaN gradient: the
    /// optimiser's kernel must then skip the step.
    #[must_use]
    pub fn found(&self) -> View<'_, u32> {
        self.field(FOUND_AT)
    }

    /// One over the scale, and the flag of [`GradScaler::found`], for one launch.
    pub(crate) fn inverse_and_found(&mut self) -> (View<'_, f32>, ViewMut<'_, u32>) {
        let (addr, place) = (self.state.addr(), self.state.place());
        let inverse = View::new(addr + INVERSE_AT, 1, place.offset(INVERSE_AT));
        let found = ViewMut::new(addr + FOUND_AT, 1, place.offset(FOUND_AT));
        (inverse, found)
    }

    /// Queues one launch that multiplies every gradient by the inverse scale, in `f32`, rounded to nearest,
    /// and sets [`GradScaler::found`] if any was infinite or NaN before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; any error of the driver.
    pub fn unscale<T: Wide>(
        &mut self,
        stream: &Stream,
        gradients: &mut Gradients<'_, T>,
    ) -> Result<()> {
        let args = abi::wp_unscale {
            tiles: gradients.table.addr(),
            count: gradients.tiles,
            scaler: self.state.addr(),
            type_: T::TYPE,
            pad: 0,
        };
        let others = [gradients.table.view().used(), self.state.view_mut().used()];
        let launch = Launch::Unscale(args);
        // SAFETY: buffers keep their memory until the work is done, and the caller that made views from
        // addresses guarantees it.
        let queue = || (stream.core()).queue(|backend, on| unsafe { backend.launch(&launch, on) });
        gradients.uses.launch(stream.core(), &others, queue)?
    }

    /// Queues the end of a step: lowers the scale if an overflow was found, raises it after enough good
    /// steps, and clears the flag. The scale stays between 2^-126 and 2^126, so that it and its inverse are
    /// never zero, infinite or subnormal; at a limit it stays there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; any error of the driver.
    pub fn update(&mut self, stream: &Stream) -> Result<()> {
        self.end_step(stream, None, 0, None)
    }

    /// The same as [`GradScaler::update`]; also moves the first number of `largest` to the second and sets it to
    /// 0. With `most`, the scale becomes the largest power of two for which the sum of the two numbers of `most`,
    /// scaled, is at most 2^`top`; both numbers then become 0. The numbers are not negative. The scale is 1 if
    /// the sum is 0, and the largest scale if the sum is not finite.
    pub(crate) fn end_step(
        &mut self,
        stream: &Stream,
        most: Option<ViewMut<'_, f32>>,
        top: i32,
        largest: Option<ViewMut<'_, f32>>,
    ) -> Result<()> {
        let args = abi::wp_scaler_update {
            scaler: self.state.addr(),
            most: most.as_ref().map_or(0, ViewMut::addr),
            largest: largest.as_ref().map_or(0, ViewMut::addr),
            top,
            pad: 0,
        };
        debug_assert!(
            [&most, &largest]
                .iter()
                .all(|it| it.as_ref().is_none_or(|it| it.len() == 2))
        );
        let uses = [
            self.state.view_mut().used(),
            most.and_then(|most| most.used()),
            largest.and_then(|largest| largest.used()),
        ];
        let launch = Launch::ScalerUpdate(args);
        // SAFETY: all are buffers of the pool, which keeps their memory until the work is done.
        let queue = || (stream.core()).queue(|backend, on| unsafe { backend.launch(&launch, on) });
        ordered(stream.core(), &uses, queue)?
    }

    /// Queues a read of the state at this point of `stream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device or under capture, whose graph would write to host
    /// memory that is gone; any error of the driver.
    pub fn read(&self, stream: &Stream) -> Result<PendingState> {
        let _outside = stream.core().outside_capture()?;
        let event = stream.device().event()?;
        let mut bytes = Box::new([0u64; STATE_BYTES / 8]);
        let to = bytes.as_mut_ptr().cast::<u8>();
        let (from, count) = (self.state.addr(), STATE_BYTES as u64);
        // SAFETY: the state is a buffer of the pool; the box outlives the copy, because dropping a
        // `PendingState` waits for the event behind it.
        let queued = ordered(stream.core(), &[self.state.view().used()], || unsafe {
            let backend = stream.device().backend();
            backend.copy_out(to, from, count, stream.raw())
        });
        if let Err(error) = queued?.and_then(|()| event.record(stream)) {
            // The copy may be queued without an event after it, so only a wait for the whole stream
            // is left.
            if stream.core().synchronize_memory().is_err() {
                std::mem::forget(bytes);
            }
            return Err(error);
        }
        Ok(PendingState {
            event: Arc::new(event),
            stream: stream.clone(),
            bytes,
        })
    }
}

/// A read of a scaler's state that may still be running. Dropping it waits for the read.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{GradScaler, PendingState, ScalerConfig, ScalerState};
///
/// let mut scaler = GradScaler::new(&pool, &stream, ScalerConfig::default())?;
/// scaler.update(&stream)?;
/// let pending: PendingState = scaler.read(&stream)?; // goes on at once
/// if let Some(early) = pending.ready()? {
///     println!("no wait was needed: {}", early.scale);
/// }
/// let state: ScalerState = pending.wait()?;
/// assert_eq!((state.updates, state.skipped), (1, 0));
/// # Ok(())
/// # }
/// ```
pub struct PendingState {
    event: Arc<Event>,
    stream: Stream,
    bytes: Box<[u64; STATE_BYTES / 8]>,
}

impl<'a> Fused<'a> {
    /// Unscales gradients during their conversion to another format, instead of
    /// [`GradScaler::unscale`](super::GradScaler::unscale): multiplies by one over `scaler`'s scale, and sets
    /// the scaler's flag if a value is infinite or NaN.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// use warpool::convert::{Fused, GradScaler, Rounding, ScalerConfig, convert_fused};
    /// use warpool::half::f16;
    ///
    /// let mut scaler = GradScaler::new(&pool, &stream, ScalerConfig::default().scale(4.0))?;
    /// let halves = pool.alloc_from(&stream, &[f16::ONE, f16::INFINITY])?;
    /// let mut gradients = pool.alloc_typed::<f32>(&stream, 2)?;
    /// let unscaled = Fused::default().unscale(&mut scaler);
    /// convert_fused(&stream, &halves, &mut gradients, Rounding::Nearest, unscaled)?;
    /// assert_eq!(gradients.download()?[0], 0.25);
    /// scaler.update(&stream)?;
    /// assert!(scaler.read(&stream)?.wait()?.skipped_last);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unscale(self, scaler: &'a mut GradScaler) -> Self {
        let (inverse, found) = scaler.inverse_and_found();
        self.scale_at(inverse).flag(found)
    }
}

impl PendingState {
    /// The state if the read is done, otherwise `None`; never waits.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn ready(&self) -> Result<Option<ScalerState>> {
        Ok(if self.event.is_done()? {
            Some(self.decode())
        } else {
            None
        })
    }

    /// Waits for the read.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn wait(&self) -> Result<ScalerState> {
        self.event.synchronize()?;
        Ok(self.decode())
    }

    fn decode(&self) -> ScalerState {
        let bytes: &[u8] = bytemuck::cast_slice(self.bytes.as_slice());
        // Volatile, because the device wrote it. SAFETY: the bytes of the structure, all of whose fields
        // accept any bits.
        let state = unsafe { bytes.as_ptr().cast::<abi::wp_scaler>().read_volatile() };
        ScalerState {
            scale: state.scale,
            found: state.found != 0,
            skipped_last: state.skip != 0,
            good_steps: state.good_steps,
            updates: state.updates,
            skipped: state.skipped,
        }
    }
}

impl fmt::Debug for PendingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingState(on {:?})", self.stream)
    }
}

impl Drop for PendingState {
    fn drop(&mut self) {
        // The copy must not outlive its destination. If the copy cannot be waited for, the destination is
        // leaked; other calls report the wait's error.
        let (event, bytes) = (Arc::clone(&self.event), std::mem::take(&mut self.bytes));
        beside(move || {
            if event.synchronize().is_err() {
                std::mem::forget(bytes);
            }
        });
    }
}
