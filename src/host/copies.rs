//! Copies between page-locked host memory and the device, queued; and of other memory, by way of it.

use std::collections::VecDeque;

use bytemuck::Pod;

use super::ring::{RING, Ring, piece};
use super::uses::{Span, Uses};
use super::{HostBuf, HostPool, HostView, HostViewMut};
use crate::device::{Device, Stream, StreamCore, ordered};
use crate::error::{Error, Result};
use crate::pool::{View, ViewMut, same_len};

/// Queues a copy that uses host memory, on `stream`, behind the copies that it meets there, and notes
/// it.
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
    // Noted after a failure too: it may be queued all the same.
    uses.note(span, &stream.timeline);
    outcome
}

impl<T: Pod> ViewMut<'_, T> {
    /// Queues a copy of `src` into the elements, on `stream`, behind all that it must not overtake. Does
    /// not wait: the host may write `src` again once [`HostBuf::get_mut`] gives it out.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless both have as many elements, if the stream is under capture or of another
    /// device than one of them; what the driver said.
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
                    // SAFETY: whoever made the view vouched for its range; the host memory lasts until
                    // the copy that is noted is done, and nobody writes it until then.
                    unsafe { backend.copy_in(self.addr(), from, bytes, core.raw) }
                }
            });
            queued?
        })
    }
}

impl<T: Pod> View<'_, T> {
    /// Queues a copy of the elements into `dst`, on `stream`, behind all that it must not overtake. Does
    /// not wait: [`HostBuf::get`] does.
    ///
    /// # Errors
    /// As [`ViewMut::upload_from`].
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
                    // SAFETY: whoever made the view vouched for its range; the host memory lasts until
                    // the copy that is noted is done, and nobody looks at it until then.
                    unsafe { backend.copy_out(to, self.addr(), bytes, core.raw) }
                }
            });
            queued?
        })
    }
}

/// Copies the oldest piece of the ring out, to the next part.
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
    /// Copies `src`, memory of any kind, into `dst` on `stream` by way of a ring of page-locked pieces.
    /// Returns when `src` was read; the last pieces may still be on their way.
    ///
    /// The host waits where the bus is slower than it. A stream's copies of other memory would hold the
    /// host until they are done, and go at a part of the bus's speed.
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
    /// let staging = host.alloc_waiting::<f32>(1000)?; // at the limit it waits for copies under way
    /// assert!(staging.is_idle()? && !staging.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ViewMut::upload_from`] and [`HostPool::alloc`]; pieces before the error may have been copied.
    pub fn stage_in<T: Pod>(&self, stream: &Stream, dst: ViewMut<'_, T>, src: &[T]) -> Result<()> {
        same_len("src", src.len(), dst.len())?;
        Ring::new(self).upload(stream, dst, |from, part| {
            part.copy_from_slice(&src[from..from + part.len()]);
            Ok(())
        })
    }

    /// Copies `src` into `dst`, memory of any kind, on `stream` by way of a ring of page-locked pieces,
    /// and waits for the copy.
    ///
    /// # Errors
    /// As [`View::download_into`] and [`HostPool::alloc`]; pieces before the error may have been copied.
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
                    // With the pieces there are, once the oldest is copied out.
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
