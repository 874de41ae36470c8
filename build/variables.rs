//! What the build script reads from the environment, apart from where the toolkit is.
//!
//! Pure over [`Machine`], and included by `tests/build/toolkit_discovery.rs` too. A variable set to
//! nothing is not set; one that cannot be what it is for is an error that names it.

use std::path::Path;

use crate::arch::{self, Request};
use crate::discovery::Machine;

/// Every variable read here, for the build script's `rerun-if-env-changed`.
pub const VARIABLES: [&str; 5] = [
    "WARPOOL_CUDA",
    "DOCS_RS",
    "CUDA_COMPUTE_CAP",
    "NVCC_CCBIN",
    "LIBCLANG_PATH",
];

/// `WARPOOL_CUDA`: whether the kernels are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Required,
    Off,
    Auto,
}

/// What the kernels are compiled as, read before anything is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub wanted: Wanted,
    /// `CUDA_COMPUTE_CAP`.
    pub request: Request,
    /// `NVCC_CCBIN` names the host compiler, and nvcc reads it itself.
    pub own_host_compiler: bool,
    /// `LIBCLANG_PATH`.
    pub libclang: Option<String>,
}

impl Settings {
    /// Reads all of them. Without the kernels, what only they need is left unread.
    ///
    /// # Errors
    /// A value that cannot be what the variable is for; the text names the variable.
    pub fn read(machine: &impl Machine) -> Result<Self, String> {
        let wanted = wanted(machine)?;
        let mut settings = Self {
            wanted,
            request: Request::Default,
            own_host_compiler: false,
            libclang: text(machine, "LIBCLANG_PATH")?,
        };
        if wanted != Wanted::Off {
            let asked = text(machine, "CUDA_COMPUTE_CAP")?;
            settings.request = arch::parse(&asked.unwrap_or_default())?;
            settings.own_host_compiler = own_host_compiler(machine)?;
        }
        Ok(settings)
    }
}

/// A variable's text; `None` if it is not set, or set to nothing.
///
/// # Errors
/// It is no UTF-8: cargo could not be told of it.
pub fn text(machine: &impl Machine, name: &str) -> Result<Option<String>, String> {
    let Some(value) = machine.var(name) else {
        return Ok(None);
    };
    match value.into_string() {
        Ok(value) if value.trim().is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(value) => Err(format!(
            "{name}={} is no UTF-8, which cargo needs of a build: set it to a path or a word that is",
            value.to_string_lossy()
        )),
    }
}

fn wanted(machine: &impl Machine) -> Result<Wanted, String> {
    if text(machine, "DOCS_RS")?.is_some() {
        return Ok(Wanted::Off);
    }
    let value = text(machine, "WARPOOL_CUDA")?.unwrap_or_default();
    match value.trim() {
        "required" => Ok(Wanted::Required),
        "off" => Ok(Wanted::Off),
        "" | "auto" => Ok(Wanted::Auto),
        other => Err(format!(
            "WARPOOL_CUDA={other} is not one of required, off, auto"
        )),
    }
}

/// nvcc would say only that it cannot preprocess; so the compiler is looked for here.
fn own_host_compiler(machine: &impl Machine) -> Result<bool, String> {
    let Some(value) = text(machine, "NVCC_CCBIN")? else {
        return Ok(false);
    };
    let there = if value.contains('/') {
        let path = Path::new(&value);
        machine.is_file(path) || !machine.list(path).is_empty()
    } else {
        let path = machine.var("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| machine.is_file(&folder.join(&value)))
    };
    if there {
        return Ok(true);
    }
    Err(format!(
        "NVCC_CCBIN={value} names no host compiler: give a compiler, its folder or its name on \
         PATH, or unset it to have the C++ compiler of the host kernels"
    ))
}
