//! Kernels of the application, queued in the order of the memory they use.

use super::view::{View, ViewMut};
use crate::device::{Access, Note, Stream, Use, ordered};
use crate::error::Result;

use bytemuck::Pod;

/// The memory that an application's kernel uses, and the stream it runs on: made by [`Stream::kernel`].
#[derive(Debug)]
#[must_use = "nothing is queued until `launch` is called"]
pub struct Kernel<'a> {
    stream: &'a Stream,
    name: &'a str,
    uses: Vec<Option<Use<'a>>>,
    accesses: Vec<Access>,
}

impl Stream {
    /// A kernel of the application, queued on this stream in the order of the memory it declares. The name is for
    /// reports.
    ///
    /// ```
    /// # use warpool::{Device, Pool, PoolConfig};
    /// # let device = Device::host()?;
    /// # let pool = Pool::new(&device, PoolConfig::default())?;
    /// # let (load, train) = (device.stream()?, device.stream()?);
    /// let x = pool.alloc_from(&load, &[1.0f32; 1024])?;
    /// let mut y = pool.alloc_zeroed::<f32>(&load, 1024)?;
    /// let mut sum = pool.alloc_zeroed::<f32>(&load, 1)?;
    /// let (from, to, all) = (x.addr(), y.addr(), sum.addr());
    /// let kernel: warpool::pool::Kernel<'_> = train.kernel("saxpy").reads(&x).writes(&mut y).adds(&mut sum);
    /// kernel.launch(|stream| {
    ///     // unsafe { saxpy<<<..., stream.raw()>>>(from, to, all, 1024) }
    ///     # let _ = (from, to, all, stream);
    /// })?;
    /// drop((x, y, sum)); // behind the kernel
    /// # Ok::<(), warpool::Error>(())
    /// ```
    pub fn kernel<'a>(&'a self, name: &'a str) -> Kernel<'a> {
        Kernel {
            stream: self,
            name,
            uses: Vec::new(),
            accesses: Vec::new(),
        }
    }
}

impl<'a> Kernel<'a> {
    fn uses(mut self, used: Option<Use<'a>>, access: Access) -> Self {
        self.uses.push(used);
        self.accesses.push(access);
        self
    }

    /// Declares that it reads these elements.
    pub fn reads<T: Pod>(self, view: impl Into<View<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::read(view.addr(), view.bytes()))
    }

    /// Declares that it writes these elements, and may read them.
    pub fn writes<T: Pod>(self, view: impl Into<ViewMut<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::write(view.addr(), view.bytes()))
    }

    /// Declares that it adds to these elements atomically. Ordered like a write; the checker of stream order
    /// (`sanitize`) lets it overlap with other atomic adds.
    pub fn adds<T: Pod>(self, view: impl Into<ViewMut<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::atomic(view.addr(), view.bytes()))
    }

    /// Makes the stream wait on the device for the work that the kernel must not overtake, calls `launch`, which
    /// queues the kernel, and returns its value. Later uses of the memory, and its free, wait for the kernel.
    ///
    /// `launch` may queue any work on the stream, and on no other. On a GPU the device's context is current while it
    /// runs. If it fails or panics, the crate assumes that it has queued its work. It may use the crate. But while it
    /// runs, launches by other threads of graphs that use the same memory wait for it, and its own are an error.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if memory is of another device than the stream; what the driver said
    /// to a wait. `launch` is then not called.
    pub fn launch<R>(self, launch: impl FnOnce(&Stream) -> R) -> Result<R> {
        let stream = self.stream;
        ordered(stream.core(), &self.uses, || {
            stream.device().backend().observe(&Note::Uses {
                what: self.name,
                stream: stream.raw(),
                accesses: &self.accesses,
            });
            stream.device().in_context(|| launch(stream))
        })?
    }
}
