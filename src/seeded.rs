//! Known faults that can be inserted one at a time, to check that the tests catch them.
//!
//! Under `--cfg warpool_seeded` the environment variable `WARPOOL_SEEDED` names the fault to
//! insert; `scripts/seeded-bugs.sh` inserts each of them and runs the tests. In every other build
//! [`seeded`] is `false` and leaves no trace. The kernels that the host device runs have theirs by
//! `WP_SEEDED` (`kernels/host/shim.h`).

/// Whether the fault with this name is inserted.
#[cfg(warpool_seeded)]
macro_rules! seeded {
    ($name:literal) => {
        crate::seeded::is_in($name)
    };
}

/// Whether the fault with this name is inserted: never, in this build.
#[cfg(not(warpool_seeded))]
macro_rules! seeded {
    ($name:literal) => {
        false
    };
}

pub(crate) use seeded;

/// Whether `WARPOOL_SEEDED` names `fault`.
#[cfg(warpool_seeded)]
pub(crate) fn is_in(fault: &str) -> bool {
    static NAMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var("WARPOOL_SEEDED").ok());
    named.as_deref() == Some(fault)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// Whether a file of the folder contains a fault with this name.
    fn is_in_sources(folder: &Path, fault: &str) -> bool {
        let entries = std::fs::read_dir(folder).expect("the crate's sources");
        entries.flatten().map(|entry| entry.path()).any(|path| {
            if path.is_dir() {
                return is_in_sources(&path, fault);
            }
            let text = std::fs::read_to_string(&path).expect("the crate's sources");
            let words: String = text.split_whitespace().collect();
            ["seeded!", "WP_SEEDED"]
                .iter()
                .any(|mark| words.contains(&format!("{mark}(\"{fault}\")")))
        })
    }

    #[test]
    fn the_fault_asked_for_is_one_that_there_is() {
        let root = std::env::var_os("CARGO_MANIFEST_DIR");
        let root = root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let is_there = |fault: &str| {
            ["src", "kernels"]
                .iter()
                .any(|folder| is_in_sources(&root.join(folder), fault))
        };
        assert!(is_there("limit-rounded-up"));
        assert!(is_there("draws-repeat-with-the-strip"));
        assert!(!is_there("no-such-fault"));
        if let Some(asked) = std::env::var_os("WARPOOL_SEEDED") {
            let asked = asked.to_string_lossy();
            let there = is_there(&asked);
            assert!(there, "WARPOOL_SEEDED={asked} is no fault of the sources");
        }
    }
}
