//! Moving a handle elsewhere would leave its guard behind.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let weights = pool.alloc_movable::<f32>(&stream, 16)?;
    let holder = weights.hold(&stream)?;
    std::thread::spawn(move || drop(weights));
    println!("{:#x}", holder.addr());
    Ok(())
}
