//! Objects of kernel files, kept between builds and compiled side by side.
//!
//! An object is named after everything that it was made from: the file, what it includes, and the
//! command. A build takes the objects that are there and compiles the rest, as many at a time as
//! cargo's job server has jobs to give.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// FNV-1a.
pub fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    parts.into_iter().flatten().fold(start, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A kernel file and, transitively, what it includes by `#include "..."`: from the folder of the
/// including file, or from `root`.
pub fn sources_of(root: &Path, file: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let mut found = BTreeSet::new();
    let mut left = vec![file.to_path_buf()];
    while let Some(path) = left.pop() {
        if !found.insert(path.clone()) {
            continue;
        }
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let named = text.lines().filter_map(|line| {
            let rest = line.trim().strip_prefix("#include \"")?;
            Some(rest.split_once('"')?.0)
        });
        for name in named {
            let beside = path.parent().unwrap_or(root).join(name);
            left.push(if beside.is_file() {
                beside
            } else {
                root.join(name)
            });
        }
    }
    Ok(found)
}

/// Where the object of `file` is kept that is made by `command` from the sources as they are.
pub fn place(out: &Path, root: &Path, file: &Path, command: &str) -> Result<PathBuf, String> {
    let mut parts = vec![command.as_bytes().to_vec()];
    for source in sources_of(root, file)? {
        parts.push(source.to_string_lossy().into_owned().into_bytes());
        parts.push(std::fs::read(&source).map_err(|e| format!("{}: {e}", source.display()))?);
    }
    let key = fingerprint(parts.iter().map(Vec::as_slice));
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    Ok(out.join(format!("{stem}-{key:016x}.o")))
}

/// Removes the objects of `kept`'s file that were made from something else.
pub fn forget_others(kept: &Path) {
    let (Some(folder), Some(name)) = (kept.parent(), kept.file_name()) else {
        return;
    };
    let name = name.to_string_lossy();
    let stem = name.rsplit_once('-').map_or("", |(stem, _)| stem);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let other = other.to_string_lossy();
        if other != name && other.rsplit_once('-').map_or("", |(stem, _)| stem) == stem {
            // What cannot be removed takes room and does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Runs `work(item, jobs)` for every item, side by side: `jobs`, at most `most`, is how many the item
/// may use by itself. A build script has one job of cargo's; others are asked for as they come free.
///
/// # Errors
/// The first that `work` gave.
pub fn in_parallel<T: Send>(
    items: Vec<T>,
    most: usize,
    work: impl Fn(T, usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    // SAFETY: nothing of this process has opened the job server's descriptors for itself.
    let server = unsafe { jobserver::Client::from_env() };
    let another = || server.as_ref().and_then(|s| s.try_acquire().ok().flatten());
    let (done, finished) = mpsc::channel();
    let mut items = items.into_iter().peekable();
    std::thread::scope(|scope| {
        let (mut own_job_free, mut running, mut outcome) = (true, 0, Ok(()));
        while running > 0 || (outcome.is_ok() && items.peek().is_some()) {
            let own = own_job_free;
            let wanted = outcome.is_ok() && items.peek().is_some();
            let first = if wanted && !own { another() } else { None };
            if wanted
                && (own || first.is_some())
                && let Some(item) = items.next()
            {
                own_job_free = false;
                running += 1;
                let mut jobs: Vec<_> = first.into_iter().collect();
                while jobs.len() + usize::from(own) < most {
                    let Some(job) = another() else { break };
                    jobs.push(job);
                }
                let (done, work) = (done.clone(), &work);
                scope.spawn(move || {
                    // Whatever happens, it is told: the loop waits for every item that began.
                    let one = AssertUnwindSafe(|| work(item, jobs.len() + usize::from(own)));
                    let outcome = catch_unwind(one).unwrap_or_else(|panic| Err(words(&*panic)));
                    drop(jobs);
                    // The receiver outlives every sender.
                    let _ = done.send((own, outcome));
                });
                continue;
            }
            let Ok((own, ended)) = finished.recv_timeout(Duration::from_millis(100)) else {
                continue;
            };
            running -= 1;
            own_job_free |= own;
            outcome = outcome.and(ended);
        }
        outcome
    })
}

/// What a compilation that panicked said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "a compilation panicked: {}",
        text.unwrap_or("it does not say why")
    )
}
