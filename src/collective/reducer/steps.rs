//! The work queued for a bucket: its measurement, its casts to codes, and its sum with the casts
//! back.

use std::ops::Range;

use super::cut::pieces;
use super::{Bucket, Codes, Sent, Shared};
use crate::collective::{Comm, Op};
use crate::convert::{Conversion, Element, Fused, FusedTo, GradScaler, Rounding, convert_fused};
use crate::device::{Launch, Stream, ordered};
use crate::driver::abi;
use crate::error::Result;
use crate::pool::{PoolBuf, View, ViewMut};

/// The sum of all ranks' 8-bit codes stays at or below 2^`TOP`: a code that is a power of two is exact, and
/// the rounding errors of sums with few bits over many ranks stay below the largest code, 448.
const TOP: i32 = 8;

/// Runs the same code with codes of either type.
macro_rules! with_codes {
    ($of:expr, $codes:ident => $same:expr) => {
        match $of {
            Codes::F32($codes) => $same,
            Codes::F16($codes) => $same,
            Codes::Bf16($codes) => $same,
            Codes::E4m3($codes) => $same,
        }
    };
}

impl Shared {
    fn comm(&self) -> &Comm {
        &self.links[0].0
    }

    /// The streams of a captured step.
    pub(super) fn captured(&self) -> [&Stream; 3] {
        [&self.narrow, &self.widen, &self.links[0].1]
    }

    /// The index in `links` of a bucket's communicator and stream.
    fn link(&self, bucket: &Bucket) -> usize {
        // The branches of a graph may begin in another order on each rank, and graphs with the kernels of several
        // communicators have hung in CUDA.
        match self.is_captured {
            true => 0,
            false => bucket.link,
        }
    }

    /// Queues the computation of the largest magnitude in a bucket over all ranks.
    pub(super) fn measure(&mut self, bucket: &mut Bucket) -> Result<()> {
        let link = self.link(bucket);
        let (Codes::E4m3(codes), Some(most)) = (&mut bucket.codes, &mut bucket.most) else {
            return Ok(());
        };
        let kept = self.residual.iter();
        for (at, source) in [&self.gradients].into_iter().chain(kept).enumerate() {
            for (all, part) in pieces(&bucket.range) {
                let measured = Fused::default().amax(most.slice_mut(at..=at)?);
                let (source, codes) = (source.slice(all)?, codes.slice_mut(part)?);
                // The codes are written again later, with the scale.
                convert_fused(&self.narrow, source, codes, Rounding::Nearest, measured)?;
            }
        }
        // Compared as integers, so that a NaN is larger than everything.
        let bits = ViewMut::<u32>::new(most.addr(), 2, most.place());
        let (comm, stream) = &self.links[link];
        comm.on(stream).all_reduce(bits, Op::Max).run()?;
        Ok(())
    }

    /// Queues a bucket's casts to codes; if it was measured, with a scale computed from that.
    pub(super) fn narrow_bucket(&mut self, bucket: &mut Bucket, casts: &mut u64) -> Result<()> {
        let (range, scaler) = (&bucket.range, &mut bucket.scaler);
        if let Some(most) = &mut bucket.most {
            let ranks = self.comm().size().next_power_of_two().ilog2();
            let largest = (range.start == 0).then(|| self.largest.view_mut());
            let most = Some(most.view_mut());
            scaler.end_step(&self.narrow, most, TOP - ranks as i32, largest)?;
        }
        for (all, part) in pieces(range) {
            with_codes!(&mut bucket.codes, codes => {
                self.narrow(all, codes.slice_mut(part)?, scaler, *casts)?;
            });
            *casts += 1;
        }
        Ok(())
    }

    /// Queues a bucket's sums, averages and next scale.
    pub(super) fn sum_bucket(&mut self, bucket: &mut Bucket) -> Result<()> {
        let link = self.link(bucket);
        let (range, scaler) = (bucket.range.clone(), &mut bucket.scaler);
        with_codes!(&mut bucket.codes, codes => self.sum(range.clone(), link, codes, scaler)?);
        match bucket.most {
            // The scale is computed again in every step.
            Some(_) => Ok(()),
            None => {
                let is_last = range.end == self.gradients.len();
                let largest = is_last.then(|| self.largest.view_mut());
                scaler.end_step(&self.widen, None, 0, largest)
            }
        }
    }

    fn sum<D: Sent>(
        &mut self,
        range: Range<usize>,
        link: usize,
        codes: &mut PoolBuf<D>,
        scaler: &mut GradScaler,
    ) -> Result<()>
    where
        f32: FusedTo<D>,
    {
        let (comm, stream) = &self.links[link];
        comm.on(stream)
            .all_reduce(codes.view_mut(), Op::Sum)
            .run()?;
        let ranks = comm.size();
        for (all, part) in pieces(&range) {
            let (inverse, found) = scaler.inverse_and_found();
            let averaged = Fused::default().scale(1.0 / ranks as f32);
            let averaged = averaged.scale_at(inverse).flag(found);
            let averaged = averaged.amax(self.largest.slice_mut(..1)?);
            convert_fused(
                &self.widen,
                codes.slice(part)?,
                self.gradients.slice_mut(all)?,
                Conversion::default(),
                averaged,
            )?;
        }
        Ok(())
    }

    /// Queues a cast to codes, the `number`-th of this rank.
    fn narrow<D: Sent>(
        &mut self,
        range: Range<usize>,
        codes: ViewMut<'_, D>,
        scaler: &GradScaler,
        number: u64,
    ) -> Result<()>
    where
        f32: FusedTo<D>,
    {
        // Different for every cast of every rank.
        let number = number.wrapping_mul(u64::from(self.comm().size()));
        let number = number.wrapping_add(u64::from(self.comm().rank()));
        let rounding = match self.rounding {
            Rounding::Stochastic { seed } => Rounding::Stochastic {
                seed: seed.wrapping_add(number),
            },
            other => other,
        };
        let gradients = self.gradients.slice(range.clone())?;
        match self.residual.as_mut() {
            Some(residual) => {
                let residual = residual.slice_mut(range)?;
                feed_back(&self.narrow, gradients, residual, codes, scaler, rounding)
            }
            None => {
                let scaled = Fused::default().scale_at(scaler.scale());
                convert_fused(&self.narrow, gradients, codes, rounding, scaled)
            }
        }
    }
}

/// Queues a cast that stores its rounding error for the next one.
fn feed_back<D: Element>(
    stream: &Stream,
    gradients: View<'_, f32>,
    residual: ViewMut<'_, f32>,
    codes: ViewMut<'_, D>,
    scaler: &GradScaler,
    rounding: Rounding,
) -> Result<()> {
    let (scale, inverse) = (scaler.scale(), scaler.inverse());
    let (rounding, seed) = match rounding {
        Rounding::Stochastic { seed } => (abi::WP_STOCHASTIC, seed),
        _ => (abi::WP_NEAREST, 0),
    };
    let launch = Launch::Feedback(abi::wp_feedback {
        src: gradients.addr(),
        residual: residual.addr(),
        dst: codes.addr(),
        scale: scale.addr(),
        inverse: inverse.addr(),
        count: gradients.len() as u64,
        first: 0,
        seed,
        type_: D::TYPE,
        rounding,
    });
    let uses = [
        gradients.used(),
        residual.used(),
        codes.used(),
        scale.used(),
        inverse.used(),
    ];
    // SAFETY: three buffers of the reducer, sliced equally at multiples of 256 bytes.
    let queue = || (stream.core()).queue(|backend, on| unsafe { backend.launch(&launch, on) });
    ordered(stream.core(), &uses, queue)?
}
