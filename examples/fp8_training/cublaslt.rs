//! cuBLASLt through cudarc.
//!
//! Products in 8 bits require both operands in rows along the inner dimension (for cuBLASLt, which has
//! matrices in columns: A transposed, B not), sides that are multiples of 16, sums in f32, and not E5M2 for
//! both. Scales are in device memory, read when the product runs.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cudaDataType_t::{CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F};
use warpool::device::DeviceKind;
use warpool::{Pool, PoolBuf, Stream};

use super::Outcome;
use super::products::{Code, Operand};

/// The size of the library's workspace, as NVIDIA recommends for compute capability 9.0.
const WORKSPACE: usize = 32 << 20;

/// An object of the library, destroyed when it is dropped.
struct Owned<T: Copy>(T, unsafe fn(T) -> Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by the matching call, and is destroyed once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// The library on one device.
pub struct CublasLt {
    handle: Owned<sys::cublasLtHandle_t>,
    workspace: PoolBuf<u8>,
}

/// One product, by addresses.
struct Call {
    left: (u64, u64, sys::cudaDataType),
    right: (u64, u64, sys::cudaDataType),
    product: u64,
    workspace: u64,
    shape: [u64; 3],
}

impl CublasLt {
    /// `None` if there is no GPU with 8-bit products, or no library.
    pub fn open(stream: &Stream, pool: &Pool) -> Outcome<Option<Self>> {
        let device = stream.device().info();
        let able = device.kind == DeviceKind::Cuda && device.capability >= (8, 9);
        // SAFETY: it searches for a library and closes it.
        if !able || !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        // Within a launch, where the device's context is current.
        let handle = stream
            .kernel("cublasLtCreate")
            .launch(|_| result::create_handle())?;
        Ok(Some(Self {
            handle: Owned(handle?, result::destroy_handle),
            workspace: pool.alloc_typed(stream, WORKSPACE)?,
        }))
    }

    pub fn multiply<A: Code, B: Code>(
        &mut self,
        stream: &Stream,
        left: Operand<'_, A>,
        right: Operand<'_, B>,
        product: &mut PoolBuf<f32>,
        shape: [usize; 3],
    ) -> Outcome<()> {
        let call = Call {
            left: operand(left),
            right: operand(right),
            product: product.addr(),
            workspace: self.workspace.addr(),
            shape: shape.map(|side| side as u64),
        };
        let handle = self.handle.0;
        let kernel = stream
            .kernel("cublasLtMatmul")
            .reads(left.codes)
            .reads(left.scale);
        let kernel = kernel.reads(right.codes).reads(right.scale);
        let kernel = kernel.writes(product).writes(&mut self.workspace);
        // SAFETY: the operands have the shapes given, and the launch waits for all conflicting work.
        kernel.launch(|stream| unsafe { queue(handle, &call, stream) })??;
        Ok(())
    }
}

fn operand<Q: Code>(of: Operand<'_, Q>) -> (u64, u64, sys::cudaDataType) {
    let format = if Q::FIVE {
        CUDA_R_8F_E5M2
    } else {
        CUDA_R_8F_E4M3
    };
    (of.codes.addr(), of.scale.addr(), format)
}

/// A matrix of `rows` contiguous rows, which cuBLASLt sees as columns.
fn matrix(
    format: sys::cudaDataType,
    rows: u64,
    cols: u64,
) -> Result<Owned<sys::cublasLtMatrixLayout_t>, CublasError> {
    let layout = result::create_matrix_layout(format, cols, rows, cols as i64)?;
    Ok(Owned(layout, result::destroy_matrix_layout))
}

/// # Safety
/// The addresses are of matrices with these shapes, and `stream` may use them.
unsafe fn queue(
    handle: sys::cublasLtHandle_t,
    call: &Call,
    stream: &Stream,
) -> Result<(), CublasError> {
    let [n, m, k] = call.shape;
    let product =
        result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, CUDA_R_32F)?;
    let product = Owned(product, result::destroy_matmul_desc);
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: the descriptor is live, and the value has that many bytes.
        unsafe { result::set_matmul_desc_attribute(product.0, attribute, value, bytes) }
    };
    let transposed = 1i32; // CUBLAS_OP_T
    set(
        Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
        (&raw const transposed).cast(),
        4,
    )?;
    let scales = [call.right.1, call.left.1];
    set(
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        (&raw const scales[0]).cast(),
        8,
    )?;
    set(
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        (&raw const scales[1]).cast(),
        8,
    )?;

    // The product in rows is its transpose in columns: right * left^T.
    let (a, b) = (matrix(call.right.2, m, k)?, matrix(call.left.2, n, k)?);
    let d = matrix(CUDA_R_32F, n, m)?;
    let wanted = Owned(result::create_matmul_pref()?, result::destroy_matmul_pref);
    let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let (one, zero, room) = (1.0f32, 0.0f32, WORKSPACE);
    // SAFETY: all arguments live until the call returns; the caller guarantees the matrices.
    unsafe {
        result::set_matmul_pref_attribute(wanted.0, most, (&raw const room).cast(), 8)?;
        let way =
            result::get_matmul_algo_heuristic(handle, product.0, a.0, b.0, d.0, d.0, wanted.0)?;
        result::matmul(
            handle,
            product.0,
            (&raw const one).cast(),
            (&raw const zero).cast(),
            call.right.0 as *const c_void,
            a.0,
            call.left.0 as *const c_void,
            b.0,
            call.product as *const c_void,
            d.0,
            call.product as *mut c_void,
            d.0,
            &raw const way.algo,
            call.workspace as *mut c_void,
            room,
            stream.raw().0 as sys::cudaStream_t,
        )
    }
}
