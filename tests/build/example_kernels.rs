//! The committed PTX of the examples mixed_precision and data_parallel is what nvcc makes of their sources.
//!
//! To make it anew, with the toolkit of scripts/cuda-toolkit.sh:
//! `nvcc -ptx -arch=compute_75 -fmad=false -o examples/mixed_precision/kernels.ptx
//! examples/mixed_precision/kernels.cu`, and the other alike.

use std::path::PathBuf;
use std::process::Command;

/// The examples' folders, and their PTX.
const EXAMPLES: [(&str, &str); 2] = [
    (
        "mixed_precision",
        include_str!("../../examples/mixed_precision/kernels.ptx"),
    ),
    (
        "data_parallel",
        include_str!("../../examples/data_parallel/kernels.ptx"),
    ),
];

fn in_package(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// An nvcc that runs, and what it says of its version.
fn nvcc() -> Option<(PathBuf, String)> {
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let fetched = in_package("target/cuda-toolkit/nvidia/cu13");
    let roots = home.into_iter().chain([fetched]);
    let places = roots.map(|root| root.join("bin/nvcc"));
    places.chain([PathBuf::from("nvcc")]).find_map(|nvcc| {
        let said = Command::new(&nvcc).arg("--version").output().ok()?;
        Some((nvcc, String::from_utf8_lossy(&said.stdout).into_owned()))
    })
}

/// The line of the PTX that names its compiler: `// Cuda compilation tools, release 13.0, V13.0.88`.
fn made_by(ptx: &'static str) -> &'static str {
    let line = ptx.lines().find(|line| line.contains("compilation tools"));
    line.unwrap().trim_start_matches("// Cuda ")
}

#[test]
fn the_examples_ptx_is_what_nvcc_makes_of_their_sources() {
    let Some((nvcc, version)) = nvcc() else {
        println!("skipped: no nvcc");
        return;
    };
    for (example, ptx) in EXAMPLES {
        if !version.contains(made_by(ptx)) {
            println!("skipped: the PTX was made by {}", made_by(ptx));
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("kernels.ptx");
        let source = in_package(&format!("examples/{example}/kernels.cu"));
        let done = Command::new(&nvcc)
            .args(["-ptx", "-arch=compute_75", "-fmad=false", "-o"])
            .args([&made, &source])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        assert!(
            std::fs::read_to_string(made).unwrap() == ptx,
            "{example}/kernels.cu has changed: make kernels.ptx anew, as this test's file says"
        );
    }
}

#[test]
fn every_kernel_of_the_example_takes_one_structure_of_the_size_its_caller_gives() {
    let (_, ptx) = EXAMPLES[0];
    // Thirteen words and a float, and six words and three floats, each to a multiple of 8 bytes.
    let pass = ["hidden", "output", "gradient_w1", "gradient_w2"].map(|name| (name, 13 * 8 + 8));
    for (name, bytes) in pass.into_iter().chain([("accumulate", 6 * 8 + 16)]) {
        for format in ["f16", "f32"] {
            let parameter = format!(".b8 {name}_{format}_param_0[{bytes}]");
            assert!(ptx.contains(&parameter), "{parameter}");
        }
    }
    assert!(ptx.contains(".b8 step_param_0[64]"));
}
