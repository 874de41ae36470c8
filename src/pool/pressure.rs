//! What is asked for help before a request fails: registered steps, by rank.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::Shared;
use super::stats::Told;
use crate::device::lock;
use crate::error::{Error, OutOfMemory};
use crate::seeded::seeded;

/// What a step of the out-of-memory ladder did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relief {
    /// It freed or moved something: the request is tried again, and the step asked again if it
    /// still fails.
    Retry,
    /// It can do no more.
    Exhausted,
}

/// A request that the pool's own steps could not serve, as a registered step sees it.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use std::sync::Mutex;
/// use warpool::pool::{Pressure, Relief};
///
/// let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20))?;
/// let spare = Mutex::new(Some(pool.alloc(&stream, 6 << 20)?));
/// pool.on_pressure(move |pressure: &Pressure| {
///     let mut spare = spare.lock().unwrap_or_else(|held| held.into_inner());
///     match spare.take() {
///         Some(_) => Relief::Retry, // dropped here
///         None => Relief::Exhausted,
///     }
/// });
/// assert!(pool.alloc(&stream, 4 << 20).is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pressure {
    /// Bytes needed, rounded.
    pub requested: u64,
    /// The [`id`](crate::device::Stream::id) of the requesting stream.
    pub stream: u64,
    /// The pool's figures now.
    pub figures: OutOfMemory,
}

/// A step above the core: frees or moves memory, and says whether it may have helped.
pub(crate) type ReliefStep = Arc<dyn Fn(&Pressure) -> Relief + Send + Sync>;

/// Moves what makes room for a request of so many bytes where that is cheaper than mapping so many
/// handles elsewhere; says whether it did.
pub(crate) type MovesFirst = Arc<dyn Fn(u64, u64) -> bool + Send + Sync>;

/// Rank of what moves memory before handles are mapped elsewhere; below all steps.
const MOVES_FIRST_RANK: u8 = 0;

crate::sync::thread_local! {
    /// Steps under way on this thread: the pool's number and the step's rank.
    static UNDER_WAY: RefCell<Vec<(u64, u8)>> = const { RefCell::new(Vec::new()) };
}

/// A step under way on this thread. What the step itself asks of the pool is helped only by steps of
/// lower rank, so that no request asks for help without an end.
struct Asked(());

impl Asked {
    /// `None` where a step of this pool, of this rank or a lower one, is under way already.
    fn of(pool: u64, rank: u8) -> Option<Self> {
        UNDER_WAY.with(|steps| {
            let mut steps = steps.borrow_mut();
            let again = steps.iter().any(|&(uid, of)| uid == pool && of <= rank);
            if again && !seeded!("pressure-asks-again-and-again") {
                return None;
            }
            steps.push((pool, rank));
            Some(Self(()))
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        UNDER_WAY.with(|steps| _ = steps.borrow_mut().pop());
    }
}

/// The steps that a request has left to ask.
#[derive(Default)]
pub(super) struct Left(
    Option<std::vec::IntoIter<(u8, ReliefStep)>>,
    Option<(u8, ReliefStep)>,
);

impl Shared {
    /// Registers a step; lower ranks come first.
    pub(crate) fn add_relief(&self, rank: u8, step: ReliefStep) {
        let mut relief = lock(&self.relief);
        let at = relief.partition_point(|(other, _)| *other <= rank);
        relief.insert(at, (rank, step));
    }

    /// Registers who may move memory before handles are mapped elsewhere; the first counts.
    pub(crate) fn moves_first(&self, moves: MovesFirst) {
        let _ = self.moves_first.set(moves);
    }

    /// Asks who moves memory before so many handles are mapped elsewhere; whether it moved any.
    pub(super) fn ask_to_move(&self, bytes: u64, handles: u64) -> bool {
        let asked = Asked::of(self.uid, MOVES_FIRST_RANK);
        let moves = self.moves_first.get().filter(|_| asked.is_some());
        moves.is_some_and(|moves| moves(bytes, handles))
    }

    /// Asks the registered steps, one after the other, from where it came to the last time; whether one
    /// says that the request is to be tried again.
    pub(super) fn relieve(&self, stream: u64, bytes: u64, left: &mut Left) -> bool {
        let Left(steps, now) = left;
        let steps = steps.get_or_insert_with(|| lock(&self.relief).clone().into_iter());
        while let Some((rank, step)) = now.take().or_else(|| steps.next()) {
            let Some(_asked) = Asked::of(self.uid, rank) else {
                return false;
            };
            if step(&self.pressure(stream, bytes)) == Relief::Retry {
                self.retries.fetch_add(1, Ordering::Relaxed);
                *now = Some((rank, step));
                return true;
            }
        }
        false
    }

    fn pressure(&self, stream: u64, bytes: u64) -> Pressure {
        Pressure {
            requested: bytes,
            stream,
            figures: self.figures(bytes),
        }
    }

    /// The figures of an error for a request of `bytes`.
    fn figures(&self, bytes: u64) -> OutOfMemory {
        let holders = self.leak_report().holders();
        let after_compaction = self.snapshot().after_compaction();
        let core = self.core.lock();
        let free_slots = core.slabs.free_bytes();
        OutOfMemory {
            requested: bytes,
            live: core.live() + core.grown.bytes
                - free_slots * u64::from(!seeded!("free-slots-counted-as-live")),
            reserved: core.reserved(),
            limit: core.limit(),
            device_free: self.device.backend().free_bytes().ok(),
            largest_hole: core.extents.largest_hole(),
            after_compaction,
            holders,
        }
    }

    /// Counts a request that failed; gives its error.
    pub(super) fn out_of_memory(&self, bytes: u64) -> Error {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let figures = self.figures(bytes);
        self.core.lock().count(Told::OutOfMemory(bytes));
        Error::OutOfMemory(Box::new(figures))
    }
}
