//! Parts of a pool by tag: each is a pool of its own, with its own addresses and handles.

use std::sync::Arc;

use super::pressure::Need;
use super::{FAMILY_RANK, Handle, Pool, Shared};
use crate::device::{lock, may_wait};
use crate::error::{Error, Result};

/// Makes a part ask the others, once, if the device is short, not if its own limit is.
fn asks_family(part: &Arc<Handle>) {
    if (lock(&part.shared.relief).iter()).any(|&(rank, _)| rank == FAMILY_RANK) {
        return;
    }
    let own = Arc::downgrade(part);
    let step = move |need: &Need<'_>| {
        let figures = (need.told)().figures;
        // Live bytes, not reserved ones: the request can use the part's own idle memory.
        let is_limit = figures.live.saturating_add(need.requested) > figures.limit;
        let part = own.upgrade().filter(|_| !is_limit).map(Pool::of);
        part.is_some_and(|part| part.trim_others() > 0)
    };
    part.shared.add_relief(FAMILY_RANK, Arc::new(step));
}

impl Pool {
    /// The part of the pool with the name `tag`, made on first use. Its blocks share no handle with other parts, and
    /// it [sleeps](Pool::sleep) by its tag alone.
    ///
    /// A part is a pool. It copies the configuration of this pool when it is made; its limit, figures, callbacks and
    /// spilling are its own. If the device has no more memory, the other parts release their idle memory for it. A part
    /// without memory that nobody holds goes, with its settings and figures, if a process has no addresses for another;
    /// [`Pool::sleep`] and [`Pool::wake`] do not know its tag then.
    ///
    /// ```
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// let cache = pool.tagged("cache")?.alloc_typed::<f32>(&stream, 1 << 20)?;
    /// assert_eq!(pool.tagged("cache")?.stats().blocks.current, 1);
    /// assert_eq!(pool.stats().blocks.current, 0);
    /// # drop(cache);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn tagged(&self, tag: &str) -> Result<Self> {
        let root = &self.handle;
        let mut parts = lock(&root.parts);
        if let Some(part) = parts.get(tag) {
            return Ok(part.clone());
        }
        let mut config = root.shared.core.lock().config.clone();
        config.preallocate = 0;
        let made = Self::part_of(Arc::downgrade(root), self.device(), config);
        let part = match made {
            Ok(part) => part,
            // Its recording cannot be made.
            Err(error @ Error::Invalid { .. }) => return Err(error),
            Err(error) => {
                // A process has addresses for some hundred parts.
                drop(parts);
                may_wait()?;
                self.trim_others();
                let none = self.whole().take_unused().is_empty();
                return if none { Err(error) } else { self.tagged(tag) };
            }
        };
        asks_family(root);
        asks_family(&part.handle);
        parts.insert(tag.to_owned(), part.clone());
        Ok(part)
    }

    /// The parts with these tags, and their parts; without tags, the pool and all its parts.
    pub(crate) fn parts(&self, tags: &[&str]) -> Result<Vec<Self>> {
        if tags.is_empty() {
            return Ok(self.with_parts());
        }
        let parts = lock(&self.handle.parts);
        let part = |tag: &&str| {
            let part = parts.get(*tag).map(Self::with_parts);
            part.ok_or_else(|| Error::invalid("tags", format!("no part is tagged {tag:?}")))
        };
        Ok(tags.iter().map(part).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Releases idle memory of the whole pool and its parts, without this one; returns the bytes.
    pub(crate) fn trim_others(&self) -> u64 {
        let all = self.whole().with_parts();
        let others = all.iter().map(Self::shared);
        let others = others.filter(|it| it.uid != self.uid);
        let trimmed = |part: &Arc<Shared>| {
            let core = part.core.lock();
            let (_, before) = core.arena.flow();
            // What a job of another thread holds is not idle, and may be released.
            drop(part.wait_for_others(core));
            let _ = part.trim(0);
            part.core.lock().arena.flow().1 - before
        };
        others.map(trimmed).sum()
    }

    /// The pool that this is a part of, or a part of its part.
    fn whole(&self) -> Self {
        let whole = self.handle.whole.upgrade();
        whole.map_or_else(|| self.clone(), |it| Self::of(it).whole())
    }

    /// Takes out the parts that nobody has and that have no memory, on the device or the host.
    fn take_unused(&self) -> Vec<Self> {
        let mut parts = lock(&self.handle.parts);
        let mut taken: Vec<_> = parts.values().flat_map(Self::take_unused).collect();
        parts.retain(|_, part| {
            let unused = part.is_unused();
            taken.extend(unused.then(|| part.clone()));
            !unused
        });
        taken
    }

    fn is_unused(&self) -> bool {
        let (shared, is_held) = (self.shared(), Arc::strong_count(&self.handle) > 1);
        let has_more = !lock(&self.handle.parts).is_empty() || !lock(&shared.growing).is_empty();
        let core = shared.core.lock();
        let bytes = core.arena.reserved() + core.arena.asleep() + lock(&shared.spilled).bytes()[2];
        !is_held && !has_more && bytes == 0
    }

    /// The pool, its parts, and their parts.
    fn with_parts(&self) -> Vec<Self> {
        let parts = lock(&self.handle.parts);
        let theirs = parts.values().flat_map(Self::with_parts);
        std::iter::once(self.clone()).chain(theirs).collect()
    }
}

#[cfg(test)]
mod tests;
