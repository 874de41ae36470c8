//! Blocks: allocated bytes, freed in stream order when dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::ask::Questions;
use super::cache::Cached;
use super::cache::stream_cache::rounded;
use super::cache::thread_map::nearby;
use super::observers::Event;
use super::private::keep_block;
use super::structure::{Block, IdAndSlack, Lane, LanePtr};
use crate::device::{
    Addr, Left, Recorder, Stream, StreamCore, Timeline, beside, is_running, lock, may_wait,
    stream_words,
};
use crate::error::{Error, Result, refuse};
use crate::heap::size_class::is_slot;
use crate::heap::{Epoch, Id, NONE, UNIT};
use crate::sync::latch;

impl Block {
    pub(crate) fn new(lane: &Lane, id: Id, addr: Addr, bytes: u64, requested: u64) -> Self {
        let extent = IdAndSlack::of(id, bytes, requested);
        let block = Self::unseen(lane, addr, extent, requested);
        block.tell(Event::Alloc);
        block
    }

    /// A block that is not announced to observers.
    #[inline]
    pub(super) fn unseen(lane: &Lane, addr: Addr, extent: IdAndSlack, requested: u64) -> Self {
        Self {
            lane: LanePtr::of(lane),
            addr,
            requested,
            extent,
            uses: None,
        }
    }

    /// A block of `home` that is being freed, for those who are told of that or keep it.
    pub(super) fn freed(home: &Lane, block: &Cached, requested: u64) -> ManuallyDrop<Self> {
        let extent = IdAndSlack::of(block.id, block.bytes, requested);
        ManuallyDrop::new(Self::unseen(home, block.addr, extent, requested))
    }

    /// All captures that have to keep the block when it is freed on `stream`: those of declared uses, of that stream
    /// and of the block's own; perhaps one several times. None if there is no capture, or only that of that stream, whose
    /// memory the block is: any other may end between the waits and the free, which would not find it. A graph keeps its
    /// own memory in any case.
    fn captures_beyond(&self, stream: &StreamCore) -> Vec<Arc<Recorder>> {
        let streams = self.uses.iter().flat_map(|uses| &uses.streams);
        let left = self.uses.iter().flat_map(|uses| &uses.left.graphs);
        let left = left.filter(|graph| !graph.is_over()).cloned();
        let declared = (streams.filter_map(Stream::recorder)).chain(left);
        let private = self.lane().private.as_ref();
        let has_memory =
            |it: &Arc<Recorder>| private.is_some_and(|of| Arc::ptr_eq(&of.recorder, it));
        let declared: Vec<_> = declared.filter(|it| !has_memory(it)).collect();
        let theirs = stream.timeline.recorder();
        if declared.is_empty() && theirs.as_ref().is_none_or(has_memory) {
            return Vec::new();
        }
        let own = self.lane().stream.timeline.recorder();
        let others = theirs.into_iter().chain(own);
        declared.into_iter().chain(others).collect()
    }

    /// Whether the block is a part of a graph's memory, which has no extent.
    pub(crate) fn is_private(&self) -> bool {
        self.id() == NONE
    }

    /// Makes the free run behind the uses that a typed buffer left.
    #[cold]
    pub(super) fn outlast(&mut self, left: Left) {
        self.uses.get_or_insert_default().left = left;
        if !is_running() {
            self.join_branches();
        }
    }

    fn join_branches(&mut self) {
        let branches = (self.uses.as_mut()).map(|uses| std::mem::take(&mut uses.left.branches));
        // The capture may allocate the memory again, so the home stream's branch has to run behind the others.
        let home = &self.lane().stream.timeline;
        if let Some(own) = home.recorder() {
            let is_of = |on: &Timeline| on.recorder().is_some_and(|it| Arc::ptr_eq(&it, &own));
            for on in branches.iter().flatten().filter(|on| is_of(on)) {
                // If the driver makes no event, the capture has failed.
                let _ = home.wait_for(on, u64::MAX);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn lane(&self) -> &Lane {
        // SAFETY: a block's lane lives until the block is freed.
        unsafe { self.lane.get() }
    }

    pub(crate) fn id(&self) -> Id {
        self.extent.id()
    }

    pub(crate) fn moved_to(&mut self, id: Id, addr: Addr) {
        self.extent = IdAndSlack::new(id, self.extent.slack());
        self.addr = addr;
    }

    /// Address of the first byte: a multiple of 16 and of every power of two up to 256 that divides the bytes that the
    /// block was allocated with; of 256 for more than 4096 bytes, under capture, and in a pool without
    /// [`slabs`](super::PoolConfig::slabs).
    #[must_use]
    #[inline]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes asked for.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.requested
    }

    /// Bytes the block has: [`Block::bytes`] as the pool rounds them. If threads meet at the pool's lock, the block
    /// may be a free one that is larger by up to an eighth, or by up to 4 KiB but no more than the rounded size.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.requested + u64::from(self.extent.slack())
    }

    /// The [`id`](Stream::id) of the stream the block was allocated on.
    #[must_use]
    pub fn stream_id(&self) -> u64 {
        self.lane().stream.timeline.uid
    }

    /// Declares that work queued on `stream`, before or after this call, uses the block. After the drop, the memory
    /// is reused only once all work queued on `stream` by the drop is done, or behind a wait for it on the device.
    ///
    /// The block's own stream waits for that work only if a request finds no other memory. It waits at the drop under
    /// capture, if 256 dropped blocks are still used, and in a pool that is watched, recorded, tracked, or set [not to
    /// use memory whose work is done](super::PoolConfig::reuse).
    ///
    /// ```
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let (reader, consumer) = (device.stream()?, device.stream()?);
    /// let (mut block, handed_over) = (pool.alloc(&stream, 1000)?, pool.alloc(&stream, 1000)?);
    /// reader.wait_stream(&stream)?; // what the reader finds
    /// block.record_use(&reader)?;
    /// drop(block); // behind what `reader` was given
    /// consumer.wait_stream(&stream)?;
    /// handed_over.free_on(&consumer)?;
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device.
    #[doc(alias = "record_stream")]
    pub fn record_use(&mut self, stream: &Stream) -> Result<()> {
        let shared = &self.lane().shared;
        shared.refuse_other_device(stream)?;
        (stream.recorder()).inspect(|it| it.record().sleeps_with(&shared.awake));
        if stream.id() == self.stream_id() {
            return Ok(());
        }
        let uses = &mut self.uses.get_or_insert_default().streams;
        if !uses.contains(stream) {
            uses.push(stream.clone());
        }
        Ok(())
    }

    /// Frees all but the first `bytes`, in the block's stream order and behind every use declared by
    /// [`Block::record_use`] or left by a typed buffer. It frees multiples of 256 bytes, and nothing of a block in a
    /// slab. The address stays.
    ///
    /// ```
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// let mut block = pool.alloc(&stream, 1 << 20)?;
    /// block.shrink(1000)?;
    /// assert_eq!(block.bytes(), 1000);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, or more than the block has; for a block whose stream, or a declared stream, is
    /// under capture, unless the block was allocated in that capture; in a host call, for a block with declared uses.
    /// What the driver said to a wait for such a use. The block is then as it was.
    pub fn shrink(&mut self, bytes: u64) -> Result<()> {
        refuse!(bytes == 0 || bytes > self.requested => "bytes",
            "{bytes} is not between 1 and the block's {}", self.requested);
        let before = self.capacity();
        let more = before.saturating_sub(bytes.next_multiple_of(UNIT));
        let rest = more * u64::from(!is_slot(before));
        let capacity = before - rest;
        if rest > 0 {
            self.wait_for_tail_uses()?;
        } else if bytes == self.requested {
            return Ok(());
        }
        self.tell(Event::Resize(before, capacity, bytes));
        // Before another block may have the rest.
        self.resized(capacity, bytes);
        let lane = self.lane();
        if let (Some(private), 1..) = (&lane.private, rest) {
            lock(&private.parts).file(self.addr + capacity, rest);
        } else if rest > 0 {
            let epoch = Epoch::new(lane.slot, lane.open_tick());
            (lane.shared.core.lock()).shrink(self.id(), rest, epoch);
        }
        Ok(())
    }

    fn resized(&mut self, capacity: u64, bytes: u64) {
        let sizes = [(self.capacity(), self.requested), (capacity, bytes)];
        (self.lane()).count(|counters, away| counters.resize(sizes, away));
        self.requested = bytes;
        self.extent = IdAndSlack::of(self.id(), capacity, bytes);
    }

    /// Makes the block's stream wait for all uses; an error if captured work uses the block.
    fn wait_for_tail_uses(&self) -> Result<()> {
        if !self.is_private() {
            self.lane().stream.refuse_under_capture()?;
        }
        let uses = self.uses.as_ref();
        refuse!(uses.is_some() && !self.captures_beyond(&self.lane().stream).is_empty() => "stream",
            "a stream declared to use the block is being captured: its graph would use what is given back");
        uses.map_or(Ok(()), |uses| {
            may_wait().and_then(|()| uses.wait(&self.lane().timeline))
        })
    }

    /// Grows the block in place to at least `bytes`; false, with nothing done, if the memory behind it is not free, or if
    /// the block's stream has to wait for `waits` first. The added memory is ready behind the work that the stream has so
    /// far. So not under capture, where only launches of the graph run that work.
    pub(crate) fn grow(&mut self, bytes: u64, waits: &mut Questions) -> Result<bool> {
        let before = self.capacity();
        debug_assert!(!is_slot(before), "movable blocks are no slots");
        let capacity = rounded(bytes)?.max(before);
        let (id, lane, more) = (self.id(), self.lane(), capacity - before);
        // Private memory has no extent.
        let may_grow = more > 0 && !self.is_private() && !lane.timeline.is_captured();
        let mut grow = || (lane.shared.core.lock()).grow(id, more, lane.slot, waits);
        if more > 0 && !(may_grow && grow()) {
            return Ok(false);
        }
        self.resized(capacity, bytes);
        self.tell(Event::Resize(before, capacity, bytes));
        Ok(true)
    }

    /// Frees the block in the order of `stream` instead of its own. Work that uses the block, and what the block's own
    /// stream was given before the allocation, must be ordered before this point of `stream`. [`Block::record_use`]
    /// has an example.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; the block is then freed on its own stream. What the
    /// driver said to a wait for a declared use; the host then waits instead. In a host call, another thread frees it.
    pub fn free_on(self, stream: &Stream) -> Result<()> {
        if stream.id() == self.stream_id() {
            return Ok(());
        }
        if is_running() {
            self.lane().shared.refuse_other_device(stream)?;
            let stream = stream.clone();
            // Its waits call the driver, and ask for locks.
            beside(move || _ = self.free_on(&stream));
            return Ok(());
        }
        let lane = nearby(&self.lane().shared, stream)?;
        if self.uses.is_some() || lane.is_none() {
            let captures = self.captures_beyond(stream.core());
            if !captures.is_empty() {
                keep_block(self, captures, stream.core());
                return Ok(());
            }
        }
        let Some(lane) = lane else {
            // The pool is closed and has no lane for `stream`: the block's own stream waits instead.
            let theirs = &stream.core().timeline;
            return self.lane().timeline.wait_surely(theirs, theirs.open_tick());
        };
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the caller holds the stream, and the block is not freed yet.
        let lane = unsafe { lane.get() };
        let uses = this.uses.take();
        let transfer = &lane.shared.transfer;
        let waited = uses.map_or(Ok(()), |uses| transfer.timed(|| uses.wait(&lane.timeline)));
        let freed = Cached::new(this.id(), this.addr, this.capacity(), lane.open_tick());
        lane.free_slowly(latch(&lane.state), this.lane(), freed, this.requested);
        waited
    }
}

/// Frees a block behind its declared uses. If captured work uses it, the graph keeps it.
#[cold]
#[inline(never)]
fn free_used(mut block: Block) {
    block.join_branches();
    let captures = block.captures_beyond(&block.lane().stream);
    if !captures.is_empty() {
        let home = Arc::clone(&block.lane().stream);
        return keep_block(block, captures, &home);
    }
    let (Some(uses), lane) = (block.uses.take(), block.lane()) else {
        return;
    };
    if let Some(Ok(marks)) = lane.keeps_used().then(|| uses.marks(lane)) {
        if marks.is_empty() {
            return;
        }
        if lane.free_used(&block, marks) {
            return std::mem::forget(block);
        }
    }
    // A stream that neither device nor host can wait for runs nothing more.
    let _ = (lane.shared.transfer).timed(|| uses.wait(&lane.timeline));
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // Nothing here takes the block's address, so that it need not be in memory.
        if let Some(uses) = self.uses.take() {
            let uses = Some(uses);
            let block = Self { uses, ..*self };
            return beside(move || free_used(block));
        }
        self.lane().free(self.addr, self.extent, self.requested);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addr, bytes, stream) = (self.addr, self.requested, self.stream_id());
        let name = self.lane().shared.device.stream_name(stream);
        let on = stream_words(stream, name.as_deref());
        write!(f, "Block({addr:#x}, {bytes} bytes, {on})")
    }
}
