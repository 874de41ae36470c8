//! What the others must not do, done right.
use warpool::{Device, Pool, PoolConfig};

fn main() -> warpool::Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let mut weights = pool.alloc_movable::<f32>(&stream, 16)?;
    let addr = weights.hold(&stream)?.addr();
    weights.resize(&stream, 32)?;
    let words = pool.alloc_movable::<u64>(&stream, 16)?;
    let array = words.register_pointers()?;
    drop(array.hold(&stream)?);
    array.unregister(&stream)?;
    println!("{addr:#x}");
    std::thread::spawn(move || drop(weights)).join().expect("no panic");
    Ok(())
}
