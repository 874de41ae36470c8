//! Binds `kernels/warpool.h`: with bindgen where there is a libclang, else from the committed copy
//! `kernels/bindings.rs`. `tests/bindings.rs` proves the two equal.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

const HEADER: &str = "kernels/warpool.h";
const COPY: &str = "kernels/bindings.rs";

/// Writes `bindings.rs` into `out` and says where it came from: `bindgen` or `copy`.
pub fn write(package: &Path, out: &Path) -> Result<&'static str, String> {
    offer_fetched_libclang(package);
    let target = out.join("bindings.rs");
    let (text, origin) = match generate()? {
        Some(text) => (text, "bindgen"),
        None => (
            std::fs::read_to_string(COPY).map_err(|e| format!("{COPY}: {e}"))?,
            "copy",
        ),
    };
    std::fs::write(&target, text).map_err(|e| format!("{}: {e}", target.display()))?;
    Ok(origin)
}

/// Points bindgen at the libclang that `scripts/cuda-toolkit.sh` fetched, unless told otherwise.
fn offer_fetched_libclang(package: &Path) {
    let fetched = package.join("target/cuda-toolkit/clang/native");
    if std::env::var_os("LIBCLANG_PATH").is_none() && fetched.join("libclang.so").is_file() {
        // SAFETY: a build script's main thread, no other thread runs; libclang's loader reads
        // its folder from this variable alone.
        unsafe { std::env::set_var("LIBCLANG_PATH", fetched) };
    }
}

/// The bindings, or `None` without libclang.
///
/// bindgen panics where it finds no libclang, and only its own search knows where it would look:
/// so it is asked, and that one panic is caught.
fn generate() -> Result<Option<String>, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let made = panic::catch_unwind(AssertUnwindSafe(|| builder().generate()));
    panic::set_hook(hook);
    match made {
        Ok(Ok(bindings)) => Ok(Some(bindings.to_string())),
        Ok(Err(e)) => Err(format!("{HEADER} cannot be bound: {e}")),
        Err(panic) => {
            let said = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            if said.contains("libclang") {
                Ok(None)
            } else {
                Err(format!("bindgen failed on {HEADER}: {said}"))
            }
        }
    }
}

/// Everything that could differ between two machines is fixed: formatter, language version, and
/// no header comment with bindgen's own version.
fn builder() -> bindgen::Builder {
    bindgen::builder()
        .header(HEADER)
        .allowlist_item("wp_.*|WP_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .use_core()
        .disable_header_comment()
        .raw_line("// Made from warpool.h by the build script. Not edited by hand.")
        .formatter(bindgen::Formatter::Prettyplease)
        .rust_edition(bindgen::RustEdition::Edition2024)
}
