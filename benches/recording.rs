//! What recording costs the thread that allocates: a pair of allocation and free, in a pool that records
//! and in one that does not, by turns.
//!
//! `cargo bench --bench recording`

use std::time::Instant;

use warpool::{Device, Pool, PoolConfig, Stream};

/// Pairs in one timing. The file is written between timings, as it is in a program that does something
/// with its memory.
const PAIRS: u32 = 4_000;
const ROUNDS: u32 = 200;

fn pairs(pool: &Pool, stream: &Stream) -> f64 {
    let start = Instant::now();
    for _ in 0..PAIRS {
        drop(pool.alloc(stream, 4096).expect("a block"));
    }
    start.elapsed().as_nanos() as f64 / f64::from(PAIRS)
}

/// The least and the middle of each.
fn measure(plain: &Pool, records: &Pool, stream: &Stream) -> [(f64, f64); 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(pairs(plain, stream));
        times[1].push(pairs(records, stream));
        records.flush_recording().expect("the file");
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[0], times[times.len() / 2])
    })
}

fn main() {
    let device = Device::host().expect("the host device");
    let stream = device.stream().expect("a stream");
    let plain = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let endings = if cfg!(feature = "gzip") {
        &["csv", "csv.gz"][..]
    } else {
        &["csv"]
    };
    for ending in endings {
        let path = std::env::temp_dir().join(format!("warpool-bench-%p.{ending}"));
        let config = PoolConfig::default().record(path);
        let records = Pool::new(&device, config).expect("a pool");
        let path = records
            .flush_recording()
            .expect("the file")
            .expect("a path");
        let [(plain, plain_middle), (recorded, recorded_middle)] =
            measure(&plain, &records, &stream);
        println!(
            "{ending:8} pair {plain:6.1} ns, recorded {recorded:6.1} ns: {:5.1} ns an event \
             (middle: {plain_middle:.1}, {recorded_middle:.1}, {:.1})",
            (recorded - plain) / 2.0,
            (recorded_middle - plain_middle) / 2.0,
        );
        drop(records);
        let _ = std::fs::remove_file(path);
    }
}
