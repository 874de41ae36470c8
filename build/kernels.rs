//! Compiles the kernels: `kernels/host/*.cpp` always, `kernels/*.cu` where there is a toolkit; of either
//! those in `convert/` with the feature `convert`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::{self, Request, Targets};
use crate::discovery::{self, Machine, Toolkit};
use crate::objects;
use crate::variables::{Settings, Wanted};

/// What became of the device kernels.
pub enum Outcome {
    /// Compiled, with this compiler (`nvcc 13.0.88`) for these architectures.
    Compiled {
        toolkit: String,
        architectures: String,
        nvcc: PathBuf,
    },
    /// Left out, and why.
    LeftOut(String),
}

/// The files of a folder with an extension, in order, and with the feature those of its `convert`.
fn sources(folder: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut folders = vec![PathBuf::from(folder)];
    if std::env::var_os("CARGO_FEATURE_CONVERT").is_some() {
        folders.push(Path::new(folder).join("convert"));
    }
    let mut files = Vec::new();
    for folder in folders {
        let entries =
            std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        found.retain(|path| path.extension().is_some_and(|e| e == extension));
        if found.is_empty() {
            return Err(format!("{} holds no *.{extension}", folder.display()));
        }
        files.append(&mut found);
    }
    files.sort();
    Ok(files)
}

/// The per-element code of the kernels, for the host device.
///
/// No fused multiply-add, so that the results are the device's bit for bit; no exceptions, no type
/// information and no C++ library, so that the crate asks for no libstdc++.
pub fn compile_host() -> Result<(), String> {
    let mut build = cc::Build::new();
    build
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
    out: &Path,
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
            "no CUDA toolkit was found when this was built: set CUDA_HOME or have nvcc on PATH, and \
             build again"
                .into(),
        ));
    };
    compile_with(&toolkit, settings, out)
}

fn compile_with(toolkit: &Toolkit, settings: &Settings, out: &Path) -> Result<Outcome, String> {
    let request = if settings.request == Request::Native {
        native()?
    } else {
        settings.request.clone()
    };
    let version = version(toolkit)?;
    let chosen = arch::choose(&request, &supported(toolkit)?)?;
    // SAFETY: a build script's main thread, no other thread runs; `cc` reads the compiler from
    // this variable and has no setter for it.
    unsafe { std::env::set_var("NVCC", &toolkit.nvcc) };
    let flags = flags(&chosen);
    let kept = out.join("objects");
    std::fs::create_dir_all(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
    let command = command(toolkit, &version, &flags);
    let (mut objects, mut left) = (Vec::new(), Vec::new());
    for source in sources("kernels", "cu")? {
        let object = objects::place(&kept, Path::new("kernels"), &source, &command)?;
        if !object.is_file() {
            left.push((source, object.clone()));
        }
        objects.push(object);
    }
    // Those that include the most take longest: first, so that none is left alone at the end.
    let included =
        |file: &Path| objects::sources_of(Path::new("kernels"), file).map_or(0, |s| s.len());
    left.sort_by_cached_key(|(source, _)| std::cmp::Reverse(included(source)));
    let most = chosen.code.len() + chosen.ptx.len();
    objects::in_parallel(left, most, |(source, object), jobs| {
        compile_one(&source, &flags, jobs, settings, &object)?;
        objects::forget_others(&object);
        Ok(())
    })?;
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
        toolkit: version,
        architectures: arch::names(&chosen),
        nvcc: toolkit.nvcc.clone(),
    })
}

/// All that an object depends on beside its sources.
fn command(toolkit: &Toolkit, version: &str, flags: &[String]) -> String {
    let variables = [
        "CXX",
        "CXXFLAGS",
        "TARGET",
        "NVCC_CCBIN",
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
    ];
    let of = |name: &str| {
        let value = std::env::var_os(name).unwrap_or_default();
        format!("{name}={}", value.to_string_lossy())
    };
    let variables: Vec<String> = variables.iter().map(|name| of(name)).collect();
    let nvcc = toolkit.nvcc.display();
    format!(
        "{nvcc} {version} {} {}",
        flags.join(" "),
        variables.join(" ")
    )
}

/// One kernel file, alone: given several, `cc` makes relocatable device code, whose calls nvcc
/// cannot inline across and which needs a device link.
///
/// `debug(false)` matters: with debug information on, `cc` adds `-G`, and kernels run 10 to 100
/// times slower. `-lineinfo` is what profilers and compute-sanitizer need. `-fmad=false` is the
/// device's half of the host kernels' `-ffp-contract=off`: same source, same bits. The level is for
/// the host half, which launches and no more; the device's is the highest unless told otherwise.
///
/// The host half of a kernel file must not need a C++ library either. Since CUDA 13 nvcc's launch
/// stubs keep a kernel handle in a static that only libstdc++ can guard; `__NV_LEGACY_LAUNCH` asks
/// for the stubs of before, without it. It must reach every run of the host compiler, which `-D`
/// alone does not.
fn compile_one(
    source: &Path,
    flags: &[String],
    jobs: usize,
    settings: &Settings,
    object: &Path,
) -> Result<(), String> {
    let mut build = cc::Build::new();
    build
        .cuda(true)
        .cudart("none")
        .cpp_link_stdlib(None)
        .opt_level(1)
        .debug(false)
        .flags(flags)
        .flag(format!("--threads={jobs}"))
        .include("kernels")
        .file(source);
    if settings.own_host_compiler {
        build.ccbin(false); // nvcc reads the variable itself
    }
    let refused = |e: &dyn std::fmt::Display| format!("{} does not compile: {e}", source.display());
    let made = build.try_compile_intermediates().map_err(|e| refused(&e))?;
    // By a name that is not there before the object is whole.
    let whole = made
        .first()
        .ok_or_else(|| refused(&"nvcc made no object"))?;
    std::fs::rename(whole, object).map_err(|e| refused(&e))
}

/// nvcc's flags, for every file.
///
/// The fat binary is compressed by the compiler's usual method: the conversions for one architecture are
/// 7 MB without, 1.5 MB with, and 1 MB by `--compress-mode=size`, which takes a quarter of the whole build.
fn flags(chosen: &Targets) -> Vec<String> {
    let fixed = [
        "-std=c++17",
        "-lineinfo",
        "-fmad=false",
        "-Xcompiler=-fno-exceptions,-fno-rtti,-Wno-unknown-pragmas",
        "-Xcompiler=-D__NV_LEGACY_LAUNCH",
        "-Xfatbin=-compress-all",
    ];
    let fixed = fixed.into_iter().map(str::to_owned);
    fixed.chain(arch::flags(chosen)).collect()
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

/// `nvcc 13.0.88`, if it is new enough.
fn version(toolkit: &Toolkit) -> Result<String, String> {
    let said = run(&toolkit.nvcc, &["--version"])?;
    let version =
        discovery::version_of(&said).map_err(|e| format!("{}: {e}", toolkit.nvcc.display()))?;
    Ok(format!("nvcc {version}"))
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
