//! The example `fp8_training`: by a plain loop everywhere, and by cuBLASLt where it can be had.

#[path = "../../examples/fp8_training.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod example;

use warpool::convert::{E4m3, E5m2};

use crate::ground::{Ground, every_ground};
use example::eight::{HISTORY, Scaled};
use example::products::{Code, Products};

fn follows(ground: &Ground, products: Products) {
    let report = example::compare(&ground.stream, &ground.pool, products).unwrap();
    let [single, eight] = &report.losses;
    let last = single.len() - 1;
    assert!(
        single[last] < 0.01 * single[0],
        "f32 does not learn: {single:?}"
    );
    assert!(eight[last] != single[last], "no product was of 8 bits");
    for [rounding, _] in report.apart {
        assert!(rounding > 0.01, "{rounding}: no product was of 8 bits");
    }
    assert!(
        report.follows(),
        "{eight:?} beside {single:?}; {:?}",
        report.apart
    );
}

#[test]
fn training_in_8_bits_follows_f32() {
    for ground in every_ground() {
        follows(&ground, Products::Loop);
        if std::env::var_os("CUDA_FORCE_PTX_JIT").is_some() {
            println!("skipped: cuBLAS has no PTX");
            continue;
        }
        follows(
            &ground,
            Products::best(&ground.stream, &ground.pool).unwrap(),
        );
    }
}

/// The scale after each of the steps whose largest magnitudes are `most`.
fn scales<Q: Code>(ground: &Ground, most: &[f32]) -> Vec<f32> {
    let mut tensor = Scaled::<Q>::new(&ground.stream, &ground.pool, 16, 16).unwrap();
    let step = |(step, most): (usize, &f32)| {
        let values = ground.holding(&[vec![-most; 1], vec![0.5 * most; 255]].concat());
        tensor.cast(&ground.stream, &values, step).unwrap();
        tensor.rescale(&ground.stream, &ground.pool).unwrap();
        tensor.scale.download().unwrap()[0]
    };
    most.iter().enumerate().map(step).collect()
}

#[test]
fn a_scale_is_of_the_largest_magnitude_of_the_steps_before_it() {
    let most = [1.0, 7.0, 2.0, 3.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0];
    let of_last = |at: usize| {
        let from = (at + 1).saturating_sub(HISTORY);
        most[from..=at].iter().fold(0.0, |a: f32, b| a.max(*b))
    };
    for ground in every_ground() {
        let wanted = |largest: f32| -> Vec<f32> {
            let each = (0..most.len()).map(|at| of_last(at) * (1.0 / largest));
            each.map(|scale| scale.max(f32::MIN_POSITIVE)).collect()
        };
        assert_eq!(scales::<E4m3>(&ground, &most), wanted(448.0));
        assert_eq!(scales::<E5m2>(&ground, &most), wanted(57344.0));
    }
}
