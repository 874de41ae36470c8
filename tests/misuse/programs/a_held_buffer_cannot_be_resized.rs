//! Resizing may move the buffer, so it takes it alone.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let mut weights = pool.alloc_movable::<f32>(&stream, 16)?;
    let holder = weights.hold(&stream)?;
    weights.resize(&stream, 32)?;
    println!("{:#x}", holder.addr());
    Ok(())
}
