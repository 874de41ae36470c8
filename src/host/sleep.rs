//! Sleeping pools: the device takes their memory, and the host keeps their contents.

use super::{HostBuf, HostPool};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::pool::{Copies, Pool, Ranges, View, ViewMut, Way};

/// Most bytes per copy. Host memory is allocated in pieces of powers of two up to this, so that sleeps of other sizes
/// use them again.
const PIECE: u64 = 64 << 20;

/// What happens to the contents of memory that sleeps.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Contents<'h> {
    /// They are saved in page-locked memory of this pool, and restored.
    Saved(&'h HostPool),
    /// They are lost: after waking, the memory's contents are undefined.
    Discarded,
}

/// The saved bytes of a range: their address on the device, and their buffer.
struct Saved {
    addr: u64,
    buf: HostBuf<u8>,
}

impl Pool {
    /// Puts the parts with these [tags](Pool::tagged) to sleep; without a tag, this pool and all its parts. Their
    /// physical memory is released to the device for other uses. All blocks keep their addresses until
    /// [`Pool::wake`], growing buffers too. Returns the bytes released. A part that already sleeps is left as it
    /// is.
    ///
    /// The host waits for all work queued on streams that the crate knows, and for the copies. The driver
    /// unmaps memory while the copies run, and [`Pool::wake`] maps it while its copies run. Until the part
    /// wakes, allocations from it, operations on its buffers, launches of graphs that captured them, and
    /// compactions return [`Error::Invalid`]. The caller has to keep off work that uses memory only by address.
    /// A block may be dropped while it sleeps; its memory is then not mapped again.
    ///
    /// Page-locked memory takes longer to allocate than to fill; a host pool keeps what it has for
    /// the next sleep.
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
    /// [`Error::Invalid`] if the pool was made without [`PoolConfig::sleeps`](crate::PoolConfig::sleeps), no
    /// part has the tag, the host pool is of another device, a stream of the device is under capture, or a
    /// host call, or code that is queueing work on a stream, calls this; [`Error::OutOfMemory`] if the host
    /// pool has no space; any error of the driver. The part in question then stays awake, and so do those
    /// named after it; those named before it sleep. If the driver refuses to map memory again that it had
    /// unmapped, the part sleeps, with its contents saved.
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

    /// Wakes the parts with these tags; without a tag, this pool and all its parts. Allocates memory from
    /// the device, maps it at the old addresses, restores what was saved and waits for the copies. Returns
    /// the bytes allocated. A part that does not sleep is left as it is. If the device has too little memory, the
    /// other parts release their idle memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no part has the tag, or in a host call; [`Error::OutOfMemory`] at the limit, or
    /// if the device has too little memory; any error of the driver. The part in question then stays asleep,
    /// and so do those named after it; those named before it are awake.
    pub fn wake(&self, tags: &[&str]) -> Result<u64> {
        let parts = self.parts(tags)?;
        parts.iter().try_fold(0, |sum, part| {
            let relieved = || part.trim_others() > 0;
            Ok(sum + part.shared().wake(relieved)?)
        })
    }
}

/// Allocates host memory for the ranges, and returns a function that copies them to the host and
/// back.
fn copies(contents: Contents<'_>, ranges: &Ranges) -> Result<Copies> {
    let mut saved = Vec::new();
    if let Contents::Saved(host) = contents {
        for &(start, bytes) in ranges {
            let (mut addr, end) = (start, start + bytes);
            while addr < end {
                let piece = PIECE.min(1 << (end - addr).ilog2());
                let buf = host.alloc(piece as usize)?;
                saved.push(Saved { addr, buf });
                addr += piece;
            }
        }
    }
    Ok(Box::new(move |stream, way, ranges| {
        queue(stream, way, &mut saved, ranges)
    }))
}

/// Queues copies of the saved pieces that lie in the ranges; both ascend.
fn queue(stream: &Stream, way: Way, saved: &mut [Saved], ranges: &Ranges) -> Result<()> {
    for &(start, bytes) in ranges {
        let end = start + bytes;
        let first = saved.partition_point(|it| it.addr + it.buf.len() as u64 <= start);
        for piece in saved.iter_mut().skip(first) {
            let (from, to) = (
                piece.addr.max(start),
                (piece.addr + piece.buf.len() as u64).min(end),
            );
            if from >= to {
                break;
            }
            let part = (from - piece.addr) as usize..(to - piece.addr) as usize;
            // SAFETY: the range is mapped and belongs to live blocks. Nothing uses its memory meanwhile: the
            // pool refuses operations on it, and has waited for earlier ones.
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
