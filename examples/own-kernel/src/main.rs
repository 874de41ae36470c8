//! An application with its own kernels on pool memory: on a GPU if there is one, otherwise on the host
//! device, from the same source.
//!
//! ```text
//! cargo run --release --manifest-path examples/own-kernel/Cargo.toml
//! ```

use warpool::{Device, Pool, PoolConfig};

/// A safe function for each kernel of `kernels.cu`.
mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

fn main() -> warpool::Result<()> {
    let device = Device::any()?;
    println!("device: {}", device.info().name);
    let pool = Pool::new(&device, PoolConfig::default())?;
    let (load, compute, report) = (device.stream()?, device.stream()?, device.stream()?);

    let values: Vec<f32> = (0..100_000).map(|i| i as f32 - 50_000.0).collect();
    let x = pool.alloc_from(&load, &values)?;
    let mut y = pool.alloc_filled(&load, values.len(), 1.0f32)?;
    let mut classes = pool.alloc_zeroed::<u8>(&load, values.len())?;

    // Each waits, on the device, for exactly the conflicting work.
    kernels::saxpy(&compute, 0.5, &x, &mut y)?;
    kernels::classify(&report, &y, 10.0, 1000.0, &mut classes)?;
    drop(x); // behind the kernel that reads it

    // A buffer of another length is an error, and nothing is queued; of another type it does not compile.
    let mut short = pool.alloc_zeroed::<u8>(&load, 7)?;
    let refused = kernels::classify(&report, &y, 10.0, 1000.0, &mut short);
    println!("refused: {}", refused.expect_err("7 elements are too few"));

    let (ys, classes) = (y.download()?, classes.download()?);
    let wrong = values
        .iter()
        .zip(ys.iter().zip(&classes))
        .filter(|(x, (y, class))| {
            let expected = 0.5 * **x + 1.0;
            let magnitude = expected.abs();
            **y != expected
                || **class != u8::from(magnitude >= 10.0) + u8::from(magnitude >= 1000.0)
        });
    let wrong = wrong.count();
    println!("checked: {} values, {wrong} wrong", values.len());
    assert_eq!(wrong, 0);

    // What is captured runs with each launch of its graph.
    let ones = pool.alloc_filled(&compute, values.len(), 1.0f32)?;
    let capture = compute.begin_capture()?;
    kernels::saxpy(&compute, 2.0, &ones, &mut y)?;
    let graph = capture.end()?;
    for _ in 0..3 {
        graph.launch(&compute)?;
    }
    let raised = y
        .download()?
        .iter()
        .zip(&ys)
        .all(|(now, before)| *now == before + 2.0 + 2.0 + 2.0);
    println!(
        "captured once and launched three times: {}",
        if raised { "right" } else { "wrong" }
    );
    assert!(raised);
    Ok(())
}
