//! Many tensors in one launch, from a table in device memory that is built once.

use std::marker::PhantomData;

use super::codes::{read, written};
use super::fused::{Fused, FusedTo};
use super::launch::{Part, arguments, launch};
use super::{Conversion, ConvertTo, Element, View, ViewMut};
use crate::device::{Stream, TableUses, Use};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf};

/// The uses of `parts`, after a check that no written part overlaps another one and that all are on the stream's
/// device.
pub(super) fn uses_of<'a>(parts: Vec<Part<'a>>, stream: &Stream) -> Result<Vec<Use<'a>>> {
    let uses: Vec<Use<'a>> = parts.iter().filter_map(|part| part.used).collect();
    check_apart(parts)?;
    TableUses::check(&uses, stream.core())?;
    Ok(uses)
}

fn check_apart(mut parts: Vec<Part<'_>>) -> Result<()> {
    parts.retain(|part| part.bytes > 0);
    parts.sort_by_key(|part| part.addr);
    // The furthest end so far, of written parts and of all.
    let (mut written_end, mut any_end) = (0, 0);
    for part in &parts {
        if part.addr < written_end || (part.is_written && part.addr < any_end) {
            let why = format!("a destination overlaps another tensor at {:#x}", part.addr);
            return Err(Error::invalid("tensors", why));
        }
        let end = part.addr + part.bytes;
        any_end = any_end.max(end);
        if part.is_written {
            written_end = written_end.max(end);
        }
    }
    Ok(())
}

/// Divides one tensor into tiles. The first one is shorter if the destination does not start at a group, so
/// that all others do.
pub(super) fn cut(
    tiles: &mut Vec<abi::wp_tile>,
    whole: abi::wp_tile,
    count: u64,
    sizes: (u64, u64),
    tile: u64,
    phase: u64,
) {
    let mut done = 0;
    while done < count {
        let room = if done == 0 { tile - phase } else { tile };
        let now = room.min(count - done);
        tiles.push(abi::wp_tile {
            src: whole.src + done * sizes.0,
            dst: whole.dst + done * sizes.1,
            index: whole.index + done,
            count: now as u32,
            tensor: whole.tensor,
        });
        done += now;
    }
}

/// Writes tiles to device memory of the pool; waits on the host for the copy.
pub(super) fn upload(pool: &Pool, stream: &Stream, tiles: &[abi::wp_tile]) -> Result<PoolBuf<u64>> {
    // A tile as four words, in the memory layout of its structure on the little-endian machines that the
    // crate supports.
    let word = |t: &abi::wp_tile| {
        [
            t.src,
            t.dst,
            t.index,
            u64::from(t.count) | u64::from(t.tensor) << 32,
        ]
    };
    let mut words: Vec<u64> = tiles.iter().flat_map(word).collect();
    if words.is_empty() {
        words.push(0);
    }
    pool.alloc_from(stream, &words)
}

/// A list of (source, destination) pairs that one launch converts, any number of times.
///
/// The tensors may have any lengths and any element offsets. For
/// [`Rounding::Stochastic`](super::Rounding::Stochastic) elements are numbered through the whole list.
///
/// The table is in a block of the pool. It may be used on any stream of the device: each launch waits for
/// conflicting work, and the frees of the tensors wait for the launches, even if the table is leaked.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{ConvertTable, Rounding};
/// use warpool::half::bf16;
///
/// let (a, b) = (pool.alloc_filled(&stream, 10, 1.0f32)?, pool.alloc_filled(&stream, 20, 2.0f32)?);
/// let mut to = pool.alloc_zeroed::<bf16>(&stream, 30)?;
/// let (first, second) = to.view_mut().split_at(10)?;
/// let pairs = vec![(a.view(), first), (b.view(), second)];
/// let mut table = ConvertTable::new(&pool, &stream, pairs)?;
/// table.convert(&stream, Rounding::Nearest)?; // one launch
/// drop(table);
/// assert_eq!(to.download()?[29], bf16::from_f32(2.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ConvertTable<'a, S, D> {
    uses: TableUses<'a>,
    table: PoolBuf<u64>,
    tiles: u64,
    tensors: u64,
    views: PhantomData<(View<'a, S>, ViewMut<'a, D>)>,
}

impl<'a, S: ConvertTo<D>, D: Element> ConvertTable<'a, S, D> {
    /// Builds the table. Waits on the host until it is in device memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths of a pair differ, a destination overlaps another tensor or a tensor
    /// is of another device; any error of the pool or the driver.
    pub fn new(
        pool: &Pool,
        stream: &Stream,
        tensors: Vec<(View<'a, S>, ViewMut<'a, D>)>,
    ) -> Result<Self> {
        // SAFETY: both take two numbers and touch no memory.
        let (tile, group) = unsafe {
            (
                abi::wp_convert_tile(S::TYPE, D::TYPE),
                abi::wp_convert_group(S::TYPE, D::TYPE),
            )
        };
        let sizes = (size_of::<S>() as u64, size_of::<D>() as u64);
        let (mut parts, mut tiles, mut index) = (Vec::new(), Vec::new(), 0);
        for (tensor, (src, dst)) in tensors.iter().enumerate() {
            if src.len() != dst.len() {
                let why = format!(
                    "pair {tensor} has {} elements to convert into {}",
                    src.len(),
                    dst.len()
                );
                return Err(Error::invalid("tensors", why));
            }
            parts.extend([read(src), written(dst)]);
            let whole = abi::wp_tile {
                src: src.addr(),
                dst: dst.addr(),
                index,
                count: 0,
                tensor: tensor as u32,
            };
            let phase = dst.addr() / sizes.1 % u64::from(group);
            cut(
                &mut tiles,
                whole,
                src.len() as u64,
                sizes,
                tile.into(),
                phase,
            );
            index += src.len() as u64;
        }
        let uses = uses_of(parts, stream)?;
        let table = upload(pool, stream, &tiles)?;
        Ok(Self {
            uses: TableUses::new(uses),
            table,
            tiles: tiles.len() as u64,
            tensors: tensors.len() as u64,
            views: PhantomData,
        })
    }

    /// Number of tensors.
    #[must_use]
    #[doc(hidden)]
    pub fn tensors(&self) -> usize {
        self.tensors as usize
    }

    fn arguments(&self, how: Conversion) -> abi::wp_convert {
        let mut args = arguments::<S, D>(how);
        args.tiles = self.table.addr();
        args.rows = self.tiles;
        args
    }

    /// Queues the conversion of all pairs in one launch. Nothing is allocated.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; any error of the driver.
    pub fn convert(&mut self, stream: &Stream, how: impl Into<Conversion>) -> Result<()> {
        let args = self.arguments(how.into());
        self.launch(stream, args, [None; 4])
    }

    fn launch(
        &mut self,
        stream: &Stream,
        args: abi::wp_convert,
        [scale, flag, amax, blocks]: [Option<Use<'_>>; 4],
    ) -> Result<()> {
        let table = self.table.view().used();
        let others = [table, scale, flag, amax, blocks];
        // SAFETY: buffers, including the table's own, keep their memory until the work is done, and the
        // caller that made views from addresses guarantees it. Lengths, alignment and overlaps of the tensors
        // were checked when the table was built. `Fused::apply` checked the lengths of the other views in
        // `others`; those that are written are borrowed separately from the tensors.
        let queued = self
            .uses
            .launch(stream.core(), &others, || unsafe { launch(stream, args) });
        queued?
    }

    /// The same as [`ConvertTable::convert`], with the additional work of [`Fused`].
    ///
    /// # Errors
    /// See [`ConvertTable::convert`]; [`Error::Invalid`] if block maxima are requested, or `amax` has fewer
    /// elements than there are tensors.
    pub fn convert_fused(
        &mut self,
        stream: &Stream,
        how: impl Into<Conversion>,
        fused: Fused<'_>,
    ) -> Result<()>
    where
        S: FusedTo<D>,
    {
        let mut args = self.arguments(how.into());
        let parts = fused.apply(&mut args, self.tensors, None)?;
        self.launch(stream, args, parts.map(|part| part?.used))
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, check_apart, cut};
    use crate::driver::abi;

    fn span(addr: u64, end: u64, is_written: bool) -> Part<'static> {
        Part {
            addr,
            bytes: end - addr,
            is_written,
            used: None,
        }
    }

    #[test]
    fn sources_may_overlap_each_other_and_nothing_else_may() {
        assert!(
            check_apart(vec![
                span(0, 10, false),
                span(5, 15, false),
                span(15, 20, true)
            ])
            .is_ok()
        );
        assert!(check_apart(vec![span(0, 10, true), span(9, 15, false)]).is_err());
        assert!(check_apart(vec![span(0, 10, false), span(9, 15, true)]).is_err());
        assert!(
            check_apart(vec![
                span(0, 100, false),
                span(5, 6, false),
                span(50, 60, true)
            ])
            .is_err()
        );
        assert!(check_apart(vec![span(0, 10, true), span(4, 4, true)]).is_ok());
    }

    #[test]
    fn tiles_cover_a_tensor_of_more_elements_than_32_bits_count() {
        let whole = abi::wp_tile {
            src: 1 << 40,
            dst: 1 << 44,
            index: 1 << 33,
            count: 0,
            tensor: 0,
        };
        let (len, tile) = ((1u64 << 33) + 5, 1 << 20);
        let mut tiles = Vec::new();
        cut(&mut tiles, whole, len, (2, 4), tile, 3);
        let mut done = 0;
        for t in &tiles {
            assert_eq!(
                (t.src, t.dst, t.index),
                (
                    whole.src + 2 * done,
                    whole.dst + 4 * done,
                    whole.index + done
                )
            );
            done += u64::from(t.count);
        }
        assert_eq!(done, len);
        assert_eq!(tiles.last().unwrap().count, 5 + 3);
    }

    #[test]
    fn tiles_cover_a_tensor_once_and_all_but_the_first_start_a_group() {
        let whole = abi::wp_tile {
            src: 4096 + 4,
            dst: 8192 + 2,
            index: 7,
            count: 0,
            tensor: 3,
        };
        let mut tiles = Vec::new();
        cut(&mut tiles, whole, 5000, (4, 2), 2048, 1);
        let counts: Vec<u32> = tiles.iter().map(|t| t.count).collect();
        assert_eq!(counts, [2047, 2048, 905]);
        assert_eq!(tiles[1].dst % 8, 0);
        assert_eq!(tiles[1].src, 4096 + 4 + 4 * 2047);
        assert_eq!(tiles[2].index, 7 + 2047 + 2048);
        assert!(tiles.iter().all(|t| t.tensor == 3));
    }
}
