//! The kernels of kernels.cu on a GPU, through rustacuda.

use std::error::Error;
use std::ffi::{CStr, CString};

use rustacuda::launch;
use rustacuda::memory::DeviceCopy;
use rustacuda::module::Module;
use rustacuda::stream::Stream as CudaStream;
use warpool::Stream;

use super::calls::{Call, Machine, Pass, Precision, Update};

const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");
const BLOCK: u32 = 128;

// SAFETY: plain numbers; the addresses among them are the device's.
unsafe impl DeviceCopy for Pass {}
// SAFETY: as above.
unsafe impl DeviceCopy for Update {}

/// A GPU with its current context.
pub struct OnGpu {
    module: Module,
    theirs: CudaStream,
    stream: Stream,
}

impl OnGpu {
    /// Loads the kernels. `stream` is the adopted `theirs`.
    pub fn new(theirs: CudaStream, stream: Stream) -> Result<Self, Box<dyn Error>> {
        let module = Module::load_from_string(CStr::from_bytes_with_nul(PTX.as_bytes())?)?;
        Ok(Self {
            module,
            theirs,
            stream,
        })
    }
}

impl Machine for OnGpu {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn queue(&self, call: Call) -> Result<(), Box<dyn Error>> {
        let blocks = u32::try_from(call.threads().div_ceil(BLOCK.into()))?;
        let (name, precision) = match call {
            Call::Hidden(precision, _) => ("hidden", Some(precision)),
            Call::Output(precision, _) => ("output", Some(precision)),
            Call::GradientW1(precision, _) => ("gradient_w1", Some(precision)),
            Call::GradientW2(precision, _) => ("gradient_w2", Some(precision)),
            Call::Accumulate(precision, _) => ("accumulate", Some(precision)),
            Call::Step(_) => ("step", None),
        };
        let suffix = match precision {
            Some(Precision::F16) => "_f16",
            Some(Precision::F32) => "_f32",
            None => "",
        };
        let kernel = self
            .module
            .get_function(&CString::new(format!("{name}{suffix}"))?)?;
        let theirs = &self.theirs;
        // SAFETY: the arguments have the layout of kernels.cu; the addresses are pool memory that
        // is freed in this stream's order.
        unsafe {
            match call {
                Call::Hidden(_, pass)
                | Call::Output(_, pass)
                | Call::GradientW1(_, pass)
                | Call::GradientW2(_, pass) => launch!(kernel<<<blocks, BLOCK, 0, theirs>>>(pass))?,
                Call::Accumulate(_, update) | Call::Step(update) => {
                    launch!(kernel<<<blocks, BLOCK, 0, theirs>>>(update))?;
                }
            }
        }
        Ok(())
    }
}
