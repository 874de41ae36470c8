//! Kernels of the application's own, queued in the order of the memory they use.

use super::view::{View, ViewMut};
use crate::device::{Access, Note, Stream, Use, ordered};
use crate::error::{Error, Result};

use bytemuck::Pod;

/// What a kernel of the application's own uses, and where it runs: made by [`Stream::kernel`].
#[derive(Debug)]
#[must_use = "nothing is queued until `launch` is called"]
pub struct Kernel<'a> {
    stream: &'a Stream,
    name: &'a str,
    uses: Vec<Option<Use<'a>>>,
    accesses: Vec<Access>,
}

impl Stream {
    /// A kernel of the application's own, to be queued on this stream in the order of the memory that it
    /// is said to use. The name is for reports.
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

    /// It reads these elements.
    pub fn reads<T: Pod>(self, view: impl Into<View<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::read(view.addr(), view.bytes()))
    }

    /// It writes these elements, and may read them.
    pub fn writes<T: Pod>(self, view: impl Into<ViewMut<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::write(view.addr(), view.bytes()))
    }

    /// It adds to these elements atomically. Ordered as a write; tools that watch the device
    /// (`sanitize`) let it run beside others of its kind.
    pub fn adds<T: Pod>(self, view: impl Into<ViewMut<'a, T>>) -> Self {
        let view = view.into();
        self.uses(view.used(), Access::atomic(view.addr(), view.bytes()))
    }

    /// Makes the stream wait on the device for what the kernel must not overtake, calls `launch`, which
    /// queues it, and returns its value. What comes after, the free of the memory too, waits for it in turn.
    ///
    /// `launch` may be anything that gives work to the stream, and to no other. On a GPU the device's context
    /// is current while it runs. Where it fails or panics, it is taken to have queued its work. It may use the
    /// crate; but while it runs, other threads' launches of graphs that use the same memory wait for it, and
    /// its own are an error.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if memory is of another device than the stream; what the
    /// driver said of a wait. `launch` is then not called.
    pub fn launch<R>(self, launch: impl FnOnce(&Stream) -> R) -> Result<R> {
        let stream = self.stream;
        ordered(stream.core(), &self.uses, || {
            stream.device().backend().observe(&Note::Uses {
                what: self.name,
                stream: stream.raw(),
                accesses: &self.accesses,
            });
            let (mut launch, mut gave) = (Some(launch), None);
            let mut queue = || gave = launch.take().map(|launch| launch(stream));
            stream.device().backend().in_context(&mut queue)?;
            gave.ok_or_else(|| Error::invalid("device", "it did not call the launch"))
        })?
    }
}
