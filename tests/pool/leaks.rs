//! Live blocks by name, and what becomes of them when a pool or a process ends.

use crate::common;
use crate::common::watched::Watched;
use crate::heap_calls::heap_calls;

use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use warpool::host::{HostPool, HostPoolConfig, Loader, Spill};
use warpool::pool::{PieceState, Relief, tag_scope};
use warpool::{Device, Pool, PoolConfig};

const CHILD: &str = "WARPOOL_TEST_LEAKING_CHILD";

#[test]
fn a_tracked_pool_names_each_live_block_with_its_tag_size_stream_and_address() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    let weights = crate::tagged(&pool, &a, 3000, "weights").unwrap();
    let plain = pool.alloc(&b, 5 << 20).unwrap();
    let scratch = {
        let _scope = tag_scope("scratch");
        pool.alloc_typed::<u32>(&b, 100).unwrap()
    };
    drop(crate::tagged(&pool, &a, 9000, "gone").unwrap());
    let found: Vec<_> = pool
        .leak_report()
        .blocks
        .iter()
        .map(|block| (block.tag.unwrap(), block.bytes, block.stream, block.addr))
        .collect();
    let expected = [
        ("untagged", 5 << 20, b.id(), plain.addr()),
        ("weights", 3000, a.id(), weights.addr()),
        ("scratch", 400, b.id(), scratch.addr()),
    ];
    assert_eq!(found, expected);
    drop((weights, plain));
    warpool::Block::from(scratch).free_on(&a).unwrap();
    assert!(pool.leak_report().blocks.is_empty());
}

#[test]
fn memory_that_is_going_back_to_the_device_is_no_live_block() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 8 << 20).unwrap());
    stream.synchronize().unwrap();
    let (theirs, (say, said)) = (pool.clone(), channel());
    watched.after("before_unmap", move || {
        let live = theirs.snapshot().bytes(PieceState::Live);
        say.send((theirs.leak_report().blocks.len(), live)).unwrap();
    });
    assert_eq!(pool.trim(0).unwrap(), 8 << 20);
    assert_eq!(said.recv().unwrap(), (0, 0));
}

#[test]
fn a_pool_that_does_not_track_names_live_blocks_and_not_cached_ones() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let kept = pool.alloc(&stream, 3 << 20).unwrap();
    drop(pool.alloc(&stream, 5 << 20).unwrap());
    let report = pool.leak_report();
    assert_eq!(report.blocks.len(), 1);
    let block = &report.blocks[0];
    assert_eq!(
        (block.addr, block.bytes, block.stream),
        (kept.addr(), 3 << 20, stream.id())
    );
    assert!(block.tag.is_none() && block.backtrace.is_none());
}

#[test]
fn a_precision_prints_that_many_of_the_largest() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let stream = device.stream().unwrap();
    let _blocks: Vec<_> = [7000, 9000, 8000]
        .map(|bytes| pool.alloc(&stream, bytes).unwrap())
        .into();
    let report = pool.leak_report();
    let top = format!("{report:.1}");
    assert!(
        top.contains("9000 bytes") && top.contains("and 2 more"),
        "{top}"
    );
    assert!(!top.contains("8000 bytes"), "{top}");
    let whole = report.to_string();
    assert!(
        whole.contains("7000 bytes") && !whole.contains("more"),
        "{whole}"
    );
}

#[test]
fn a_backtrace_names_the_function_that_allocated() {
    let device = common::host();
    let config = PoolConfig::default().track(true).backtraces(true);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let _block = pool.alloc(&stream, 512).unwrap();
    let text = pool.leak_report().to_string();
    // A stripped binary has no names to give.
    let named = std::backtrace::Backtrace::force_capture().to_string();
    if !named.contains("a_backtrace_names_the_function_that_allocated") {
        println!("skipped: this binary has no symbols");
        return;
    }
    assert!(
        text.contains("a_backtrace_names_the_function_that_allocated"),
        "{text}"
    );
}

#[test]
fn a_shrunk_block_is_reported_with_what_it_has_left() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let stream = device.stream().unwrap();
    let mut block = pool.alloc(&stream, 1 << 20).unwrap();
    block.shrink(2000).unwrap();
    assert_eq!(pool.leak_report().blocks[0].bytes, 2000);
}

#[test]
fn a_block_that_a_graph_keeps_is_reported_until_the_graph_is_gone() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    for way in ["dropped", "used elsewhere", "freed elsewhere"] {
        let mut block = crate::tagged(&pool, &stream, 3000, "weights").unwrap();
        let capture = stream.begin_capture().unwrap();
        other.wait_stream(&stream).unwrap();
        match way {
            "dropped" => drop(block),
            "used elsewhere" => {
                block.record_use(&other).unwrap();
                drop(block);
            }
            _ => block.free_on(&other).unwrap(),
        }
        stream.wait_stream(&other).unwrap();
        let graph = capture.end().unwrap();
        let kept: Vec<_> = pool.leak_report().blocks.iter().map(|b| b.tag).collect();
        assert_eq!(
            (kept, pool.stats().blocks.current),
            (vec![Some("weights")], 1),
            "{way}"
        );
        drop(graph);
        let left = pool.leak_report().blocks.len();
        assert_eq!((left, pool.stats().blocks.current), (0, 0), "{way}");
    }
}

#[test]
fn a_block_of_a_graph_that_another_graph_keeps_is_reported_until_that_one_is_gone() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    for way in ["dropped", "freed elsewhere"] {
        let capture = stream.begin_capture().unwrap();
        let block = crate::tagged(&pool, &stream, 3000, "weights").unwrap();
        let first = capture.end().unwrap();
        let second = match way {
            "dropped" => {
                let capture = stream.begin_capture().unwrap();
                drop(block);
                capture
            }
            _ => {
                let capture = other.begin_capture().unwrap();
                block.free_on(&other).unwrap();
                capture
            }
        };
        let second = second.end().unwrap();
        let kept: Vec<_> = pool.leak_report().blocks.iter().map(|b| b.tag).collect();
        assert_eq!(
            (kept, pool.stats().blocks.current),
            (vec![Some("weights")], 1),
            "{way}"
        );
        drop(second);
        let left = pool.leak_report().blocks.len();
        assert_eq!((left, pool.stats().blocks.current), (0, 0), "{way}");
        drop(first);
    }
    // By its own graph's captured work, at once.
    let capture = stream.begin_capture().unwrap();
    drop(crate::tagged(&pool, &stream, 3000, "weights").unwrap());
    assert!(pool.leak_report().blocks.is_empty());
    drop(capture);
}

#[test]
fn a_moved_block_is_reported_where_it_is() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let stream = device.stream().unwrap();
    let below = pool.alloc_movable::<u8>(&stream, 4 << 20).unwrap();
    let block = pool.alloc_movable::<u8>(&stream, 100_000).unwrap();
    let before = block.hold(&stream).unwrap().addr();
    drop(below);
    pool.compact(&warpool::compact::Goal::Full).unwrap();
    let now = block.hold(&stream).unwrap().addr();
    assert_ne!(now, before, "it moved");
    let found: Vec<_> = pool.leak_report().blocks.iter().map(|b| b.addr).collect();
    assert_eq!(found, [now]);
}

#[test]
fn a_movable_block_that_was_copied_into_a_larger_one_is_reported_with_its_tag() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let stream = device.stream().unwrap();
    let _scope = tag_scope("cache");
    let mut block = pool.alloc_movable::<u8>(&stream, 100_000).unwrap();
    let behind = pool.alloc(&stream, 1000).unwrap();
    block.resize(&stream, 4 << 20).unwrap();
    let found = pool.leak_report().blocks;
    let found: Vec<_> = found.iter().map(|it| (it.bytes, it.tag)).collect();
    assert_eq!(found, [(4 << 20, Some("cache")), (1000, Some("cache"))]);
    drop((block, behind));
    assert!(pool.leak_report().blocks.is_empty());
}

#[test]
fn a_movable_block_keeps_its_tag_whoever_resizes_it_or_brings_it_back() {
    let device = common::host();
    let config = PoolConfig::default().track(true).limit(8 << 20);
    let pool = Pool::new(&device, config).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let stream = device.stream().unwrap();
    let movable = |bytes| pool.alloc_movable::<u8>(&stream, bytes).unwrap();
    let scope = tag_scope("weights");
    let (mut copied, spilled) = (movable(100_000), movable(4 << 20));
    drop(scope);
    let _scope = tag_scope("activations");
    copied.resize(&stream, 200_000).unwrap();
    drop(pool.alloc(&stream, 6 << 20).unwrap());
    assert!(pool.stats().spilled.current >= 4 << 20);
    drop((
        copied.hold(&stream).unwrap(),
        spilled.hold(&stream).unwrap(),
    ));
    let found = pool.leak_report().blocks;
    let found: Vec<_> = found.iter().map(|it| (it.bytes, it.tag)).collect();
    assert_eq!(
        found,
        [(4 << 20, Some("weights")), (200_000, Some("weights"))]
    );
}

#[test]
fn what_a_callback_allocates_while_a_block_is_resized_has_the_tag_of_the_thread() {
    let device = common::host();
    let config = PoolConfig::default().track(true).limit(8 << 20);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let scope = tag_scope("weights");
    let mut weights = pool.alloc_movable::<u8>(&stream, 3 << 20).unwrap();
    drop(scope);
    let _scope = tag_scope("notes");
    let given_up = Mutex::new(Some((pool.alloc(&stream, 4 << 20).unwrap(), pool.clone())));
    let (tell, told) = channel();
    let on = stream.clone();
    pool.on_pressure(move |_| match given_up.lock().unwrap().take() {
        Some((block, pool)) => {
            drop(block);
            tell.send(pool.alloc(&on, 1000).unwrap()).unwrap();
            Relief::Retry
        }
        None => Relief::Exhausted,
    });
    weights.resize(&stream, 4 << 20).unwrap();
    let note = told.recv().unwrap();
    let found = pool.leak_report().blocks;
    let found: Vec<_> = found.iter().map(|it| (it.bytes, it.tag)).collect();
    assert_eq!(found, [(4 << 20, Some("weights")), (1000, Some("notes"))]);
    drop(note);
}

#[test]
fn the_batches_of_a_loader_have_the_tag_of_the_thread_that_made_it() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().track(true)).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    let scope = tag_scope("batches");
    let loader = Loader::new(&pool, &host, 2, (0..3).map(|it| vec![it; 1000])).unwrap();
    drop(scope);
    let batches: Vec<_> = loader.map(|batch| batch.unwrap()).collect();
    let found: Vec<_> = pool.leak_report().blocks.iter().map(|it| it.tag).collect();
    assert_eq!((batches.len(), found), (3, vec![Some("batches"); 3]));
}

#[test]
fn a_request_fails_with_as_many_heap_calls_whatever_the_number_of_blocks() {
    for track in [false, true] {
        let device = common::host();
        let config = PoolConfig::default().limit(64 << 20).track(track);
        let pool = Pool::new(&device, config).unwrap();
        let stream = device.stream().unwrap();
        stream.set_name("named");
        let mut blocks = Vec::new();
        let calls = [10, 3000].map(|count| {
            blocks.resize_with(count, || pool.alloc(&stream, 5000).unwrap());
            pool.alloc(&stream, 64 << 20).unwrap_err();
            let before = heap_calls();
            pool.alloc(&stream, 64 << 20).unwrap_err();
            heap_calls() - before
        });
        assert!(calls[1] < calls[0] + 100, "{calls:?}");
    }
}

#[test]
fn the_holders_of_an_error_are_of_the_moment_of_its_other_figures() {
    let (device, watched) = Watched::over(&common::host());
    let config = PoolConfig::default().limit(8 << 20).cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let held = [(); 2].map(|()| pool.alloc(&stream, 3 << 20).unwrap());
    pool.alloc(&stream, 8 << 20).unwrap_err();
    let [first, _second] = held;
    watched.after("free_bytes", move || drop(first));
    let error = pool.alloc(&stream, 8 << 20).unwrap_err();
    let warpool::Error::OutOfMemory(figures) = &error else {
        panic!("{error}")
    };
    assert!(watched.was_hooked());
    let held: u64 = figures.holders.iter().map(|it| it.1).sum();
    assert_eq!(held, figures.live, "{figures:?}");
}

#[test]
fn out_of_memory_names_the_holders_by_tag_and_without_tracking_by_stream() {
    for track in [true, false] {
        let device = common::host();
        let config = PoolConfig::default().limit(8 << 20).track(track);
        let pool = Pool::new(&device, config).unwrap();
        let stream = device.stream().unwrap();
        let _held = [
            crate::tagged(&pool, &stream, 1 << 20, "logits").unwrap(),
            crate::tagged(&pool, &stream, 3 << 20, "activations").unwrap(),
            crate::tagged(&pool, &stream, 1 << 20, "logits").unwrap(),
        ];
        let error = pool.alloc(&stream, 8 << 20).unwrap_err();
        let warpool::Error::OutOfMemory(figures) = &error else {
            panic!("{error}")
        };
        let expected = if track {
            vec![
                ("activations".to_owned(), 3 << 20, 1),
                ("logits".to_owned(), 2 << 20, 2),
            ]
        } else {
            vec![(format!("stream {}", stream.id()), 5 << 20, 3)]
        };
        assert_eq!(figures.holders, expected);
        let said = error.to_string();
        let held = "; activations holds 3.00 MiB in 1 block; logits holds 2.00 MiB in 2 blocks;";
        assert_eq!(said.contains(held), track, "{said}");
    }
}

/// What the child of the next tests does; does nothing when run as a test.
#[test]
fn leaking_child() {
    let Some(kind) = std::env::var_os(CHILD) else {
        return;
    };
    let device = match kind == "cuda" {
        true => common::cuda().unwrap(),
        false => common::host(),
    };
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let orphan = pool.alloc(&stream, 4096).unwrap();
    std::mem::forget(pool.alloc(&stream, 1 << 20).unwrap());
    std::mem::forget((orphan, stream));
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..4 {
        let (pool, device, tell) = (pool.clone(), device.clone(), tell.clone());
        std::thread::spawn(move || works_on(&pool, &device, &tell));
    }
    drop(pool);
    told.iter().take(4).for_each(drop);
    // With blocks live, threads of the device and of the application running, and destructors of statics to come.
    std::process::exit(7);
}

/// Uses the pool until the process is gone, also while the driver ends: its errors are no crash.
fn works_on(pool: &Pool, device: &Device, begun: &Sender<()>) {
    let stream = device.stream().unwrap();
    for round in 0.. {
        let mut buffer = pool.alloc_filled(&stream, 1 << 16, round);
        if let Ok(buffer) = &mut buffer {
            let _ = buffer.view_mut().slice(1..).map(|it| it.fill(&stream, 7));
            let _ = buffer.download();
        }
        let _ = pool.trim(0);
        if round == 10 {
            let _ = begun.send(());
        }
    }
}

fn a_process_that_exits_while_threads_use_its_pool_does_not_crash(kind: &str) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leaks::leaking_child", "--nocapture"])
        .env(CHILD, kind)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(7), "{status}");
}

#[test]
fn a_process_that_exits_while_threads_use_its_pool_does_not_crash_on_the_host() {
    a_process_that_exits_while_threads_use_its_pool_does_not_crash("host");
}

#[test]
fn a_process_that_exits_while_threads_use_its_pool_does_not_crash_on_a_gpu() {
    if common::cuda().is_some() {
        a_process_that_exits_while_threads_use_its_pool_does_not_crash("cuda");
    }
}
