//! Every device call that growing buffers make fails at its first uses, once and for ever: a buffer that
//! cannot grow is as it was, the books stay whole, and in the end everything is given back.

use crate::common;

use common::watched::{MADE_TO_FAIL, Watched, calls_here};
use common::{BackendOf, leaving_nothing};
use warpool::pool::HandleSize;
use warpool::{Device, Error, GrowBuf, Pool, PoolConfig};

const LIMIT: u64 = 16 << 20;

/// Uses of a call that are made to fail in turn.
const USES: u64 = 8;

/// Elements of a granule of the host device.
const GRANULE: usize = 2 << 20;

#[test]
fn a_growing_buffer_survives_every_failing_call() {
    let calls = [
        "reserve",
        "unreserve",
        "create",
        "map",
        "unmap",
        "release",
        "event_record",
        "event_query",
        "event_sync",
    ];
    for call in calls {
        let device = 8 * LIMIT;
        leaving_nothing(Device::host_with_capacity(device).unwrap(), |device| {
            fails(device, call)
        });
    }
}

fn fails(device: &Device, call: &'static str) {
    let mut injected = 0;
    for for_ever in [false, true] {
        for use_number in 1..=USES {
            let (device, watched) = Watched::over(device);
            watched.fail(call, use_number, for_ever);
            let seen = work(&device, || watched.heal());
            injected += watched.failures();
            for error in seen {
                let ours = matches!(error, Error::Driver { code, .. } if code == MADE_TO_FAIL);
                assert!(
                    ours || error.is_out_of_memory(),
                    "{call}, {use_number}: {error}"
                );
            }
        }
    }
    assert!(injected > 0, "{call} was never called");
}

/// Resizes a buffer; gives the error, after which it is as it was.
fn resize(pool: &Pool, buffer: &mut GrowBuf<u8>, granules: usize) -> Option<Error> {
    let before = (buffer.len(), buffer.capacity());
    let error = buffer.resize(granules * GRANULE).err();
    match error {
        Some(_) => assert_eq!((buffer.len(), buffer.capacity()), before),
        None => assert_eq!(buffer.len(), granules * GRANULE),
    }
    pool.check_invariants().unwrap();
    error
}

/// Buffers grow, shrink and go beside blocks, at the edge of the limit. `heal` is called before the end.
fn work(device: &Device, heal: impl Fn()) -> Vec<Error> {
    let mut errors = Vec::new();
    let config = PoolConfig::default()
        .limit(LIMIT)
        .handles(HandleSize::Granule);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let pool = Pool::new(device, config.clone()).or_else(|error| {
        errors.push(error);
        heal();
        Pool::new(device, config)
    });
    let pool = pool.expect("the device works again");
    for round in 0..3 {
        let made = (0..2).map(|_| pool.grow_buf::<u8>(&stream, 16 * GRANULE));
        let mut buffers = Vec::new();
        for made in made {
            match made {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => errors.push(error),
            }
        }
        for (step, granules) in [2, 4, 1, 5, 0, 3].into_iter().enumerate() {
            for (at, buffer) in buffers.iter_mut().enumerate() {
                let granules = (granules + at) % 6;
                errors.extend(resize(&pool, buffer, granules));
                // Long enough for what shrinks next to wait for it.
                let filled = buffer.view_mut().fill(&other, step as u8);
                errors.extend(filled.err());
            }
            match pool.alloc(&stream, 3 << 20) {
                Ok(block) => drop(block),
                Err(error) => errors.push(error),
            }
            pool.check_invariants().unwrap();
        }
        drop(buffers);
        if round == 1 {
            errors.extend(pool.trim(0).err());
        }
    }
    heal();
    other.synchronize().unwrap();
    stream.synchronize().unwrap();
    pool.trim(0).expect("the device works again");
    pool.trim(0).expect("what it refused is offered again");
    let stats = pool.stats();
    assert_eq!((stats.grown, stats.reserved.current), (0, 0));
    errors
}

#[test]
fn a_buffer_that_may_not_grow_in_a_host_call_asks_the_driver_nothing_there() {
    let (device, _) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default().handles(HandleSize::Granule)).unwrap();
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let mut buffer = pool.grow_buf::<u8>(&home, 8 * GRANULE).unwrap();
    buffer.resize(4 * GRANULE).unwrap();
    let gate = common::Gate::close(&other);
    buffer.view_mut().fill(&other, 2).unwrap();
    // The other handles stay until the fill is done.
    buffer.resize(1).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        let before = calls_here();
        let refused = buffer.resize(8 * GRANULE);
        tell.send((refused, calls_here() - before)).unwrap();
    });
    (device.backend().host_call(home.raw(), work)).unwrap();
    let (refused, asked) = told.recv().unwrap();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(asked, 0, "the driver was called");
    gate.open();
}
