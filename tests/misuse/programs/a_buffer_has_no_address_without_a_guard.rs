//! Only a guard gives an address.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let weights = pool.alloc_movable::<f32>(&stream, 16)?;
    println!("{:#x}", weights.addr());
    Ok(())
}
