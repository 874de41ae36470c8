//! Loss scaling on every device there is.

use std::time::Duration;

use crate::common;

use half::{bf16, f16};
use warpool::ViewMut;
use warpool::convert::{Fused, GradScaler, Gradients, Rounding, ScalerConfig, convert_fused};
use warpool::device::DeviceKind;
use warpool::{Pool, PoolBuf, PoolConfig, Stream};

fn every_pool() -> Vec<(Pool, Stream)> {
    let open = |device: &warpool::Device| {
        (
            Pool::new(device, PoolConfig::default()).unwrap(),
            device.stream().unwrap(),
        )
    };
    common::devices().iter().map(open).collect()
}

fn config(scale: f32, interval: u32) -> ScalerConfig {
    ScalerConfig::default().scale(scale).interval(interval)
}

fn holding<T: bytemuck::Pod>(pool: &Pool, stream: &Stream, data: &[T]) -> PoolBuf<T> {
    let mut buffer = pool.alloc_typed::<T>(stream, data.len()).unwrap();
    buffer.upload(data).unwrap();
    buffer
}

#[test]
fn a_stream_of_another_device_is_refused_and_scale_and_gradients_are_as_they_were() {
    fn refused<T>(outcome: warpool::Result<T>) {
        let words = outcome.err().expect("it was taken").to_string();
        assert!(words.contains("another device"), "{words}");
    }
    let elsewhere = warpool::Device::host().unwrap();
    let theirs = elsewhere.stream().unwrap();
    let other = Pool::new(&elsewhere, PoolConfig::default()).unwrap();
    for (pool, stream) in every_pool() {
        let mut foreign = holding(&other, &theirs, &[1f32]);
        let mut gradients = holding(&pool, &stream, &[8f32, f32::INFINITY]);
        let mut scaler = GradScaler::new(&pool, &stream, config(4.0, 1)).unwrap();
        refused(Gradients::new(&pool, &stream, vec![foreign.view_mut()]));
        let mut all = Gradients::new(&pool, &stream, vec![gradients.view_mut()]).unwrap();
        refused(scaler.unscale(&theirs, &mut all));
        refused(scaler.update(&theirs));
        refused(scaler.read(&theirs));
        drop(all);
        let state = scaler.read(&stream).unwrap().wait().unwrap();
        let seen = (state.scale, state.updates, state.found);
        assert_eq!(seen, (4.0, 0, false));
        assert_eq!(gradients.download().unwrap(), [8.0, f32::INFINITY]);
    }
}

#[test]
fn the_scale_doubles_after_the_interval_and_halves_on_overflow() {
    for (pool, stream) in every_pool() {
        let mut scaler = GradScaler::new(&pool, &stream, config(1024.0, 3)).unwrap();
        let good = holding(&pool, &stream, &[1f32, 2.0]);
        let bad = holding(&pool, &stream, &[1f32, f32::INFINITY]);
        // A model in plain Rust beside it.
        let (mut scale, mut run, mut skipped) = (1024f32, 0, 0);
        for (step, overflow) in [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0].into_iter().enumerate() {
            let buffer = if overflow == 1 { &bad } else { &good };
            // SAFETY: the buffers live until the stream is done.
            let view = unsafe { ViewMut::<f32>::from_raw(buffer.addr(), 2) }.unwrap();
            let mut gradients = Gradients::new(&pool, &stream, vec![view]).unwrap();
            scaler.unscale(&stream, &mut gradients).unwrap();
            let before = scaler.read(&stream).unwrap().wait().unwrap();
            assert_eq!(before.found, overflow == 1, "step {step}");
            scaler.update(&stream).unwrap();
            if overflow == 1 {
                (scale, run, skipped) = (scale * 0.5, 0, skipped + 1);
            } else {
                run += 1;
                if run == 3 {
                    (scale, run) = (scale * 2.0, 0);
                }
            }
            let state = scaler.read(&stream).unwrap().wait().unwrap();
            assert_eq!(
                (state.scale, state.good_steps, state.skipped),
                (scale, run, skipped),
                "step {step}"
            );
            assert_eq!(
                (state.found, state.skipped_last),
                (false, overflow == 1),
                "step {step}"
            );
            assert_eq!(state.updates, step as u64 + 1);
        }
    }
}

#[test]
fn a_scaler_made_from_the_state_of_another_goes_on_as_that_does() {
    for (pool, stream) in every_pool() {
        let bad = holding(&pool, &stream, &[f32::NAN]);
        let step = |scaler: &mut GradScaler, overflow: bool| {
            if overflow {
                // SAFETY: the buffer lives until the stream is done.
                let view = unsafe { ViewMut::<f32>::from_raw(bad.addr(), 1) }.unwrap();
                let mut gradients = Gradients::new(&pool, &stream, vec![view]).unwrap();
                scaler.unscale(&stream, &mut gradients).unwrap();
            }
            scaler.update(&stream).unwrap();
            let state = scaler.read(&stream).unwrap().wait().unwrap();
            (state.scale, state.good_steps)
        };
        for before in 0..5 {
            let mut first = GradScaler::new(&pool, &stream, config(1024.0, 3)).unwrap();
            for at in 0..before {
                step(&mut first, at == 1);
            }
            let state = first.read(&stream).unwrap().wait().unwrap();
            let resumed = ScalerConfig::from((state.scale, state.good_steps)).interval(3);
            let mut second = GradScaler::new(&pool, &stream, resumed).unwrap();
            for at in 0..8 {
                let [one, other] = [&mut first, &mut second].map(|it| step(it, at == 5));
                assert_eq!(one, other, "step {at} after {before}");
            }
        }
        // With a shorter interval than it had, the scale grows at once.
        for steps in [2, 3, u32::MAX] {
            let resumed = ScalerConfig::from((8.0, steps)).interval(3);
            let mut scaler = GradScaler::new(&pool, &stream, resumed).unwrap();
            assert_eq!(step(&mut scaler, false), (16.0, 0), "{steps}");
        }
    }
}

/// The bits of a scaler's scale, and of one multiplied by its inverse, behind everything queued on `stream`.
fn bits(
    scaler: &mut GradScaler,
    one: &PoolBuf<f32>,
    to: &mut PoolBuf<f32>,
    stream: &Stream,
) -> [u32; 2] {
    let inverse = Fused::default().unscale(scaler);
    convert_fused(stream, one, &mut *to, Rounding::Nearest, inverse).unwrap();
    let scale = scaler.scale().download(stream).unwrap()[0];
    [scale, to.download().unwrap()[0]].map(f32::to_bits)
}

/// What a [`ScalerConfig`] is made of, for the model.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    scale: f32,
    growth: f32,
    backoff: f32,
    interval: u32,
}

impl Numbers {
    fn config(self) -> ScalerConfig {
        config(self.scale, self.interval)
            .growth(self.growth)
            .backoff(self.backoff)
    }
}

/// What the scale and its inverse must be after each of `steps` updates that overflow as it says.
fn model(numbers: Numbers, overflows: impl IntoIterator<Item = bool>) -> Vec<[u32; 2]> {
    let (lowest, highest) = (2f32.powi(-126), 2f32.powi(126));
    let (mut scale, mut run) = (numbers.scale, 0);
    let mut all = Vec::new();
    for overflow in overflows {
        run += 1;
        if overflow {
            (scale, run) = ((scale * numbers.backoff).max(lowest), 0);
        } else if run == numbers.interval {
            (scale, run) = ((scale * numbers.growth).min(highest), 0);
        }
        all.push([scale.to_bits(), (1.0 / scale).to_bits()]);
    }
    all
}

/// Runs `steps` updates on every device and compares the scale and its inverse with the model after
/// each, bit for bit.
fn agrees_with_the_model(numbers: Numbers, steps: &[bool]) {
    let want = model(numbers, steps.iter().copied());
    for (pool, stream) in every_pool() {
        let mut scaler = GradScaler::new(&pool, &stream, numbers.config()).unwrap();
        let one = holding(&pool, &stream, &[1f32]);
        let mut inverse = holding(&pool, &stream, &[0f32]);
        for (step, (&overflow, want)) in steps.iter().zip(&want).enumerate() {
            if overflow {
                let found = scaler.found().addr();
                common::write(&stream, found, &1u32.to_le_bytes());
            }
            scaler.update(&stream).unwrap();
            let got = bits(&mut scaler, &one, &mut inverse, &stream);
            assert_eq!(
                got, *want,
                "{numbers:?}, step {step}: {got:x?}, not {want:x?}"
            );
            assert!(f32::from_bits(got[0]).is_normal() && f32::from_bits(got[1]).is_normal());
        }
    }
}

#[test]
fn a_scale_that_backs_off_without_end_stays_above_nothing_and_its_inverse_finite() {
    let rounds = common::rounds(300);
    for backoff in [0.5, 0.3, 0.999, 1e-30, f32::from_bits(1)] {
        let numbers = Numbers {
            scale: 65536.0,
            growth: 2.0,
            backoff,
            interval: 2000,
        };
        agrees_with_the_model(numbers, &vec![true; rounds]);
    }
}

#[test]
fn a_scale_that_grows_without_end_stays_finite_and_its_inverse_above_nothing() {
    let rounds = common::rounds(200);
    for growth in [2.0, 1.7, 1e30, f32::MAX] {
        let numbers = Numbers {
            scale: 1024.0,
            growth,
            backoff: 0.5,
            interval: 1,
        };
        agrees_with_the_model(numbers, &vec![false; rounds]);
    }
}

#[test]
fn the_scale_and_its_inverse_are_those_of_the_model_after_every_step() {
    let numbers = Numbers {
        scale: 1.0,
        growth: 1.1,
        backoff: 0.37,
        interval: 2,
    };
    // Up to the highest, down to the lowest, and to and fro.
    let mut steps = vec![false; common::rounds(2000)];
    steps.extend(vec![true; common::rounds(200)]);
    steps.extend((0..common::rounds(300)).map(|i| i % 7 == 0));
    agrees_with_the_model(numbers, &steps);
}

/// Unscales tensors of odd lengths at odd offsets and checks every element and its neighbours.
fn unscales<T: warpool::convert::Wide + PartialEq + std::fmt::Debug>(
    from: fn(f32) -> T,
    to: fn(T) -> f32,
) {
    for (pool, stream) in every_pool() {
        for poison in [None, Some(f32::NAN), Some(f32::NEG_INFINITY)] {
            let mut scaler = GradScaler::new(&pool, &stream, config(8.0, 2000)).unwrap();
            let lengths = [1usize, 7, 64, 1000, 5003, 3, 20_000];
            let total: usize = lengths.iter().map(|n| n + 3).sum();
            let mut data: Vec<T> = (0..total)
                .map(|i| from((i as f32 * 0.37).cos() * 90.0))
                .collect();
            if let Some(poison) = poison {
                data[3 + 10 + 67 + 500] = from(poison);
            }
            let buffer = holding(&pool, &stream, &data);
            let (mut views, mut inside, mut at) = (vec![], vec![false; total], 1usize);
            for n in lengths {
                // SAFETY: the pieces are apart, and the buffer lives until the download below.
                let view = unsafe {
                    ViewMut::<T>::from_raw(buffer.addr() + (at * size_of::<T>()) as u64, n)
                };
                views.push(view.unwrap());
                inside[at..at + n].fill(true);
                at += n + 3;
            }
            let mut gradients = Gradients::new(&pool, &stream, views).unwrap();
            scaler.unscale(&stream, &mut gradients).unwrap();
            let state = scaler.read(&stream).unwrap().wait().unwrap();
            assert_eq!(state.found, poison.is_some());
            for (i, (&got, &was)) in buffer.download().unwrap().iter().zip(&data).enumerate() {
                let want = if inside[i] {
                    from(to(was) * 0.125)
                } else {
                    was
                };
                let nan = to(want).is_nan() && to(got).is_nan();
                assert!(
                    nan || bytemuck::bytes_of(&got) == bytemuck::bytes_of(&want),
                    "{got:?}, not {want:?}, at {i}"
                );
            }
        }
    }
}

#[test]
fn every_f32_gradient_is_multiplied_and_its_neighbours_are_not() {
    unscales::<f32>(|x| x, |x| x);
}

#[test]
fn every_f16_gradient_is_multiplied_and_its_neighbours_are_not() {
    unscales::<f16>(f16::from_f32, f16::to_f32);
}

#[test]
fn every_bf16_gradient_is_multiplied_and_its_neighbours_are_not() {
    unscales::<bf16>(bf16::from_f32, bf16::to_f32);
}

#[test]
fn gradients_are_unscaled_and_checked_on_their_way_to_f32() {
    for (pool, stream) in every_pool() {
        let mut scaler = GradScaler::new(&pool, &stream, config(4.0, 10)).unwrap();
        let half = holding(
            &pool,
            &stream,
            &[f16::from_f32(2.0), f16::INFINITY, f16::from_f32(-6.0)],
        );
        let mut master = holding(&pool, &stream, &[0f32; 3]);
        let fused = Fused::default().unscale(&mut scaler);
        convert_fused(
            &stream,
            half.view(),
            master.view_mut(),
            Rounding::Nearest,
            fused,
        )
        .unwrap();
        assert!(scaler.read(&stream).unwrap().wait().unwrap().found);
        assert_eq!(master.download().unwrap(), [0.5, f32::INFINITY, -1.5]);
    }
}

#[test]
fn a_configuration_that_cannot_work_is_an_error() {
    for (pool, stream) in every_pool() {
        let with = ScalerConfig::default;
        let wrong = [
            with().scale(0.0),
            with().scale(f32::from_bits(1)),
            with().growth(1.0),
            with().backoff(1.0),
            with().interval(0),
            with().scale(2f32.powi(-126).next_down()),
            with().scale(2f32.powi(126).next_up()),
            with().scale(f32::NAN),
            with().growth(f32::NAN),
            with().growth(f32::INFINITY),
            with().growth(-2.0),
            with().backoff(f32::NAN),
            with().backoff(0.0),
            with().backoff(-0.5),
        ];
        for config in wrong {
            assert!(
                GradScaler::new(&pool, &stream, config).is_err(),
                "{config:?}"
            );
        }
    }
}

#[test]
fn a_state_that_was_read_is_ready_when_its_copy_is_done_and_not_before() {
    for (pool, stream) in every_pool() {
        let scaler = GradScaler::new(&pool, &stream, config(1024.0, 3)).unwrap();
        // A driver holds the caller of a copy to memory that is not page-locked until it is done.
        let may_be_held = stream.device().info().kind != DeviceKind::Cuda;
        let gate = may_be_held.then(|| common::Gate::close(&stream));
        let state = scaler.read(&stream).unwrap();
        if let Some(gate) = gate {
            let early = state.ready().unwrap();
            gate.open();
            assert_eq!(early, None);
        }
        let scale = state.wait().unwrap().scale;
        assert_eq!(scale, 1024.0);
        assert_eq!(state.ready().unwrap().map(|state| state.scale), Some(scale));
    }
}

#[test]
fn a_state_that_is_dropped_waits_for_its_copy_and_for_no_later_work() {
    let device = common::host();
    let (pool, stream) = (
        Pool::new(&device, PoolConfig::default()).unwrap(),
        device.stream().unwrap(),
    );
    let scaler = GradScaler::new(&pool, &stream, config(1024.0, 3)).unwrap();
    let before = common::Gate::close(&stream);
    let state = scaler.read(&stream).unwrap();
    let behind = common::Gate::close(&stream);
    let (tell, told) = std::sync::mpsc::channel();
    let dropped = std::thread::spawn(move || {
        drop(state);
        tell.send(()).unwrap();
    });
    let early = told.recv_timeout(Duration::from_millis(40));
    before.open();
    let late = told.recv_timeout(Duration::from_secs(5));
    behind.open();
    dropped.join().unwrap();
    assert!(early.is_err(), "the copy was not waited for");
    assert!(late.is_ok(), "work behind the copy was waited for");
}

#[test]
fn a_state_is_not_read_into_a_graph() {
    for (pool, stream) in every_pool() {
        let scaler = GradScaler::new(&pool, &stream, config(1024.0, 3)).unwrap();
        let capture = stream.begin_capture().unwrap();
        assert!(scaler.read(&stream).is_err());
        drop(capture.end().unwrap());
        assert_eq!(scaler.read(&stream).unwrap().wait().unwrap().scale, 1024.0);
    }
}
