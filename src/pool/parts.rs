//! Parts of a pool by tag: each is a pool of its own, with its own addresses and handles.

use std::sync::Arc;

use super::pressure::{Pressure, Relief};
use super::structure::Shared;
use super::{Handle, Pool};
use crate::device::lock;
use crate::error::{Error, Result};

/// Rank of releasing idle memory of other parts: after all steps with the part's own memory.
const FAMILY_RANK: u8 = 150;

/// Releases idle memory of the pool and its parts, without the part that asks; returns the bytes.
fn trim_others(root: Option<Arc<Handle>>, asking: u64) -> u64 {
    let all = root.map_or_else(Vec::new, |handle| Pool::of(handle).with_parts());
    let others = all.iter().map(Pool::shared).filter(|it| it.uid != asking);
    let released = others.map(|part| {
        let before = part.core.lock().reserved();
        // Memory released before an error counts.
        let _ = part.trim(0);
        before.saturating_sub(part.core.lock().reserved())
    });
    released.sum()
}

/// Makes `part` ask the other parts if the device is short, not if its own limit is.
fn asks_family(part: &Shared, root: &Arc<Handle>) {
    let (root, asking) = (Arc::downgrade(root), part.uid);
    let step = move |pressure: &Pressure| {
        let figures = &pressure.figures;
        // Live bytes, not reserved ones: the request can use the part's own idle memory.
        let is_limit = figures.live.saturating_add(pressure.requested) > figures.limit;
        match trim_others(root.upgrade().filter(|_| !is_limit), asking) {
            0 => Relief::Exhausted,
            _ => Relief::Retry,
        }
    };
    part.add_relief(FAMILY_RANK, Arc::new(step));
}

impl Pool {
    /// The part of the pool with the name `tag`, made on first use. Its blocks share no handle with other parts, and
    /// it [sleeps](Pool::sleep) by its tag alone.
    ///
    /// A part is a pool. It copies the configuration of this pool when it is made, with a limit of its own, and has
    /// its own figures. If the device has no more memory, the other parts release their idle memory for it.
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
        let part = Self::part_of(Arc::downgrade(root), self.device(), config)?;
        if parts.is_empty() {
            asks_family(&root.shared, root);
        }
        for whole in std::iter::successors(Some(Arc::clone(root)), |it| it.whole.upgrade()) {
            asks_family(part.shared(), &whole);
        }
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

    /// Releases idle memory of the other parts, for memory beside this one; returns the bytes.
    pub(crate) fn trim_others(&self) -> u64 {
        let first = Some(Arc::clone(&self.handle));
        let wholes = std::iter::successors(first, |it| it.whole.upgrade());
        trim_others(wholes.last(), self.uid)
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
