//! What an application that depends on warpool gets: a program that links and starts without a
//! driver, and whose rustacuda calls reach the driver unharmed where there is one.
//!
//! These build a small application with cargo and a stand-in driver with the C compiler, so they
//! are left out where either is missing (on a GPU machine that runs a bundle, for one).
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The cargo that runs the tests, or `None` with a printed line.
fn cargo() -> Option<OsString> {
    let cargo = std::env::var_os("CARGO");
    if cargo.is_none() {
        println!("skipped: not run by cargo");
    }
    cargo
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?} failed: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder of this name among cargo's temporary ones, empty but for what a build left there.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("downstream")
        .join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The application, built once, in a package of its own that takes warpool by path.
fn application(cargo: &OsString) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let package = folder("package");
        let manifest = format!(
            "[package]\nname = \"downstream\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
             [[bin]]\nname = \"downstream\"\npath = \"main.rs\"\n\
             [dependencies]\nrustacuda = \"0.1\"\n\
             warpool = {{ path = {PACKAGE:?}, default-features = false, features = [\"rustacuda\"] }}\n\
             [workspace]\n"
        );
        std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(package.join("main.rs"), include_str!("downstream/app.rs")).unwrap();
        std::fs::write(package.join("build.rs"), include_str!("downstream/build.rs")).unwrap();
        // The same versions as warpool's own, all of them already on this machine.
        std::fs::copy(Path::new(PACKAGE).join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
        let target = folder("target");
        run(Command::new(cargo)
            .args(["build", "--offline", "--target-dir"])
            .arg(&target)
            .current_dir(&package)
            // No conversion is run.
            .env("CXXFLAGS", "-O0")
            .env("WARPOOL_CUDA", "off"));
        target.join("debug/downstream")
    })
}

/// Runs the application with `libcuda.so.1` looked for in `drivers` first.
fn answers(application: &Path, drivers: &Path) -> Vec<String> {
    let output = run(Command::new(application).env("LD_LIBRARY_PATH", drivers));
    text(&output).lines().map(str::to_owned).collect()
}

#[test]
fn an_application_links_and_names_neither_libcuda_nor_libcudart() {
    let Some(cargo) = cargo() else { return };
    let needed = text(&run(Command::new("ldd").arg(application(&cargo))));
    assert!(needed.contains("libc.so"), "{needed}");
    assert!(!needed.contains("libcuda"), "{needed}");
}

#[test]
fn without_a_driver_every_call_answers_no_device_in_words() {
    let Some(cargo) = cargo() else { return };
    // A file that is no library stands before any real driver, and cannot be opened.
    let drivers = folder("no-driver");
    std::fs::write(drivers.join("libcuda.so.1"), "").unwrap();
    let said = answers(application(&cargo), &drivers);
    let words = "no CUDA driver on this machine (libcuda.so.1 cannot be opened)";
    assert_eq!(said[0], format!("init: NoDevice: {words:?}"));
    assert_eq!(said[1], "launch: 100, floats: 100, missing: 100");
    assert_eq!(said[2], said[1]);
}

#[test]
fn with_a_driver_every_argument_arrives_and_a_missing_function_is_not_found() {
    let Some(cargo) = cargo() else { return };
    let drivers = folder("driver");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    compile_driver(&compiler, &drivers);
    let said = answers(application(&cargo), &drivers);
    assert_eq!(said[0], "init: Ok");
    assert_eq!(said[1..], [every_argument(), every_argument()]);
}

/// The stand-in driver, as the `libcuda.so.1` of a folder.
fn compile_driver(compiler: &OsStr, folder: &Path) {
    run(Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-fno-omit-frame-pointer", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(Path::new(PACKAGE).join("tests/build/downstream/driver.c")));
}

/// What the stand-in driver answers when nothing was lost: each argument is its own position, and
/// counts that many times.
fn every_argument() -> String {
    let squares = |last: u32| (1..=last).map(|n| n * n).sum::<u32>();
    format!(
        "launch: {}, floats: {}, missing: 500",
        squares(11),
        squares(10)
    )
}

#[test]
fn the_aarch64_trampolines_hand_on_every_argument_too() {
    let compiler = OsStr::new("aarch64-linux-gnu-gcc");
    let emulator = OsStr::new("qemu-aarch64");
    let there = |program: &OsStr| Command::new(program).arg("--version").output().is_ok();
    if !there(compiler) || !there(emulator) {
        println!("skipped: needs aarch64-linux-gnu-gcc and qemu-aarch64");
        return;
    }
    let drivers = folder("driver-aarch64");
    compile_driver(compiler, &drivers);
    let caller = drivers.join("caller");
    let package = Path::new(PACKAGE);
    run(Command::new(compiler)
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&caller)
        .arg("-I")
        .arg(package.join("build/lazy"))
        .arg(package.join("tests/build/downstream/caller.c"))
        .arg(package.join("build/lazy/resolve.c"))
        .arg(package.join("build/lazy/trampolines_aarch64.S")));
    let said = run(Command::new(emulator)
        .args(["-L", "/usr/aarch64-linux-gnu", "-E"])
        .arg(format!("LD_LIBRARY_PATH={}", drivers.display()))
        .arg(&caller));
    let expected = every_argument();
    assert_eq!(text(&said), format!("init: 0\n{expected}\n{expected}\n"));
}

#[test]
fn there_is_a_trampoline_for_every_function_that_cuda_driver_sys_declares() {
    let Some(cargo) = cargo() else { return };
    // For this platform only. Not `--offline`: what other packages of the workspace need may not be on this machine yet.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = run(Command::new(cargo)
        .args(["metadata", "--format-version=1", "--filter-platform"])
        .arg(&platform)
        .current_dir(PACKAGE));
    let metadata = text(&metadata);
    let manifest = metadata
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next())
        .find(|path| path.contains("/cuda-driver-sys-"))
        .expect("rustacuda depends on cuda-driver-sys");
    let source = Path::new(manifest).with_file_name("src").join("cuda.rs");
    let declared: BTreeSet<String> = names(&std::fs::read_to_string(source).unwrap(), "pub fn cu");
    let listed = names(include_str!("../../build/lazy/symbols.inc"), "SYMBOL(cu");
    assert!(
        declared.len() > 200,
        "only {} functions found",
        declared.len()
    );
    assert_eq!(listed, declared);
}

/// The identifiers that follow `before` (which ends in their first letters, `cu`).
fn names(text: &str, before: &str) -> BTreeSet<String> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
        })
        .map(|name| format!("cu{name}"))
        .collect()
}
