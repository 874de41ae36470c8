//! The simulated device itself: what orders it takes, and that a seed decides them.

use crate::common;

use crate::common::BackendOf;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::hunt::shrink;
use warpool::device::sim::{Rng, SimConfig, Strategy, explore};
use warpool::device::{DeviceKind, RawStream};
use warpool::{Device, Event, Pool, PoolConfig, Result, Stream};

type Log = Arc<Mutex<Vec<char>>>;

/// Queues a host call that notes `name`.
fn note(stream: &Stream, log: &Log, name: char) {
    let log = Arc::clone(log);
    let work = Box::new(move || log.lock().unwrap().push(name));
    stream
        .device()
        .backend()
        .host_call(stream.raw(), work)
        .unwrap();
}

fn light() -> SimConfig {
    SimConfig::default().without_bytes()
}

fn streams(device: &Device, number: usize) -> Vec<Stream> {
    (0..number).map(|_| device.stream().unwrap()).collect()
}

/// All orders of a program of host calls, by exploration; each is seen once.
fn orders(program: impl Fn(&Device, &Log)) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let explored = explore(&light(), 1_000_000, |device| {
        let log = Log::default();
        program(device, &log);
        let order = log.lock().unwrap().iter().collect::<String>();
        assert!(seen.insert(order), "a schedule was run twice");
        Ok(())
    })
    .unwrap();
    assert!(explored.complete);
    assert_eq!(explored.schedules, seen.len() as u64);
    println!("{} schedules", explored.schedules);
    seen
}

fn queued(device: &Device, log: &Log, names: &[&str]) -> Vec<Stream> {
    let streams = streams(device, names.len());
    for (stream, names) in streams.iter().zip(names) {
        names.chars().for_each(|name| note(stream, log, name));
    }
    streams
}

#[test]
fn exploring_runs_every_interleaving_of_three_streams_and_eight_operations_once() {
    let seen = orders(|device, log| {
        for stream in queued(device, log, &["abc", "def", "gh"]) {
            stream.synchronize().unwrap();
        }
    });
    assert_eq!(seen.len(), 560, "8! / (3! 3! 2!)");
    for order in seen {
        let at = |name| order.find(name).unwrap();
        assert!(
            at('a') < at('b') && at('b') < at('c') && at('d') < at('e'),
            "{order}"
        );
    }
}

#[test]
fn exploring_respects_a_wait_and_takes_nothing_else_away() {
    let seen = orders(|device, log| {
        let streams = streams(device, 2);
        "ab".chars().for_each(|name| note(&streams[0], log, name));
        streams[1].wait_stream(&streams[0]).unwrap();
        note(&streams[0], log, 'c');
        "def".chars().for_each(|name| note(&streams[1], log, name));
        streams
            .iter()
            .for_each(|stream| stream.synchronize().unwrap());
    });
    // After `ab`, any interleaving of `c` and `def`.
    assert_eq!(
        seen,
        ["abcdef", "abdcef", "abdecf", "abdefc"]
            .map(String::from)
            .into()
    );
}

#[test]
fn exploring_answers_a_question_in_every_way() {
    let mut answers = BTreeSet::new();
    let explored = explore(&light(), 1000, |device| {
        let log = Log::default();
        let streams = queued(device, &log, &["a", "b"]);
        let idle = streams[0].is_idle()?;
        let after = log.lock().unwrap().len();
        answers.insert((idle, after));
        streams.iter().try_for_each(Stream::synchronize)
    })
    .unwrap();
    assert!(explored.complete);
    assert_eq!(
        answers,
        [(false, 0), (false, 1), (true, 1), (true, 2)].into()
    );
}

#[test]
fn exploring_stops_where_told_and_says_that_there_is_more() {
    let explored = explore(&light(), 10, |device| {
        let streams = queued(device, &Log::default(), &["abc", "def"]);
        streams.iter().try_for_each(Stream::synchronize)
    })
    .unwrap();
    assert_eq!((explored.schedules, explored.complete), (10, false));
}

fn order_of(seed: u64, strategy: Strategy) -> String {
    let config = light().with_seed(seed).with_strategy(strategy);
    let device = Device::sim(&config).unwrap();
    let log = Log::default();
    let streams = queued(&device, &log, &["abcd", "efgh", "ijkl"]);
    let _ = streams[0].is_idle().unwrap();
    streams
        .iter()
        .for_each(|stream| stream.synchronize().unwrap());
    log.lock().unwrap().iter().collect()
}

const PCT: Strategy = Strategy::Pct {
    changes: 3,
    steps: 12,
};

#[test]
fn the_same_seed_runs_the_same_way_and_others_run_other_ways() {
    for strategy in [Strategy::Random, PCT] {
        let orders: BTreeSet<String> = (0..100)
            .map(|seed| {
                let order = order_of(seed, strategy);
                assert_eq!(order, order_of(seed, strategy));
                order
            })
            .collect();
        assert!(orders.len() > 50, "{} orders", orders.len());
    }
}

#[test]
fn priorities_find_a_stream_held_up_far_longer_than_chance_does() {
    // One operation of the first stream comes after all 30 of the others.
    let starved = |strategy| {
        (0..200).filter(move |&seed| {
            let device = Device::sim(&light().with_seed(seed).with_strategy(strategy)).unwrap();
            let log = Log::default();
            let streams = queued(&device, &log, &["a", "bbbbbbbbbbbbbbb", "ccccccccccccccc"]);
            streams[1].synchronize().unwrap();
            streams[2].synchronize().unwrap();
            streams[0].synchronize().unwrap();
            let order = log.lock().unwrap().clone();
            order.last() == Some(&'a')
        })
    };
    // No change of priorities: the first stream has the lowest in a third of the schedules.
    let pct = Strategy::Pct {
        changes: 0,
        steps: 31,
    };
    assert_eq!(starved(Strategy::Random).count(), 0);
    assert!(starved(pct).count() > 40);
}

#[test]
fn nothing_runs_until_somebody_waits() {
    let device = Device::sim(&light()).unwrap();
    let log = Log::default();
    let streams = queued(&device, &log, &["ab", "cd"]);
    let event = device.event().unwrap();
    event.record(&streams[0]).unwrap();
    streams[1].wait(&event).unwrap();
    assert!(log.lock().unwrap().is_empty());
    event.synchronize().unwrap();
    let order: String = log.lock().unwrap().iter().collect();
    assert!(order.contains('a') && order.ends_with('b'), "{order}");
}

#[test]
fn a_host_call_cannot_wait_for_the_device_that_runs_it() {
    let device = Device::sim(&light()).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    note(&other, &Log::default(), 'x');
    let outcome = Arc::new(Mutex::new(None));
    let (result, waiting) = (Arc::clone(&outcome), other.clone());
    let work = Box::new(move || *result.lock().unwrap() = Some(waiting.synchronize()));
    device.backend().host_call(stream.raw(), work).unwrap();
    stream.synchronize().unwrap();
    let error = outcome.lock().unwrap().take().unwrap().unwrap_err();
    assert!(error.to_string().contains("may not wait"), "{error}");
}

#[test]
fn a_host_call_copies_no_memory_of_the_host_which_it_could_not_wait_for() {
    let device = Device::sim(&SimConfig::default()).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let mut buffer = pool.alloc_from(&stream, &[7_u64; 64]).unwrap();
    let (tell, told) = mpsc::channel();
    let work = Box::new(move || {
        let mut source = vec![8; 64];
        let outcome = buffer.upload(&source);
        // The source is the caller's again, whatever the outcome.
        source.fill(9);
        tell.send((outcome, buffer, source)).unwrap();
    });
    device.backend().host_call(stream.raw(), work).unwrap();
    stream.synchronize().unwrap();
    let (outcome, buffer, _source) = told.recv().unwrap();
    let words = outcome.unwrap_err().to_string();
    assert!(words.contains("host call"), "{words}");
    assert_eq!(buffer.download().unwrap(), [7; 64]);
}

/// Has `stream` call the host, to record the event there.
fn record_later(stream: &Stream, event: &Arc<Event>) {
    let (its, event) = (stream.clone(), Arc::clone(event));
    let work = Box::new(move || event.record(&its).unwrap());
    (stream.device().backend())
        .host_call(stream.raw(), work)
        .unwrap();
}

#[test]
fn a_question_about_a_stream_may_run_host_calls_that_use_it() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::sim(&light()).unwrap();
        let stream = device.stream().unwrap();
        let event = Arc::new(device.event().unwrap());
        record_later(&stream, &event);
        while !stream.is_idle().unwrap() {}
        tell.send("asked").unwrap();
        let (its, of) = (stream.clone(), Arc::clone(&event));
        let work = Box::new(move || record_later(&its, &of));
        (device.backend()).host_call(stream.raw(), work).unwrap();
        stream.synchronize().unwrap();
        tell.send("waited for").unwrap();
    });
    for what in ["asked", "waited for"] {
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(what));
    }
}

#[test]
fn work_of_a_graph_may_own_a_stream_that_goes_with_it() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::sim(&light()).unwrap();
        let (stream, its) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = stream.begin_capture().unwrap();
        let work = Arc::new(move || _ = its.id());
        let backend = device.backend();
        backend.host_call_in_each_run(stream.raw(), work).unwrap();
        drop(capture.end().unwrap());
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10))
        .expect("the drop waits for itself");
}

#[test]
fn handles_of_destroyed_streams_and_events_are_the_next_ones() {
    let device = Device::sim(&light()).unwrap();
    let first = device.stream().unwrap();
    let (raw, id) = (
        first.raw(),
        device.backend().stream_id(first.raw()).unwrap(),
    );
    drop(first);
    let second = device.stream().unwrap();
    assert_eq!(second.raw(), raw);
    assert_ne!(device.backend().stream_id(second.raw()).unwrap(), id);
    assert!(device.backend().stream_id(RawStream(99)).is_err());
}

#[test]
fn a_device_without_bytes_checks_memory_calls_as_one_with_them() {
    for config in [SimConfig::default(), light()] {
        let device = Device::sim(&config.with_capacity(8 << 20)).unwrap();
        assert_eq!(device.info().kind, DeviceKind::Sim);
        let (backend, granule) = (device.backend(), device.info().granule);
        let range = backend.reserve(4 * granule).unwrap();
        let phys = backend.create(2 * granule).unwrap();
        assert!(
            backend
                .create(3 * granule)
                .unwrap_err()
                .is_device_exhausted()
        );
        backend.map(range, 2 * granule, phys).unwrap();
        assert!(backend.map(range + granule, 2 * granule, phys).is_err());
        assert!(backend.unreserve(range, 4 * granule).is_err());
        backend.release(phys).unwrap();
        assert_eq!(
            backend.free_bytes().unwrap(),
            2 * granule,
            "a mapping keeps it"
        );
        backend.unmap(range, 2 * granule).unwrap();
        assert_eq!(backend.free_bytes().unwrap(), 4 * granule);
        assert!(backend.unmap(range, 2 * granule).is_err());
        backend.unreserve(range, 4 * granule).unwrap();
    }
}

#[test]
fn timing_events_count_the_operations_between_them() {
    let device = Device::sim(&light()).unwrap();
    let stream = device.stream().unwrap();
    let (start, end) = (
        device.timing_event().unwrap(),
        device.timing_event().unwrap(),
    );
    start.record(&stream).unwrap();
    (0..5).for_each(|_| note(&stream, &Log::default(), 'x'));
    end.record(&stream).unwrap();
    assert!(end.elapsed_ns(&start).is_err(), "nothing has run");
    stream.synchronize().unwrap();
    assert_eq!(end.elapsed_ns(&start).unwrap(), 6000.0);
}

#[test]
fn shrinking_keeps_what_a_failure_needs_and_nothing_else() {
    let fails = |ops: &[u32]| ops.contains(&7) && ops.iter().filter(|&&op| op == 3).count() >= 2;
    let program: Vec<u32> = (0..50).map(|at| at % 10).collect();
    assert_eq!(shrink(program, fails).len(), 3);
}

/// A program of 10 operations on 3 streams with an event or two, run to its end.
fn ten_operations(device: &Device, rng: &mut Rng) -> Result<()> {
    let streams: Vec<Stream> = (0..3).map(|_| device.stream()).collect::<Result<_>>()?;
    let event: Event = device.event()?;
    for _ in 0..10 {
        let stream = &streams[rng.below(3) as usize];
        match rng.below(6) {
            0 => event.record(stream)?,
            1 => stream.wait(&event)?,
            // SAFETY: the device has no bytes, so that the range is only a name.
            _ => unsafe { device.backend().fill(1 << 56, 0, 64, stream.raw())? },
        }
    }
    streams.iter().try_for_each(Stream::synchronize)
}

#[test]
fn a_schedule_of_ten_operations_costs_little() {
    let schedules = common::hunt::cases(100_000);
    let began = Instant::now();
    for seed in 0..schedules {
        let device = Device::sim(&light().with_seed(seed)).unwrap();
        ten_operations(&device, &mut Rng::new(seed)).unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    let a_minute = schedules as f64 / seconds * 60.0;
    println!("{schedules} schedules in {seconds:.2} s: {a_minute:.3e} a minute");
    // An unoptimised build on a busy machine still has to be of the right order.
    assert!(a_minute > 1e6, "{a_minute:.3e} schedules a minute");
}
