//! Where the CUDA toolkit is.
//!
//! Pure over [`Machine`], an abstract view of the environment and the file system, so that
//! `tests/build/toolkit_discovery.rs` includes this very file and plays every layout.
//!
//! Places, in order; the first that holds a whole toolkit is taken:
//!
//! 1. `CUDA_HOME`, `CUDA_PATH`, `CUDA_TOOLKIT_ROOT_DIR`: a toolkit's folder, or a folder that
//!    PyPI wheels were installed into (`nvidia/cuNN` under it).
//! 2. `NVCC`: a compiler.
//! 3. `target/cuda-toolkit`, which `scripts/cuda-toolkit.sh` fills.
//! 4. `nvcc` on `PATH`, then `/usr/local/cuda`, `/opt/cuda`.
//! 5. The wheels of the active Python environment (`VIRTUAL_ENV`, `CONDA_PREFIX`).
//!
//! A variable that names no toolkit, or a relative path, is an error, never passed over: it was set on purpose. A
//! variable set to nothing is not set. An incomplete toolkit in places 3 to 5 (a container with the
//! runtime but no compiler, say) is passed over, and so is a folder whose name is no UTF-8.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::variables;

/// What discovery may ask of the machine it runs on.
pub trait Machine {
    /// An environment variable's value.
    fn var(&self, name: &str) -> Option<OsString>;
    /// Whether a regular file is there.
    fn is_file(&self, path: &Path) -> bool;
    /// Names of what a folder holds, sorted; empty when there is no such folder.
    fn list(&self, folder: &Path) -> Vec<String>;
    /// The path with symbolic links resolved; the path itself when that fails.
    fn resolve(&self, path: &Path) -> PathBuf;
    /// The toolkit folder that this nvcc says it belongs to (`TOP` of a dry run).
    fn nvcc_top(&self, nvcc: &Path) -> Option<PathBuf>;
}

/// A toolkit with all that the kernels' build needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// The compiler.
    pub nvcc: PathBuf,
    /// The folder that holds `libcudart_static.a`.
    pub lib: PathBuf,
    /// What led here: a variable's name or a folder.
    pub found_by: String,
}

const ROOT_VARIABLES: [&str; 3] = ["CUDA_HOME", "CUDA_PATH", "CUDA_TOOLKIT_ROOT_DIR"];

/// Every variable read here, for the build script's `rerun-if-env-changed`.
pub const VARIABLES: [&str; 6] = [
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_TOOLKIT_ROOT_DIR",
    "NVCC",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];

/// Finds the toolkit for a target architecture as Rust names it (`x86_64`, `aarch64`).
///
/// `Ok(None)` when the machine has none.
///
/// # Errors
/// A variable is set and what it names is no toolkit; the text says which, why and what to do.
pub fn find(machine: &impl Machine, package: &Path, arch: &str) -> Result<Option<Toolkit>, String> {
    for name in ROOT_VARIABLES {
        if let Some(root) = variables::text(machine, name)? {
            return absolute(&root)
                .and_then(|path| in_root(machine, path, arch, name))
                .map(Some)
                .map_err(|why| refusal(name, &root, &why));
        }
    }
    if let Some(nvcc) = variables::text(machine, "NVCC")? {
        return absolute(&nvcc)
            .and_then(|path| of_nvcc(machine, path, arch, "NVCC"))
            .map(Some)
            .map_err(|why| refusal("NVCC", &nvcc, &why));
    }
    Ok(in_usual_places(machine, package, arch))
}

/// A build script runs in its own package's folder, which is not where the variable was set.
fn absolute(value: &str) -> Result<&Path, String> {
    let path = Path::new(value);
    let wrong =
        "it is relative, and would be looked for in the folder of the package that is built";
    path.is_absolute().then_some(path).ok_or(wrong.into())
}

fn refusal(name: &str, value: &str, why: &str) -> String {
    format!(
        "{name}={value} names no CUDA toolkit: {why}. Set it right, unset it to have the usual \
         places searched, or set WARPOOL_CUDA=off to build without kernels"
    )
}

fn in_usual_places(machine: &impl Machine, package: &Path, arch: &str) -> Option<Toolkit> {
    let fetched = package.join("target/cuda-toolkit");
    if let Ok(toolkit) = in_root(machine, &fetched, arch, "target/cuda-toolkit") {
        return Some(toolkit);
    }
    let path = machine.var("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
    for nvcc in on_path.filter(|nvcc| nvcc.is_absolute() && machine.is_file(nvcc)) {
        if let Ok(toolkit) = of_nvcc(machine, &nvcc, arch, "PATH") {
            return Some(toolkit);
        }
    }
    for root in ["/usr/local/cuda", "/opt/cuda"] {
        if let Ok(toolkit) = in_root(machine, Path::new(root), arch, root) {
            return Some(toolkit);
        }
    }
    ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().find_map(|name| {
        let environment = PathBuf::from(variables::text(machine, name).ok()??);
        in_root(machine, &environment, arch, name)
            .ok()
            .or_else(|| in_site_packages(machine, &environment, arch, name))
    })
}

/// The wheels of a Python environment, newest Python first.
fn in_site_packages(
    machine: &impl Machine,
    environment: &Path,
    arch: &str,
    found_by: &str,
) -> Option<Toolkit> {
    let lib = environment.join("lib");
    let mut pythons = machine.list(&lib);
    pythons.retain(|name| name.starts_with("python"));
    pythons.iter().rev().find_map(|python| {
        in_root(
            machine,
            &lib.join(python).join("site-packages"),
            arch,
            found_by,
        )
        .ok()
    })
}

/// The toolkit in a folder, or in the newest `nvidia/cuNN` under it, where wheels put it.
fn in_root(
    machine: &impl Machine,
    root: &Path,
    arch: &str,
    found_by: &str,
) -> Result<Toolkit, String> {
    let classic = root.join("bin/nvcc");
    if machine.is_file(&classic) {
        return of_nvcc(machine, &classic, arch, found_by);
    }
    let wheels = root.join("nvidia");
    let newest = machine
        .list(&wheels)
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("cu")?.parse::<u32>().ok()?, name)))
        .max();
    if let Some((_, name)) = newest {
        let nvcc = wheels.join(name).join("bin/nvcc");
        if machine.is_file(&nvcc) {
            return of_nvcc(machine, &nvcc, arch, found_by);
        }
    }
    Err("it has no bin/nvcc, nor nvidia/cuNN/bin/nvcc as PyPI wheels lay it out".into())
}

/// The toolkit that a compiler belongs to: the folder above its `bin`, through symbolic links, or
/// where the compiler itself says (a wrapper script lies anywhere).
fn of_nvcc(
    machine: &impl Machine,
    nvcc: &Path,
    arch: &str,
    found_by: &str,
) -> Result<Toolkit, String> {
    if !machine.is_file(nvcc) {
        return Err("there is no such file".into());
    }
    let above_bin = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_path_buf);
    let lib = above_bin(nvcc)
        .and_then(|root| runtime_folder(machine, &root, arch))
        .or_else(|| runtime_folder(machine, &above_bin(&machine.resolve(nvcc))?, arch))
        .or_else(|| runtime_folder(machine, &machine.nvcc_top(nvcc)?, arch));
    match lib {
        Some(lib) => Ok(Toolkit {
            nvcc: nvcc.to_path_buf(),
            lib,
            found_by: found_by.into(),
        }),
        None => Err(format!(
            "no libcudart_static.a beside {} (looked in lib64, lib, targets/*/lib and \
             lib/*-linux-gnu of its toolkit)",
            nvcc.display()
        )),
    }
}

/// Where a toolkit keeps its static runtime: `lib64` (classic), `lib` (wheels), `targets/…/lib`
/// (conda, cross compilers; `sbsa` is NVIDIA's name for an arm64 server), or Debian's multiarch.
fn runtime_folder(machine: &impl Machine, root: &Path, arch: &str) -> Option<PathBuf> {
    let sbsa = if arch == "aarch64" { "sbsa" } else { arch };
    [
        format!("targets/{arch}-linux/lib"),
        format!("targets/{sbsa}-linux/lib"),
        "lib64".into(),
        "lib".into(),
        format!("lib/{arch}-linux-gnu"),
    ]
    .iter()
    .map(|folder| root.join(folder))
    .find(|folder| machine.is_file(&folder.join("libcudart_static.a")))
}

/// The oldest toolkit that compiles the kernels: the first with conversions of 8-bit formats for
/// compute capability 8.9.
pub const OLDEST: (u32, u32) = (12, 1);

/// The version that `nvcc --version` tells, as `13.0.88`.
///
/// # Errors
/// It tells none, or one before [`OLDEST`].
pub fn version_of(said: &str) -> Result<&str, String> {
    let number = said
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('V'))
        .find(|number| number.starts_with(|c: char| c.is_ascii_digit()))
        .ok_or_else(|| format!("`--version` tells no version: {}", said.trim()))?;
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < OLDEST {
        let (major, minor) = OLDEST;
        return Err(format!(
            "CUDA {number} is too old for the kernels, which need {major}.{minor} or later: point \
             CUDA_HOME to a newer toolkit, or run scripts/cuda-toolkit.sh, which fetches one"
        ));
    }
    Ok(number)
}
