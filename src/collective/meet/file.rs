//! A meeting by files that all ranks see: each other rank announces itself by a file of its own, and rank 0 leaves its
//! answer.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::answer::{MOST, PAUSE, all_there, answer, failure, io, understood};
use crate::collective::ranks::Ranks;
use crate::error::Result;

/// The file by which a rank announces itself.
fn sign(path: &Path, rank: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{rank}"));
    PathBuf::from(name)
}

pub(super) fn leave(
    ranks: &Ranks,
    path: &Path,
    deadline: Instant,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let io = io(&ranks.meet);
    if path.exists() {
        return Err(failure(format!(
            "{} is there already: remove it",
            ranks.meet
        )));
    }
    let is_there = |rank: u32| sign(path, rank).exists();
    while !(1..ranks.size).all(is_there) && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
    let outcome = all_there(ranks, is_there).and_then(|()| make());
    // Written and renamed, so that no rank reads a part of it.
    let part = sign(path, 0);
    fs::write(&part, answer(&outcome)).map_err(&io)?;
    fs::rename(&part, path).map_err(&io)?;
    // Each rank removes its announcement once it has read the answer; then the file can be removed. An announcement
    // left by an earlier, aborted job may look like that of a rank that is still to come.
    let limit = deadline.max(Instant::now() + Duration::from_secs(2));
    let is_over = || Instant::now() >= limit;
    // A job told to be too large has more ranks than can be looked for.
    while (1..ranks.size).any(|rank| is_over() || is_there(rank)) && !is_over() {
        std::thread::sleep(PAUSE);
    }
    // If the file stays, the next job gets an error.
    let _ = fs::remove_file(path);
    outcome
}

pub(super) fn find(ranks: &Ranks, path: &Path, deadline: Instant) -> Result<Vec<u8>> {
    let io = io(&ranks.meet);
    let mine = sign(path, ranks.rank);
    fs::write(&mine, []).map_err(&io)?;
    let limit = deadline + Duration::from_secs(2);
    let read = || {
        let (mut words, file) = (Vec::new(), fs::File::open(path)?);
        file.take(MOST).read_to_end(&mut words).map(|_| words)
    };
    let words = loop {
        match read() {
            Ok(words) => break Ok(words),
            Err(_) if Instant::now() >= limit => {
                break Err(failure(format!("rank 0 left nothing at {}", ranks.meet)));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    // If the file stays, rank 0 waits a little longer.
    let _ = fs::remove_file(&mine);
    match words?.split_first_chunk::<5>() {
        Some((&[good, ref len @ ..], bytes))
            if u32::from_le_bytes(*len) as usize == bytes.len() =>
        {
            understood(good, bytes.to_vec())
        }
        _ => Err(failure(format!("{} holds no answer", ranks.meet))),
    }
}
