//! An application with its own CUDA context, stream and kernel takes its memory from warpool.
//!
//! `cargo run --release --example quickstart`
//!
//! Context and stream belong to rustacuda and the application. The pool allocates memory in the
//! order of that stream, so that the application's kernel, the crate's conversion and the frees
//! need no synchronisation between them. Without a GPU the same code runs on the host device,
//! without the application's kernel, which is GPU code.

use std::error::Error;
use std::ffi::CStr;

use half::f16;
use rustacuda::context::{Context, ContextFlags};
use rustacuda::launch;
use rustacuda::module::Module;
use rustacuda::stream::StreamFlags;
use warpool::compact::Goal;
use warpool::convert::{Rounding, convert};
use warpool::device::Addr;
use warpool::{Device, Pool, PoolConfig, Stream, interop};

/// The application's kernel: `y[i] = a * x[i] + y[i]`.
const SAXPY: &str = concat!(include_str!("saxpy.ptx"), "\0");

const ELEMENTS: usize = 1_000_003;
const A: f32 = 2.0;

/// The application's own kernel on `x` and `y`, at these addresses, before warpool converts `y`.
type OwnKernel<'a> = &'a dyn Fn(Addr, Addr) -> Result<(), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    match Device::cuda_count() {
        Ok(_) => on_gpu(),
        Err(reason) => on_host(&reason),
    }
}

/// Runs everything on the GPU, in a context and a stream of rustacuda.
fn on_gpu() -> Result<(), Box<dyn Error>> {
    rustacuda::init(rustacuda::CudaFlags::empty())?;
    let gpu = rustacuda::device::Device::get_device(0)?;
    let _context = Context::create_and_push(ContextFlags::SCHED_AUTO, gpu)?;
    let module = Module::load_from_string(CStr::from_bytes_with_nul(SAXPY.as_bytes())?)?;
    let theirs = rustacuda::stream::Stream::new(StreamFlags::NON_BLOCKING, None)?;

    // The device of the context above, in that context.
    let device = match Device::cuda_current() {
        Ok(device) => device,
        Err(reason) => return on_host(&reason),
    };
    // SAFETY: the stream is of the device's context, and is declared before everything made from
    // it, so it is dropped after that.
    let stream = unsafe { interop::rustacuda::adopt(&device, &theirs)? };
    run(
        &stream,
        Some(&|x, y| {
            let blocks = (ELEMENTS as u32).div_ceil(256);
            // SAFETY: both buffers have ELEMENTS elements, and are ordered by `Stream::kernel`.
            unsafe {
                launch!(module.saxpy<<<blocks, 256, 0, theirs>>>(A, x, y, ELEMENTS as u32))?;
            }
            Ok(())
        }),
    )
}

/// The same without the application's kernel, which needs a GPU.
fn on_host(reason: &warpool::Error) -> Result<(), Box<dyn Error>> {
    println!("{reason}");
    let stream = Device::host()?.stream()?;
    run(&stream, None)
}

fn run(stream: &Stream, own_kernel: Option<OwnKernel<'_>>) -> Result<(), Box<dyn Error>> {
    println!("device: {}", stream.device().info().name);
    let pool = Pool::new(stream.device(), PoolConfig::default())?;

    let xs: Vec<f32> = (0..ELEMENTS).map(|i| (i % 1000) as f32 * 0.5).collect();
    let mut x = pool.alloc_typed::<f32>(stream, ELEMENTS)?;
    let mut y = pool.alloc_typed::<f32>(stream, ELEMENTS)?;
    x.upload(&xs)?;
    y.upload(&vec![1.0; ELEMENTS])?;

    match own_kernel {
        Some(launch) => {
            let (from, to) = (x.addr(), y.addr());
            let kernel = stream.kernel("saxpy").reads(x.view()).writes(y.view_mut());
            kernel.launch(|_| launch(from, to))??;
            println!("own kernel: y = {A} x + y, queued through rustacuda");
        }
        None => println!("own kernel: left out, it is GPU code"),
    }
    // Freed after the kernel queued above: later allocations may reuse it.
    drop(x);

    let mut halves = pool.alloc_typed::<f16>(stream, ELEMENTS)?;
    convert(stream, y.view(), halves.view_mut(), Rounding::Nearest)?;
    println!("converted: {ELEMENTS} elements, f32 to f16");

    let expected = |x: f32| {
        if own_kernel.is_some() {
            A * x + 1.0
        } else {
            1.0
        }
    };
    let got = halves.download()?;
    let wrong = xs
        .iter()
        .zip(&got)
        .filter(|(x, half)| f16::from_f32(expected(**x)) != **half);
    let wrong = wrong.count();
    println!("checked: {ELEMENTS} values, {wrong} wrong");
    compacted(&pool, stream, &got)?;

    let stats = pool.stats();
    println!(
        "pool: {} bytes allocated at the peak, {} reserved",
        stats.allocated.peak, stats.reserved.peak
    );
    if wrong != 0 {
        return Err(format!("{wrong} of {ELEMENTS} values are wrong").into());
    }
    Ok(())
}

/// Leaves holes between copies of `values`, compacts the rest and reads it back.
fn compacted(pool: &Pool, stream: &Stream, values: &[f16]) -> Result<(), Box<dyn Error>> {
    let mut copies = Vec::new();
    for _ in 0..16 {
        let mut copy = pool.alloc_movable::<f16>(stream, values.len())?;
        copy.upload(stream, values)?;
        copies.push(copy);
    }
    let mut kept = 0;
    copies.retain(|_| {
        kept += 1;
        kept % 2 == 0
    });
    let before = pool.stats().largest_hole;
    let moved = pool.compact(&Goal::Full)?;
    let after = pool.stats().largest_hole;
    println!(
        "compacted: {} blocks, {} bytes moved; the largest hole was {before} bytes, is {after}",
        moved.blocks, moved.bytes
    );
    for copy in &copies {
        if copy.download(stream)? != values {
            return Err("a moved block reads back wrong".into());
        }
    }
    println!("checked: {} moved blocks, 0 wrong", copies.len());
    Ok(())
}
