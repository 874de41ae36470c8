//! Statistics, snapshots and reports as serde's values.

use serde_json::{Value, from_value, to_value};
use warpool::pool::PoolStats;
use warpool::{Error, Pool, PoolConfig};

use super::common;

#[test]
fn statistics_come_back_from_their_values() {
    let pool = Pool::new(&common::host(), PoolConfig::default()).unwrap();
    let stream = pool.device().stream().unwrap();
    stream.set_name("loader");
    let block = pool.alloc(&stream, 100_000).unwrap();
    let stats = pool.stats();
    let value = to_value(&stats).unwrap();
    assert_eq!(value["requested"]["current"], 100_000);
    assert_eq!(value["streams"][0]["stream_name"], "loader");
    let back: PoolStats = from_value(value).unwrap();
    assert_eq!(format!("{back:?}"), format!("{stats:?}"));
    drop(block);
}

#[test]
fn reports_say_what_they_print() {
    let config = PoolConfig::default()
        .limit(4 << 20)
        .track(true)
        .backtraces(true);
    let pool = Pool::new(&common::host(), config).unwrap();
    let stream = pool.device().stream().unwrap();
    let block = crate::tagged(&pool, &stream, 1 << 20, "batch").unwrap();
    let live = to_value(pool.leak_report()).unwrap();
    assert_eq!(live["blocks"][0]["tag"], "batch");
    assert_eq!(live["blocks"][0]["addr"], block.addr());
    assert!(live["blocks"][0]["backtrace"].is_string());
    let pieces = to_value(pool.snapshot()).unwrap();
    let of_it = |piece: &&Value| piece["addr"] == block.addr();
    let piece = pieces["pieces"].as_array().unwrap().iter().find(of_it);
    assert_eq!(piece.unwrap()["state"], "live");
    let Err(Error::OutOfMemory(why)) = pool.alloc(&stream, 4 << 20) else {
        panic!("it fits");
    };
    assert_eq!(to_value(&*why).unwrap()["holders"][0][0], "batch");
}
