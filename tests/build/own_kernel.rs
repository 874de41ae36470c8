//! The example of an application with kernels of its own builds and runs, from the sources as they are.
//!
//! It builds the crate once more, so it is made only under `WARPOOL_COMPILE_TESTS=1`.

use std::path::Path;
use std::process::Command;

use crate::compile_fail::variables;

#[test]
fn an_application_with_its_own_kernels_builds_and_runs() {
    if !variables::is_on("WARPOOL_COMPILE_TESTS") {
        println!("skipped: it takes minutes; set WARPOOL_COMPILE_TESTS=1");
        return;
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/own-kernel");
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: not run by cargo");
        return;
    };
    if !package.is_dir() {
        println!("skipped: the package has no packages inside it");
        return;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-kernel");
    let ran = Command::new(cargo)
        .args(["run", "--target-dir"])
        .arg(target)
        .current_dir(package)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{errors}");
    let refused =
        "refused: classes: 7 elements, and `y` has 100000: every buffer of `classify` has as many";
    assert!(said.contains(refused), "{said}");
    assert!(said.contains("checked: 100000 values, 0 wrong"), "{said}");
}
