//! A network trained in 8 bits, compared with the same in f32.
//!
//! `cargo run --release --example fp8_training [--features cudarc]`. Weights and activations are E4M3,
//! gradients E5M2. One pass over each tensor computes its codes, plain and transposed, with a scale from the
//! steps before, and its largest magnitude for later steps. With a GPU of compute capability 8.9 or later and
//! the feature `cudarc`, cuBLASLt computes the products. Otherwise a plain loop over the codes' values does,
//! so that the results are the same everywhere except for the order of sums.
//!
//! Everything that is neither a conversion nor a product (tanh, the loss and the update) runs on the host
//! here. An application has kernels for it, as the example `mixed_precision` shows.

#[path = "fp8_training/eight.rs"]
pub(crate) mod eight;
#[path = "fp8_training/products.rs"]
pub(crate) mod products;

#[cfg(feature = "cudarc")]
#[path = "fp8_training/cublaslt.rs"]
pub(crate) mod cublaslt;

use std::error::Error;

use eight::Eight;
use products::{Products, by_rows};
use warpool::{Device, Pool, PoolConfig, Stream};

/// The result type of the example's parts.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Samples per batch. The batch and the widths are multiples of 16, as cuBLASLt requires in 8 bits.
pub const BATCH: usize = 128;
/// Numbers of inputs, of units between the layers, and of outputs.
pub const WIDTHS: [usize; 3] = [64, 64, 16];
const STEPS: usize = 80;
const RATE: f32 = 8.0;

/// A linear layer's numbers of outputs and inputs.
pub fn shape(layer: usize) -> (usize, usize) {
    (WIDTHS[layer + 1], WIDTHS[layer])
}

/// How the layers' products are computed.
pub trait Math {
    /// `inputs`, with a row per sample, times the weights, with a row per output. Keeps what the backward
    /// pass needs.
    fn forward(&mut self, layer: usize, inputs: &[f32], weights: &[f32]) -> Outcome<Vec<f32>>;
    /// The gradients of the weights and of the inputs, from that of the outputs.
    fn backward(&mut self, layer: usize, gradient: &[f32]) -> Outcome<[Vec<f32>; 2]>;
    /// The inputs that the forward pass kept.
    fn kept(&self, layer: usize) -> Outcome<Vec<f32>>;
    /// Called after each step.
    fn step(&mut self) -> Outcome<()>;
}

/// All in f32, on the host.
#[derive(Default)]
pub struct Single {
    inputs: [Vec<f32>; 2],
    weights: [Vec<f32>; 2],
}

fn turned(values: &[f32], rows: usize) -> Vec<f32> {
    let cols = values.len() / rows;
    let all = (0..cols).flat_map(|c| (0..rows).map(move |r| (r, c)));
    all.map(|(r, c)| values[r * cols + c]).collect()
}

impl Math for Single {
    fn forward(&mut self, layer: usize, inputs: &[f32], weights: &[f32]) -> Outcome<Vec<f32>> {
        self.inputs[layer] = inputs.to_vec();
        self.weights[layer] = weights.to_vec();
        let (outs, ins) = shape(layer);
        Ok(by_rows(inputs, weights, [BATCH, outs, ins]))
    }

    fn backward(&mut self, layer: usize, gradient: &[f32]) -> Outcome<[Vec<f32>; 2]> {
        let (outs, ins) = shape(layer);
        let inputs = turned(&self.inputs[layer], BATCH);
        let of_weights = by_rows(&turned(gradient, BATCH), &inputs, [outs, ins, BATCH]);
        let weights = turned(&self.weights[layer], outs);
        Ok([of_weights, by_rows(gradient, &weights, [BATCH, ins, outs])])
    }

    fn kept(&self, layer: usize) -> Outcome<Vec<f32>> {
        Ok(self.inputs[layer].clone())
    }

    fn step(&mut self) -> Outcome<()> {
        Ok(())
    }
}

/// A pseudo-random number from -1 to 1.
fn drawn(seed: usize) -> f32 {
    let x = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn first_weights(seed: usize) -> [Vec<f32>; 2] {
    [0, 1].map(|layer| {
        let (outs, ins) = shape(layer);
        let spread = (3.0 / ins as f32).sqrt();
        let each = (0..outs * ins).map(|i| spread * drawn((seed + layer) << 20 | i));
        each.collect()
    })
}

/// Inputs, and the outputs of another network of the same kind for them, so that the task can be learnt.
pub fn samples() -> Outcome<(Vec<f32>, Vec<f32>)> {
    let inputs: Vec<f32> = (0..BATCH * WIDTHS[0]).map(|i| drawn(9 << 20 | i)).collect();
    let (mut teacher, weights) = (Single::default(), first_weights(4));
    let hidden = teacher.forward(0, &inputs, &weights[0])?;
    let hidden: Vec<f32> = hidden.iter().map(|x| x.tanh()).collect();
    let targets = teacher.forward(1, &hidden, &weights[1])?;
    Ok((inputs, targets))
}

/// Makes one step; returns the loss before it.
fn step(
    math: &mut dyn Math,
    weights: &mut [Vec<f32>; 2],
    data: &(Vec<f32>, Vec<f32>),
) -> Outcome<f32> {
    let (inputs, targets) = data;
    let hidden = math.forward(0, inputs, &weights[0])?;
    let hidden: Vec<f32> = hidden.iter().map(|x| x.tanh()).collect();
    let outputs = math.forward(1, &hidden, &weights[1])?;
    drop(hidden); // it was kept in 8 bits

    let errors = outputs.iter().zip(targets).map(|(is, wanted)| is - wanted);
    let errors: Vec<f32> = errors.collect();
    let share = 1.0 / errors.len() as f32;
    let loss = share * errors.iter().map(|error| error * error).sum::<f32>();
    let gradient: Vec<f32> = errors.iter().map(|error| 2.0 * share * error).collect();

    let [second, of_hidden] = math.backward(1, &gradient)?;
    let slopes = math.kept(1)?.into_iter().map(|h| 1.0 - h * h);
    let gradient: Vec<f32> = of_hidden.iter().zip(slopes).map(|(g, s)| g * s).collect();
    let [first, _] = math.backward(0, &gradient)?;
    for (weights, gradient) in weights.iter_mut().zip([first, second]) {
        weights
            .iter_mut()
            .zip(gradient)
            .for_each(|(w, g)| *w -= RATE * g);
    }
    math.step()?;
    Ok(loss)
}

/// Trains; returns the losses of all steps, and the weights after them.
pub fn train(math: &mut dyn Math) -> Outcome<(Vec<f32>, [Vec<f32>; 2])> {
    let (data, mut weights) = (samples()?, first_weights(1));
    let losses: Outcome<Vec<f32>> = (0..STEPS)
        .map(|_| step(math, &mut weights, &data))
        .collect();
    Ok((losses?, weights))
}

/// The distance of `a` from `b`, relative to the length of `b` as a vector.
pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    length(&mut a.iter().zip(b).map(|(a, b)| a - b)) / length(&mut b.iter().copied())
}

/// The first layer's three products of the same numbers: outputs, gradients of weights and inputs.
pub fn products_of(math: &mut dyn Math, weights: &[Vec<f32>; 2]) -> Outcome<[Vec<f32>; 3]> {
    let (inputs, _) = samples()?;
    let outputs = math.forward(0, &inputs, &weights[0])?;
    let gradient: Vec<f32> = outputs.iter().map(|x| 1e-4 * x.sin()).collect();
    let [of_weights, of_inputs] = math.backward(0, &gradient)?;
    Ok([outputs, of_weights, of_inputs])
}

/// The results of a training.
pub struct Report {
    /// The losses of each step in f32 and in 8 bits.
    pub losses: [Vec<f32>; 2],
    /// The distance of the first layer's products ([`products_of`]) from those in f32, and from those of a
    /// plain loop over the same codes.
    pub apart: [[f32; 2]; 3],
}

impl Report {
    /// Whether the losses in 8 bits follow those in f32.
    #[must_use]
    pub fn follows(&self) -> bool {
        let [single, eight] = &self.losses;
        let close = |[rounding, order]: [f32; 2]| rounding < 0.1 && order < 2e-3;
        let last = eight[STEPS - 1] - single[STEPS - 1];
        last.abs() < 0.01 * single[0] && self.apart.into_iter().all(close)
    }
}

/// Trains in f32 and in 8 bits, with `products`.
pub fn compare(stream: &Stream, pool: &Pool, products: Products) -> Outcome<Report> {
    let mut eight = Eight::new(stream, pool, products)?;
    let (in_f32, _) = train(&mut Single::default())?;
    let (in_8_bits, weights) = train(&mut eight)?;
    // Called once before, to find the scale of the synthetic gradient.
    products_of(&mut eight, &weights)?;
    eight.step()?;
    let wanted = products_of(&mut Single::default(), &weights)?;
    let found = products_of(&mut eight, &weights)?;
    eight.multiply_by(Products::Loop);
    let looped = products_of(&mut eight, &weights)?;
    Ok(Report {
        losses: [in_f32, in_8_bits],
        apart: [0, 1, 2].map(|at| {
            [
                apart(&found[at], &wanted[at]),
                apart(&found[at], &looped[at]),
            ]
        }),
    })
}

fn main() -> Outcome<()> {
    let device = Device::any()?;
    let (stream, pool) = (device.stream()?, Pool::new(&device, PoolConfig::default())?);
    let products = Products::best(&stream, &pool)?;
    println!("{}; {}", device.info().name, products.what());
    let report = compare(&stream, &pool, products)?;
    let [single, eight] = &report.losses;
    println!("{:>6} {:>12} {:>12}", "step", "f32 loss", "8-bit loss");
    for at in (0..STEPS).step_by(STEPS / 8).chain([STEPS - 1]) {
        println!("{at:>6} {:>12.6} {:>12.6}", single[at], eight[at]);
    }
    println!(
        "{:<24} {:>10} {:>24}",
        "of the first layer", "from f32", "from a loop over codes"
    );
    let names = ["outputs", "gradients of weights", "gradients of inputs"];
    for (name, [rounding, order]) in names.iter().zip(report.apart) {
        println!(
            "{name:<24} {:>9.2}% {:>23.4}%",
            100.0 * rounding,
            100.0 * order
        );
    }
    match report.follows() {
        true => Ok(()),
        false => Err("training in 8 bits does not follow f32".into()),
    }
}
