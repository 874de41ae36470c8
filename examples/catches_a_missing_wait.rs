//! A missing wait, found on a machine without a GPU.
//!
//! A program prepares a batch on one stream and uses it on another, but the second stream does not wait for
//! the first. On a GPU this usually works, because the first is fast enough. The checker reports it whatever
//! the timing, and says which wait is missing.
//!
//! ```text
//! cargo run --features sanitize --example catches_a_missing_wait
//! ```

use warpool::ViewMut;
use warpool::sanitize::Sanitizer;
use warpool::{Device, Pool, PoolConfig, Result};

const BATCH: u64 = 1 << 20;

/// One step of the program; `waits` adds the missing line.
fn step(device: &Device, waits: bool) -> Result<()> {
    let pool = Pool::new(device, PoolConfig::default())?;
    let (upload, compute) = (device.stream()?, device.stream()?);
    upload.set_name("upload");
    compute.set_name("compute");

    let mut batch = pool.alloc(&upload, BATCH)?;
    // SAFETY: the block has the bytes and is freed in stream order.
    unsafe {
        device
            .raw_backend()
            .fill(batch.addr(), 1, BATCH, upload.raw())?
    };
    if waits {
        compute.wait_stream(&upload)?;
    }
    // The application would launch its own kernel here. The crate does not see such a launch, so the program
    // declares what it uses, with a view of an address, which the program has to order. A view of a typed
    // buffer would have made the wait. SAFETY: the block has the bytes, and nothing is launched.
    let bytes = unsafe { ViewMut::<u8>::from_raw(batch.addr(), BATCH as usize)? };
    compute.kernel("normalise").writes(bytes).launch(|_| ())?;
    batch.record_use(&compute)?;
    drop(batch);
    compute.synchronize()
}

fn main() -> Result<()> {
    for waits in [false, true] {
        let (device, sanitizer) = Sanitizer::over(&Device::any()?);
        step(&device, waits)?;
        match (waits, sanitizer.check()) {
            (false, Err(report)) => println!("without the wait: {report}"),
            (true, Ok(())) => println!("with the wait: nothing to report"),
            (_, outcome) => panic!("not what the example shows: {outcome:?}"),
        }
    }
    Ok(())
}
