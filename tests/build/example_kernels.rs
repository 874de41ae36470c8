//! The committed PTX of the example mixed_precision is what nvcc makes of its source.
//!
//! To make it anew, with the toolkit of scripts/cuda-toolkit.sh:
//! `nvcc -ptx -arch=compute_75 -fmad=false -o examples/mixed_precision/kernels.ptx
//! examples/mixed_precision/kernels.cu`

use std::path::PathBuf;
use std::process::Command;

const PTX: &str = include_str!("../../examples/mixed_precision/kernels.ptx");

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
fn made_by() -> &'static str {
    let line = PTX.lines().find(|line| line.contains("compilation tools"));
    line.unwrap().trim_start_matches("// Cuda ")
}

#[test]
fn the_example_s_ptx_is_what_nvcc_makes_of_its_source() {
    let Some((nvcc, version)) = nvcc() else {
        println!("skipped: no nvcc");
        return;
    };
    if !version.contains(made_by()) {
        println!("skipped: the PTX was made by {}", made_by());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("kernels.ptx");
    let source = in_package("examples/mixed_precision/kernels.cu");
    let done = Command::new(nvcc)
        .args(["-ptx", "-arch=compute_75", "-fmad=false", "-o"])
        .args([&made, &source])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        std::fs::read_to_string(made).unwrap() == PTX,
        "kernels.cu has changed: make kernels.ptx anew, as this test's file says"
    );
}

#[test]
fn every_kernel_of_the_example_takes_one_structure_of_the_size_its_caller_gives() {
    // Thirteen words and a float, and six words and three floats, each to a multiple of 8 bytes.
    let pass = ["hidden", "output", "gradient_w1", "gradient_w2"].map(|name| (name, 13 * 8 + 8));
    for (name, bytes) in pass.into_iter().chain([("accumulate", 6 * 8 + 16)]) {
        for format in ["f16", "f32"] {
            let parameter = format!(".b8 {name}_{format}_param_0[{bytes}]");
            assert!(PTX.contains(&parameter), "{parameter}");
        }
    }
    assert!(PTX.contains(".b8 step_param_0[64]"));
}
