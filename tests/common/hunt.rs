//! Running generated programs over many seeds, and making what fails small.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use warpool::device::sim::{Rng, seeds};

/// Seeds in the long form: `WARPOOL_SIM_CASES`, else `quick`.
pub fn cases(quick: u64) -> u64 {
    super::variables::number("WARPOOL_SIM_CASES", quick)
}

/// A panic is a failure like any other.
fn outcome(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        Err(format!("panic: {}", words.unwrap_or_default()))
    })
}

/// Leaves out of a failing program whatever it fails without: halves first, then single steps.
pub fn shrink<Op: Clone>(mut program: Vec<Op>, fails: impl Fn(&[Op]) -> bool) -> Vec<Op> {
    let mut chunk = program.len().div_ceil(2).max(1);
    loop {
        let (mut at, mut shorter) = (0, false);
        while at < program.len() {
            let mut without = program.clone();
            without.drain(at..(at + chunk).min(program.len()));
            if fails(&without) {
                program = without;
                shorter = true;
            } else {
                at += chunk;
            }
        }
        if chunk == 1 && !shorter {
            return program;
        }
        chunk = (chunk / 2).max(1);
    }
}

/// Makes and runs a program for each of `count` seeds; fails with the seed, the shrunk program and
/// the command that runs it again. Gives the number of programs run.
pub fn hunt<Op: Clone + Debug>(
    test: &str,
    count: u64,
    make: impl Fn(&mut Rng) -> Vec<Op>,
    run: impl Fn(u64, &[Op]) -> Result<(), String>,
) -> u64 {
    let mut ran = 0;
    for seed in seeds(count).unwrap() {
        // The schedule draws from the seed itself: the program from another stream of numbers.
        let program = make(&mut Rng::new(seed ^ 0x5EED_0FA9_7060));
        if let Err(why) = outcome(|| run(seed, &program)) {
            let small = shrink(program, |ops| outcome(|| run(seed, ops)).is_err());
            let why = outcome(|| run(seed, &small)).err().unwrap_or(why);
            panic!(
                "seed {seed}: {why}\nprogram: {small:#?}\nrun again with: \
                 WARPOOL_SIM_SEED={seed} cargo test --features sanitize {test}"
            );
        }
        ran += 1;
    }
    ran
}
