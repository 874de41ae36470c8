//! The fuzz targets over their kept corpus, and over mutations of it from a fixed seed: the quick
//! form of `scripts/fuzz.sh`. `WARPOOL_FUZZ_CASES` sets the number of mutations a target.

#[path = "../../build/arch.rs"]
mod arch;
#[path = "../../src/bin/warpool/cap.rs"]
mod cap;
#[path = "../common/mod.rs"]
mod common;
#[path = "../state_machine/model.rs"]
mod model;
#[allow(dead_code, reason = "shared with the command line")]
#[path = "../../src/bin/warpool/record.rs"]
mod record;
mod targets;
#[path = "../state_machine/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use warpool::device::sim::Rng;

/// Physical bytes of the devices made here.
const CAPACITY: u64 = 48 << 20;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    let folder = Path::new(&root).join("tests/fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|_| panic!("{}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// A few changes: bytes set, flipped, taken out, doubled, or the tail of another input.
fn mutated(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let pick = |rng: &mut Rng| corpus[rng.below(corpus.len() as u64) as usize].clone();
    let mut data = pick(rng);
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(data.len() as u64 + 1) as usize;
        match rng.below(5) {
            0 => data.insert(at, rng.below(256) as u8),
            1 if at < data.len() => data[at] ^= 1 << rng.below(8),
            2 if at < data.len() => {
                let to = (at + 1 + rng.below(8) as usize).min(data.len());
                data.drain(at..to);
            }
            3 if at < data.len() => {
                let to = (at + 1 + rng.below(16) as usize).min(data.len());
                let part = data[at..to].to_vec();
                data.splice(at..at, part);
            }
            _ => {
                let other = pick(rng);
                data.truncate(at);
                data.extend(&other[rng.below(other.len() as u64 + 1) as usize..]);
            }
        }
    }
    data
}

fn run(name: &str, target: fn(&[u8]), data: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        let path = std::env::temp_dir().join(format!("warpool-fuzz-{name}"));
        std::fs::write(&path, data).unwrap();
        panic!(
            "{name} fails over {} bytes, kept in {}",
            data.len(),
            path.display()
        );
    }
}

fn fuzz(name: &str, quick: u64) {
    let (_, target) = targets::ALL
        .iter()
        .find(|(other, _)| *other == name)
        .unwrap();
    let corpus = corpus(name);
    for data in &corpus {
        run(name, *target, data);
    }
    let cases = common::variables::number("WARPOOL_FUZZ_CASES", quick);
    let mut rng = Rng::new(6);
    for _ in 0..cases {
        run(name, *target, &mutated(&mut rng, &corpus));
    }
    println!("{name}: {} kept inputs and {cases} mutations", corpus.len());
}

#[test]
fn any_bytes_are_a_trace_or_an_error_with_a_line() {
    fuzz("trace", 20_000);
}

#[test]
fn any_text_is_a_size_or_an_error() {
    fuzz("sizes", 20_000);
}

#[test]
fn any_text_is_a_record_or_an_error() {
    fuzz("records", 20_000);
}

#[test]
fn any_layout_has_a_sound_plan_or_none() {
    fuzz("plan", 4_000);
}

#[test]
fn any_stream_of_operations_leaves_the_pool_whole() {
    fuzz("pool", 400);
}
