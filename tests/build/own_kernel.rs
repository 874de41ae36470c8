//! The examples of applications with kernels of their own build and run, from the sources as they are, and the
//! header that such kernels include does what it says.
//!
//! They build the crate once more, so they are made only under `WARPOOL_COMPILE_TESTS=1`.

#[path = "../common/variables.rs"]
mod variables;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use half::{bf16, f16};

/// What the package of an example says when it is run with `arguments`; `None` where it is not to be run.
fn said_by(example: &str, arguments: &[&str]) -> Option<String> {
    if !variables::is_on("WARPOOL_COMPILE_TESTS") {
        println!("skipped: it takes minutes; set WARPOOL_COMPILE_TESTS=1");
        return None;
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(example);
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: not run by cargo");
        return None;
    };
    if !package.is_dir() {
        println!("skipped: the package has no packages inside it");
        return None;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(example);
    let ran = Command::new(cargo)
        // Optimised, the training takes a minute longer to build, and about as long to run; the host's kernels take
        // longer to build too.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env("CXXFLAGS", "-O0")
        .args(["run", "--target-dir"])
        .arg(target)
        .arg("--")
        .args(arguments)
        .current_dir(package)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{errors}");
    Some(said.into_owned())
}

#[test]
fn an_application_with_its_own_kernels_builds_and_runs() {
    let Some(said) = said_by("own-kernel", &[]) else {
        return;
    };
    let refused =
        "refused: classes: 7 elements, and `y` has 100000: every buffer of `classify` has as many";
    assert!(said.contains(refused), "{said}");
    assert!(said.contains("checked: 100000 values, 0 wrong"), "{said}");
    let captured = "captured once and launched three times: right";
    assert!(said.contains(captured), "{said}");
}

#[test]
fn a_network_trains_in_every_way_to_the_same_losses() {
    if let Some(said) = said_by("training", &["--device", "host", "--steps", "20"]) {
        assert!(said.contains("the losses of all agree"), "{said}");
    }
}

/// Reads numbers of 32 bits: floats, of which it writes both halves; and writes what the two halves of each as
/// bits are as floats.
const HALVES: &str = r#"
#include "warpool_kernel.h"
#include <stdio.h>
int main() {
    uint32_t in;
    while (fread(&in, 4, 1, stdin) == 1) {
        const float value = wp_float(in);
        f16 half; bf16 upper;
        half.bits = upper.bits = (uint16_t)in;
        const uint32_t out[4] = {f16(value).bits, bf16(value).bits, wp_bits(half), wp_bits(upper)};
        fwrite(out, 4, 4, stdout);
    }
}
"#;

/// Every pattern of 16 bits, and floats at and beside every boundary between two halves.
fn patterns() -> Vec<u32> {
    let mut all: Vec<u32> = (0..=0xffff).collect();
    for bits in 0..=0xffffu16 {
        for middle in [
            f16::from_bits(bits).to_f32().to_bits(),
            u32::from(bits) << 16,
            u32::from(bits) << 16 | 0x8000,
        ] {
            all.extend([middle.wrapping_sub(1), middle, middle.wrapping_add(1)]);
        }
        // Between an f16 and the next: half a unit in its last place above it.
        let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
        let between = ((f64::from(f16::from_bits(bits).to_f32()) + f64::from(next)) / 2.0) as f32;
        let between = between.to_bits();
        all.extend([between.wrapping_sub(1), between, between.wrapping_add(1)]);
    }
    all
}

/// As bits, every NaN the same.
fn ordered(bits: u32, is_nan: bool) -> u32 {
    if is_nan { u32::MAX } else { bits }
}

#[test]
fn the_halves_of_the_kernels_header_are_those_of_the_half_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = root.join("warpool-build/include");
    if !header.is_dir() {
        println!("skipped: the package has no packages inside it");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (
        folder.path().join("halves.cpp"),
        folder.path().join("halves"),
    );
    std::fs::write(&source, HALVES).expect("written");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let compiled = Command::new(compiler)
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([&header, &source])
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("a compiler").success());
    let patterns = patterns();
    let mut running = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let bytes: Vec<u8> = patterns
        .iter()
        .flat_map(|bits| bits.to_le_bytes())
        .collect();
    let mut to = running.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || to.write_all(&bytes).expect("written"));
    let found = running.wait_with_output().expect("it ends").stdout;
    writer.join().expect("no panic");
    assert_eq!(found.len(), 16 * patterns.len());
    for (found, &bits) in found.chunks(16).zip(&patterns) {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| found[4 * at + byte]));
        let value = f32::from_bits(bits);
        let nan = value.is_nan();
        let (half, upper) = (f16::from_bits(bits as u16), bf16::from_bits(bits as u16));
        let is_nan16 = |word: u32| f16::from_bits(word as u16).is_nan();
        let is_nan_upper = |word: u32| bf16::from_bits(word as u16).is_nan();
        let is_nan32 = |word: u32| f32::from_bits(word).is_nan();
        let expected = [
            ordered(u32::from(f16::from_f32(value).to_bits()), nan),
            ordered(u32::from(bf16::from_f32(value).to_bits()), nan),
            ordered(half.to_f32().to_bits(), half.is_nan()),
            ordered(upper.to_f32().to_bits(), upper.is_nan()),
        ];
        let seen = [
            ordered(word(0), is_nan16(word(0))),
            ordered(word(1), is_nan_upper(word(1))),
            ordered(word(2), is_nan32(word(2))),
            ordered(word(3), is_nan32(word(3))),
        ];
        assert_eq!(seen, expected, "{bits:#010x}");
    }
}
