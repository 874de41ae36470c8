//! The pairs of 8-bit formats with `bf16`, with each other and with themselves.

use bytemuck::Pod;
use half::{bf16, f16};
use warpool::convert::{
    Conversion, ConvertTo, E4m3, E5m2, Element, Fused, FusedTo, Overflow, Rounding, convert,
    convert_fused,
};
use warpool::driver::abi;

use crate::common;
use crate::convert_reference::{BF16, E4M3, E5M2, F16, Format, How, round};
use crate::ground::{Ground, every_ground, is_guard, noise};

const ROUNDINGS: [Rounding; 5] = [
    Rounding::Nearest,
    Rounding::TowardZero,
    Rounding::Up,
    Rounding::Down,
    Rounding::Stochastic { seed: 3 },
];

/// Random codes, every one of a byte among them.
fn codes<T: Pod>(count: usize) -> Vec<T> {
    let mut bytes: Vec<u8> = (0..count as u64 * size_of::<T>() as u64)
        .map(|i| noise(i) as u8)
        .collect();
    if size_of::<T>() == 1 {
        for (at, byte) in bytes.iter_mut().enumerate().take(256) {
            *byte = at as u8;
        }
    }
    bytes
        .chunks(size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
        .collect()
}

/// The results of one conversion, at element offsets.
fn converted<S: ConvertTo<D>, D: Element>(
    ground: &Ground,
    data: &[S],
    how: Conversion,
    (from, to): (usize, usize),
) -> Vec<D> {
    let mut shifted = vec![S::zeroed(); from];
    shifted.extend_from_slice(data);
    let source = ground.holding(&shifted);
    let mut target = ground.guarded::<D>(to + data.len());
    let view = source.view().slice(from..shifted.len());
    let end = to + data.len();
    let into = target.view_mut().slice(to..end);
    convert(&ground.stream, view.unwrap(), into.unwrap(), how).unwrap();
    ground.stream.synchronize().unwrap();
    let found = target.download().unwrap();
    assert!(is_guard(&found[..to]));
    found[to..].to_vec()
}

/// Compares bits: a NaN is not equal to itself.
fn the_gpu_agrees<S: ConvertTo<D>, D: Element>(host: &Ground, gpu: &Ground) {
    let data = codes::<S>(9001);
    for rounding in ROUNDINGS {
        for overflow in [Overflow::ToInfinity, Overflow::Saturate] {
            let how = Conversion::from((rounding, overflow));
            let want = converted::<S, D>(host, &data, how, (0, 0));
            for offsets in [(0, 0), (1, 0), (0, 3), (5, 16), (3, 3)] {
                let got = converted::<S, D>(gpu, &data, how, offsets);
                let bits = bytemuck::cast_slice::<D, u8>;
                assert!(
                    bits(&got) == bits(&want),
                    "{how:?} at {offsets:?}, {}",
                    std::any::type_name::<(S, D)>()
                );
            }
        }
    }
}

#[test]
fn the_gpu_gives_the_bits_of_the_host_for_the_pairs_of_8_bit_formats() {
    let Some(device) = common::cuda() else { return };
    let (host, gpu) = (Ground::new(&common::host()), Ground::new(&device));
    the_gpu_agrees::<bf16, E4m3>(&host, &gpu);
    the_gpu_agrees::<bf16, E5m2>(&host, &gpu);
    the_gpu_agrees::<E4m3, bf16>(&host, &gpu);
    the_gpu_agrees::<E5m2, bf16>(&host, &gpu);
    the_gpu_agrees::<E4m3, E5m2>(&host, &gpu);
    the_gpu_agrees::<E5m2, E4m3>(&host, &gpu);
}

#[test]
fn stochastic_rounding_draws_the_same_whatever_the_offset_and_stays_with_the_neighbours() {
    let how = Conversion::from(Rounding::Stochastic { seed: 11 });
    for ground in every_ground() {
        let data: Vec<E4m3> = codes(5000);
        let got = converted::<E4m3, E5m2>(&ground, &data, how, (0, 0));
        assert!(got == converted::<E4m3, E5m2>(&ground, &data, how, (7, 9)));
        let mut moved = [0, 0];
        for (x, y) in data.iter().zip(&got) {
            let by = |rounding| {
                let how = How {
                    rounding,
                    overflow: abi::WP_TO_INFINITY,
                };
                round(&E5M2, how, f64::from(f32::from(*x)))
            };
            let (down, up) = (by(abi::WP_DOWN), by(abi::WP_UP));
            let got = u32::from(y.0);
            assert!(got == down || got == up, "{x:?} to {y:?}");
            if down != up {
                moved[usize::from(got == up)] += 1;
            }
        }
        assert!(moved[0] > 500 && moved[1] > 500, "{moved:?}");
    }
}

/// What a scaled conversion gives, from the definitions.
fn scaled<S: FusedTo<D> + Into<f32>, D: Element>(
    ground: &Ground,
    format: Format,
    code: fn(&D) -> u32,
    data: &[S],
) {
    for scale in [1.0f32, -0.75, 3.0, 1e-3, 300.0, 1.1754944e-38] {
        let source = ground.holding(data);
        let mut target = ground.guarded::<D>(data.len());
        let mut amax = ground.holding(&[0f32]);
        let fused = Fused::default().scale(scale).amax(amax.view_mut());
        convert_fused(
            &ground.stream,
            source.view(),
            target.view_mut(),
            Overflow::Saturate,
            fused,
        )
        .unwrap();
        ground.stream.synchronize().unwrap();
        let how = How {
            rounding: abi::WP_NEAREST,
            overflow: abi::WP_SATURATE,
        };
        for (x, y) in data.iter().zip(target.download().unwrap()) {
            let wide: f32 = (*x).into();
            // The product of two f32 is exact in f64.
            let product = (f64::from(wide) * f64::from(scale)) as f32;
            let want = round(&format, how, f64::from(product));
            assert_eq!(code(&y), want, "{wide:e} by {scale:e} to {}", format.name);
        }
    }
}

#[test]
fn a_format_scales_into_itself_and_into_the_others() {
    for ground in every_ground() {
        let byte: (Vec<E4m3>, Vec<E5m2>) = (codes(777), codes(777));
        let wide: Vec<bf16> = codes(3001);
        let half: Vec<f16> = codes(3001);
        scaled::<E4m3, E4m3>(&ground, E4M3, |y| y.0.into(), &byte.0);
        scaled::<E5m2, E5m2>(&ground, E5M2, |y| y.0.into(), &byte.1);
        scaled::<E4m3, E5m2>(&ground, E5M2, |y| y.0.into(), &byte.0);
        scaled::<E5m2, E4m3>(&ground, E4M3, |y| y.0.into(), &byte.1);
        scaled::<E4m3, bf16>(&ground, BF16, |y| y.to_bits().into(), &byte.0);
        scaled::<bf16, E4m3>(&ground, E4M3, |y| y.0.into(), &wide);
        scaled::<bf16, E5m2>(&ground, E5M2, |y| y.0.into(), &wide);
        scaled::<bf16, bf16>(&ground, BF16, |y| y.to_bits().into(), &wide);
        scaled::<f16, f16>(&ground, F16, |y| y.to_bits().into(), &half);
    }
}

#[test]
fn f32_scales_into_itself_by_one_rounding() {
    for ground in every_ground() {
        let data: Vec<f32> = (0..1000).map(|i| (i as f32).sqrt() - 9.0).collect();
        let source = ground.holding(&data);
        let mut target = ground.guarded::<f32>(data.len());
        let fused = Fused::default().scale(0.1).bias(3.0);
        let how = Conversion::default();
        convert_fused(&ground.stream, source.view(), target.view_mut(), how, fused).unwrap();
        ground.stream.synchronize().unwrap();
        let want: Vec<f32> = data.iter().map(|x| x.mul_add(0.1, 3.0)).collect();
        assert_eq!(target.download().unwrap(), want);
    }
}
