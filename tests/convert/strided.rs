//! Conversions of several dimensions, against the same elements one after another.

use half::f16;
use warpool::convert::{
    Conversion, E4m3, Overflow, Rounding, Rows, Strided, StridedMut, convert, convert_strided,
};
use warpool::{Device, View};

use crate::conversions::{Bench, every_bench, is_guard, values};

/// A shape, the strides of the source and of the destination.
type Case = (&'static [usize], &'static [usize], &'static [usize]);

const CASES: [Case; 10] = [
    (&[2, 3, 4, 5], &[60, 20, 5, 1], &[60, 20, 5, 1]),
    (&[2, 3, 4, 5], &[60, 20, 5, 1], &[72, 24, 6, 1]),
    (&[2, 3, 4, 5], &[100, 31, 7, 1], &[90, 30, 6, 1]),
    (&[3, 64, 33], &[4096, 33, 1], &[2112, 33, 1]),
    (&[5, 6, 7], &[1, 35, 5], &[42, 7, 1]),
    (&[17, 128], &[0, 1], &[128, 1]),
    (&[4, 1, 9], &[9, 9, 1], &[16, 3, 1]),
    (&[300], &[3], &[2]),
    (&[1], &[7], &[9]),
    (&[3, 0, 5], &[5, 5, 1], &[5, 5, 1]),
];

/// Places of the elements, in the order of their indices.
fn places(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut all = vec![0];
    for (&count, &stride) in shape.iter().zip(strides) {
        let step = |at: &usize| (0..count).map(|i| at + i * stride).collect::<Vec<_>>();
        all = all.iter().flat_map(step).collect();
    }
    all
}

fn check(bench: &Bench, (shape, from, into): Case, how: Conversion) {
    let (from_places, into_places) = (places(shape, from), places(shape, into));
    let room = |places: &[usize]| places.iter().max().map_or(1, |most| most + 1);
    let data = values(room(&from_places));
    let source = bench.holding(&data);
    let mut target = bench.guarded::<E4m3>(room(&into_places) + 3);
    // The same elements without gaps.
    let packed: Vec<f32> = from_places.iter().map(|&at| data[at]).collect();
    let packed_source = bench.holding(&packed);
    let mut want = bench.guarded::<E4m3>(packed.len());
    let view = packed_source.view().slice(..packed.len()).unwrap();
    let into_want = want.view_mut().slice(..packed.len()).unwrap();
    convert(&bench.stream, view, into_want, how).unwrap();
    let src = Strided::new(source.view(), shape, from).unwrap();
    let dst = StridedMut::new(target.view_mut(), shape, into).unwrap();
    convert_strided(&bench.stream, src, dst, how).unwrap();
    bench.stream.synchronize().unwrap();
    let (got, want) = (target.download().unwrap(), want.download().unwrap());
    for (element, &at) in into_places.iter().enumerate() {
        assert_eq!(got[at], want[element], "{shape:?} {how:?}: {element}");
    }
    let beside = (0..got.len()).filter(|at| !into_places.contains(at));
    assert!(beside.into_iter().all(|at| is_guard(&got[at..=at])));
}

#[test]
fn elements_of_any_strides_convert_as_without_gaps_and_the_gaps_stay() {
    for bench in every_bench() {
        for case in CASES {
            for how in [
                Conversion::default(),
                Rounding::Stochastic { seed: 9 }.into(),
                Overflow::Saturate.into(),
            ] {
                check(&bench, case, how);
            }
        }
    }
}

#[test]
fn rows_are_views_of_two_dimensions() {
    for bench in every_bench() {
        let data = values(96);
        let (source, mut target) = (bench.holding(&data), bench.guarded::<f16>(96));
        let rows = Rows::new(source.view(), 3, 20, 32).unwrap();
        let dst = StridedMut::new(target.view_mut(), &[3, 20], &[24, 1]).unwrap();
        convert_strided(&bench.stream, rows, dst, Conversion::default()).unwrap();
        bench.stream.synchronize().unwrap();
        let got = target.download().unwrap();
        assert!(is_guard(&got[20..24]) && !is_guard(&got[24..44]));
    }
}

#[test]
fn shapes_that_differ_and_destinations_that_overlap_are_errors_and_nothing_is_written() {
    for bench in every_bench() {
        let source = bench.holding(&values(64));
        let mut target = bench.guarded::<f16>(64);
        let src = || Strided::new(source.view(), &[4, 8], &[8, 1]).unwrap();
        let dst = StridedMut::new(target.view_mut(), &[8, 4], &[4, 1]).unwrap();
        let error = convert_strided(&bench.stream, src(), dst, Conversion::default());
        assert!(error.unwrap_err().to_string().contains("[1, 1, 8, 4]"));
        let meets = StridedMut::new(target.view_mut(), &[4, 8], &[4, 1]);
        assert!(meets.unwrap_err().to_string().contains("4 apart"));
        let beyond = StridedMut::new(target.view_mut(), &[4, 8], &[20, 1]);
        assert!(beyond.unwrap_err().to_string().contains("beyond 64"));
        // SAFETY: refused before anything is queued.
        let own = unsafe { View::<f32>::from_raw(target.addr(), 8).unwrap() };
        let src = Strided::new(own, &[8], &[1]).unwrap();
        let dst = StridedMut::new(target.view_mut(), &[8], &[1]).unwrap();
        let error = convert_strided(&bench.stream, src, dst, Conversion::default());
        assert!(error.unwrap_err().to_string().contains("overlaps"));
        assert!(is_guard(&target.download().unwrap()));
    }
}

#[test]
fn no_elements_are_nothing_to_do_and_a_stream_of_another_device_is_refused_all_the_same() {
    for bench in every_bench() {
        let elsewhere = Device::host().unwrap().stream().unwrap();
        let source = bench.holding(&values(8));
        let mut target = bench.guarded::<f16>(8);
        for shape in [[0, 8], [8, 0], [usize::MAX, 0]] {
            let mut convert = |stream| {
                let src = Strided::new(source.view(), &shape, &[8, 1]).unwrap();
                let dst = StridedMut::new(target.view_mut(), &shape, &[8, 1]).unwrap();
                convert_strided(stream, src, dst, Rounding::Nearest)
            };
            convert(&bench.stream).unwrap();
            let error = convert(&elsewhere).unwrap_err().to_string();
            assert!(error.contains("another device"), "{error}");
        }
        assert!(is_guard(&target.download().unwrap()));
    }
}

/// More rows of one element than a launch counts shares, on a GPU with the memory for them.
#[test]
fn rows_of_one_element_may_be_more_than_two_to_the_thirty_second() {
    const ROWS: usize = (1 << 32) + 7;
    let Some(device) = crate::common::cuda() else {
        return;
    };
    if crate::common::under_sanitizer() || device.free_bytes().unwrap() < 40 << 30 {
        println!("skipped: 17 GB of memory, and each row a share");
        return;
    }
    let pool = warpool::Pool::new(&device, warpool::PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let source = pool
        .alloc_filled(&stream, 2 * ROWS, E4m3::from_f32(1.5))
        .unwrap();
    let mut target = pool.alloc_zeroed::<f16>(&stream, ROWS).unwrap();
    let src = Strided::new(source.view(), &[ROWS], &[2]).unwrap();
    let dst = StridedMut::new(target.view_mut(), &[ROWS], &[1]).unwrap();
    convert_strided(&stream, src, dst, Rounding::Nearest).unwrap();
    for from in [0, 0xFFFF_FFF0 - 8, ROWS - 16] {
        let part = target.slice(from..from + 16).unwrap();
        assert_eq!(part.download(&stream).unwrap(), [f16::from_f32(1.5); 16]);
    }
}

#[test]
fn rows_without_elements_take_no_time_however_many() {
    let device = warpool::Device::host().unwrap();
    let pool = warpool::Pool::new(&device, warpool::PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let source = pool.alloc_typed::<f16>(&stream, 0).unwrap();
    let mut target = pool.alloc_typed::<E4m3>(&stream, 0).unwrap();
    let began = std::time::Instant::now();
    let rows = u32::MAX as usize;
    let src = Rows::new(&source, rows, 0, 0).unwrap();
    let dst = warpool::convert::RowsMut::new(&mut target, rows, 0, 0).unwrap();
    warpool::convert::convert_rows(&stream, src, dst, Rounding::Nearest).unwrap();
    stream.synchronize().unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
}
