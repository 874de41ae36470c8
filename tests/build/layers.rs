//! The heap and the planner are pure: integers, nothing of a device, of other threads or of the layers above.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The pure folders, and the modules that each may use: its own, and the seeded faults, which are nothing in
/// a build.
const PURE: [(&str, [&str; 2], usize); 2] = [
    ("src/heap", ["heap", "seeded"], 8),
    ("src/compact/plan", ["compact::plan", "seeded"], 12),
];

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

/// What follows `crate::` in the line, each up to its end.
fn modules_used(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1)
}

/// Whether what follows `crate::` begins with the path `module`.
fn is_in(used: &str, module: &str) -> bool {
    let rest = used.strip_prefix(module);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// The file's text without the tests at its end.
fn without_tests(text: &str) -> &str {
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    code.unwrap_or(text)
}

/// What is wrong with a pure file: line numbers from 1, and why.
fn wrong_in(text: &str, below: &[&str]) -> Vec<(usize, String)> {
    let mut wrong = Vec::new();
    for (at, line) in without_tests(text).lines().enumerate() {
        let line = line.split("//").next().unwrap_or(line);
        for word in words(line) {
            if IMPURE.contains(&word) || word.starts_with("Atomic") {
                wrong.push((at + 1, format!("`{word}` is not pure")));
            }
        }
        for used in modules_used(line) {
            // What a function is visible to is no use of it.
            let is_visibility = line.contains(&format!("pub(in crate::{used}"));
            if !is_visibility && !below.iter().any(|module| is_in(used, module)) {
                wrong.push((at + 1, format!("`crate::{used}` is a layer above")));
            }
        }
    }
    wrong
}

#[test]
fn the_heap_and_the_planner_name_no_device_no_thread_and_no_layer_above() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut said = String::new();
    for (folder, below, least) in PURE {
        let files = sources(&root.join(folder));
        assert!(files.len() >= least, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            for (line, why) in wrong_in(&text, &below) {
                said += &format!("{}:{line}: {why}\n", file.display());
            }
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

/// Lines of a file that a reader has in view.
const MOST_LINES: usize = 500;

#[test]
fn no_file_of_the_heap_the_pool_and_compaction_is_longer_than_a_reader_has_in_view() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src/heap", "src/pool", "src/compact"].map(|folder| sources(&root.join(folder)));
    let lines = |file: &PathBuf| {
        std::fs::read_to_string(file)
            .expect("a source")
            .lines()
            .count()
    };
    let long: Vec<_> = folders
        .iter()
        .flatten()
        .filter(|file| lines(file) > MOST_LINES)
        .collect();
    assert!(folders.iter().all(|files| files.len() >= 8), "{folders:?}");
    assert!(long.is_empty(), "{long:?}");
}

/// The modules of one folder, and those beside them that each uses by name.
fn uses_beside(texts: &[(String, String)]) -> BTreeMap<&str, Vec<&str>> {
    let mut uses = BTreeMap::new();
    for (name, text) in texts {
        let names = texts.iter().map(|(other, _)| other.as_str());
        let used = names.filter(|other| without_tests(text).contains(&format!("super::{other}::")));
        uses.insert(name.as_str(), used.collect());
    }
    uses
}

/// Modules that use each other in a circle: what is left when those that use none of the rest are gone.
fn in_a_circle(mut uses: BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    loop {
        let left: Vec<_> = uses.keys().copied().collect();
        let free = |on: &Vec<&str>| !on.iter().any(|name| left.contains(name));
        uses.retain(|_, on| !free(on));
        if uses.len() == left.len() {
            return left.into_iter().map(String::from).collect();
        }
    }
}

#[test]
fn no_conversions_use_each_other_in_a_circle() {
    let files = sources(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/convert"));
    let texts: Vec<_> = files
        .iter()
        .map(|file| {
            let name = file
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read_to_string(file).expect("a source"))
        })
        .filter(|(name, _)| name != "mod")
        .collect();
    let uses = uses_beside(&texts);
    assert!(
        uses.len() >= 12 && uses["codes"].contains(&"launch"),
        "{uses:?}"
    );
    assert_eq!(in_a_circle(uses), [""; 0]);
    let circle = [
        ("a", "use super::b::B;"),
        ("b", "use super::a::A;"),
        ("c", ""),
    ];
    let circle = circle.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(in_a_circle(uses_beside(&circle)), ["a", "b"]);
}

#[test]
fn what_is_impure_is_found_with_its_line() {
    let found = |text: &str| {
        wrong_in(text, &["heap", "compact::plan", "seeded"])
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(found("use std::sync::Arc;\nfn f() {}"), [1]);
    assert_eq!(found("fn f() {}\nuse crate::pool::Core;"), [2]);
    assert_eq!(found("static N: AtomicU64 = zero();"), [1]);
    assert_eq!(found("use crate::compact::planner::X;"), [1]);
    assert!(found("use crate::compact::plan::X;").is_empty());
    assert!(found("pub(in crate::compact) fn f() {}").is_empty());
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
