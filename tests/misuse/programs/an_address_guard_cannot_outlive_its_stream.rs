//! A guard borrows the stream whose work it is for.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let weights = pool.alloc_movable::<f32>(&stream, 16)?;
    let other = device.stream()?;
    let holder = weights.hold(&other)?;
    drop(other);
    println!("{:#x}", holder.addr());
    Ok(())
}
