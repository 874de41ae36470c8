//! Blocks that become smaller or larger where they are.

use super::{Block, Event};
use crate::error::{Error, Result};
use crate::heap::UNIT;
use crate::heap::size_class::is_slot;
use crate::pool::ask;
use crate::pool::cache::stream_cache::rounded;
use crate::pool::stats::counters::Sums;
use crate::pool::structure::IdAndSlack;
use crate::seeded::seeded;

impl Block {
    /// Gives back all but the first `bytes`, in the block's stream order and behind every use
    /// declared by [`Block::record_use`] or left by a typed buffer: a multiple of 256 bytes, so none of
    /// a block in a slab. The address stays.
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
    /// [`Error::Invalid`] for 0 bytes, or more than the block has; for a block whose stream, or a
    /// stream declared to use it, is being captured, unless it was allocated in that capture. What the
    /// driver said of a wait for a declared use. The block is then as it was.
    pub fn shrink(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 || bytes > self.requested {
            let most = self.requested;
            let why = format!("{bytes} is not between 1 and the block's {most}");
            return Err(Error::invalid("bytes", why));
        }
        let capacity = bytes.next_multiple_of(UNIT);
        let before = self.capacity();
        if capacity < before && !is_slot(before) {
            self.wait_for_tail_uses()?;
            self.tell(Event::Resize(before, capacity, bytes));
            let (sizes, lane) = ([self.size(), Sums::block(capacity, bytes)], self.lane());
            if let Some(private) = &lane.private {
                lane.shrink_private(private, self.addr, sizes);
            } else {
                let tick = lane.open_tick() * u64::from(!seeded!("tail-free-at-once"));
                let mut core = lane.shared.core.lock();
                lane.count(|counters, away| counters.resize(sizes, away));
                core.shrink(self.id(), before - capacity, lane.slot, tick);
            }
            self.resized(capacity, bytes);
        }
        Ok(())
    }

    fn resized(&mut self, capacity: u64, bytes: u64) {
        self.requested = bytes;
        self.extent = IdAndSlack::new(self.id(), (capacity - bytes) as u32);
    }

    /// Makes the block's stream wait for all uses; an error where captured work has the block.
    fn wait_for_tail_uses(&self) -> Result<()> {
        if !self.is_private() {
            self.lane().stream.refuse_under_capture()?;
        }
        match &self.uses {
            Some(_) if seeded!("shrunk-under-its-uses") => Ok(()),
            Some(_) if !self.captures_beyond(&self.lane().stream).is_empty() => {
                let why = "a stream declared to use the block is being captured: its graph would \
                           use what is given back";
                Err(Error::invalid("stream", why))
            }
            uses => (uses.iter()).try_for_each(|uses| uses.wait(&self.lane().timeline)),
        }
    }

    /// Lets the block have at least `bytes`, not less than it has, where it is; false, with nothing done,
    /// where the memory behind it is not free. What is added is ready behind what the block's own stream
    /// was given so far: not under capture, where that is work that only launches of its graph run.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<bool> {
        let before = self.capacity();
        if is_slot(before) {
            return Ok(false);
        }
        let capacity = rounded(bytes)?.max(before);
        let (id, lane, more) = (self.id(), self.lane(), capacity - before);
        // Private memory is no extent.
        let may_grow = more > 0 && !self.is_private() && !lane.timeline.is_captured();
        if may_grow {
            (lane.shared).work(|core| ask::some(core.waits_to_grow(id, more, lane.slot)))?;
        }
        let mut core = lane.shared.core.lock();
        if more > 0 && !(may_grow && core.grow(id, more, lane.slot)) {
            return Ok(false);
        }
        let sizes = [self.size(), Sums::block(capacity, bytes)];
        lane.count(|counters, away| counters.resize(sizes, away));
        drop(core);
        self.resized(capacity, bytes);
        self.tell(Event::Resize(before, capacity, bytes));
        Ok(true)
    }
}
