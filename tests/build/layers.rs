//! The heap is pure: integers, nothing of a device, of other threads or of the layers above it.

use std::path::{Path, PathBuf};

/// The modules that the heap may use: its own, and the seeded faults, which are nothing in a build.
const BELOW: [&str; 2] = ["heap", "seeded"];

/// What a pure file does not name: devices and drivers, other threads, shared ownership, raw memory,
/// clocks.
const IMPURE: [&str; 16] = [
    "unsafe", "Arc", "Rc", "Weak", "Mutex", "RwLock", "Cell", "RefCell", "OnceLock", "Device",
    "Backend", "Timeline", "Phys", "Instant", "thread", "atomic",
];

/// The library's files below `folder`, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)
        .expect("the crate's sources")
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            files.extend(sources(&path));
        } else if name.ends_with(".rs") && !name.starts_with("tests") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The names that follow `crate::` in the line.
fn modules_used(line: &str) -> Vec<&str> {
    let after = line.split("crate::").skip(1);
    after.filter_map(|rest| words(rest).next()).collect()
}

/// The file's text without the tests at its end.
fn without_tests(text: &str) -> &str {
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    code.unwrap_or(text)
}

/// What is wrong with a pure file: line numbers from 1, and why.
fn wrong_in(text: &str) -> Vec<(usize, String)> {
    let mut wrong = Vec::new();
    for (at, line) in without_tests(text).lines().enumerate() {
        let line = line.split("//").next().unwrap_or(line);
        for word in words(line) {
            if IMPURE.contains(&word) || word.starts_with("Atomic") {
                wrong.push((at + 1, format!("`{word}` is not pure")));
            }
        }
        for module in modules_used(line) {
            if !BELOW.contains(&module) {
                wrong.push((at + 1, format!("`crate::{module}` is a layer above")));
            }
        }
    }
    wrong
}

#[test]
fn the_heap_names_no_device_no_thread_and_no_layer_above() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let files = sources(&root.join("src/heap"));
    assert!(files.len() >= 8, "{files:?}");
    let mut said = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        for (line, why) in wrong_in(&text) {
            said += &format!("{}:{line}: {why}\n", file.display());
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

#[test]
fn what_is_impure_is_found_with_its_line() {
    let found = |text: &str| {
        wrong_in(text)
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(found("use std::sync::Arc;\nfn f() {}"), [1]);
    assert_eq!(found("fn f() {}\nuse crate::pool::Core;"), [2]);
    assert_eq!(found("static N: AtomicU64 = zero();"), [1]);
    assert_eq!(
        found("fn f(timeline: &Timeline) {\n    unsafe { g() }\n}"),
        [1, 2]
    );
    assert!(
        found("/// An `Arc` in words.\nuse crate::heap::Id;\nuse crate::seeded::seeded;")
            .is_empty()
    );
    assert!(
        found("fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::device::sim::Rng;\n}")
            .is_empty()
    );
}
