//! The build script: compiles and binds the kernels, and supplies the lazy libcuda.
//!
//! Read from the environment:
//!
//! | variable | meaning | unset |
//! |---|---|---|
//! | `WARPOOL_CUDA` | `required`: no toolkit is an error; `off`: no nvcc; `auto` | `auto`: kernels if there is a toolkit, else one warning |
//! | `CUDA_HOME`, `CUDA_PATH`, `CUDA_TOOLKIT_ROOT_DIR` | the toolkit's folder, or one holding PyPI's `nvidia/cuNN` | the next place is tried; see `build/discovery.rs` |
//! | `NVCC` | the compiler; its toolkit is found from it | likewise |
//! | `PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX` | where a compiler may lie | likewise |
//! | `NVCC_CCBIN` | the host compiler that nvcc uses | the C++ compiler of the host kernels |
//! | `CUDA_COMPUTE_CAP` | `90`, `9.0`, `90a`, `100f` for a family with its own instructions, `compute_90` for PTX, a list of them by commas, or `native`; PTX of the highest goes in too, where none is listed | 75, 80, 89, 90, 100, 103, 110, 120 and PTX of 80 and the highest, as far as nvcc knows them |
//! | `LIBCLANG_PATH` | folder of the libclang that bindgen (a feature, on by default) loads; a folder without one has the copy in `kernels/bindings.rs` taken | `target/cuda-toolkit`, then bindgen's own search; without any, the copy |
//! | `CXX`, `CXXFLAGS`, `CC`, `CFLAGS`, `AR` | as the `cc` crate reads them | the system's |
//! | `DOCS_RS` | set: as `WARPOOL_CUDA=off` | |
//! | `CARGO_MANIFEST_DIR`, `OUT_DIR`, `CARGO_CFG_TARGET_OS`, `CARGO_CFG_TARGET_ARCH` | as cargo sets them | an error |
//! | `CARGO_FEATURE_CONVERT`, `CARGO_FEATURE_RUSTACUDA`, `CARGO_MAKEFLAGS` | as cargo sets them | no conversions; no lazy libcuda; one job at a time |
//!
//! A variable set to nothing is not set. A value that cannot be what the variable is for is an
//! error that names it; `CUDA_COMPUTE_CAP`, `NVCC_CCBIN` and the toolkit's places are not read where
//! the kernels are left out on purpose.
//!
//! A change of any of these but `PATH` runs the script again. It cannot see a toolkit appear in a
//! place it searched before: after installing one, `touch build.rs`
//! (`scripts/cuda-toolkit.sh` does).
//!
//! Emitted:
//!
//! | what | meaning |
//! |---|---|
//! | cfg `warpool_cuda` | the device kernels are in |
//! | one warning | `auto` found no toolkit |
//! | env `WARPOOL_BUILD_TOOLKIT` | `nvcc 13.0.88`; empty without kernels |
//! | env `WARPOOL_BUILD_ARCHITECTURES` | `sm_90,compute_90`; empty without kernels |
//! | env `WARPOOL_BUILD_LEFT_OUT` | why there are no kernels; empty when there are |
//! | env `WARPOOL_BUILD_BINDINGS` | `bindgen`, or `copy` for the committed bindings |
//! | `bindings.rs` in `OUT_DIR` | `kernels/warpool.h` as Rust |
//! | archives `warpool_host`, `warpool_cuda`, `warpool_lazy_cuda` | the kernels and the lazy libcuda, inside warpool's own rlib |
//! | metadata `include`, `toolkit`, `architectures`, `nvcc` | for build scripts of direct dependants: the folder of `warpool.h`, the two above, and the compiler, as `DEP_WARPOOL_INCLUDE` and so on; `warpool-build` reads them |
//! | an empty `libcuda.a` on the search path | what `-lcuda` finds; see `build/lazy_cuda.rs` |

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[path = "build/arch.rs"]
mod arch;
#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/discovery.rs"]
mod discovery;
#[path = "build/kernels.rs"]
mod kernels;
#[path = "build/lazy_cuda.rs"]
mod lazy_cuda;
#[path = "build/objects.rs"]
mod objects;
#[path = "build/variables.rs"]
mod variables;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    watch();
    let arch = supported_target()?;
    let package = PathBuf::from(cargo_var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(cargo_var("OUT_DIR")?);

    let settings = variables::Settings::read(&ThisMachine)?;

    let bindings = bindings::write(&package, &out, settings.libclang.as_deref())?;
    kernels::compile_host()?;
    let outcome = kernels::compile_cuda(&ThisMachine, &package, &out, &arch, &settings)?;
    if std::env::var_os("CARGO_FEATURE_RUSTACUDA").is_some() {
        lazy_cuda::build(&out, &arch)?;
    }
    report(&outcome, bindings);
    tell_dependants(&outcome, &package);
    Ok(())
}

/// What makes cargo run this script again.
fn watch() {
    for path in ["build.rs", "build", "kernels"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for name in variables::VARIABLES.iter().chain(&discovery::VARIABLES) {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// The target's architecture, when the crate has a device backend and trampolines for it.
fn supported_target() -> Result<String, String> {
    let os = cargo_var("CARGO_CFG_TARGET_OS")?;
    let arch = cargo_var("CARGO_CFG_TARGET_ARCH")?;
    match (os.as_str(), arch.as_str()) {
        ("linux", "x86_64" | "aarch64") => Ok(arch),
        _ => Err(format!(
            "warpool runs on Linux x86_64 and aarch64; this build is for {os} {arch}"
        )),
    }
}

fn cargo_var(name: &str) -> Result<String, String> {
    variables::text(&ThisMachine, name)?
        .ok_or_else(|| format!("{name} is not set: run the build through cargo"))
}

/// Hands the facts to the crate: `src/driver/build_info.rs` reads them.
fn report(outcome: &kernels::Outcome, bindings: &str) {
    println!("cargo::rustc-check-cfg=cfg(warpool_cuda)");
    let (toolkit, architectures, left_out) = match outcome {
        kernels::Outcome::Compiled {
            toolkit,
            architectures,
            ..
        } => {
            println!("cargo::rustc-cfg=warpool_cuda");
            (toolkit.as_str(), architectures.as_str(), "")
        }
        kernels::Outcome::LeftOut(why) => ("", "", why.as_str()),
    };
    for (name, value) in [
        ("TOOLKIT", toolkit),
        ("ARCHITECTURES", architectures),
        ("LEFT_OUT", left_out),
        ("BINDINGS", bindings),
    ] {
        println!("cargo::rustc-env=WARPOOL_BUILD_{name}={value}");
    }
}

/// What build scripts of packages that depend on this one read, as `DEP_WARPOOL_INCLUDE` and so on.
fn tell_dependants(outcome: &kernels::Outcome, package: &Path) {
    let (toolkit, architectures, nvcc) = match outcome {
        kernels::Outcome::Compiled {
            toolkit,
            architectures,
            nvcc,
        } => (toolkit.as_str(), architectures.as_str(), nvcc.as_path()),
        kernels::Outcome::LeftOut(_) => ("", "", Path::new("")),
    };
    let include = package.join("kernels");
    println!("cargo::metadata=include={}", include.display());
    println!("cargo::metadata=toolkit={toolkit}");
    println!("cargo::metadata=architectures={architectures}");
    println!("cargo::metadata=nvcc={}", nvcc.display());
}

/// The real environment and file system.
struct ThisMachine;

impl discovery::Machine for ThisMachine {
    fn var(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    }

    fn nvcc_top(&self, nvcc: &Path) -> Option<PathBuf> {
        let output = Command::new(nvcc)
            .args(["--dryrun", "-c", "x.cu"])
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines()
            .find_map(|line| line.strip_prefix("#$ TOP="))
            .map(PathBuf::from)
    }
}
