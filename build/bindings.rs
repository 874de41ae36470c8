//! Binds `kernels/warpool.h`: with bindgen, a feature, where there is a libclang, else from the committed
//! copy `kernels/bindings.rs`. `tests/build/bindings.rs` proves the two equal.

#[cfg(feature = "bindgen")]
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

const HEADER: &str = "kernels/warpool.h";
const COPY: &str = "kernels/bindings.rs";

/// Writes `bindings.rs` into `out` and says where it came from: `bindgen` or `copy`.
///
/// `libclang` is the folder that `LIBCLANG_PATH` names.
pub fn write(package: &Path, out: &Path, libclang: Option<&str>) -> Result<&'static str, String> {
    if libclang.is_none() {
        offer_fetched_libclang(package);
    }
    let target = out.join("bindings.rs");
    let header = std::fs::read_to_string(HEADER).map_err(|e| format!("{HEADER}: {e}"))?;
    let mark = mark(&header);
    let (text, origin) = match generate(&mark)? {
        Some(text) => (text, "bindgen"),
        None => (committed(&mark)?, "copy"),
    };
    std::fs::write(&target, text).map_err(|e| format!("{}: {e}", target.display()))?;
    Ok(origin)
}

/// The first line of the bindings, which names the header they were made from.
fn mark(header: &str) -> String {
    let hash = crate::objects::fingerprint([header.as_bytes()]);
    format!("// Made by the build script from warpool.h with the fingerprint {hash:016x}.")
}

/// The committed copy. Made from another header it would lay out structures otherwise than the
/// kernels read them, so that is an error.
fn committed(mark: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(COPY).map_err(|e| format!("{COPY}: {e}"))?;
    if text.lines().next() == Some(mark) {
        return Ok(text);
    }
    Err(format!(
        "{COPY} was made from another {HEADER}, and there is no libclang to bind it anew: run \
         scripts/cuda-toolkit.sh, which fetches one, then `cargo test --test build bindings` says how \
         to bring the copy up to date"
    ))
}

/// Without bindgen there is nobody to offer a libclang to.
#[cfg(not(feature = "bindgen"))]
fn offer_fetched_libclang(_: &Path) {}

/// No bindings without bindgen.
#[cfg(not(feature = "bindgen"))]
fn generate(_: &str) -> Result<Option<String>, String> {
    Ok(None)
}

/// Points bindgen at the libclang that `scripts/cuda-toolkit.sh` fetched, or at its own search.
#[cfg(feature = "bindgen")]
fn offer_fetched_libclang(package: &Path) {
    let fetched = package.join("target/cuda-toolkit/clang/native");
    let there = fetched.join("libclang.so").is_file();
    // SAFETY: a build script's main thread, no other thread runs; libclang's loader reads its
    // folder from this variable alone, and would search a folder without a name.
    unsafe {
        if there {
            std::env::set_var("LIBCLANG_PATH", fetched);
        } else {
            std::env::remove_var("LIBCLANG_PATH");
        }
    }
}

/// The bindings, or `None` without libclang.
///
/// bindgen panics where it finds no libclang, and only its own search knows where it would look:
/// so it is asked, and that one panic is caught.
#[cfg(feature = "bindgen")]
fn generate(mark: &str) -> Result<Option<String>, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let made = panic::catch_unwind(AssertUnwindSafe(|| builder(mark).generate()));
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
#[cfg(feature = "bindgen")]
fn builder(mark: &str) -> bindgen::Builder {
    bindgen::builder()
        .header(HEADER)
        .allowlist_item("wp_.*|WP_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .use_core()
        .disable_header_comment()
        .raw_line(mark)
        .formatter(bindgen::Formatter::Prettyplease)
        .rust_edition(bindgen::RustEdition::Edition2024)
}
