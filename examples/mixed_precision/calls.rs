//! The example's kernels as values, and the interface of a device that runs them.

use std::error::Error;

use warpool::Stream;

/// Arguments of the kernels of the network; as in kernels.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    pub w1: u64,
    pub w2: u64,
    pub x: u64,
    pub target: u64,
    pub h: u64,
    pub dy: u64,
    pub g1: u64,
    pub g2: u64,
    pub loss: u64,
    pub scale: u64,
    pub samples: u64,
    pub inputs: u64,
    pub hidden: u64,
    pub share: f32,
}

/// Arguments of the kernels that change weights; as in kernels.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Update {
    pub gradient: u64,
    pub sum: u64,
    pub master: u64,
    pub momentum: u64,
    pub found: u64,
    pub count: u64,
    pub rate: f32,
    pub decay: f32,
    pub keep: f32,
}

/// The format of weights, activations and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F16,
    F32,
}

/// A launch of one of the kernels.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    Hidden(Precision, Pass),
    Output(Precision, Pass),
    GradientW1(Precision, Pass),
    GradientW2(Precision, Pass),
    Accumulate(Precision, Update),
    Step(Update),
}

impl Call {
    /// Number of threads of the kernel.
    pub fn threads(&self) -> u64 {
        match self {
            Self::Hidden(_, p) => p.samples * (p.hidden + 1),
            Self::Output(_, p) => p.samples,
            Self::GradientW1(_, p) => p.hidden * p.inputs,
            Self::GradientW2(_, p) => p.hidden + 1,
            Self::Accumulate(_, u) | Self::Step(u) => u.count,
        }
    }
}

/// A device that runs the kernels, on one stream.
pub trait Machine {
    /// The stream that calls are queued on.
    fn stream(&self) -> &Stream;

    /// Queues a call. Every address in it is pool memory that is freed in stream order.
    fn queue(&self, call: Call) -> Result<(), Box<dyn Error>>;
}
