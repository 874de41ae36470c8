//! The computations of a step: by cuBLAS and kernels on a GPU, by plain loops on the host device.

use std::error::Error;

use warpool::{Stream, View, ViewMut};

/// The result type of the example's parts.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A matrix product with matrices in columns, as cuBLAS expects: m rows and n columns, sums of k products.
/// The left one, the right one, or none is transposed.
#[derive(Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub left_by_rows: bool,
    pub right_by_rows: bool,
}

impl Product {
    /// The distance of two columns of the left matrix, and of the right one, in memory.
    pub fn strides(&self) -> (usize, usize) {
        let left = if self.left_by_rows { self.k } else { self.m };
        let right = if self.right_by_rows { self.n } else { self.k };
        (left, right)
    }
}

/// All operations are queued on the stream, in the order that their memory requires.
pub trait Math {
    fn product(
        &self,
        stream: &Stream,
        shape: Product,
        left: View<'_, f32>,
        right: View<'_, f32>,
        into: ViewMut<'_, f32>,
    ) -> Outcome<()>;

    /// Sets negative elements to 0.
    fn relu(&self, stream: &Stream, data: ViewMut<'_, f32>) -> Outcome<()>;

    /// The gradient of the input of [`Math::relu`], from that of its output.
    fn slope(
        &self,
        stream: &Stream,
        gradient: ViewMut<'_, f32>,
        value: View<'_, f32>,
    ) -> Outcome<()>;

    /// Adds half the mean of the squared differences to `loss`; `found` becomes its gradient.
    fn error(
        &self,
        stream: &Stream,
        found: ViewMut<'_, f32>,
        wanted: View<'_, f32>,
        loss: ViewMut<'_, f32>,
    ) -> Outcome<()>;

    /// Subtracts the gradient times the rate from the weights, if `largest` is finite.
    fn update(
        &self,
        stream: &Stream,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        largest: View<'_, f32>,
        rate: f32,
    ) -> Outcome<()>;
}

/// Plain loops, between copies to the host and back.
pub struct OnHost;

impl Math for OnHost {
    fn product(
        &self,
        stream: &Stream,
        shape: Product,
        left: View<'_, f32>,
        right: View<'_, f32>,
        into: ViewMut<'_, f32>,
    ) -> Outcome<()> {
        let (a, b) = (left.download(stream)?, right.download(stream)?);
        let Product { m, n, k, .. } = shape;
        let (from, to) = shape.strides();
        let left = |row: usize, at: usize| match shape.left_by_rows {
            true => a[row * from + at],
            false => a[at * from + row],
        };
        let right = |at: usize, col: usize| match shape.right_by_rows {
            true => b[at * to + col],
            false => b[col * to + at],
        };
        let sum = |row, col| -> f32 { (0..k).map(|at| left(row, at) * right(at, col)).sum() };
        let all = (0..n).flat_map(|col| (0..m).map(move |row| (row, col)));
        let product: Vec<f32> = all.map(|(row, col)| sum(row, col)).collect();
        Ok(into.upload(stream, &product)?)
    }

    fn relu(&self, stream: &Stream, data: ViewMut<'_, f32>) -> Outcome<()> {
        let mut all = data.as_view().download(stream)?;
        all.iter_mut().for_each(|x| *x = x.max(0.0));
        Ok(data.upload(stream, &all)?)
    }

    fn slope(
        &self,
        stream: &Stream,
        gradient: ViewMut<'_, f32>,
        value: View<'_, f32>,
    ) -> Outcome<()> {
        let mut all = gradient.as_view().download(stream)?;
        let values = value.download(stream)?;
        for (gradient, value) in all.iter_mut().zip(values) {
            *gradient *= f32::from(value > 0.0);
        }
        Ok(gradient.upload(stream, &all)?)
    }

    fn error(
        &self,
        stream: &Stream,
        found: ViewMut<'_, f32>,
        wanted: View<'_, f32>,
        loss: ViewMut<'_, f32>,
    ) -> Outcome<()> {
        let mut all = found.as_view().download(stream)?;
        let mut sum = loss.as_view().download(stream)?[0];
        let share = 1.0 / all.len() as f32;
        for (found, wanted) in all.iter_mut().zip(wanted.download(stream)?) {
            let by = *found - wanted;
            sum += by * by * share * 0.5;
            *found = by * share;
        }
        loss.upload(stream, &[sum])?;
        Ok(found.upload(stream, &all)?)
    }

    fn update(
        &self,
        stream: &Stream,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        largest: View<'_, f32>,
        rate: f32,
    ) -> Outcome<()> {
        if !largest.download(stream)?[0].is_finite() {
            return Ok(());
        }
        let mut all = weights.as_view().download(stream)?;
        for (weight, gradient) in all.iter_mut().zip(gradient.download(stream)?) {
            *weight -= rate * gradient;
        }
        Ok(weights.upload(stream, &all)?)
    }
}
