//! An array that is in use stays registered.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let words = pool.alloc_movable::<u64>(&stream, 16)?;
    let array = words.register_pointers()?;
    let holder = array.hold(&stream)?;
    array.unregister(&stream)?;
    println!("{:#x}", holder.addr());
    Ok(())
}
