//! The pool's slow steps as `tracing` events: as many as the counters count, in the order taken.

use crate::common;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use common::Gate;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use warpool::compact::Goal;
use warpool::host::{Contents, HostPool, HostPoolConfig, Spill};
use warpool::pool::{HandleSize, Relief};
use warpool::{Device, Pool, PoolConfig, Stream};

/// One event: its words, its bytes and its level.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    words: String,
    bytes: u64,
    level: Level,
}

/// Keeps the events of target `warpool`; uses the pool as it does, as a subscriber may.
struct Keeper {
    seen: Arc<Mutex<Vec<Seen>>>,
    uses: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[derive(Default)]
struct Fields {
    words: String,
    bytes: u64,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.words = format!("{value:?}");
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "bytes" {
            self.bytes = value;
        }
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "warpool"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.seen.lock().unwrap().push(Seen {
            words: fields.words,
            bytes: fields.bytes,
            level: *event.metadata().level(),
        });
        // A lock of the pool held here would never be had.
        let uses = self.uses.lock().unwrap().take();
        if let Some(uses) = uses {
            uses();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `act` and gives the events it caused.
fn events_of(seen: &Mutex<Vec<Seen>>, act: impl FnOnce()) -> Vec<(String, u64)> {
    seen.lock().unwrap().clear();
    act();
    let seen = seen.lock().unwrap();
    seen.iter().map(|e| (e.words.clone(), e.bytes)).collect()
}

/// What this thread is told from now on, until the guard goes.
fn kept() -> (Arc<Mutex<Vec<Seen>>>, tracing::subscriber::DefaultGuard) {
    let seen = Arc::default();
    let keeper = Keeper {
        seen: Arc::clone(&seen),
        uses: Mutex::new(None),
    };
    (seen, tracing::subscriber::set_default(keeper))
}

fn told(words: &str, bytes: u64) -> (String, u64) {
    (words.to_owned(), bytes)
}

#[test]
fn each_step_of_the_ladder_is_told_with_its_bytes_in_the_order_taken() {
    let (seen, _guard) = kept();
    let device = common::host();
    let granule = device.info().granule;
    let config = PoolConfig::default()
        .limit(4 * granule)
        .handles(HandleSize::Granule);
    let pool = Pool::new(&device, config).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let mut held = Vec::new();
    let mut alloc = |stream: &Stream, granules: u64| {
        events_of(&seen, || {
            held.push(pool.alloc(stream, granules * granule).unwrap())
        })
    };
    assert_eq!(alloc(&first, 2), vec![told("handle created", granule); 2]);
    assert_eq!(alloc(&first, 2), vec![told("handle created", granule); 2]);
    drop(held);
    let mut held = Vec::new();
    let mut alloc = |stream: &Stream, granules: u64| {
        events_of(&seen, || {
            held.push(pool.alloc(stream, granules * granule).unwrap())
        })
    };
    assert_eq!(alloc(&first, 1), [told("own stream", granule)]);
    let gate = Gate::close(&first);
    assert_eq!(alloc(&second, 1), [told("stream wait", granule)]);
    gate.open();
    first.synchronize().unwrap();
    assert_eq!(alloc(&second, 1), [told("ready elsewhere", granule)]);
    // Live: the granules 0, 1 and 2; what the second has is freed on either side of the third.
    let low = held.remove(0);
    drop(low);
    let mut far = None;
    let stolen = events_of(&seen, || {
        far = Some(pool.alloc(&first, 2 * granule).unwrap())
    });
    assert!(
        stolen.contains(&told("idle handle remapped", granule)),
        "{stolen:?}"
    );
    let failed = events_of(&seen, || {
        pool.alloc(&first, granule).unwrap_err();
    });
    assert_eq!(failed.last(), Some(&told("out of memory", granule)));
    let stash = Mutex::new(far);
    pool.on_pressure(move |_| match stash.lock().unwrap().take() {
        Some(_) => Relief::Retry,
        None => Relief::Exhausted,
    });
    let relieved = events_of(&seen, || drop(pool.alloc(&first, granule).unwrap()));
    assert_eq!(relieved.last(), Some(&told("relieved", granule)));
    drop(held);
    let trimmed = events_of(&seen, || assert!(pool.trim(0).unwrap() > 0));
    assert_eq!(trimmed.last(), Some(&told("trimmed", 4 * granule)));
}

#[test]
fn what_a_pool_releases_for_its_sleep_or_for_another_part_is_told_at_once() {
    let (seen, _guard) = kept();
    let granule = common::host().info().granule;
    let device = Device::host_with_capacity(8 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
    let part = pool.tagged("part").unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 6 * granule).unwrap());
    let held = pool.stats().reserved.current;
    let taken = events_of(&seen, || drop(part.alloc(&stream, 6 * granule).unwrap()));
    assert!(taken.contains(&told("trimmed", held)), "{taken:?}");
    let held = part.stats().reserved.current;
    let slept = events_of(&seen, || _ = part.sleep(&[], Contents::Discarded).unwrap());
    assert_eq!(slept, [told("trimmed", held)]);
}

#[test]
fn a_pool_that_finds_no_memory_to_wake_is_told_of_at_once() {
    let (seen, _guard) = kept();
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
    let stream = device.stream().unwrap();
    let _block = pool.alloc(&stream, 3 << 20).unwrap();
    let slept = pool.sleep(&[], Contents::Discarded).unwrap();
    pool.set_limit(slept - 1);
    let failed = events_of(&seen, || _ = pool.wake(&[]).unwrap_err());
    assert_eq!(failed, [told("out of memory", slept)]);
}

#[test]
fn a_spilled_block_that_cannot_come_back_is_told_of_at_once() {
    let (seen, _guard) = kept();
    let device = common::host();
    let config = PoolConfig::default()
        .limit(8 << 20)
        .handles(HandleSize::Granule);
    let pool = Pool::new(&device, config).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc_movable::<u8>(&stream, 6 << 20).unwrap();
    drop(pool.alloc(&stream, 6 << 20).unwrap());
    let (again, from) = (pool.clone(), stream.clone());
    block.on_move(move |_| drop(again.alloc(&from, 6 << 20).unwrap()));
    let failed = events_of(&seen, || _ = block.hold(&stream).map(drop).unwrap_err());
    assert_eq!(failed.last(), Some(&told("out of memory", 6 << 20)));
}

#[test]
fn a_device_without_memory_beside_the_pool_is_told_of_at_once() {
    let (seen, _guard) = kept();
    let granule = common::host().info().granule;
    let device = Device::host_with_capacity(4 * granule).unwrap();
    let [other, pool] = [(); 2].map(|()| Pool::new(&device, PoolConfig::default()).unwrap());
    let stream = device.stream().unwrap();
    let _all = other.alloc(&stream, 4 * granule).unwrap();
    let failed = events_of(&seen, || _ = pool.address_table().map(drop).unwrap_err());
    assert_eq!(failed.last(), Some(&told("out of memory", granule)));
}

#[test]
fn there_are_as_many_events_as_the_counters_count() {
    let (seen, _guard) = kept();
    let device = common::host();
    let config = PoolConfig::default()
        .limit(24 << 20)
        .handles(HandleSize::Granule);
    let pool = Pool::new(&device, config).unwrap();
    work(&device, &pool);
    let seen = seen.lock().unwrap();
    let count = |words: &str| seen.iter().filter(|e| e.words == words).count() as u64;
    let stats = pool.stats();
    let steps = stats.steps;
    assert_eq!(count("own stream"), steps.own_stream);
    assert_eq!(count("ready elsewhere"), steps.ready_elsewhere);
    assert_eq!(count("caches emptied"), steps.drain);
    assert_eq!(count("stream wait"), steps.stream_wait);
    assert_eq!(count("idle handle remapped"), steps.steal);
    assert_eq!(count("handle created"), steps.grow);
    assert_eq!(count("relieved"), steps.relieved);
    assert_eq!(count("out of memory"), steps.out_of_memory);
    assert_eq!(count("blocks moved"), stats.compactions);
    for words in [
        "own stream",
        "caches emptied",
        "handle created",
        "out of memory",
    ] {
        assert!(count(words) > 0, "no {words}: the test proves nothing");
    }
    let failures = seen.iter().filter(|e| e.words == "out of memory");
    assert!(failures.into_iter().all(|e| e.level == Level::WARN));
}

/// Blocks of many sizes on two streams at the edge of the limit, some movable, and a compaction.
fn work(device: &Device, pool: &Pool) {
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let movable: Vec<_> = (1..4usize)
        .map(|i| pool.alloc_movable::<u8>(&streams[0], i << 19).unwrap())
        .collect();
    let mut blocks = Vec::new();
    for i in 0..200u64 {
        let stream = &streams[(i % 2) as usize];
        blocks.extend(pool.alloc(stream, (i * 7919 % 9 + 1) << 19).ok());
        if i % 3 != 0 && !blocks.is_empty() {
            blocks.swap_remove(i as usize % blocks.len());
        }
    }
    drop(movable.into_iter().nth(1));
    pool.compact(&Goal::Full).unwrap();
}

#[test]
fn a_pool_dropped_with_live_blocks_is_told_and_one_without_is_not() {
    let (seen, _guard) = kept();
    let device = common::host();
    let stream = device.stream().unwrap();
    for live in [0, 1, 3] {
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let blocks: Vec<_> = (0..4)
            .map(|_| pool.alloc(&stream, 3 << 20).unwrap())
            .collect();
        let held: Vec<_> = blocks.into_iter().take(live).collect();
        let dropped = events_of(&seen, || drop(pool));
        let said = told("pool dropped with live blocks", (live as u64) * (3 << 20));
        let said = if live > 0 { vec![said] } else { Vec::new() };
        assert_eq!(dropped, said);
        drop(held);
    }
}

#[test]
fn a_subscriber_may_use_the_pool() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let (its, on) = (pool.clone(), stream.clone());
    let uses = move || {
        drop(its.alloc(&on, 512));
        its.check_invariants().unwrap();
    };
    let keeper = Keeper {
        seen: Arc::clone(&seen),
        uses: Mutex::new(Some(Box::new(uses))),
    };
    let _guard = tracing::subscriber::set_default(keeper);
    drop(pool.alloc(&stream, 3 << 20).unwrap());
    assert!(seen.lock().unwrap().len() > 1, "its own step is told too");
}

#[test]
fn a_subscriber_told_of_live_blocks_may_drop_them() {
    let (tell, told) = std::sync::mpsc::channel();
    // Were a lock of the pool held, the thread would hang.
    std::thread::spawn(move || {
        let device = common::host();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream: Stream = device.stream().unwrap();
        let blocks = [512, 3 << 20].map(|bytes| pool.alloc(&stream, bytes).unwrap());
        let keeper = Keeper {
            seen: Arc::default(),
            uses: Mutex::new(Some(Box::new(move || drop(blocks)))),
        };
        let _guard = tracing::subscriber::set_default(keeper);
        drop(pool);
        tell.send(device.counts().bytes).unwrap();
    });
    let left = told.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(left.expect("the pool's drop ends"), 0);
}

#[test]
fn a_subscriber_that_panics_keeps_no_memory_and_nobody_from_a_drop() {
    let device = common::host();
    let stream = device.stream().unwrap();
    let panicking = || {
        tracing::subscriber::set_default(Keeper {
            seen: Arc::default(),
            uses: Mutex::new(Some(Box::new(|| panic!("of the subscriber's")))),
        })
    };
    // A handle is made; then a hole is taken, and a slab.
    for bytes in [3 << 20, 1 << 20, 100] {
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let kept = pool.alloc(&stream, 512).unwrap();
        let guard = panicking();
        let block = pool.alloc(&stream, bytes);
        drop(guard);
        drop(block.unwrap());
        assert_eq!(pool.stats().blocks.current, 1, "{bytes} bytes");
        let guard = panicking();
        drop(pool);
        drop((guard, kept));
        assert_eq!(device.counts().bytes, 0, "{bytes} bytes");
    }
}

#[test]
fn a_subscriber_that_panics_over_a_batch_keeps_no_block() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(1 << 20)).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let alloc = || pool.alloc(&stream, 64 << 10);
    let blocks: Vec<_> = (0..64).map(|_| alloc().unwrap()).collect();
    for block in blocks {
        block.free_on(&other).unwrap();
    }
    stream.wait_stream(&other).unwrap();
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let guard = tracing::subscriber::set_default(Keeper {
        seen: Arc::clone(&seen),
        uses: Mutex::new(Some(Box::new(|| panic!("of the subscriber's")))),
    });
    let block = alloc();
    drop(guard);
    assert_eq!(seen.lock().unwrap()[0].words, "ready elsewhere");
    assert_eq!(pool.stats().blocks.current, 1);
    drop(block.unwrap());
    assert_eq!(pool.stats().blocks.current, 0);
    pool.check_invariants().unwrap();
}
