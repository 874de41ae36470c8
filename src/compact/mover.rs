//! The stream that moves, and the device memory its tables stand in.
//!
//! Tables are uploaded on a stream of their own, which no queued work holds up, into a few places
//! used in turn. They stand apart from the pool: a pool that is full has no room for them, and that
//! is when they are needed.

use std::sync::Arc;

use super::plan::{Batch, Move, VOID};
use super::table::{MoveTable, SlideTable};
use crate::device::{Addr, COMPACTION, Device, Event, Launch, Overhead, Scratch, Stream, beside};
use crate::driver::abi;
use crate::error::Result;
use crate::seeded::seeded;

/// Places for tables.
const PLACES: usize = 4;

/// Bytes of a place, beyond those that the tiles of a block as large as the device take.
const PLACE_BYTES: u64 = 256 << 10;

/// Bytes copied to the device at once. A driver takes a copy of a piece of this size and returns;
/// for a larger one from memory that is not page-locked it holds the caller.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of a move in the table of a slide, and of a range in that of a patch.
const RANGE_BYTES: u64 = size_of::<abi::wp_move>() as u64;

/// Bytes of a word in the table of a scatter.
const WORD_BYTES: u64 = size_of::<abi::wp_word>() as u64;

/// Most bytes a disjoint move takes in its table, its tiles apart.
const MOVE_BYTES: u64 = 20;

/// Bytes of a move for each entry of its table's index of tiles, which has 4 bytes.
const GROUP_SPAN: u64 = abi::WP_MOVE_TILE as u64 * abi::WP_TILE_GROUP as u64;

/// Flags of a slide's scratch that are not those of whole tiles between its first and last byte.
const FLAGS_BESIDE: u64 = 32;

/// What the address of a table is a multiple of.
const TABLE_ALIGN: usize = 16;

/// Most bytes of flags made so that a slide is one launch; those of 128 GiB.
const MOST_FLAGS: u64 = 64 << 20;

/// See the module documentation.
pub(crate) struct Mover {
    pub(crate) stream: Stream,
    upload: Stream,
    tables: Scratch,
    place_bytes: u64,
    next: usize,
    /// Recorded behind the launch that read a place last.
    read: Vec<Event>,
    /// Flags of slides, which run one after the other; the last is the one in use. Each time there
    /// are more they are twice as many or more, so together they are less than twice the last.
    flags: Vec<Scratch>,
    overhead: Overhead,
}

/// Moves of one launch: disjoint ones, or a slide upwards or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) slide: Option<bool>,
    pub(crate) moves: &'a [Move],
}

/// A part's table as its launch reads it.
enum Table {
    Disjoint(MoveTable),
    Slide(SlideTable),
}

impl Mover {
    /// What it has of device memory counts as `overhead`: at most an 8,000th of the device and 3 MiB
    /// for tables, and for flags 128 MiB, or twice those that one slide of the largest block needs.
    pub(crate) fn new(device: &Device, overhead: &Overhead) -> Result<Self> {
        let (stream, upload) = (device.stream()?, device.stream()?);
        stream.set_name(COMPACTION);
        upload.set_name(COMPACTION);
        let tiles = device.info().total_bytes / GROUP_SPAN * 4;
        let place_bytes = (PLACE_BYTES + tiles).next_multiple_of(64);
        Ok(Self {
            stream,
            upload,
            tables: Scratch::counted(device, PLACES as u64 * place_bytes, overhead)?,
            place_bytes,
            next: 0,
            read: (0..PLACES).map(|_| device.event()).collect::<Result<_>>()?,
            flags: vec![Scratch::counted(device, 1, overhead)?],
            overhead: overhead.clone(),
        })
    }

    /// Most ranges that one patch takes.
    pub(crate) fn most_ranges(&self) -> usize {
        (self.place_bytes / RANGE_BYTES) as usize
    }

    /// Puts `image` into the next place, ready for the moving stream; gives its address. The launch
    /// that reads it is queued before the next upload.
    fn upload(&mut self, image: Vec<u8>) -> Result<Addr> {
        let addr = self.tables.addr() + self.next as u64 * self.place_bytes;
        // What reads the place used last is queued by now. The wait is for the launch that read
        // this one, a round ago: for the latest, the copy would hold the host up until it is done.
        self.read[(self.next + PLACES - 1) % PLACES].record(&self.stream)?;
        if !seeded!("table-overwritten-while-in-use") {
            self.upload.wait(&self.read[self.next])?;
        }
        let image = Arc::new(image);
        let placed = self.copy(addr, &image).and_then(|()| self.let_go(&image));
        if let Err(error) = placed {
            // Pieces may be on their way.
            if self.upload.synchronize().is_err() {
                std::mem::forget(image);
            }
            return Err(error);
        }
        self.next = (self.next + 1) % PLACES;
        Ok(addr)
    }

    fn copy(&self, addr: Addr, image: &Arc<Vec<u8>>) -> Result<()> {
        let (backend, raw) = (self.upload.device().backend(), self.upload.raw());
        for (piece, at) in image.chunks(PIECE_BYTES).zip((0..).step_by(PIECE_BYTES)) {
            // SAFETY: the place has room for the image, which the caller keeps until the copies are
            // done or the call queued behind them lets go of it.
            unsafe { backend.copy_in(addr + at, piece.as_ptr(), piece.len() as u64, raw)? };
        }
        Ok(())
    }

    /// Has the moving stream wait for the copies, and the image kept until they are done: by a call
    /// that the moves do not wait for.
    fn let_go(&self, image: &Arc<Vec<u8>>) -> Result<()> {
        if !seeded!("moves-before-their-table") {
            self.stream.wait_stream(&self.upload)?;
        }
        let image = Arc::clone(image);
        let backend = self.upload.device().backend();
        backend.host_call(self.upload.raw(), Box::new(move || drop(image)))
    }

    /// Cuts `batch` into parts of one launch each, in the order they have to be made in. A block is
    /// moved by one launch, so that a failure between two leaves every block whole.
    ///
    /// `reserved` is what the pool holds, which a later slide may go over.
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
            // Without memory for so many flags there are more launches.
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
        // A part's destinations may lie over the sources of those it moves towards.
        if upward && !seeded!("upward-parts-from-below") {
            parts.reverse();
        }
        parts
    }

    /// Puts the tables of `parts` in place, addresses for offsets from `base`, and gives a launch for
    /// each: of the first ones where not all fit into one place. They are queued before the next
    /// call.
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
        // As many thread blocks as the device takes.
        let launches = tables.iter().map(|(table, offset)| match table {
            Table::Disjoint(table) => Ok(Launch::Relocate(table.args(at + offset, 0))),
            Table::Slide(table) => Ok(Launch::Slide(table.args(at + offset, flags, 0)?)),
        });
        launches.collect()
    }

    /// Queues moves that [`Mover::prepare`] gave.
    pub(crate) fn launch(&self, launch: &Launch) -> Result<()> {
        // SAFETY: sources and destinations are mapped memory of the pool that the stream runs
        // behind; the table is in place, and the flags have the room it asks for.
        unsafe { self.queue(launch) }
    }

    /// Queues the rewriting of pointers into `ranges`, ascending and at most
    /// [`Mover::most_ranges`], in the arrays of (address, slots) that `arrays` gives.
    ///
    /// # Safety
    /// The arrays are device memory that the moving stream runs behind the uses of.
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
            // SAFETY: the caller vouches for the slots; the ranges are in place.
            unsafe { self.queue(&launch)? };
            each();
        }
        Ok(())
    }

    /// Queues the storing of (address, value) words.
    ///
    /// # Safety
    /// The addresses are device memory, multiples of 8, that the moving stream runs behind the uses
    /// of; none occurs twice.
    pub(crate) unsafe fn store(&mut self, words: &[[u64; 2]]) -> Result<()> {
        for part in words.chunks((self.place_bytes / WORD_BYTES) as usize) {
            let at = self.upload(bytemuck::cast_slice(part).to_vec())?;
            let launch = Launch::Scatter(abi::wp_scatter {
                words: at,
                count: part.len() as u64,
            });
            // SAFETY: the caller vouches for the addresses; the words are in place.
            unsafe { self.queue(&launch)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Backend::launch`](crate::device::Backend::launch).
    unsafe fn queue(&self, launch: &Launch) -> Result<()> {
        // SAFETY: the caller's obligations are the backend's.
        unsafe {
            let backend = self.stream.device().backend();
            let early = seeded!("patch-before-move") && matches!(launch, Launch::Patch(_));
            let stream = if early { &self.upload } else { &self.stream };
            backend.launch(launch, stream.raw())
        }
    }

    fn flags_bytes(&self) -> u64 {
        self.flags.last().map_or(0, Scratch::bytes)
    }

    /// Flags for a slide that asks for `bytes`.
    fn flags(&mut self, bytes: u64) -> Result<Addr> {
        if bytes > self.flags_bytes() {
            // Twice as many, so that growing comes to an end; as many as are needed if need be.
            let device = self.stream.device();
            let twice = (2 * self.flags_bytes()).min(MOST_FLAGS);
            let larger = Scratch::counted(device, bytes.max(twice), &self.overhead)
                .or_else(|_| Scratch::counted(device, bytes, &self.overhead))?;
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
        beside(move || {
            for stream in &streams {
                // One that cannot be waited for has failed, and runs nothing more.
                let _ = stream.synchronize();
            }
            drop(memory);
        });
    }
}

/// Most bytes from the first source to the end of the last among moves without a void between them.
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

/// Cuts `moves` before each at which `full` says so, given the number of moves in the part so far;
/// never before the first of a part.
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
