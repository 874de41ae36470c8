//! A network of square layers, whose gradients are averaged during the backward pass or after it.

use warpool::collective::{Comm, Op, Reducer, ReducerConfig};
use warpool::{Device, Event, Pool, PoolBuf, PoolConfig, Stream, View, ViewMut};

use super::super::drawn;
use super::math::{Math, Outcome, Product};

/// The network and its task.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub inputs: usize,
    /// Width of the layers.
    pub width: usize,
    /// Number of layers from `width` to `width`, in addition to the first and the last.
    pub hidden: usize,
    pub outputs: usize,
    /// Samples per step, of all ranks.
    pub batch: usize,
    /// Number of batches; they are repeated.
    pub batches: usize,
}

impl Shape {
    /// Rows and columns of each layer's weights.
    fn layers(&self) -> Vec<(usize, usize)> {
        let mut layers = vec![(self.width, self.inputs)];
        layers.extend(vec![(self.width, self.width); self.hidden]);
        layers.push((self.outputs, self.width));
        layers
    }

    /// Bytes of all gradients.
    pub fn bytes(&self) -> usize {
        self.layers().iter().map(|(out, inn)| 4 * out * inn).sum()
    }

    /// The learning rate: lower for wider and deeper networks, which would not learn otherwise.
    fn rate(&self) -> f32 {
        self.outputs as f32 / (2 * self.width * self.layers().len()) as f32
    }

    /// The initial weights, and all samples with their targets.
    pub fn task(&self) -> Task {
        let weights = self
            .layers()
            .into_iter()
            .enumerate()
            .map(|(layer, (out, inn))| {
                let scale = (6.0 / inn as f32).sqrt();
                let all = (0..out * inn).map(|at| scale * drawn(layer << 40 | at));
                all.collect()
            });
        let samples = self.batch * self.batches;
        let inputs: Vec<f32> = (0..samples * self.inputs)
            .map(|at| drawn(1 << 50 | at))
            .collect();
        let wanted = inputs.chunks(self.inputs).flat_map(|sample| {
            let one =
                |at: usize| (2.0 * sample[at % self.inputs]).sin() * sample[(at + 1) % self.inputs];
            (0..self.outputs).map(one).collect::<Vec<_>>()
        });
        Task {
            weights: weights.collect(),
            wanted: wanted.collect(),
            inputs,
        }
    }
}

pub struct Task {
    weights: Vec<Vec<f32>>,
    inputs: Vec<f32>,
    wanted: Vec<f32>,
}

/// How gradients are averaged.
#[derive(Debug, Clone, Copy)]
pub struct Sums {
    pub config: ReducerConfig,
    /// During the backward pass; otherwise after it.
    pub overlap: bool,
}

/// The memory of the gradients.
enum Gradients {
    /// For a single rank.
    Alone(Vec<PoolBuf<f32>>),
    Reduced(Box<Reducer>),
}

/// A rank's network.
pub struct Network<M> {
    pub stream: Stream,
    pub comm: Comm,
    math: M,
    shape: Shape,
    /// Samples of this rank per step.
    share: usize,
    ranks: usize,
    weights: Vec<PoolBuf<f32>>,
    /// The inputs of each layer but the first, and the output of the last.
    values: Vec<PoolBuf<f32>>,
    /// The gradients of these, in two buffers used in turn.
    slopes: [PoolBuf<f32>; 2],
    gradients: Gradients,
    overlap: bool,
    /// The largest magnitude of the averages; the step is skipped if it is not finite.
    largest: PoolBuf<f32>,
    inputs: PoolBuf<f32>,
    wanted: PoolBuf<f32>,
    losses: PoolBuf<f32>,
    steps: usize,
    /// Events around the parts of each step.
    marks: Vec<Event>,
}

/// The parts of a step on the GPU: forward pass, backward pass, the rest of the sums, update.
pub const PARTS: usize = 4;

impl<M: Math> Network<M> {
    /// A rank's network with the initial weights, one of `ranks`. Its gradients are the averages over all
    /// ranks or, without sums, its own.
    pub fn new(
        (comm, ranks): (&Comm, usize),
        peers: &[&Device],
        (shape, task): (Shape, &Task),
        sums: Option<Sums>,
        most_steps: usize,
        open: impl FnOnce(&Stream) -> Outcome<M>,
    ) -> Outcome<Self> {
        let pool = Pool::new(comm.device(), PoolConfig::default().peers(peers))?;
        let stream = comm.device().stream()?;
        let share = shape.batch / ranks;
        let zeroed = |len| pool.alloc_zeroed::<f32>(&stream, len);
        // In the order of the backward pass: the last layer's first.
        let lens: Vec<usize> = shape
            .layers()
            .iter()
            .rev()
            .map(|(out, inn)| out * inn)
            .collect();
        let gradients = match sums {
            Some(Sums { config, .. }) => {
                let reducer = Reducer::new(&pool, &stream, comm, &lens, config)?;
                Gradients::Reduced(Box::new(reducer))
            }
            None => {
                let buffers = lens.iter().map(|&len| zeroed(len));
                Gradients::Alone(buffers.collect::<Result<_, _>>()?)
            }
        };
        let weights = task.weights.iter().map(|all| pool.alloc_from(&stream, all));
        let values = shape
            .layers()
            .into_iter()
            .map(|(out, _)| zeroed(share * out));
        Ok(Self {
            math: open(&stream)?,
            weights: weights.collect::<Result<_, _>>()?,
            values: values.collect::<Result<_, _>>()?,
            slopes: [zeroed(share * shape.width)?, zeroed(share * shape.width)?],
            gradients,
            overlap: sums.is_some_and(|sums| sums.overlap),
            largest: zeroed(1)?,
            inputs: pool.alloc_from(&stream, &task.inputs)?,
            wanted: pool.alloc_from(&stream, &task.wanted)?,
            losses: zeroed(most_steps)?,
            steps: 0,
            marks: Vec::new(),
            shape,
            share,
            ranks,
            comm: comm.clone(),
            stream,
        })
    }

    /// Queues a step.
    pub fn step(&mut self) -> Outcome<()> {
        self.mark()?;
        self.forward()?;
        self.mark()?;
        self.backward()?;
        self.mark()?;
        self.average()?;
        self.mark()?;
        self.update()?;
        self.mark()?;
        self.steps += 1;
        Ok(())
    }

    /// Records an event on the stream here.
    fn mark(&mut self) -> Outcome<()> {
        let mark = self.comm.device().timing_event()?;
        mark.record(&self.stream)?;
        self.marks.push(mark);
        Ok(())
    }

    /// Seconds of each part of a step: the means over the last `steps` steps, which are done.
    pub fn parts(&self, steps: usize) -> Outcome<[f64; PARTS]> {
        let mut parts = [0.0; PARTS];
        for step in self.marks.rchunks_exact(PARTS + 1).take(steps) {
            for (part, ends) in parts.iter_mut().zip(step.windows(2)) {
                *part += 1e-9 * ends[1].elapsed_ns(&ends[0])? / steps as f64;
            }
        }
        Ok(parts)
    }

    /// This rank's samples of the step's batch, with `numbers` numbers each.
    fn samples<'a>(&self, of: &'a PoolBuf<f32>, numbers: usize) -> Outcome<View<'a, f32>> {
        let batch = self.steps % self.shape.batches;
        let from = batch * self.shape.batch + self.comm.rank() as usize * self.share;
        Ok(of.slice(from * numbers..(from + self.share) * numbers)?)
    }

    fn forward(&mut self) -> Outcome<()> {
        let layers = self.shape.layers();
        for (layer, &(out, inn)) in layers.iter().enumerate() {
            let inputs = self.samples(&self.inputs, self.shape.inputs)?;
            let (before, after) = self.values.split_at_mut(layer);
            let entering = before.last().map_or(inputs, PoolBuf::view);
            let product = Product {
                m: out,
                n: self.share,
                k: inn,
                left_by_rows: true,
                right_by_rows: false,
            };
            let (stream, weights) = (&self.stream, self.weights[layer].view());
            self.math
                .product(stream, product, weights, entering, after[0].view_mut())?;
            if layer + 1 < layers.len() {
                self.math.relu(stream, after[0].view_mut())?;
            }
        }
        Ok(())
    }

    fn backward(&mut self) -> Outcome<()> {
        let layers = self.shape.layers();
        let (wanted, inputs) = (
            self.samples(&self.wanted, self.shape.outputs)?,
            self.samples(&self.inputs, self.shape.inputs)?,
        );
        let (stream, math, share) = (&self.stream, &self.math, self.share);
        let at = self.steps % self.losses.len();
        let last = layers.len() - 1;
        let loss = self.losses.slice_mut(at..=at)?;
        math.error(stream, self.values[last].view_mut(), wanted, loss)?;
        for (at, &(out, inn)) in layers.iter().rev().enumerate() {
            let layer = last - at;
            let (left, right) = self.slopes.split_at_mut(1);
            let (slope, next) = match layer % 2 {
                0 => (&left[0], &mut right[0]),
                _ => (&right[0], &mut left[0]),
            };
            let slope = if layer == last {
                &self.values[last]
            } else {
                slope
            };
            let slope = slope.slice(..share * out)?;
            let entering = match layer {
                0 => inputs,
                _ => self.values[layer - 1].view(),
            };
            let of_weights = Product {
                m: inn,
                n: out,
                k: share,
                left_by_rows: false,
                right_by_rows: true,
            };
            math.product(stream, of_weights, entering, slope, self.gradients.of(at))?;
            // From here on its bucket may be sent, overlapping with the work below.
            if let (true, Gradients::Reduced(reducer)) = (self.overlap, &mut self.gradients) {
                reducer.ready(at)?;
            }
            if layer > 0 {
                let of_inputs = Product {
                    m: inn,
                    n: share,
                    k: out,
                    left_by_rows: false,
                    right_by_rows: false,
                };
                let weights = self.weights[layer].view();
                math.product(stream, of_inputs, weights, slope, next.view_mut())?;
                math.slope(stream, next.view_mut(), entering)?;
            }
        }
        Ok(())
    }

    /// Queues the rest of the sums.
    fn average(&mut self) -> Outcome<()> {
        if self.overlap {
            self.finish()
        } else {
            self.reduce()
        }
    }

    /// Queues the sums of gradients that are complete.
    pub fn reduce(&mut self) -> Outcome<()> {
        if let Gradients::Reduced(reducer) = &mut self.gradients {
            (0..self.weights.len()).try_for_each(|tensor| reducer.ready(tensor))?;
        }
        self.finish()
    }

    /// Work queued on the stream after this sees the averages.
    fn finish(&mut self) -> Outcome<()> {
        if let Gradients::Reduced(reducer) = &mut self.gradients {
            reducer.finish()?;
            let largest = reducer.largest();
            self.largest.view_mut().copy_from(&self.stream, largest)?;
        }
        Ok(())
    }

    fn update(&mut self) -> Outcome<()> {
        let (stream, rate) = (&self.stream, self.shape.rate());
        for (at, weights) in self.weights.iter_mut().rev().enumerate() {
            let gradient = self.gradients.of(at);
            let (weights, largest) = (weights.view_mut(), self.largest.view());
            self.math
                .update(stream, weights, gradient.as_view(), largest, rate)?;
        }
        Ok(())
    }

    /// Waits for the steps of all ranks.
    pub fn together(&mut self) -> Outcome<()> {
        if let Gradients::Reduced(reducer) = &self.gradients {
            reducer.largest().download(&self.stream)?;
            let last = self.losses.len() - 1;
            let one = self.losses.slice_mut(last..)?;
            self.comm.on(&self.stream).all_reduce(one, Op::Max).run()?;
        }
        Ok(self.stream.synchronize()?)
    }

    /// The losses of the whole batch before each of the first steps.
    pub fn losses(&mut self, steps: usize) -> Outcome<Vec<f32>> {
        let mut sums = self.losses.slice_mut(..steps)?;
        if let Gradients::Reduced(_) = self.gradients {
            let queue = self.comm.on(&self.stream);
            queue
                .all_reduce(self.losses.slice_mut(..steps)?, Op::Sum)
                .run()?;
            self.comm.check()?;
            sums = self.losses.slice_mut(..steps)?;
        }
        let ranks = match self.gradients {
            Gradients::Alone(_) => 1.0,
            Gradients::Reduced(_) => self.ranks as f32,
        };
        let losses = sums.as_view().download(&self.stream)?;
        Ok(losses.into_iter().map(|loss| loss / ranks).collect())
    }
}

impl Gradients {
    /// Gradient `at`: the backward pass writes it, the update reads its average.
    fn of(&mut self, at: usize) -> ViewMut<'_, f32> {
        match self {
            Self::Alone(buffers) => buffers[at].view_mut(),
            Self::Reduced(reducer) => reducer.gradients().swap_remove(at),
        }
    }
}
