//! Allocation traces: the requests of a program to its device allocator, in order.
//!
//! # Format
//!
//! The CSV log of RMM's `logging_resource_adaptor`, plain or gzip (told apart by the first two
//! bytes), lines ending in `\n` or `\r\n`:
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 1,19:05:53:124355,allocate,0x7f0000000000,37632,0x2
//! 1,19:05:53:124380,free,0x7f0000000000,37632,0x2
//! ```
//!
//! - The header comes first. Columns may be in any order; `Action`, `Pointer`, `Size` and `Stream`
//!   are required, all others are ignored.
//! - `Action` is `allocate` or `free`, also spelt `deallocate`. Rows with `allocate failure` are
//!   skipped: nothing was allocated.
//! - `Pointer` and `Stream` are hexadecimal with `0x`, or decimal; `(nil)` is 0. A pointer may be
//!   reused once it is freed.
//! - `Size` is in bytes. A row of size 0 is skipped unless it frees a live pointer: a zero-byte
//!   request holds no memory and RMM returns a null pointer for it.
//! - Blank lines are ignored. A line has at most 64 KiB.
//!
//! # In memory
//!
//! Pointers become block numbers 0, 1, 2, … in the order of allocation, which are never reused;
//! streams become 0, 1, 2, … in the order of first appearance. An event takes 16 bytes.

mod ledger;
mod lines;
mod reader;
mod row;
mod writer;

pub use writer::TraceWriter;

/// The kind of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Allocates a block.
    Alloc,
    /// Frees a block allocated earlier.
    Free,
}

/// One allocation or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// Bytes of the block; the same in its allocation and its free. Never 0.
    pub bytes: u64,
    /// Number of the block, counted by allocation from 0.
    pub block: u32,
    /// Index of its stream in the trace's streams.
    pub stream: u16,
    /// Allocation or free.
    pub kind: EventKind,
}

const _: () = assert!(size_of::<Event>() == 16, "a trace takes 16 bytes an event");

/// A trace in memory. Every free in it frees a live block; blocks may be live at the end.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,512,0\n";
/// let trace = warpool::observe::Trace::read_from("log", log.as_bytes(), u64::MAX)?;
/// assert_eq!(trace.peak_live_bytes(), 512);
/// # Ok(())
/// # }
/// ```
///
/// Nothing but the reader makes or changes one, so each can be played:
///
/// ```compile_fail,E0616
/// fn halved(mut trace: warpool::observe::Trace) {
///     trace.streams.clear();
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    pub(super) name: String,
    pub(super) events: Vec<Event>,
    pub(super) streams: Vec<u64>,
    pub(super) blocks: u32,
    pub(super) peak_live_bytes: u64,
}

impl Trace {
    /// The name it was read under.
    #[must_use]
    #[doc(hidden)]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All events, in order.
    #[must_use]
    #[doc(hidden)]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The streams' names in the trace; an event's `stream` is an index into them.
    #[must_use]
    #[doc(hidden)]
    pub fn streams(&self) -> &[u64] {
        &self.streams
    }

    /// Number of blocks allocated.
    #[must_use]
    #[doc(hidden)]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The largest sum of bytes in live blocks.
    #[must_use]
    #[doc(hidden)]
    pub fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// Writes the trace as CSV, with new pointers.
    ///
    /// # Errors
    /// Any error of the writer.
    #[doc(hidden)]
    pub fn write_csv(&self, to: impl std::io::Write) -> std::io::Result<()> {
        let mut writer = TraceWriter::new(to)?;
        for event in &self.events {
            let pointer = writer::POINTER_BASE + u64::from(event.block) * writer::POINTER_STEP;
            let stream = self
                .streams
                .get(usize::from(event.stream))
                .copied()
                .unwrap_or_default();
            match event.kind {
                EventKind::Alloc => writer.allocate(pointer, event.bytes, stream)?,
                EventKind::Free => writer.free(pointer, event.bytes, stream)?,
            }
        }
        writer.finish().map(drop)
    }
}
