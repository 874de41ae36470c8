use crate::device::{Device, lock};
use crate::heap::{Epoch, State};
use crate::movable::registry::Registry;
use crate::{Pool, PoolConfig, Result};

#[test]
fn a_block_that_a_stream_used_as_its_capture_began_shrinks_and_keeps_its_memory_meanwhile()
-> Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let (stream, other) = (device.stream()?, device.stream()?);
    let mut block = pool.alloc_movable::<u8>(&stream, 1 << 20)?;
    block.upload(&stream, &vec![7; 1 << 20])?;
    let (held, theirs) = (pool.stats().allocated.current, &other.core().timeline);
    let capture = other.begin_capture()?;
    let registry = Registry::of(&pool)?;
    let note = |tick| {
        let mut state = lock(&registry.state);
        let entry = state.table.entry(block.id());
        entry.map(|entry| entry.uses.note(theirs, tick))
    };
    note(theirs.open_tick())?;
    for len in [1000, 2000, 500] {
        block.resize(&stream, len)?;
        assert_eq!(block.len(), len);
        assert_eq!(pool.stats().allocated.current, held);
        assert_eq!(block.download(&stream)?[..500], [7; 500]);
    }
    drop(capture);
    block.resize(&stream, 400)?;
    assert!(pool.stats().allocated.current < held);
    assert_eq!(block.download(&stream)?, [7; 400]);
    pool.check_invariants().expect("invariants hold");
    Ok(())
}

#[test]
fn a_block_whose_own_stream_is_under_capture_shrinks_and_keeps_its_memory_meanwhile() -> Result<()>
{
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let (home, stream) = (device.stream()?, device.stream()?);
    let mut block = pool.alloc_movable::<u8>(&home, 1 << 20)?;
    block.upload(&home, &vec![7; 1 << 20])?;
    let held = pool.stats().allocated.current;
    let told = |block: &crate::Movable<u8>| Ok(pool.hold_id(block.id(), &stream)?.bytes());
    let capture = home.begin_capture()?;
    for len in [1000, 2000, 500] {
        block.resize(&stream, len)?;
        assert_eq!((block.len(), told(&block)?), (len, len as u64));
        assert_eq!(pool.stats().allocated.current, held);
        assert_eq!(block.download(&stream)?[..500], [7; 500]);
    }
    drop(capture);
    block.resize(&stream, 400)?;
    assert_eq!(told(&block)?, 400);
    assert!(pool.stats().allocated.current < held);
    assert_eq!(block.download(&stream)?, [7; 400]);
    pool.check_invariants().expect("invariants hold");
    Ok(())
}

#[test]
fn a_block_grows_elsewhere_if_the_memory_behind_it_was_freed_as_a_capture_began() -> Result<()> {
    let device = Device::host()?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let (stream, other) = (device.stream()?, device.stream()?);
    let mut block = pool.alloc_movable::<u8>(&stream, 1 << 20)?;
    block.upload(&stream, &vec![7; 1 << 20])?;
    let (shared, theirs) = (pool.shared(), &other.core().timeline);
    let lane = shared.open_lane(&other)?;
    let before = block.hold(&stream)?.addr();
    let capture = other.begin_capture()?;
    let open = Epoch::new(lane.slot, theirs.open_tick());
    let mut core = shared.lock_drained();
    let behind = core
        .extents
        .seek(core.extents.first(), before - shared.base + (1 << 20));
    assert_eq!(core.extents.get(behind).state, State::Free);
    core.extents.set_epoch(behind, open);
    drop(core);
    block.resize(&stream, 1 << 20 | 1000)?;
    assert_ne!(block.hold(&stream)?.addr(), before);
    assert_eq!(block.download(&stream)?[..1 << 20], vec![7; 1 << 20]);
    drop(capture);
    pool.check_invariants().expect("invariants hold");
    Ok(())
}
