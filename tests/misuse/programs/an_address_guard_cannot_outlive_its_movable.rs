//! A guard borrows the buffer it holds.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let weights = pool.alloc_movable::<f32>(&stream, 16)?;
    let holder = weights.hold(&stream)?;
    drop(weights);
    println!("{:#x}", holder.addr());
    Ok(())
}
