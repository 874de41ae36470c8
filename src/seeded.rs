//! Known faults that can be put back, one at a time, to see that the tests catch them.
//!
//! Under `--cfg warpool_seeded` the environment variable `WARPOOL_SEEDED` names the fault that is
//! in; `scripts/seeded-bugs.sh` puts each of them in and runs the tests. In every other build
//! [`seeded`] is `false` and leaves no trace.

/// Whether the fault of this name is put in.
#[cfg(warpool_seeded)]
macro_rules! seeded {
    ($name:literal) => {
        crate::seeded::is_in($name)
    };
}

/// Whether the fault of this name is put in: never, in this build.
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
