//! No two files of the library use each other, directly or around, and no layer uses one above it.
//!
//! A file uses another when it names something of it, where a `pub use` on the way is followed to the file
//! that has it. A folder's `mod.rs` that only passes names on uses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The library's folders, each of which uses only those before it. ARCHITECTURE.md draws them.
const LAYERS: [&str; 19] = [
    "error",
    "sync",
    "driver",
    "device",
    "record",
    "heap",
    "arena",
    "pool",
    "compact",
    "movable",
    "convert",
    "collective",
    "interop",
    "sanitize",
    "observe",
    "fit",
    "recompute",
    "host",
    "backend",
];

/// A name's path, as segments.
type Segments = Vec<String>;

/// One file: what it passes on, and the paths that it names, with their lines from 1.
#[derive(Default)]
struct File {
    passes_on: BTreeMap<String, Segments>,
    names: Vec<(usize, Segments)>,
}

/// Files by their module's path: `pool::core`.
type Library = BTreeMap<String, File>;

fn segments(path: &str) -> Segments {
    path.split("::").map(|it| it.trim().to_owned()).collect()
}

/// The paths of a `use`, its braces taken apart.
fn paths(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        return vec![path.to_owned()];
    };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, sign) in inner.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[from..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| paths(&format!("{before}{}", part.trim())))
        .collect()
}

/// The text without comments and without the tests at its end; lines stay where they are.
fn code(text: &str) -> String {
    let tests = [
        "#[cfg(test)]\nmod tests {",
        "#[cfg(all(test, loom))]\nmod models {",
    ];
    let cut = tests.iter().filter_map(|tests| text.find(tests)).min();
    let text = &text[..cut.unwrap_or(text.len())];
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a file declares for tests alone.
fn test_modules(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in code.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[cfg(test)") || line.starts_with("#[cfg(all(test");
            continue;
        }
        let name = line.strip_suffix(';').and_then(|it| it.rsplit_once("mod "));
        if let Some((_, name)) = name.filter(|_| is_test) {
            found.push(name.to_owned());
        }
        is_test = false;
    }
    found
}

fn read(code: &str) -> File {
    let mut file = File::default();
    let mut statement: Option<(usize, String)> = None;
    for (at, line) in code.lines().enumerate() {
        let begins = line.trim_start();
        let is_use = begins.starts_with("use ")
            || (begins.starts_with("pub") && begins.split_whitespace().nth(1) == Some("use"));
        if is_use || statement.is_some() {
            let (from, text) = statement.get_or_insert_with(|| (at + 1, String::new()));
            *text += line;
            if !text.contains(';') {
                continue;
            }
            let (from, text) = (*from, std::mem::take(text));
            statement = None;
            let (before, tree) = text.split_once("use ").expect("a use");
            let tree = tree.trim_end().trim_end_matches(';');
            for path in paths(tree) {
                let path = segments(&path);
                match before.trim().starts_with("pub") {
                    true => _ = file.passes_on.insert(path[path.len() - 1].clone(), path),
                    false => file.names.push((from, path)),
                }
            }
            continue;
        }
        for root in ["crate::", "super::", "self::"] {
            for (place, _) in line.match_indices(root) {
                let is_visibility = line[..place].ends_with("pub(in ");
                let follows = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
                let path = line[place..].split(follows).next().unwrap_or(root);
                let inside = line[..place].ends_with(|c: char| c.is_alphanumeric() || c == ':');
                if !is_visibility && !inside {
                    file.names
                        .push((at + 1, segments(path.trim_end_matches(':'))));
                }
            }
        }
    }
    file
}

/// The module of a file below `src`.
fn module_of(path: &Path) -> String {
    let path = path.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let parts: Vec<String> = parts
        .filter(|part| part != "mod" && part != "lib")
        .collect();
    parts.join("::")
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .expect("the crate's sources")
        .flatten()
    {
        let path = entry.path();
        match path.is_dir() {
            true if path.ends_with("src/bin") => {}
            true => files_below(&path, found),
            false if path.extension().is_some_and(|it| it == "rs") => found.push(path),
            false => {}
        }
    }
}

fn library() -> Library {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files_below(&root, &mut found);
    let texts: BTreeMap<String, String> = found
        .iter()
        .map(|path| {
            let module = module_of(path.strip_prefix(&root).expect("below src"));
            (
                module,
                code(&std::fs::read_to_string(path).expect("a source")),
            )
        })
        .collect();
    let tests = texts.iter().flat_map(|(module, text)| {
        let inside = move |name: String| {
            format!("{module}::{name}")
                .trim_start_matches("::")
                .to_owned()
        };
        test_modules(text).into_iter().map(inside)
    });
    let tests: Vec<String> = tests.collect();
    let is_test = |module: &str| {
        let below = |test: &String| module == test || module.starts_with(&format!("{test}::"));
        tests.iter().any(below)
    };
    let kept = texts.iter().filter(|(module, _)| !is_test(module));
    kept.map(|(module, text)| (module.clone(), read(text)))
        .collect()
}

/// The file that has what `module` names by `path`, if it is one of the library's.
fn resolve(library: &Library, module: &str, path: &[String], depth: u32) -> Option<String> {
    let mut at: Segments = match module {
        "" => Vec::new(),
        module => segments(module),
    };
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|it| it == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        child => {
            let below = at.iter().map(String::as_str).chain([child]);
            let below = below.collect::<Vec<_>>().join("::");
            library.get(&below)?;
        }
    }
    while let Some(next) = rest.first() {
        let below = at
            .iter()
            .chain([next])
            .cloned()
            .collect::<Vec<_>>()
            .join("::");
        if !library.contains_key(&below) {
            break;
        }
        at.push(next.clone());
        rest = &rest[1..];
    }
    let at = at.join("::");
    let file = library.get(&at)?;
    let passed = rest.first().and_then(|name| file.passes_on.get(name));
    match passed.filter(|_| depth < 6) {
        Some(passed) => resolve(library, &at, passed, depth + 1).or(Some(at)),
        None => Some(at),
    }
}

/// Which files each file uses, and the first line that says so.
type Uses = BTreeMap<String, BTreeMap<String, usize>>;

fn uses(library: &Library) -> Uses {
    let mut uses = Uses::new();
    for (module, file) in library {
        let mut of: BTreeMap<String, usize> = BTreeMap::new();
        for (line, path) in &file.names {
            if let Some(used) = resolve(library, module, path, 0).filter(|it| it != module) {
                of.entry(used).or_insert(*line);
            }
        }
        uses.insert(module.clone(), of);
    }
    uses
}

/// The files in circles: what is left when those are gone that use none of the rest, or that none of the
/// rest uses.
fn circles(uses: &Uses) -> Vec<String> {
    let mut left: BTreeSet<&String> = uses.keys().collect();
    loop {
        let used = |module: &&String| uses[*module].keys().any(|it| left.contains(it));
        let using = |module: &&String| left.iter().any(|it| uses[*it].contains_key(*module));
        let next: BTreeSet<&String> = left
            .iter()
            .copied()
            .filter(|it| used(it) && using(it))
            .collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    let mut said = Vec::new();
    for module in &left {
        let inside = uses[*module].iter().filter(|(used, _)| left.contains(used));
        said.extend(inside.map(|(used, line)| format!("{module}:{line} uses {used}")));
    }
    said
}

/// The uses of layers above.
fn upward(uses: &Uses) -> Vec<String> {
    let layer = |module: &str| {
        let top = module.split("::").next().unwrap_or(module);
        LAYERS.iter().position(|it| *it == top)
    };
    let mut said = Vec::new();
    for (module, of) in uses {
        for (used, line) in of {
            let (Some(from), Some(to)) = (layer(module), layer(used)) else {
                continue;
            };
            if to > from {
                said.push(format!("{module}:{line} uses {used}, a layer above"));
            }
        }
    }
    said
}

#[test]
fn no_files_use_each_other_in_a_circle_and_no_layer_uses_one_above() {
    let library = library();
    let uses = uses(&library);
    let top = library.keys().filter_map(|it| it.split("::").next());
    let unknown: BTreeSet<&str> = top
        .filter(|it| !it.is_empty() && !LAYERS.contains(it))
        .collect();
    assert!(unknown.is_empty(), "no layer of its own: {unknown:?}");
    assert!(uses.len() > 150 && uses["pool::ladder"].contains_key("pool::core"));
    let wrong = [circles(&uses), upward(&uses)].concat();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A library of (module, text).
fn made(files: &[(&str, &str)]) -> Uses {
    let read = |(module, text): &(&str, &str)| ((*module).to_owned(), read(&code(text)));
    uses(&files.iter().map(read).collect())
}

#[test]
fn a_circle_is_found_through_what_is_passed_on_and_around_a_third_file() {
    let uses = made(&[
        ("a", "pub use b::B;\nmod b;\nmod c;"),
        (
            "a::b",
            "use std::fmt;\nuse crate::{\n    a::c::{C, D},\n    e,\n};",
        ),
        ("a::c", "fn f(it: crate::d::D) {}"),
        ("d", "use crate::a::B; // of a::b"),
        ("e", "use crate::a::B;"),
    ]);
    assert_eq!(
        circles(&uses),
        [
            "a::b:2 uses a::c",
            "a::b:2 uses e",
            "a::c:1 uses d",
            "d:1 uses a::b",
            "e:1 uses a::b"
        ]
    );
}

#[test]
fn comments_tests_and_visibilities_are_no_uses() {
    let uses = made(&[
        (
            "a",
            "// crate::b::B\npub(in crate::b) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
        ),
        ("b", "use super::a::A;"),
    ]);
    assert!(circles(&uses).is_empty(), "{uses:?}");
    assert_eq!(
        test_modules("mod a;\n#[cfg(test)]\n#[cfg(not(loom))]\npub(crate) mod b;\nmod c;"),
        ["b"]
    );
}

#[test]
fn a_use_of_a_layer_above_is_found_with_its_line() {
    let uses = made(&[
        ("pool", "fn f() {}\nuse crate::movable::Movable;"),
        ("movable", "use crate::pool::Pool;"),
    ]);
    assert_eq!(upward(&uses), ["pool:2 uses movable, a layer above"]);
}
