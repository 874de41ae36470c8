//! The known faults of `tests/seeded-bugs.diff` fit the sources, so that `scripts/seeded-bugs.sh` can put them in.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// A change of a file: the lines before it, and with the fault.
struct Hunk<'a> {
    file: &'a str,
    before: String,
    after: String,
}

fn hunks(diff: &str) -> Vec<Hunk<'_>> {
    let (mut file, mut found) = ("", Vec::new());
    for line in diff.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            file = path;
        } else if line == "@@" {
            let (before, after) = (String::new(), String::new());
            found.push(Hunk {
                file,
                before,
                after,
            });
        } else if !line.starts_with("--- a/")
            && let (Some(hunk), Some((kind, text))) = (found.last_mut(), line.split_at_checked(1))
        {
            let text = format!("{text}\n");
            match kind {
                "-" => hunk.before += &text,
                "+" => hunk.after += &text,
                _ => {
                    hunk.before += &text;
                    hunk.after += &text;
                }
            }
        }
    }
    found
}

/// The names of the faults in `text`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let marks = ["seeded!(\"", "WP_SEEDED(\""];
    let after = marks
        .into_iter()
        .flat_map(move |mark| text.split(mark).skip(1));
    after
        .filter_map(|rest| rest.split_once('"'))
        .map(|(name, _)| name)
}

/// What is wrong with a hunk for a file of this text.
fn wrong(hunk: &Hunk<'_>, text: &str) -> Option<String> {
    let times = text.matches(&hunk.before).count();
    if named(&hunk.after).next().is_none() {
        return Some(format!("{}: no fault in\n{}", hunk.file, hunk.after));
    }
    (times != 1).then(|| format!("{}: {times} times, not once:\n{}", hunk.file, hunk.before))
}

#[test]
fn every_known_fault_has_its_place_in_the_sources_and_a_name_of_its_own() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the crate");
    let diff = read("tests/seeded-bugs.diff");
    let hunks = hunks(&diff);
    let found: Vec<_> = hunks
        .iter()
        .filter_map(|hunk| wrong(hunk, &read(hunk.file)))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    let names: Vec<_> = hunks.iter().flat_map(|hunk| named(&hunk.after)).collect();
    let each: BTreeSet<_> = names.iter().collect();
    assert!(names.len() > 200, "{}", names.len());
    assert_eq!(each.len(), names.len(), "{names:?}");
}

#[test]
fn a_fault_whose_lines_are_gone_or_there_twice_is_found() {
    let diff = "--- a/x.rs\n+++ b/x.rs\n@@\n first\n-second\n+second && seeded!(\"of-x\")\n";
    let hunks = hunks(diff);
    let [hunk] = &hunks[..] else {
        panic!("one hunk")
    };
    assert_eq!((hunk.file, &*hunk.before), ("x.rs", "first\nsecond\n"));
    assert_eq!(named(&hunk.after).collect::<Vec<_>>(), ["of-x"]);
    assert_eq!(wrong(hunk, "zeroth\nfirst\nsecond\nthird\n"), None);
    assert!(wrong(hunk, "first\nsecond;\n").is_some());
    assert!(wrong(hunk, "first\nsecond\nfirst\nsecond\n").is_some());
}
