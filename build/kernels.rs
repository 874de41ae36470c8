//! Compiles the kernels: `kernels/host/*.cpp` always, `kernels/*.cu` where there is a toolkit.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::{self, Arch, Request};
use crate::discovery::{self, Machine, Toolkit};
use crate::variables::{Settings, Wanted};

/// What became of the device kernels.
pub enum Outcome {
    /// Compiled, with this compiler (`nvcc 13.0.88`) for these architectures.
    Compiled {
        toolkit: String,
        architectures: String,
    },
    /// Left out, and why.
    LeftOut(String),
}

/// The files of a folder with an extension, in order.
fn sources(folder: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == extension));
    files.sort();
    if files.is_empty() {
        return Err(format!("{folder} holds no *.{extension}"));
    }
    Ok(files)
}

/// The per-element code of the kernels, for the host device.
///
/// No fused multiply-add, so that the results are the device's bit for bit; no exceptions, no type
/// information and no C++ library, so that the crate asks for no libstdc++.
pub fn compile_host() -> Result<(), String> {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .opt_level(3)
        .debug(false)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-ffp-contract=off")
        .flag("-Wno-unknown-pragmas") // the device's unrolling, in the shared code
        .include("kernels")
        .files(sources("kernels/host", "cpp")?)
        .try_compile("warpool_host")
        .map_err(|e| {
            format!("the host kernels do not compile with CXX and CXXFLAGS as they are: {e}")
        })
}

/// Compiles the device kernels, or says why not.
pub fn compile_cuda(
    machine: &impl Machine,
    package: &Path,
    arch: &str,
    settings: &Settings,
) -> Result<Outcome, String> {
    let wanted = settings.wanted;
    if wanted == Wanted::Off {
        return Ok(Outcome::LeftOut(
            "WARPOOL_CUDA=off when this was built".into(),
        ));
    }
    let Some(toolkit) = discovery::find(machine, package, arch)? else {
        if wanted == Wanted::Required {
            return Err(
                "WARPOOL_CUDA=required, and no CUDA toolkit was found. Set CUDA_HOME to \
                        one, or run scripts/cuda-toolkit.sh, which fetches one under target/"
                    .into(),
            );
        }
        println!(
            "cargo::warning=no CUDA toolkit found: built for the host device only \
             (set CUDA_HOME, or run scripts/cuda-toolkit.sh)"
        );
        return Ok(Outcome::LeftOut(
            "no CUDA toolkit was found when this was built".into(),
        ));
    };
    compile_with(&toolkit, settings)
}

fn compile_with(toolkit: &Toolkit, settings: &Settings) -> Result<Outcome, String> {
    let request = if settings.request == Request::Native {
        native()?
    } else {
        settings.request.clone()
    };
    let chosen = arch::choose(&request, &supported(toolkit)?)?;
    // SAFETY: a build script's main thread, no other thread runs; `cc` reads the compiler from
    // this variable and has no setter for it.
    unsafe { std::env::set_var("NVCC", &toolkit.nvcc) };
    let mut objects = Vec::new();
    let compression = compression(toolkit)?;
    for source in sources("kernels", "cu")? {
        objects.extend(compile_one(&source, &chosen, compression, settings)?);
    }
    cc::Build::new()
        .objects(objects)
        .try_compile("warpool_cuda")
        .map_err(|e| format!("the kernels' archive cannot be made: {e}"))?;
    // `cc` prints these only for the classic layout, and only when it sees several kernel files.
    println!("cargo::rustc-link-search=native={}", toolkit.lib.display());
    println!("cargo::rustc-link-lib=static=cudart_static");
    for library in ["dl", "rt", "pthread"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    Ok(Outcome::Compiled {
        toolkit: version(toolkit)?,
        architectures: arch::names(&chosen),
    })
}

/// One kernel file, alone: given several, `cc` makes relocatable device code, whose calls nvcc
/// cannot inline across and which needs a device link.
///
/// `debug(false)` matters: with debug information on, `cc` adds `-G`, and kernels run 10 to 100
/// times slower. `-lineinfo` is what profilers and compute-sanitizer need. `-fmad=false` is the
/// device's half of the host kernels' `-ffp-contract=off`: same source, same bits.
///
/// The host half of a kernel file must not need a C++ library either. Since CUDA 13 nvcc's launch
/// stubs keep a kernel handle in a static that only libstdc++ can guard; `__NV_LEGACY_LAUNCH` asks
/// for the stubs of before, without it. It must reach every run of the host compiler, which `-D`
/// alone does not.
fn compile_one(
    source: &Path,
    chosen: &[Arch],
    compression: &str,
    settings: &Settings,
) -> Result<Vec<PathBuf>, String> {
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
        .flag("-Xcompiler=-fno-exceptions,-fno-rtti,-Wno-unknown-pragmas")
        .flag("-Xcompiler=-D__NV_LEGACY_LAUNCH")
        .flag(compression)
        .flag(format!("--threads={}", settings.jobs))
        .flags(arch::flags(chosen))
        .include("kernels")
        .file(source);
    if settings.own_host_compiler {
        build.ccbin(false); // nvcc reads the variable itself
    }
    build
        .try_compile_intermediates()
        .map_err(|e| format!("{} does not compile: {e}", source.display()))
}

/// The architectures of the GPUs in this machine.
fn native() -> Result<Request, String> {
    let asked = run(
        Path::new("nvidia-smi"),
        &["--query-gpu=compute_cap", "--format=csv,noheader"],
    )
    .map_err(|e| format!("CUDA_COMPUTE_CAP=native needs a GPU in this machine: {e}"))?;
    let list = asked.lines().map(str::trim).collect::<Vec<_>>().join(",");
    match arch::parse(&list)? {
        Request::List(list) => Ok(Request::List(list)),
        _ => Err("CUDA_COMPUTE_CAP=native, and nvidia-smi lists no GPU".into()),
    }
}

/// The architectures that the compiler knows (`sm_90` a line).
fn supported(toolkit: &Toolkit) -> Result<Vec<u32>, String> {
    let listed = run(&toolkit.nvcc, &["--list-gpu-code"])?;
    Ok(listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("sm_")?.parse().ok())
        .collect())
}

/// The flag that keeps the fat binary small: the conversions for one architecture are 7 MB without
/// it and 1 MB with. Compilers before 12.8 have only the older, weaker one.
fn compression(toolkit: &Toolkit) -> Result<&'static str, String> {
    let modes = run(&toolkit.nvcc, &["--help"])?.contains("--compress-mode");
    Ok(if modes {
        "--compress-mode=size"
    } else {
        "-Xfatbin=-compress-all"
    })
}

/// `nvcc 13.0.88`.
fn version(toolkit: &Toolkit) -> Result<String, String> {
    let said = run(&toolkit.nvcc, &["--version"])?;
    let number = said.split_whitespace().find_map(|word| {
        word.strip_prefix('V')
            .filter(|n| n.starts_with(char::is_numeric))
    });
    Ok(format!("nvcc {}", number.unwrap_or("of unknown version")))
}

fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|e| format!("{} does not run: {e}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed: {}", program.display(), said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
