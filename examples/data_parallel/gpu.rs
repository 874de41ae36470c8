//! cuBLAS through cudarc, and the kernels of kernels.cu.

use std::ffi::{CString, c_int, c_void};

use cudarc::cublas::{result as blas, sys};
use cudarc::driver::{result as driver, sys as cuda};
use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use warpool::{Stream, View, ViewMut};

use super::math::{Math, Outcome, Product};

const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");
const BLOCK: u32 = 256;

/// The handles of cuBLAS and the driver for one GPU. They live until the process ends.
pub struct OnGpu {
    blas: sys::cublasHandle_t,
    module: cuda::CUmodule,
}

impl OnGpu {
    /// # Errors
    /// If there is no cuBLAS.
    pub fn open(stream: &Stream) -> Outcome<Self> {
        // SAFETY: it searches for a library and closes it.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "there is no cuBLAS: LD_LIBRARY_PATH names the folder of libcublas.so".into(),
            );
        }
        // Within a launch, where the device's context is current.
        stream.kernel("open").launch(|_| -> Outcome<Self> {
            let handle = blas::create_handle()?;
            // SAFETY: the handle was just made; products use TF32, as PyTorch users often do. The image ends
            // with a zero.
            unsafe {
                sys::cublasSetMathMode(handle, sys::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH)
                    .result()?;
                let module = driver::module::load_data(PTX.as_ptr().cast())?;
                Ok(Self {
                    blas: handle,
                    module,
                })
            }
        })?
    }

    /// Queues a kernel with at least `count` threads, in a launch.
    fn queue(
        &self,
        stream: &Stream,
        name: &str,
        count: usize,
        arguments: &mut [*mut c_void],
    ) -> Outcome<()> {
        let blocks = u32::try_from(count.div_ceil(BLOCK as usize))?;
        // SAFETY: these are the kernel's arguments, and their memory is ordered on the stream.
        unsafe {
            let kernel = driver::module::get_function(self.module, CString::new(name)?)?;
            let (grid, block) = ((blocks, 1, 1), (BLOCK, 1, 1));
            let stream = stream.raw().0 as cuda::CUstream;
            Ok(driver::launch_kernel(
                kernel, grid, block, 0, stream, arguments,
            )?)
        }
    }
}

/// The address of an argument.
macro_rules! arguments {
    ($($argument:ident),*) => { &mut [$((&raw mut $argument).cast::<c_void>()),*] };
}

impl Math for OnGpu {
    fn product(
        &self,
        stream: &Stream,
        shape: Product,
        left: View<'_, f32>,
        right: View<'_, f32>,
        into: ViewMut<'_, f32>,
    ) -> Outcome<()> {
        let way = |by_rows| if by_rows { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let [m, n, k] = [shape.m, shape.n, shape.k].map(|side| side as c_int);
        let (from, to) = shape.strides();
        let (a, b, c) = (left.addr(), right.addr(), into.addr());
        let kernel = stream
            .kernel("product")
            .reads(left)
            .reads(right)
            .writes(into);
        kernel.launch(|stream| -> Outcome<()> {
            let (one, zero) = (1.0f32, 0.0f32);
            // SAFETY: the matrices have these shapes, and the launch waits for all conflicting work.
            unsafe {
                blas::set_stream(self.blas, stream.raw().0 as sys::cudaStream_t)?;
                sys::cublasSgemm_v2(
                    self.blas,
                    way(shape.left_by_rows),
                    way(shape.right_by_rows),
                    m,
                    n,
                    k,
                    &raw const one,
                    a as *const f32,
                    from as c_int,
                    b as *const f32,
                    to as c_int,
                    &raw const zero,
                    c as *mut f32,
                    m,
                )
                .result()?;
            }
            Ok(())
        })?
    }

    fn relu(&self, stream: &Stream, data: ViewMut<'_, f32>) -> Outcome<()> {
        let (mut at, mut count) = (data.addr(), data.len() as u64);
        let kernel = stream.kernel("relu").writes(data);
        kernel.launch(|stream| self.queue(stream, "relu", count as usize, arguments![at, count]))?
    }

    fn slope(
        &self,
        stream: &Stream,
        gradient: ViewMut<'_, f32>,
        value: View<'_, f32>,
    ) -> Outcome<()> {
        let (mut to, mut from) = (gradient.addr(), value.addr());
        let mut count = gradient.len() as u64;
        let kernel = stream.kernel("slope").writes(gradient).reads(value);
        kernel.launch(|stream| {
            let arguments = arguments![to, from, count];
            self.queue(stream, "slope", count as usize, arguments)
        })?
    }

    fn error(
        &self,
        stream: &Stream,
        found: ViewMut<'_, f32>,
        wanted: View<'_, f32>,
        loss: ViewMut<'_, f32>,
    ) -> Outcome<()> {
        let (mut to, mut from, mut sum) = (found.addr(), wanted.addr(), loss.addr());
        let mut count = found.len() as u64;
        let mut share = 1.0 / count as f32;
        let kernel = stream
            .kernel("error")
            .writes(found)
            .reads(wanted)
            .writes(loss);
        kernel.launch(|stream| {
            let arguments = arguments![to, from, sum, share, count];
            self.queue(stream, "error", count as usize, arguments)
        })?
    }

    fn update(
        &self,
        stream: &Stream,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        largest: View<'_, f32>,
        mut rate: f32,
    ) -> Outcome<()> {
        let (mut to, mut from, mut most) = (weights.addr(), gradient.addr(), largest.addr());
        let mut count = weights.len() as u64;
        let kernel = stream
            .kernel("update")
            .writes(weights)
            .reads(gradient)
            .reads(largest);
        kernel.launch(|stream| {
            let arguments = arguments![to, from, most, rate, count];
            self.queue(stream, "update", count as usize, arguments)
        })?
    }
}
