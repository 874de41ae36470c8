//! Supplies the libcuda that rustacuda links against: see `build/lazy/resolve.c` for how it works.
//!
//! The trampolines are one object in a static archive that goes into warpool's own rlib; warpool
//! refers to it (`src/driver/lazy.rs`), so that the linker always takes it, and all of it. After
//! that `-lcuda`, which rustacuda's dependency prints, has nothing left to find, but the linker
//! insists on a file: an empty `libcuda.a` lies in a folder that cargo hands on to whatever links
//! warpool in the end.

use std::path::Path;

/// Compiles the trampolines for a target architecture and lays out the empty archive.
pub fn build(out: &Path, arch: &str) -> Result<(), String> {
    cc::Build::new()
        .include("build/lazy")
        .opt_level(2)
        .debug(false)
        .file("build/lazy/resolve.c")
        .file(format!("build/lazy/trampolines_{arch}.S"))
        .try_compile("warpool_lazy_cuda")
        .map_err(|e| format!("the lazy libcuda does not compile: {e}"))?;
    let folder = out.join("empty");
    let archive = folder.join("libcuda.a");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&archive, "!<arch>\n"))
        .map_err(|e| format!("{}: {e}", archive.display()))?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=dylib=dl");
    Ok(())
}
