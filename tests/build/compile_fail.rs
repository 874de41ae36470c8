//! Misuse of movable memory that the compiler refuses: an address does not outlive what holds it.
//!
//! Each program in `tests/build/compile/fail` must fail with the words next to it, and those in
//! `tests/build/compile/pass` must not fail. Compilers change their words, so the comparison is made with
//! the one that they were written with. It builds the crate and all it needs once more, so it is made
//! only under `WARPOOL_COMPILE_TESTS=1`; with `TRYBUILD=overwrite` as well the words are written anew.

#[path = "../common/variables.rs"]
pub(crate) mod variables;

use std::path::Path;
use std::process::Command;

/// The compiler whose words stand in `tests/build/compile/fail`.
const WRITTEN_WITH: &str = include_str!("compile/rustc");

#[test]
fn an_address_cannot_outlive_its_guard_nor_a_guard_its_block_or_stream() {
    if !variables::is_on("WARPOOL_COMPILE_TESTS") {
        println!("skipped: it takes minutes; set WARPOOL_COMPILE_TESTS=1");
        return;
    }
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
    cases.compile_fail("tests/build/compile/fail/*.rs");
    cases.pass("tests/build/compile/pass/*.rs");
}
