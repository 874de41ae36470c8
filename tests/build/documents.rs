//! What documents name is there.

use std::path::{Path, PathBuf};

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/guide",
        "kernels",
        "tests",
        "benches/results",
    ] {
        let entries = std::fs::read_dir(package().join(folder)).expect(folder);
        let paths = entries.flatten().map(|entry| entry.path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    found
}

/// What the links of a Markdown text lead to within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let local = targets.filter(|target| !target.starts_with("http") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or(target))
}

#[test]
fn every_link_of_a_document_leads_to_a_file() {
    let documents = documents();
    assert!(documents.len() >= 10, "{documents:?}");
    let mut seen = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("reads");
        let folder = document.parent().unwrap_or(Path::new(""));
        for link in links(&text) {
            assert!(folder.join(link).exists(), "{}: {link}", document.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} links");
}

#[test]
fn the_architecture_names_every_folder_of_the_sources_and_none_beside() {
    let text = std::fs::read_to_string(package().join("docs/ARCHITECTURE.md")).expect("reads");
    let entries = std::fs::read_dir(package().join("src")).expect("the sources");
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    for folder in folders {
        let name = folder.file_name().to_string_lossy().into_owned();
        assert!(
            text.contains(&format!("| `src/{name}` |")),
            "src/{name} has no row"
        );
    }
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let path = row.split('`').nth(1).unwrap_or_default();
        // A packaged crate has no packages inside it.
        let packaged = package().join(".cargo_vcs_info.json").exists() && path == "warpool-build";
        assert!(
            package().join(path).is_dir() || packaged,
            "{path} is no folder"
        );
    }
}

#[test]
fn the_readme_fits_on_two_hundred_lines() {
    let readme = std::fs::read_to_string(package().join("README.md")).expect("reads");
    let lines = readme.lines().count();
    assert!(lines < 200, "{lines} lines");
}

#[test]
fn the_readme_and_its_table_have_the_words_that_come_from_pytorch_and_tensorflow() {
    let words = [
        "memory_allocated",
        "memory_reserved",
        "empty_cache",
        "memory fraction",
        "growth on demand",
        "preallocation",
        "defragmentation",
        "ixed precision",
    ];
    for page in ["README.md", "docs/pytorch.md"] {
        let text = std::fs::read_to_string(package().join(page)).expect("reads");
        for word in words {
            assert!(text.contains(word), "{page} has no {word:?}");
        }
    }
}

/// `scripts/sanitizers.py` reads it on a machine with a GPU, and refuses it whole if a line has another form.
#[test]
fn every_report_that_is_no_fault_has_a_tool_a_suite_a_test_a_message_and_a_reason() {
    let list = package().join("scripts/sanitizers-allowed.txt");
    let list = std::fs::read_to_string(list).expect("the list");
    let is_rule = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    let rules: Vec<&str> = list.lines().filter(is_rule).collect();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        let parts: Vec<&str> = rule.split('|').map(str::trim).collect();
        let is_whole = parts.len() == 5 && parts.iter().all(|part| !part.is_empty());
        assert!(is_whole, "{rule}");
    }
}
