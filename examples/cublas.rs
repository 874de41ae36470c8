//! Matrices in pool memory, multiplied by cuBLAS through cudarc.
//!
//! `cargo run --example cublas --features cudarc`. Without a GPU it prints `skipped: no CUDA device`.

use std::error::Error;

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::CudaContext;
use warpool::convert::{Rounding, convert};
use warpool::half::f16;
use warpool::interop::cudarc::{CudaBuf, adopt, lend_mut, open};
use warpool::{Device, Pool, PoolConfig};

/// Rows and columns of the matrices.
const N: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(reason) = Device::cuda(0) {
        println!("skipped: no CUDA device");
        eprintln!("{reason}");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let (load, multiply) = (context.new_stream()?, context.new_stream()?);
    let device = open(&context)?;
    let (ours, other) = (adopt(&device, &load)?, adopt(&device, &multiply)?);
    other.set_name("cublas");
    let pool = Pool::new(&device, PoolConfig::default())?;

    // In columns, the layout that cuBLAS expects.
    let at = |row: usize, col: usize| ((row * 7 + col * 3) % 11) as f32 - 5.0;
    let values = |scale: f32| -> Vec<f32> {
        let all = (0..N * N).map(|i| scale * at(i % N, i / N));
        all.collect()
    };
    let (left, right) = (values(1.0), values(0.5));
    let a = CudaBuf::new(pool.alloc_from(&ours, &left)?, &load)?;
    let b = CudaBuf::new(pool.alloc_from(&ours, &right)?, &load)?;
    let mut c = CudaBuf::new(pool.alloc_zeroed::<f32>(&ours, N * N)?, &load)?;

    let config = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: N as i32,
        n: N as i32,
        k: N as i32,
        alpha: 1.0f32,
        lda: N as i32,
        ldb: N as i32,
        beta: 0.0f32,
        ldc: N as i32,
    };
    let blas = CudaBlas::new(multiply.clone())?;
    // It runs on another stream than the one that the memory was allocated on, after the uploads
    // and the fill.
    // SAFETY: all three have N x N elements.
    unsafe { blas.gemm(config, &a, &b, &mut c)? };
    // This runs after the product.
    let mut halves = pool.alloc_typed::<f16>(&ours, N * N)?;
    convert(&ours, c.view(), &mut halves, Rounding::Nearest)?;
    drop((a, b)); // behind the product too

    let wanted = |row: usize, col: usize| -> f32 {
        let products = (0..N).map(|k| left[row + k * N] * right[k + col * N]);
        products.sum()
    };
    let (product, rounded) = (load.clone_dtoh(&c)?, halves.download()?);
    let wrong = (0..N * N).filter(|&i| {
        // Sums of multiples of 1/2 below 2^24, which are exact in any order.
        product[i] != wanted(i % N, i / N) || rounded[i] != f16::from_f32(product[i])
    });
    let wrong = wrong.count();
    println!("product: {} elements, {wrong} wrong", N * N);

    // The other direction: one of cudarc's slices in an operation of this crate.
    let mut theirs = load.alloc_zeros::<f32>(N * N)?;
    lend_mut(&other, &mut theirs, |view| {
        convert(&ours, &halves, view, Rounding::Nearest)
    })?;
    let back = load.clone_dtoh(&theirs)?;
    let differ = back
        .iter()
        .zip(&rounded)
        .filter(|(back, half)| **back != half.to_f32());
    let differ = differ.count();
    println!("lent: {} elements, {differ} wrong", N * N);
    match wrong + differ {
        0 => Ok(()),
        wrong => Err(format!("{wrong} elements are wrong").into()),
    }
}
