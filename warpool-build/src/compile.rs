//! The two compilers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::{self, Request};
use crate::discovery::{self, Machine};
use crate::variables::{Settings, Wanted};
use crate::write;

/// A compiler of CUDA, and what it is to compile for: nvcc's flags.
pub(crate) struct Toolkit {
    nvcc: PathBuf,
    architectures: Vec<String>,
}

/// The toolkit that warpool itself was built with; `None` if it has no kernels, or there is no toolkit.
pub(crate) fn toolkit(package: &Path) -> Result<Option<Toolkit>, String> {
    for name in ["NVCC", "ARCHITECTURES"] {
        println!("cargo::rerun-if-env-changed=DEP_WARPOOL_{name}");
    }
    let told = |name: &str| std::env::var(format!("DEP_WARPOOL_{name}")).ok();
    match (told("NVCC"), told("ARCHITECTURES")) {
        (Some(nvcc), Some(_)) if nvcc.is_empty() => Ok(None),
        (Some(nvcc), Some(architectures)) => {
            let Request::List(targets) = arch::parse(&architectures)? else {
                return Err(format!(
                    "warpool was built for {architectures:?}, which is no list"
                ));
            };
            Ok(Some(Toolkit {
                nvcc: PathBuf::from(nvcc),
                architectures: arch::flags(&targets),
            }))
        }
        _ => found(package),
    }
}

/// A toolkit of this machine, for a package that does not depend on warpool directly.
fn found(package: &Path) -> Result<Option<Toolkit>, String> {
    for name in crate::variables::VARIABLES
        .iter()
        .chain(&discovery::VARIABLES)
    {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let settings = Settings::read(&ThisMachine)?;
    if settings.wanted == Wanted::Off {
        return Ok(None);
    }
    let target = crate::variable("CARGO_CFG_TARGET_ARCH")?;
    let Some(toolkit) = discovery::find(&ThisMachine, package, &target)? else {
        return match settings.wanted {
            Wanted::Required => {
                Err("WARPOOL_CUDA=required, and no CUDA toolkit was found".to_owned())
            }
            _ => Ok(None),
        };
    };
    if settings.request == Request::Native {
        return Err(
            "CUDA_COMPUTE_CAP=native is read by warpool's own build: depend on warpool directly"
                .into(),
        );
    }
    let listed = run(&toolkit.nvcc, "--list-gpu-code")?;
    let known: Vec<u32> = listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("sm_")?.parse().ok())
        .collect();
    let chosen = arch::choose(&settings.request, &known)?;
    Ok(Some(Toolkit {
        nvcc: toolkit.nvcc,
        architectures: arch::flags(&chosen),
    }))
}

fn run(program: &Path, argument: &str) -> Result<String, String> {
    let output = Command::new(program).arg(argument).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The kernels as loops on the host.
pub(crate) fn host(out: &Path, glue: &str) -> Result<(), String> {
    let source = out.join("own_kernels_host.cpp");
    write(&source, glue)?;
    header(out)?;
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .opt_level(3)
        .debug(false)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-ffp-contract=off")
        .include(out)
        .file(source)
        .try_compile("own_kernels_host")
        .map_err(|error| format!("the kernels do not compile for the host: {error}"))
}

/// The kernels for the GPU. The CUDA runtime that they call is inside warpool.
pub(crate) fn cuda(out: &Path, glue: &str, toolkit: &Toolkit) -> Result<(), String> {
    let source = out.join("own_kernels_cuda.cu");
    write(&source, glue)?;
    // SAFETY: a build script's main thread, and no other runs; `cc` reads the compiler from this variable and
    // has no setter for it.
    unsafe { std::env::set_var("NVCC", &toolkit.nvcc) };
    let mut build = cc::Build::new();
    build
        .cuda(true)
        .cudart("none")
        .cpp_link_stdlib(None)
        .opt_level(3)
        .debug(false)
        .flag("-std=c++17")
        .flag("-lineinfo")
        .flag("-fmad=false")
        .flag("-Xcompiler=-fno-exceptions,-fno-rtti")
        .flag("-Xcompiler=-D__NV_LEGACY_LAUNCH")
        .flags(&toolkit.architectures)
        .include(out)
        .file(source);
    if std::env::var_os("NVCC_CCBIN").is_some_and(|value| !value.is_empty()) {
        build.ccbin(false); // nvcc reads the variable itself
    }
    build
        .try_compile("own_kernels_cuda")
        .map_err(|error| format!("the kernels do not compile for the GPU: {error}"))
}

/// Where the kernels find `warpool_kernel.h`.
fn header(out: &Path) -> Result<(), String> {
    let text = include_str!("../include/warpool_kernel.h");
    write(&out.join("warpool_kernel.h"), text)
}

/// The real environment and file system.
struct ThisMachine;

impl Machine for ThisMachine {
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

    fn nvcc_top(&self, _: &Path) -> Option<PathBuf> {
        None // only the runtime's folder is found by it, and the runtime is warpool's
    }
}
