//! An application that depends on warpool and rustacuda, as `tests/build/downstream.rs` builds it.
//!
//! It prints what the driver calls answered; the test knows which driver it put in place.

use std::ffi::c_void;

use rustacuda::CudaFlags;
use warpool as _; // brings the lazy libcuda

/// Driver functions under signatures of our own: the trampolines pass on whatever they are given,
/// and the test's driver answers with a number made of all it received.
mod driver {
    use std::ffi::c_void;
    unsafe extern "C" {
        pub fn cuLaunchKernel(
            function: *mut c_void,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared: u32,
            stream: *mut c_void,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> u32;
        pub fn cuProfilerStart(
            a: f64,
            b: f64,
            c: f64,
            d: f64,
            e: f64,
            f: f64,
            g: f64,
            h: f64,
            on_the_stack: f64,
            integer: u64,
        ) -> u32;
        pub fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    }
}

fn main() {
    match rustacuda::init(CudaFlags::empty()) {
        Ok(()) => println!("init: Ok"),
        Err(error) => println!("init: {error:?}: {error}"),
    }
    let pointer = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
    // The first call resolves, the second jumps straight through.
    for _ in 0..2 {
        // SAFETY: the test's driver reads only the values; without it nothing is called.
        let (launch, floats, missing) = unsafe {
            (
                driver::cuLaunchKernel(
                    pointer(1),
                    2,
                    3,
                    4,
                    5,
                    6,
                    7,
                    8,
                    pointer(9),
                    pointer(10).cast(),
                    pointer(11).cast(),
                ),
                driver::cuProfilerStart(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10),
                driver::cuMemAlloc_v2(std::ptr::null_mut(), 0),
            )
        };
        println!("launch: {launch}, floats: {floats}, missing: {missing}");
    }
}
