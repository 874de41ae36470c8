//! Pools that sleep: the device has their memory, the host their contents.

use super::{HostBuf, HostPool};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::pool::{Copies, Pool, Ranges, View, ViewMut, Way};
use crate::seeded::seeded;

/// Bytes of one copy: host memory is made in such pieces.
const PIECE: u64 = 64 << 20;

/// What becomes of the contents of memory that is put to sleep.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Contents<'h> {
    /// They go to page-locked memory of this pool, and come back.
    Saved(&'h HostPool),
    /// They are lost: memory that wakes has any contents.
    Discarded,
}

/// Bytes of a range, where they were and where they are.
struct Saved {
    addr: u64,
    buf: HostBuf<u8>,
}

impl Pool {
    /// Puts the parts of these [tags](Pool::tagged) to sleep, or, without a tag, this pool and all its
    /// parts: their physical memory goes back to the device, for others to use, and all blocks keep their
    /// addresses until [`Pool::wake`], growing buffers too. Gives the bytes given back; nothing happens to a part
    /// that sleeps already.
    ///
    /// The host waits for all work that streams known to the crate were given, and for the copies, beside which
    /// the driver takes the memory down, as it makes it again beside those of [`Pool::wake`]. From
    /// then on, until the part wakes, allocations from it, operations on its buffers, launches of graphs
    /// that captured such, and compactions are [`Error::Invalid`]. Work that was given an address is the
    /// caller's to keep off. A block may be dropped while it sleeps; its memory does not come back.
    ///
    /// Page-locked memory takes longer to make than to fill: the host pool keeps what it had before.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default().sleeps(true))?;
    /// # let stream = device.stream()?;
    /// use warpool::host::{Contents, HostPool, HostPoolConfig};
    ///
    /// let host = HostPool::new(&device, HostPoolConfig::default());
    /// let weights = pool.tagged("weights")?.alloc_from(&stream, &[1.5f32; 1024])?;
    /// let cache = pool.tagged("cache")?.alloc_typed::<f32>(&stream, 1 << 20)?;
    /// let addr = weights.addr();
    ///
    /// pool.sleep(&["weights"], Contents::Saved(&host))?;
    /// pool.sleep(&["cache"], Contents::Discarded)?;
    /// assert!(weights.download().is_err()); // the device has the memory
    ///
    /// pool.wake(&[])?;
    /// assert_eq!((weights.addr(), weights.download()?[1023]), (addr, 1.5));
    /// # drop(cache);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] of a pool made without [`PoolConfig::sleeps`](crate::PoolConfig::sleeps), for a tag
    /// that no part has, a host pool of another device, while a stream of the
    /// device is under capture, or from code that is giving a stream work; [`Error::OutOfMemory`] where the
    /// host pool has no room; what the driver said. The part is awake then, as before, and so are those named
    /// behind it; those named before it sleep. If the driver will not map again what it took down, the part
    /// sleeps, with its contents saved.
    pub fn sleep(&self, tags: &[&str], contents: Contents<'_>) -> Result<u64> {
        if let Contents::Saved(host) = contents
            && !host.inner.device.same(self.device())
        {
            return Err(Error::invalid(
                "host",
                "it is of another device than the pool",
            ));
        }
        let parts = self.parts(tags)?;
        parts.iter().try_fold(0, |sum, part| {
            let prepare = |ranges: &Ranges| copies(contents, ranges);
            Ok(sum + part.shared().sleep(prepare)?)
        })
    }

    /// Wakes the parts of these tags, or, without a tag, this pool and all its parts: takes memory from the
    /// device, maps it where it was, brings back what was saved and waits until it is there. Gives the bytes
    /// taken from the device; nothing happens to a part that does not sleep.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a tag that no part has; [`Error::OutOfMemory`] beyond the limit, or where the
    /// device has not so much; what the driver said. The part sleeps on, and so do those named behind it;
    /// those named before it are awake.
    pub fn wake(&self, tags: &[&str]) -> Result<u64> {
        let parts = self.parts(tags)?;
        parts
            .iter()
            .try_fold(0, |sum, part| Ok(sum + part.shared().wake()?))
    }
}

/// What copies these ranges to the host and back, with host memory for all of them.
fn copies(contents: Contents<'_>, ranges: &Ranges) -> Result<Copies> {
    let mut saved = Vec::new();
    if let Contents::Saved(host) = contents {
        for &(start, bytes) in ranges {
            for addr in (start..start + bytes).step_by(PIECE as usize) {
                let buf = host.alloc(PIECE.min(start + bytes - addr) as usize)?;
                saved.push(Saved { addr, buf });
            }
        }
    }
    Ok(Box::new(move |stream, way, ranges| {
        queue(stream, way, &mut saved, ranges)
    }))
}

/// Queues copies of what there is of the ranges, which ascend as the pieces do.
fn queue(stream: &Stream, way: Way, saved: &mut [Saved], ranges: &Ranges) -> Result<()> {
    let left_out = seeded!("last-piece-left-behind") && way == Way::ToDevice;
    let last = saved.len().saturating_sub(usize::from(left_out));
    for &(start, bytes) in ranges {
        let end = start + bytes;
        let first = saved.partition_point(|it| it.addr + it.buf.len() as u64 <= start);
        for piece in saved[..last].iter_mut().skip(first) {
            let (from, to) = (
                piece.addr.max(start),
                (piece.addr + piece.buf.len() as u64).min(end),
            );
            if from >= to {
                break;
            }
            let part = (from - piece.addr) as usize..(to - piece.addr) as usize;
            // SAFETY: the range is of live blocks, is mapped, and nobody uses its memory meanwhile: the pool
            // has refused operations on it and waited for those before.
            let view = unsafe { ViewMut::<u8>::from_raw(from, part.len()) }?;
            match way {
                Way::ToHost => {
                    let view: View<'_, u8> = view.as_view();
                    view.download_into(stream, piece.buf.slice_mut(part)?)?;
                }
                Way::ToDevice => view.upload_from(stream, piece.buf.slice(part)?)?,
            }
        }
    }
    Ok(())
}
