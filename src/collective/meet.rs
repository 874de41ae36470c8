//! How rank 0 passes data to the other ranks: over TCP, or through a file that all of them see.
//!
//! Rank 0 sends it once all ranks are there, or sends an error that names the missing ones. So a rank that
//! does not come is an error on every other rank within the given time, and no rank waits for it in NCCL.

#![cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "for NCCL"))]

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Ranks, end_of};
use crate::error::{Error, Result};

/// The first bytes that a rank sends, before its rank and the number of ranks.
const GREETING: &[u8; 8] = b"warpool1";
/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(5);
/// Most connections whose greeting rank 0 awaits at once, and the time that each has for it.
const CALLERS: usize = 64;
const GREETING_TIME: Duration = Duration::from_secs(1);
/// Most missing ranks that an error names: a job may have any number.
const NAMED: usize = 32;

fn failure(words: impl Into<String>) -> Error {
    Error::Os {
        call: "meeting of ranks",
        words: words.into(),
    }
}

fn io(place: &str) -> impl Fn(io::Error) -> Error {
    move |error| failure(format!("{place}: {error}"))
}

/// Returns the bytes that rank 0 `makes` on every rank; waits at most `patience`.
pub(super) fn meet(
    ranks: &Ranks,
    patience: Duration,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    ranks.check()?;
    let deadline = end_of(patience);
    if let Some(path) = ranks.meet.strip_prefix("file://") {
        let path = Path::new(path);
        return match ranks.rank {
            0 => leave(ranks, path, deadline, make),
            _ => find(ranks, path, deadline),
        };
    }
    let Some(address) = ranks.meet.strip_prefix("tcp://") else {
        let why = format!(
            "{:?} is neither tcp://host:port nor file:///path",
            ranks.meet
        );
        return Err(Error::invalid("meet", why));
    };
    match ranks.rank {
        0 => listen(ranks, address, deadline, make),
        _ => call(ranks, address, deadline),
    }
}

/// Whether all ranks came; the error for those that did names the first of those that did not.
fn all_there(ranks: &Ranks, is_there: impl Fn(u32) -> bool) -> Result<()> {
    // The missing ranks are listed once, because a rank may come between two lists.
    let mut missing = (1..ranks.size).filter(|&rank| !is_there(rank));
    let named: Vec<u32> = missing.by_ref().take(NAMED).collect();
    if named.is_empty() {
        return Ok(());
    }
    let more = missing.next().map_or("", |_| " and more");
    Err(failure(format!(
        "ranks {named:?}{more} of {} did not come to {} in time",
        ranks.size, ranks.meet
    )))
}

/// An answer: 1 for success or 0, its length, and the bytes.
fn answer(outcome: &Result<Vec<u8>>) -> Vec<u8> {
    let (good, bytes) = match outcome {
        Ok(bytes) => (1u8, bytes.clone()),
        Err(error) => (0, error.to_string().into_bytes()),
    };
    [&[good][..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat()
}

/// The bytes or the error in an answer.
fn understood(good: u8, bytes: Vec<u8>) -> Result<Vec<u8>> {
    match good {
        1 => Ok(bytes),
        _ => Err(failure(String::from_utf8_lossy(&bytes).into_owned())),
    }
}

fn left(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

fn listen(
    ranks: &Ranks,
    address: &str,
    deadline: Instant,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let io = io(&ranks.meet);
    let listener = TcpListener::bind(address).map_err(&io)?;
    listener.set_nonblocking(true).map_err(&io)?;
    let mut there: HashMap<u32, TcpStream> = HashMap::new();
    let mut callers: Vec<Caller> = Vec::new();
    let all = |there: &HashMap<u32, TcpStream>| there.len() as u64 + 1 == u64::from(ranks.size);
    while !all(&there) && Instant::now() < deadline {
        // Further connections wait in the system's queue.
        while callers.len() < CALLERS {
            match listener.accept() {
                Ok((stream, _)) => callers.extend(Caller::new(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_reset(&error) => {}
                Err(error) => return Err(io(error)),
            }
        }
        for mut caller in std::mem::take(&mut callers) {
            match caller.rank(ranks) {
                Ok(Some(rank)) => _ = there.insert(rank, caller.stream),
                Ok(None) if Instant::now() < caller.until => callers.push(caller),
                // A connection with another greeting, or none in time, does not come from a rank: ignore it.
                _ => {}
            }
        }
        std::thread::sleep(PAUSE);
    }
    let outcome = all_there(ranks, |rank| there.contains_key(&rank)).and_then(|()| make());
    let words = answer(&outcome);
    for mut stream in there.into_values() {
        // If the rank is gone by now, making the communicator will fail.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = stream.write_all(&words);
    }
    outcome
}

/// A connection whose greeting is not complete. A stranger may send nothing, or one byte at a time, and
/// must not block rank 0.
struct Caller {
    stream: TcpStream,
    said: [u8; 16],
    read: usize,
    until: Instant,
}

impl Caller {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            said: [0; 16],
            read: 0,
            until: Instant::now() + GREETING_TIME,
        })
    }

    /// The rank, or `None` while the greeting is incomplete.
    fn rank(&mut self, ranks: &Ranks) -> io::Result<Option<u32>> {
        while self.read < self.said.len() {
            match self.stream.read(&mut self.said[self.read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => self.read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let said = &self.said;
        let number =
            |at: usize| u32::from_le_bytes([said[at], said[at + 1], said[at + 2], said[at + 3]]);
        let (rank, size) = (number(8), number(12));
        match &said[..8] == GREETING && size == ranks.size && (1..size).contains(&rank) {
            true => Ok(Some(rank)),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Connects to the first address of the host that answers in time.
fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
    for place in address.to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&place, left(deadline)).and_then(another);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Refuses a connection to itself: while nothing listens on the port, the system may choose that same port as
/// the source. Keeping it would also keep rank 0 from listening.
fn another(stream: TcpStream) -> io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// Whether the operating system ended the connection, and not the peer.
fn is_reset(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | Interrupted
    )
}

fn call(ranks: &Ranks, address: &str, deadline: Instant) -> Result<Vec<u8>> {
    loop {
        let error = match connect(address, deadline) {
            Ok(stream) => match ask(ranks, stream, deadline) {
                Ok((good, bytes)) => return understood(good, bytes),
                Err(error) if is_reset(&error) => error,
                Err(error) => return Err(io(&ranks.meet)(error)),
            },
            Err(error) => error,
        };
        // A malformed address, for example without a port, will not become valid.
        if Instant::now() >= deadline || error.kind() == io::ErrorKind::InvalidInput {
            return Err(failure(format!("rank 0 is not at {}: {error}", ranks.meet)));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Greets rank 0, and waits for its answer.
fn ask(ranks: &Ranks, mut stream: TcpStream, deadline: Instant) -> io::Result<(u8, Vec<u8>)> {
    let greeting = [
        &GREETING[..],
        &ranks.rank.to_le_bytes(),
        &ranks.size.to_le_bytes(),
    ]
    .concat();
    stream.write_all(&greeting)?;
    // Two seconds more, because rank 0 began its wait at another time.
    stream.set_read_timeout(Some(left(deadline) + Duration::from_secs(2)))?;
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut bytes = vec![0; len.min(1 << 16)];
    stream.read_exact(&mut bytes)?;
    Ok((head[0], bytes))
}

/// The file by which a rank announces itself.
fn sign(path: &Path, rank: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{rank}"));
    PathBuf::from(name)
}

fn leave(
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
    while (1..ranks.size).any(is_there) && Instant::now() < limit {
        std::thread::sleep(PAUSE);
    }
    // If the file stays, the next job gets an error.
    let _ = fs::remove_file(path);
    outcome
}

fn find(ranks: &Ranks, path: &Path, deadline: Instant) -> Result<Vec<u8>> {
    let io = io(&ranks.meet);
    let mine = sign(path, ranks.rank);
    fs::write(&mine, []).map_err(&io)?;
    let limit = deadline + Duration::from_secs(2);
    let words = loop {
        match fs::read(path) {
            Ok(words) => break Ok(words),
            Err(_) if Instant::now() >= limit => {
                break Err(failure(format!("rank 0 left nothing at {}", ranks.meet)));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    // If the file stays, rank 0 waits a little longer.
    let _ = fs::remove_file(&mine);
    match words?.split_at_checked(5) {
        Some((head, bytes)) => understood(head[0], bytes.to_vec()),
        None => Err(failure(format!("{} holds no answer", ranks.meet))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(size: u32, meet: &str) -> Vec<Ranks> {
        let of = |rank| Ranks {
            rank,
            size,
            local_rank: rank,
            meet: meet.to_owned(),
        };
        (0..size).map(of).collect()
    }

    fn all(ranks: &[Ranks], patience: Duration) -> Vec<Result<Vec<u8>>> {
        std::thread::scope(|scope| {
            let each = |ranks| scope.spawn(move || meet(ranks, patience, || Ok(vec![7; 128])));
            let threads: Vec<_> = ranks.iter().map(each).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    /// A port on which nothing listens, and a file that does not exist.
    fn places(folder: &Path) -> [String; 2] {
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        [
            format!("tcp://{free}"),
            format!("file://{}", folder.join("meet").display()),
        ]
    }

    #[test]
    fn ranks_that_meet_have_what_rank_0_made() {
        let folder = tempfile::tempdir().unwrap();
        for place in places(folder.path()) {
            for met in all(&ranks(5, &place), Duration::from_secs(20)) {
                assert_eq!(met.unwrap(), [7; 128], "{place}");
            }
        }
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "files are left"
        );
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_by_every_other() {
        let folder = tempfile::tempdir().unwrap();
        for place in places(folder.path()) {
            let mut some = ranks(4, &place);
            some.remove(2);
            for met in all(&some, Duration::from_millis(300)) {
                let error = met.unwrap_err().to_string();
                assert!(error.contains("ranks [2] of 4"), "{place}: {error}");
            }
        }
    }

    #[test]
    fn of_a_job_told_to_be_too_large_the_error_names_some_ranks() {
        let folder = tempfile::tempdir().unwrap();
        for place in places(folder.path()) {
            let first = Ranks {
                size: 1_000_000,
                ..ranks(1, &place).remove(0)
            };
            let met = meet(&first, Duration::from_millis(50), || Ok(Vec::new()));
            let error = met.unwrap_err().to_string();
            assert!(error.contains("ranks [1, 2, 3"), "{:.100}", error);
            assert!(error.contains("and more of 1000000"), "{:.100}", error);
        }
    }

    #[test]
    fn a_rank_that_comes_during_the_last_look_is_there_or_is_named() {
        let looks = std::cell::Cell::new(0);
        let comes = |rank| {
            looks.set(looks.get() + 1);
            rank != 1 || looks.get() > 1
        };
        let words = all_there(&ranks(3, "file:///meet")[0], comes).unwrap_err();
        assert!(words.to_string().contains("ranks [1] of 3"), "{words}");
    }

    #[test]
    fn what_others_remove_takes_nobody_s_answer_away() {
        let folder = tempfile::tempdir().unwrap();
        let [_, place] = places(folder.path());
        let ranks = ranks(2, &place);
        let [path, sign] = ["meet", "meet.1"].map(|name| folder.path().join(name));
        let patience = Duration::from_secs(20);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meet(&ranks[0], patience, || Ok(vec![7; 128])));
            fs::write(&sign, []).unwrap();
            while !path.exists() {
                std::thread::sleep(PAUSE);
            }
            fs::remove_file(&path).unwrap();
            fs::remove_file(&sign).unwrap();
            assert_eq!(first.join().unwrap().unwrap(), [7; 128]);
            let second = scope.spawn(|| meet(&ranks[1], patience, || Ok(Vec::new())));
            while fs::remove_file(&sign).is_err() {
                std::thread::sleep(PAUSE);
            }
            fs::write(&path, answer(&Ok(vec![8]))).unwrap();
            assert_eq!(second.join().unwrap().unwrap(), [8]);
        });
    }

    #[test]
    fn a_rank_0_that_does_not_come_is_an_error_that_says_where_it_was_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        for place in places(folder.path()) {
            let met = all(&ranks(2, &place)[1..], Duration::from_millis(50));
            let error = met.into_iter().next().unwrap().unwrap_err().to_string();
            assert!(
                error.contains("rank 0") && error.contains(&place),
                "{error}"
            );
        }
    }

    /// Like a firewall that drops packets: the system itself would try for minutes.
    #[test]
    fn a_rank_0_that_answers_nothing_is_waited_for_no_longer_than_the_time_given() {
        use std::os::fd::AsRawFd;

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: an open socket. Its queue has space for one connection, and nothing accepts it.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let brief = Duration::from_millis(100);
        let connect = || TcpStream::connect_timeout(&address, brief);
        let taken: Vec<_> = (0..8).map_while(|_| connect().ok()).collect();
        if taken.len() == 8 {
            return println!("skipped: this system has room for more connections");
        }
        let began = Instant::now();
        let place = format!("tcp://{address}");
        let met = meet(&ranks(2, &place)[1], 3 * brief, || Ok(Vec::new()));
        let words = met.unwrap_err().to_string();
        assert!(words.contains("rank 0 is not at"), "{words}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    /// While nothing listens on a port, the system may choose it as the source port of a connection to itself.
    #[test]
    fn a_rank_that_calls_before_rank_0_listens_does_not_reach_itself() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        // The system takes source ports of the other parity than the ports that it assigns to
        // listeners.
        let port = free.local_addr().unwrap().port() ^ 1;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_err() {
            return println!("skipped: somebody listens at {address}");
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let reached = (0..30_000).find_map(|_| connect(&address, deadline).ok());
        assert!(reached.is_none(), "{reached:?}");
    }

    #[test]
    fn a_rank_that_comes_late_has_the_answer_though_one_of_an_earlier_job_left_its_sign() {
        let folder = tempfile::tempdir().unwrap();
        let [_, place] = places(folder.path());
        let ranks = ranks(2, &place);
        fs::write(folder.path().join("meet.1"), []).unwrap();
        let meet = |rank| meet(rank, Duration::from_secs(10), || Ok(vec![7; 128]));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meet(&ranks[0]));
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(meet(&ranks[1]).unwrap(), [7; 128]);
            assert_eq!(first.join().unwrap().unwrap(), [7; 128]);
        });
    }

    #[test]
    fn a_rank_whose_connection_is_reset_asks_again() {
        let folder = tempfile::tempdir().unwrap();
        let [place, _] = places(folder.path());
        let ranks = ranks(2, &place);
        let before = TcpListener::bind(place.strip_prefix("tcp://").unwrap()).unwrap();
        let patience = Duration::from_secs(20);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| meet(&ranks[1], patience, || Ok(Vec::new())));
            let (stream, _) = before.accept().unwrap();
            // Closing the connection with the greeting unread resets it.
            while stream.peek(&mut [0; 16]).unwrap() < 16 {}
            drop((before, stream));
            let first = meet(&ranks[0], patience, || Ok(vec![7; 128]));
            assert_eq!(first.unwrap(), [7; 128]);
            assert_eq!(second.join().unwrap().unwrap(), [7; 128]);
        });
    }

    #[test]
    fn a_place_without_a_port_is_an_error_of_every_rank_at_once() {
        let began = Instant::now();
        for met in all(&ranks(2, "tcp://localhost"), Duration::from_secs(60)) {
            let error = met.unwrap_err().to_string();
            assert!(error.contains("tcp://localhost"), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_place_that_is_neither_an_address_nor_a_file_is_refused() {
        let met = all(&ranks(2, "carrier pigeon"), Duration::from_secs(1));
        for error in met {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("carrier pigeon"), "{error}");
        }
    }

    #[test]
    fn who_connects_and_says_something_else_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let [place, _] = places(folder.path());
        let ranks = ranks(2, &place);
        let address = place.strip_prefix("tcp://").unwrap().to_owned();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(10);
                while Instant::now() < deadline {
                    if let Ok(mut stranger) = TcpStream::connect(&address) {
                        let _ = stranger.write_all(b"GET / HTTP/1.0\r\n\r\n");
                        break;
                    }
                }
            });
            for met in all(&ranks, Duration::from_secs(20)) {
                assert_eq!(met.unwrap(), [7; 128]);
            }
        });
    }

    #[test]
    fn connections_that_say_nothing_hold_up_no_rank() {
        let folder = tempfile::tempdir().unwrap();
        for silent in [8, 100] {
            let [place, _] = places(folder.path());
            let ranks = ranks(3, &place);
            let address = place.strip_prefix("tcp://").unwrap();
            std::thread::scope(|scope| {
                let first = scope.spawn(|| all(&ranks[..1], Duration::from_secs(5)));
                let deadline = Instant::now() + Duration::from_secs(5);
                let reach = || loop {
                    match connect(address, deadline) {
                        Ok(stream) => break stream,
                        Err(error) => assert!(Instant::now() < deadline, "{error}"),
                    }
                };
                let strangers: Vec<_> = (0..silent).map(|_| reach()).collect();
                for met in all(&ranks[1..], Duration::from_secs(5)) {
                    assert_eq!(met.unwrap(), [7; 128], "{silent} strangers");
                }
                assert!(first.join().unwrap()[0].is_ok(), "{silent} strangers");
                drop(strangers);
            });
        }
    }
}
