//! The kernels of kernels.cu in Rust, for the host device, whose memory the host can access.

use std::error::Error;

use half::f16;
use warpool::Stream;

use super::calls::{Call, Machine, Pass, Precision, Update};

/// The host device.
pub struct OnHost(pub Stream);

impl Machine for OnHost {
    fn stream(&self) -> &Stream {
        &self.0
    }

    fn queue(&self, call: Call) -> Result<(), Box<dyn Error>> {
        // Runs on the stream's thread, after everything queued before.
        let work = move || {
            // SAFETY: the addresses are host memory of the pool, freed in this stream's order.
            unsafe { run(call) }
        };
        // SAFETY: the stream is live and not under capture.
        let backend = unsafe { self.0.device().raw_backend() };
        backend.host_call(self.0.raw(), Box::new(work))?;
        Ok(())
    }
}

/// Runs every thread of a call, one after another.
unsafe fn run(call: Call) {
    for thread in 0..call.threads() {
        // SAFETY: the caller's requirement.
        unsafe {
            match call {
                Call::Hidden(Precision::F16, p) => hidden::<f16>(&p, thread),
                Call::Hidden(Precision::F32, p) => hidden::<f32>(&p, thread),
                Call::Output(Precision::F16, p) => output::<f16>(&p, thread),
                Call::Output(Precision::F32, p) => output::<f32>(&p, thread),
                Call::GradientW1(Precision::F16, p) => gradient_w1::<f16>(&p, thread),
                Call::GradientW1(Precision::F32, p) => gradient_w1::<f32>(&p, thread),
                Call::GradientW2(Precision::F16, p) => gradient_w2::<f16>(&p, thread),
                Call::GradientW2(Precision::F32, p) => gradient_w2::<f32>(&p, thread),
                Call::Accumulate(Precision::F16, u) => accumulate::<f16>(&u, thread),
                Call::Accumulate(Precision::F32, u) => accumulate::<f32>(&u, thread),
                Call::Step(u) => step(&u, thread),
            }
        }
    }
}

/// The element type of weights, activations and gradients.
trait Real: Copy {
    fn wide(self) -> f32;
    fn of(x: f32) -> Self;
}

impl Real for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn of(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Real for f32 {
    fn wide(self) -> f32 {
        self
    }
    fn of(x: f32) -> Self {
        x
    }
}

/// # Safety
/// `at` is the address of more than `i` elements.
unsafe fn get<T: Real>(at: u64, i: u64) -> f32 {
    // SAFETY: the caller's requirement.
    unsafe { (at as *const T).add(i as usize).read().wide() }
}

/// # Safety
/// The same as for [`get`], and nothing else uses the element.
unsafe fn put<T: Real>(at: u64, i: u64, x: f32) {
    // SAFETY: the caller's requirement.
    unsafe { (at as *mut T).add(i as usize).write(T::of(x)) }
}

// SAFETY of all functions below: the arrays have the lengths given in kernels.cu, as the caller
// guarantees.

unsafe fn hidden<T: Real>(p: &Pass, thread: u64) {
    let row = p.hidden + 1;
    let (s, j) = (thread / row, thread % row);
    // SAFETY: see above.
    unsafe {
        let mut sum = 0.0;
        if j < p.hidden {
            for i in 0..p.inputs {
                sum += get::<T>(p.w1, j * p.inputs + i) * get::<T>(p.x, s * p.inputs + i);
            }
        }
        put::<T>(p.h, thread, if j < p.hidden { sum.tanh() } else { 1.0 });
    }
}

unsafe fn output<T: Real>(p: &Pass, s: u64) {
    let row = p.hidden + 1;
    // SAFETY: see above.
    unsafe {
        let mut y = 0.0;
        for j in 0..row {
            y += get::<T>(p.w2, j) * get::<T>(p.h, s * row + j);
        }
        let error = y - get::<f32>(p.target, s);
        put::<f32>(p.loss, s, error * error);
        put::<T>(p.dy, s, 2.0 * error * p.share * get::<f32>(p.scale, 0));
    }
}

unsafe fn gradient_w2<T: Real>(p: &Pass, j: u64) {
    // SAFETY: see above.
    unsafe {
        let of = |s| get::<T>(p.dy, s) * get::<T>(p.h, s * (p.hidden + 1) + j);
        put::<T>(p.g2, j, (0..p.samples).map(of).sum());
    }
}

unsafe fn gradient_w1<T: Real>(p: &Pass, thread: u64) {
    let (j, i) = (thread / p.inputs, thread % p.inputs);
    // SAFETY: see above.
    unsafe {
        let of = |s| {
            let h = get::<T>(p.h, s * (p.hidden + 1) + j);
            get::<T>(p.dy, s) * (1.0 - h * h) * get::<T>(p.x, s * p.inputs + i)
        };
        let sum: f32 = (0..p.samples).map(of).sum();
        put::<T>(p.g1, thread, sum * get::<T>(p.w2, j));
    }
}

unsafe fn accumulate<T: Real>(u: &Update, i: u64) {
    // SAFETY: see above.
    unsafe {
        let before = if u.keep != 0.0 {
            get::<f32>(u.sum, i)
        } else {
            0.0
        };
        put::<f32>(u.sum, i, before + get::<T>(u.gradient, i));
    }
}

unsafe fn step(u: &Update, i: u64) {
    // SAFETY: see above.
    unsafe {
        if (u.found as *const u32).read() != 0 {
            return;
        }
        let momentum = u.decay * get::<f32>(u.momentum, i) + get::<f32>(u.sum, i);
        put::<f32>(u.momentum, i, momentum);
        put::<f32>(u.master, i, get::<f32>(u.master, i) - u.rate * momentum);
    }
}
