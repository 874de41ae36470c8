//! The heap and the planner are pure: integers, nothing of a device, of other threads or of the layers above.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The pure folders, the module that each is and alone may use, and how many files it has at least.
const PURE: [(&str, &str, usize); 2] = [
    ("src/heap", "heap", 8),
    ("src/compact/plan", "compact::plan", 12),
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
fn wrong_in(text: &str, own: &str) -> Vec<(usize, String)> {
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
            if !is_visibility && !is_in(used, own) {
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
    for (folder, own, least) in PURE {
        let files = sources(&root.join(folder));
        assert!(files.len() >= least, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            for (line, why) in wrong_in(&text, own) {
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

/// The fields that a struct leaves open to others, unless it is a plain value, and the functions that let
/// others write what they are given: line numbers from 1, and why.
fn open_in(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_open, mut is_value, mut is_test) = (Vec::new(), false, false, false);
    for (at, line) in without_tests(text).lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("#[") {
            is_value |= words(code).any(|word| word == "Copy");
            is_test |= code.starts_with("#[cfg(test)]");
            continue;
        }
        if words(code).any(|word| word == "struct") && code.ends_with('{') {
            is_open = !is_value;
        } else if line.starts_with('}') {
            is_open = false;
        } else if is_open && code.starts_with("pub") {
            found.push((at + 1, format!("`{code}` is open")));
        }
        let gives = line
            .split("->")
            .nth(1)
            .is_some_and(|gives| gives.contains("&mut "));
        if gives && code.starts_with("pub(crate) fn") && !is_test {
            found.push((at + 1, "what it gives can be written".to_owned()));
        }
        if !code.starts_with("//") {
            (is_value, is_test) = (false, false);
        }
    }
    found
}

#[test]
fn nobody_but_the_heap_writes_its_books() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut said = String::new();
    for file in sources(&root.join("src/heap")) {
        let text = std::fs::read_to_string(&file).expect("a source");
        for (line, why) in open_in(&text) {
            said += &format!("{}:{line}: {why}\n", file.display());
        }
    }
    assert!(said.is_empty(), "\n{said}");
    let lines = |text| {
        open_in(text)
            .into_iter()
            .map(|(line, _)| line)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines("struct A {\n    pub(crate) a: u64,\n    b: u64,\n}"),
        [2]
    );
    assert!(lines("#[derive(Clone, Copy)]\nstruct A {\n    pub(crate) a: u64,\n}").is_empty());
    assert_eq!(
        lines("impl A {\n    pub(crate) fn a(&mut self) -> &mut u64 {\n    }\n}"),
        [2]
    );
    let test = "impl A {\n    #[cfg(test)]\n    pub(crate) fn a(&mut self) -> &mut u64 {\n    }\n}";
    assert!(lines(test).is_empty());
}

/// (name, visibility) of every type that a text declares.
fn types_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    without_tests(text).lines().filter_map(|line| {
        let at = ["struct ", "enum "]
            .iter()
            .find_map(|it| Some((line.find(it)?, it.len())));
        let (at, length) = at?;
        let visibility = line[..at].trim();
        let is_one = visibility.is_empty() || visibility.starts_with("pub");
        let name = words(&line[at + length..]).next()?;
        is_one.then_some((name, visibility))
    })
}

/// (line, name) of every type that a text gives functions of its own.
fn impls_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = without_tests(text).lines().enumerate();
    lines.filter_map(|(at, line)| {
        let rest = line.strip_prefix("impl")?;
        let generic = rest.strip_prefix('<').and_then(|it| it.split_once("> "));
        let rest = generic.map_or(rest, |(_, rest)| rest);
        let is_trait = words(rest).any(|word| word == "for");
        let name = words(rest.trim_start()).next()?;
        (!is_trait).then_some((at + 1, name))
    })
}

#[test]
fn an_internal_type_has_all_its_functions_in_its_own_folder() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let texts: Vec<(String, PathBuf, String)> = sources(&root)
        .into_iter()
        .map(|file| {
            let below = file.strip_prefix(&root).expect("below src");
            let top = below.iter().next().unwrap_or_default().to_string_lossy();
            let text = std::fs::read_to_string(&file).expect("a source");
            (top.trim_end_matches(".rs").to_owned(), file.clone(), text)
        })
        .collect();
    let mut declared: BTreeMap<&str, Vec<(&str, bool)>> = BTreeMap::new();
    for (top, _, text) in &texts {
        for (name, visibility) in types_of(text) {
            declared
                .entry(name)
                .or_default()
                .push((top, visibility == "pub"));
        }
    }
    assert!(declared.len() > 200 && declared.contains_key("Timeline"));
    let mut said = String::new();
    for (top, file, text) in &texts {
        for (line, name) in impls_of(text) {
            let places = declared.get(name).map_or(&[][..], Vec::as_slice);
            let elsewhere = places.iter().all(|(of, is_public)| of != top && !is_public);
            if elsewhere && !places.is_empty() {
                said += &format!("{}:{line}: {name} is of {}\n", file.display(), places[0].0);
            }
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

#[test]
fn what_is_impure_is_found_with_its_line() {
    let found = |text: &str| {
        wrong_in(text, "compact::plan")
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
    assert!(found("/// An `Arc` in words.\nuse crate::compact::plan::Move;").is_empty());
    assert!(
        found("fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::device::sim::Rng;\n}")
            .is_empty()
    );
}
