//! Queued copies between page-locked host memory and the device, and staged copies of other memory.

use std::collections::VecDeque;

use bytemuck::Pod;

use super::ring::{RING, Ring, piece};
use super::uses::{Span, Uses};
use super::{HostBuf, HostPool, HostView, HostViewMut};
use crate::device::{Device, Stream, StreamCore, ordered};
use crate::error::{Error, Result};
use crate::pool::{View, ViewMut, same_len};

/// Queues a copy that uses host memory on `stream`, after the copies that conflict with it, and
/// records it.
fn behind(
    stream: &StreamCore,
    device: &Device,
    (uses, span): (&Uses, Span),
    copy: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if !device.same(&stream.device) {
        let why = "it is of another device than the host memory's pool";
        return Err(Error::invalid("stream", why));
    }
    let _outside = stream.outside_capture()?;
    uses.conflicts(span).wait_on(&stream.timeline)?;
    let outcome = copy();
    // Recorded after a failure too, because the copy may be queued.
    uses.note(span, &stream.timeline);
    outcome
}

impl<T: Pod> ViewMut<'_, T> {
    /// Queues a copy of `src` into the elements on `stream`, after all conflicting work. Returns at
    /// once; [`HostBuf::get_mut`] waits for the copy before the host writes `src` again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ, or if the stream is under capture or of another device
    /// than either side; any error of the driver.
    pub fn upload_from<'h>(self, stream: &Stream, src: impl Into<HostView<'h, T>>) -> Result<()>
    where
        T: 'h,
    {
        let src = src.into();
        same_len("src", src.len(), self.len())?;
        let core = stream.core();
        behind(core, src.device(), (src.uses(), src.span()), || {
            let queued = ordered(core, &[self.used()], || match self.bytes() {
                0 => Ok(()),
                bytes => {
                    let from = src.addr() as *const u8;
                    let backend = core.device.backend();
                    // SAFETY: the caller that made the view guarantees its range. The host memory
                    // lives until the recorded copy is done, and nothing writes it until then.
                    unsafe { backend.copy_in(self.addr(), from, bytes, core.raw) }
                }
            });
            queued?
        })
    }
}

impl<T: Pod> View<'_, T> {
    /// Queues a copy of the elements into `dst` on `stream`, after all conflicting work. Returns at
    /// once; [`HostBuf::get`] waits for the copy.
    ///
    /// # Errors
    /// See [`ViewMut::upload_from`].
    pub fn download_into<'h>(
        &self,
        stream: &Stream,
        dst: impl Into<HostViewMut<'h, T>>,
    ) -> Result<()>
    where
        T: 'h,
    {
        let dst = dst.into();
        same_len("dst", dst.len(), self.len())?;
        let core = stream.core();
        behind(core, dst.device(), (dst.uses(), dst.span()), || {
            let queued = ordered(core, &[self.used()], || match self.bytes() {
                0 => Ok(()),
                bytes => {
                    let to = dst.addr() as *mut u8;
                    let backend = core.device.backend();
                    // SAFETY: the caller that made the view guarantees its range. The host memory
                    // lives until the recorded copy is done, and nothing reads it until then.
                    unsafe { backend.copy_out(to, self.addr(), bytes, core.raw) }
                }
            });
            queued?
        })
    }
}

/// Copies the oldest piece of the ring to the next part of the destination.
fn copied_out<'a, T: Pod>(
    ring: &mut VecDeque<HostBuf<T>>,
    parts: &mut impl Iterator<Item = &'a mut [T]>,
) -> Result<()> {
    if let (Some(buf), Some(part)) = (ring.pop_front(), parts.next()) {
        part.copy_from_slice(buf.get()?);
    }
    Ok(())
}

impl HostPool {
    /// Copies `src`, which is any host memory, to `dst` on `stream` through a ring of page-locked
    /// pieces. Returns once `src` has been read; the last pieces may still be under way.
    ///
    /// The host waits if it is faster than the bus. A driver's own copy of such memory would block the
    /// host until it is done, and uses only part of the bus's bandwidth.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// use warpool::host::{HostPool, HostPoolConfig};
    ///
    /// let host = HostPool::new(&device, HostPoolConfig::default());
    /// let data = vec![0.5f32; 1000];
    /// let mut up = pool.alloc_typed::<f32>(&stream, 1000)?;
    /// host.stage_in(&stream, up.view_mut(), &data)?;
    /// let mut down = vec![0.0; 1000];
    /// host.stage_out(&stream, up.view(), &mut down)?;
    /// assert_eq!(down, data);
    /// let staging = host.alloc_waiting::<f32>(1000)?; // at the limit, waits for copies under way
    /// assert!(staging.is_idle()? && !staging.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ViewMut::upload_from`] and [`HostPool::alloc`]; pieces before the error may have been
    /// copied.
    pub fn stage_in<T: Pod>(&self, stream: &Stream, dst: ViewMut<'_, T>, src: &[T]) -> Result<()> {
        same_len("src", src.len(), dst.len())?;
        Ring::new(self).upload(stream, dst, |from, part| {
            part.copy_from_slice(&src[from..from + part.len()]);
            Ok(())
        })
    }

    /// Copies `src` to `dst`, which is any host memory, on `stream` through a ring of page-locked
    /// pieces, and waits for the copy.
    ///
    /// # Errors
    /// See [`View::download_into`] and [`HostPool::alloc`]; pieces before the error may have been
    /// copied.
    pub fn stage_out<T: Pod>(
        &self,
        stream: &Stream,
        src: View<'_, T>,
        dst: &mut [T],
    ) -> Result<()> {
        same_len("dst", dst.len(), src.len())?;
        stream.core().refuse_under_capture()?;
        let mut ring: VecDeque<HostBuf<T>> = VecDeque::new();
        let mut parts = dst.chunks_mut(piece::<T>());
        let mut queued = 0;
        while queued < src.len() || !ring.is_empty() {
            if queued < src.len() && ring.len() < RING {
                let len = piece::<T>().min(src.len() - queued);
                let mut buf = match self.alloc_waiting::<T>(len) {
                    // Continues with the pieces that exist, once the oldest has been copied out.
                    Err(_) if !ring.is_empty() => {
                        copied_out(&mut ring, &mut parts)?;
                        continue;
                    }
                    buf => buf?,
                };
                src.slice(queued..queued + len)?
                    .download_into(stream, &mut buf)?;
                queued += len;
                ring.push_back(buf);
            } else {
                copied_out(&mut ring, &mut parts)?;
            }
        }
        Ok(())
    }
}
