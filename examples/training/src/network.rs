//! A chain of stages: a linear one, residual blocks, and a linear one whose outputs enter the loss.

use std::ops::Range;

use warpool::recompute::{Action, Plan, Stage};
use warpool::{Pool, PoolBuf, Result, Stream, View};

use crate::data::{CLASSES, PIXELS};
use crate::memory::{Memory, Read};
use crate::real::Real;

/// Sizes of the network.
#[derive(Clone, Copy)]
pub struct Shape {
    pub width: usize,
    pub blocks: usize,
    /// Rows of a micro-batch.
    pub rows: usize,
}

/// The places of a stage's weights and biases among all parameters.
#[derive(Clone)]
struct Place {
    inner: usize,
    columns: usize,
    weights: Range<usize>,
    biases: Range<usize>,
}

impl Shape {
    fn places(&self) -> Vec<Place> {
        let mut sizes = vec![(PIXELS, self.width)];
        sizes.extend(vec![(self.width, self.width); self.blocks]);
        sizes.push((self.width, CLASSES));
        let mut at = 0;
        let place = |(inner, columns)| {
            let weights = at..at + inner * columns;
            let biases = weights.end..weights.end + columns;
            at = biases.end;
            Place {
                inner,
                columns,
                weights,
                biases,
            }
        };
        sizes.into_iter().map(place).collect()
    }

    /// The initial parameters, always the same.
    pub fn parameters(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for (stage, place) in self.places().iter().enumerate() {
            // A block adds to its input: the more blocks there are, the less each adds.
            let spread = (1.0 / place.inner as f32).sqrt();
            let is_block = (1..=self.blocks).contains(&stage);
            let spread = if is_block { spread / 8.0 } else { spread };
            values.extend(place.weights.clone().map(|at| spread * noise(at as u32)));
            values.extend(place.biases.clone().map(|_| 0.0));
        }
        values
    }

    /// The stages for the planner, with numbers of `size` bytes; time is measured in multiplications.
    pub fn stages(&self, size: u64) -> Vec<Stage> {
        let blocks = 1..=self.blocks;
        let each = self.places().into_iter().enumerate().map(|(at, place)| {
            let bytes = |columns| (self.rows * columns) as u64 * size;
            let output = bytes(place.columns);
            let work = (place.inner * place.columns) as u64;
            let stage = Stage {
                forward_time: work,
                backward_time: 2 * work,
                ..Stage::new(output)
            };
            match blocks.contains(&at) {
                // The output of relu is saved, and both passes need as much memory again.
                true => Stage {
                    saved_bytes: 2 * output,
                    forward_scratch: output,
                    backward_scratch: output,
                    ..stage
                },
                false => stage,
            }
        });
        each.collect()
    }
}

/// Pseudo-random numbers between -1 and 1, always the same.
fn noise(i: u32) -> f32 {
    let x = i.wrapping_mul(0x9E37_79B9) ^ (i >> 7);
    let x = (x ^ (x >> 15)).wrapping_mul(0x85EB_CA6B);
    (x >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// The inputs and outputs of one micro-batch.
pub struct Batch<'a, T> {
    pub images: View<'a, T>,
    pub labels: View<'a, u32>,
    pub scale: View<'a, f32>,
    /// Number of rows in the mean of the loss.
    pub samples: usize,
    pub gradients: &'a mut PoolBuf<f32>,
    pub losses: &'a mut PoolBuf<f32>,
}

/// The data of a stage that is kept between two actions.
struct Kept<T> {
    output: Option<Memory<T>>,
    by_itself: bool,
    /// For its backward pass; for a block, the output of relu.
    saved: bool,
    relu: Option<Memory<T>>,
}

/// A micro-batch on its way through the network.
pub struct Pass<'a, T> {
    pool: &'a Pool,
    stream: &'a Stream,
    /// Whether kept data may move to the host.
    movable: bool,
    rows: usize,
    blocks: Range<usize>,
    places: Vec<Place>,
    parameters: View<'a, T>,
    kept: Vec<Kept<T>>,
    gradient: Option<PoolBuf<T>>,
}

impl<'a, T: Real> Pass<'a, T> {
    /// A pass with memory of `pool`; if asked, the data that it keeps is movable.
    pub fn new(
        (pool, movable): (&'a Pool, bool),
        stream: &'a Stream,
        shape: &Shape,
        parameters: View<'a, T>,
    ) -> Self {
        let places = shape.places();
        let kept = places.iter().map(|_| Kept {
            output: None,
            by_itself: false,
            saved: false,
            relu: None,
        });
        Self {
            pool,
            stream,
            movable,
            rows: shape.rows,
            blocks: 1..1 + shape.blocks,
            kept: kept.collect(),
            places,
            parameters,
            gradient: None,
        }
    }

    /// Forward and backward, in the order of the plan.
    pub fn run(&mut self, plan: &Plan, batch: &mut Batch<'_, T>) -> Result<()> {
        for &action in &plan.actions {
            match action {
                Action::Forward { stage, keep_input } => {
                    self.forward(stage, batch.images)?;
                    self.kept[stage].relu = None;
                    self.kept[stage].by_itself = true;
                    if let Some(before) = stage.checked_sub(1).filter(|_| !keep_input) {
                        self.kept[before].by_itself = false;
                        self.forget(before);
                    }
                }
                Action::ForwardSaving { stage } => {
                    self.forward(stage, batch.images)?;
                    self.kept[stage].saved = true;
                }
                Action::Backward { stage } => {
                    for soon in (stage.saturating_sub(2)..stage).rev() {
                        let kept = &self.kept[soon];
                        let all = kept.relu.iter().chain(&kept.output);
                        all.map(Memory::soon).collect::<Result<()>>()?;
                    }
                    self.backward(stage, batch)?;
                    self.kept[stage].saved = false;
                    for gone in [Some(stage), stage.checked_sub(1)].into_iter().flatten() {
                        self.kept[gone].by_itself = false;
                        self.forget(gone);
                    }
                }
                _ => {}
            }
        }
        self.gradient = None;
        Ok(())
    }

    /// The outputs of the last stage; all other outputs are dropped.
    pub fn outputs(&mut self, images: View<'_, T>) -> Result<Vec<T>> {
        for stage in 0..self.kept.len() {
            self.forward(stage, images)?;
            if let Some(before) = stage.checked_sub(1) {
                self.forget(before);
            }
        }
        let last = self.kept.last_mut().and_then(|it| it.output.take());
        last.map_or(Ok(Vec::new()), |outputs| {
            outputs.read(self.stream)?.view().download(self.stream)
        })
    }

    fn forget(&mut self, stage: usize) {
        let kept = &mut self.kept[stage];
        if !kept.by_itself && !kept.saved {
            (kept.output, kept.relu) = (None, None);
        }
    }

    fn buffer(&self, columns: usize) -> Result<PoolBuf<T>> {
        self.pool.alloc_typed(self.stream, self.rows * columns)
    }

    fn memory(&self, columns: usize) -> Result<Memory<T>> {
        Memory::new(self.pool, self.stream, self.rows * columns, self.movable)
    }

    fn weights(&self, place: &Place) -> Result<(View<'a, T>, View<'a, T>)> {
        let weights = self.parameters.slice(place.weights.clone())?;
        Ok((weights, self.parameters.slice(place.biases.clone())?))
    }

    fn input<'v>(&'v self, stage: usize, images: View<'v, T>) -> Result<Read<'v, T>> {
        let before = stage.checked_sub(1);
        let output = before.and_then(|before| self.kept[before].output.as_ref());
        output.map_or(Ok(Read::View(images)), |output| output.read(self.stream))
    }

    fn forward(&mut self, stage: usize, images: View<'_, T>) -> Result<()> {
        let place = &self.places[stage];
        let (inner, columns) = (place.inner as u64, place.columns as u64);
        let (w, b) = self.weights(place)?;
        let mut output = self.memory(place.columns)?;
        let mut relu = None;
        {
            let input = self.input(stage, images)?;
            let (x, mut y) = (input.view(), output.write(self.stream)?);
            if self.blocks.contains(&stage) {
                let r = relu.insert(self.memory(place.columns)?);
                let mut r = r.write(self.stream)?;
                T::block(self.stream, columns, x, w, b, r.view_mut(), y.view_mut())?;
            } else {
                T::linear(self.stream, inner, columns, x, w, b, y.view_mut())?;
            }
        }
        (self.kept[stage].output, self.kept[stage].relu) = (Some(output), relu);
        Ok(())
    }

    /// Adds the gradients of the stage's parameters, and replaces the gradient of its output by that of its
    /// input.
    fn backward(&mut self, stage: usize, batch: &mut Batch<'_, T>) -> Result<()> {
        let dy = match self.gradient.take() {
            Some(dy) => dy,
            None => self.loss(stage, batch)?,
        };
        let place = &self.places[stage];
        let (rows, inner, columns) = (self.rows as u64, place.inner as u64, place.columns as u64);
        let (w, _) = self.weights(place)?;
        let mut masked = None;
        if let Some(relu) = &self.kept[stage].relu {
            let mut dz = self.buffer(place.columns)?;
            let relu = relu.read(self.stream)?;
            T::through_relu(self.stream, relu.view(), dy.view(), dz.view_mut())?;
            masked = Some(dz);
        }
        let dz = masked.as_ref().unwrap_or(&dy).view();
        let dw = batch.gradients.slice_mut(place.weights.clone())?;
        let input = self.input(stage, batch.images)?;
        T::weights(self.stream, rows, inner, columns, input.view(), dz, dw)?;
        drop(input);
        let db = batch.gradients.slice_mut(place.biases.clone())?;
        T::bias(self.stream, rows, columns, dz, db)?;
        if stage > 0 {
            let mut dx = self.buffer(place.inner)?;
            // A block's input reaches its output directly, too.
            let beside = match masked.is_some() {
                true => dy.view(),
                false => dy.slice(..0)?,
            };
            T::back(self.stream, inner, columns, dz, w, beside, dx.view_mut())?;
            self.gradient = Some(dx);
        }
        Ok(())
    }

    /// The loss of each row, and its gradient.
    fn loss(&self, last: usize, batch: &mut Batch<'_, T>) -> Result<PoolBuf<T>> {
        let (classes, samples) = (CLASSES as u64, batch.samples as u64);
        let mut dy = self.buffer(CLASSES)?;
        let outputs = self.input(last + 1, batch.images)?;
        let y = outputs.view();
        let losses = batch.losses.view_mut();
        T::cross_entropy(self.stream, classes, y, batch.labels, losses)?;
        let (label, scale) = (batch.labels, batch.scale);
        T::loss_gradient(
            self.stream,
            classes,
            samples,
            y,
            label,
            scale,
            dy.view_mut(),
        )?;
        Ok(dy)
    }
}
