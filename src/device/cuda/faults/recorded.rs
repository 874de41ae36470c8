//! A driver's graph is not synchronised: each call of the driver that uses one which is being captured is made under
//! the device's lock.

use half::f16;

use super::{LIMIT, gpu_of};
use crate::convert::{
    ConvertTable, E4m3, GradScaler, Gradients, Quantize, QuantizeTable, Rounding, ScalerConfig,
    ScalesMut, convert,
};
use crate::device::{Capture, Device, Event, Stream};
use crate::driver::Driver;
use crate::driver::fake::Machine;
use crate::error::Result;
use crate::interop::CudaAsync;
use crate::pool::{Pool, PoolBuf, PoolConfig};

/// Elements of each buffer.
const LEN: usize = 4096;

/// A capture of `home` that `branch` has joined, and what its calls use.
struct World {
    pool: Pool,
    drivers_pool: CudaAsync,
    home: Stream,
    branch: Stream,
    /// Under no capture.
    outside: Stream,
    capture: Option<Capture>,
    /// Recorded in the capture.
    event: Option<Event>,
    src: PoolBuf<f32>,
    dst: PoolBuf<f16>,
    codes: PoolBuf<E4m3>,
    scales: PoolBuf<f32>,
    scaler: GradScaler,
}

impl World {
    fn new(driver: &'static Driver, device: &Device) -> Result<Self> {
        let pool = Pool::new(device, PoolConfig::default().limit(LIMIT))?;
        let [home, branch, outside] = [(); 3].map(|()| device.stream().unwrap());
        let world = Self {
            src: pool.alloc_zeroed(&home, LEN)?,
            dst: pool.alloc_zeroed(&home, LEN)?,
            codes: pool.alloc_zeroed(&home, LEN)?,
            scales: pool.alloc_filled(&home, 1, 1.0)?,
            scaler: GradScaler::new(&pool, &home, ScalerConfig::default())?,
            drivers_pool: CudaAsync::on(driver, device, None)?,
            capture: Some(home.begin_capture()?),
            event: Some(device.event()?),
            pool,
            home,
            branch,
            outside,
        };
        world.branch.wait_stream(&world.home)?;
        world.home.wait_stream(&world.branch)?;
        world.event().record(&world.home)?;
        Ok(world)
    }

    fn event(&self) -> &Event {
        self.event.as_ref().unwrap()
    }
}

/// A place in the crate, a call of the driver that it makes, and how it is reached.
type Site = (&'static str, &'static str, fn(&mut World) -> Result<()>);

const SITES: [Site; 20] = [
    ("fill", "cuMemsetD8Async", |world| {
        world.src.view_mut().fill(&world.home, 0.0)
    }),
    ("copy", "cuMemcpyDtoDAsync", |world| {
        let (to, from) = world.src.view_mut().split_at(LEN / 2)?;
        to.copy_from(&world.home, from.as_view())
    }),
    ("conversion", "a kernel", |world| {
        let (src, dst) = (world.src.view(), world.dst.view_mut());
        convert(&world.home, src, dst, Rounding::Nearest)
    }),
    ("conversion in place", "a kernel", |world| {
        let values = world.pool.alloc_typed::<f32>(&world.home, LEN)?;
        (values.convert_in_place::<f16>(Rounding::Nearest)).map(drop)
    }),
    ("table of conversions", "a kernel", |world| {
        let tensors = vec![(world.src.view(), world.dst.view_mut())];
        let mut table = ConvertTable::new(&world.pool, &world.outside, tensors)?;
        table.convert(&world.home, Rounding::Nearest)
    }),
    ("table of scaled formats", "a kernel", |world| {
        let scales = ScalesMut::Tensor(world.scales.view());
        let tensor = (world.src.view().into(), world.codes.view_mut().into());
        let tensors = vec![(tensor.0, tensor.1, scales)];
        let mut table = QuantizeTable::new(&world.pool, &world.outside, tensors)?;
        table.quantize(&world.home, Quantize::default())
    }),
    ("unscale", "a kernel", |world| {
        let tensors = vec![world.src.view_mut()];
        let mut gradients = Gradients::new(&world.pool, &world.outside, tensors)?;
        world.scaler.unscale(&world.home, &mut gradients)
    }),
    ("end of a scaler's step", "a kernel", |world| {
        world.scaler.update(&world.home)
    }),
    (
        "the driver's allocation",
        "cuMemAllocFromPoolAsync",
        |world| world.drivers_pool.alloc(&world.home, 4096).map(drop),
    ),
    ("the driver's free", "cuMemFreeAsync", |world| {
        let block = world.drivers_pool.alloc(&world.outside, 4096)?;
        // The fake has no such nodes.
        drop(world.drivers_pool.free(block, &world.home));
        Ok(())
    }),
    ("record", "cuEventRecord", |world| {
        world.event().record(&world.branch)
    }),
    ("record elsewhere", "cuEventDestroy", |world| {
        world.event().record(&world.outside)
    }),
    ("wait", "cuStreamWaitEvent", |world| {
        world.branch.wait(world.event())
    }),
    ("join by an event", "cuStreamWaitEvent", |world| {
        world.outside.wait(world.event())
    }),
    ("join", "cuStreamWaitEvent", |world| {
        world.outside.wait_stream(&world.home)
    }),
    ("wait for a branch", "cuEventRecord", |world| {
        world.home.wait_stream(&world.branch)
    }),
    ("drop of an event", "cuEventDestroy", |world| {
        world.event = None;
        Ok(())
    }),
    ("begin", "cuStreamBeginCapture", |world| {
        world.outside.begin_capture().map(drop)
    }),
    ("end", "cuStreamEndCapture", |world| {
        world.capture.take().unwrap().end().map(drop)
    }),
    ("drop of a capture", "cuStreamEndCapture", |world| {
        world.capture = None;
        Ok(())
    }),
];

#[test]
fn each_call_that_uses_a_graph_under_capture_is_made_under_the_lock() {
    let machine = Machine::with_gpu(2 * LIMIT).unwrap();
    let device = gpu_of(&machine);
    for (site, call, reach) in SITES {
        let mut world = World::new(machine.driver(), &device).unwrap();
        machine.recorded();
        reach(&mut world).unwrap();
        let calls = machine.recorded();
        assert!(calls.iter().any(|made| made.0 == call), "{site}: {calls:?}");
        let beside: Vec<_> = calls.iter().filter(|(_, is_held)| !is_held).collect();
        assert!(beside.is_empty(), "{site}: {beside:?}");
    }
}
