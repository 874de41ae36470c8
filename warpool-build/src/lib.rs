//! Compiles an application's own kernels, for the GPU and for warpool's host device.
//!
//! An application calls [`kernels`] in its build script, and includes the Rust file that it writes; the
//! crate's README shows all of it, and `examples/own-kernel` of warpool is a whole application.
//!
//! # What the kernels owe
//!
//! The functions are safe to call because a kernel touches element `i` of each of its buffers and no other:
//! neither compiler checks that.
//!
//! # What is built
//!
//! | | where | when |
//! |---|---|---|
//! | the kernels as C++, a loop over the elements | archive `own_kernels_host` | always |
//! | the kernels as CUDA, a thread for each element | archive `own_kernels_cuda` | warpool's own kernels were built for a GPU |
//! | a safe Rust function for each kernel | `kernels.rs` in `OUT_DIR` | always |
//!
//! # What is read
//!
//! | variable | meaning |
//! |---|---|
//! | `DEP_WARPOOL_NVCC`, `DEP_WARPOOL_ARCHITECTURES` | what warpool was built with, which cargo hands to packages that depend on it directly; empty where it has no kernels |
//! | `WARPOOL_CUDA`, `CUDA_HOME`, `CUDA_PATH`, `CUDA_TOOLKIT_ROOT_DIR`, `NVCC`, `PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `CUDA_COMPUTE_CAP`, `NVCC_CCBIN` | as warpool's build reads them, in a package that does not depend on warpool directly |
//! | `CXX`, `CXXFLAGS` and the others that the `cc` crate reads | the host compiler |

// Shared with warpool's own build script, which uses more of them.
#[allow(dead_code, missing_docs)]
mod arch;
mod compile;
#[allow(dead_code, missing_docs)]
mod discovery;
mod glue;
mod signature;
#[allow(dead_code, missing_docs)]
mod variables;

use std::path::{Path, PathBuf};

/// Compiles files of kernels and writes `kernels.rs` into `OUT_DIR`.
///
/// To be called once, by a build script. What goes wrong is an error of the build: it is printed, and the
/// process ends.
pub fn kernels(files: &[&str]) {
    if let Err(why) = build(files) {
        println!("cargo::error={}", why.replace('\n', " "));
        std::process::exit(1);
    }
}

fn build(files: &[&str]) -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let mut all = Vec::new();
    let mut glue = String::new();
    for file in files {
        let path = package.join(file);
        for source in sources(path.clone()) {
            println!("cargo::rerun-if-changed={}", source.display());
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        all.extend(signature::find(file, &text)?);
        glue.push_str(&include(&path));
    }
    signature::no_name_twice(&all)?;
    let [name, version] = ["CARGO_PKG_NAME", "CARGO_PKG_VERSION"].map(variable);
    let itself = format!("{} {}", name?, version?);
    glue.push_str(&glue::cpp(&all, &itself));
    let toolkit = compile::toolkit(&package)?;
    compile::host(&out, &glue)?;
    if let Some(toolkit) = &toolkit {
        compile::cuda(&out, &glue, toolkit)?;
    }
    let rust = glue::rust(&all, &itself, toolkit.is_some());
    write(&out.join("kernels.rs"), &rust)
}

/// A file of kernels and, transitively, what it includes from beside itself: what the build is of.
fn sources(file: PathBuf) -> Vec<PathBuf> {
    let mut found = vec![file];
    let mut at = 0;
    while let Some(path) = found.get(at) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let named = text.lines().filter_map(|line| {
            let line = line.trim_start().strip_prefix('#')?.trim_start();
            let quoted = line
                .strip_prefix("include")?
                .trim_start()
                .strip_prefix('"')?;
            Some(quoted.split_once('"')?.0)
        });
        // What is not there is the compiler's to find or to miss.
        let beside = named.filter_map(|name| path.with_file_name(name).canonicalize().ok());
        let beside: Vec<PathBuf> = beside.collect();
        for path in beside {
            if !found.contains(&path) {
                found.push(path);
            }
        }
        at += 1;
    }
    found
}

/// The line that includes a file, in whose name C++ reads every letter as it is.
fn include(path: &Path) -> String {
    format!("#include \"{}\"\n", path.display())
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}: run the build through cargo"))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_of_kernels_includes_is_a_source_too_once_and_with_what_that_includes() {
        let folder = std::env::temp_dir().join(format!("warpool-sources-{}", std::process::id()));
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(&path, text).expect("written");
            path.canonicalize().expect("it is there")
        };
        let kernels = file(
            "kernels.cu",
            "#include \"warpool_kernel.h\"\n  # include\"of/a.h\"\n#include <b.h>\n",
        );
        let first = file(
            "of/a.h",
            "#include \"../of/a.h\"\n#include \"../b.h\" // why\n",
        );
        let second = file("b.h", "#include \"gone.h\"\n");
        let found = sources(kernels.clone());
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(found, [kernels, first, second]);
    }

    #[test]
    fn a_file_is_included_by_its_name_whatever_is_in_it() {
        let path = "/home/jos\u{e9}/my\u{a0}kernels/a\\b \u{200d}.cu";
        assert_eq!(include(Path::new(path)), format!("#include \"{path}\"\n"));
    }
}
