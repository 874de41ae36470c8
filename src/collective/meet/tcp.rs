//! A meeting over TCP: rank 0 listens, and each other rank connects and greets it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::answer::{MOST, PAUSE, all_there, answer, failure, io, understood};
use crate::collective::ranks::Ranks;
use crate::error::Result;

/// The first bytes that a rank sends, before its rank and the number of ranks.
const GREETING: &[u8; 8] = b"warpool1";
/// Most connections whose greeting rank 0 awaits at once, and the time that each has for it.
const CALLERS: usize = 64;
const GREETING_TIME: Duration = Duration::from_secs(1);

fn left(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

pub(super) fn listen(
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
pub(super) fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
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

pub(super) fn call(ranks: &Ranks, address: &str, deadline: Instant) -> Result<Vec<u8>> {
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
    let mut bytes = vec![0; len.min(MOST as usize)];
    stream.read_exact(&mut bytes)?;
    Ok((head[0], bytes))
}
