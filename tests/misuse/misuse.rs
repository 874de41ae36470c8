//! Misuse of movable memory that the compiler refuses: an address does not outlive what holds it.
//!
//! Each of the `programs` must fail with the words next to it. Compilers change their words, so the comparison is made
//! with the one that they were written with; with `TRYBUILD=overwrite` the words are written anew.

use std::path::Path;
use std::process::Command;

use warpool::{Device, Pool, PoolConfig};

/// The compiler whose words stand beside the programs.
const WRITTEN_WITH: &str = include_str!("rustc");

#[test]
fn an_address_cannot_outlive_its_guard_nor_a_guard_its_block_or_stream() {
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: not run by cargo");
        return;
    };
    let rustc = Path::new(&cargo).with_file_name("rustc");
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map_or(String::new(), |found| {
        String::from_utf8_lossy(&found.stdout).into_owned()
    });
    let number = |text: &str| text.split(' ').nth(1).map(str::to_owned);
    if number(&version) != number(WRITTEN_WITH) {
        println!("skipped: the words are those of {WRITTEN_WITH}, this is {version}");
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("programs/*.rs");
}

/// A test and not one more program: with a program to run, all that it needs is built, not only checked.
#[test]
fn what_those_programs_must_not_do_compiles_and_runs_where_it_is_done_right() {
    let device = Device::host().expect("a device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let stream = device.stream().expect("a stream");
    let mut weights = pool.alloc_movable::<f32>(&stream, 16).expect("memory");
    let addr = weights.hold(&stream).expect("held").addr();
    weights.resize(&stream, 32).expect("memory");
    assert_ne!(addr, 0);
    let words = pool.alloc_movable::<u64>(&stream, 16).expect("memory");
    let array = words.register_pointers().expect("registered");
    drop(array.hold(&stream).expect("held"));
    array.unregister(&stream).expect("unregistered");
    let dropped = std::thread::spawn(move || drop(weights)).join();
    dropped.expect("no panic");
}
