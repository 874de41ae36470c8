//! A kernel that does nothing, as what the smallest conversions are compared with.

#[cfg(feature = "rustacuda")]
mod with_rustacuda {
    use std::ffi::CStr;

    use rustacuda::context::{Context, ContextFlags};
    use rustacuda::launch;
    use rustacuda::module::Module;
    use rustacuda::stream::{Stream as CudaStream, StreamFlags};
    use warpool::{Device, Stream, interop};

    const PTX: &CStr =
        c".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n";

    /// The kernel, and the context and stream it is launched on.
    pub struct Kernel {
        module: Module,
        stream: CudaStream,
        _context: Context,
    }

    impl Kernel {
        /// `None` where there is no GPU.
        pub fn load() -> Option<Self> {
            Device::cuda_count().ok()?;
            rustacuda::init(rustacuda::CudaFlags::empty()).expect("a driver");
            let gpu = rustacuda::device::Device::get_device(0).expect("a GPU");
            let context =
                Context::create_and_push(ContextFlags::SCHED_AUTO, gpu).expect("a context");
            Some(Self {
                module: Module::load_from_string(PTX).expect("a kernel"),
                stream: CudaStream::new(StreamFlags::NON_BLOCKING, None).expect("a stream"),
                _context: context,
            })
        }

        pub fn device_and_stream(&self) -> (Device, Stream) {
            let device = Device::cuda_current().expect("the context's device");
            // SAFETY: the stream is of the device's context, and the ground drops this one last.
            let stream = unsafe { interop::rustacuda::adopt(&device, &self.stream) };
            (device, stream.expect("adopted"))
        }

        pub fn launch(&self) {
            let (module, stream) = (&self.module, &self.stream);
            // SAFETY: it takes no arguments and touches no memory.
            unsafe { launch!(module.empty<<<1, 256, 0, stream>>>()) }.expect("a launch");
        }
    }
}

#[cfg(feature = "rustacuda")]
pub use with_rustacuda::Kernel;

/// Never there: launching a kernel of one's own needs rustacuda.
#[cfg(not(feature = "rustacuda"))]
pub enum Kernel {}

#[cfg(not(feature = "rustacuda"))]
impl Kernel {
    pub fn load() -> Option<Self> {
        None
    }

    pub fn device_and_stream(&self) -> (warpool::Device, warpool::Stream) {
        match *self {}
    }

    pub fn launch(&self) {
        match *self {}
    }
}
