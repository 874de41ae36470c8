//! The stream that executes moves, and the device memory for its tables.
//!
//! Tables are uploaded on a separate stream, which no queued work delays, into a few places used in
//! turn. They are not allocated from the pool: compaction is needed when the pool is full, and then
//! it has no space for them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::backlog::Backlog;
use super::move_table::{MoveTable, SlideTable};
use super::plan::{Batch, Move, VOID};
use crate::device::{Addr, COMPACTION, Device, Event, Launch, Overhead, Scratch, Stream, beside};
use crate::driver::abi;
use crate::error::Result;

/// Number of places for tables.
const PLACES: usize = 4;

/// Bytes of a place, not counting the tile index of a block as large as the device.
const PLACE_BYTES: u64 = 256 << 10;

/// Bytes per copy to the device. A driver returns at once from a copy of this size; from a larger
/// one out of pageable memory it returns only when the copy is done.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of one move in a slide's table, and of one range in a patch's.
const RANGE_BYTES: u64 = size_of::<abi::wp_move>() as u64;

/// Bytes of one word in a scatter's table.
const WORD_BYTES: u64 = size_of::<abi::wp_word>() as u64;

/// Most bytes of one disjoint move in its table, without its tile index.
const MOVE_BYTES: u64 = 20;

/// Bytes of a move per entry of its table's tile index. An entry has 4 bytes.
const GROUP_SPAN: u64 = abi::WP_MOVE_TILE as u64 * abi::WP_TILE_GROUP as u64;

/// Flags in a slide's scratch in addition to one per whole tile from its first to its last byte.
const FLAGS_BESIDE: u64 = 32;

/// Alignment of a table, in bytes.
const TABLE_ALIGN: usize = 16;

/// Most bytes of flags allocated to keep a slide in one launch: enough for 128 GiB.
const MOST_FLAGS: u64 = 64 << 20;

/// Executes moves; see the module documentation.
pub(crate) struct Mover {
    pub(crate) stream: Stream,
    upload: Stream,
    tables: Scratch,
    place_bytes: u64,
    next: usize,
    /// For each place, an event recorded after the launch that read it last.
    read: Vec<Event>,
    /// Recorded after each upload. Made before, as a driver may make no event while a host call asks for the caller's lock.
    uploaded: Event,
    /// The tables that are being copied, oldest first, and the tick of the moving stream after which they are; after
    /// none if the upload failed, whose first pieces may be queued.
    images: VecDeque<(u64, Vec<u8>)>,
    /// Flags of slides, which run one after the other; the last allocation is in use. Each
    /// allocation is at least twice the one before, so all together are less than twice the last.
    flags: Vec<Scratch>,
    overhead: Overhead,
    backlog: Backlog,
}

/// The moves of one launch: disjoint ones (`None`), or a slide (`Some(upward)`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) slide: Option<bool>,
    pub(crate) moves: &'a [Move],
}

/// A part's table in the form that its kernel reads.
enum Table {
    Disjoint(MoveTable),
    Slide(SlideTable),
}

impl Mover {
    /// Its device memory counts as `overhead`: for tables at most 1/8,000 of the device's memory
    /// plus 3 MiB, and for flags 128 MiB, or twice what one slide of the largest block needs.
    pub(crate) fn new(device: &Device, overhead: &Overhead) -> Result<Self> {
        let (stream, upload) = (device.stream()?, device.stream()?);
        stream.set_name(COMPACTION);
        upload.set_name(COMPACTION);
        let tiles = device.info().total_bytes / GROUP_SPAN * 4;
        let place_bytes = (PLACE_BYTES + tiles).next_multiple_of(64);
        // First: a host call makes no such memory.
        let flags = vec![Scratch::counted(device, 1, overhead)?];
        Ok(Self {
            stream,
            upload,
            tables: Scratch::of_any_value(device, PLACES as u64 * place_bytes, overhead)?,
            place_bytes,
            next: 0,
            read: (0..PLACES).map(|_| device.event()).collect::<Result<_>>()?,
            uploaded: device.event()?,
            images: VecDeque::new(),
            flags,
            overhead: overhead.clone(),
            backlog: Backlog::new(device)?,
        })
    }

    /// What callers wait for, without a lock, before they queue more on the moving stream: see [`Backlog`].
    pub(crate) fn backlog(&mut self) -> Option<Arc<Event>> {
        self.backlog.record_to_wait_for(&self.stream)
    }

    /// Most ranges of one patch.
    pub(crate) fn most_ranges(&self) -> usize {
        (self.place_bytes / RANGE_BYTES) as usize
    }

    /// Copies `image` into the next place, ordered before the moving stream's next work; returns
    /// its address. The caller queues the launch that reads it before the next upload.
    fn upload(&mut self, image: Vec<u8>) -> Result<Addr> {
        let timeline = &self.stream.core().timeline;
        let done = timeline.done();
        while self.images.front().is_some_and(|(tick, _)| *tick <= done) {
            self.images.pop_front();
        }
        let addr = self.tables.addr() + self.next as u64 * self.place_bytes;
        // The launch that read the place of the last upload is queued by now, so its event can be
        // recorded. The upload waits for the launch that read this place, `PLACES` uploads ago.
        // Waiting for the latest launch would block the host in the copy until that launch is done.
        self.read[(self.next + PLACES - 1) % PLACES].record(&self.stream)?;
        self.upload.wait(&self.read[self.next])?;
        self.backlog.add_copy(image.len() as u64);
        self.images.push_back((u64::MAX, image));
        self.copy(addr)?;
        self.uploaded.record(&self.upload)?;
        self.stream.wait(&self.uploaded)?;
        let copied = self.images.iter_mut().rev();
        let copied = copied.take_while(|(tick, _)| *tick == u64::MAX);
        copied.for_each(|(tick, _)| *tick = timeline.open_tick());
        self.next = (self.next + 1) % PLACES;
        Ok(addr)
    }

    /// Queues copies of the last image to `addr`.
    fn copy(&self, addr: Addr) -> Result<()> {
        let (backend, raw) = (self.upload.device().backend(), self.upload.raw());
        let image = self.images.back().map_or(&[][..], |(_, image)| image);
        for (piece, at) in image.chunks(PIECE_BYTES).zip((0..).step_by(PIECE_BYTES)) {
            // SAFETY: the place has space for the image, which lives until the copies are done.
            unsafe { backend.copy_in(addr + at, piece.as_ptr(), piece.len() as u64, raw)? };
        }
        Ok(())
    }

    /// Splits `batch` into parts of one launch each, in the order of execution. One launch moves a
    /// block whole, so a failure between two launches leaves every block whole.
    ///
    /// `reserved` is the pool's reserved bytes: flags are allocated for a slide over all of them,
    /// so that a later, longer slide finds enough.
    pub(crate) fn parts<'a>(&mut self, batch: &'a Batch, reserved: u64) -> Vec<Part<'a>> {
        let (slide, parts) = match batch {
            Batch::Disjoint(moves) => (None, self.cut_disjoint(moves)),
            Batch::Slide { upward, moves } => {
                (Some(*upward), self.cut_slide(*upward, moves, reserved))
            }
            Batch::Circle { pieces, .. } => {
                let parts = pieces.iter().map(|piece| self.parts(piece, reserved));
                return parts.flatten().collect();
            }
        };
        let parts = parts.into_iter();
        parts.map(|moves| Part { slide, moves }).collect()
    }

    fn cut_disjoint<'a>(&self, moves: &'a [Move]) -> Vec<&'a [Move]> {
        let mut groups = 0;
        cut_where(moves, |count, m| {
            groups = if count == 0 { 0 } else { groups } + m.bytes.div_ceil(GROUP_SPAN);
            (count + 1) * MOVE_BYTES + groups * 4 + 4 > self.place_bytes
        })
    }

    fn cut_slide<'a>(&mut self, upward: bool, moves: &'a [Move], reserved: u64) -> Vec<&'a [Move]> {
        let span = longest_span(moves);
        let bytes = |span: u64| (span / u64::from(abi::WP_SLIDE_TILE) + FLAGS_BESIDE) * 4;
        if bytes(span) > self.flags_bytes() {
            // If the allocation fails, the slide takes more launches.
            let _ = self.flags(bytes(span.max(reserved)).min(MOST_FLAGS));
        }
        let tiles = (self.flags_bytes() / 4).saturating_sub(FLAGS_BESIDE);
        let span = tiles * u64::from(abi::WP_SLIDE_TILE);
        let (mut lowest, mut end) = (0, 0);
        let mut parts = cut_where(moves, |count, m| {
            if count == 0 {
                (lowest, end) = (m.src, m.src);
            }
            let apart = m.src - end > VOID;
            end = m.src + m.bytes;
            apart || end > lowest + span || (count + 1) * RANGE_BYTES > self.place_bytes
        });
        // A part's destinations may overlap the sources of the part in the direction of the slide,
        // so that part goes first.
        if upward {
            parts.reverse();
        }
        parts
    }

    /// Uploads the tables of `parts`, with `base` added to their offsets, and returns one launch
    /// per part. If not all tables fit into one place, it returns launches for the first parts
    /// only. The caller queues them before the next call.
    pub(crate) fn prepare(&mut self, parts: &[Part<'_>], base: Addr) -> Result<Vec<Launch>> {
        let (mut image, mut tables) = (Vec::new(), Vec::new());
        for part in parts {
            let based: Vec<Move> = part.moves.iter().map(|m| based(m, base)).collect();
            let (table, bytes) = match part.slide {
                None => {
                    let table = MoveTable::new(&based)?;
                    let bytes = table.image();
                    (Table::Disjoint(table), bytes)
                }
                Some(upward) => {
                    let table = SlideTable::new(&based, upward)?;
                    let bytes = table.image().to_vec();
                    (Table::Slide(table), bytes)
                }
            };
            image.resize(image.len().next_multiple_of(TABLE_ALIGN), 0);
            if !image.is_empty() && (image.len() + bytes.len()) as u64 > self.place_bytes {
                break;
            }
            tables.push((table, image.len() as u64));
            image.extend(bytes);
        }
        let scratch = tables.iter().map(|(table, _)| match table {
            Table::Disjoint(_) => 0,
            Table::Slide(table) => table.scratch_bytes(),
        });
        let flags = self.flags(scratch.max().unwrap_or(0))?;
        let at = self.upload(image)?;
        // A `max_blocks` of 0: as many thread blocks as the device runs at once.
        let launches = tables.iter().map(|(table, offset)| match table {
            Table::Disjoint(table) => Ok(Launch::Relocate(table.args(at + offset, 0))),
            Table::Slide(table) => Ok(Launch::Slide(table.args(at + offset, flags, 0)?)),
        });
        launches.collect()
    }

    /// Queues a launch that [`Mover::prepare`] returned.
    pub(crate) fn launch(&mut self, launch: &Launch) -> Result<()> {
        // SAFETY: sources and destinations are mapped memory of the pool and the stream is ordered
        // after their uses; the table is uploaded, and the flags are as large as it needs.
        unsafe { self.queue(launch) }
    }

    /// Queues kernels that rewrite the pointers into `ranges`, one for each array (address, slots)
    /// of `arrays`. The ranges ascend and are at most [`Mover::most_ranges`].
    ///
    /// # Safety
    /// The arrays are device memory, and the moving stream is ordered after all their uses.
    pub(crate) unsafe fn patch(
        &mut self,
        ranges: &[Move],
        arrays: impl Iterator<Item = (Addr, u64)>,
        mut each: impl FnMut(),
    ) -> Result<()> {
        let words: Vec<u64> = ranges
            .iter()
            .flat_map(|m| [m.src, m.dst, m.bytes])
            .collect();
        let at = self.upload(bytemuck::cast_slice(&words).to_vec())?;
        for (slots, slot_count) in arrays {
            let launch = Launch::Patch(abi::wp_patch {
                slots,
                slot_count,
                ranges: at,
                range_count: ranges.len() as u32,
                max_blocks: 0,
            });
            // SAFETY: the caller guarantees the slots; the ranges are uploaded.
            unsafe { self.queue(&launch)? };
            each();
        }
        Ok(())
    }

    /// Queues stores of (address, value) pairs.
    ///
    /// # Safety
    /// The addresses are device memory, multiples of 8, and none occurs twice. The moving stream is
    /// ordered after all their uses.
    pub(crate) unsafe fn store(&mut self, words: &[[u64; 2]]) -> Result<()> {
        for part in words.chunks((self.place_bytes / WORD_BYTES) as usize) {
            let at = self.upload(bytemuck::cast_slice(part).to_vec())?;
            let launch = Launch::Scatter(abi::wp_scatter {
                words: at,
                count: part.len() as u64,
            });
            // SAFETY: the caller guarantees the addresses; the words are uploaded.
            unsafe { self.queue(&launch)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Backend::launch`](crate::device::Backend::launch).
    unsafe fn queue(&mut self, launch: &Launch) -> Result<()> {
        self.backlog.add_launch();
        // SAFETY: the caller's obligations are the backend's.
        unsafe {
            let backend = self.stream.device().backend();
            backend.launch(launch, self.stream.raw())
        }
    }

    fn flags_bytes(&self) -> u64 {
        self.flags.last().map_or(0, Scratch::bytes)
    }

    /// Returns flags of at least `bytes`, allocating if the present ones are too small. Waits for nothing, as the
    /// caller has locks.
    fn flags(&mut self, bytes: u64) -> Result<Addr> {
        if bytes > self.flags_bytes() {
            // At least twice the present size, so that growth ends soon; if that fails, only what
            // is needed.
            let twice = (2 * self.flags_bytes()).min(MOST_FLAGS);
            let make = |bytes| Scratch::zeroed_on(&self.stream, bytes, &self.overhead);
            let larger = make(bytes.max(twice)).or_else(|_| make(bytes))?;
            self.flags.push(larger);
        }
        Ok(self.flags.last().map_or(0, Scratch::addr))
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let streams = [self.upload.clone(), self.stream.clone()];
        let (tables, flags) = (self.tables.take(), std::mem::take(&mut self.flags));
        let memory = (tables, flags, std::mem::take(&mut self.read));
        let mut images = std::mem::take(&mut self.images);
        beside(move || {
            for stream in &streams {
                // A stream whose wait fails has failed itself and runs no more work.
                if stream.core().synchronize_memory().is_err() {
                    std::mem::forget(std::mem::take(&mut images));
                }
            }
            drop((memory, images));
        });
    }
}

/// Most bytes from the first source to the end of the last, over runs of moves without a [`VOID`]
/// between them.
fn longest_span(moves: &[Move]) -> u64 {
    let (mut longest, mut lowest, mut end) = (0, 0, 0);
    for m in moves {
        if end == 0 || m.src - end > VOID {
            lowest = m.src;
        }
        end = m.src + m.bytes;
        longest = longest.max(end - lowest);
    }
    longest
}

fn based(m: &Move, base: Addr) -> Move {
    Move {
        src: base + m.src,
        dst: base + m.dst,
        bytes: m.bytes,
    }
}

/// Splits `moves` before each move for which `full` returns true. `full` receives the number of
/// moves in the part so far. A part has at least one move.
fn cut_where(moves: &[Move], mut full: impl FnMut(u64, &Move) -> bool) -> Vec<&[Move]> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for (at, m) in moves.iter().enumerate() {
        if full((at - from) as u64, m) && at > from {
            parts.push(&moves[from..at]);
            from = at;
            full(0, m);
        }
    }
    if from < moves.len() {
        parts.push(&moves[from..]);
    }
    parts
}

#[cfg(test)]
mod tests;
